// A kernel that multiplies two tiles on tensor cores.
#include "../../gpu/kernels/tensor.cuh"

// Add the product of a 16 x 16 tile and a 16 x 8 tile `repeated` times, using one warp. The bfloat16 parts of
// left[0, 0] are written to `parts`; `redo` is set if any sum is not finite.
__global__ void multiply_on_tensor_cores(const float* left, const float* right, int repeated, float* sums, float* parts,
                                         int* redo) {
    const LeftParts l = split_left_tile([&](int row, int x) { return left[row * tensor_depth + x]; });
    const RightParts r = split_right_tile([&](int x, int col) { return right[x * tensor_cols + col]; });
    float sum[4] = {};
    for (int i = 0; i < repeated; i++) {
        multiply_add(l, r, sum);
    }
    for (int i = 0; i < 4; i++) {
        sums[sum_row(i) * tensor_cols + sum_col(i)] = sum[i];
    }
    const bool any = any_not_finite(sum);
    if (threadIdx.x == 0) {
        redo[0] = any;
        for (int p = 0; p < 3; p++) {
            parts[p] = __uint_as_float(l.at[p][0] << 16);
        }
    }
}
