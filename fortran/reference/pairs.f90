!> The judge's numbers in f2py's arguments: an input is a pair of float64, hi + lo; a result has its scale as third number.
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

    !> Compute the float64 pair nearest to x; lo is 0 where hi is not finite (inf - inf would be NaN).
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
