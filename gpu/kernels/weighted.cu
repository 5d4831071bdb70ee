// Weighted aggregation: sum, mean, min or max of the messages w_e x_j over the in-edges of a destination i.
// gpu/weighted.py states the formulas and launches the kernels. A null pointer omits a term or an output; null weights
// are 1, and if edge_ids is null, the edge row of each position is the position itself.
#include "rows.cuh"

template <class T, class I> __device__ T get_weight(const T* weights, const I* edge_ids, I p) {
    return weights == nullptr ? T(1) : weights[edge_ids == nullptr ? p : edge_ids[p]];
}

// An Item (see for_each_position) with the row of a position and its weights.
template <class T, class I, int count> struct WeightedItem {
    I row;
    T weights[count];

    __device__ WeightedItem shuffle_from_lane(int lane, int lanes) const {
        WeightedItem other{__shfl_sync(0xffffffffu, row, lane, lanes)};
#pragma unroll
        for (int i = 0; i < count; i++) {
            other.weights[i] = __shfl_sync(0xffffffffu, weights[i], lane, lanes);
        }
        return other;
    }
};

// out[row] = sum of the weights over its positions, or the number of positions if the weights are null.
template <class T, class I>
__global__ void __launch_bounds__(THREADS, gather_blocks_per_sm<T, I>)
weighted_degrees(const T* __restrict__ weights, const RowPartition<I> partition, const I* __restrict__ edge_ids,
                 int position_bits, T* __restrict__ out, T* __restrict__ overflow) {
    const LaneLayout lanes{0, position_bits};
    const long long s = LaneAssignment<1>(lanes, 1).piece;
    const RowPiece<I> piece = partition.piece(s);
    Sum<T> sum;
    int k = 0;
    for (int e = lanes.position(); e < piece.size; e += lanes.positions()) {
        sum.add(get_weight(weights, edge_ids, piece.begin + I(e)), k++);
    }
    const T total = sum_over_positions(lanes, sum.value());
    if (s < partition.num_pieces && lanes.position() == 0) {
        *partition.output_address(s, 1, out, overflow) = total;
    }
}

// out[row] = sum over its positions of weights values[src] and, if `second`, weights_2 (values_2[src] - centre[row]),
// divided by degree[row] for whole rows; sum_long_row_parts divides the sums of long rows.
template <class T, class I, bool wide, bool second>
__global__ void __launch_bounds__(THREADS, second ? few_row_blocks_per_sm<T, I> : gather_blocks_per_sm<T, I>)
weighted_sum(const T* __restrict__ weights, const T* __restrict__ values, const T* __restrict__ weights_2,
             const T* __restrict__ values_2, const T* __restrict__ centre, const T* __restrict__ degree,
             const RowPartition<I> partition, const I* __restrict__ indices, const I* __restrict__ edge_ids, int width,
             const LaneLayout lanes, T* __restrict__ out, T* __restrict__ overflow) {
    constexpr int n = pack_elements<T, wide>;
    using Item = WeightedItem<T, I, second ? 2 : 1>;
    const LaneAssignment<n> place(lanes, width);
    const RowPiece<I> piece = partition.piece(place.piece);
    const bool inside = place.column < width;
    Pack<T, n> base{};
    if (second && centre != nullptr && inside && piece.size > 0) {
        base = load_pack<n>(centre + (long long)(piece.row) * width + place.column);
    }
    Sum<T> sum[n];
    for_each_position<Item>(
        lanes, piece.size, inside,
        [&](int e) {
            const I p = piece.begin + I(e);
            Item item{indices[p], {values == nullptr ? T(0) : get_weight(weights, edge_ids, p)}};
            if constexpr (second) {
                item.weights[1] = get_weight(weights_2, edge_ids, p);
            }
            return item;
        },
        [&](const Item(&items)[unroll], const bool(&valid)[unroll], const int(&)[unroll], int k) {
            Pack<T, n> x[unroll] = {}, x_2[unroll];
            if (!second || values != nullptr) {
                load_item_rows(values + place.column, width, items, valid, x);
            }
            if (second) {
                load_item_rows(values_2 + place.column, width, items, valid, x_2);
            }
#pragma unroll
            for (int u = 0; u < unroll; u++) {
                const T w = valid[u] ? items[u].weights[0] : T(0);
#pragma unroll
                for (int r = 0; r < n; r++) {
                    T term = w * x[u].at[r];
                    if constexpr (second) {
                        term += (valid[u] ? items[u].weights[1] : T(0)) * (x_2[u].at[r] - base.at[r]);
                    }
                    sum[r].add(term, k + u);
                }
            }
        });
    Pack<T, n> total = sum_columns_over_positions(lanes, sum);
    if (place.piece < partition.num_pieces && inside && lanes.position() == 0) {
        if (degree != nullptr && piece.size > 0 && partition.is_row(place.piece)) {
            const T divisor = degree[piece.row];
#pragma unroll
            for (int r = 0; r < n; r++) {
                total.at[r] /= divisor;
            }
        }
        store_pack(partition.output_address(place.piece, width, out, overflow) + place.column, total);
    }
}

// ---- min and max ----------------------------------------------------------------------------------------------------

// A message and its position, which is -1 if there is no message.
template <class T, class I> struct Candidate {
    T value;
    I location;
};

// Returns whether b precedes a in a total order: NaN is first; among equal values, the lowest location is first.
template <class T, class I>
__device__ bool precedes(const Candidate<T, I>& b, const Candidate<T, I>& a, bool largest) {
    if (b.location < I(0) || a.location < I(0)) {
        return b.location >= I(0);
    }
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan || b_nan) {
        return b_nan && (!a_nan || b.location < a.location);
    }
    return (largest ? b.value > a.value : b.value < a.value) || (b.value == a.value && b.location < a.location);
}

// Writes the largest or smallest message of each row and its location; results of parts go to the overflow arrays.
template <class T, class I, bool wide>
__global__ void __launch_bounds__(THREADS, gather_blocks_per_sm<T, I>)
weighted_extrema(const T* __restrict__ weights, const T* __restrict__ values, const RowPartition<I> partition,
                 const I* __restrict__ indices, const I* __restrict__ edge_ids, int width, int largest,
                 const LaneLayout lanes, T* __restrict__ out, I* __restrict__ location, T* __restrict__ overflow,
                 I* __restrict__ overflow_location) {
    constexpr int n = pack_elements<T, wide>;
    const LaneAssignment<n> place(lanes, width);
    const RowPiece<I> piece = partition.piece(place.piece);
    const bool inside = place.column < width;
    Candidate<T, I> best[n];
#pragma unroll
    for (int r = 0; r < n; r++) {
        best[r] = {T(0), I(-1)};
    }
    using Item = WeightedItem<T, I, 1>;
    for_each_position<Item>(
        lanes, piece.size, inside,
        [&](int e) {
            const I p = piece.begin + I(e);
            return Item{indices[p], {get_weight(weights, edge_ids, p)}};
        },
        [&](const Item(&items)[unroll], const bool(&valid)[unroll], const int(&e)[unroll], int) {
            Pack<T, n> x[unroll];
            load_item_rows(values + place.column, width, items, valid, x);
#pragma unroll
            for (int u = 0; u < unroll; u++) {
#pragma unroll
                for (int r = 0; r < n; r++) {
                    const I location = valid[u] ? piece.begin + I(e[u]) : I(-1);
                    const Candidate<T, I> next{items[u].weights[0] * x[u].at[r], location};
                    best[r] = precedes(next, best[r], largest) ? next : best[r];
                }
            }
        });
    for (int bit = lanes.column_bits; bit < lanes.bits(); bit++) {
#pragma unroll
        for (int r = 0; r < n; r++) {
            Candidate<T, I> next;
            next.value = __shfl_xor_sync(0xffffffffu, best[r].value, 1 << bit);
            next.location = __shfl_xor_sync(0xffffffffu, best[r].location, 1 << bit);
            best[r] = precedes(next, best[r], largest) ? next : best[r];
        }
    }
    if (place.piece < partition.num_pieces && place.column < width && lanes.position() == 0) {
        T* const target = partition.output_address(place.piece, width, out, overflow) + place.column;
        I* const target_location =
            partition.output_address(place.piece, width, location, overflow_location) + place.column;
        Pack<T, n> value;
#pragma unroll
        for (int r = 0; r < n; r++) {
            value.at[r] = best[r].value;
            target_location[r] = best[r].location;
        }
        store_pack(target, value);
    }
}

// Combines the extrema of the parts of every long row.
template <class T, class I>
__global__ void __launch_bounds__(256)
weighted_combine_extrema(const T* __restrict__ overflow, const I* __restrict__ overflow_location,
                         const I* __restrict__ long_rows, long long num_long, int width, int largest,
                         T* __restrict__ out, I* __restrict__ location) {
    __shared__ T values[8][32];
    __shared__ I locations[8][32];
    const LongRow<I> place(long_rows, num_long, width);
    Candidate<T, I> best{T(0), I(-1)};
    if (place.column < width) {
        for (long long t = place.first + threadIdx.y; t < place.end; t += 8) {
            const Candidate<T, I> next{overflow[t * width + place.column], overflow_location[t * width + place.column]};
            best = precedes(next, best, largest) ? next : best;
        }
    }
    values[threadIdx.y][threadIdx.x] = best.value;
    locations[threadIdx.y][threadIdx.x] = best.location;
    __syncthreads();
    if (threadIdx.y == 0 && place.column < width) {
        for (int y = 1; y < 8; y++) {
            const Candidate<T, I> next{values[y][threadIdx.x], locations[y][threadIdx.x]};
            best = precedes(next, best, largest) ? next : best;
        }
        out[place.row * width + place.column] = best.value;
        location[place.row * width + place.column] = best.location;
    }
}

// Computes out[row, j] = weights values[src, j] + weights_2 values_2[src, j] with the weights and source of position p
// = location[row, j], or 0 if p is -1.
template <class T, class I>
__global__ void __launch_bounds__(THREADS, row_blocks_per_sm)
weighted_values_at_extrema(const T* __restrict__ weights, const T* __restrict__ values, const T* __restrict__ weights_2,
                           const T* __restrict__ values_2, const I* __restrict__ location,
                           const I* __restrict__ indices, const I* __restrict__ edge_ids, long long num_rows, int width,
                           T* __restrict__ out) {
    const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < num_rows * width) {
        const I p = location[i];
        T sum = T(0);
        if (p >= I(0)) {
            const long long from = (long long)(indices[p]) * width + i % width;
            sum += values != nullptr ? get_weight(weights, edge_ids, p) * values[from] : T(0);
            sum += values_2 != nullptr ? get_weight(weights_2, edge_ids, p) * values_2[from] : T(0);
        }
        out[i] = sum;
    }
}

// ---- derivatives ----------------------------------------------------------------------------------------------------

// A position, its row of g, and the coefficient of this row.
template <class T, class I> struct WeightedGradientItem {
    I row;
    I position;
    T coefficient;

    __device__ WeightedGradientItem shuffle_from_lane(int lane, int lanes) const {
        return {__shfl_sync(0xffffffffu, row, lane, lanes), __shfl_sync(0xffffffffu, position, lane, lanes),
                __shfl_sync(0xffffffffu, coefficient, lane, lanes)};
    }
};

// out[src] = sum over its positions of c g[dst] with c = (weights - weights_2 degree_dot[dst] / degree[dst]) /
// degree[dst]; unless location is null, only the positions of the extrema contribute.
template <class T, class I, bool wide>
__global__ void __launch_bounds__(THREADS, few_row_blocks_per_sm<T, I>)
weighted_source_gradient(const T* __restrict__ g, const T* __restrict__ weights, const T* __restrict__ weights_2,
                         const T* __restrict__ degree, const T* __restrict__ degree_dot, const I* __restrict__ location,
                         const RowPartition<I> partition, const I* __restrict__ src_positions,
                         const I* __restrict__ destinations, const I* __restrict__ edge_ids, int width,
                         const LaneLayout lanes, T* __restrict__ out, T* __restrict__ overflow) {
    constexpr int n = pack_elements<T, wide>;
    using Item = WeightedGradientItem<T, I>;
    const LaneAssignment<n> place(lanes, width);
    const RowPiece<I> piece = partition.piece(place.piece);
    const bool inside = place.column < width;
    Sum<T> sum[n];
    for_each_position<Item>(
        lanes, piece.size, inside,
        [&](int e) {
            const I p = src_positions[piece.begin + I(e)], i = destinations[p];
            T c = get_weight(weights, edge_ids, p);
            if (degree_dot != nullptr) {
                c -= get_weight(weights_2, edge_ids, p) * (degree_dot[i] / degree[i]);
            }
            return Item{i, p, degree != nullptr ? c / degree[i] : c};
        },
        [&](const Item(&items)[unroll], const bool(&valid)[unroll], const int(&)[unroll], int k) {
            Pack<T, n> value[unroll];
            load_item_rows(g + place.column, width, items, valid, value);
#pragma unroll
            for (int u = 0; u < unroll; u++) {
                const T c = valid[u] ? items[u].coefficient : T(0);
                const long long at = (long long)(items[u].row) * width + place.column;
#pragma unroll
                for (int r = 0; r < n; r++) {
                    const bool counts = location == nullptr || (valid[u] && location[at + r] == items[u].position);
                    sum[r].add(counts ? c * value[u].at[r] : T(0), k + u);
                }
            }
        });
    Pack<T, n> total = sum_columns_over_positions(lanes, sum);
    if (place.piece < partition.num_pieces && inside && lanes.position() == 0) {
        store_pack(partition.output_address(place.piece, width, out, overflow) + place.column, total);
    }
}

// The n columns of a destination's row, starting at `column`, that a lane multiplies by columns of the sources.
template <class T, class I, int n> struct DestinationColumns {
    Pack<T, n> g;
    Pack<T, n> centre;
    Pack<T, n> centre_2;
    I extrema[n];  // positions of the extrema, used only if location is not null
};

// For every position p (an in-edge of i from j), dots[p] = g[i] . (values[j] - centre[i] - rho (values_2[j] -
// centre_2[i])) / degree[i], with rho = degree_dot[i] / degree[i] if `second`, else 0. Unless location is null, only
// columns whose extremum is at p contribute.
template <class T, class I, bool wide, bool second>
__global__ void __launch_bounds__(THREADS, few_row_blocks_per_sm<T, I> - (second ? 2 : 0))
weighted_dots(const T* __restrict__ g, const T* __restrict__ values, const T* __restrict__ centre,
              const T* __restrict__ values_2, const T* __restrict__ centre_2, const T* __restrict__ degree,
              const T* __restrict__ degree_dot, const I* __restrict__ location, const RowPartition<I> partition,
              const I* __restrict__ indices, int width, const LaneLayout lanes, T* __restrict__ dots) {
    constexpr int n = pack_elements<T, wide>;
    const RowPiece<I> piece = partition.piece(
        (long long)(blockIdx.x) * lanes.groups() + lanes.group());
    const long long row = (long long)(piece.row) * width;
    const int first = n * lanes.column();
    const auto load_own = [&](int column) {
        DestinationColumns<T, I, n> own{};
        own.g = load_pack<n>(g + row + column);
        if (centre != nullptr) {
            own.centre = load_pack<n>(centre + row + column);
        }
        if (second) {
            own.centre_2 = load_pack<n>(centre_2 + row + column);
        }
        for (int r = 0; r < n && location != nullptr; r++) {
            own.extrema[r] = location[row + column + r];
        }
        return own;
    };
    const bool has_edges = piece.size > 0;
    const T divisor = degree != nullptr && has_edges ? degree[piece.row] : T(1);
    const T rho = second && has_edges ? degree_dot[piece.row] / divisor : T(0);
    DestinationColumns<T, I, n> own{};
    if (has_edges && first < width) {
        own = load_own(first);  // loaded once for all positions
    }
    for_each_position<SourceItem<I>>(
        lanes, piece.size, true, [&](int e) { return SourceItem<I>{indices[piece.begin + I(e)]}; },
        [&](const SourceItem<I>(&items)[unroll], const bool(&valid)[unroll], const int(&e)[unroll], int) {
            Sum<T> sums[unroll];
            int tile = 0;
#pragma unroll 1
            for (int column = first; column < width; column += n << lanes.column_bits, tile++) {
                if (has_edges && width > n << lanes.column_bits) {
                    own = load_own(column);
                }
                Pack<T, n> x[unroll] = {}, x_2[unroll] = {};
                if (values != nullptr) {
                    load_item_rows(values + column, width, items, valid, x);
                }
                if (second) {
                    load_item_rows(values_2 + column, width, items, valid, x_2);
                }
#pragma unroll
                for (int u = 0; u < unroll; u++) {
                    T sum = T(0);
#pragma unroll
                    for (int r = 0; r < n; r++) {
                        T right = x[u].at[r] - own.centre.at[r];
                        if constexpr (second) {
                            right -= rho * (x_2[u].at[r] - own.centre_2.at[r]);
                        }
                        const bool counts = location == nullptr || own.extrema[r] == piece.begin + I(e[u]);
                        sum += counts ? own.g.at[r] * right : T(0);
                    }
                    sums[u].add(sum, tile);
                }
            }
            T dot[unroll];
#pragma unroll
            for (int u = 0; u < unroll; u++) {
                dot[u] = sums[u].value();
            }
            sum_over_columns(lanes, dot);
#pragma unroll
            for (int u = 0; u < unroll; u++) {
                if (valid[u] && lanes.column() == 0) {
                    dots[piece.begin + I(e[u])] = dot[u] / divisor;
                }
            }
        });
}
