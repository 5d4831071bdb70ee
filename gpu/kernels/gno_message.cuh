// Kernels of gno_message and of the gradient of V^, which keep the moments of pieces in shared memory.
//
// A block of threads processes a few pieces. It loops over slabs of their moments, of 16 hidden units by 32 features. A
// warp computes the moments of one piece at a time from the hidden units and features of its edges, which it stages in
// shared memory. Then all warps multiply the slabs of all pieces by the slab of V^, which they read from global memory
// only once. The second order launches the same kernels with cotangents.
//
// At most 16 terms are added in a row, and then at most 16 of these sums. Sums of a piece depend only on its edges.
#pragma once

#include "gno_network.cuh"

// Minimum of resident blocks per multiprocessor (__launch_bounds__); the resulting register limit causes no spills.
template <class T> constexpr int message_blocks_per_sm = sizeof(T) == 4 ? 4 : 3;

// Extents of slabs; every kernel needs less than 48 KB of shared memory.
template <class T> struct SlabShape {
    static constexpr int warps = THREADS / 32, units = 16, features = 32;
    static constexpr int pieces = 64 / int(sizeof(T));                    // pieces of a block
    static constexpr int lane_pieces = pieces / 4;                        // pieces of a lane in products with V^
    static constexpr int depth = 64 / int(sizeof(T));                     // edges that a warp processes at a time
    static constexpr int slots = 32 / depth, lane_units = units / slots;  // lanes for an edge, and units of a lane
    // Rows are padded by 16 bytes, so that neighbouring rows are in different banks.
    static constexpr int pad = 16 / int(sizeof(T));
    static constexpr int unit_stride = units + pad, feature_stride = features + pad;
    static constexpr int piece_stride = units * features + pad;
    static constexpr int edge_elements = depth * (unit_stride + feature_stride);
};

__device__ inline int lane_of_warp() { return threadIdx.x % 32; }
__device__ inline int warp_of_block() { return threadIdx.x / 32; }

// Up to 16 consecutive pieces, starting with number `first`. Two lanes of a warp hold each piece.
template <class I> struct WarpPieces {
    I begin;
    int size;

    __device__ WarpPieces(const RowPartition<I>& partition, long long first, int count) {
        const int p = lane_of_warp() % 16;
        const RowPiece<I> piece = partition.piece(first + p);
        begin = piece.begin;
        size = p < count ? piece.size : 0;
    }
    __device__ RowPiece<I> at(int p) const {
        return {I(0), __shfl_sync(0xffffffffu, begin, p), __shfl_sync(0xffffffffu, size, p)};
    }
};

// Consecutive edges of a piece, and the slab for which they are processed.
template <class I> struct EdgeChunk {
    I position;  // position of the first edge
    int edges;
    int k0;
    int units;
    int f0;
    int f_in;
};

// The hidden units and features of a warp's edges in shared memory.
template <class S, class T> struct EdgeTile {
    T* units;     // a or a_dot, (depth, unit_stride)
    T* features;  // (depth, feature_stride)

    __device__ explicit EdgeTile(T* buffer)
        : units(buffer + warp_of_block() * S::edge_elements), features(units + S::depth * S::unit_stride) {}

    // Loads the units k0 .. k0 + 15 of the edges, with zeros beyond the last unit or edge. A lane loads `lane_units`
    // units of edge lane % depth, starting at number lane / depth * lane_units. Bit j of the result says whether the
    // lane's unit j is active.
    template <bool whole, class I>
    __device__ unsigned stage_units(const KernelNetwork<T>& network, bool dot, const I* edge_ids,
                                    const EdgeChunk<I>& chunk) const {
        const int e = lane_of_warp() % S::depth, k = lane_of_warp() / S::depth * S::lane_units;
        T run[S::lane_units] = {};
        unsigned bits = 0;
        if (e < chunk.edges) {
            bits = network.template compute_hidden_units<whole>(dot, edge_ids[chunk.position + I(e)], chunk.k0 + k,
                                                                run);
        }
        write(units + e * S::unit_stride + k, run);
        return bits;
    }

    // Loads the features f0 .. f0 + 31 of the edges' sources, with zeros beyond the last feature or edge.
    template <bool whole, class I>
    __device__ void stage_features(const T* h, const I* indices, const EdgeChunk<I>& chunk) const {
        const int f = lane_of_warp() % 8 * 4, count = chunk.f_in - chunk.f0 - f;
#pragma unroll
        for (int i = 0; i < S::depth; i += 4) {
            const int e = lane_of_warp() / 8 + i;
            T run[4] = {};
            if (e < chunk.edges) {
                const T* const row = row_at(h, indices[chunk.position + I(e)], chunk.f_in);
                load_run<whole>(row + chunk.f0 + f, count, chunk.f_in % 4 == 0, run);
            }
            write(features + e * S::feature_stride + f, run);
        }
    }

    // Loads units and, unless `h` is null, features. Returns the result of stage_units.
    template <bool whole, class I>
    __device__ unsigned stage_units_and_features(const KernelNetwork<T>& network, bool dot, const T* h,
                                                 const I* indices, const I* edge_ids, const EdgeChunk<I>& chunk) const {
        if (h != nullptr) {
            stage_features<whole>(h, indices, chunk);
        }
        return stage_units<whole>(network, dot, edge_ids, chunk);
    }
};

// Whether all units and features of a slab exist and can be read 16 bytes at a time.
template <class S, class T> __device__ bool is_whole_slab(const KernelNetwork<T>& network, int k0, int f0, int f_in) {
    return k0 + S::units <= network.hidden && f0 + S::features <= f_in && f_in % 4 == 0 && network.allows_wide_access();
}

// An argument whose value is known at compile time.
template <bool known> struct CompileTimeBool {
    __device__ constexpr operator bool() const { return known; }
};

// Computes moments of pieces. A null pointer h_by_a or h_by_a_dot omits a term.
template <class S, class T, class I> struct MomentCalculator {
    const KernelNetwork<T>& network;
    const I* indices;
    const I* edge_ids;
    const T* h_by_a;
    const T* h_by_a_dot;
    int f_in;
    EdgeTile<S, T> tile;

    // t[k, f] = sum over a piece's edges of a^[k0 + k] h_by_a[f0 + f] + a_dot[k0 + k] h_by_a_dot[f0 + f], by a warp.
    __device__ void compute_piece_moments(const RowPiece<I>& piece, int k0, int f0, T* t) const {
        if (is_whole_slab<S>(network, k0, f0, f_in)) {
            compute_slab_moments<true>(piece, k0, f0, t);
        } else {
            compute_slab_moments<false>(piece, k0, f0, t);
        }
    }

private:
    template <bool whole> __device__ void compute_slab_moments(const RowPiece<I>& piece, int k0, int f0, T* t) const {
        const int lane = lane_of_warp(), row = lane / 8 * 4, col = lane % 8 * 4;
        const int units = whole ? S::units : min(S::units, network.hidden - k0);
        const int width = whole ? S::features : min(S::features, f_in - f0);
        T part[4][4] = {};
        T ones = T(0);  // sum of feature number `lane`, for the row of b_v if it is in the slab
        bool fresh = true;
        T* const target = t + row * S::features + col;
        // Adds the products of the features h with a or, if `dot`, with a_dot.
        const auto add_term = [&](auto dot, const T* h) {
            for (int e0 = 0; e0 < piece.size; e0 += S::depth) {
                const int edges = min(S::depth, piece.size - e0);
                const EdgeChunk<I> chunk{piece.begin + I(e0), edges, k0, units, f0, f_in};
                if (units > 0) {
                    tile.template stage_units<whole>(network, dot, edge_ids, chunk);
                }
                tile.template stage_features<whole>(h, indices, chunk);
                __syncwarp();
                if (units > 0) {
                    add_edge_products(edges, row, col, part);
                    if ((e0 + S::depth) % 16 == 0 || e0 + S::depth >= piece.size) {
                        flush_part_to_moments(part, fresh, units - row, width - col, target);
                        fresh = false;
                    }
                }
                if (units < S::units && !dot) {
                    ones += sum_features(edges, lane);
                }
                __syncwarp();
            }
        };
        if (h_by_a != nullptr) {
            add_term(CompileTimeBool<false>{}, h_by_a);
        }
        if (h_by_a_dot != nullptr) {
            add_term(CompileTimeBool<true>{}, h_by_a_dot);
        }
        if (fresh) {
            flush_part_to_moments(part, fresh, units - row, width - col, target);
        }
        if (units < S::units) {
            t[units * S::features + lane] = lane < width ? ones : T(0);
        }
    }

    // part[i][j] += sum over the edges of units[row + i] features[col + j]. The staged edges end with zeros.
    __device__ void add_edge_products(int edges, int row, int col, T (&part)[4][4]) const {
#pragma unroll
        for (int e = 0; e < S::depth; e += 4) {
            if (e >= edges) {
                break;
            }
#pragma unroll
            for (int x = e; x < e + 4; x++) {
                T l[4], r[4];
                read(tile.units + x * S::unit_stride + row, l);
                read(tile.features + x * S::feature_stride + col, r);
                add_outer(l, r, part);
            }
        }
    }

    // Returns the sum of feature number f over the edges.
    __device__ T sum_features(int edges, int f) const {
        T sum = T(0);
#pragma unroll 1
        for (int e = 0; e < edges; e += 4) {
#pragma unroll
            for (int x = e; x < e + 4; x++) {
                sum += tile.features[x * S::feature_stride + f];
            }
        }
        return sum;
    }

    // Adds `part` to a matrix in shared memory, with zeros beyond the last column, and clears `part`.
    static __device__ void flush_part_to_moments(T (&part)[4][4], bool fresh, int rows, int cols, T* t) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            T before[4] = {};
            if (!fresh && i < rows) {
                read(t + i * S::features, before);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                before[j] = j < cols ? before[j] + part[i][j] : T(0);
                part[i][j] = T(0);
            }
            if (i < rows) {
                write(t + i * S::features, before);
            }
        }
    }
};

// total[i][j] += sum over the rows k < `rows` of this warp and over f of t[p, k, f] V^[k0 + k, f0 + f, o + j] for the
// pieces p = lane / 8 + 4 i and columns from o = o0 + lane % 8 * 4 on.
template <class S, bool whole, class T>
__device__ void multiply_moments_by_v(const T* t, const T* v_hat, int rows, int k0, int f0, int f_in, int o0, int f_out,
                                      bool wide, T (&total)[S::lane_pieces][4]) {
    const int p = lane_of_warp() / 8, o = o0 + lane_of_warp() % 8 * 4;
    const int width = whole ? S::features : min(S::features, f_in - f0);
    for (int k = warp_of_block(); k < rows; k += S::warps) {
        const T* v = v_hat + ((long long)(k0 + k) * f_in + f0) * f_out + o;
        const T* of_row = t + p * S::piece_stride + k * S::features;
        for (int f0 = 0; f0 < width; f0 += 16) {
            T part[S::lane_pieces][4] = {};
#pragma unroll 1
            for (int f = f0; f < min(f0 + 16, width); f += 4, of_row += 4) {
                T right[4][4] = {};
#pragma unroll
                for (int x = 0; x < 4; x++, v += f_out) {
                    load_run<whole>(v, f + x < width ? f_out - o : 0, wide, right[x]);
                }
#pragma unroll
                for (int i = 0; i < S::lane_pieces; i++) {
                    T left[4];
                    read(of_row + i * 4 * S::piece_stride, left);
                    add_row_product(left, right, part[i]);
                }
            }
            add_elementwise(total, part);
        }
    }
}

// out[i] (+)= sum over the pieces of row i of T V^, where T are the moments of a piece. Rows without edges are zero,
// even if V^ is NaN. The pieces of a long row write to `overflow`.
template <class T, class I>
__device__ void compute_message(const KernelNetwork<T>& network, const T* v_hat, const T* h_by_a, const T* h_by_a_dot,
                                const RowPartition<I>& partition, const I* indices, const I* edge_ids, int f_in,
                                int f_out, int add, T* out, T* overflow) {
    using S = SlabShape<T>;
    __shared__ __align__(16) T slabs[S::pieces * S::piece_stride];
    __shared__ __align__(16) T buffer[S::warps * S::edge_elements];
    const MomentCalculator<S, T, I> moments{network, indices, edge_ids, h_by_a, h_by_a_dot, f_in,
                                            EdgeTile<S, T>(buffer)};
    const long long s0 = (long long)(blockIdx.x) * S::pieces;
    const WarpPieces<I> pieces(partition, s0, S::pieces);
    const int last_row = network.hidden + (h_by_a != nullptr);  // end of the rows with moments
    const bool wide = f_out % 4 == 0 && is_aligned(v_hat);
    constexpr int lane_columns = S::pieces * 32 / THREADS;
    const int own = int(threadIdx.x) * lane_columns / 32, column = int(threadIdx.x) * lane_columns % 32;
    const long long s = s0 + own;
    const bool has_edges = pieces.at(own).size > 0;
    T* const target = s < partition.num_pieces ? partition.output_address(s, f_out, out, overflow) : nullptr;
    for (int f0 = 0; f0 < f_in; f0 += S::features) {
        for (int k0 = 0; k0 < last_row; k0 += S::units) {
            const int rows = min(S::units, last_row - k0);
            for (int p = warp_of_block(); p < S::pieces; p += S::warps) {
                moments.compute_piece_moments(pieces.at(p), k0, f0, slabs + p * S::piece_stride);
            }
            __syncthreads();
            for (int o0 = 0; o0 < f_out; o0 += 32) {
                T total[S::lane_pieces][4] = {};
                if (wide && f0 + S::features <= f_in && o0 + 32 <= f_out) {
                    multiply_moments_by_v<S, true>(slabs, v_hat, rows, k0, f0, f_in, o0, f_out, wide, total);
                } else {
                    multiply_moments_by_v<S, false>(slabs, v_hat, rows, k0, f0, f_in, o0, f_out, wide, total);
                }
#pragma unroll
                for (int i = 0; i < S::lane_pieces; i++) {
                    const int p = warp_of_block() * S::pieces + lane_of_warp() / 8 + 4 * i;
                    write(buffer + p * 32 + lane_of_warp() % 8 * 4, total[i]);
                }
                __syncthreads();
                const bool fresh = !add && k0 == 0 && f0 == 0;
#pragma unroll
                for (int j = 0; j < lane_columns; j++) {
                    const T* const sums = buffer + own * 32 + column + j;
                    constexpr int stride = S::pieces * 32;
                    const T sum = (sums[0] + sums[stride]) + (sums[2 * stride] + sums[3 * stride]);
                    const int o = o0 + column + j;
                    if (target != nullptr && o < f_out) {
                        target[o] = fresh ? (has_edges ? sum : T(0)) : has_edges ? target[o] + sum : target[o];
                    }
                }
                __syncthreads();
            }
        }
    }
}

template <class T, class I>
__global__ void __launch_bounds__(THREADS, message_blocks_per_sm<T>)
gno_message(const KernelNetwork<T> network, const T* __restrict__ v_hat, const T* __restrict__ h_by_a,
            const T* __restrict__ h_by_a_dot, const RowPartition<I> partition, const I* __restrict__ indices,
            const I* __restrict__ edge_ids, int f_in, int f_out, int add, T* out, T* overflow) {
    compute_message(network, v_hat, h_by_a, h_by_a_dot, partition, indices, edge_ids, f_in, f_out, add, out, overflow);
}

// products[k, f, o] (+)= sum over the pieces p of t[p, k, f] g[p, o] for the rows k < `rows` of a slab; rows from
// `used` on have no moments. The same lane computes a sum for all blocks of pieces.
template <class S, bool whole, class T>
__device__ void add_grad_v_terms(const T* t, const T* g, int pieces, int rows, int used, int width, int f_out,
                                 bool wide, bool fresh, long long row_stride, T* products) {
    const int f = lane_of_warp() / 4 * 4, o = lane_of_warp() % 4 * 4;
    for (int k = warp_of_block(); k < rows; k += S::warps) {
        for (int o0 = o; o0 < f_out; o0 += 32) {
            T part[2][4][4] = {};
            const T* from = g + o0;
            const T* of_row = t + k * S::features + f;
#pragma unroll 2
            for (int p = 0; p < (k < used ? pieces : 0); p++, from += f_out, of_row += S::piece_stride) {
                T left[4], right[4];
                read(of_row, left);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    load_run<whole>(from + half * 16, f_out - o0 - half * 16, wide, right);
                    add_outer(left, right, part[half]);
                }
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                T* const target = products + k * row_stride + (f + i) * f_out + o0;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int count = whole || f + i < width ? f_out - o0 - half * 16 : 0;
                    T sum[4] = {};
                    if (!fresh) {
                        load_run<whole>(target + half * 16, count, wide, sum);
                    }
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        sum[j] += part[half][i][j];
                    }
                    store_run<whole>(target + half * 16, count, wide, sum);
                }
            }
        }
    }
}

// products[c, k, f, o] = sum over the pieces of chunk c of T[k, f] g[o]; a chunk has 16 times the pieces of a block.
template <class T, class I>
__device__ void compute_grad_v(const KernelNetwork<T>& network, const T* h_by_a, const T* h_by_a_dot, const T* g,
                               const RowPartition<I>& partition, const I* indices, const I* edge_ids, long long first,
                               long long count, int f_in, int f_out, T* products) {
    using S = SlabShape<T>;
    __shared__ __align__(16) T slabs[S::pieces * S::piece_stride];
    __shared__ __align__(16) T buffer[S::warps * S::edge_elements];
    const MomentCalculator<S, T, I> moments{network, indices, edge_ids, h_by_a, h_by_a_dot, f_in,
                                            EdgeTile<S, T>(buffer)};
    const unsigned unit_tiles = (network.hidden + S::units) / S::units;  // tiles of H + 1 rows
    const unsigned feature_tiles = (f_in + S::features - 1) / S::features;
    const int k0 = int(blockIdx.x / feature_tiles % unit_tiles) * S::units;
    const int f0 = int(blockIdx.x % feature_tiles) * S::features;
    const long long chunk = blockIdx.x / (unit_tiles * feature_tiles), begin = chunk * 16 * S::pieces;
    const int rows = min(S::units, network.hidden + 1 - k0), width = min(S::features, f_in - f0);
    const int used = min(rows, network.hidden + (h_by_a != nullptr) - k0);  // a_dot has no unit H
    const bool wide = f_out % 4 == 0, whole = wide && f_out % 32 == 0 && width == S::features;
    T* const target = products + ((chunk * (network.hidden + 1) + k0) * f_in + f0) * f_out;
    const long long row_stride = (long long)(f_in) * f_out;
#pragma unroll 1
    for (long long s0 = begin; s0 < min(begin + 16 * S::pieces, count); s0 += S::pieces) {
        const int pieces = count - s0 < S::pieces ? int(count - s0) : S::pieces;
        const WarpPieces<I> of_warp(partition, first + s0, pieces);
        for (int p = warp_of_block(); p < pieces; p += S::warps) {
            moments.compute_piece_moments(of_warp.at(p), k0, f0, slabs + p * S::piece_stride);
        }
        __syncthreads();
        const T* const of_pieces = g + s0 * f_out;
        if (whole) {
            add_grad_v_terms<S, true>(slabs, of_pieces, pieces, rows, used, width, f_out, wide, s0 == begin, row_stride,
                                      target);
        } else {
            add_grad_v_terms<S, false>(slabs, of_pieces, pieces, rows, used, width, f_out, wide, s0 == begin,
                                       row_stride, target);
        }
        __syncthreads();
    }
}

template <class T, class I>
__global__ void __launch_bounds__(THREADS, message_blocks_per_sm<T>)
gno_grad_v(const KernelNetwork<T> network, const T* __restrict__ h_by_a, const T* __restrict__ h_by_a_dot,
           const T* __restrict__ g, const RowPartition<I> partition, const I* __restrict__ indices,
           const I* __restrict__ edge_ids, long long first, long long count, int f_in, int f_out, T* products) {
    compute_grad_v(network, h_by_a, h_by_a_dot, g, partition, indices, edge_ids, first, count, f_in, f_out, products);
}
