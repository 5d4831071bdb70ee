!> A number that carries the sum of the absolute values of the terms it was made of.
!!
!! The reference is instantiated for this type beside the three real kinds, so that the very same loops yield, for
!! every output, the scale of the accuracy rule |got - ref| <= c eps scale. The rules are those of running error
!! analysis: |x| for an input, the sum for a sum, the product for a product.
module trigraph_scaled
    use trigraph_kinds, only: dp
    implicit none
    private
    public :: scaled, input, assignment(=), operator(+), operator(*), operator(<=)

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
    interface operator(*)
        module procedure multiply
    end interface
    interface operator(<=)
        module procedure at_most_integer
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

    elemental function multiply(x, y) result(z)
        type(scaled), intent(in) :: x, y
        type(scaled) :: z
        z = scaled(x%v * y%v, x%s * y%s)
    end function multiply

    elemental function at_most_integer(x, n) result(holds)
        type(scaled), intent(in) :: x
        integer, intent(in) :: n
        logical :: holds
        holds = x%v <= n
    end function at_most_integer

end module trigraph_scaled
