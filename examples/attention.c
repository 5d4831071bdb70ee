/* Compute graph attention and the gradient of a scalar from C, and check the gradient with a finite difference.

   An embedding has a row of heads*dim numbers for each node. docs/fortran.md explains how to build this program. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "trigraph.h"

enum { NODES = 6, EDGES = 15, HEADS = 2, DIM = 4, WIDTH = HEADS * DIM };
enum { NO_EDGE_FEATURES = 0, NO_SCORES = 0 };
enum { CONCAT = TRIGRAPH_MHA_GAT_N2N_CONCAT_HEADS_TRUE, LEAKY_RELU = TRIGRAPH_MHA_GAT_N2N_ACTIVATION_LEAKYRELU };
static int32_t offsets[NODES + 1], indices[EDGES], edge_ids[EDGES], destinations[EDGES];
static int32_t src_offsets[NODES + 1], src_positions[EDGES], row_offsets[EDGES + 1], row_positions[EDGES];
static double x[NODES * WIDTH], weights[2 * WIDTH], y[NODES * WIDTH], none[1];

static void stop_unless_zero(int status, const char *what)
{
    if (status != 0) {
        fprintf(stderr, "%s: status %d\n", what, status);
        exit(1);
    }
}

/* The scalar: sum(y**2)/2. */
static double compute_energy(void)
{
    double e = 0;
    stop_unless_zero(trigraph_mha_gat_n2n_fwd_f64_i32(1, NODES, NODES, EDGES, EDGES, DIM, HEADS, NO_EDGE_FEATURES, CONCAT,
        LEAKY_RELU, NO_SCORES, 0.2, offsets, indices, edge_ids, x, x, weights, none, y, none), "forward");
    for (int i = 0; i < NODES * WIDTH; i++) e += y[i] * y[i] / 2;
    return e;
}

int main(void)
{
    static double as_src[NODES * WIDTH], as_dst[NODES * WIDTH], of_weights[2 * WIDTH];
    int32_t src[EDGES], dst[EDGES];  /* in any order; node NODES - 1 has no edges */
    const double step = 1e-5;
    double difference, gradient;

    for (int e = 0; e < EDGES; e++) {
        src[e] = e * 7 % (NODES - 1);
        dst[e] = e * e % (NODES - 1);
    }
    for (int i = 0; i < NODES * WIDTH; i++) x[i] = sin(i);
    for (int i = 0; i < 2 * WIDTH; i++) weights[i] = cos(i);
    stop_unless_zero(trigraph_build_csc_i32(NODES, NODES, EDGES, src, dst, offsets, indices, edge_ids), "graph");
    stop_unless_zero(trigraph_build_csc_orders_i32(NODES, NODES, EDGES, EDGES, offsets, indices, edge_ids, destinations,
        src_offsets, src_positions, row_offsets, row_positions), "orders");

    compute_energy();  /* sets y, which is also the gradient with respect to y; x serves as both embeddings */
    stop_unless_zero(trigraph_mha_gat_n2n_bwd_f64_i32(1, NODES, NODES, EDGES, EDGES, DIM, HEADS, NO_EDGE_FEATURES, NO_SCORES,
        CONCAT, LEAKY_RELU, 0.2, offsets, indices, edge_ids, destinations, src_offsets, src_positions, row_offsets,
        row_positions, y, x, x, weights, none, none, 1, 1, 0, 0, as_src, as_dst, of_weights, none), "gradient");

    gradient = as_src[5] + as_dst[5];
    x[5] += step;
    difference = compute_energy();
    x[5] -= 2 * step;
    difference = (difference - compute_energy()) / (2 * step);
    printf("gradient against a difference: %.1e\n", fabs(gradient - difference) / fabs(gradient));
    return !(fabs(gradient - difference) < 1e-8 * fabs(gradient));
}
