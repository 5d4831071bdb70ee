!> Convert the judge's numbers from and to float64 arguments of f2py: inputs are pairs (hi, lo), results triples (hi, lo, scale).
module trigraph_pairs
    use trigraph_kinds, only: dp, qp
    use trigraph_scaled, only: scaled, make_scaled_input
    implicit none
    private
    public :: load_pairs, split_number, store_triples

contains

    pure subroutine load_pairs(pairs, x)
        real(dp), intent(in) :: pairs(:, :)
        type(scaled), intent(out) :: x(:)
        x = make_scaled_input(real(pairs(:, 1), qp) + real(pairs(:, 2), qp))
    end subroutine load_pairs

    !> Split x into a float64 pair hi + lo; lo is 0 if hi is not finite, because inf - inf would be NaN.
    elemental subroutine split_number(x, hi, lo)
        real(qp), intent(in) :: x
        real(dp), intent(out) :: hi, lo
        hi = real(x, dp)
        lo = 0
        if (abs(hi) <= huge(hi)) lo = real(x - real(hi, qp), dp)
    end subroutine split_number

    pure subroutine store_triples(x, triples)
        type(scaled), intent(in) :: x(:)
        real(dp), intent(out) :: triples(:, :)
        call split_number(x%v, triples(:, 1), triples(:, 2))
        triples(:, 3) = real(x%s, dp)
    end subroutine store_triples

end module trigraph_pairs
