// GemNet-OC's efficient bilinear layer. For each edge, B[s,n] = sum over its triplets t of sph[t,s] m[t,n]. For each
// output, P[c,n] = sum over its edges e and over s of R[e,c,s] B[s,n] with R = rad_W1. The remaining computation is a
// matrix product. gpu/gemnet.py states the formulas and launches the kernels.
//
// A unit is a piece of a row (see sums.cuh): some triplets of one edge or, with triplet_offsets, some edges of one atom
// with all their triplets. Kernels have a warp for each unit. Launches, and most arrays over
// units, start at unit number `first`. Null pointers omit a term or an output.
//
// In registers, a lane holds `cols` columns of m and, in these columns, `rows` rows of B or `g_rows`, its gradient G.
#include "gemnet_rows.cuh"
#include "matrices.cuh"

struct BilinearSizes {
    int spherical;
    int emb_in;
};

// The edges of a unit and their triplets.
template <class I> struct WorkUnit {
    RowPiece<I> piece;
    const I* triplet_offsets;
    const I* atom_order;

    __device__ int edges() const { return triplet_offsets == nullptr ? 1 : piece.size; }

    // Returns the row of edge number j, and the start and number of its triplets.
    __device__ RowPiece<I> get_edge_triplets(int j) const {
        if (triplet_offsets == nullptr) {
            return piece;
        }
        const I row = atom_order == nullptr ? piece.begin + j : atom_order[piece.begin + j];
        const I begin = triplet_offsets[row];
        return {row, begin, int(triplet_offsets[row + 1] - begin)};
    }

    // Returns the number after the last of the edges begin, ..., end - 1 that has triplets, or `begin` if none has.
    __device__ int find_nonempty_end(int begin, int end) const {
        while (end > begin && get_edge_triplets(end - 1).size == 0) {
            end--;
        }
        return end;
    }
};

// Maps positions to triplets (`order`) and triplets to rows of m (`inputs`). A null pointer means the identity.
template <class I> struct TripletIndex {
    const I* order;
    const I* inputs;

    __device__ long long triplet(long long position) const { return order == nullptr ? position : order[position]; }
    __device__ long long input_of(long long t) const { return inputs == nullptr ? t : inputs[t]; }
};

// Both factors of a sum over triplets, and their derivatives along the cotangents.
template <class T> struct TripletFactors {
    const T* sph;
    const T* sph_dot;
    const T* m;
    const T* m_dot;

    __device__ bool varied() const { return sph_dot != nullptr || m_dot != nullptr; }
};

// Minimum number of resident blocks per multiprocessor (__launch_bounds__), a limit on registers that causes no spills.
constexpr int unit_blocks_per_sm = 16;
constexpr int radial_blocks_per_sm = 12;  // for gemnet_radial_gradient, which needs more registers

// ---- B and P --------------------------------------------------------------------------------------------------------

// Adds partial sums, each over MOST_IN_ORDER triplets, in a three-level tree, to avoid long chains of additions. Each
// sum in the first level adds 16 partial sums, each sum in the second level adds 16 sums of the first level, and the
// third level adds all sums of the second level. Each level stores the rows and columns of every lane in shared memory.
template <class T, int rows, int cols> struct TripletSumTree {
    T* levels;  // null if no edge has more than MOST_IN_ORDER triplets
    int count;  // number of partial sums

    __device__ T* sum_at(int level, int y, int z) const {
        return levels + ((level * rows + y) * cols + z) * 32 + threadIdx.x;
    }

    // Adds partial sum number k.
    __device__ void add_partial_sum(int k, const T (&sum)[rows][cols]) const {
#pragma unroll
        for (int y = 0; y < rows; y++) {
#pragma unroll
            for (int z = 0; z < cols; z++) {
                T term = sum[y][z];
                bool full = true;  // whether the sum in the level below is complete
                for (int level = 0; level < 3 && full; level++) {
                    const int number = k >> 4 * level, in_level = level == 2 ? number : number % 16;
                    T* const target = sum_at(level, y, z);
                    term = in_level == 0 ? term : *target + term;
                    *target = term;
                    full = in_level == 15;
                }
            }
        }
    }

    __device__ void compute_total(T (&sum)[rows][cols]) const {
#pragma unroll
        for (int y = 0; y < rows; y++) {
#pragma unroll
            for (int z = 0; z < cols; z++) {
                sum[y][z] = count % 16 != 0 ? *sum_at(0, y, z) : T(0);
                sum[y][z] = count / 16 % 16 != 0 ? *sum_at(1, y, z) + sum[y][z] : sum[y][z];
                sum[y][z] = count / 256 != 0 ? *sum_at(2, y, z) + sum[y][z] : sum[y][z];
            }
        }
    }
};

// sum[y][z] = sum over the edge's triplets of sph[t, s0 + y] m[t, c] or, with `dot`, of sph_dot m + sph m_dot, for the
// lane's columns c. Elements beyond the last row or column are set to zero. `levels` is used if the edge has more than
// MOST_IN_ORDER triplets.
template <class T, class I, int rows, int cols>
__device__ void sum_triplets(const StagedRows<T, rows>& stage, const BilinearSizes& sizes,
                             const TripletFactors<T>& pairs, bool dot, const TripletIndex<I>& order,
                             const RowPiece<I>& edge, int s0, const LaneColumns<cols>& columns, T* levels,
                             T (&sum)[rows][cols]) {
    const TripletSumTree<T, rows, cols> total{levels, (edge.size + MOST_IN_ORDER - 1) / MOST_IN_ORDER};
    const int num_s = sizes.spherical - s0;
    for (int k = 0; k < total.count; k++) {
        const long long begin = edge.begin + k * MOST_IN_ORDER;
        const int num_t = min(MOST_IN_ORDER, edge.size - k * MOST_IN_ORDER);
#pragma unroll
        for (int y = 0; y < rows; y++) {
#pragma unroll
            for (int z = 0; z < cols; z++) {
                sum[y][z] = T(0);
            }
        }
        for (int pair = 0; pair < (dot ? 2 : 1); pair++) {
            const T* const sph = dot && pair == 0 ? pairs.sph_dot : pairs.sph;
            const T* const m = pair == 1 ? pairs.m_dot : pairs.m;
            if (sph != nullptr && m != nullptr) {
                add_matrix_product(
                    stage, num_t, num_s, sph + s0, [&](int x) { return order.triplet(begin + x) * sizes.spherical; },
                    m, [&](int x) { return order.input_of(order.triplet(begin + x)) * sizes.emb_in; }, columns, sum);
            }
        }
        if (total.count > 1) {
            total.add_partial_sum(k, sum);
        }
    }
    if (total.count > 1) {
        total.compute_total(sum);
    }
    columns.clear_padding(num_s, sum);
}

// Sums rows of a unit's p over its edges in shared memory. The terms of the last edge complete the sums, which go to p.
template <class T, int cols> struct UnitSum {
    T* sums;  // sums of this lane: the sum of row x, column z is at sums[32 * (x * cols + z)]
    T* p;
    bool add_to_p;

    // Takes the terms of rows x, x + 1, ...; row x + u starts `offset[u]` bytes after p. If `add`, adds the terms to
    // the terms of earlier edges; if `last`, writes the sums to p.
    template <int count>
    __device__ void add_edge_terms(int x, const LaneColumns<cols>& columns, const long long (&offset)[count], bool add,
                                   bool last, T (&values)[count][cols]) const {
        T* const own = sums + 32 * cols * x;
        if (add) {
#pragma unroll
            for (int u = 0; u < count; u++) {
#pragma unroll
                for (int z = 0; z < cols; z++) {
                    values[u][z] = own[32 * (u * cols + z)] + values[u][z];
                }
            }
        }
        if (last) {
            columns.store_or_add_rows(p, offset, add_to_p, values);
            return;
        }
#pragma unroll
        for (int u = 0; u < count; u++) {
#pragma unroll
            for (int z = 0; z < cols; z++) {
                own[32 * (u * cols + z)] = values[u][z];
            }
        }
    }

    // Sets `count` rows of p to zero.
    __device__ void zero_rows(const LaneColumns<cols>& columns, int count) const {
        T zeros[1][cols] = {};
        for (int x = 0; x < count; x++) {
            columns.store_or_add_rows(p, {(long long)(x) * (columns.width * int(sizeof(T)))}, false, zeros);
        }
    }
};

// p[s, i, c] = sum over the unit's edges of r_dot B + r B_dot, where B_dot is the derivative of B. A warp computes
// INTERM rows of p for the columns of its lanes: it sums 16 edges in shared memory at a time, and adds these sums in p.
template <class T, class I, int rows, int cols>
__global__ void __launch_bounds__(32, unit_blocks_per_sm)
gemnet_unit_sums(const T* __restrict__ r, const T* __restrict__ r_dot, const T* __restrict__ sph,
                 const T* __restrict__ sph_dot, const T* __restrict__ m, const T* __restrict__ m_dot,
                 const RowPartition<I> partition, const I* __restrict__ triplet_offsets,
                 const I* __restrict__ atom_order, const I* __restrict__ triplet_order, const I* __restrict__ inputs,
                 long long first, int interm, int spherical, int emb_in, T* p) {
    __shared__ __align__(16) T left[step * rows];
    __shared__ __align__(16) long long offsets[2 * step];
    __shared__ T sums[INTERM * cols * 32];
    extern __shared__ double levels[];
    const StagedRows<T, rows> stage{left, offsets};
    const BilinearSizes sizes{spherical, emb_in};
    const TripletFactors<T> pairs{sph, sph_dot, m, m_dot};
    const TripletIndex<I> order{triplet_order, inputs};
    const unsigned col_tiles = (emb_in + 32 * cols - 1) / (32 * cols);
    const unsigned tiles = col_tiles * ((interm + INTERM - 1) / INTERM);
    const int i0 = int(blockIdx.x % tiles / col_tiles) * INTERM, num_i = min(INTERM, interm - i0);
    const LaneColumns<cols> columns{int(blockIdx.x % col_tiles) * 32 * cols + int(threadIdx.x), emb_in};
    const long long s = blockIdx.x / tiles;
    const WorkUnit<I> unit{partition.piece(first + s), triplet_offsets, atom_order};
    const int first_dot = r_dot == nullptr, end_dot = r != nullptr && pairs.varied() ? 2 : 1;
    UnitSum<T, cols> total{sums + threadIdx.x, p + (s * interm + i0) * emb_in, false};
    for (int j0 = 0; j0 == 0 || j0 < unit.edges(); j0 += 16) {
        const int end = first_dot < end_dot ? unit.find_nonempty_end(j0, min(j0 + 16, unit.edges())) : j0;
        bool add = false;
        for (int j = j0; j < end; j++) {
            const RowPiece<I> edge = unit.get_edge_triplets(j);
            for (int dot = first_dot; dot < end_dot && edge.size > 0; dot++) {
                const T* const radial = (dot ? r : r_dot) + ((long long)(edge.row) * interm + i0) * spherical;
                for (int s0 = 0; s0 < spherical; s0 += rows) {
                    const bool last = j == end - 1 && dot == end_dot - 1 && s0 + rows >= spherical;
                    T b[rows][cols];
                    sum_triplets(stage, sizes, pairs, dot, order, edge, s0, columns, reinterpret_cast<T*>(levels), b);
                    for (int i = 0; i < num_i; i += step) {
                        const int here = min(step, num_i - i);
                        stage.load_rows_and_offsets(
                            here, spherical - s0, radial + i * spherical + s0, [&](int x) { return x * spherical; },
                            [&](int x) { return (long long)(i + x) * emb_in; });
                        stage.for_each_row_product(here, b, [&](int x, auto& values, const auto& offset) {
                            total.add_edge_terms(i + x, columns, offset, add, last, values);
                        });
                    }
                    add = true;
                }
            }
        }
        if (end == j0 && j0 == 0) {
            total.zero_rows(columns, num_i);
        }
        total.add_to_p = total.add_to_p || add;
    }
}

// ---- gradients ------------------------------------------------------------------------------------------------------

// The gradient of rad_W1 for the unit's edges, q_dot B^T + q B_dot^T, where q belongs to the unit's output and q_dot is
// its derivative. The gradient has a row for each unit if `by_unit`, else for each edge.
template <class T, class I, int rows, int cols>
__global__ void __launch_bounds__(32, radial_blocks_per_sm)
gemnet_radial_gradient(const T* __restrict__ q, const T* __restrict__ q_dot, const T* __restrict__ sph,
                       const T* __restrict__ sph_dot, const T* __restrict__ m, const T* __restrict__ m_dot,
                       const RowPartition<I> partition, const I* __restrict__ triplet_offsets,
                       const I* __restrict__ atom_order, const I* __restrict__ triplet_order,
                       const I* __restrict__ inputs, long long first, int interm, int spherical, int emb_in,
                       int by_unit, T* out) {
    using Product = RowProduct<T, rows, cols>;
    __shared__ __align__(16) T left[step * rows];
    __shared__ __align__(16) long long offsets[2 * step];
    __shared__ __align__(16) T rows_of_q[step * Product::pitch];
    __shared__ __align__(16) T rows_of_b[rows * Product::pitch];
    extern __shared__ double levels[];
    const StagedRows<T, rows> stage{left, offsets};
    const BilinearSizes sizes{spherical, emb_in};
    const TripletFactors<T> pairs{sph, sph_dot, m, m_dot};
    const TripletIndex<I> order{triplet_order, inputs};
    const long long s = blockIdx.x, q_size = (long long)(interm) * emb_in, size = (long long)(interm) * spherical;
    const T* const outer = q == nullptr || !pairs.varied() ? nullptr : q + s * q_size;
    const T* const outer_dot = q_dot == nullptr ? nullptr : q_dot + s * q_size;
    const WorkUnit<I> unit{partition.piece(first + s), triplet_offsets, atom_order};
    for (int j = 0; j < unit.edges(); j++) {
        const RowPiece<I> edge = unit.get_edge_triplets(j);
        T* const target = out + (by_unit ? first + s : (long long)(edge.row)) * size;
        const bool any = edge.size > 0 && (outer != nullptr || outer_dot != nullptr);
        for (int i = int(threadIdx.x); !any && i < size; i += 32) {
            target[i] = T(0);
        }
        for (int c0 = 0; any && c0 < emb_in; c0 += 32 * cols) {
            const LaneColumns<cols> columns{c0 + int(threadIdx.x), emb_in};
            for (int s0 = 0; s0 < spherical; s0 += rows) {
                bool add = c0 > 0;
                for (int dot = 0; dot < 2; dot++) {
                    const T* const outputs = dot ? outer : outer_dot;
                    for (int i0 = 0; outputs != nullptr && i0 < interm; i0 += step) {
                        const int here = min(step, interm - i0);
                        AsyncCopies copies;
                        __syncwarp();  // no lane still reads the rows of the previous step
                        Product::begin_first_factor_copy(
                            copies, outputs, c0, emb_in,
                            [&](int x) { return (long long)(i0 + min(x, here - 1)) * (emb_in * int(sizeof(T))); },
                            rows_of_q);
                        if (i0 == 0) {
                            T b[rows][cols];
                            sum_triplets(stage, sizes, pairs, dot, order, edge, s0, columns,
                                         reinterpret_cast<T*>(levels), b);
                            Product::store_second_factor(b, rows_of_b);
                        }
                        copies.wait();
                        __syncwarp();
                        Product product;
                        product.multiply(rows_of_q, rows_of_b);
                        product.for_each_element(here, spherical - s0, [&](int x, int y, T sum) {
                            T* const to = target + (i0 + x) * spherical + s0 + y;
                            *to = add ? *to + sum : sum;
                        });
                    }
                    add = add || outputs != nullptr;
                }
            }
        }
    }
}

// Writes gradients of sph and m for the triplets of an edge.
template <class T, class I, int rows, int cols> struct TripletGradientWriter {
    using Product = RowProduct<T, rows, cols>;
    StagedRows<T, rows> stage;
    T* rows_of_m;
    T* rows_of_g;
    long long* offsets_of_m;  // byte offsets of `step` rows of m
    TripletIndex<I> order;
    T* grad_sph;  // grad_sph and grad_m may be null
    T* grad_m;

    // Writes g_rows m to columns s0, s0 + 1, ... of grad_sph, and g_rows^T sph to the lane's columns of grad_m. Adds to
    // the present values if `add`, or if earlier columns of the sums were written. A null factor omits its product.
    __device__ void write_triplet_gradients(const RowPiece<I>& edge, int spherical, int s0,
                                            const LaneColumns<cols>& columns, const T (&g_rows)[rows][cols],
                                            const T* sph, const T* m, bool add) const {
        const int lane = int(threadIdx.x), num_s = spherical - s0, c0 = columns.begin();
        for (int t0 = 0; t0 < edge.size; t0 += step) {
            const int here = min(step, edge.size - t0);
            const auto triplet = [&](int x) { return order.triplet(edge.begin + t0 + x); };
            if (lane < step) {
                offsets_of_m[lane] = order.input_of(triplet(min(lane, here - 1))) * (columns.width * int(sizeof(T)));
            }
            stage.load_rows_and_offsets(
                here, num_s, sph == nullptr ? nullptr : sph + s0, [&](int x) { return triplet(x) * spherical; },
                [&](int x) { return triplet(x) * columns.width; });
            AsyncCopies copies;
            if (grad_sph != nullptr && m != nullptr) {
                Product::begin_first_factor_copy(
                    copies, m, c0, columns.width, [&](int x) { return offsets_of_m[x]; }, rows_of_m);
                Product::store_second_factor(g_rows, rows_of_g);
            }
            if (grad_m != nullptr && sph != nullptr) {
                stage.for_each_row_product(here, g_rows, [&](int, auto& values, const auto& offset) {
                    columns.store_or_add_rows(grad_m, offset, add || s0 > 0, values);
                });
            }
            if (grad_sph != nullptr && m != nullptr) {
                copies.wait();
                __syncwarp();
                Product product;
                product.multiply(rows_of_m, rows_of_g);
                product.for_each_element(here, num_s, [&](int x, int y, T sum) {
                    T* const to = offset_by_bytes(grad_sph + s0 + y, stage.offsets[x]);
                    *to = add || c0 > 0 ? *to + sum : sum;
                });
            }
        }
    }
};

// The gradients of sph and m for the unit's triplets. For each edge, g_rows_dot = r^T q_dot + r_dot^T q and g_rows =
// r^T q yield grad_sph = g_rows_dot m + g_rows m_dot and grad_m = g_rows_dot sph + g_rows sph_dot. grad_m has a row for
// each triplet.
template <class T, class I, int rows, int cols>
__global__ void __launch_bounds__(32, unit_blocks_per_sm)
gemnet_triplet_gradients(const T* __restrict__ q, const T* __restrict__ q_dot, const T* __restrict__ r,
                         const T* __restrict__ r_dot, const T* __restrict__ sph, const T* __restrict__ sph_dot,
                         const T* __restrict__ m, const T* __restrict__ m_dot, const RowPartition<I> partition,
                         const I* __restrict__ triplet_offsets, const I* __restrict__ atom_order,
                         const I* __restrict__ triplet_order, const I* __restrict__ inputs, long long first, int interm,
                         int spherical, int emb_in, T* grad_sph, T* grad_m) {
    using Product = RowProduct<T, rows, cols>;
    __shared__ __align__(16) T left[step * rows];
    __shared__ __align__(16) long long offsets[2 * step];
    __shared__ __align__(16) T rows_of_m[step * Product::pitch];
    __shared__ __align__(16) T rows_of_g[rows * Product::pitch];
    __shared__ long long offsets_of_m[step];
    const StagedRows<T, rows> stage{left, offsets};
    const TripletFactors<T> pairs{sph, sph_dot, m, m_dot};
    const TripletIndex<I> order{triplet_order, inputs};
    const long long s = blockIdx.x, q_size = (long long)(interm) * emb_in, r_size = (long long)(interm) * spherical;
    const WorkUnit<I> unit{partition.piece(first + s), triplet_offsets, atom_order};
    const TripletGradientWriter<T, I, rows, cols> gradients{
        stage, rows_of_m, rows_of_g, offsets_of_m, order, grad_sph, grad_m};
    for (int j = 0; j < unit.edges(); j++) {
        const RowPiece<I> edge = unit.get_edge_triplets(j);
        for (int c0 = 0; edge.size > 0 && c0 < emb_in; c0 += 32 * cols) {
            const LaneColumns<cols> columns{c0 + int(threadIdx.x), emb_in};
            for (int s0 = 0; s0 < spherical; s0 += rows) {
                const int num_s = spherical - s0;
                for (int varied = 0; varied < (pairs.varied() ? 2 : 1); varied++) {
                    T g_rows[rows][cols] = {};  // g_rows_dot in the first pass, g_rows in the second
#pragma unroll 1
                    for (int term = 0; term < 2 - varied; term++) {
                        const T* const of_r = term == 0 ? r : r_dot;
                        const T* const of_q = term == varied ? q_dot : q;
                        if (of_r != nullptr && of_q != nullptr) {
                            add_matrix_product(
                                stage, interm, num_s, of_r + edge.row * r_size + s0,
                                [&](int x) { return x * spherical; }, of_q + s * q_size,
                                [&](int x) { return x * emb_in; }, columns, g_rows);
                        }
                    }
                    columns.clear_padding(num_s, g_rows);
                    gradients.write_triplet_gradients(edge, spherical, s0, columns, g_rows, varied ? sph_dot : sph,
                                                      varied ? m_dot : m, varied);
                }
            }
        }
    }
}

// out[s] = values[row of unit s if `by_row`, else s] if the unit has triplets, else 0; one warp per unit.
template <class T, class I>
__global__ void __launch_bounds__(THREADS)
gemnet_mask_units(const T* values, const RowPartition<I> partition, const I* __restrict__ triplet_offsets,
                  const I* __restrict__ atom_order, int by_row, int width, T* out) {
    const long long s = (long long)(blockIdx.x) * 4 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const WorkUnit<I> unit{partition.piece(s), triplet_offsets, atom_order};
    bool any = false;
    for (int j = lane; s < partition.num_pieces && j < unit.edges(); j += 32) {
        any = any || unit.get_edge_triplets(j).size > 0;
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
gemnet_embed_triplets(const T* __restrict__ left, const T* __restrict__ r, const T* __restrict__ left_1,
                      const T* __restrict__ r_1, const RowPartition<I> partition, const I* __restrict__ triplet_order,
                      long long first, int num_y, int num_x, int y_stride, int x_stride, T* out) {
    __shared__ __align__(16) T loaded[step * rows];
    __shared__ __align__(16) long long offsets[2 * step];
    const StagedRows<T, rows> stage{loaded, offsets};
    const TripletIndex<I> order{triplet_order, nullptr};
    const long long s = blockIdx.x;
    const RowPiece<I> edge = partition.piece(first + s);
    for (int c0 = 0; c0 < num_y; c0 += 32 * cols) {
        const LaneColumns<cols> columns{c0 + int(threadIdx.x), num_y};
        bool add = false;
        for (int pair = 0; pair < 2; pair++) {
            const T* const values = pair == 0 ? left : left_1;
            const T* const matrix = (pair == 0 ? r : r_1) + s * num_y * num_x;
            for (int x0 = 0; values != nullptr && x0 < num_x; x0 += rows, add = true) {
                T factor[rows][cols];
#pragma unroll
                for (int y = 0; y < rows; y++) {
#pragma unroll
                    for (int z = 0; z < cols; z++) {
                        factor[y][z] = matrix[columns.at(z) * y_stride + min(x0 + y, num_x - 1) * x_stride];
                    }
                }
                columns.clear_padding(num_x - x0, factor);
                for (int t0 = 0; t0 < edge.size; t0 += step) {
                    const int here = min(step, edge.size - t0);
                    const auto triplet = [&](int x) { return order.triplet(edge.begin + t0 + x); };
                    stage.load_rows_and_offsets(
                        here, num_x - x0, values + x0, [&](int x) { return triplet(x) * num_x; },
                        [&](int x) { return triplet(x) * num_y; });
                    stage.for_each_row_product(here, factor, [&](int, auto& sums, const auto& offset) {
                        columns.store_or_add_rows(out, offset, add, sums);
                    });
                }
            }
        }
    }
}

// out[s, y, z] = sum over the triplets t of unit s of left[t, y] right[t, z].
template <class T, class I, int rows, int cols>
__global__ void __launch_bounds__(32, unit_blocks_per_sm)
gemnet_sum_outer_products(const T* __restrict__ left, const T* __restrict__ right, const RowPartition<I> partition,
                          const I* __restrict__ triplet_order, long long first, int num_y, int num_z,
                          T* __restrict__ out) {
    __shared__ __align__(16) T loaded[step * rows];
    __shared__ __align__(16) long long offsets[2 * step];
    const StagedRows<T, rows> stage{loaded, offsets};
    const TripletIndex<I> order{triplet_order, nullptr};
    const long long s = blockIdx.x;
    const RowPiece<I> edge = partition.piece(first + s);
    const auto triplet = [&](int x) { return order.triplet(edge.begin + x); };
    for (int c0 = 0; c0 < num_y; c0 += 32 * cols) {
        const LaneColumns<cols> columns{c0 + int(threadIdx.x), num_y};
        for (int z0 = 0; z0 < num_z; z0 += rows) {
            T sum[rows][cols] = {};
            add_matrix_product(
                stage, edge.size, num_z - z0, right + z0, [&](int x) { return triplet(x) * num_z; }, left,
                [&](int x) { return triplet(x) * num_y; }, columns, sum);
            T* const target = out + s * num_y * num_z + z0;
#pragma unroll
            for (int y = 0; y < cols; y++) {
#pragma unroll
                for (int z = 0; z < rows; z++) {
                    if (columns.has(y) && z0 + z < num_z) {
                        target[(columns.first + 32 * y) * num_z + z] = sum[z][y];
                    }
                }
            }
        }
    }
}
