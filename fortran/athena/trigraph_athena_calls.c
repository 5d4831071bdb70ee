/* The C function through which trigraph_athena.f90 calls the fast path.
 *
 * A pure Fortran procedure with several results must be a subroutine, and must not call OpenMP. This function therefore
 * returns the status in an argument, and the library chooses the number of threads. Results that are NULL, which come
 * from absent optional arguments, are not computed. */
#include "trigraph.h"
#include <stddef.h>

/* The arrays of a graph, named as in trigraph.h and stored consecutively in one array. Only derivatives need the last
 * five arrays. */
struct csc {
    const int32_t *offsets, *indices, *edge_ids;
    const int32_t *destinations, *src_offsets, *src_positions, *row_offsets, *row_positions;
};

static struct csc unpack_graph(const int32_t *graph, int num_v, int nnz, int num_e, int sorted) {
    struct csc a = {0};
    a.offsets = graph;
    a.indices = a.offsets + num_v + 1;
    a.edge_ids = a.indices + nnz;
    if (!sorted) return a;
    a.destinations = a.edge_ids + nnz;
    a.src_offsets = a.destinations + nnz;
    a.src_positions = a.src_offsets + num_v + 1;
    a.row_offsets = a.src_positions + nnz;
    a.row_positions = a.row_offsets + num_e + 1;
    return a;
}

/* Return the address of a result, or any valid address if the result is not requested and hence not written. */
static float *get_address_or_dummy(float *result) {
    static float nothing;
    return result ? result : &nothing;
}

enum operation { KERNEL_FWD, KERNEL_BWD, AGGREGATE_FWD, AGGREGATE_BWD, MESSAGE_FWD, MESSAGE_BWD };

void trigraph_athena_run(int operation, int num_v, int nnz, int num_e, int d, int hidden, int f_in, int f_out,
    int *status, const int32_t *graph, const float *upstream, const float *features, const float *kernels,
    const float *coords, const float *params, float *output, float *grad_features, float *grad_kernels,
    float *grad_coords, float *grad_params) {
    const int n = 0, sorted = operation == AGGREGATE_BWD || operation == MESSAGE_BWD;
    const struct csc a = graph ? unpack_graph(graph, num_v, nnz, num_e, sorted) : (struct csc){0};

    switch ((enum operation)operation) {
    case KERNEL_FWD:
        *status = trigraph_gno_kernel_fwd_f32(n, num_e, d, hidden, f_in, f_out, coords, params, output);
        break;
    case KERNEL_BWD:
        *status = trigraph_gno_kernel_bwd_f32(n, num_e, d, hidden, f_in, f_out, upstream, coords, params,
            grad_coords != NULL, grad_params != NULL, get_address_or_dummy(grad_coords),
            get_address_or_dummy(grad_params));
        break;
    case AGGREGATE_FWD:
        *status = trigraph_gno_aggregate_fwd_f32_i32(n, num_v, num_v, nnz, num_e, f_in, f_out, a.offsets, a.indices,
            a.edge_ids, features, kernels, output);
        break;
    case AGGREGATE_BWD:
        *status = trigraph_gno_aggregate_bwd_f32_i32(n, num_v, num_v, nnz, num_e, f_in, f_out, a.offsets, a.indices,
            a.edge_ids, a.destinations, a.src_offsets, a.src_positions, a.row_offsets, a.row_positions, upstream,
            features, kernels, grad_features != NULL, grad_kernels != NULL, get_address_or_dummy(grad_features),
            get_address_or_dummy(grad_kernels));
        break;
    case MESSAGE_FWD:
        *status = trigraph_gno_message_fwd_f32_i32(n, num_v, num_v, nnz, num_e, d, hidden, f_in, f_out, a.offsets,
            a.indices, a.edge_ids, features, coords, params, output);
        break;
    case MESSAGE_BWD:
        *status = trigraph_gno_message_bwd_f32_i32(n, num_v, num_v, nnz, num_e, d, hidden, f_in, f_out, a.offsets,
            a.indices, a.edge_ids, a.destinations, a.src_offsets, a.src_positions, a.row_offsets, a.row_positions,
            upstream, features, coords, params, grad_features != NULL, grad_coords != NULL, grad_params != NULL,
            get_address_or_dummy(grad_features), get_address_or_dummy(grad_coords), get_address_or_dummy(grad_params));
        break;
    }
}
