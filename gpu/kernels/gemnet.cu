// GemNet-OC's efficient bilinear. Per edge B[s,n] = sum over its triplets t of sph[t,s] m[t,n] and, per output,
// P[c,n] = sum over its edges and over s of R[e,c,s] B[s,n], R = rad_W1; the rest is a matrix product. gpu/gemnet.py
// states the formulas and launches the kernels. A column of a lane is number c + 32 z, in names too.
//
// A unit is a piece of a row (see sums.cuh): a piece of the triplets of an edge or, with triplet_offsets, of the edges
// of an atom, each with all its triplets. Kernels have a warp for each unit; units, and arrays over units, start at
// number `first`. Null pointers omit a term or an output.
//
// A lane has `cols` columns of m, c, c + 32, ..., and keeps, for these, `rows` rows of B or of its gradient G, g_rows,
// in registers. The other factor of a product is the same for all lanes; `step` of its rows are in shared memory at once.
#include "matrices.cuh"

struct Sizes {
    int spherical;
    int emb_in;
};

// The edges of a unit and the triplets of an edge.
template <class I> struct Unit {
    RowChunk<I> piece;
    const I* triplet_offsets;
    const I* atom_order;

    __device__ int edges() const { return triplet_offsets == nullptr ? 1 : piece.size; }

    // Edge number j: its row, and the start and number of its triplets.
    __device__ RowChunk<I> edge(int j) const {
        if (triplet_offsets == nullptr) {
            return piece;
        }
        const I row = atom_order == nullptr ? piece.begin + j : atom_order[piece.begin + j];
        const I begin = triplet_offsets[row];
        return {row, begin, int(triplet_offsets[row + 1] - begin)};
    }
};

// Rows of triplets; null if they are in order.
template <class I> struct Rows {
    const I* order;
    const I* inputs;

    __device__ long long triplet(long long position) const { return order == nullptr ? position : order[position]; }
    __device__ long long input_of(long long t) const { return inputs == nullptr ? t : inputs[t]; }
};

// A basis and its values, with derivatives along the cotangents.
template <class T> struct Pairs {
    const T* sph;
    const T* sph_dot;
    const T* m;
    const T* m_dot;

    __device__ bool varied() const { return sph_dot != nullptr || m_dot != nullptr; }
};

constexpr int step = 16;              // rows in shared memory

// Minimum of resident blocks per multiprocessor (__launch_bounds__); the resulting register limit causes no spills.
constexpr int unit_blocks_per_sm = 16;
constexpr int radial_blocks_per_sm = 12;  // of gemnet_radial, whose sums over lanes need more registers

// ---- products with columns in lanes ---------------------------------------------------------------------------------

// The lane's columns of a row of `width` elements, zeros beyond the last.
template <class T, int cols> __device__ void load_columns(const T* row, int c, int width, T (&to)[cols]) {
#pragma unroll
    for (int z = 0; z < cols; z++) {
        to[z] = c + 32 * z < width ? row[c + 32 * z] : T(0);
    }
}

// What a warp shares: rows of a factor, and for each of them a number, which leads to the row of the other factor.
template <class T, int rows> struct Stage {
    T* left;            // step * rows elements, aligned to 16 bytes
    long long* number;  // step elements

    // left[x, y] = from(x, y) for y < num_y, else 0, and number[x] = number_of(x), for x < num_x <= step.
    template <class From, class NumberOf>
    __device__ void load(int num_x, int num_y, const From& from, const NumberOf& number_of) const {
        __syncwarp();
        for (int i = threadIdx.x; i < num_x * rows; i += 32) {
            left[i] = i % rows < num_y ? from(i / rows, i % rows) : T(0);
        }
        if (int(threadIdx.x) < num_x) {
            number[threadIdx.x] = number_of(int(threadIdx.x));
        }
        __syncwarp();
    }

    // sum[y][z] += left[x, y] right[number[x] + c + 32 z] for x, x + 1, ..., x + count - 1, which are loaded together.
    template <int count, int cols>
    __device__ void add(int x, const T* right, int c, int width, T (&sum)[rows][cols]) const {
        T r[count][cols];
#pragma unroll
        for (int u = 0; u < count; u++) {
            load_columns(right + number[x + u], c, width, r[u]);
        }
#pragma unroll
        for (int u = 0; u < count; u++) {
            T l[rows];
            read(left + (x + u) * rows, l);
            add_outer(l, r[u], sum);
        }
    }
};

// Writes the lane's columns of a row or, if `add`, adds them to what is there.
template <class T, int cols>
__device__ void store_columns(T* row, int c, int width, bool add, const T (&from)[cols]) {
#pragma unroll
    for (int z = 0; z < cols; z++) {
        if (c + 32 * z < width) {
            row[c + 32 * z] = add ? row[c + 32 * z] + from[z] : from[z];
        }
    }
}

// sum[y][z] += sum over x < num_x of left(x, y) right[offset(x) + c + 32 z] for y < num_y; a row of `right` has `width`
// elements. Rows of `sum` from num_y on, and columns beyond the last, are undefined: they may be products of zero and
// infinity. The sums of `step` terms are rounded separately, to avoid long chains of additions.
template <class T, int rows, int cols, class Left, class Offset>
__device__ void add_product(const Stage<T, rows>& stage, int num_x, int num_y, const Left& left, const Offset& offset,
                            const T* right, int c, int width, T (&sum)[rows][cols]) {
    for (int x0 = 0; x0 < num_x; x0 += step) {
        const int here = min(step, num_x - x0);
        stage.load(
            here, num_y, [&](int x, int y) { return left(x0 + x, y); }, [&](int x) { return offset(x0 + x); });
        T part[rows][cols] = {};
        int x = 0;
#pragma unroll 1
        for (; x + unroll <= here; x += unroll) {
            stage.template add<unroll>(x, right, c, width, part);
        }
#pragma unroll 1
        for (; x < here; x++) {
            stage.template add<1>(x, right, c, width, part);
        }
        add_to(sum, part);
    }
}

// Sets the rows from num_y on, and the columns from `width` on, to zero.
template <class T, int rows, int cols>
__device__ void clear_beyond(int num_y, int c, int width, T (&sum)[rows][cols]) {
#pragma unroll
    for (int y = 0; y < rows; y++) {
#pragma unroll
        for (int z = 0; z < cols; z++) {
            sum[y][z] = y < num_y && c + 32 * z < width ? sum[y][z] : T(0);
        }
    }
}

// values[z] += sum over y of column[y] matrix[y][z].
template <class T, int rows, int cols>
__device__ void add_to_columns(const T* column, const T (&matrix)[rows][cols], T (&values)[cols]) {
    T factor[rows];
    read(column, factor);
#pragma unroll
    for (int y = 0; y < rows; y++) {
#pragma unroll
        for (int z = 0; z < cols; z++) {
            values[z] += factor[y] * matrix[y][z];
        }
    }
}

// values[y] += sum over the lane's columns z of matrix[y][z] row[z].
template <class T, int rows, int cols>
__device__ void add_to_rows(const T (&matrix)[rows][cols], const T (&row)[cols], T (&values)[rows]) {
#pragma unroll
    for (int y = 0; y < rows; y++) {
#pragma unroll
        for (int z = 0; z < cols; z++) {
            values[y] += matrix[y][z] * row[z];
        }
    }
}

// The sum of values[lane % rows] over the lanes of the warp. Lanes exchange half of what they have, then a quarter.
template <class T, int rows> __device__ T sum_over_lanes(T (&values)[rows]) {
#pragma unroll
    for (int half = rows / 2; half > 0; half /= 2) {
        const bool upper = threadIdx.x & half;
#pragma unroll
        for (int k = 0; k < half; k++) {
            const T kept = upper ? values[k + half] : values[k], given = upper ? values[k] : values[k + half];
            values[k] = kept + __shfl_xor_sync(0xffffffffu, given, half);
        }
    }
    T sum = values[0];
#pragma unroll
    for (int bit = rows; bit < 32; bit *= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, bit);
    }
    return sum;
}

// ---- B and P --------------------------------------------------------------------------------------------------------

// A tree of sums of MOST_IN_ORDER triplets, to avoid long chains of additions: 16 of them in the first level, 16
// of these in the second, the rest in the third. A level has the rows and columns of every lane, in shared memory.
template <class T, int rows, int cols> struct TripletSum {
    T* levels;  // null if no edge has so many triplets
    int count;  // total number of sums

    __device__ T* at(int level, int y, int z) const {
        return levels + ((level * rows + y) * cols + z) * 32 + threadIdx.x;
    }

    // Adds sum number k.
    __device__ void add(int k, const T (&sum)[rows][cols]) const {
#pragma unroll
        for (int y = 0; y < rows; y++) {
#pragma unroll
            for (int z = 0; z < cols; z++) {
                T term = sum[y][z];
                bool full = true;  // the level below
                for (int level = 0; level < 3 && full; level++) {
                    const int number = k >> 4 * level, in_level = level == 2 ? number : number % 16;
                    T* const target = at(level, y, z);
                    term = in_level == 0 ? term : *target + term;
                    *target = term;
                    full = in_level == 15;
                }
            }
        }
    }

    __device__ void finish(T (&sum)[rows][cols]) const {
#pragma unroll
        for (int y = 0; y < rows; y++) {
#pragma unroll
            for (int z = 0; z < cols; z++) {
                sum[y][z] = count % 16 != 0 ? *at(0, y, z) : T(0);
                sum[y][z] = count / 16 % 16 != 0 ? *at(1, y, z) + sum[y][z] : sum[y][z];
                sum[y][z] = count / 256 != 0 ? *at(2, y, z) + sum[y][z] : sum[y][z];
            }
        }
    }
};

// sum[y][z] = sum over the edge's triplets of sph[t, s0 + y] m[t, c + 32 z] or, with `dot`, of sph_dot m + sph m_dot;
// zero beyond the last row and column. `levels` is used if the edge has more than MOST_IN_ORDER triplets.
template <class T, class I, int rows, int cols>
__device__ void sum_triplets(const Stage<T, rows>& stage, const Sizes& sizes, const Pairs<T>& pairs, bool dot,
                             const Rows<I>& order, const RowChunk<I>& edge, int s0, int c, T* levels,
                             T (&sum)[rows][cols]) {
    const TripletSum<T, rows, cols> total{levels, (edge.size + MOST_IN_ORDER - 1) / MOST_IN_ORDER};
    const int num_s = sizes.spherical - s0;
    for (int k = 0; k < total.count; k++) {
        const long long begin = edge.begin + k * MOST_IN_ORDER;
        const int num_t = min(MOST_IN_ORDER, edge.size - k * MOST_IN_ORDER);
        clear_beyond(0, c, 0, sum);
        for (int pair = 0; pair < (dot ? 2 : 1); pair++) {
            const T* const sph = dot && pair == 0 ? pairs.sph_dot : pairs.sph;
            const T* const m = pair == 1 ? pairs.m_dot : pairs.m;
            if (sph != nullptr && m != nullptr) {
                add_product(
                    stage, num_t, num_s,
                    [&](int x, int y) { return sph[order.triplet(begin + x) * sizes.spherical + s0 + y]; },
                    [&](int x) { return order.input_of(order.triplet(begin + x)) * sizes.emb_in; }, m, c,
                    sizes.emb_in, sum);
            }
        }
        if (total.count > 1) {
            total.add(k, sum);
        }
    }
    if (total.count > 1) {
        total.finish(sum);
    }
    clear_beyond(num_s, c, sizes.emb_in, sum);
}

// p[s, i, c] = sum over the unit's edges of r_dot B + r B_dot, with the derivative B_dot of B. A warp computes
// INTERM rows of p for the columns of its lanes: sums of 16 edges in shared memory, the sum of these in p.
template <class T, class I, int rows, int cols>
__global__ void __launch_bounds__(32, unit_blocks_per_sm)
gemnet_products(const T* __restrict__ r, const T* __restrict__ r_dot, const T* __restrict__ sph,
                const T* __restrict__ sph_dot, const T* __restrict__ m, const T* __restrict__ m_dot,
                const RowPartition<I> partition, const I* __restrict__ triplet_offsets,
                const I* __restrict__ atom_order, const I* __restrict__ triplet_order, const I* __restrict__ inputs,
                long long first, int interm, int spherical, int emb_in, T* p) {
    __shared__ __align__(16) T left[step * rows];
    __shared__ long long number[step];
    __shared__ T sums[INTERM * cols * 32];
    extern __shared__ double levels[];
    const Stage<T, rows> stage{left, number};
    const Sizes sizes{spherical, emb_in};
    const Pairs<T> pairs{sph, sph_dot, m, m_dot};
    const Rows<I> order{triplet_order, inputs};
    const unsigned col_tiles = (emb_in + 32 * cols - 1) / (32 * cols);
    const unsigned tiles = col_tiles * ((interm + INTERM - 1) / INTERM);
    const int i0 = int(blockIdx.x % tiles / col_tiles) * INTERM, num_i = min(INTERM, interm - i0);
    const int c = int(blockIdx.x % col_tiles) * 32 * cols + int(threadIdx.x);
    const long long s = blockIdx.x / tiles;
    const Unit<I> unit{partition.piece(first + s), triplet_offsets, atom_order};
    T* const own = sums + threadIdx.x;  // the sum of row i, column z is at 32 * (i * cols + z)
    for (int j0 = 0; j0 == 0 || j0 < unit.edges(); j0 += 16) {
        for (int i = 0; i < num_i * cols; i++) {
            own[32 * i] = T(0);
        }
        for (int j = j0; j < min(j0 + 16, unit.edges()); j++) {
            const RowChunk<I> edge = unit.edge(j);
            for (int dot = r_dot == nullptr; dot < (r != nullptr && pairs.varied() ? 2 : 1) && edge.size > 0; dot++) {
                const T* const radial = (dot ? r : r_dot) + ((long long)(edge.row) * interm + i0) * spherical;
                for (int s0 = 0; s0 < spherical; s0 += rows) {
                    T b[rows][cols];
                    sum_triplets(stage, sizes, pairs, dot, order, edge, s0, c, reinterpret_cast<T*>(levels), b);
                    for (int i = 0; i < num_i; i += step) {
                        const int here = min(step, num_i - i);
                        stage.load(
                            here, spherical - s0, [&](int x, int y) { return radial[(i + x) * spherical + s0 + y]; },
                            [](int) { return 0; });
                        for (int x = 0; x < here; x++) {
                            T sum[cols] = {};
                            add_to_columns(stage.left + x * rows, b, sum);
#pragma unroll
                            for (int z = 0; z < cols; z++) {
                                own[32 * ((i + x) * cols + z)] += sum[z];
                            }
                        }
                    }
                }
            }
        }
        for (int i = 0; i < num_i; i++) {
            T sum[cols];
#pragma unroll
            for (int z = 0; z < cols; z++) {
                sum[z] = own[32 * (i * cols + z)];
            }
            store_columns(p + (s * interm + i0 + i) * emb_in, c, emb_in, j0 > 0, sum);
        }
    }
}

// ---- gradients ------------------------------------------------------------------------------------------------------

// The gradient of rad_W1 for the unit's edges, q_dot B^T + q B_dot^T with q of the unit's output and its derivative
// q_dot; a row for each unit if `by_unit`, else for each edge.
template <class T, class I, int rows, int cols>
__global__ void __launch_bounds__(32, radial_blocks_per_sm)
gemnet_radial(const T* __restrict__ q, const T* __restrict__ q_dot, const T* __restrict__ sph,
              const T* __restrict__ sph_dot, const T* __restrict__ m, const T* __restrict__ m_dot,
              const RowPartition<I> partition, const I* __restrict__ triplet_offsets, const I* __restrict__ atom_order,
              const I* __restrict__ triplet_order, const I* __restrict__ inputs, long long first, int interm,
              int spherical, int emb_in, int by_unit, T* out) {
    __shared__ __align__(16) T left[step * rows];
    __shared__ long long number[step];
    extern __shared__ double levels[];
    const Stage<T, rows> stage{left, number};
    const Sizes sizes{spherical, emb_in};
    const Pairs<T> pairs{sph, sph_dot, m, m_dot};
    const Rows<I> order{triplet_order, inputs};
    const long long s = blockIdx.x, q_size = (long long)(interm) * emb_in, size = (long long)(interm) * spherical;
    const T* const outer = q == nullptr || !pairs.varied() ? nullptr : q + s * q_size;
    const T* const outer_dot = q_dot == nullptr ? nullptr : q_dot + s * q_size;
    const Unit<I> unit{partition.piece(first + s), triplet_offsets, atom_order};
    const int lane = int(threadIdx.x);
    for (int j = 0; j < unit.edges(); j++) {
        const RowChunk<I> edge = unit.edge(j);
        T* const target = out + (by_unit ? first + s : (long long)(edge.row)) * size;
        const bool any = edge.size > 0 && (outer != nullptr || outer_dot != nullptr);
        for (int i = lane; !any && i < size; i += 32) {
            target[i] = T(0);
        }
        for (int c0 = 0; any && c0 < emb_in; c0 += 32 * cols) {
            const int c = c0 + lane;
            for (int s0 = 0; s0 < spherical; s0 += rows) {
                bool add = c0 > 0;
                for (int dot = 0; dot < 2; dot++) {
                    const T* const outputs = dot ? outer : outer_dot;
                    if (outputs == nullptr) {
                        continue;
                    }
                    T b[rows][cols];
                    sum_triplets(stage, sizes, pairs, dot, order, edge, s0, c, reinterpret_cast<T*>(levels), b);
                    for (int i = 0; i < interm; i++) {
                        T values[rows] = {}, of_row[cols];
                        load_columns(outputs + (long long)(i) * emb_in, c, emb_in, of_row);
                        add_to_rows(b, of_row, values);
                        const T sum = sum_over_lanes(values);
                        if (lane < min(rows, spherical - s0)) {
                            T* const to = target + (long long)(i) * spherical + s0 + lane;
                            *to = add ? *to + sum : sum;
                        }
                    }
                    add = true;
                }
            }
        }
    }
}

// The gradients of sph and m for the unit's triplets: with g_rows_dot = r^T q_dot + r_dot^T q and g_rows = r^T q
// of each edge, grad_sph = g_rows_dot m + g_rows m_dot and grad_m = g_rows_dot sph + g_rows sph_dot, which has a row for
// each triplet.
template <class T, class I, int rows, int cols>
__global__ void __launch_bounds__(32, unit_blocks_per_sm)
gemnet_triplets(const T* __restrict__ q, const T* __restrict__ q_dot, const T* __restrict__ r,
                const T* __restrict__ r_dot, const T* __restrict__ sph, const T* __restrict__ sph_dot,
                const T* __restrict__ m, const T* __restrict__ m_dot, const RowPartition<I> partition,
                const I* __restrict__ triplet_offsets, const I* __restrict__ atom_order,
                const I* __restrict__ triplet_order, const I* __restrict__ inputs, long long first, int interm,
                int spherical, int emb_in, T* grad_sph, T* grad_m) {
    __shared__ __align__(16) T left[step * rows];
    __shared__ __align__(16) T left_dot[step * rows];
    __shared__ long long number[step];
    const Stage<T, rows> stage{left, number}, stage_dot{left_dot, number};
    const Pairs<T> pairs{sph, sph_dot, m, m_dot};
    const Rows<I> order{triplet_order, inputs};
    const long long s = blockIdx.x, q_size = (long long)(interm) * emb_in, r_size = (long long)(interm) * spherical;
    const Unit<I> unit{partition.piece(first + s), triplet_offsets, atom_order};
    const int lane = int(threadIdx.x);
    for (int j = 0; j < unit.edges(); j++) {
        const RowChunk<I> edge = unit.edge(j);
        for (int c0 = 0; edge.size > 0 && c0 < emb_in; c0 += 32 * cols) {
            const int c = c0 + lane;
            for (int s0 = 0; s0 < spherical; s0 += rows) {
                const int num_s = spherical - s0;
                T g_rows[rows][cols] = {}, g_rows_dot[rows][cols] = {};
#pragma unroll
                for (int term = 0; term < 3; term++) {  // r^T q_dot, r_dot^T q, and r^T q, which is g_rows
                    const T* const of_r = term == 1 ? r_dot : r;
                    const T* const of_q = term == 0 ? q_dot : q;
                    if (of_r != nullptr && of_q != nullptr && (term < 2 || pairs.varied())) {
                        add_product(
                            stage, interm, num_s,
                            [&](int x, int y) { return of_r[edge.row * r_size + x * spherical + s0 + y]; },
                            [&](int x) { return x * emb_in; }, of_q + s * q_size, c, emb_in,
                            term == 2 ? g_rows : g_rows_dot);
                    }
                }
                clear_beyond(num_s, c, emb_in, g_rows);
                clear_beyond(num_s, c, emb_in, g_rows_dot);
                for (int t0 = 0; t0 < edge.size; t0 += step) {
                    const int here = min(step, edge.size - t0);
                    const auto triplet = [&](int x) { return order.triplet(edge.begin + t0 + x); };
                    stage.load(
                        here, num_s, [&](int x, int y) { return sph[triplet(x) * spherical + s0 + y]; }, triplet);
                    if (sph_dot != nullptr) {
                        stage_dot.load(
                            here, num_s, [&](int x, int y) { return sph_dot[triplet(x) * spherical + s0 + y]; },
                            triplet);
                    }
                    for (int x = 0; x < here; x++) {
                        const long long t = number[x];
                        if (grad_m != nullptr) {
                            T values[cols] = {};
                            add_to_columns(left + x * rows, g_rows_dot, values);
                            if (sph_dot != nullptr) {
                                add_to_columns(left_dot + x * rows, g_rows, values);
                            }
                            store_columns(grad_m + t * emb_in, c, emb_in, s0 > 0, values);
                        }
                        if (grad_sph != nullptr) {
                            T values[rows] = {}, of_row[cols];
                            load_columns(m + order.input_of(t) * emb_in, c, emb_in, of_row);
                            add_to_rows(g_rows_dot, of_row, values);
                            if (m_dot != nullptr) {
                                load_columns(m_dot + order.input_of(t) * emb_in, c, emb_in, of_row);
                                add_to_rows(g_rows, of_row, values);
                            }
                            const T sum = sum_over_lanes(values);
                            if (lane < min(rows, num_s)) {
                                T* const to = grad_sph + t * spherical + s0 + lane;
                                *to = c0 == 0 ? sum : *to + sum;
                            }
                        }
                    }
                }
            }
        }
    }
}

// out[s] = values[row of unit s if `by_row`, else s] if the unit has triplets, else 0; one warp per unit.
template <class T, class I>
__global__ void __launch_bounds__(THREADS)
gemnet_select(const T* values, const RowPartition<I> partition, const I* __restrict__ triplet_offsets,
              const I* __restrict__ atom_order, int by_row, int width, T* out) {
    const long long s = (long long)(blockIdx.x) * 4 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const Unit<I> unit{partition.piece(s), triplet_offsets, atom_order};
    bool any = false;
    for (int j = lane; s < partition.num_pieces && j < unit.edges(); j += 32) {
        any = any || unit.edge(j).size > 0;
    }
    any = __any_sync(0xffffffffu, any);
    for (int j = lane; s < partition.num_pieces && j < width; j += 32) {
        const long long row = by_row ? (long long)(unit.piece.row) : s;
        out[s * width + j] = any ? values[row * width + j] : T(0);
    }
}

// ---- basis embedding of triplets ------------------------------------------------------------------------------------

// out[t, y] = sum over x of left[t, x] r[s, y, x] + left_1[t, x] r_1[s, y, x] for the triplets t of unit s; the strides
// of r determine its fast axis. A pair is (sph, R_dot), (sph_dot, R) or (g, R_dot), see gpu/gemnet.py.
template <class T, class I, int rows, int cols>
__global__ void __launch_bounds__(32, unit_blocks_per_sm)
gemnet_embed(const T* __restrict__ left, const T* __restrict__ r, const T* __restrict__ left_1,
             const T* __restrict__ r_1, const RowPartition<I> partition, const I* __restrict__ triplet_order,
             long long first, int num_y, int num_x, int y_stride, int x_stride, T* out) {
    __shared__ __align__(16) T loaded[step * rows];
    __shared__ long long number[step];
    const Stage<T, rows> stage{loaded, number};
    const Rows<I> order{triplet_order, nullptr};
    const long long s = blockIdx.x;
    const RowChunk<I> edge = partition.piece(first + s);
    for (int c = int(threadIdx.x); c - int(threadIdx.x) < num_y; c += 32 * cols) {
        bool add = false;
        for (int pair = 0; pair < 2; pair++) {
            const T* const values = pair == 0 ? left : left_1;
            const T* const matrix = pair == 0 ? r : r_1;
            for (int x0 = 0; values != nullptr && matrix != nullptr && x0 < num_x; x0 += rows, add = true) {
                T factor[rows][cols];
#pragma unroll
                for (int y = 0; y < rows; y++) {
#pragma unroll
                    for (int z = 0; z < cols; z++) {
                        const long long at = (long long)(c + 32 * z) * y_stride + (long long)(x0 + y) * x_stride;
                        factor[y][z] = x0 + y < num_x && c + 32 * z < num_y ? matrix[s * num_y * num_x + at] : T(0);
                    }
                }
                for (int t0 = 0; t0 < edge.size; t0 += step) {
                    const int here = min(step, edge.size - t0);
                    const auto triplet = [&](int x) { return order.triplet(edge.begin + t0 + x); };
                    stage.load(
                        here, num_x - x0, [&](int x, int y) { return values[triplet(x) * num_x + x0 + y]; }, triplet);
                    for (int x = 0; x < here; x++) {
                        T sum[cols] = {};
                        add_to_columns(loaded + x * rows, factor, sum);
                        store_columns(out + number[x] * num_y, c, num_y, add, sum);
                    }
                }
            }
        }
    }
}

// out[s, y, z] = sum over the triplets t of unit s of left[t, y] right[t, z].
template <class T, class I, int rows, int cols>
__global__ void __launch_bounds__(32, unit_blocks_per_sm)
gemnet_outer(const T* __restrict__ left, const T* __restrict__ right, const RowPartition<I> partition,
             const I* __restrict__ triplet_order, long long first, int num_y, int num_z, T* __restrict__ out) {
    __shared__ __align__(16) T loaded[step * rows];
    __shared__ long long number[step];
    const Stage<T, rows> stage{loaded, number};
    const Rows<I> order{triplet_order, nullptr};
    const long long s = blockIdx.x;
    const RowChunk<I> edge = partition.piece(first + s);
    for (int c = int(threadIdx.x); c - int(threadIdx.x) < num_y; c += 32 * cols) {
        for (int z0 = 0; z0 < num_z; z0 += rows) {
            T sum[rows][cols] = {};
            add_product(
                stage, edge.size, num_z - z0,
                [&](int x, int z) { return right[order.triplet(edge.begin + x) * num_z + z0 + z]; },
                [&](int x) { return order.triplet(edge.begin + x) * num_y; }, left, c, num_y, sum);
#pragma unroll
            for (int y = 0; y < cols; y++) {
#pragma unroll
                for (int z = 0; z < rows; z++) {
                    if (c + 32 * y < num_y && z0 + z < num_z) {
                        out[(s * num_y + c + 32 * y) * num_z + z0 + z] = sum[z][y];
                    }
                }
            }
        }
    }
}
