// Graph attention. For every head and position p (an in-edge of i from j, edge row e): score = a_s.x_j + a_d.x_i +
// a_e.f_e, logit = act(score), alpha = softmax of the logits over the in-edges of i, out_i = sum alpha x_j. gpu/gat.py
// states the formulas and launches the kernels. A null pointer omits a term or an output; if edge_ids is null, the edge
// row of each position is the position itself.
//
// S is the storage type of embeddings and their gradients; scores, sums and weights have type Compute<S>. Rows of
// embeddings are (num_heads, dim_head); alpha is (num_heads, num_positions), other arrays over positions are
// (num_positions, num_heads). All columns of a lane belong to one head.
#include "gat_backward.cuh"
#include "gat_heads.cuh"

// For every long row: out[row] = sum of the overflow rows of its parts.
template <class S, class I>
__global__ void __launch_bounds__(256)
reduce_long_rows(const Compute<S>* __restrict__ overflow, const I* __restrict__ long_rows, long long num_long,
                 int width, S* __restrict__ out) {
    using T = Compute<S>;
    __shared__ T sums[8][32];
    const LongRow<I> long_row(long_rows, num_long, width);
    const T sum = long_row.sum_parts(overflow, width, sums);
    if (threadIdx.y == 0 && long_row.column < width) {
        out[long_row.row * width + long_row.column] = Storage<S>::rounded(sum);
    }
}

// One value for each of sources, destinations and edges.
template <class V> struct SrcDstEdgeValues {
    V src;
    V dst;
    V edge;

    __device__ V of(int kind) const { return kind == 0 ? src : kind == 1 ? dst : edge; }
};

// ---- scores ---------------------------------------------------------------------------------------------------------

// out[row, h] = a[h].x[row, h] + a_2[h].x_2[row, h] for the rows of sources, then destinations, then edges, each kind
// with its own weights; one group of lanes per row and head. For tangents, one factor of each product is a tangent.
template <class S, bool wide>
__global__ void __launch_bounds__(THREADS, row_blocks_per_sm)
gat_project(const Compute<S>* __restrict__ a, const SrcDstEdgeValues<const S*> x, const Compute<S>* __restrict__ a_2,
            const SrcDstEdgeValues<const S*> x_2, const SrcDstEdgeValues<long long> num_rows, int num_heads,
            int dim_head, int column_bits, Compute<S>* __restrict__ out) {
    using T = Compute<S>;
    constexpr int n = pack_elements<S, wide>;
    const LaneLayout lanes{column_bits, 0};
    const long long i = (long long)(blockIdx.x) * lanes.groups() + lanes.group(), row = i / num_heads;
    const long long end_dst = num_rows.src + num_rows.dst;
    const int h = int(i - row * num_heads), kind = row < num_rows.src ? 0 : row < end_dst ? 1 : 2;
    const bool valid = row < end_dst + num_rows.edge;
    const long long at = i - (kind == 0 ? 0 : kind == 1 ? num_rows.src : end_dst) * num_heads;
    Sum<T> sum;
    for (int pair = 0; pair < 2; pair++) {
        const T* const weights = pair == 0 ? a : a_2;
        const S* const values = pair == 0 ? x.of(kind) : x_2.of(kind);
        if (weights != nullptr && values != nullptr && valid) {
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
    if (valid && lanes.column() == 0) {
        out[i] = total;
    }
}

// Combines the softmax statistics of the parts of every long row; a block processes 32 heads.
template <class T, class I>
__global__ void __launch_bounds__(256)
combine_softmax_stats(const T* __restrict__ overflow, const I* __restrict__ long_rows, long long num_long,
                      int num_heads, T* __restrict__ stats) {
    __shared__ T peaks[8][32];
    __shared__ T sums[8][32];
    const LongRow<I> long_row(long_rows, num_long, num_heads);
    const int h = min(long_row.column, num_heads - 1);
    T peak = overflow[long_row.first * 2 * num_heads + h];
    for (long long t = long_row.first + threadIdx.y; t < long_row.end; t += 8) {
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
    for (long long t = long_row.first + threadIdx.y; t < long_row.end; t += 8) {
        const T* const part = overflow + t * 2 * num_heads + h;
        terms.add(part[num_heads] * exp(part[0] - peak), i++);
    }
    const T sum = sum_over_y(terms.value(), sums);
    if (threadIdx.y == 0 && long_row.column < num_heads) {
        T* const head = stats + long_row.row * 2 * num_heads + h;
        head[0] = peak;
        head[num_heads] = sum;
    }
}

// ---- output ---------------------------------------------------------------------------------------------------------

// The softmax of a row for one head: alpha = exp(logit - shift) / total.
template <class T> struct SoftmaxStats {
    T shift;
    T total;

    __device__ T alpha(T logit) const { return exp(logit - shift) / total; }
};

// Step 1: returns the softmax of the in-edges of a piece. Unless `target` is null, stores the largest logit in
// target[0] and the sum of exp(logit - largest) in target[stride].
template <class T, class I>
__device__ SoftmaxStats<T> compute_piece_softmax_stats(const HeadEdges<T, I>& edges, const HeadLaneLayout& lanes,
                                                       T* target, int stride) {
    const T lowest = -T(__int_as_float(0x7f800000));  // -infinity
    T largest = lowest;
    for (int e = lanes.slot(); e < edges.size; e += lanes.slots()) {
        const T value = edges.logit(e);
        largest = value > largest ? value : largest;
    }
    largest = lanes.max_over_slots(largest);
    const T shift = largest == lowest ? T(0) : largest;  // avoids NaN if all logits are -infinity
    Sum<T> sum;
    int k = 0;
    for (int e = lanes.slot(); e < edges.size; e += lanes.slots(), k++) {
        sum.add(exp(edges.logit(e) - shift), k);
    }
    const T total = lanes.sum_over_slots(sum.value());
    if (target != nullptr) {
        target[0] = largest;
        target[stride] = total;
    }
    return {shift, total};
}

// Step 2: sums alpha x over the in-edges of a piece for a lane's columns of x, whose rows have `width` elements.
template <int n, class S, class I>
__device__ Pack<Compute<S>, n> sum_weighted_sources(const HeadEdges<Compute<S>, I>& edges, const HeadLaneLayout& lanes,
                                                    const SoftmaxStats<Compute<S>>& softmax, const S* x, int width,
                                                    bool lane_active) {
    using T = Compute<S>;
    Sum<T> sum[n];
    for_each_position<SourceItem<I>>(
        lanes.all(), edges.piece.size, lane_active, [&](int e) { return edges.source(e); },
        [&](const SourceItem<I>(&items)[unroll], const bool(&valid)[unroll], const int(&e)[unroll], int k) {
            Pack<S, n> values[unroll];
            load_item_rows(x, width, items, valid, values);
#pragma unroll
            for (int u = 0; u < unroll; u++) {
                T alpha = T(0);
                if (valid[u]) {
                    const I p = edges.piece.begin + I(e[u]);
                    const T score = edges.scores.score(p, edges.piece.row, items[u].row, edges.h);
                    alpha = softmax.alpha(edges.act.value(score));
                }
#pragma unroll
                for (int r = 0; r < n; r++) {
                    sum[r].add(alpha * Storage<S>::value(values[u].at[r]), k + u);
                }
            }
        });
    return sum_columns_over_positions(lanes.all(), sum);
}

// Steps of gat_forward: first the statistics of a piece for each head (the largest logit and the sum of exp(logit -
// largest)); then scores and output, which need the statistics of the whole row. A group of lanes performs both steps
// for a whole row. For parts of long rows, the steps are separate launches, and combine_softmax_stats combines the
// statistics in between.

template <class S, class I, bool concat>
constexpr int forward_blocks_per_sm = (concat ? few_row_blocks_per_sm<Compute<S>, I> : 4) - int(sizeof(S) == 2);

// Computes the output of pieces `begin` .. `end` - 1, with heads concatenated if `concat`, else averaged. Heads wider
// than a group's columns are divided into chunks of columns, one for each block; if `out` is null, each block processes
// whole heads.
//   steps           the steps to perform: both for whole rows, one of them for the parts of long rows
//   x               embedding of the sources, (num_src, num_heads, dim_head)
//   scores          scores by node and edge row
//   partition       positions by destination
//   stats           statistics of every row, (num_dst, 2, num_heads): input of OUTPUT_STEP alone, else output or null
//   stats_overflow  statistics of every part, written
//   softmax_scores  logit and alpha of every position, (2, num_heads, num_positions), written
//   out             sum alpha x of every row, written
//   overflow        sum alpha x of every part, written
template <class S, class I, bool wide, bool concat>
__global__ void __launch_bounds__(THREADS, forward_blocks_per_sm<S, I, concat>)
gat_forward(int steps, long long begin, long long end, const S* __restrict__ x, int dim_head,
            const Scores<Compute<S>, I> scores, const Activation<Compute<S>> act, const RowPartition<I> partition,
            const HeadLaneLayout lanes, long long num_positions, Compute<S>* stats, Compute<S>* stats_overflow,
            Compute<S>* __restrict__ softmax_scores, S* __restrict__ out, Compute<S>* __restrict__ overflow) {
    using T = Compute<S>;
    constexpr int n = pack_elements<S, wide>;
    const int num_heads = scores.num_heads, stride = num_heads * dim_head, width = concat ? stride : dim_head;
    const unsigned tiles = (num_heads + (1 << lanes.head_bits) - 1) >> lanes.head_bits;
    const unsigned chunks = out == nullptr ? 1 : (dim_head + (n << lanes.column_bits) - 1) / (n << lanes.column_bits);
    const unsigned block = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
    const int column = n * ((chunk << lanes.column_bits) + lanes.of_head().column());
    const long long group = (long long)(concat ? block / tiles : block) * lanes.all().groups() + lanes.all().group();
    const long long s = begin + group;
    const RowPiece<I> piece = s < end ? partition.piece(s) : RowPiece<I>{};
    Sum<T> means[n];
#pragma unroll 1
    for (unsigned tile = concat ? block % tiles : 0; tile < (concat ? block % tiles + 1 : tiles); tile++) {
        const int h = int(tile << lanes.head_bits) + lanes.head();
        const HeadEdges<T, I> edges{scores, act, piece, h, h < num_heads ? piece.size : 0};
        SoftmaxStats<T> softmax{};
        if (steps & STATISTICS_STEP) {
            const bool writes = stats != nullptr && h < num_heads && s < end && chunk == 0 && lanes.slot() == 0;
            T* const target = writes ? partition.output_address(s, 2 * num_heads, stats, stats_overflow) + h : nullptr;
            softmax = compute_piece_softmax_stats(edges, lanes, target, num_heads);
        } else if (edges.size > 0) {
            const T* const of_row = stats + (long long)(piece.row) * 2 * num_heads + h;
            softmax = {of_row[0], of_row[num_heads]};
        }
        if (!(steps & OUTPUT_STEP)) {
            continue;
        }
        // Moving this loop into a function would take 20 more registers.
        for (int e = lanes.slot(); e < edges.size && softmax_scores != nullptr && chunk == 0; e += lanes.slots()) {
            T* const target = softmax_scores + h * num_positions + piece.begin + e;
            target[0] = edges.logit(e);
            target[num_heads * num_positions] = softmax.alpha(target[0]);
        }
        const bool inside = h < num_heads && column < dim_head;
        const Pack<T, n> sum = sum_weighted_sources<n>(edges, lanes, softmax, x + h * dim_head + column, stride,
                                                       inside);
        if constexpr (concat) {
            if (inside && s < end && lanes.all().position() == 0) {
                store_piece_columns<S, I, n>(partition, s, width, h * dim_head + column, sum, out, overflow);
            }
        } else {
#pragma unroll
            for (int r = 0; r < n; r++) {
                means[r].add(sum_over_positions(lanes.of_heads(), sum.at[r]), tile);
            }
        }
    }
    const bool writes = !concat && (steps & OUTPUT_STEP) && s < end && column < dim_head;
    if (writes && lanes.head() == 0 && lanes.all().position() == 0) {
        store_piece_columns<S, I, n>(partition, s, width, column, divide_sums(means, T(num_heads)), out, overflow);
    }
}

// ---- derivatives ----------------------------------------------------------------------------------------------------

template <class S, bool concat> constexpr int aggregate_blocks_per_sm = sizeof(S) == 2 ? 3 + concat : 5;

// Computes out[row] = sum of alpha_dot x + alpha x_dot over the row's positions, for second derivatives. Heads are
// concatenated if `concat`, else averaged.
//   records     alpha_dot and alpha of every position and head (see InEdgeRecords)
//   x, x_dot    embedding of the sources and its tangent, (num_src, num_heads, dim_head); x_dot may be null
//   partition   positions by destination
//   indices     source of every position
//   out         out_dot of every row, written
//   overflow    out_dot of every part, written
template <class S, class I, bool wide, bool concat>
__global__ void __launch_bounds__(THREADS, aggregate_blocks_per_sm<S, concat>)
gat_output_tangent(const Compute<S>* __restrict__ records, const S* __restrict__ x, const S* __restrict__ x_dot,
                   const RowPartition<I> partition, const I* __restrict__ indices, int num_heads, int dim_head,
                   const LaneLayout lanes, S* __restrict__ out, Compute<S>* __restrict__ overflow) {
    using T = Compute<S>;
    using Records = InEdgeRecords<T, I, true>;
    constexpr int n = pack_elements<S, wide>;
    const int stride = num_heads * dim_head, width = concat ? stride : dim_head;
    const LaneAssignment<n> place(lanes, width);
    const RowPiece<I> piece = partition.piece(place.piece);
    const bool inside = place.column < width;
    const int first = concat ? place.column / dim_head : 0, heads = concat ? 1 : num_heads;
    Sum<T> sum[n];
    for_each_position<SourceItem<I>>(
        lanes, piece.size, inside, [&](int e) { return SourceItem<I>{indices[piece.begin + I(e)]}; },
        [&](const SourceItem<I>(&items)[unroll], const bool(&valid)[unroll], const int(&e)[unroll], int k) {
            Pack<T, n> terms[unroll] = {};
#pragma unroll 1
            for (int h = 0; h < heads; h++) {
#pragma unroll
                for (int pair = 0; pair < 2; pair++) {
                    const S* const embedding = pair == 0 ? x : x_dot;
                    if (embedding == nullptr) {
                        continue;
                    }
                    const T* const c = records + (piece.begin * (long long)(num_heads) + first + h) *
                                       Records::per_edge + (pair == 0 ? 0 : Records::alpha_at);
                    T factor[unroll];
                    Pack<S, n> values[unroll];
#pragma unroll
                    for (int u = 0; u < unroll; u++) {
                        factor[u] = valid[u] ? c[e[u] * num_heads * Records::per_edge] : T(0);
                    }
                    load_item_rows(embedding + place.column + h * dim_head, stride, items, valid, values);
#pragma unroll
                    for (int u = 0; u < unroll; u++) {
#pragma unroll
                        for (int r = 0; r < n; r++) {
                            terms[u].at[r] += factor[u] * Storage<S>::value(values[u].at[r]);
                        }
                    }
                }
            }
#pragma unroll
            for (int u = 0; u < unroll; u++) {
#pragma unroll
                for (int r = 0; r < n; r++) {
                    sum[r].add(terms[u].at[r], k + u);
                }
            }
        });
    Pack<T, n> total = sum_columns_over_positions(lanes, sum, T(heads));
    if (place.piece < partition.num_pieces && inside && lanes.position() == 0) {
        store_piece_columns<S, I, n>(partition, place.piece, width, place.column, total, out, overflow);
    }
}

// A position and the corresponding row of g.
template <class I> struct GradientRowItem {
    I row;
    I position;

    __device__ GradientRowItem shuffle_from_lane(int lane, int lanes) const {
        return {__shfl_sync(0xffffffffu, row, lane, lanes), __shfl_sync(0xffffffffu, position, lane, lanes)};
    }
};

template <class S, class I>
constexpr int to_rows_blocks_per_sm = few_row_blocks_per_sm<Compute<S>, I> - int(sizeof(S) == 2);

// Computes the gradient of an embedding. With the record c of a position and head and the sums C of the records over
// the positions of a row: out[row, h] = sum c_0 g[dst, h] + a[h] C_1 + a_dot[h] C_2, and sums[row] = C_1 and, if
// `second`, C_2.
//   records        records of every position and head (see InEdgeRecords)
//   g              gradient of the output, (num_dst, num_heads or 1, dim_head); null: zero
//   partition      positions by source, by destination or by edge row
//   order          position of every entry of a row; null: the entry itself
//   destinations   destination of every position
//   concat_heads whether heads are concatenated in the output, rather than averaged
//   target         weights, and gradient of the rows, written
template <class S, class I, bool wide, bool second>
__global__ void __launch_bounds__(THREADS, to_rows_blocks_per_sm<S, I>)
gat_embedding_gradient(const Compute<S>* __restrict__ records, const S* __restrict__ g, const RowPartition<I> partition,
                       const I* __restrict__ order, const I* __restrict__ destinations, int num_heads, int dim_head,
                       int concat_heads, const LaneLayout lanes, const EmbeddingGradientTarget<S> target) {
    using T = Compute<S>;
    constexpr int n = pack_elements<S, wide>, per_edge = InEdgeRecords<T, I, second>::per_edge;
    const int width = num_heads * dim_head;
    const LaneAssignment<n> place(lanes, width);
    const RowPiece<I> piece = partition.piece(place.piece);
    const bool inside = place.column < width;
    const int h = place.column / dim_head, within = place.column - h * dim_head;
    const int g_width = concat_heads ? width : dim_head, g_column = concat_heads ? place.column : within;
    Sum<T> of_g[n], of_1, of_2;
    for_each_position<GradientRowItem<I>>(
        lanes, piece.size, inside,
        [&](int e) {
            const I p = order == nullptr ? piece.begin + I(e) : order[piece.begin + I(e)];
            return GradientRowItem<I>{g == nullptr ? I(0) : destinations[p], p};
        },
        [&](const GradientRowItem<I>(&items)[unroll], const bool(&valid)[unroll], const int(&)[unroll], int k) {
            Pack<T, per_edge> c[unroll];
#pragma unroll
            for (int u = 0; u < unroll; u++) {
                c[u] = {};
                if (valid[u]) {
                    c[u] = load_row<per_edge>(records + h * per_edge, items[u].position, num_heads * per_edge);
                }
            }
            if (g != nullptr) {
                Pack<S, n> values[unroll];
                load_item_rows(g + g_column, g_width, items, valid, values);
#pragma unroll
                for (int u = 0; u < unroll; u++) {
#pragma unroll
                    for (int r = 0; r < n; r++) {
                        of_g[r].add(c[u].at[0] * Storage<S>::value(values[u].at[r]), k + u);
                    }
                }
            }
#pragma unroll
            for (int u = 0; u < unroll; u++) {
                of_1.add(c[u].at[1], k + u);
                of_2.add(second ? c[u].at[per_edge - 2] : T(0), k + u);
            }
        });
    const T c_1 = sum_over_positions(lanes, of_1.value());
    const T c_2 = second ? sum_over_positions(lanes, of_2.value()) : T(0);
    Pack<T, n> total = sum_columns_over_positions(lanes, of_g, concat_heads ? T(1) : T(num_heads));
    if (place.piece >= partition.num_pieces || !inside || lanes.position() != 0) {
        return;
    }
    if (target.sums != nullptr && within == 0) {
        constexpr int orders = second ? 2 : 1;
        T* const to = partition.output_address(place.piece, orders * num_heads, target.sums, target.sums_overflow);
        store_head_sums<orders>(to, num_heads, h, c_1, c_2);
    }
    if (target.out != nullptr) {
#pragma unroll
        for (int r = 0; r < n && piece.size > 0; r++) {  // rows without edges skip the weights, which may be NaN
            total.at[r] += target.a[place.column + r] * c_1;
            total.at[r] += target.a_dot != nullptr ? target.a_dot[place.column + r] * c_2 : T(0);
        }
        store_piece_columns<S, I, n>(partition, place.piece, width, place.column, total, target.out, target.overflow);
    }
}

// parts[chunk, kind, h, :] = sum over the chunk's 256 rows of sums[row, 0, h] x[row, h] + sums[row, 1, h] x_dot[row,
// h], for the rows of each kind: sources, destinations and edges, which are consecutive in `sums`. Rows without
// positions are skipped. Without offsets, every row has one position. A block processes 32 columns.
template <class S, class I>
__global__ void __launch_bounds__(256)
gat_weight_gradient_parts(const Compute<S>* __restrict__ sums, int per, const SrcDstEdgeValues<const S*> x,
                          const SrcDstEdgeValues<const S*> x_dot, const SrcDstEdgeValues<const I*> offsets,
                          const SrcDstEdgeValues<long long> num_rows, int num_kinds, int num_heads, int dim_head,
                          Compute<S>* __restrict__ parts) {
    using T = Compute<S>;
    __shared__ T shared[8][32];
    const int width = num_heads * dim_head;
    const unsigned col_tiles = (num_kinds * width + 31) / 32;
    const long long block = blockIdx.x / col_tiles, begin = block * 256;
    const int column = int(blockIdx.x % col_tiles) * 32 + threadIdx.x, kind = column / width;
    Sum<T> terms;
    if (kind < num_kinds) {
        const S* const values = x.of(kind);
        const S* const values_dot = x_dot.of(kind);
        const I* const offset = offsets.of(kind);
        const long long before = kind == 0 ? 0 : kind == 1 ? num_rows.src : num_rows.src + num_rows.dst;
        const long long end = begin + 256 < num_rows.of(kind) ? begin + 256 : num_rows.of(kind);
        const int j = column - kind * width, h = j / dim_head;
        int i = 0;
        for (long long row = begin + threadIdx.y; row < end; row += 8, i++) {
            T term = T(0);
            if (offset == nullptr || offset[row] != offset[row + 1]) {
                const T* const of_row = sums + (before + row) * per * num_heads + h;
                term = of_row[0] * Storage<S>::value(values[row * width + j]);
                if (values_dot != nullptr) {
                    term += of_row[num_heads] * Storage<S>::value(values_dot[row * width + j]);
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
