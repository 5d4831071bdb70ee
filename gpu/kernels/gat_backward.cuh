// Derivatives of graph attention for each edge, which gat.cu sums, and the gradient of the destination embedding. Names
// follow docs/maths.md: u = g.x, delta = u - <u>, gamma = logit_dot - <logit_dot>, t = gamma delta + u_dot, u_dot =
// g.x_dot, where <> is the mean over the in-edges weighted by alpha.
#pragma once

#include "gat_heads.cuh"

// The softmax: alpha of every position, (num_heads, num_positions), or the statistics of every row if `alpha` is null.
template <class T> struct SoftmaxArrays {
    const T* alpha;
    const T* stats;  // see gat_forward
    long long num_positions;
};

// Outputs for the gradient of the rows of an embedding. The gradient contains a C_1 + a_dot C_2, where C_1 and, for
// second derivatives, C_2 are the sums of grad_score and grad_score_dot over a row's positions. The array `sums`
// receives C_1 and C_2, as a (1 or 2, num_heads) block for each row. The overflow arrays contain a row for each part.
template <class S> struct EmbeddingGradientTarget {
    const Compute<S>* a;
    const Compute<S>* a_dot;
    S* out;
    Compute<S>* overflow;
    Compute<S>* sums;
    Compute<S>* sums_overflow;
};

// Means over the in-edges of a row, for one head.
template <class T> struct RowMeans {
    T u;
    T logit_dot;
    T t;
};

// Quantities for one position and head, from which derivatives are computed.
template <class T> struct EdgeDerivativeTerms {
    T alpha;
    T score;
    T score_dot;
    T delta;
    T gamma;
    T u_dot;  // g.x_dot

    __device__ T t() const { return delta * gamma + u_dot; }
};

// The in-edges of a piece for one head, and their records: alpha and grad_score or, for second derivatives, alpha_dot,
// grad_score, grad_score_dot and alpha. Until step 3, u and (for second derivatives) u_dot are at `u_at` of a record.
template <class T, class I, bool second> struct InEdgeRecords {
    static constexpr int per_edge = second ? 4 : 2, alpha_at = second ? 3 : 0, u_at = second ? 0 : 1;

    HeadEdges<T, I> head;
    const Scores<T, I>& scores_dot;
    T* records;
    bool has_g;  // if false, u and u_dot are zero

    __device__ T* get_record(int e) const {
        return records + (((long long)(head.piece.begin) + e) * head.scores.num_heads + head.h) * per_edge;
    }
    __device__ T score_dot(int e) const { return scores_dot.score(head.piece.begin + I(e), head.piece.row, head.h); }
    __device__ T compute_alpha(const SoftmaxArrays<T>& softmax, int e) const {
        if (softmax.alpha != nullptr) {
            return softmax.alpha[head.h * softmax.num_positions + head.piece.begin + I(e)];
        }
        const T* const stats = softmax.stats + (long long)(head.piece.row) * 2 * head.scores.num_heads + head.h;
        return exp(head.logit(e) - stats[0]) / stats[head.scores.num_heads];
    }
    __device__ EdgeDerivativeTerms<T> compute_derivative_terms(int e, const RowMeans<T>& means) const {
        const T* const from = get_record(e);
        EdgeDerivativeTerms<T> terms{from[alpha_at], head.score(e)};
        terms.delta = has_g ? from[u_at] - means.u : T(0);
        if constexpr (second) {
            terms.score_dot = score_dot(e);
            terms.gamma = head.act.slope_times(terms.score, terms.score_dot) - means.logit_dot;
            terms.u_dot = has_g ? from[u_at + 1] : T(0);
        }
        return terms;
    }
};

// Writes u and, if `second`, u_dot of the in-edges of a piece to their records; x_dot may be null. `g` is the gradient
// of the piece's row and head.
template <int n, class S, class I, bool second>
__device__ void write_u(const InEdgeRecords<Compute<S>, I, second>& edges, const HeadLaneLayout& lanes, const S* g,
                        const S* x, const S* x_dot, int dim_head, int concat_heads) {
    using T = Compute<S>;
    const int num_heads = edges.head.scores.num_heads, width = num_heads * dim_head;
    const int first = n * lanes.of_head().column();
    const bool lane_active = edges.head.h < num_heads;
    Pack<S, n> first_g{};  // loaded once for all positions
    if (lane_active && edges.head.piece.size > 0 && first < dim_head) {
        first_g = load_pack<n>(g + first);
    }
    for_each_position<SourceItem<I>>(
        lanes.all(), edges.head.piece.size, lane_active, [&](int e) { return edges.head.source(e); },
        [&](const SourceItem<I>(&items)[unroll], const bool(&valid)[unroll], const int(&e)[unroll], int) {
#pragma unroll
            for (int pair = 0; pair < (second ? 2 : 1); pair++) {
                const S* const values = pair == 0 ? x : x_dot;
                Sum<T> sums[unroll];
                int tile = 0;
#pragma unroll 1
                for (int c = first; c < dim_head && values != nullptr; c += n << lanes.column_bits, tile++) {
                    Pack<S, n> rows[unroll], own_g = first_g;
                    if (c != first && valid[0]) {
                        own_g = load_pack<n>(g + c);
                    }
                    load_item_rows(values + edges.head.h * dim_head + c, width, items, valid, rows);
#pragma unroll
                    for (int u = 0; u < unroll; u++) {
                        T sum = T(0);
#pragma unroll
                        for (int r = 0; r < n; r++) {
                            sum += Storage<S>::value(own_g.at[r]) * Storage<S>::value(rows[u].at[r]);
                        }
                        sums[u].add(sum, tile);
                    }
                }
                T u_of[unroll];
#pragma unroll
                for (int u = 0; u < unroll; u++) {
                    u_of[u] = sums[u].value();
                }
                sum_over_columns(lanes.of_head(), u_of);
#pragma unroll
                for (int u = 0; u < unroll; u++) {
                    if (valid[u] && lanes.of_head().column() == 0) {
                        edges.get_record(e[u])[edges.u_at + pair] = u_of[u] / (concat_heads ? T(1) : T(num_heads));
                    }
                }
            }
        });
}

// Step 1, after write_u: writes alpha of the in-edges to their records, and returns the means of u and of logit_dot.
template <class T, class I, bool second>
__device__ RowMeans<T> write_alpha_and_get_means(const InEdgeRecords<T, I, second>& edges, const HeadLaneLayout& lanes,
                                                 const SoftmaxArrays<T>& softmax) {
    Sum<T> u, logit_dot;
    int k = 0;
    for (int e = lanes.slot(); e < edges.head.size; e += lanes.slots(), k++) {
        const T alpha = edges.compute_alpha(softmax, e);
        edges.get_record(e)[edges.alpha_at] = alpha;
        u.add(edges.has_g ? alpha * edges.get_record(e)[edges.u_at] : T(0), k);
        logit_dot.add(second ? alpha * edges.head.act.slope_times(edges.head.score(e), edges.score_dot(e)) : T(0), k);
    }
    const T mean_u = lanes.sum_over_slots(u.value());
    return {mean_u, second ? lanes.sum_over_slots(logit_dot.value()) : T(0), T(0)};
}

// Step 2: returns the mean of t.
template <class T, class I>
__device__ T compute_mean_t(const InEdgeRecords<T, I, true>& edges, const HeadLaneLayout& lanes,
                            const RowMeans<T>& means) {
    Sum<T> t;
    int k = 0;
    for (int e = lanes.slot(); e < edges.head.size; e += lanes.slots(), k++) {
        const EdgeDerivativeTerms<T> terms = edges.compute_derivative_terms(e, means);
        t.add(terms.alpha * terms.t(), k);
    }
    return lanes.sum_over_slots(t.value());
}

// Sums over the in-edges of a piece for one head; for first derivatives, both members are the sum of grad_score.
template <class T> struct ScoreCotangentSums {
    T grad_score;
    T grad_score_dot;
};

// Step 3: writes the cotangents, and for second derivatives alpha_dot, to the records, and returns their sums.
template <class T, class I, bool second>
__device__ ScoreCotangentSums<T> write_and_sum_score_cotangents(const InEdgeRecords<T, I, second>& edges,
                                                                const HeadLaneLayout& lanes, const RowMeans<T>& means) {
    const Activation<T>& act = edges.head.act;
    Sum<T> of_score, of_score_dot;
    int k = 0;
    for (int e = lanes.slot(); e < edges.head.size; e += lanes.slots(), k++) {
        const EdgeDerivativeTerms<T> terms = edges.compute_derivative_terms(e, means);
        T* const to = edges.get_record(e);
        const T grad_score_dot = act.slope_times(terms.score, terms.alpha * terms.delta);  // grad_score unless `second`
        to[edges.u_at + (second ? 2 : 0)] = grad_score_dot;
        of_score_dot.add(grad_score_dot, k);
        if constexpr (second) {
            const T grad_score = act.slope_times(terms.score, terms.alpha * (terms.t() - means.t)) +
                                 act.curvature_times(terms.score, terms.score_dot * (terms.alpha * terms.delta));
            to[0] = terms.alpha * terms.gamma;
            to[1] = grad_score;
            of_score.add(grad_score, k);
        }
    }
    const T sum = lanes.sum_over_slots(of_score_dot.value());
    return {second ? lanes.sum_over_slots(of_score.value()) : sum, sum};
}

// Writes the gradient of the destination's embedding for one head of piece number s.
template <int n, class S, class I>
__device__ void store_destination_gradient(const RowPartition<I>& partition, long long s,
                                           const HeadEdges<Compute<S>, I>& head, const HeadLaneLayout& lanes,
                                           int dim_head, const ScoreCotangentSums<Compute<S>>& sums,
                                           const EmbeddingGradientTarget<S>& target) {
    using T = Compute<S>;
    const int width = head.scores.num_heads * dim_head;
    for (int c = n * lanes.of_head().column(); c < dim_head; c += n << lanes.column_bits) {
        Pack<T, n> total{};
#pragma unroll
        for (int r = 0; r < n && head.size > 0; r++) {  // pieces without edges skip the weights, which may be NaN
            const int column = head.h * dim_head + c + r;
            const T by_dot = target.a_dot != nullptr ? target.a_dot[column] * sums.grad_score_dot : T(0);
            total.at[r] = target.a[column] * sums.grad_score + by_dot;
        }
        if (lanes.all().position() == 0) {
            store_piece_columns<S, I, n>(partition, s, width, head.h * dim_head + c, total, target.out,
                                         target.overflow);
        }
    }
}

// Steps of gat_backward: (1) u, alpha and means; (2) the mean of t, for second derivatives; (3) cotangents and their
// sums. A group of lanes performs all steps for a whole row and some heads. For parts of long rows, the steps are
// separate launches, between which sum_long_row_parts adds the parts' means, because each step needs means over whole
// rows.

template <class S, class I, bool second>
constexpr int backward_blocks_per_sm = few_row_blocks_per_sm<Compute<S>, I> - (second ? 2 : 1);

// Computes the records of all in-edges (see InEdgeRecords) and the gradient of the destination embedding.
//   steps           the steps to perform: ALL_STEPS for whole rows, one of them for the parts of long rows
//   g               gradient of the output, (num_dst, num_heads or 1, dim_head); null: zero
//   x, x_dot        embedding of the sources and its tangent, (num_src, num_heads, dim_head); x_dot may be null
//   concat_heads whether heads are concatenated in the output, rather than averaged
//   softmax         alpha, or the statistics from which alpha is computed
//   scores          scores by node and edge row
//   scores_dot      tangents of the scores
//   partition       positions by destination
//   records         records of every position and head, written
//   means           means over long rows: u, (num_heads), or for second derivatives u, logit_dot and t, (3, num_heads)
//   parts_of_means  contributions of the parts of long rows to `means`, written
//   target gradient of the destination embedding, written
template <class S, class I, bool wide, bool second>
__global__ void __launch_bounds__(THREADS, backward_blocks_per_sm<S, I, second>)
gat_backward(int steps, const S* __restrict__ g, const S* __restrict__ x, const S* __restrict__ x_dot, int dim_head,
             int concat_heads, const SoftmaxArrays<Compute<S>> softmax, const Scores<Compute<S>, I> scores,
             const Scores<Compute<S>, I> scores_dot, const Activation<Compute<S>> act, const RowPartition<I> partition,
             const HeadLaneLayout lanes, Compute<S>* records, const Compute<S>* means, Compute<S>* parts_of_means,
             const EmbeddingGradientTarget<S> target) {
    using T = Compute<S>;
    constexpr int n = pack_elements<S, wide>, orders = second ? 2 : 1, num_means = second ? 3 : 1;
    const int num_heads = scores.num_heads;
    const unsigned tiles = (num_heads + (1 << lanes.head_bits) - 1) >> lanes.head_bits;
    const int h = int(blockIdx.x % tiles << lanes.head_bits) + lanes.head();
    const bool whole = steps == ALL_STEPS;
    const long long s = (whole ? 0 : partition.num_rows) + (long long)(blockIdx.x / tiles) * lanes.all().groups() +
                        lanes.all().group();
    const bool valid = h < num_heads && s < partition.num_pieces && partition.is_row(s) == whole;
    const bool writes = valid && lanes.slot() == 0;
    const RowPiece<I> piece = partition.piece(s);
    const InEdgeRecords<T, I, second> edges{
        {scores, act, piece, h, valid ? piece.size : 0}, scores_dot, records, g != nullptr};
    const long long row = piece.row;
    T* const of_part = whole ? nullptr : parts_of_means + (s - partition.num_rows) * num_means * num_heads;
    RowMeans<T> mean{};
    if (steps & FIRST_STEP) {
        if (g != nullptr) {
            const S* const of_head = g + (concat_heads ? row * num_heads + h : row) * dim_head;
            write_u<n, S, I, second>(edges, lanes, of_head, x, x_dot, dim_head, concat_heads);
        }
        __syncwarp();
        mean = write_alpha_and_get_means(edges, lanes, softmax);
        if (!whole && writes) {
            store_head_sums<num_means>(of_part, num_heads, h, mean.u, mean.logit_dot);
        }
    } else if (edges.head.size > 0) {
        const T* const of_row = means + row * num_means * num_heads + h;
        mean.u = of_row[0];
        mean.logit_dot = second ? of_row[num_heads] : T(0);
        mean.t = second && steps == LAST_STEP ? of_row[2 * num_heads] : T(0);
    }
    if constexpr (second) {
        if (steps & SECOND_STEP) {
            mean.t = compute_mean_t(edges, lanes, mean);
            if (!whole && writes) {
                of_part[2 * num_heads + h] = mean.t;  // step 1 has stored the means of u and logit_dot
            }
        }
    }
    if (!(steps & LAST_STEP)) {
        return;
    }
    const ScoreCotangentSums<T> sums = write_and_sum_score_cotangents(edges, lanes, mean);
    if (target.sums != nullptr && writes) {
        T* const to = partition.output_address(s, orders * num_heads, target.sums, target.sums_overflow);
        store_head_sums<orders>(to, num_heads, h, sums.grad_score, sums.grad_score_dot);
    }
    if (target.out != nullptr && valid) {
        store_destination_gradient<n, S, I>(partition, s, edges.head, lanes, dim_head, sums, target);
    }
}
