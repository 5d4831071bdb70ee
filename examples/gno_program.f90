!> Compute messages of a graph neural operator and their gradient from Fortran, and check the gradient in real128.
!!
!! The last dimension of arrays is nodes or edges, and nodes are numbered from 0. docs/fortran.md explains the build.
program gno_program
    use trigraph_kinds, only: dp, qp, i32
    use trigraph_graphs, only: csc_i32, make_csc
    use trigraph_gno_calls, only: gno_message_fwd, gno_message_bwd
    use trigraph_gno, only: reference => gno_message_fwd
    implicit none
    integer, parameter :: num_nodes = 6, num_edges = 18, d = 3, hidden = 8, f_in = 2, f_out = 3
    integer, parameter :: num_params = hidden*(d + 1 + f_out*f_in) + f_out*f_in
    real(qp), parameter :: step = 1.0e-12_qp
    type(csc_i32) :: graph
    integer(i32) :: src(num_edges), dst(num_edges)
    real(dp) :: features(f_in, num_nodes), coords(d, num_edges), params(num_params)
    real(dp) :: message(f_out, num_nodes), direction(d, num_edges), grad_coords(d, num_edges)
    real(qp) :: exact(f_out, num_nodes), difference, error
    integer :: i, status

    ! Edges may be in any order; all edge arrays use the same order.
    src = [(int(mod(5*i + 1, num_nodes), i32), i=1, num_edges)]
    dst = [(int(mod(7*i, num_nodes - 1), i32), i=1, num_edges)]
    call make_csc(graph, num_nodes, num_nodes, src, dst, status)
    if (status /= 0) error stop 'the graph is wrong'
    call random_seed(put=[(i, i=1, 64)])
    call random_number(features)
    call random_number(coords)
    call random_number(params)
    call random_number(direction)
    params = params - 0.5_dp

    ! Compute the gradient of E = sum(message**2)/2 with respect to coords only: absent arguments are not computed.
    call gno_message_fwd(graph, features, coords, params, f_in, f_out, message, status)
    if (status == 0) call gno_message_bwd(graph, message, features, coords, params, f_in, f_out, status, out_coords=grad_coords)
    if (status /= 0) error stop 'a shape is wrong, or memory was refused'

    difference = (compute_energy(step) - compute_energy(-step))/(2*step)
    error = abs(difference - sum(real(grad_coords, qp)*direction))/abs(difference)
    difference = compute_energy(0.0_qp)
    print '(a, es8.1)', 'fast path against the reference:        ', maxval(abs(message - exact))
    print '(a, es8.1)', 'gradient against a real128 difference:  ', error
    if (.not. (error < 1.0e-14_qp)) error stop 'the gradient is wrong'
    if (.not. (maxval(abs(message - exact)) < 1.0e-14_dp)) error stop 'the fast path is wrong'

contains

    !> Return E at coords + t*direction, computed by the reference in real128.
    function compute_energy(t) result(e)
        real(qp), intent(in) :: t
        real(qp) :: e

        call reference(num_nodes, num_nodes, num_edges, num_edges, d, hidden, f_in, f_out, graph%offsets, graph%indices, &
            & graph%edge_ids, real(features, qp), coords + t*direction, real(params, qp), exact, status)
        e = sum(exact**2)/2
    end function compute_energy
end program gno_program
