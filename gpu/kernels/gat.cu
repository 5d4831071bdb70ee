// Graph attention. For every head and position p (an in-edge of i from j, e its row): raw = a_s.x_j + a_d.x_i + a_e.f_e,
// pre = act(raw), post = softmax of pre over the in-edges of i, out_i = sum post x_j. gpu/gat.py states the formulas and
// puts the kernels together. Null pointers leave out what they stand for; null edge_ids say that row and position are the
// same.
//
// S is what embeddings and their gradients are stored in; scores, sums and weights are of type Compute<S>. Rows of
// embeddings are (num_heads, dim_head); post is (num_heads, num_positions), what else belongs to positions (num_positions,
// num_heads). A lane's columns lie within one head.
#include "gat_activations.cuh"
#include "rows.cuh"
#include "gat_storage.cuh"

// Scores by node and by row of the edge arrays, (n, num_heads) each, and their sum at position p into row i.
template <class T, class I> struct Scores {
    const T* src;
    const T* dst;
    const T* edge;
    const I* indices;
    const I* edge_ids;
    int num_heads;

    __device__ T raw(I p, I i, int h) const {
        T sum = src != nullptr ? src[(long long)(indices[p]) * num_heads + h] : T(0);
        sum += dst != nullptr ? dst[(long long)(i) * num_heads + h] : T(0);
        return edge != nullptr ? sum + edge[(long long)(edge_ids == nullptr ? p : edge_ids[p]) * num_heads + h] : sum;
    }
};

// One group of lanes for each piece and head.
struct PieceAndHead {
    long long piece;
    int head;

    __device__ PieceAndHead(const Lanes& lanes, int num_heads) {
        const long long i = (long long)(blockIdx.x) * lanes.groups() + lanes.group();
        piece = i / num_heads;
        head = int(i - piece * num_heads);
    }
};

// Writes a lane's columns of a piece's sum: a whole row's to `out`, a part's to its overflow row, which gat_finish adds up
// before it rounds.
template <class S, class I, int n>
__device__ void store_columns(const Cut<I>& cut, long long s, int width, int column, const Pack<Compute<S>, n>& sum, S* out,
                              Compute<S>* overflow) {
    if (cut.is_row(s)) {
        Pack<S, n> rounded;
#pragma unroll
        for (int r = 0; r < n; r++) {
            rounded.at[r] = Storage<S>::rounded(sum.at[r]);
        }
        store_pack(out + s * width + column, rounded);
    } else {
        Compute<S>* const target = overflow + (s - cut.num_rows) * width + column;
#pragma unroll
        for (int r = 0; r < n; r++) {
            target[r] = sum.at[r];
        }
    }
}

// out[row] = sum of the overflow rows of its parts, for every long row.
template <class S, class I>
__global__ void __launch_bounds__(256)
gat_finish(const Compute<S>* __restrict__ overflow, const I* __restrict__ long_rows, long long num_long, int width,
           S* __restrict__ out) {
    using T = Compute<S>;
    __shared__ T sums[8][32];
    const LongRow<I> place(long_rows, num_long, width);
    const T sum = place.sum(overflow, width, sums);
    if (threadIdx.y == 0 && place.column < width) {
        out[place.row * width + place.column] = Storage<S>::rounded(sum);
    }
}

// ---- scores ---------------------------------------------------------------------------------------------------------

// For the rows of sources, then of destinations, then of edges: out[row, h] = a[h].x[row, h] + a_2[h].x_2[row, h], with the
// weights `a` that meet each of the three; one group of lanes for each row and head.
template <class S, bool wide>
__global__ void __launch_bounds__(128, row_blocks_per_sm)
gat_project(const Compute<S>* __restrict__ a, const S* __restrict__ src, const S* __restrict__ dst,
            const S* __restrict__ edge, const Compute<S>* __restrict__ a_2, const S* __restrict__ src_2,
            const S* __restrict__ dst_2, const S* __restrict__ edge_2, long long num_src, long long num_dst,
            long long num_edges, int num_heads, int dim_head, int column_bits, Compute<S>* __restrict__ out) {
    using T = Compute<S>;
    constexpr int n = pack_elements<S, wide>;
    const Lanes lanes{column_bits, 0};
    const long long i = (long long)(blockIdx.x) * lanes.groups() + lanes.group(), row = i / num_heads;
    const int h = int(i - row * num_heads), kind = row < num_src ? 0 : row < num_src + num_dst ? 1 : 2;
    const bool there = row < num_src + num_dst + num_edges;
    const long long at = i - (kind == 0 ? 0 : kind == 1 ? num_src : num_src + num_dst) * num_heads;
    Sum<T> sum;
    for (int pair = 0; pair < 2; pair++) {
        const T* const weights = pair == 0 ? a : a_2;
        const S* const values = pair == 0 ? (kind == 0 ? src : kind == 1 ? dst : edge)
                                          : (kind == 0 ? src_2 : kind == 1 ? dst_2 : edge_2);
        if (weights != nullptr && values != nullptr && there) {
            const T* const of_head = weights + (long long)(kind * num_heads + h) * dim_head;
            int k = 0;
            for (int c = n * lanes.column(); c < dim_head; c += n << column_bits) {
                const Pack<S, n> value = load_pack<n>(values + at * dim_head + c);
#pragma unroll
                for (int r = 0; r < n; r++) {
                    sum.add(of_head[c + r] * Storage<S>::value(value.at[r]), k++);
                }
            }
        }
    }
    const T total = sum_over_columns(lanes, sum.value());
    if (there && lanes.column() == 0) {
        out[i] = total;
    }
}

// pre and post of every position. stats[row] is (2, num_heads), the largest score and the sum of exp(pre - largest), wanted
// where rows are cut; post and stats are those of a piece, final where the row is whole.
template <class T, class I>
__global__ void __launch_bounds__(128, row_blocks_per_sm)
gat_scores(const T* __restrict__ src, const T* __restrict__ dst, const T* __restrict__ edge, const I* __restrict__ offsets,
           const I* __restrict__ parts, long long num_rows, long long num_pieces, const I* __restrict__ indices,
           const I* __restrict__ edge_ids, long long num_positions, int num_heads, int activation, T negative_slope,
           int position_bits, T* scores, T* __restrict__ stats, T* __restrict__ overflow) {
    const Scores<T, I> nodes{src, dst, edge, indices, edge_ids, num_heads};
    const Activation<T> act{activation, negative_slope};
    const Lanes lanes{0, position_bits};
    const PieceAndHead place(lanes, num_heads);
    const Cut<I> cut{offsets, parts, num_rows, num_pieces};
    const Piece<I> piece = cut.piece(place.piece);
    T* const pre = scores + place.head * num_positions + piece.begin;
    T* const post = pre + num_heads * num_positions;
    const T lowest = -T(__int_as_float(0x7f800000));  // -infinity
    T largest = lowest;
    for (int e = lanes.position(); e < piece.size; e += lanes.positions()) {
        const T value = act.value(nodes.raw(piece.begin + I(e), piece.row, place.head));
        pre[e] = value;
        largest = value > largest ? value : largest;
    }
    for (int bit = 0; bit < position_bits; bit++) {
        const T other = __shfl_xor_sync(0xffffffffu, largest, 1 << bit);
        largest = other > largest ? other : largest;
    }
    const T shift = largest == lowest ? T(0) : largest;  // exp(-inf) is 0 also where there is nothing else
    Sum<T> sum;
    int k = 0;
    for (int e = lanes.position(); e < piece.size; e += lanes.positions()) {
        sum.add(exp(pre[e] - shift), k++);
    }
    const T total = sum_over_positions(lanes, sum.value());
    for (int e = lanes.position(); e < piece.size; e += lanes.positions()) {
        post[e] = exp(pre[e] - shift) / total;
    }
    if (stats != nullptr && place.piece < num_pieces && lanes.position() == 0) {
        T* const target = cut.target(place.piece, 2 * num_heads, stats, overflow) + place.head;
        target[0] = largest;
        target[num_heads] = total;
    }
}

// stats of every long row, from those of its parts; blocks take 32 heads each.
template <class T, class I>
__global__ void __launch_bounds__(256)
gat_join(const T* __restrict__ overflow, const I* __restrict__ long_rows, long long num_long, int num_heads,
         T* __restrict__ stats) {
    __shared__ T peaks[8][32];
    __shared__ T sums[8][32];
    const LongRow<I> place(long_rows, num_long, num_heads);
    const int h = min(place.column, num_heads - 1);
    T peak = overflow[place.first * 2 * num_heads + h];
    for (long long t = place.first + threadIdx.y; t < place.end; t += 8) {
        const T other = overflow[t * 2 * num_heads + h];
        peak = other > peak ? other : peak;
    }
    peaks[threadIdx.y][threadIdx.x] = peak;
    __syncthreads();
    for (int y = 0; y < 8; y++) {
        const T other = peaks[y][threadIdx.x];
        peak = other > peak ? other : peak;
    }
    LongSum<T> terms;
    int i = 0;
    for (long long t = place.first + threadIdx.y; t < place.end; t += 8) {
        const T* const part = overflow + t * 2 * num_heads + h;
        terms.add(part[num_heads] * exp(part[0] - peak), i++);
    }
    const T sum = sum_over_y(terms.value(), sums);
    if (threadIdx.y == 0 && place.column < num_heads) {
        T* const head = stats + place.row * 2 * num_heads + h;
        head[0] = peak;
        head[num_heads] = sum;
    }
}

// post of the positions of long rows; one group of lanes for each part and head.
template <class T, class I>
__global__ void __launch_bounds__(128, row_blocks_per_sm)
gat_rescale(const T* __restrict__ stats, const I* __restrict__ offsets, const I* __restrict__ parts, long long num_rows,
            long long num_pieces, long long num_positions, int num_heads, int position_bits, T* scores) {
    const Lanes lanes{0, position_bits};
    const PieceAndHead place(lanes, num_heads);
    const Piece<I> piece = Cut<I>{offsets, parts, num_rows, num_pieces}.piece(num_rows + place.piece);
    const T* const row = stats + (long long)(piece.row) * 2 * num_heads + place.head;
    const T* const pre = scores + place.head * num_positions + piece.begin;
    T* const post = scores + (num_heads + place.head) * num_positions + piece.begin;
    for (int e = lanes.position(); e < piece.size; e += lanes.positions()) {
        post[e] = exp(pre[e] - row[0]) / row[num_heads];
    }
}

// ---- output ---------------------------------------------------------------------------------------------------------

// The row of columns that belongs to a position.
template <class I> struct Source {
    I row;

    __device__ Source of_lane(int lane, int lanes) const { return {__shfl_sync(0xffffffffu, row, lane, lanes)}; }
};

template <class S, class I, bool second, bool concat>
constexpr int aggregate_blocks_per_sm = sizeof(S) == 2 ? 3 + concat + !second
                                        : !second      ? (concat ? row_blocks_per_sm : few_row_blocks_per_sm<S, I>)
                                                       : 5;

// out[row] = sum over its positions of coefficient x[src] and, if `second`, coefficient_2 x_2[src], heads side by side if
// `concat`, else averaged; position p and head h have coefficient[p * position_stride + h * head_stride].
template <class S, class I, bool wide, bool second, bool concat>
__global__ void __launch_bounds__(128, aggregate_blocks_per_sm<S, I, second, concat>)
gat_aggregate(const Compute<S>* __restrict__ coefficient, int position_stride, long long head_stride,
              const S* __restrict__ x, const Compute<S>* __restrict__ coefficient_2, int position_stride_2,
              long long head_stride_2, const S* __restrict__ x_2, const I* __restrict__ offsets, const I* __restrict__ parts,
              long long num_rows, long long num_pieces, const I* __restrict__ indices, int num_heads, int dim_head,
              int column_bits, int position_bits, S* __restrict__ out, Compute<S>* __restrict__ overflow) {
    using T = Compute<S>;
    constexpr int n = pack_elements<S, wide>;
    const int stride = num_heads * dim_head, width = concat ? stride : dim_head;
    const Lanes lanes{column_bits, position_bits};
    const Place<n> place(lanes, width);
    const Cut<I> cut{offsets, parts, num_rows, num_pieces};
    const Piece<I> piece = cut.piece(place.piece);
    const bool inside = place.column < width;
    const int first = concat ? place.column / dim_head : 0, heads = concat ? 1 : num_heads;
    Sum<T> sum[n];
    each_position<Source<I>>(
        lanes, piece.size, inside, [&](int e) { return Source<I>{indices[piece.begin + I(e)]}; },
        [&](const Source<I>(&items)[unroll], const bool(&there)[unroll], const int(&e)[unroll], int k) {
            Pack<T, n> terms[unroll] = {};
#pragma unroll 1
            for (int h = 0; h < heads; h++) {
#pragma unroll
                for (int pair = 0; pair < (second ? 2 : 1); pair++) {
                    const T* const c = pair == 0 ? coefficient + piece.begin * (long long)(position_stride) +
                                                       (first + h) * head_stride
                                                 : coefficient_2 + piece.begin * (long long)(position_stride_2) +
                                                       (first + h) * head_stride_2;
                    T factor[unroll];
                    Pack<S, n> values[unroll];
#pragma unroll
                    for (int u = 0; u < unroll; u++) {
                        factor[u] = there[u] ? c[e[u] * (pair == 0 ? position_stride : position_stride_2)] : T(0);
                    }
                    load_rows((pair == 0 ? x : x_2) + place.column + h * dim_head, stride, items, there, values);
#pragma unroll
                    for (int u = 0; u < unroll; u++) {
#pragma unroll
                        for (int r = 0; r < n; r++) {
                            const T term = factor[u] * Storage<S>::value(values[u].at[r]);
                            if constexpr (concat && !second) {
                                sum[r].add(term, k + u);
                            } else {
                                terms[u].at[r] += term;
                            }
                        }
                    }
                }
            }
            if constexpr (!concat || second) {
#pragma unroll
                for (int u = 0; u < unroll; u++) {
#pragma unroll
                    for (int r = 0; r < n; r++) {
                        sum[r].add(terms[u].at[r], k + u);
                    }
                }
            }
        });
    Pack<T, n> total;
#pragma unroll
    for (int r = 0; r < n; r++) {
        total.at[r] = sum_over_positions(lanes, sum[r].value()) / T(heads);
    }
    if (place.piece < num_pieces && inside && lanes.position() == 0) {
        store_columns<S, I, n>(cut, place.piece, width, place.column, total, out, overflow);
    }
}

// ---- derivatives ----------------------------------------------------------------------------------------------------

// dots[p, h] = g[dst, h].x[src, h], dots_2 alike with x_2; g is the gradient in the output of a head. One group of lanes for
// each position and head.
template <class S, class I, bool wide>
__global__ void __launch_bounds__(128, row_blocks_per_sm)
gat_dots(const S* __restrict__ g, const S* __restrict__ x, const S* __restrict__ x_2, const I* __restrict__ destinations,
         const I* __restrict__ indices, long long count, int num_heads, int dim_head, int concat_heads, int column_bits,
         Compute<S>* __restrict__ dots, Compute<S>* __restrict__ dots_2) {
    using T = Compute<S>;
    constexpr int n = pack_elements<S, wide>;
    const Lanes lanes{column_bits, 0};
    const long long i = (long long)(blockIdx.x) * lanes.groups() + lanes.group();
    Sum<T> sum, sum_2;
    if (i < count) {
        const long long p = i / num_heads, to = destinations[p], from = indices[p];
        const int h = int(i - p * num_heads);
        const S* const left = g + (concat_heads ? to * num_heads + h : to) * dim_head;
        const long long right = (from * num_heads + h) * dim_head;
        int k = 0;
#pragma unroll 2
        for (int c = n * lanes.column(); c < dim_head; c += n << column_bits) {
            const Pack<S, n> a = load_pack<n>(left + c), b = load_pack<n>(x + right + c);
            Pack<S, n> b_2{};
            if (x_2 != nullptr) {
                b_2 = load_pack<n>(x_2 + right + c);
            }
#pragma unroll
            for (int r = 0; r < n; r++, k++) {
                sum.add(Storage<S>::value(a.at[r]) * Storage<S>::value(b.at[r]), k);
                if (x_2 != nullptr) {
                    sum_2.add(Storage<S>::value(a.at[r]) * Storage<S>::value(b_2.at[r]), k);
                }
            }
        }
    }
    const T divisor = concat_heads ? T(1) : T(num_heads);
    const T total = sum_over_columns(lanes, sum.value()) / divisor;
    const T total_2 = x_2 != nullptr ? sum_over_columns(lanes, sum_2.value()) / divisor : T(0);
    if (i < count && lanes.column() == 0) {
        dots[i] = total;
        if (x_2 != nullptr) {
            dots_2[i] = total_2;
        }
    }
}

// Means over the in-edges of a row: of the dots and, second order, of pre's derivative; out[row] is (1 or 2, num_heads).
template <class T, class I, bool second>
__global__ void __launch_bounds__(128, row_blocks_per_sm)
gat_means(const T* __restrict__ post, const T* __restrict__ dots, const T* __restrict__ src, const T* __restrict__ dst,
          const T* __restrict__ edge, const T* __restrict__ src_dot, const T* __restrict__ dst_dot,
          const T* __restrict__ edge_dot, const I* __restrict__ offsets, const I* __restrict__ parts, long long num_rows,
          long long num_pieces, const I* __restrict__ indices, const I* __restrict__ edge_ids, long long num_positions,
          int num_heads, int activation, T negative_slope, int position_bits, T* __restrict__ out,
          T* __restrict__ overflow) {
    const Scores<T, I> nodes{src, dst, edge, indices, edge_ids, num_heads};
    const Scores<T, I> nodes_dot{src_dot, dst_dot, edge_dot, indices, edge_ids, num_heads};
    const Activation<T> act{activation, negative_slope};
    const Lanes lanes{0, position_bits};
    const PieceAndHead place(lanes, num_heads);
    const Cut<I> cut{offsets, parts, num_rows, num_pieces};
    const Piece<I> piece = cut.piece(place.piece);
    Sum<T> of_dots, of_pre;
    int k = 0;
    for (int e = lanes.position(); e < piece.size; e += lanes.positions(), k++) {
        const I p = piece.begin + I(e);
        const T share = post[place.head * num_positions + p];
        if (dots != nullptr) {
            of_dots.add(share * dots[(long long)(p) * num_heads + place.head], k);
        }
        if (second) {
            const T raw = nodes.raw(p, piece.row, place.head), raw_dot = nodes_dot.raw(p, piece.row, place.head);
            of_pre.add(share * act.slope(raw, raw_dot), k);
        }
    }
    const T mean = sum_over_positions(lanes, of_dots.value());
    const T mean_pre = second ? sum_over_positions(lanes, of_pre.value()) : T(0);
    if (place.piece < num_pieces && lanes.position() == 0) {
        const int width = second ? 2 * num_heads : num_heads;
        T* const target = cut.target(place.piece, width, out, overflow) + place.head;
        target[0] = mean;
        if (second) {
            target[num_heads] = mean_pre;
        }
    }
}

// What the derivatives take from a position and head.
template <class T> struct Deviations {
    T share;      // post
    T raw;
    T raw_dot;
    T of_dots;    // dots minus its mean
    T of_pre;     // pre's derivative minus its mean
    T dots_2;

    // The cotangent of post, up to what all in-edges have in common.
    __device__ T grad_post() const { return of_dots * of_pre + dots_2; }
};

template <class T, class I, bool second>
__device__ Deviations<T> deviations(const T* post, const T* dots, const T* dots_2, const T* means,
                                    const Scores<T, I>& nodes, const Scores<T, I>& nodes_dot, const Activation<T>& act,
                                    I p, I i, int h, long long num_positions) {
    const int num_heads = nodes.num_heads;
    const long long at = (long long)(p) * num_heads + h;
    const T* const mean = means + (long long)(i) * (second ? 2 * num_heads : num_heads) + h;
    Deviations<T> d{};
    d.share = post[h * num_positions + p];
    d.raw = nodes.raw(p, i, h);
    d.of_dots = dots != nullptr ? dots[at] - mean[0] : T(0);
    if (second) {
        d.raw_dot = nodes_dot.raw(p, i, h);
        d.of_pre = act.slope(d.raw, d.raw_dot) - mean[num_heads];
        d.dots_2 = dots_2 != nullptr ? dots_2[at] : T(0);
    }
    return d;
}

// Mean over the in-edges of a row of the cotangent of post, (num_heads).
template <class T, class I>
__global__ void __launch_bounds__(128, row_blocks_per_sm)
gat_second_mean(const T* __restrict__ post, const T* __restrict__ dots, const T* __restrict__ dots_2,
                const T* __restrict__ means, const T* __restrict__ src, const T* __restrict__ dst,
                const T* __restrict__ edge, const T* __restrict__ src_dot, const T* __restrict__ dst_dot,
                const T* __restrict__ edge_dot, const I* __restrict__ offsets, const I* __restrict__ parts,
                long long num_rows, long long num_pieces, const I* __restrict__ indices, const I* __restrict__ edge_ids,
                long long num_positions, int num_heads, int activation, T negative_slope, int position_bits,
                T* __restrict__ out, T* __restrict__ overflow) {
    const Scores<T, I> nodes{src, dst, edge, indices, edge_ids, num_heads};
    const Scores<T, I> nodes_dot{src_dot, dst_dot, edge_dot, indices, edge_ids, num_heads};
    const Activation<T> act{activation, negative_slope};
    const Lanes lanes{0, position_bits};
    const PieceAndHead place(lanes, num_heads);
    const Cut<I> cut{offsets, parts, num_rows, num_pieces};
    const Piece<I> piece = cut.piece(place.piece);
    Sum<T> sum;
    int k = 0;
    for (int e = lanes.position(); e < piece.size; e += lanes.positions()) {
        const Deviations<T> d = deviations<T, I, true>(post, dots, dots_2, means, nodes, nodes_dot, act,
                                                       piece.begin + I(e), piece.row, place.head, num_positions);
        sum.add(d.share * d.grad_post(), k++);
    }
    const T mean = sum_over_positions(lanes, sum.value());
    if (place.piece < num_pieces && lanes.position() == 0) {
        cut.target(place.piece, num_heads, out, overflow)[place.head] = mean;
    }
}

// What gat_to_rows gathers, (num_positions, num_heads, 2 or 3): the coefficient of g, the cotangent of raw and, second order,
// that of raw's derivative. One thread for each position and head.
template <class T, class I, bool second>
__global__ void __launch_bounds__(128, row_blocks_per_sm)
gat_coefficients(const T* __restrict__ post, const T* __restrict__ dots, const T* __restrict__ dots_2,
                 const T* __restrict__ means, const T* __restrict__ second_mean, const T* __restrict__ src,
                 const T* __restrict__ dst, const T* __restrict__ edge, const T* __restrict__ src_dot,
                 const T* __restrict__ dst_dot, const T* __restrict__ edge_dot, const I* __restrict__ destinations,
                 const I* __restrict__ indices, const I* __restrict__ edge_ids, long long num_positions, int num_heads,
                 int activation, T negative_slope, T* __restrict__ out) {
    const Scores<T, I> nodes{src, dst, edge, indices, edge_ids, num_heads};
    const Scores<T, I> nodes_dot{src_dot, dst_dot, edge_dot, indices, edge_ids, num_heads};
    const Activation<T> act{activation, negative_slope};
    const long long at = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= num_positions * num_heads) {
        return;
    }
    const I p = I(at / num_heads), i = destinations[p];
    const int h = int(at - (long long)(p) * num_heads);
    const Deviations<T> d =
        deviations<T, I, second>(post, dots, dots_2, means, nodes, nodes_dot, act, p, i, h, num_positions);
    const T grad_raw = act.slope(d.raw, d.share * d.of_dots);
    if (second) {
        T* const target = out + 3 * at;
        const T mean = dots != nullptr ? second_mean[(long long)(i) * num_heads + h] : T(0);
        target[0] = d.share * d.of_pre;
        target[1] = act.slope(d.raw, d.share * (d.grad_post() - mean)) +
                    act.curvature(d.raw, d.raw_dot * (d.share * d.of_dots));
        target[2] = grad_raw;
    } else {
        out[2 * at] = d.share;
        out[2 * at + 1] = grad_raw;
    }
}

// A position and the row of g that belongs to it.
template <class I> struct Cotangent {
    I row;
    I position;

    __device__ Cotangent of_lane(int lane, int lanes) const {
        return {__shfl_sync(0xffffffffu, row, lane, lanes), __shfl_sync(0xffffffffu, position, lane, lanes)};
    }
};

template <class S, class I>
constexpr int to_rows_blocks_per_sm = few_row_blocks_per_sm<Compute<S>, I> - int(sizeof(S) == 2);

// With c the `per` coefficients of a position and head, and C their sums over the positions of a row (of `order`, if given):
// out[row, h] = sum c_0 g[dst, h] + a[h] C_1 + a_2[h] C_2, and sums[row] = C_1 (and C_2), (per - 1, num_heads).
template <class S, class I, bool wide>
__global__ void __launch_bounds__(128, to_rows_blocks_per_sm<S, I>)
gat_to_rows(const Compute<S>* __restrict__ coefficients, int per, const S* __restrict__ g, const Compute<S>* __restrict__ a,
            const Compute<S>* __restrict__ a_2, const I* __restrict__ offsets, const I* __restrict__ parts,
            long long num_rows, long long num_pieces, const I* __restrict__ order, const I* __restrict__ destinations,
            int num_heads, int dim_head, int concat_heads, int column_bits, int position_bits, S* __restrict__ out,
            Compute<S>* __restrict__ overflow, Compute<S>* __restrict__ sums, Compute<S>* __restrict__ sums_overflow) {
    using T = Compute<S>;
    constexpr int n = pack_elements<S, wide>;
    const int width = num_heads * dim_head;
    const Lanes lanes{column_bits, position_bits};
    const Place<n> place(lanes, width);
    const Cut<I> cut{offsets, parts, num_rows, num_pieces};
    const Piece<I> piece = cut.piece(place.piece);
    const bool inside = place.column < width;
    const int h = place.column / dim_head, within = place.column - h * dim_head;
    const int g_width = concat_heads ? width : dim_head, g_column = concat_heads ? place.column : within;
    Sum<T> of_g[n], of_1, of_2;
    each_position<Cotangent<I>>(
        lanes, piece.size, inside,
        [&](int e) {
            const I p = order == nullptr ? piece.begin + I(e) : order[piece.begin + I(e)];
            return Cotangent<I>{g == nullptr ? I(0) : destinations[p], p};
        },
        [&](const Cotangent<I>(&items)[unroll], const bool(&there)[unroll], const int(&)[unroll], int k) {
            T c[unroll][3];
#pragma unroll
            for (int u = 0; u < unroll; u++) {
                const T* const at = coefficients + ((long long)(items[u].position) * num_heads + h) * per;
                c[u][0] = there[u] && g != nullptr ? at[0] : T(0);
                c[u][1] = there[u] ? at[1] : T(0);
                c[u][2] = there[u] && per == 3 ? at[2] : T(0);
            }
            if (g != nullptr) {
                Pack<S, n> values[unroll];
                load_rows(g + g_column, g_width, items, there, values);
#pragma unroll
                for (int u = 0; u < unroll; u++) {
#pragma unroll
                    for (int r = 0; r < n; r++) {
                        of_g[r].add(c[u][0] * Storage<S>::value(values[u].at[r]), k + u);
                    }
                }
            }
#pragma unroll
            for (int u = 0; u < unroll; u++) {
                of_1.add(c[u][1], k + u);
                of_2.add(c[u][2], k + u);
            }
        });
    const T c_1 = sum_over_positions(lanes, of_1.value()), c_2 = sum_over_positions(lanes, of_2.value());
    Pack<T, n> total;
#pragma unroll
    for (int r = 0; r < n; r++) {
        total.at[r] = sum_over_positions(lanes, of_g[r].value()) / (concat_heads ? T(1) : T(num_heads));
    }
    if (place.piece >= num_pieces || !inside || lanes.position() != 0) {
        return;
    }
    if (sums != nullptr && within == 0) {
        T* const target = cut.target(place.piece, (per - 1) * num_heads, sums, sums_overflow) + h;
        target[0] = c_1;
        if (per == 3) {
            target[num_heads] = c_2;
        }
    }
    if (out != nullptr) {
#pragma unroll
        for (int r = 0; r < n && piece.size > 0; r++) {  // weights that meet no edge leave no trace
            total.at[r] += a[place.column + r] * c_1;
            total.at[r] += a_2 != nullptr ? a_2[place.column + r] * c_2 : T(0);
        }
        store_columns<S, I, n>(cut, place.piece, width, place.column, total, out, overflow);
    }
}

// parts[chunk, kind, h, :] = sum over the chunk's 256 rows of sums[row, 0, h] x[row, h] + sums[row, 1, h] x_2[row, h], for the
// rows of each kind: sources, destinations and edges; `sums` has them all, one after the other. Rows without positions
// leave no trace. Where there are no offsets, every row has one. 32 columns to a block.
template <class S, class I>
__global__ void __launch_bounds__(256)
gat_weights(const Compute<S>* __restrict__ sums, int per, const S* __restrict__ src, const S* __restrict__ dst,
            const S* __restrict__ edge, const S* __restrict__ src_2, const S* __restrict__ dst_2,
            const S* __restrict__ edge_2, const I* __restrict__ src_offsets, const I* __restrict__ dst_offsets,
            const I* __restrict__ edge_offsets, long long num_src, long long num_dst, long long num_edges, int num_kinds,
            int num_heads, int dim_head, Compute<S>* __restrict__ parts) {
    using T = Compute<S>;
    __shared__ T shared[8][32];
    const int width = num_heads * dim_head;
    const unsigned col_tiles = (num_kinds * width + 31) / 32;
    const long long block = blockIdx.x / col_tiles, begin = block * 256;
    const int column = int(blockIdx.x % col_tiles) * 32 + threadIdx.x, kind = column / width;
    Sum<T> terms;
    if (kind < num_kinds) {
        const S* const x = kind == 0 ? src : kind == 1 ? dst : edge;
        const S* const x_2 = kind == 0 ? src_2 : kind == 1 ? dst_2 : edge_2;
        const I* const offsets = kind == 0 ? src_offsets : kind == 1 ? dst_offsets : edge_offsets;
        const long long before = kind == 0 ? 0 : kind == 1 ? num_src : num_src + num_dst;
        const long long num_rows = kind == 0 ? num_src : kind == 1 ? num_dst : num_edges;
        const long long end = begin + 256 < num_rows ? begin + 256 : num_rows;
        const int j = column - kind * width, h = j / dim_head;
        int i = 0;
        for (long long row = begin + threadIdx.y; row < end; row += 8, i++) {
            T term = T(0);
            if (offsets == nullptr || offsets[row] != offsets[row + 1]) {
                const T* const of_row = sums + (before + row) * per * num_heads + h;
                term = of_row[0] * Storage<S>::value(x[row * width + j]);
                if (x_2 != nullptr) {
                    term += of_row[num_heads] * Storage<S>::value(x_2[row * width + j]);
                }
            }
            terms.add(term, i);
        }
    }
    const T sum = sum_over_y(terms.value(), shared);
    if (threadIdx.y == 0 && kind < num_kinds) {
        parts[block * num_kinds * width + column] = sum;
    }
}
