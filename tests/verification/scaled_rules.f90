!> Prints value and scale of each operation of trigraph_scaled, for numbers that are read: x, its scale, y, its scale.
program scaled_rules
    use trigraph_kinds, only: qp
    use trigraph_scaled
    implicit none
    real(qp) :: given(4)
    type(scaled) :: x, y, two
    integer :: status

    two = 2
    do
        read (*, *, iostat=status) given
        if (status /= 0) exit
        x = scaled(given(1), given(2))
        y = scaled(given(3), given(4))
        call show("input", input(given(1)))
        call show("integer", two)
        call show("add", x + y)
        call show("subtract", x - y)
        call show("subtract_integer", x - 3)
        call show("subtract_from_integer", 3 - x)
        call show("negate", -x)
        call show("multiply", x*y)
        call show("multiply_integer", (-3)*x)
        call show("times", times(x, y))
        call show("divide", x/y)
        call show("divide_integer", x/(-3))
        call show("sin", sin(x))
        call show("cos", cos(x))
        call show("exp", exp(x))
        call show("tanh", tanh(x))
        call show("scale", scale(x, -3))
        call show("sqrt", sqrt(times(y, y)))
        call show("exponent", scale(two, exponent(x)))
        call show("at_most", merge(two, -two, x <= y))
        call show("at_most_integer", merge(two, -two, x <= 1))
        call show("at_least_integer", merge(two, -two, x >= 1))
    end do

contains

    subroutine show(name, z)
        character(*), intent(in) :: name
        type(scaled), intent(in) :: z
        write (*, "(a, 2es40.30)") name, z%v, z%s
    end subroutine show

end program scaled_rules
