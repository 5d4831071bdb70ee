!> A number and its scale, which is the sum of the absolute values of its terms.
!!
!! The reference is instantiated for this type and for three real kinds, so that the same loops also compute the scale of each
!! output for the accuracy rule |got - ref| <= c eps scale. Scales follow running error analysis: the scale of an input x is |x|, a
!! sum adds the scales, a product multiplies them, and the scale of f(x) is |f| + |f'| scale(x).
!!
!! The product of scales is correct for factors that are sums of terms of the inputs: it is the sum of |terms| of the expanded
!! product, which a backend may compute instead. The scale of a quotient or a function also contains the propagated errors of its
!! arguments. Multiplying such results by `times` includes these errors once instead of in every term of the other factor.
!!
!! The value is real128: in float64, 1 - sigmoid(x) would be 0 for x > 37, and the scale of its products would also be 0, although a
!! correct result may be 1e-17. A scale has only positive terms and needs fewer digits, but the exponent range of real128: on x86,
!! it is an 80-bit number, which is fast because the processor supports this type, unlike real128.
module trigraph_scaled
    use trigraph_kinds, only: sp, dp, qp
    implicit none
    private
    public :: scaled, mp, make_scaled_input, assignment(=), operator(+), operator(-), operator(*), operator(/), operator(<=), &
        & operator(>=)
    public :: times, sqrt, sin, cos, exp, tanh, exponent, scale

    integer, parameter :: mp = selected_real_kind(p=18, r=range(1.0_qp))

    type :: scaled
        real(qp) :: v       !< value
        real(mp) :: s       !< sum of |terms|
    end type scaled

    interface assignment(=)
        module procedure assign_integer
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
        module procedure times_sp, times_dp, times_qp, times_scaled
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
    interface exp
        module procedure exp_scaled
    end interface
    interface tanh
        module procedure tanh_scaled
    end interface
    interface exponent
        module procedure exponent_scaled
    end interface
    interface scale
        module procedure scale_scaled
    end interface

contains

    elemental function compute_magnitude(value) result(magnitude)
        real(qp), intent(in) :: value
        real(mp) :: magnitude
        magnitude = real(abs(value), mp)
    end function compute_magnitude

    !> Return an input of an operator as a number with one term.
    elemental function make_scaled_input(value) result(x)
        real(qp), intent(in) :: value
        type(scaled) :: x
        x = scaled(value, compute_magnitude(value))
    end function make_scaled_input

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

    elemental function subtract_integer(x, n) result(z)
        type(scaled), intent(in) :: x
        integer, intent(in) :: n
        type(scaled) :: z
        z = scaled(x%v - n, x%s + abs(n))
    end function subtract_integer

    elemental function subtract_from_integer(n, x) result(z)
        integer, intent(in) :: n
        type(scaled), intent(in) :: x
        type(scaled) :: z
        z = scaled(n - x%v, x%s + abs(n))
    end function subtract_from_integer

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

    !> The scale is |x| scale(y) + scale(x) |y| - |x y|, plus a term for the product of the two errors, which dominates if the terms
    !! of both factors cancel. The error of a factor that obeys the accuracy rule is below 8 eps times its scale, so the product of
    !! two errors is below (8 eps)^2 x%s y%s. Using the larger eps, of float32, makes the bound valid in both precisions.
    elemental function times_scaled(x, y) result(z)
        type(scaled), intent(in) :: x, y
        type(scaled) :: z
        real(mp), parameter :: relative_error = 8 * real(epsilon(1.0_sp), mp)
        real(mp) :: a, b
        a = compute_magnitude(x%v)
        b = compute_magnitude(y%v)
        z = scaled(x%v * y%v, a * y%s + x%s * b - a * b + relative_error * x%s * y%s)
    end function times_scaled

    elemental function times_sp(x, y) result(z)
        real(sp), intent(in) :: x, y
        real(sp) :: z
        z = x * y
    end function times_sp

    elemental function times_dp(x, y) result(z)
        real(dp), intent(in) :: x, y
        real(dp) :: z
        z = x * y
    end function times_dp

    elemental function times_qp(x, y) result(z)
        real(qp), intent(in) :: x, y
        real(qp) :: z
        z = x * y
    end function times_qp

    !> The scale is of first order in the error of y, because denominators have relative errors of only a few eps.
    elemental function divide(x, y) result(z)
        type(scaled), intent(in) :: x, y
        type(scaled) :: z
        real(mp) :: d
        d = compute_magnitude(y%v)
        z = scaled(x%v / y%v, x%s / d + compute_magnitude(x%v) * y%s / d**2)
    end function divide

    elemental function divide_integer(x, n) result(z)
        type(scaled), intent(in) :: x
        integer, intent(in) :: n
        type(scaled) :: z
        z = scaled(x%v / n, x%s / abs(n))
    end function divide_integer

    elemental function at_most(x, y) result(holds)
        type(scaled), intent(in) :: x, y
        logical :: holds
        holds = x%v <= y%v
    end function at_most

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
        z%v = sqrt(x%v)
        z%s = compute_magnitude(z%v) + x%s / (2 * compute_magnitude(z%v))
    end function sqrt_scaled

    elemental function sin_scaled(x) result(z)
        type(scaled), intent(in) :: x
        type(scaled) :: z
        z%v = sin(x%v)
        z%s = compute_magnitude(z%v) + compute_magnitude(cos(x%v)) * x%s
    end function sin_scaled

    elemental function cos_scaled(x) result(z)
        type(scaled), intent(in) :: x
        type(scaled) :: z
        z%v = cos(x%v)
        z%s = compute_magnitude(z%v) + compute_magnitude(sin(x%v)) * x%s
    end function cos_scaled

    elemental function exp_scaled(x) result(z)
        type(scaled), intent(in) :: x
        type(scaled) :: z
        z%v = exp(x%v)
        z%s = compute_magnitude(z%v) + compute_magnitude(z%v) * x%s
    end function exp_scaled

    elemental function tanh_scaled(x) result(z)
        type(scaled), intent(in) :: x
        type(scaled) :: z
        z%v = tanh(x%v)
        z%s = compute_magnitude(z%v) + compute_magnitude(1 - z%v**2) * x%s
    end function tanh_scaled

    elemental function exponent_scaled(x) result(n)
        type(scaled), intent(in) :: x
        integer :: n
        n = exponent(x%v)
    end function exponent_scaled

    !> Return x 2^n without rounding.
    elemental function scale_scaled(x, n) result(z)
        type(scaled), intent(in) :: x
        integer, intent(in) :: n
        type(scaled) :: z
        z = scaled(scale(x%v, n), scale(x%s, n))
    end function scale_scaled

end module trigraph_scaled
