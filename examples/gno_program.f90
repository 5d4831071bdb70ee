!> The graph neural operator from Fortran: messages, their gradient, and a check of the gradient in real128.
!!
!! Node and edge arrays have the entity last, (d, num_edges); index values are 0-based. docs/fortran.md says how to build it.
program gno_program
    use trigraph_kinds, only: dp, qp, i32
    use trigraph_graphs, only: check_csc
    use trigraph_gno, only: gno_message_fwd, gno_message_bwd
    use trigraph_gno_fast, only: gno_message_fwd_fast
    implicit none
    integer, parameter :: num_nodes = 6, num_edges = 18, d = 3, hidden = 8, f_in = 2, f_out = 3
    integer, parameter :: num_params = hidden*(d + 1 + f_out*f_in) + f_out*f_in
    real(qp), parameter :: step = 1.0e-12_qp
    integer(i32) :: offsets(num_nodes + 1), indices(num_edges), edge_ids(num_edges)
    real(dp) :: features(f_in, num_nodes), coords(d, num_edges), params(num_params)
    real(dp) :: message(f_out, num_nodes), fast(f_out, num_nodes), direction(d, num_edges)
    real(dp) :: grad_features(f_in, num_nodes), grad_coords(d, num_edges), grad_params(num_params)
    real(qp) :: difference, error
    integer :: i, status

    ! Every node has three in-edges; position p reads row edge_ids(p) of the edge arrays.
    offsets = [(int(3*i, i32), i=0, num_nodes)]
    indices = [(int(mod(5*i + 1, num_nodes), i32), i=1, num_edges)]
    edge_ids = [(int(i, i32), i=0, num_edges - 1)]
    ! Operators trust the arrays of a graph. Where it is made, a check finds 1-based offsets, indices out of range and the like.
    call check_csc(num_nodes, num_nodes, num_edges, num_edges, offsets, indices, edge_ids, status)
    if (status /= 0) error stop 'the graph is wrong'
    call random_seed(put=[(i, i=1, 64)])
    call random_number(features)
    call random_number(coords)
    call random_number(params)
    call random_number(direction)
    params = params - 0.5_dp

    call gno_message_fwd(num_nodes, num_nodes, num_edges, num_edges, d, hidden, f_in, f_out, offsets, indices, edge_ids, &
        & features, coords, params, message, status)
    call gno_message_fwd_fast(1, num_nodes, num_nodes, num_edges, num_edges, d, hidden, f_in, f_out, offsets, indices, &
        & edge_ids, features, coords, params, fast, status)

    ! Gradient of E = sum(message**2)/2 in the coordinates alone: what is not wanted is not touched.
    call gno_message_bwd(num_nodes, num_nodes, num_edges, num_edges, d, hidden, f_in, f_out, offsets, indices, edge_ids, &
        & message, features, coords, params, .false., .true., .false., grad_features, grad_coords, grad_params, status)

    difference = (energy(step) - energy(-step))/(2*step)
    error = abs(difference - sum(real(grad_coords, qp)*direction))/abs(difference)
    print '(a, es8.1)', 'fast path against the reference:        ', maxval(abs(fast - message))
    print '(a, es8.1)', 'gradient against a real128 difference:  ', error
    if (.not. (error < 1.0e-14_qp)) error stop 'the gradient is wrong'
    if (.not. (maxval(abs(fast - message)) < 1.0e-14_dp)) error stop 'the fast path is wrong'

contains

    !> E at coords + t direction, in real128: the same source, another kind.
    function energy(t) result(e)
        real(qp), intent(in) :: t
        real(qp) :: e, m(f_out, num_nodes)

        call gno_message_fwd(num_nodes, num_nodes, num_edges, num_edges, d, hidden, f_in, f_out, offsets, indices, &
            & edge_ids, real(features, qp), coords + t*direction, real(params, qp), m, status)
        e = sum(m**2)/2
    end function energy
end program gno_program
