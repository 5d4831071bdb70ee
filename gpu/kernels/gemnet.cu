// GemNet-OC's efficient bilinear. Per edge B[s,c] = sum over its triplets t of sph[t,s] m[t,c] and, per output,
// P[i,c] = sum over its edges and over s of rad_W1[e,i,s] B[s,c]; the rest is a matrix product. gpu/gemnet.py states
// the formulas and launches the kernels.
//
// A unit is a piece of a row (see sums.cuh): a piece of the triplets of an edge or, with triplet_offsets, of the edges
// of an atom, each with all its triplets. Kernels have a block of threads for each unit; units, and arrays over units,
// start at number `first`. Null pointers omit a term or an output.
#include "matrices.cuh"

struct Sizes {
    int interm;
    int spherical;
    int emb_in;
};

// The edges of a unit and the triplets of an edge.
template <class I> struct Unit {
    Piece<I> piece;
    const I* triplet_offsets;
    const I* atom_order;

    __device__ int edges() const { return triplet_offsets == nullptr ? 1 : piece.size; }

    // Edge number j: its row, and the start and number of its triplets.
    __device__ Piece<I> edge(int j) const {
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
    __device__ long long input(long long position) const {
        const long long t = triplet(position);
        return inputs == nullptr ? t : inputs[t];
    }
};

// A basis and its values, with derivatives along the cotangents.
template <class T> struct Pairs {
    const T* sph;
    const T* sph_dot;
    const T* m;
    const T* m_dot;

    __device__ bool varied() const { return sph_dot != nullptr || m_dot != nullptr; }
};

constexpr int tile_elements = product_side * product_stride;
constexpr int triplets_at_a_time = 256;
constexpr int run_bits = 4;  // of the tree below: 16 sums at a level

// A tree of sums of triplets_at_a_time triplets, to avoid long chains of additions: 16 of them in `to`, 16 of these in
// the first tile of `spare`, the rest in the second. Up to 16 sums need no `spare`.
template <class T> struct TripletSum {
    T* to;
    T* spare;
    int count;  // total number of sums

    __device__ T* level(int l, int at) const { return (l == 0 ? to : spare + (l - 1) * tile_elements) + at; }

    // Adds sum number k at an element of the tile.
    __device__ void add(int k, int at, T sum) const {
        for (int l = 0; l < 3; l++) {
            const int number = k >> run_bits * l;
            const int in_run = l == 2 || count <= 1 << run_bits ? number : number % (1 << run_bits);
            T* const target = level(l, at);
            sum = in_run == 0 ? sum : *target + sum;
            *target = sum;
            if (in_run != (1 << run_bits) - 1 || l == 2 || count <= 1 << run_bits) {
                return;
            }
        }
    }

    // Writes the sum of all three levels to element `at` of `to`.
    __device__ void finish(int at) const {
        if (count > 1 << run_bits) {
            T sum = count % (1 << run_bits) != 0 ? to[at] : T(0);
            sum = (count >> run_bits) % (1 << run_bits) != 0 ? *level(1, at) + sum : sum;
            to[at] = count >> 2 * run_bits != 0 ? *level(2, at) + sum : sum;
        }
    }
};

// to[y, z] = sum over the edge's triplets of sph[s0 + y] m[c0 + z] or, with `dot`, of sph_dot m + sph m_dot. `spare`
// has two tiles if an edge has more than 16 * triplets_at_a_time triplets.
template <class T, class I>
__device__ void sum_triplets(const Tile& tile, const Sizes& sizes, const Pairs<T>& pairs, bool dot, const Rows<I>& rows,
                             const Piece<I>& edge, int s0, int c0, T* factors, T* to, T* spare) {
    const int num_s = min(tile.rows(), sizes.spherical - s0), num_c = min(tile.cols(), sizes.emb_in - c0);
    const TripletSum<T> total{to, spare, (edge.size + triplets_at_a_time - 1) / triplets_at_a_time};
    for (int k = 0; k < total.count; k++) {
        const long long begin = edge.begin + k * triplets_at_a_time;
        const int num_t = min(triplets_at_a_time, edge.size - k * triplets_at_a_time);
        Product<T> product(tile, factors);
        for (int pair = 0; pair < (dot ? 2 : 1); pair++) {
            const T* const sph = dot && pair == 0 ? pairs.sph_dot : pairs.sph;
            const T* const m = pair == 1 ? pairs.m_dot : pairs.m;
            if (sph != nullptr && m != nullptr) {
                product.add(
                    num_s, num_c, num_t, false, false,
                    [&](int x, int y) { return sph[rows.triplet(begin + x) * sizes.spherical + s0 + y]; },
                    [&](int x, int z) { return m[rows.input(begin + x) * sizes.emb_in + c0 + z]; });
            }
        }
        product.reduce();
        product.each(num_s, num_c, [&](int y, int z, T sum) { total.add(k, y * product_stride + z, sum); });
        if (k == total.count - 1) {
            product.each(num_s, num_c, [&](int y, int z, T) { total.finish(y * product_stride + z); });
        }
    }
    __syncthreads();
}

// As product_blocks_per_sm, for a kernel with totals in registers.
template <class T> constexpr int total_blocks_per_sm = sizeof(T) == 4 ? 5 : 3;

// p[s, i, c] = sum over the unit's edges of r_dot B + r B_dot, with the derivative B_dot of B. A block computes a tile
// of p; the tile of B has the same columns.
template <class T, class I>
__global__ void __launch_bounds__(128, total_blocks_per_sm<T>)
gemnet_products(const T* __restrict__ r, const T* __restrict__ r_dot, const T* __restrict__ sph,
                const T* __restrict__ sph_dot, const T* __restrict__ m, const T* __restrict__ m_dot, const Cut<I> cut,
                const I* __restrict__ triplet_offsets, const I* __restrict__ atom_order,
                const I* __restrict__ triplet_order, const I* __restrict__ inputs, long long first, int interm,
                int spherical, int emb_in, int row_bits, int col_bits, T* __restrict__ p) {
    __shared__ __align__(16) T factors[product_elements];
    __shared__ T b[tile_elements];
    extern __shared__ double spare[];
    const Sizes sizes{interm, spherical, emb_in};
    const Pairs<T> pairs{sph, sph_dot, m, m_dot};
    const Rows<I> rows{triplet_order, inputs};
    const Tile tile{row_bits, col_bits}, tile_b = Tile::of(spherical, emb_in);
    const unsigned col_tiles = (emb_in + tile.cols() - 1) / tile.cols();
    const unsigned tiles = col_tiles * ((interm + tile.rows() - 1) / tile.rows());
    const int i0 = int(blockIdx.x % tiles / col_tiles) * tile.rows(), c0 = int(blockIdx.x % col_tiles) * tile.cols();
    const int num_i = min(tile.rows(), interm - i0), num_c = min(tile.cols(), emb_in - c0);
    const long long s = blockIdx.x / tiles;
    const Unit<I> unit{cut.piece(first + s), triplet_offsets, atom_order};
    Product<T> product(tile, factors), total(tile, factors);
    for (int j = 0; j < unit.edges(); j++) {
        const Piece<I> edge = unit.edge(j);
        for (int dot = r_dot == nullptr; dot < (r != nullptr && pairs.varied() ? 2 : 1) && edge.size > 0; dot++) {
            const T* const radial = (dot ? r : r_dot) + ((long long)(edge.row) * interm + i0) * spherical;
            for (int s0 = 0; s0 < spherical; s0 += tile_b.rows()) {
                sum_triplets(tile_b, sizes, pairs, dot, rows, edge, s0, c0, factors, b, reinterpret_cast<T*>(spare));
                product.add(
                    num_i, num_c, min(tile_b.rows(), spherical - s0), true, false,
                    [&](int x, int y) { return radial[y * spherical + s0 + x]; },
                    [&](int x, int z) { return b[x * product_stride + z]; });
            }
        }
        if (j % 16 == 15) {
            product.move_to(total.sum);
        }
    }
    product.move_to(total.sum);
    total.reduce();
    T* const target = p + (s * interm + i0) * emb_in + c0;
    total.each(num_i, num_c, [&](int y, int z, T sum) { target[(long long)(y) * emb_in + z] = sum; });
}

// ---- gradients ------------------------------------------------------------------------------------------------------

// target[i, s0 + z] (+)= sum over c of the tile of q_dot[i, c] B[z, c] + q[i, c] B_dot[z, c]; the first tile is not
// added.
template <class T>
__device__ void radial_gradient(const Tile& tile_b, const Sizes& sizes, const T* q_dot, const T* q, int s0, int c0,
                                T* factors, const T* b, const T* b_dot, T* target) {
    const int num_s = min(tile_b.rows(), sizes.spherical - s0), num_c = min(tile_b.cols(), sizes.emb_in - c0);
    const Tile tile = Tile::of(sizes.interm, min(tile_b.rows(), sizes.spherical));
    for (int i0 = 0; i0 < sizes.interm; i0 += tile.rows()) {
        const int num_i = min(tile.rows(), sizes.interm - i0);
        Product<T> product(tile, factors);
        for (int dot = 0; dot < 2; dot++) {
            const T* const outer = dot ? q : q_dot;
            const T* const sums = dot ? b_dot : b;
            if (outer != nullptr) {
                product.add(
                    num_i, num_s, num_c, true, true,
                    [&](int x, int y) { return outer[(long long)(i0 + y) * sizes.emb_in + c0 + x]; },
                    [&](int x, int z) { return sums[z * product_stride + x]; });
            }
        }
        product.reduce();
        product.each(num_i, num_s, [&](int y, int z, T sum) {
            T* const to = target + (long long)(i0 + y) * sizes.spherical + s0 + z;
            *to = c0 == 0 ? sum : *to + sum;
        });
    }
}

// to[y, z] = sum over i of r[i, s0 + y] q[i, c0 + z] for one or two pairs of r and q; the second may be null.
template <class T>
__device__ void spread_outputs(const Tile& tile, const Sizes& sizes, const T* r, const T* q, const T* r_1, const T* q_1,
                               int s0, int c0, T* factors, T* to) {
    const int num_s = min(tile.rows(), sizes.spherical - s0), num_c = min(tile.cols(), sizes.emb_in - c0);
    Product<T> product(tile, factors);
    for (int pair = 0; pair < 2; pair++) {
        const T* const radial = pair == 0 ? r : r_1;
        const T* const outputs = pair == 0 ? q : q_1;
        if (radial != nullptr && outputs != nullptr) {
            product.add(
                num_s, num_c, sizes.interm, false, false,
                [&](int x, int y) { return radial[(long long)(x) * sizes.spherical + s0 + y]; },
                [&](int x, int z) { return outputs[(long long)(x) * sizes.emb_in + c0 + z]; });
        }
    }
    product.reduce();
    product.each(num_s, num_c, [&](int y, int z, T sum) { to[y * product_stride + z] = sum; });
    __syncthreads();
}

// With tiles d_dot and d of the gradients of B and B_dot, for the edge's triplets t:
// grad_m[t, c0 + z] (+)= sum over s of sph d_dot + sph_dot d; grad_sph[t, s0 + z] (+)= sum over c of m d_dot + m_dot d.
template <class T, class I>
__device__ void triplet_gradients(const Tile& tile_b, const Sizes& sizes, const Pairs<T>& pairs, const Rows<I>& rows,
                                  const Piece<I>& edge, int s0, int c0, T* factors, const T* d_dot, const T* d,
                                  T* grad_sph, T* grad_m) {
    const int num_s = min(tile_b.rows(), sizes.spherical - s0), num_c = min(tile_b.cols(), sizes.emb_in - c0);
    for (int k = 0; k < 2; k++) {
        T* const out = k == 0 ? grad_m : grad_sph;
        const int num_z = k == 0 ? num_c : num_s, depth = k == 0 ? num_s : num_c;
        const int width = k == 0 ? sizes.emb_in : sizes.spherical, width_x = k == 0 ? sizes.spherical : sizes.emb_in;
        const int z0 = k == 0 ? c0 : s0, x0 = k == 0 ? s0 : c0;
        const int d_x = k == 0 ? product_stride : 1, d_z = k == 0 ? 1 : product_stride;
        const Tile tile = Tile::of(product_side, num_z);
        for (int t0 = 0; out != nullptr && t0 < edge.size; t0 += tile.rows()) {
            const long long begin = edge.begin + t0;
            const int num_t = min(tile.rows(), edge.size - t0);
            Product<T> product(tile, factors);
            for (int dot = 0; dot < 2; dot++) {
                const T* const values = k == 0 ? (dot ? pairs.sph_dot : pairs.sph) : (dot ? pairs.m_dot : pairs.m);
                const T* const factor = dot ? d : d_dot;
                if (values != nullptr) {
                    product.add(
                        num_t, num_z, depth, true, d_x == 1,
                        [&](int x, int y) {
                            const long long row = k == 0 ? rows.triplet(begin + y) : rows.input(begin + y);
                            return values[row * width_x + x0 + x];
                        },
                        [&](int x, int z) { return factor[x * d_x + z * d_z]; });
                }
            }
            product.reduce();
            product.each(num_t, num_z, [&](int y, int z, T sum) {
                T* const to = out + rows.triplet(begin + y) * width + z0 + z;
                *to = x0 == 0 ? sum : *to + sum;
            });
        }
    }
}

// The gradient of rad_W1 for the unit's edges, q_dot B^T + q B_dot^T with q of the unit's output and its derivative
// q_dot; a row for each unit if `by_unit`, else for each edge.
template <class T, class I>
__global__ void __launch_bounds__(128, product_blocks_per_sm<T>)
gemnet_radial(const T* __restrict__ q, const T* __restrict__ q_dot, const T* __restrict__ sph,
              const T* __restrict__ sph_dot, const T* __restrict__ m, const T* __restrict__ m_dot, const Cut<I> cut,
              const I* __restrict__ triplet_offsets, const I* __restrict__ atom_order,
              const I* __restrict__ triplet_order, const I* __restrict__ inputs, long long first, int interm,
              int spherical, int emb_in, int by_unit, T* __restrict__ out) {
    __shared__ __align__(16) T factors[product_elements];
    __shared__ T b[tile_elements];
    __shared__ T b_dot[tile_elements];
    extern __shared__ double spare[];
    const Sizes sizes{interm, spherical, emb_in};
    const Pairs<T> pairs{sph, sph_dot, m, m_dot};
    const Rows<I> rows{triplet_order, inputs};
    const Tile tile = Tile::of(spherical, emb_in);
    const long long s = blockIdx.x, q_size = (long long)(interm) * emb_in, size = (long long)(interm) * spherical;
    const T* const outer = q == nullptr || !pairs.varied() ? nullptr : q + s * q_size;
    const T* const outer_dot = q_dot == nullptr ? nullptr : q_dot + s * q_size;
    T* const beyond = reinterpret_cast<T*>(spare);
    const Unit<I> unit{cut.piece(first + s), triplet_offsets, atom_order};
    for (int j = 0; j < unit.edges(); j++) {
        const Piece<I> edge = unit.edge(j);
        T* const target = out + (by_unit ? first + s : (long long)(edge.row)) * size;
        for (int i = threadIdx.x; edge.size == 0 && i < size; i += blockDim.x) {
            target[i] = T(0);
        }
        for (int c0 = 0; edge.size > 0 && c0 < emb_in; c0 += tile.cols()) {
            for (int s0 = 0; s0 < spherical; s0 += tile.rows()) {
                if (outer_dot != nullptr) {
                    sum_triplets(tile, sizes, pairs, false, rows, edge, s0, c0, factors, b, beyond);
                }
                if (outer != nullptr) {
                    sum_triplets(tile, sizes, pairs, true, rows, edge, s0, c0, factors, b_dot, beyond);
                }
                radial_gradient(tile, sizes, outer_dot, outer, s0, c0, factors, b, b_dot, target);
            }
        }
    }
}

// The gradients of sph and m for the unit's triplets: with d_dot = r^T q_dot + r_dot^T q and d = r^T q of each edge,
// grad_sph = d_dot m + d m_dot and grad_m = d_dot sph + d sph_dot, which has a row for each triplet.
template <class T, class I>
__global__ void __launch_bounds__(128, product_blocks_per_sm<T>)
gemnet_triplets(const T* __restrict__ q, const T* __restrict__ q_dot, const T* __restrict__ r,
                const T* __restrict__ r_dot, const T* __restrict__ sph, const T* __restrict__ sph_dot,
                const T* __restrict__ m, const T* __restrict__ m_dot, const Cut<I> cut,
                const I* __restrict__ triplet_offsets, const I* __restrict__ atom_order,
                const I* __restrict__ triplet_order, const I* __restrict__ inputs, long long first, int interm,
                int spherical, int emb_in, T* __restrict__ grad_sph, T* __restrict__ grad_m) {
    __shared__ __align__(16) T factors[product_elements];
    __shared__ T d_dot[product_side * product_stride];
    __shared__ T d[product_side * product_stride];
    const Sizes sizes{interm, spherical, emb_in};
    const Pairs<T> pairs{sph, sph_dot, m, m_dot};
    const Rows<I> rows{triplet_order, inputs};
    const Tile tile = Tile::of(spherical, emb_in);
    const long long s = blockIdx.x, q_size = (long long)(interm) * emb_in, r_size = (long long)(interm) * spherical;
    const T* const outer = q == nullptr ? nullptr : q + s * q_size;
    const T* const outer_dot = q_dot == nullptr ? nullptr : q_dot + s * q_size;
    const Unit<I> unit{cut.piece(first + s), triplet_offsets, atom_order};
    for (int j = 0; j < unit.edges(); j++) {
        const Piece<I> edge = unit.edge(j);
        const T* const radial = r + edge.row * r_size;
        const T* const radial_dot = r_dot == nullptr ? nullptr : r_dot + edge.row * r_size;
        for (int c0 = 0; edge.size > 0 && c0 < emb_in; c0 += tile.cols()) {
            for (int s0 = 0; s0 < spherical; s0 += tile.rows()) {
                spread_outputs(tile, sizes, radial, outer_dot, radial_dot, outer, s0, c0, factors, d_dot);
                if (pairs.varied()) {
                    spread_outputs<T>(tile, sizes, radial, outer, nullptr, nullptr, s0, c0, factors, d);
                }
                triplet_gradients(tile, sizes, pairs, rows, edge, s0, c0, factors, d_dot, d, grad_sph, grad_m);
            }
        }
    }
}

// out[s] = values[row of unit s if `by_row`, else s] if the unit has triplets, else 0; one warp per unit.
template <class T, class I>
__global__ void __launch_bounds__(128)
gemnet_select(const T* values, const Cut<I> cut, const I* __restrict__ triplet_offsets,
              const I* __restrict__ atom_order, int by_row, int width, T* out) {
    const long long s = (long long)(blockIdx.x) * 4 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const Unit<I> unit{cut.piece(s), triplet_offsets, atom_order};
    bool any = false;
    for (int j = lane; s < cut.num_pieces && j < unit.edges(); j += 32) {
        any = any || unit.edge(j).size > 0;
    }
    any = __any_sync(0xffffffffu, any);
    for (int j = lane; s < cut.num_pieces && j < width; j += 32) {
        const long long row = by_row ? (long long)(unit.piece.row) : s;
        out[s * width + j] = any ? values[row * width + j] : T(0);
    }
}

// ---- basis embedding of triplets ------------------------------------------------------------------------------------

// out[t, y] = sum over x of left[t, x] a[s, y, x] + left_1[t, x] a_1[s, y, x] for the triplets t of unit s; the strides
// of a determine its fast axis.
template <class T, class I>
__global__ void __launch_bounds__(128, product_blocks_per_sm<T>)
gemnet_embed(const T* __restrict__ left, const T* __restrict__ a, const T* __restrict__ left_1,
             const T* __restrict__ a_1, const Cut<I> cut, const I* __restrict__ triplet_order, long long first,
             int num_y, int num_x, int y_stride, int x_stride, T* __restrict__ out) {
    __shared__ __align__(16) T factors[product_elements];
    const Rows<I> rows{triplet_order, nullptr};
    const Tile tile = Tile::of(product_side, num_y);
    const long long s = blockIdx.x;
    const Piece<I> edge = cut.piece(first + s);
    for (int t0 = 0; t0 < edge.size; t0 += tile.rows()) {
        const int num_t = min(tile.rows(), edge.size - t0);
        for (int y0 = 0; y0 < num_y; y0 += tile.cols()) {
            Product<T> product(tile, factors);
            for (int pair = 0; pair < 2; pair++) {
                const T* const values = pair == 0 ? left : left_1;
                const T* const matrix = pair == 0 ? a : a_1;
                if (values != nullptr && matrix != nullptr) {
                    const T* const block = matrix + s * num_y * num_x + (long long)(y0) * y_stride;
                    product.add(
                        num_t, min(tile.cols(), num_y - y0), num_x, true, x_stride == 1,
                        [&](int x, int y) { return values[rows.triplet(edge.begin + t0 + y) * num_x + x]; },
                        [&](int x, int z) { return block[(long long)(z) * y_stride + (long long)(x) * x_stride]; });
                }
            }
            product.reduce();
            product.each(num_t, min(tile.cols(), num_y - y0), [&](int y, int z, T sum) {
                out[rows.triplet(edge.begin + t0 + y) * num_y + y0 + z] = sum;
            });
        }
    }
}

// out[s, y, z] = sum over the triplets t of unit s of left[t, y] right[t, z].
template <class T, class I>
__global__ void __launch_bounds__(128, product_blocks_per_sm<T>)
gemnet_outer(const T* __restrict__ left, const T* __restrict__ right, const Cut<I> cut,
             const I* __restrict__ triplet_order, long long first, int num_y, int num_z, T* __restrict__ out) {
    __shared__ __align__(16) T factors[product_elements];
    const Rows<I> rows{triplet_order, nullptr};
    const Tile tile = Tile::of(num_y, num_z);
    const long long s = blockIdx.x;
    const Piece<I> edge = cut.piece(first + s);
    for (int y0 = 0; y0 < num_y; y0 += tile.rows()) {
        for (int z0 = 0; z0 < num_z; z0 += tile.cols()) {
            const T* const left_tile = left + y0;
            const T* const right_tile = right + z0;
            Product<T> product(tile, factors);
            product.add(
                min(tile.rows(), num_y - y0), min(tile.cols(), num_z - z0), edge.size, false, false,
                [&](int x, int y) { return left_tile[rows.triplet(edge.begin + x) * num_y + y]; },
                [&](int x, int z) { return right_tile[rows.triplet(edge.begin + x) * num_z + z]; });
            product.reduce();
            T* const target = out + (s * num_y + y0) * num_z + z0;
            product.each(min(tile.rows(), num_y - y0), min(tile.cols(), num_z - z0),
                         [&](int y, int z, T sum) { target[(long long)(y) * num_z + z] = sum; });
        }
    }
}
