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
        call print_scaled("input", make_scaled_input(given(1)))
        call print_scaled("integer", two)
        call print_scaled("add", x + y)
        call print_scaled("subtract", x - y)
        call print_scaled("subtract_integer", x - 3)
        call print_scaled("subtract_from_integer", 3 - x)
        call print_scaled("negate", -x)
        call print_scaled("multiply", x*y)
        call print_scaled("multiply_integer", (-3)*x)
        call print_scaled("times", times(x, y))
        call print_scaled("divide", x/y)
        call print_scaled("divide_integer", x/(-3))
        call print_scaled("sin", sin(x))
        call print_scaled("cos", cos(x))
        call print_scaled("exp", exp(x))
        call print_scaled("tanh", tanh(x))
        call print_scaled("scale", scale(x, -3))
        call print_scaled("sqrt", sqrt(times(y, y)))
        call print_scaled("exponent", scale(two, exponent(x)))
        call print_scaled("at_most", merge(two, -two, x <= y))
        call print_scaled("at_most_integer", merge(two, -two, x <= 1))
        call print_scaled("at_least_integer", merge(two, -two, x >= 1))
        p = dual(x, y)
        q = dual(y, x)
        call print_dual("integer", constant)
        call print_dual("add", p + q)
        call print_dual("subtract", p - q)
        call print_dual("subtract_integer", p - 3)
        call print_dual("subtract_from_integer", 3 - p)
        call print_dual("negate", -p)
        call print_dual("multiply", p*q)
        call print_dual("multiply_integer", (-3)*p)
        call print_dual("times", times(p, q))
        call print_dual("divide", p/q)
        call print_dual("divide_integer", p/(-3))
        call print_dual("sin", sin(p))
        call print_dual("cos", cos(p))
        call print_dual("exp", exp(p))
        call print_dual("tanh", tanh(p))
        call print_dual("scale", scale(p, -3))
        call print_dual("sqrt", sqrt(times(q, q)))
        call print_dual("exponent", scale(constant, exponent(p)))
        call print_dual("at_most", merge(constant, -constant, p <= q))
        call print_dual("at_most_integer", merge(constant, -constant, p <= 1))
        call print_dual("at_least_integer", merge(constant, -constant, p >= 1))
        constant = make_scaled_input(given(1))
        call print_dual("input", constant)
        constant = 2
    end do

contains

    subroutine print_scaled(name, z)
        character(*), intent(in) :: name
        type(scaled), intent(in) :: z
        write (*, "(a, 2es40.30)") name, z%v, z%s
    end subroutine print_scaled

    subroutine print_dual(name, z)
        character(*), intent(in) :: name
        type(dual), intent(in) :: z
        call print_scaled("value_" // name, z%v)
        call print_scaled("derivative_" // name, z%d)
    end subroutine print_dual

end program scaled_rules
