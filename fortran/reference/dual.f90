!> Dual numbers over type(scaled): a value and its derivative along a direction, each with its scale.
!!
!! If the reference's first and second derivatives are instantiated for this type, the same source also computes their derivatives
!! along a direction. The rules of differentiation use the operations of type(scaled), which propagate scales. The derivative of a
!! function contains propagated errors and is therefore multiplied by `times`. Integers and values of type(scaled) are constants.
module trigraph_dual
    use trigraph_scaled
    implicit none
    private
    public :: scaled, mp, make_scaled_input, dual, assignment(=), operator(+), operator(-), operator(*), operator(/), &
        & operator(<=), operator(>=), times, sqrt, sin, cos, exp, tanh, exponent, scale

    type :: dual
        type(scaled) :: v   !< value
        type(scaled) :: d   !< derivative
    end type dual

    interface assignment(=)
        module procedure assign_scaled, assign_integer
    end interface
    interface operator(+)
        module procedure add
    end interface
    interface operator(-)
        module procedure subtract, subtract_integer, subtract_from_integer, negate
    end interface
    interface operator(*)
        module procedure multiply, multiply_integer
    end interface
    interface operator(/)
        module procedure divide, divide_integer
    end interface
    interface operator(<=)
        module procedure at_most, at_most_integer
    end interface
    interface operator(>=)
        module procedure at_least_integer
    end interface
    interface times
        module procedure times_dual
    end interface
    interface sqrt
        module procedure sqrt_dual
    end interface
    interface sin
        module procedure sin_dual
    end interface
    interface cos
        module procedure cos_dual
    end interface
    interface exp
        module procedure exp_dual
    end interface
    interface tanh
        module procedure tanh_dual
    end interface
    interface exponent
        module procedure exponent_dual
    end interface
    interface scale
        module procedure scale_dual
    end interface

contains

    elemental subroutine assign_scaled(x, value)
        type(dual), intent(out) :: x
        type(scaled), intent(in) :: value
        x%v = value
        x%d = 0
    end subroutine assign_scaled

    elemental subroutine assign_integer(x, n)
        type(dual), intent(out) :: x
        integer, intent(in) :: n
        x%v = n
        x%d = 0
    end subroutine assign_integer

    elemental function add(x, y) result(z)
        type(dual), intent(in) :: x, y
        type(dual) :: z
        z = dual(x%v + y%v, x%d + y%d)
    end function add

    elemental function subtract(x, y) result(z)
        type(dual), intent(in) :: x, y
        type(dual) :: z
        z = dual(x%v - y%v, x%d - y%d)
    end function subtract

    elemental function subtract_integer(x, n) result(z)
        type(dual), intent(in) :: x
        integer, intent(in) :: n
        type(dual) :: z
        z = dual(x%v - n, x%d)
    end function subtract_integer

    elemental function subtract_from_integer(n, x) result(z)
        integer, intent(in) :: n
        type(dual), intent(in) :: x
        type(dual) :: z
        z = dual(n - x%v, -x%d)
    end function subtract_from_integer

    elemental function negate(x) result(z)
        type(dual), intent(in) :: x
        type(dual) :: z
        z = dual(-x%v, -x%d)
    end function negate

    elemental function multiply(x, y) result(z)
        type(dual), intent(in) :: x, y
        type(dual) :: z
        z = dual(x%v * y%v, x%d * y%v + x%v * y%d)
    end function multiply

    elemental function multiply_integer(n, x) result(z)
        integer, intent(in) :: n
        type(dual), intent(in) :: x
        type(dual) :: z
        z = dual(n * x%v, n * x%d)
    end function multiply_integer

    elemental function times_dual(x, y) result(z)
        type(dual), intent(in) :: x, y
        type(dual) :: z
        z = dual(times(x%v, y%v), times(x%d, y%v) + times(x%v, y%d))
    end function times_dual

    elemental function divide(x, y) result(z)
        type(dual), intent(in) :: x, y
        type(dual) :: z
        z%v = x%v / y%v
        z%d = (x%d - times(z%v, y%d)) / y%v
    end function divide

    elemental function divide_integer(x, n) result(z)
        type(dual), intent(in) :: x
        integer, intent(in) :: n
        type(dual) :: z
        z = dual(x%v / n, x%d / n)
    end function divide_integer

    elemental function at_most(x, y) result(holds)
        type(dual), intent(in) :: x, y
        logical :: holds
        holds = x%v <= y%v
    end function at_most

    elemental function at_most_integer(x, n) result(holds)
        type(dual), intent(in) :: x
        integer, intent(in) :: n
        logical :: holds
        holds = x%v <= n
    end function at_most_integer

    elemental function at_least_integer(x, n) result(holds)
        type(dual), intent(in) :: x
        integer, intent(in) :: n
        logical :: holds
        holds = x%v >= n
    end function at_least_integer

    elemental function sqrt_dual(x) result(z)
        type(dual), intent(in) :: x
        type(dual) :: z
        z%v = sqrt(x%v)
        z%d = x%d / (2 * z%v)
    end function sqrt_dual

    elemental function sin_dual(x) result(z)
        type(dual), intent(in) :: x
        type(dual) :: z
        z = dual(sin(x%v), times(cos(x%v), x%d))
    end function sin_dual

    elemental function cos_dual(x) result(z)
        type(dual), intent(in) :: x
        type(dual) :: z
        z = dual(cos(x%v), -times(sin(x%v), x%d))
    end function cos_dual

    elemental function exp_dual(x) result(z)
        type(dual), intent(in) :: x
        type(dual) :: z
        z%v = exp(x%v)
        z%d = times(z%v, x%d)
    end function exp_dual

    elemental function tanh_dual(x) result(z)
        type(dual), intent(in) :: x
        type(dual) :: z
        z%v = tanh(x%v)
        z%d = times(1 - times(z%v, z%v), x%d)
    end function tanh_dual

    elemental function exponent_dual(x) result(n)
        type(dual), intent(in) :: x
        integer :: n
        n = exponent(x%v)
    end function exponent_dual

    elemental function scale_dual(x, n) result(z)
        type(dual), intent(in) :: x
        integer, intent(in) :: n
        type(dual) :: z
        z = dual(scale(x%v, n), scale(x%d, n))
    end function scale_dual

end module trigraph_dual
