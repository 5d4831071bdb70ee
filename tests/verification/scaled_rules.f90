!> Read x, its scale, y and its scale. Print the value and scale of each trigraph_scaled operation, and of the value and
!! derivative of each trigraph_dual operation; the derivative of x is y, and the derivative of y is x.
program scaled_rules
    use trigraph_kinds, only: qp
    use trigraph_dual
    implicit none
    real(qp) :: given(4)
    type(scaled) :: x, y, two
    type(dual) :: p, q, constant
    integer :: status

    two = 2
    constant = 2
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
        p = dual(x, y)
        q = dual(y, x)
        call show_dual("integer", constant)
        call show_dual("add", p + q)
        call show_dual("subtract", p - q)
        call show_dual("subtract_integer", p - 3)
        call show_dual("subtract_from_integer", 3 - p)
        call show_dual("negate", -p)
        call show_dual("multiply", p*q)
        call show_dual("multiply_integer", (-3)*p)
        call show_dual("times", times(p, q))
        call show_dual("divide", p/q)
        call show_dual("divide_integer", p/(-3))
        call show_dual("sin", sin(p))
        call show_dual("cos", cos(p))
        call show_dual("exp", exp(p))
        call show_dual("tanh", tanh(p))
        call show_dual("scale", scale(p, -3))
        call show_dual("sqrt", sqrt(times(q, q)))
        call show_dual("exponent", scale(constant, exponent(p)))
        call show_dual("at_most", merge(constant, -constant, p <= q))
        call show_dual("at_most_integer", merge(constant, -constant, p <= 1))
        call show_dual("at_least_integer", merge(constant, -constant, p >= 1))
        constant = input(given(1))
        call show_dual("input", constant)
        constant = 2
    end do

contains

    subroutine show(name, z)
        character(*), intent(in) :: name
        type(scaled), intent(in) :: z
        write (*, "(a, 2es40.30)") name, z%v, z%s
    end subroutine show

    subroutine show_dual(name, z)
        character(*), intent(in) :: name
        type(dual), intent(in) :: z
        call show("value_" // name, z%v)
        call show("derivative_" // name, z%d)
    end subroutine show_dual

end program scaled_rules
