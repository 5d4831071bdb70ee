!> Convert the judge's numbers from and to float64 arguments of f2py: inputs are pairs (hi, lo), results triples (hi, lo, scale).
module trigraph_pairs
    use trigraph_kinds, only: dp, qp
    use trigraph_scaled, only: scaled, input
    implicit none
    private
    public :: join, put, split

contains

    pure subroutine join(pairs, x)
        real(dp), intent(in) :: pairs(:, :)
        type(scaled), intent(out) :: x(:)
        x = input(real(pairs(:, 1), qp) + real(pairs(:, 2), qp))
    end subroutine join

    !> Split x into a float64 pair hi + lo; lo is 0 if hi is not finite, because inf - inf would be NaN.
    elemental subroutine put(x, hi, lo)
        real(qp), intent(in) :: x
        real(dp), intent(out) :: hi, lo
        hi = real(x, dp)
        lo = 0
        if (abs(hi) <= huge(hi)) lo = real(x - real(hi, qp), dp)
    end subroutine put

    pure subroutine split(x, triples)
        type(scaled), intent(in) :: x(:)
        real(dp), intent(out) :: triples(:, :)
        call put(x%v, triples(:, 1), triples(:, 2))
        triples(:, 3) = real(x%s, dp)
    end subroutine split

end module trigraph_pairs
