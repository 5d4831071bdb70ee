!> A program that calls trigraph_athena with athena's arguments.
!!
!! The program reads a case from the file named by its first argument, in which the shape of each array precedes its
!! elements, and writes the results to the file named by its second argument.
program athena_program
    use, intrinsic :: iso_fortran_env, only: real32
    use trigraph_athena, only: gno_kernel_eval, get_partial_gno_kernel_coords_val, get_partial_gno_kernel_params_val, &
        & gno_aggregate, get_partial_gno_agg_features_val, get_partial_gno_agg_kernels_val, gno_message, gno_message_bwd
    implicit none
    integer, allocatable :: adj_ia(:, :), adj_ja(:, :)
    real(real32), allocatable :: coords(:, :), params(:, :), features(:, :), up_kernel(:, :), up_agg(:, :), found(:)
    character(256) :: path
    integer :: dims(4), file, d, h, f_in, f_out

    call get_command_argument(1, path)
    open (newunit=file, file=path, access='stream', form='unformatted', status='old', action='read')
    read (file) dims
    d = dims(1)
    h = dims(2)
    f_in = dims(3)
    f_out = dims(4)
    call read_integers(adj_ia)
    call read_integers(adj_ja)
    call read_reals(coords)
    call read_reals(params)
    call read_reals(features)
    call read_reals(up_kernel)
    call read_reals(up_agg)
    close (file)

    call compute_all_results(found)
    call get_command_argument(2, path)
    open (newunit=file, file=path, access='stream', form='unformatted', status='replace', action='write')
    write (file) found
    close (file)

contains

    subroutine read_integers(array)
        integer, allocatable, intent(out) :: array(:, :)
        integer :: sizes(2)

        read (file) sizes
        allocate (array(sizes(1), sizes(2)))
        read (file) array
    end subroutine read_integers

    subroutine read_reals(array)
        real(real32), allocatable, intent(out) :: array(:, :)
        integer :: sizes(2)

        read (file) sizes
        allocate (array(sizes(1), sizes(2)))
        read (file) array
    end subroutine read_reals

    !> Return the concatenated results of all trigraph_athena procedures. As in athena, this procedure is pure, and gradient
    !! arrays have one more column than their operands; the last column is set to 0 in results and ignored in arguments.
    pure subroutine compute_all_results(values)
        real(real32), allocatable, intent(out) :: values(:)
        real(real32), dimension(size(up_kernel, 1), size(up_kernel, 2)) :: kernel
        real(real32), dimension(size(up_agg, 1), size(up_agg, 2)) :: agg, message
        real(real32), dimension(size(up_kernel, 1), size(up_kernel, 2) + 1) :: wide_kernel, grad_kernels
        real(real32), dimension(size(up_agg, 1), size(up_agg, 2) + 1) :: wide_agg
        real(real32), dimension(size(coords, 1), size(coords, 2) + 1) :: grad_coords, bwd_coords, alone_coords
        real(real32), dimension(size(params, 1), size(params, 2) + 1) :: grad_params, bwd_params, alone_params
        real(real32), dimension(size(features, 1), size(features, 2) + 1) :: grad_features, bwd_features, alone_features
        real(real32), parameter :: never = huge(never)

        wide_kernel = never
        wide_kernel(:, :size(up_kernel, 2)) = up_kernel
        wide_agg = never
        wide_agg(:, :size(up_agg, 2)) = up_agg
        grad_coords = never
        grad_params = never
        grad_features = never
        grad_kernels = never
        bwd_coords = never
        bwd_params = never
        bwd_features = never
        associate (ia => adj_ia(:, 1), ja => adj_ja)
            call gno_kernel_eval(coords, params, ia, ja, d, h, f_in, f_out, kernel)
            call get_partial_gno_kernel_coords_val(coords, params, d, h, f_in, f_out, wide_kernel, grad_coords)
            call get_partial_gno_kernel_params_val(coords, params, d, h, f_in, f_out, wide_kernel, grad_params)
            call gno_aggregate(features, kernel, ia, ja, f_in, f_out, agg)
            call get_partial_gno_agg_features_val(features, kernel, ia, ja, wide_agg, grad_features)
            call get_partial_gno_agg_kernels_val(features, kernel, ia, ja, wide_agg, grad_kernels)
            call gno_message(features, coords, params, ia, ja, d, h, f_in, f_out, message)
            call gno_message_bwd(features, coords, params, ia, ja, d, h, f_in, f_out, wide_agg, bwd_features, &
                & bwd_coords, bwd_params)
            call gno_message_bwd(features, coords, params, ia, ja, d, h, f_in, f_out, wide_agg, &
                & grad_features=alone_features)
            call gno_message_bwd(features, coords, params, ia, ja, d, h, f_in, f_out, wide_agg, &
                & grad_coords=alone_coords)
            call gno_message_bwd(features, coords, params, ia, ja, d, h, f_in, f_out, wide_agg, &
                & grad_params=alone_params)
        end associate
        if (any(alone_features /= bwd_features) .or. any(alone_coords /= bwd_coords) .or. &
            & any(alone_params /= bwd_params)) error stop 'a gradient requested alone differs'
        values = [grad_coords(:, size(grad_coords, 2)), grad_params(:, 2), grad_features(:, size(grad_features, 2)), &
            & grad_kernels(:, size(grad_kernels, 2)), bwd_coords(:, size(bwd_coords, 2)), bwd_params(:, 2), &
            & bwd_features(:, size(bwd_features, 2))]
        if (any(values /= 0)) error stop 'a column beyond the operand is not 0'
        values = [real(real32) :: kernel, drop_last_column(grad_coords), drop_last_column(grad_params), agg, &
            & drop_last_column(grad_features), drop_last_column(grad_kernels), message, drop_last_column(bwd_features), &
            & drop_last_column(bwd_coords), drop_last_column(bwd_params)]
    end subroutine compute_all_results

    !> Return all columns except the last.
    pure function drop_last_column(array) result(columns)
        real(real32), intent(in) :: array(:, :)
        real(real32) :: columns(size(array, 1), size(array, 2) - 1)

        columns = array(:, :size(array, 2) - 1)
    end function drop_last_column

end program athena_program
