!> A program with athena's arguments: trigraph_athena against athena's formula, which is written as plain loops.
!!
!! It reads a case from the file that is its first argument, compares, and writes what trigraph_athena gave to the file
!! that is its second. Each array of a case follows its shape.
program athena_program
    use, intrinsic :: iso_fortran_env, only: real32, real64
    use trigraph_athena, only: gno_kernel_eval, get_partial_gno_kernel_coords_val, get_partial_gno_kernel_params_val, &
        & gno_aggregate, get_partial_gno_agg_features_val, get_partial_gno_agg_kernels_val, gno_message, gno_message_bwd
    implicit none
    character(16), parameter :: names(10) = [character(16) :: 'kernel', 'grad_coords', 'grad_params', 'agg', &
        & 'grad_features', 'grad_kernels', 'message', 'bwd features', 'bwd coords', 'bwd params']
    ! An operator errs by at most 8 eps of the sum of its |terms| (docs/accuracy.md), and at most two follow each other.
    real(real64), parameter :: tolerance = 16*epsilon(1.0_real32)
    integer, allocatable :: adj_ia(:, :), adj_ja(:, :), ends(:)
    real(real32), allocatable :: coords(:, :), params(:, :), features(:, :), up_kernel(:, :), up_agg(:, :), found(:)
    real(real64), allocatable :: expected(:), scale(:)
    logical, allocatable :: mask(:, :)
    character(256) :: path
    integer :: dims(4), file, i, d, h, f_in, f_out

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

    call ours(found, ends)
    ! Which hidden neurons are active is decided by the values; the same sums over absolute values are the scale.
    allocate (mask(h, size(coords, 2)))
    mask = .true.
    mask = hidden(real(coords, real64), real(params(:, 1), real64)) > 0
    expected = formula(real(coords, real64), real(params(:, 1), real64), real(features, real64), &
        & real(up_kernel, real64), real(up_agg, real64))
    scale = formula(real(abs(coords), real64), real(abs(params(:, 1)), real64), real(abs(features), real64), &
        & real(abs(up_kernel), real64), real(abs(up_agg), real64))
    if (size(found) /= size(expected) .or. ends(10) /= size(found)) error stop 'sizes differ'
    do i = 1, size(names)
        associate (first => merge(1, ends(max(i - 1, 1)) + 1, i == 1), last => ends(i))
            if (.not. all(abs(found(first:last) - expected(first:last)) <= tolerance*scale(first:last))) &
                & error stop 'trigraph_athena differs from the formula: '//names(i)
            print '(2a, es8.1)', names(i), ' error over scale', maxval([0.0_real64, &
                & abs(found(first:last) - expected(first:last))/max(scale(first:last), tiny(1.0_real32))])
        end associate
    end do
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

    !> What trigraph_athena gives, one result after the other. It is pure, as athena's derivatives are. Like those, it
    !! has gradients that are wider than their operands: one column of each, which has to become 0 or is not read.
    pure subroutine ours(values, ends)
        real(real32), allocatable, intent(out) :: values(:)
        integer, allocatable, intent(out) :: ends(:)
        real(real32), dimension(size(up_kernel, 1), size(up_kernel, 2)) :: kernel
        real(real32), dimension(size(up_agg, 1), size(up_agg, 2)) :: agg, message
        real(real32), dimension(size(up_kernel, 1), size(up_kernel, 2) + 1) :: wide_kernel, grad_kernels
        real(real32), dimension(size(up_agg, 1), size(up_agg, 2) + 1) :: wide_agg
        real(real32), dimension(size(coords, 1), size(coords, 2) + 1) :: grad_coords, bwd_coords, alone_coords
        real(real32), dimension(size(params, 1), size(params, 2) + 1) :: grad_params, bwd_params, alone_params
        real(real32), dimension(size(features, 1), size(features, 2) + 1) :: grad_features, bwd_features, alone_features
        real(real32), parameter :: never = huge(never)
        integer :: k

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
            & any(alone_params /= bwd_params)) error stop 'a gradient that is asked for alone differs'
        values = [grad_coords(:, size(grad_coords, 2)), grad_params(:, 2), grad_features(:, size(grad_features, 2)), &
            & grad_kernels(:, size(grad_kernels, 2)), bwd_coords(:, size(bwd_coords, 2)), bwd_params(:, 2), &
            & bwd_features(:, size(bwd_features, 2))]
        if (any(values /= 0)) error stop 'a column beyond the operand is not 0'
        values = [real(real32) :: kernel, narrow(grad_coords), narrow(grad_params), agg, narrow(grad_features), &
            & narrow(grad_kernels), message, narrow(bwd_features), narrow(bwd_coords), narrow(bwd_params)]
        ends = [size(kernel), size(coords), size(params), size(agg), size(features), size(kernel), size(agg), &
            & size(features), size(coords), size(params)]
        do k = 2, size(ends)
            ends(k) = ends(k) + ends(k - 1)
        end do
    end subroutine ours

    !> All columns but the last.
    pure function narrow(array) result(columns)
        real(real32), intent(in) :: array(:, :)
        real(real32) :: columns(size(array, 1), size(array, 2) - 1)

        columns = array(:, :size(array, 2) - 1)
    end function narrow

    !> relu(U x + b_u) of each edge; where `mask` says so, and not where it is positive, which is for absolute values.
    pure function hidden(x, p) result(a)
        real(real64), intent(in) :: x(:, :), p(:)
        real(real64) :: a(h, size(x, 2))
        integer :: e, k, c

        a = 0
        do e = 1, size(x, 2)
            do k = 1, h
                if (.not. mask(k, e)) cycle
                a(k, e) = p(h*d + k)
                do c = 1, d
                    a(k, e) = a(k, e) + p((c - 1)*h + k)*x(c, e)
                end do
            end do
        end do
    end function hidden

    !> Gradients of the kernel network in x, then in p, from the gradient g in the kernels.
    pure function network_gradients(x, p, g) result(values)
        real(real64), intent(in) :: x(:, :), p(:), g(:, :)
        real(real64) :: values(size(x) + size(p)), a(h, size(x, 2)), grad_x(d, size(x, 2)), grad_p(size(p)), s
        integer :: e, k, c, o, f, v

        f = f_in*f_out
        v = h*(d + 1)
        a = hidden(x, p)
        grad_x = 0
        grad_p = 0
        do e = 1, size(x, 2)
            grad_p(v + f*h + 1:) = grad_p(v + f*h + 1:) + g(:, e)
            do k = 1, h
                if (.not. mask(k, e)) cycle
                s = 0
                do o = 1, f
                    s = s + p(v + (k - 1)*f + o)*g(o, e)
                    grad_p(v + (k - 1)*f + o) = grad_p(v + (k - 1)*f + o) + g(o, e)*a(k, e)
                end do
                grad_p(h*d + k) = grad_p(h*d + k) + s
                do c = 1, d
                    grad_x(c, e) = grad_x(c, e) + p((c - 1)*h + k)*s
                    grad_p((c - 1)*h + k) = grad_p((c - 1)*h + k) + s*x(c, e)
                end do
            end do
        end do
        values = [grad_x, grad_p]
    end function network_gradients

    !> What `ours` returns, from the formula.
    pure function formula(x, p, y, g_kernel, g_agg) result(values)
        real(real64), intent(in) :: x(:, :), p(:), y(:, :), g_kernel(:, :), g_agg(:, :)
        real(real64), allocatable :: values(:)
        real(real64) :: a(h, size(x, 2)), kernel(f_out*f_in, size(x, 2)), grad_kernels(f_out*f_in, size(x, 2))
        real(real64) :: agg(f_out, size(y, 2)), grad_y(f_in, size(y, 2))
        integer :: i, j, e, column, o, fi, fo, f, v

        f = f_in*f_out
        v = h*(d + 1)
        a = hidden(x, p)
        do e = 1, size(x, 2)
            do o = 1, f
                kernel(o, e) = p(v + f*h + o) + sum(p(v + o:v + f*h:f)*a(:, e))
            end do
        end do
        agg = 0
        grad_y = 0
        grad_kernels = 0
        do i = 1, size(y, 2)
            do column = adj_ia(i, 1), adj_ia(i + 1, 1) - 1
                j = adj_ja(1, column)
                e = adj_ja(2, column)
                do fi = 1, f_in
                    do fo = 1, f_out
                        o = (fi - 1)*f_out + fo
                        agg(fo, i) = agg(fo, i) + kernel(o, e)*y(fi, j)
                        grad_y(fi, j) = grad_y(fi, j) + kernel(o, e)*g_agg(fo, i)
                        grad_kernels(o, e) = grad_kernels(o, e) + g_agg(fo, i)*y(fi, j)
                    end do
                end do
            end do
        end do
        values = [kernel, network_gradients(x, p, g_kernel), agg, grad_y, grad_kernels, agg, grad_y, &
            & network_gradients(x, p, grad_kernels)]
    end function formula
end program athena_program
