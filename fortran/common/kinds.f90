!> The real and integer kinds of all Fortran modules.
module trigraph_kinds
    use, intrinsic :: iso_fortran_env, only: real32, real64, real128, int32, int64
    implicit none
    private
    public :: sp, dp, qp, i32, i64

    integer, parameter :: sp = real32
    integer, parameter :: dp = real64
    integer, parameter :: qp = real128
    integer, parameter :: i32 = int32
    integer, parameter :: i64 = int64
end module trigraph_kinds
