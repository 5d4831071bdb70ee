!> The operations of athena's graph neural operator layer, computed by the fast path, with arguments as in athena 2.1.1.
!!
!! Arrays are real32. The in-edges of vertex i are columns adj_ia(i) to adj_ia(i + 1) - 1 of adj_ja, each of which is
!! [neighbour, edge]; vertices, neighbours and edges are 1-based. kernel_params(:, 1) is U | b_u | V | b_v, each block in
!! column-major order. Where athena passes an array_type, these procedures accept its component `val`; the result is the last
!! argument. All procedures are pure, as athena requires of derivatives; after an error, `error stop` ends the program
!! with a message that names the procedure and the argument. The library chooses the number of threads.
!!
!! Gradients may have more columns than their operand, because diffstruc, the differentiation library of athena, makes
!! them as wide as the wider of operand and upstream_grad. Additional columns of upstream_grad are not
!! read; additional columns of a gradient are set to 0.
module trigraph_athena
    use, intrinsic :: iso_c_binding, only: c_float, c_int
    use, intrinsic :: iso_fortran_env, only: real32
    implicit none
    private
    public :: gno_kernel_eval, get_partial_gno_kernel_coords_val, get_partial_gno_kernel_params_val
    public :: gno_aggregate, get_partial_gno_agg_features_val, get_partial_gno_agg_kernels_val
    public :: gno_message, gno_message_bwd

    !> The operations, numbered as in trigraph_athena_calls.c.
    enum, bind(C)
        enumerator :: kernel_fwd, kernel_bwd, aggregate_fwd, aggregate_bwd, message_fwd, message_bwd
    end enum

    interface
        !> Execute an operation of the fast path. Inputs that the operation does not need and unrequested gradients are absent.
        pure subroutine call_fast_path(operation, num_v, nnz, num_e, d, h, f_in, f_out, status, graph, upstream, features, &
            & kernels, coords, params, output, grad_features, grad_kernels, grad_coords, grad_params) &
            & bind(C, name='trigraph_athena_run')
            import :: c_float, c_int
            implicit none
            integer(c_int), value :: operation, num_v, nnz, num_e, d, h, f_in, f_out
            integer(c_int), intent(out) :: status
            integer(c_int), intent(in), optional :: graph(*)
            real(c_float), intent(in), optional :: upstream(*), features(*), kernels(*), coords(*), params(*)
            real(c_float), intent(inout), optional :: output(*)
            real(c_float), intent(inout), optional :: grad_features(*), grad_kernels(*), grad_coords(*), grad_params(*)
        end subroutine call_fast_path
    end interface

contains

    !> Compute output(f_out*f_in, num_edges) = V relu(U coords + b_u) + b_v. As in athena, adj_ia and adj_ja are not read.
    pure subroutine gno_kernel_eval(coords, kernel_params, adj_ia, adj_ja, coord_dim, kernel_hidden, f_in, f_out, &
        & output)
        real(real32), intent(in) :: coords(:, :), kernel_params(:, :)
        integer, intent(in) :: adj_ia(:), adj_ja(:, :), coord_dim, kernel_hidden, f_in, f_out
        real(real32), intent(out) :: output(:, :)
        character(*), parameter :: name = 'gno_kernel_eval'
        integer(c_int) :: status

        call check_network_shapes(name, coords, kernel_params, coord_dim, kernel_hidden, f_in, f_out)
        call check_shape(name, 'output', shape(output), 'f_out*f_in, num_edges', [f_out*f_in, size(coords, 2)])
        call call_fast_path(kernel_fwd, 0, 0, size(coords, 2), coord_dim, kernel_hidden, f_in, f_out, status, coords=coords, &
            & params=kernel_params, output=output)
        call check_status(name, status)
    end subroutine gno_kernel_eval

    !> Compute the gradient with respect to coords(coord_dim, num_edges) from upstream_grad, the gradient of the kernels.
    pure subroutine get_partial_gno_kernel_coords_val(coords, kernel_params, coord_dim, kernel_hidden, f_in, f_out, &
        & upstream_grad, output)
        real(real32), intent(in) :: coords(:, :), kernel_params(:, :), upstream_grad(:, :)
        integer, intent(in) :: coord_dim, kernel_hidden, f_in, f_out
        real(real32), intent(out) :: output(:, :)

        call compute_kernel_gradients('get_partial_gno_kernel_coords_val', coords, kernel_params, coord_dim, kernel_hidden, &
            & f_in, f_out, upstream_grad, grad_coords=output)
    end subroutine get_partial_gno_kernel_coords_val

    !> Compute the gradient with respect to kernel_params(num_params, 1) from upstream_grad, the gradient of the kernels.
    pure subroutine get_partial_gno_kernel_params_val(coords, kernel_params, coord_dim, kernel_hidden, f_in, f_out, &
        & upstream_grad, output)
        real(real32), intent(in) :: coords(:, :), kernel_params(:, :), upstream_grad(:, :)
        integer, intent(in) :: coord_dim, kernel_hidden, f_in, f_out
        real(real32), intent(out) :: output(:, :)

        call compute_kernel_gradients('get_partial_gno_kernel_params_val', coords, kernel_params, coord_dim, kernel_hidden, &
            & f_in, f_out, upstream_grad, grad_params=output)
    end subroutine get_partial_gno_kernel_params_val

    !> Compute output(f_out, num_v): for each vertex, the sum over in-edges of kernel (f_out, f_in) times neighbour features.
    pure subroutine gno_aggregate(features, edge_kernels, adj_ia, adj_ja, f_in, f_out, output)
        real(real32), intent(in) :: features(:, :), edge_kernels(:, :)
        integer, intent(in) :: adj_ia(:), adj_ja(:, :), f_in, f_out
        real(real32), intent(out) :: output(:, :)
        character(*), parameter :: name = 'gno_aggregate'
        integer :: num_v, num_e
        integer(c_int) :: status

        num_v = size(features, 2)
        num_e = size(edge_kernels, 2)
        call check_shape(name, 'features', shape(features), 'f_in, num_v', [f_in, num_v])
        call check_shape(name, 'edge_kernels', shape(edge_kernels), 'f_out*f_in, num_edges', [f_out*f_in, num_e])
        call check_shape(name, 'output', shape(output), 'f_out, num_v', [f_out, num_v])
        call check_adjacency(name, adj_ia, adj_ja, num_v, num_e)
        call call_fast_path(aggregate_fwd, num_v, adj_ia(num_v + 1) - 1, num_e, 0, 0, f_in, f_out, status, &
            & pack_csc_arrays(adj_ia, adj_ja), features=features, kernels=edge_kernels, output=output)
        call check_status(name, status)
    end subroutine gno_aggregate

    !> Compute the gradient with respect to features(f_in, num_v) from upstream_grad, the gradient of the message.
    pure subroutine get_partial_gno_agg_features_val(features, edge_kernels, adj_ia, adj_ja, upstream_grad, output)
        real(real32), intent(in) :: features(:, :), edge_kernels(:, :), upstream_grad(:, :)
        integer, intent(in) :: adj_ia(:), adj_ja(:, :)
        real(real32), intent(out) :: output(:, :)

        call compute_aggregate_gradients('get_partial_gno_agg_features_val', features, edge_kernels, adj_ia, adj_ja, &
            & upstream_grad, grad_features=output)
    end subroutine get_partial_gno_agg_features_val

    !> Compute the gradient with respect to edge_kernels(f_out*f_in, num_edges) from upstream_grad, the gradient of the message.
    pure subroutine get_partial_gno_agg_kernels_val(features, edge_kernels, adj_ia, adj_ja, upstream_grad, output)
        real(real32), intent(in) :: features(:, :), edge_kernels(:, :), upstream_grad(:, :)
        integer, intent(in) :: adj_ia(:), adj_ja(:, :)
        real(real32), intent(out) :: output(:, :)

        call compute_aggregate_gradients('get_partial_gno_agg_kernels_val', features, edge_kernels, adj_ia, adj_ja, upstream_grad, &
            & grad_kernels=output)
    end subroutine get_partial_gno_agg_kernels_val

    !> Compute output(f_out, num_v) of gno_aggregate with the kernels of gno_kernel_eval, without storing the kernels.
    pure subroutine gno_message(features, coords, kernel_params, adj_ia, adj_ja, coord_dim, kernel_hidden, &
        & f_in, f_out, output)
        real(real32), intent(in) :: features(:, :), coords(:, :), kernel_params(:, :)
        integer, intent(in) :: adj_ia(:), adj_ja(:, :), coord_dim, kernel_hidden, f_in, f_out
        real(real32), intent(out) :: output(:, :)
        character(*), parameter :: name = 'gno_message'
        integer :: num_v, num_e
        integer(c_int) :: status

        num_v = size(features, 2)
        num_e = size(coords, 2)
        call check_network_shapes(name, coords, kernel_params, coord_dim, kernel_hidden, f_in, f_out)
        call check_shape(name, 'features', shape(features), 'f_in, num_v', [f_in, num_v])
        call check_shape(name, 'output', shape(output), 'f_out, num_v', [f_out, num_v])
        call check_adjacency(name, adj_ia, adj_ja, num_v, num_e)
        call call_fast_path(message_fwd, num_v, adj_ia(num_v + 1) - 1, num_e, coord_dim, kernel_hidden, f_in, f_out, status, &
            & pack_csc_arrays(adj_ia, adj_ja), features=features, coords=coords, params=kernel_params, output=output)
        call check_status(name, status)
    end subroutine gno_message

    !> Compute the gradients of gno_message from upstream_grad, the gradient of the message. Absent gradients are not computed.
    pure subroutine gno_message_bwd(features, coords, kernel_params, adj_ia, adj_ja, coord_dim, kernel_hidden, &
        & f_in, f_out, upstream_grad, grad_features, grad_coords, grad_params)
        real(real32), intent(in) :: features(:, :), coords(:, :), kernel_params(:, :), upstream_grad(:, :)
        integer, intent(in) :: adj_ia(:), adj_ja(:, :), coord_dim, kernel_hidden, f_in, f_out
        real(real32), intent(inout), optional :: grad_features(:, :), grad_coords(:, :), grad_params(:, :)
        character(*), parameter :: name = 'gno_message_bwd'
        integer :: num_v, num_e
        integer(c_int) :: status

        num_v = size(features, 2)
        num_e = size(coords, 2)
        call check_network_shapes(name, coords, kernel_params, coord_dim, kernel_hidden, f_in, f_out)
        call check_shape(name, 'features', shape(features), 'f_in, num_v', [f_in, num_v])
        call check_shape_or_wider(name, 'upstream_grad', shape(upstream_grad), 'f_out, num_v', [f_out, num_v])
        call check_and_clear_padding(name, 'grad_features', 'f_in, num_v', shape(features), grad_features)
        call check_and_clear_padding(name, 'grad_coords', 'coord_dim, num_edges', shape(coords), grad_coords)
        call check_and_clear_padding(name, 'grad_params', 'num_params, 1', shape(kernel_params), grad_params)
        call check_adjacency(name, adj_ia, adj_ja, num_v, num_e)
        call call_fast_path(message_bwd, num_v, adj_ia(num_v + 1) - 1, num_e, coord_dim, kernel_hidden, f_in, f_out, status, &
            & pack_csc_arrays(adj_ia, adj_ja, num_e), upstream_grad, features, coords=coords, params=kernel_params, &
            & grad_features=grad_features, grad_coords=grad_coords, grad_params=grad_params)
        call check_status(name, status)
    end subroutine gno_message_bwd

    !> Compute the gradients with respect to coords and kernel_params from upstream_grad; absent gradients are not computed.
    pure subroutine compute_kernel_gradients(name, coords, kernel_params, coord_dim, kernel_hidden, f_in, f_out, upstream_grad, &
        & grad_coords, grad_params)
        character(*), intent(in) :: name
        real(real32), intent(in) :: coords(:, :), kernel_params(:, :), upstream_grad(:, :)
        integer, intent(in) :: coord_dim, kernel_hidden, f_in, f_out
        real(real32), intent(inout), optional :: grad_coords(:, :), grad_params(:, :)
        integer :: num_e
        integer(c_int) :: status

        num_e = size(coords, 2)
        call check_network_shapes(name, coords, kernel_params, coord_dim, kernel_hidden, f_in, f_out)
        call check_shape_or_wider(name, 'upstream_grad', shape(upstream_grad), 'f_out*f_in, num_edges', [f_out*f_in, num_e])
        call check_and_clear_padding(name, 'output', 'coord_dim, num_edges', shape(coords), grad_coords)
        call check_and_clear_padding(name, 'output', 'num_params, 1', shape(kernel_params), grad_params)
        call call_fast_path(kernel_bwd, 0, 0, num_e, coord_dim, kernel_hidden, f_in, f_out, status, upstream=upstream_grad, &
            & coords=coords, params=kernel_params, grad_coords=grad_coords, grad_params=grad_params)
        call check_status(name, status)
    end subroutine compute_kernel_gradients

    !> Compute the gradients of the aggregation with respect to features and kernels; absent gradients are not computed.
    pure subroutine compute_aggregate_gradients(name, features, edge_kernels, adj_ia, adj_ja, upstream_grad, grad_features, &
        & grad_kernels)
        character(*), intent(in) :: name
        real(real32), intent(in) :: features(:, :), edge_kernels(:, :), upstream_grad(:, :)
        integer, intent(in) :: adj_ia(:), adj_ja(:, :)
        real(real32), intent(inout), optional :: grad_features(:, :), grad_kernels(:, :)
        integer :: f_in, f_out, num_v, num_e
        integer(c_int) :: status

        f_in = size(features, 1)
        num_v = size(features, 2)
        f_out = size(upstream_grad, 1)
        num_e = size(edge_kernels, 2)
        call check_shape_or_wider(name, 'upstream_grad', shape(upstream_grad), 'f_out, num_v', [f_out, num_v])
        call check_shape(name, 'edge_kernels', shape(edge_kernels), 'f_out*f_in, num_edges', [f_out*f_in, num_e])
        call check_and_clear_padding(name, 'output', 'f_in, num_v', shape(features), grad_features)
        call check_and_clear_padding(name, 'output', 'f_out*f_in, num_edges', shape(edge_kernels), grad_kernels)
        call check_adjacency(name, adj_ia, adj_ja, num_v, num_e)
        call call_fast_path(aggregate_bwd, num_v, adj_ia(num_v + 1) - 1, num_e, 0, 0, f_in, f_out, status, &
            & pack_csc_arrays(adj_ia, adj_ja, num_e), upstream_grad, features, edge_kernels, &
            & grad_features=grad_features, grad_kernels=grad_kernels)
        call check_status(name, status)
    end subroutine compute_aggregate_gradients

    !> Convert the adjacency to the 0-based CSC arrays of trigraph.h in one array: offsets | indices | edge_ids and, if num_e is
!! present (for derivatives), | destinations | src_offsets | src_positions | row_offsets | row_positions.
    pure function pack_csc_arrays(adj_ia, adj_ja, num_e) result(graph)
        integer, intent(in) :: adj_ia(:), adj_ja(:, :)
        integer, intent(in), optional :: num_e
        integer(c_int), allocatable :: graph(:), destinations(:)
        integer :: num_v, nnz, i

        num_v = size(adj_ia) - 1
        nnz = adj_ia(num_v + 1) - 1
        graph = [adj_ia, adj_ja(1, :nnz), adj_ja(2, :nnz)] - 1
        if (.not. present(num_e)) return
        allocate (destinations(nnz))
        do i = 1, num_v
            destinations(adj_ia(i):adj_ia(i + 1) - 1) = i - 1
        end do
        graph = [graph, destinations, group_columns_by_key(adj_ja(1, :nnz), num_v), group_columns_by_key(adj_ja(2, :nnz), num_e)]
    end function pack_csc_arrays

    !> Sort columns stably by key (1 .. num_keys); return the offsets of the keys, then the sorted columns, all 0-based.
    pure function group_columns_by_key(keys, num_keys) result(sorted)
        integer, intent(in) :: keys(:), num_keys
        integer(c_int), allocatable :: sorted(:)
        integer :: next(num_keys + 1), k, p

        allocate (sorted(0:num_keys + size(keys)))
        next = 0
        do p = 1, size(keys)
            next(keys(p) + 1) = next(keys(p) + 1) + 1
        end do
        do k = 2, num_keys + 1
            next(k) = next(k) + next(k - 1)
        end do
        sorted(:num_keys) = next
        do p = 1, size(keys)
            sorted(num_keys + 1 + next(keys(p))) = p - 1
            next(keys(p)) = next(keys(p)) + 1
        end do
    end function group_columns_by_key

    pure subroutine check_network_shapes(name, coords, kernel_params, coord_dim, kernel_hidden, f_in, f_out)
        character(*), intent(in) :: name
        real(real32), intent(in) :: coords(:, :), kernel_params(:, :)
        integer, intent(in) :: coord_dim, kernel_hidden, f_in, f_out
        integer :: f

        f = f_out*f_in
        call check_shape(name, 'coords', shape(coords), 'coord_dim, num_edges', [coord_dim, size(coords, 2)])
        call check_shape(name, 'kernel_params', shape(kernel_params), &
            & 'kernel_hidden*(coord_dim + 1 + f_out*f_in) + f_out*f_in, 1', [kernel_hidden*(coord_dim + 1 + f) + f, 1])
    end subroutine check_network_shapes

    pure subroutine check_adjacency(name, adj_ia, adj_ja, num_v, num_e)
        character(*), intent(in) :: name
        integer, intent(in) :: adj_ia(:), adj_ja(:, :), num_v, num_e
        integer :: nnz

        call check_shape(name, 'adj_ia', shape(adj_ia), 'num_v + 1', [num_v + 1])
        if (adj_ia(1) /= 1) call stop_with_error(name, 'adj_ia(1) is '//format_numbers(adj_ia(:1))//'; expected 1')
        if (any(adj_ia(2:) < adj_ia(:num_v))) call stop_with_error(name, 'adj_ia decreases; expected nondecreasing offsets')
        nnz = adj_ia(num_v + 1) - 1
        if (size(adj_ja, 1) /= 2 .or. size(adj_ja, 2) < nnz) call stop_with_error(name, 'adj_ja has shape (' &
            & //format_numbers(shape(adj_ja))//'); expected (2, adj_ia(num_v + 1) - 1) = ('//format_numbers([2, nnz])//')')
        if (any(adj_ja(1, :nnz) < 1 .or. adj_ja(1, :nnz) > num_v)) &
            & call stop_with_error(name, 'adj_ja(1, :) has a neighbour outside 1 to num_v = '//format_numbers([num_v]))
        if (any(adj_ja(2, :nnz) < 1 .or. adj_ja(2, :nnz) > num_e)) &
            & call stop_with_error(name, 'adj_ja(2, :) has an edge outside 1 to num_edges = '//format_numbers([num_e]))
    end subroutine check_adjacency

    pure subroutine check_shape(name, argument, found, symbols, expected)
        character(*), intent(in) :: name, argument, symbols
        integer, intent(in) :: found(:), expected(:)

        if (any(found /= expected)) call stop_with_error(name, argument//' has shape ('//format_numbers(found)//'); expected (' &
            & //symbols//') = ('//format_numbers(expected)//')')
    end subroutine check_shape

    !> Check the shape of an array that may have more columns than expected.
    pure subroutine check_shape_or_wider(name, argument, found, symbols, expected)
        character(*), intent(in) :: name, argument, symbols
        integer, intent(in) :: found(2), expected(2)

        call check_shape(name, argument, [found(1), min(found(2), expected(2))], symbols, expected)
    end subroutine check_shape_or_wider

    !> Check the shape of a gradient, which may be absent, and set its additional columns to 0.
    pure subroutine check_and_clear_padding(name, argument, symbols, expected, gradient)
        character(*), intent(in) :: name, argument, symbols
        integer, intent(in) :: expected(2)
        real(real32), intent(inout), optional :: gradient(:, :)

        if (.not. present(gradient)) return
        call check_shape_or_wider(name, argument, shape(gradient), symbols, expected)
        gradient(:, expected(2) + 1:) = 0
    end subroutine check_and_clear_padding

    pure subroutine check_status(name, status)
        character(*), intent(in) :: name
        integer(c_int), intent(in) :: status

        if (status /= 0) call stop_with_error(name, 'a size is negative, or memory for workspace was refused')
    end subroutine check_status

    pure subroutine stop_with_error(name, reason)
        character(*), intent(in) :: name, reason

        error stop name//': '//reason
    end subroutine stop_with_error

    !> Return numbers as text, separated by commas.
    pure function format_numbers(numbers) result(text)
        integer, intent(in) :: numbers(:)
        character(:), allocatable :: text
        character(64) :: line

        write (line, '(*(i0, :, ", "))') numbers
        text = trim(line)
    end function format_numbers
end module trigraph_athena
