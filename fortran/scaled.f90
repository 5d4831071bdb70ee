!> A number that carries the sum of the absolute values of the terms it was made of.
!!
!! The reference is instantiated for this type beside the three real kinds, so that the very same loops yield, for
!! every output, the scale of the accuracy rule |got - ref| <= c eps scale. The rules are those of running error
!! analysis: |x| for an input, the sum for a sum, the product for a product, |f| + |f'| scale(x) for a function.
module trigraph_scaled
    use trigraph_kinds, only: dp
    implicit none
    private
    public :: scaled, input, assignment(=), operator(+), operator(-), operator(*), operator(/), operator(<=), operator(>=)
    public :: sqrt, sin, cos

    type :: scaled
        real(dp) :: v       !< value
        real(dp) :: s       !< sum of |terms|
    end type scaled

    interface assignment(=)
        module procedure assign_integer
    end interface
    interface operator(+)
        module procedure add
    end interface
    interface operator(-)
        module procedure subtract, negate
    end interface
    interface operator(*)
        module procedure multiply, multiply_integer
    end interface
    interface operator(/)
        module procedure divide, divide_integer
    end interface
    interface operator(<=)
        module procedure at_most_integer
    end interface
    interface operator(>=)
        module procedure at_least_integer
    end interface
    interface sqrt
        module procedure sqrt_scaled
    end interface
    interface sin
        module procedure sin_scaled
    end interface
    interface cos
        module procedure cos_scaled
    end interface

contains

    !> An input of an operator: one term.
    elemental function input(value) result(x)
        real(dp), intent(in) :: value
        type(scaled) :: x
        x = scaled(value, abs(value))
    end function input

    elemental subroutine assign_integer(x, n)
        type(scaled), intent(out) :: x
        integer, intent(in) :: n
        x%v = n
        x%s = abs(n)
    end subroutine assign_integer

    elemental function add(x, y) result(z)
        type(scaled), intent(in) :: x, y
        type(scaled) :: z
        z = scaled(x%v + y%v, x%s + y%s)
    end function add

    elemental function subtract(x, y) result(z)
        type(scaled), intent(in) :: x, y
        type(scaled) :: z
        z = scaled(x%v - y%v, x%s + y%s)
    end function subtract

    elemental function negate(x) result(z)
        type(scaled), intent(in) :: x
        type(scaled) :: z
        z = scaled(-x%v, x%s)
    end function negate

    elemental function multiply(x, y) result(z)
        type(scaled), intent(in) :: x, y
        type(scaled) :: z
        z = scaled(x%v * y%v, x%s * y%s)
    end function multiply

    elemental function multiply_integer(n, x) result(z)
        integer, intent(in) :: n
        type(scaled), intent(in) :: x
        type(scaled) :: z
        z = scaled(n * x%v, abs(n) * x%s)
    end function multiply_integer

    !> A denominator is a norm or an argument, known to a few roundings: its scale enters to first order.
    elemental function divide(x, y) result(z)
        type(scaled), intent(in) :: x, y
        type(scaled) :: z
        z = scaled(x%v / y%v, x%s / abs(y%v) + abs(x%v) * y%s / y%v**2)
    end function divide

    elemental function divide_integer(x, n) result(z)
        type(scaled), intent(in) :: x
        integer, intent(in) :: n
        type(scaled) :: z
        z = scaled(x%v / n, x%s / abs(n))
    end function divide_integer

    elemental function at_most_integer(x, n) result(holds)
        type(scaled), intent(in) :: x
        integer, intent(in) :: n
        logical :: holds
        holds = x%v <= n
    end function at_most_integer

    elemental function at_least_integer(x, n) result(holds)
        type(scaled), intent(in) :: x
        integer, intent(in) :: n
        logical :: holds
        holds = x%v >= n
    end function at_least_integer

    elemental function sqrt_scaled(x) result(z)
        type(scaled), intent(in) :: x
        type(scaled) :: z
        z = scaled(sqrt(x%v), sqrt(x%v) + x%s / (2 * sqrt(x%v)))
    end function sqrt_scaled

    elemental function sin_scaled(x) result(z)
        type(scaled), intent(in) :: x
        type(scaled) :: z
        z = scaled(sin(x%v), abs(sin(x%v)) + abs(cos(x%v)) * x%s)
    end function sin_scaled

    elemental function cos_scaled(x) result(z)
        type(scaled), intent(in) :: x
        type(scaled) :: z
        z = scaled(cos(x%v), abs(cos(x%v)) + abs(sin(x%v)) * x%s)
    end function cos_scaled

end module trigraph_scaled
