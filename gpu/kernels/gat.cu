// Graph attention. For every head and position p (an in-edge of i from j, e its row): raw = a_s.x_j + a_d.x_i +
// a_e.f_e, pre = act(raw), post = softmax of pre over the in-edges of i, out_i = sum post x_j. gpu/gat.py states the
// formulas and launches the kernels. Null pointers omit a term or an output; with null edge_ids, rows of edge arrays
// equal positions.
//
// S is the storage type of embeddings and their gradients; scores, sums and weights have type Compute<S>. Rows of
// embeddings are (num_heads, dim_head); post is (num_heads, num_positions), other arrays over positions are
// (num_positions, num_heads). The columns of a lane belong to one head.
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

    __device__ T raw(I p, I i, int h) const { return raw(p, i, src != nullptr ? indices[p] : I(0), h); }
    __device__ T raw(I p, I i, I j, int h) const {
        T sum = src != nullptr ? src[(long long)(j) * num_heads + h] : T(0);
        sum += dst != nullptr ? dst[(long long)(i) * num_heads + h] : T(0);
        return edge != nullptr ? sum + edge[(long long)(edge_ids == nullptr ? p : edge_ids[p]) * num_heads + h] : sum;
    }
};

// Lanes of gat_forward and gat_backward: along the columns of a head, then heads, then positions.
struct HeadLanes {
    int column_bits;
    int head_bits;
    int position_bits;

    __device__ Lanes of_head() const { return {column_bits, 0}; }
    __device__ Lanes of_heads() const { return {column_bits, head_bits}; }
    __device__ Lanes all() const { return {column_bits + head_bits, position_bits}; }
    __device__ int head() const { return threadIdx.x >> column_bits & ((1 << head_bits) - 1); }
    // For quantities without columns, all lanes of a head process its positions in turn.
    __device__ int slots() const { return 1 << (column_bits + position_bits); }
    __device__ int slot() const { return of_head().column() + (all().position() << column_bits); }
    template <class T> __device__ T max_over_slots(T largest) const {
        for (int bit = 0; bit < column_bits + head_bits + position_bits; bit++) {
            if (bit < column_bits || bit >= column_bits + head_bits) {
                const T other = __shfl_xor_sync(0xffffffffu, largest, 1 << bit);
                largest = other > largest ? other : largest;
            }
        }
        return largest;
    }
    template <class T> __device__ T sum_over_slots(T sum) const {
        return sum_over_positions(all(), sum_over_columns(of_head(), sum));
    }
};

// Writes a lane's columns of the sum of a piece: for a whole row to `out`, for a part to its overflow row. gat_finish
// adds the overflow rows before it rounds.
template <class S, class I, int n>
__device__ void store_columns(const RowPartition<I>& partition, long long s, int width, int column,
                              const Pack<Compute<S>, n>& sum, S* out, Compute<S>* overflow) {
    if (partition.is_row(s)) {
        Pack<S, n> rounded;
#pragma unroll
        for (int r = 0; r < n; r++) {
            rounded.at[r] = Storage<S>::rounded(sum.at[r]);
        }
        store_pack(out + s * width + column, rounded);
    } else {
        Compute<S>* const target = overflow + (s - partition.num_rows) * width + column;
#pragma unroll
        for (int r = 0; r < n; r++) {
            target[r] = sum.at[r];
        }
    }
}

// Writes the sums of one head to a row of `count` by num_heads.
template <int count, class T>
__device__ void store_of_head(T* row, int num_heads, int h, T sum, T second_sum) {
#pragma unroll
    for (int i = 0; i < count; i++) {
        row[i * num_heads + h] = i == 0 ? sum : i == 1 ? second_sum : T(0);
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

// What sources, destinations and edges have.
template <class V> struct ByKind {
    V src;
    V dst;
    V edge;

    __device__ V of(int kind) const { return kind == 0 ? src : kind == 1 ? dst : edge; }
};

// ---- scores ---------------------------------------------------------------------------------------------------------

// out[row, h] = a[h].x[row, h] + a_2[h].x_2[row, h] for the rows of sources, then destinations, then edges, each with
// its own weights `a`; one group of lanes per row and head.
template <class S, bool wide>
__global__ void __launch_bounds__(128, row_blocks_per_sm)
gat_project(const Compute<S>* __restrict__ a, const ByKind<const S*> x, const Compute<S>* __restrict__ a_2,
            const ByKind<const S*> x_2, const ByKind<long long> num_rows, int num_heads, int dim_head, int column_bits,
            Compute<S>* __restrict__ out) {
    using T = Compute<S>;
    constexpr int n = pack_elements<S, wide>;
    const Lanes lanes{column_bits, 0};
    const long long i = (long long)(blockIdx.x) * lanes.groups() + lanes.group(), row = i / num_heads;
    const long long end_dst = num_rows.src + num_rows.dst;
    const int h = int(i - row * num_heads), kind = row < num_rows.src ? 0 : row < end_dst ? 1 : 2;
    const bool valid = row < end_dst + num_rows.edge;
    const long long at = i - (kind == 0 ? 0 : kind == 1 ? num_rows.src : end_dst) * num_heads;
    Sum<T> sum;
    for (int pair = 0; pair < 2; pair++) {
        const T* const weights = pair == 0 ? a : a_2;
        const S* const values = (pair == 0 ? x : x_2).of(kind);
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

// stats of every long row from those of its parts; a block processes 32 heads.
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

// ---- output ---------------------------------------------------------------------------------------------------------

// Steps of gat_forward: the statistics of a piece for each head, that is its largest score and the sum of exp(pre -
// largest); then scores and output, which need the statistics of the whole row. A group of lanes performs both for a
// whole row. For parts of long rows they are separate launches, and gat_join combines the statistics in between.
constexpr int statistics_step = STATISTICS_STEP, output_step = OUTPUT_STEP;

template <class S, class I, bool concat>
constexpr int forward_blocks_per_sm = (concat ? few_row_blocks_per_sm<Compute<S>, I> : 4) - int(sizeof(S) == 2);

// Processes the pieces `begin` .. `end` - 1. out[row] is the sum of post x over the positions of the row, with heads
// concatenated if `concat`, else averaged. scores are pre and post of every position. stats[row], (2, num_heads), are
// the statistics of the row; those of parts are rows of `stats_overflow`. Heads wider than a group's columns are
// divided into chunks of columns, one for each block; if `out` is null, all blocks process whole heads.
template <class S, class I, bool wide, bool concat>
__global__ void __launch_bounds__(128, forward_blocks_per_sm<S, I, concat>)
gat_forward(int steps, long long begin, long long end, const S* __restrict__ x, int dim_head,
            const Scores<Compute<S>, I> nodes, const Activation<Compute<S>> act, const RowPartition<I> partition,
            const HeadLanes lanes, long long num_positions, Compute<S>* stats, Compute<S>* stats_overflow,
            Compute<S>* __restrict__ scores, S* __restrict__ out, Compute<S>* __restrict__ overflow) {
    using T = Compute<S>;
    constexpr int n = pack_elements<S, wide>;
    const int num_heads = nodes.num_heads, width = concat ? num_heads * dim_head : dim_head;
    const unsigned tiles = (num_heads + (1 << lanes.head_bits) - 1) >> lanes.head_bits;
    const unsigned chunks = out == nullptr ? 1 : (dim_head + (n << lanes.column_bits) - 1) / (n << lanes.column_bits);
    const unsigned block = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
    const int column = n * ((chunk << lanes.column_bits) + lanes.of_head().column());
    const long long group = (long long)(concat ? block / tiles : block) * lanes.all().groups() + lanes.all().group();
    const long long s = begin + group;
    const RowChunk<I> piece = s < end ? partition.piece(s) : RowChunk<I>{};
    const T lowest = -T(__int_as_float(0x7f800000));  // -infinity
    Sum<T> means[n];
#pragma unroll 1
    for (unsigned tile = concat ? block % tiles : 0; tile < (concat ? block % tiles + 1 : tiles); tile++) {
        const int h = int(tile << lanes.head_bits) + lanes.head(), size = h < num_heads ? piece.size : 0;
        const auto pre = [&](int e) { return act.value(nodes.raw(piece.begin + I(e), piece.row, h)); };
        T shift = T(0), total = T(0);
        if (steps & statistics_step) {
            T largest = lowest;
            for (int e = lanes.slot(); e < size; e += lanes.slots()) {
                const T value = pre(e);
                largest = value > largest ? value : largest;
            }
            largest = lanes.max_over_slots(largest);
            shift = largest == lowest ? T(0) : largest;  // so that exp(-inf) is 0 even if all terms are
            Sum<T> sum;
            int k = 0;
            for (int e = lanes.slot(); e < size; e += lanes.slots(), k++) {
                sum.add(exp(pre(e) - shift), k);
            }
            total = lanes.sum_over_slots(sum.value());
            if (stats != nullptr && h < num_heads && s < end && chunk == 0 && lanes.slot() == 0) {
                T* const target = partition.target(s, 2 * num_heads, stats, stats_overflow) + h;
                target[0] = largest;
                target[num_heads] = total;
            }
        } else if (size > 0) {
            const T* const of_row = stats + (long long)(piece.row) * 2 * num_heads + h;
            shift = of_row[0];
            total = of_row[num_heads];
        }
        if (!(steps & output_step)) {
            continue;
        }
        for (int e = lanes.slot(); e < size && scores != nullptr && chunk == 0; e += lanes.slots()) {
            T* const target = scores + h * num_positions + piece.begin + e;
            target[0] = pre(e);
            target[num_heads * num_positions] = exp(target[0] - shift) / total;
        }
        const bool inside = h < num_heads && column < dim_head;
        Sum<T> sum[n];
        each_position<Source<I>>(
            lanes.all(), piece.size, inside, [&](int e) { return Source<I>{nodes.indices[piece.begin + I(e)]}; },
            [&](const Source<I>(&items)[unroll], const bool(&valid)[unroll], const int(&e)[unroll], int k) {
                Pack<S, n> values[unroll];
                load_rows(x + h * dim_head + column, num_heads * dim_head, items, valid, values);
#pragma unroll
                for (int u = 0; u < unroll; u++) {
                    T post = T(0);
                    if (valid[u]) {
                        const T raw = nodes.raw(piece.begin + I(e[u]), piece.row, items[u].row, h);
                        post = exp(act.value(raw) - shift) / total;
                    }
#pragma unroll
                    for (int r = 0; r < n; r++) {
                        sum[r].add(post * Storage<S>::value(values[u].at[r]), k + u);
                    }
                }
            });
        const Pack<T, n> result = sums_over_positions(lanes.all(), sum);
        if constexpr (concat) {
            if (inside && s < end && lanes.all().position() == 0) {
                store_columns<S, I, n>(partition, s, width, h * dim_head + column, result, out, overflow);
            }
        } else {
#pragma unroll
            for (int r = 0; r < n; r++) {
                means[r].add(sum_over_positions(lanes.of_heads(), result.at[r]), tile);
            }
        }
    }
    if (!concat && (steps & output_step) && s < end && column < dim_head && lanes.head() == 0 &&
        lanes.all().position() == 0) {
        Pack<T, n> mean;
#pragma unroll
        for (int r = 0; r < n; r++) {
            mean.at[r] = means[r].value() / T(num_heads);
        }
        store_columns<S, I, n>(partition, s, width, column, mean, out, overflow);
    }
}

// ---- derivatives ----------------------------------------------------------------------------------------------------

// The softmax: post of every position, (num_heads, num_positions), or if null the statistics to compute it.
template <class T> struct Softmax {
    const T* post;
    const T* stats;  // see gat_forward
    long long num_positions;
};

// The gradient of an embedding's rows, to which a C_1 + a_2 C_2 contributes with the sums C over a row's positions of
// the cotangents of raw and, in second order, of its derivative; and these sums, (1 or 2, num_heads). Parts have
// separate rows.
template <class S> struct RowGradient {
    const Compute<S>* a;
    const Compute<S>* a_2;
    S* out;
    Compute<S>* overflow;
    Compute<S>* sums;
    Compute<S>* sums_overflow;
};

// Quantities of a position and head for the derivatives.
template <class T> struct Deviations {
    T share;      // post
    T raw;
    T raw_dot;
    T of_dots;    // g.x minus its mean
    T of_pre;     // pre's derivative minus its mean
    T dot_2;      // g.x_2

    // The cotangent of post, up to a constant of all in-edges.
    __device__ T grad_post() const { return of_dots * of_pre + dot_2; }
};

// The in-edges of a piece for one head. Each has a record: post and the cotangent of raw or, in second order, postdot,
// the cotangents of raw and of its derivative, and post. Before the cotangents, their places contain g.x and g.x_2.
template <class T, class I, bool second> struct InEdges {
    static constexpr int per_edge = second ? 4 : 2, post = second ? 3 : 0, dot = second ? 0 : 1;

    const Scores<T, I>& nodes;
    const Scores<T, I>& nodes_dot;
    const Activation<T>& act;
    RowChunk<I> piece;
    int h;
    T* coefficients;

    __device__ T* record(int e) const {
        return coefficients + (((long long)(piece.begin) + e) * nodes.num_heads + h) * per_edge;
    }
    __device__ T raw(int e) const { return nodes.raw(piece.begin + I(e), piece.row, h); }
    __device__ T raw_dot(int e) const { return nodes_dot.raw(piece.begin + I(e), piece.row, h); }
    __device__ T share(const Softmax<T>& softmax, int e) const {
        if (softmax.post != nullptr) {
            return softmax.post[h * softmax.num_positions + piece.begin + I(e)];
        }
        const T* const stats = softmax.stats + (long long)(piece.row) * 2 * nodes.num_heads + h;
        return exp(act.value(raw(e)) - stats[0]) / stats[nodes.num_heads];
    }
    __device__ Deviations<T> deviations(int e, bool dots, T mean, T mean_pre) const {
        const T* const from = record(e);
        Deviations<T> d{from[post], raw(e)};
        d.of_dots = dots ? from[dot] - mean : T(0);
        if constexpr (second) {
            d.raw_dot = raw_dot(e);
            d.of_pre = act.slope(d.raw, d.raw_dot) - mean_pre;
            d.dot_2 = dots ? from[dot + 1] : T(0);
        }
        return d;
    }
};

// Writes g.x, and g.x_2 if `second`, of the in-edges of a piece to their records; x_2 may be null. `g` belongs to the
// row of the piece and this head.
template <int n, class S, class I, bool second>
__device__ void write_dots(const InEdges<Compute<S>, I, second>& edges, const HeadLanes& lanes, const S* g, const S* x,
                           const S* x_2, int dim_head, int concat_heads) {
    using T = Compute<S>;
    const int num_heads = edges.nodes.num_heads, width = num_heads * dim_head, first = n * lanes.of_head().column();
    const bool active = edges.h < num_heads;
    Pack<S, n> held{};  // loaded once for all positions
    if (active && edges.piece.size > 0 && first < dim_head) {
        held = load_pack<n>(g + first);
    }
    each_position<Source<I>>(
        lanes.all(), edges.piece.size, active,
        [&](int e) { return Source<I>{edges.nodes.indices[edges.piece.begin + I(e)]}; },
        [&](const Source<I>(&items)[unroll], const bool(&valid)[unroll], const int(&e)[unroll], int) {
#pragma unroll
            for (int pair = 0; pair < (second ? 2 : 1); pair++) {
                const S* const values = pair == 0 ? x : x_2;
                Sum<T> sums[unroll];
                int tile = 0;
#pragma unroll 1
                for (int c = first; c < dim_head && values != nullptr; c += n << lanes.column_bits, tile++) {
                    Pack<S, n> rows[unroll], mine = held;
                    if (c != first && valid[0]) {
                        mine = load_pack<n>(g + c);
                    }
                    load_rows(values + edges.h * dim_head + c, width, items, valid, rows);
#pragma unroll
                    for (int u = 0; u < unroll; u++) {
                        T sum = T(0);
#pragma unroll
                        for (int r = 0; r < n; r++) {
                            sum += Storage<S>::value(mine.at[r]) * Storage<S>::value(rows[u].at[r]);
                        }
                        sums[u].add(sum, tile);
                    }
                }
                T dots[unroll];
#pragma unroll
                for (int u = 0; u < unroll; u++) {
                    dots[u] = sums[u].value();
                }
                sum_over_columns(lanes.of_head(), dots);
#pragma unroll
                for (int u = 0; u < unroll; u++) {
                    if (valid[u] && lanes.of_head().column() == 0) {
                        edges.record(e[u])[edges.dot + pair] = dots[u] / (concat_heads ? T(1) : T(num_heads));
                    }
                }
            }
        });
}

// Steps of gat_backward: dots and means; the mean of the cotangent of post (second order); cotangents and their sums. A
// group of lanes performs all of them for a whole row and some heads. For parts of long rows, they are separate
// launches, because each step needs means over whole rows from the previous one.
constexpr int first_step = FIRST_STEP, second_step = SECOND_STEP, last_step = LAST_STEP, all_steps = ALL_STEPS;

template <class S, class I, bool second>
constexpr int backward_blocks_per_sm = few_row_blocks_per_sm<Compute<S>, I> - (second ? 2 : 1);

// Writes the records of all in-edges (see InEdges) and the gradient of the destinations; without g, dots are zero. The
// means of long rows and the contributions of their parts are (num_heads) for the dots or, in second order, (3,
// num_heads) for the dots, pre's derivative and the cotangent of post.
template <class S, class I, bool wide, bool second>
__global__ void __launch_bounds__(128, backward_blocks_per_sm<S, I, second>)
gat_backward(int steps, const S* __restrict__ g, const S* __restrict__ x, const S* __restrict__ x_2, int dim_head,
             int concat_heads, const Softmax<Compute<S>> softmax, const Scores<Compute<S>, I> nodes,
             const Scores<Compute<S>, I> nodes_dot, const Activation<Compute<S>> act, const RowPartition<I> partition,
             const HeadLanes lanes, Compute<S>* coefficients, const Compute<S>* means, Compute<S>* parts_of_means,
             const RowGradient<S> target) {
    using T = Compute<S>;
    constexpr int n = pack_elements<S, wide>, orders = second ? 2 : 1;
    const int num_heads = nodes.num_heads;
    const unsigned tiles = (num_heads + (1 << lanes.head_bits) - 1) >> lanes.head_bits;
    const int h = int(blockIdx.x % tiles << lanes.head_bits) + lanes.head();
    const bool whole = steps == all_steps;
    const long long s = (whole ? 0 : partition.num_rows) + (long long)(blockIdx.x / tiles) * lanes.all().groups() +
                        lanes.all().group();
    const bool valid = h < num_heads && s < partition.num_pieces && partition.is_row(s) == whole;
    const bool writes = valid && lanes.slot() == 0;
    const InEdges<T, I, second> edges{nodes, nodes_dot, act, partition.piece(s), h, coefficients};
    const int size = valid ? edges.piece.size : 0;
    const long long row = edges.piece.row;
    T* const of_part = whole ? nullptr : parts_of_means + (s - partition.num_rows) * (second ? 3 : 1) * num_heads;
    T mean = T(0), mean_pre = T(0), mean_post = T(0);
    if (steps & first_step) {
        if (g != nullptr) {
            const S* const of_head = g + (concat_heads ? row * num_heads + h : row) * dim_head;
            write_dots<n, S, I, second>(edges, lanes, of_head, x, x_2, dim_head, concat_heads);
        }
        __syncwarp();
        Sum<T> of_dots, of_pre;
        int k = 0;
        for (int e = lanes.slot(); e < size; e += lanes.slots(), k++) {
            const T share = edges.share(softmax, e);
            edges.record(e)[edges.post] = share;
            of_dots.add(g != nullptr ? share * edges.record(e)[edges.dot] : T(0), k);
            of_pre.add(second ? share * act.slope(edges.raw(e), edges.raw_dot(e)) : T(0), k);
        }
        mean = lanes.sum_over_slots(of_dots.value());
        mean_pre = second ? lanes.sum_over_slots(of_pre.value()) : T(0);
        if (!whole && writes) {
            store_of_head<second ? 3 : 1>(of_part, num_heads, h, mean, mean_pre);
        }
    } else if (size > 0) {
        const T* const of_row = means + row * (second ? 3 : 1) * num_heads + h;
        mean = of_row[0];
        mean_pre = second ? of_row[num_heads] : T(0);
        mean_post = second && steps == last_step ? of_row[2 * num_heads] : T(0);
    }
    if (second && (steps & second_step)) {
        Sum<T> of_post;
        int k = 0;
        for (int e = lanes.slot(); e < size; e += lanes.slots(), k++) {
            const Deviations<T> d = edges.deviations(e, g != nullptr, mean, mean_pre);
            of_post.add(d.share * d.grad_post(), k);
        }
        mean_post = lanes.sum_over_slots(of_post.value());
        if (!whole && writes) {
            of_part[2 * num_heads + h] = mean_post;  // the others are still contributions of this part
        }
    }
    if (!(steps & last_step)) {
        return;
    }
    Sum<T> of_1, of_2;
    int k = 0;
    for (int e = lanes.slot(); e < size; e += lanes.slots(), k++) {
        const Deviations<T> d = edges.deviations(e, g != nullptr, mean, mean_pre);
        T* const to = edges.record(e);
        const T grad_raw = act.slope(d.raw, d.share * d.of_dots);
        to[edges.dot + (second ? 2 : 0)] = grad_raw;
        of_2.add(grad_raw, k);
        if constexpr (second) {
            const T grad = act.slope(d.raw, d.share * (d.grad_post() - mean_post)) +
                           act.curvature(d.raw, d.raw_dot * (d.share * d.of_dots));
            to[0] = d.share * d.of_pre;
            to[1] = grad;
            of_1.add(grad, k);
        }
    }
    const T c_2 = lanes.sum_over_slots(of_2.value()), c_1 = second ? lanes.sum_over_slots(of_1.value()) : c_2;
    if (target.sums != nullptr && writes) {
        T* const to = partition.target(s, orders * num_heads, target.sums, target.sums_overflow);
        store_of_head<orders>(to, num_heads, h, c_1, c_2);
    }
    const int end = target.out != nullptr && valid ? dim_head : 0;
    for (int c = n * lanes.of_head().column(); c < end; c += n << lanes.column_bits) {
        Pack<T, n> total{};
#pragma unroll
        for (int r = 0; r < n && size > 0; r++) {  // skip weights without edges, which may be NaN
            const int column = h * dim_head + c + r;
            total.at[r] = target.a[column] * c_1 + (target.a_2 != nullptr ? target.a_2[column] * c_2 : T(0));
        }
        if (lanes.all().position() == 0) {
            store_columns<S, I, n>(partition, s, num_heads * dim_head, h * dim_head + c, total, target.out,
                                   target.overflow);
        }
    }
}

template <class S, bool concat> constexpr int aggregate_blocks_per_sm = sizeof(S) == 2 ? 3 + concat : 5;

// Second order of the output, out[row] = sum postdot x + post x_2 over its positions, of the records in `coefficients`
// (see InEdges); x_2 may be null. Heads are concatenated if `concat`, else averaged.
template <class S, class I, bool wide, bool concat>
__global__ void __launch_bounds__(128, aggregate_blocks_per_sm<S, concat>)
gat_aggregate(const Compute<S>* __restrict__ coefficients, const S* __restrict__ x, const S* __restrict__ x_2,
              const RowPartition<I> partition, const I* __restrict__ indices, int num_heads, int dim_head,
              const Lanes lanes, S* __restrict__ out, Compute<S>* __restrict__ overflow) {
    using T = Compute<S>;
    using Records = InEdges<T, I, true>;
    constexpr int n = pack_elements<S, wide>;
    const int stride = num_heads * dim_head, width = concat ? stride : dim_head;
    const TilePosition<n> place(lanes, width);
    const RowChunk<I> piece = partition.piece(place.piece);
    const bool inside = place.column < width;
    const int first = concat ? place.column / dim_head : 0, heads = concat ? 1 : num_heads;
    Sum<T> sum[n];
    each_position<Source<I>>(
        lanes, piece.size, inside, [&](int e) { return Source<I>{indices[piece.begin + I(e)]}; },
        [&](const Source<I>(&items)[unroll], const bool(&valid)[unroll], const int(&e)[unroll], int k) {
            Pack<T, n> terms[unroll] = {};
#pragma unroll 1
            for (int h = 0; h < heads; h++) {
#pragma unroll
                for (int pair = 0; pair < 2; pair++) {
                    const S* const embedding = pair == 0 ? x : x_2;
                    if (embedding == nullptr) {
                        continue;
                    }
                    const T* const c = coefficients + (piece.begin * (long long)(num_heads) + first + h) *
                                       Records::per_edge + (pair == 0 ? 0 : Records::post);
                    T factor[unroll];
                    Pack<S, n> values[unroll];
#pragma unroll
                    for (int u = 0; u < unroll; u++) {
                        factor[u] = valid[u] ? c[e[u] * num_heads * Records::per_edge] : T(0);
                    }
                    load_rows(embedding + place.column + h * dim_head, stride, items, valid, values);
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
    Pack<T, n> total = sums_over_positions(lanes, sum, T(heads));
    if (place.piece < partition.num_pieces && inside && lanes.position() == 0) {
        store_columns<S, I, n>(partition, place.piece, width, place.column, total, out, overflow);
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

// With the record c of a position and head (see InEdges) and its sums C over the positions of a row (in `order`, if
// given): out[row, h] = sum c_0 g[dst, h] + a[h] C_1 + a_2[h] C_2, and sums[row] = C_1 and, in second order, C_2 of
// each head.
template <class S, class I, bool wide, bool second>
__global__ void __launch_bounds__(128, to_rows_blocks_per_sm<S, I>)
gat_to_rows(const Compute<S>* __restrict__ coefficients, const S* __restrict__ g, const RowPartition<I> partition,
            const I* __restrict__ order, const I* __restrict__ destinations, int num_heads, int dim_head,
            int concat_heads, const Lanes lanes, const RowGradient<S> target) {
    using T = Compute<S>;
    constexpr int n = pack_elements<S, wide>, per_edge = InEdges<T, I, second>::per_edge;
    const int width = num_heads * dim_head;
    const TilePosition<n> place(lanes, width);
    const RowChunk<I> piece = partition.piece(place.piece);
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
        [&](const Cotangent<I>(&items)[unroll], const bool(&valid)[unroll], const int(&)[unroll], int k) {
            Pack<T, per_edge> c[unroll];
#pragma unroll
            for (int u = 0; u < unroll; u++) {
                c[u] = {};
                if (valid[u]) {
                    c[u] = load_row<per_edge>(coefficients + h * per_edge, items[u].position, num_heads * per_edge);
                }
            }
            if (g != nullptr) {
                Pack<S, n> values[unroll];
                load_rows(g + g_column, g_width, items, valid, values);
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
    Pack<T, n> total = sums_over_positions(lanes, of_g, concat_heads ? T(1) : T(num_heads));
    if (place.piece >= partition.num_pieces || !inside || lanes.position() != 0) {
        return;
    }
    if (target.sums != nullptr && within == 0) {
        constexpr int orders = second ? 2 : 1;
        T* const to = partition.target(place.piece, orders * num_heads, target.sums, target.sums_overflow);
        store_of_head<orders>(to, num_heads, h, c_1, c_2);
    }
    if (target.out != nullptr) {
#pragma unroll
        for (int r = 0; r < n && piece.size > 0; r++) {  // skip weights without edges, which may be NaN
            total.at[r] += target.a[place.column + r] * c_1;
            total.at[r] += target.a_2 != nullptr ? target.a_2[place.column + r] * c_2 : T(0);
        }
        store_columns<S, I, n>(partition, place.piece, width, place.column, total, target.out, target.overflow);
    }
}

// parts[chunk, kind, h, :] = sum over the chunk's 256 rows of sums[row, 0, h] x[row, h] + sums[row, 1, h] x_2[row, h],
// for the rows of each kind: sources, destinations and edges, which are consecutive in `sums`. Rows without positions
// are skipped. Without offsets, every row has one position. A block processes 32 columns.
template <class S, class I>
__global__ void __launch_bounds__(256)
gat_weights(const Compute<S>* __restrict__ sums, int per, const ByKind<const S*> x, const ByKind<const S*> x_2,
            const ByKind<const I*> offsets, const ByKind<long long> num_rows, int num_kinds, int num_heads,
            int dim_head, Compute<S>* __restrict__ parts) {
    using T = Compute<S>;
    __shared__ T shared[8][32];
    const int width = num_heads * dim_head;
    const unsigned col_tiles = (num_kinds * width + 31) / 32;
    const long long block = blockIdx.x / col_tiles, begin = block * 256;
    const int column = int(blockIdx.x % col_tiles) * 32 + threadIdx.x, kind = column / width;
    Sum<T> terms;
    if (kind < num_kinds) {
        const S* const values = x.of(kind);
        const S* const values_2 = x_2.of(kind);
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
                if (values_2 != nullptr) {
                    term += of_row[num_heads] * Storage<S>::value(values_2[row * width + j]);
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
