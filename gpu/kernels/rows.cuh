// Sums over rows of a CSR array by groups of at most 32 lanes, for families that gather rows of a matrix. Lanes are
// assigned to columns first, and the remaining lanes to the positions of a piece (see sums.cuh).
//
// The numbers of lanes are run-time values, so that small widths are efficient. They depend only on the width, and so
// does the order of sums. A lane processes several columns if 16 bytes can be read at a time. All threads of a block,
// even beyond the last piece, must reach the shuffles.
#pragma once

#include "sums.cuh"

// Minimum number of resident blocks per multiprocessor (__launch_bounds__), a limit on registers that causes no spills.
constexpr int row_blocks_per_sm = 8;
template <class T, class I> constexpr int gather_blocks_per_sm = sizeof(T) + sizeof(I) <= 8 ? row_blocks_per_sm : 7;
template <class T, class I> constexpr int few_row_blocks_per_sm = sizeof(T) + sizeof(I) <= 8 ? 6 : 5;

// Consecutive values that are accessed at once (32 bytes in two halves, because arrays are aligned to 16 bytes).
template <class S, int n> struct alignas(sizeof(S) * n < 16 ? sizeof(S) * n : 16) Pack {
    S at[n];
};

template <class S, bool wide> constexpr int pack_elements = wide ? 16 / int(sizeof(S)) : 1;

template <int n, class S> __device__ Pack<S, n> load_pack(const S* from) {
    return *reinterpret_cast<const Pack<S, n>*>(from);
}

// Loads n columns of row number `row`. The compiler computes the offset with one instruction, because it is in bytes.
template <int n, class S, class I> __device__ Pack<S, n> load_row(const S* columns, I row, int width) {
    const char* const from = reinterpret_cast<const char*>(columns) + (long long)(row) * (width * int(sizeof(S)));
    return *reinterpret_cast<const Pack<S, n>*>(from);
}

template <int n, class S> __device__ void store_pack(S* to, const Pack<S, n>& pack) {
    *reinterpret_cast<Pack<S, n>*>(to) = pack;
}

struct LaneLayout {
    int column_bits;
    int position_bits;

    __device__ int bits() const { return column_bits + position_bits; }
    __device__ int groups() const { return THREADS >> bits(); }
    __device__ int group() const { return threadIdx.x >> bits(); }
    __device__ int columns() const { return 1 << column_bits; }
    __device__ int column() const { return threadIdx.x & (columns() - 1); }
    __device__ int positions() const { return 1 << position_bits; }
    __device__ int position() const { return (threadIdx.x >> column_bits) & (positions() - 1); }
};

// Returns the sum over all lanes of a group that have the same column to each of these lanes.
template <class T> __device__ T sum_over_positions(const LaneLayout& lanes, T sum) {
#pragma unroll 1
    for (int bit = lanes.column_bits; bit < lanes.bits(); bit++) {
        sum += __shfl_xor_sync(0xffffffffu, sum, 1 << bit);
    }
    return sum;
}

// Like sum_over_positions for several columns, divided by `divisor`.
template <class T, int n>
__device__ Pack<T, n> sum_columns_over_positions(const LaneLayout& lanes, const Sum<T> (&sums)[n], T divisor = T(1)) {
    Pack<T, n> total;
#pragma unroll
    for (int r = 0; r < n; r++) {
        total.at[r] = sum_over_positions(lanes, sums[r].value()) / divisor;
    }
    return total;
}

// Returns the sums of one lane divided by `divisor`.
template <class T, int n> __device__ Pack<T, n> divide_sums(const Sum<T> (&sums)[n], T divisor) {
    Pack<T, n> total;
#pragma unroll
    for (int r = 0; r < n; r++) {
        total.at[r] = sums[r].value() / divisor;
    }
    return total;
}

// Replaces `sums` by sums over all lanes of a group that have the same position.
template <class T, int count> __device__ void sum_over_columns(const LaneLayout& lanes, T (&sums)[count]) {
#pragma unroll 1
    for (int bit = 0; bit < lanes.column_bits; bit++) {
#pragma unroll
        for (int u = 0; u < count; u++) {
            sums[u] += __shfl_xor_sync(0xffffffffu, sums[u], 1 << bit);
        }
    }
}

template <class T> __device__ T sum_over_columns(const LaneLayout& lanes, T sum) {
    T sums[1] = {sum};
    sum_over_columns(lanes, sums);
    return sums[0];
}

// The column and the piece of a lane. Consecutive blocks process the tiles of columns of the same pieces, and a group
// of lanes processes one piece.
template <int n> struct LaneAssignment {
    int column;       // the first of this lane's n columns
    long long piece;  // number of the piece

    __device__ LaneAssignment(const LaneLayout& lanes, int width) {
        constexpr int pack_bits = n == 8 ? 3 : n == 4 ? 2 : n == 2 ? 1 : 0;
        const int tile = n << lanes.column_bits;
        const unsigned tiles = unsigned(width + tile - 1) >> (pack_bits + lanes.column_bits);
        column = int(blockIdx.x % tiles) * tile + n * lanes.column();
        piece = (long long)(blockIdx.x / tiles) * lanes.groups() + lanes.group();
    }
};

// Number of rows that a lane loads before it uses the first one.
constexpr int unroll = 4;

// Iterates over a group's piece of `size` positions. Each lane fetches the Item of one position, which contains a row
// number, and the lanes exchange Items, so that no load of a row waits for an index, and a lane can load `unroll` rows
// at a time. Calls use(items, valid, e, k) for terms k .. k + unroll - 1 of the lane, where items[u] is the Item of
// position e[u] of the piece. If valid[u] is false, term k + u does not exist, and items[u] must not be used. Lanes
// that are not `lane_active` have no terms.
template <class Item, class Fetch, class Use>
__device__ void for_each_position(const LaneLayout& lanes, int size, bool lane_active, const Fetch& fetch,
                                  const Use& use) {
    const int count = 1 << lanes.bits(), lane = threadIdx.x & (count - 1);
    int longest = size;  // maximum size in the warp, because all lanes must reach the shuffles
#pragma unroll 1
    for (int bit = lanes.bits(); bit < 5; bit++) {
        longest = max(longest, __shfl_xor_sync(0xffffffffu, longest, 1 << bit));
    }
    int steps = 0;
#pragma unroll 1
    for (int begin = 0; begin < longest; begin += count) {
        Item own_item{};
        if (begin + lane < size) {
            own_item = fetch(begin + lane);
        }
        const int end = min(longest - begin, count), own_end = lane_active ? min(size - begin, count) : 0;
#pragma unroll 1
        for (int first = 0; first < end; first += unroll << lanes.position_bits, steps++) {
            Item items[unroll];
            bool valid[unroll];
            int e[unroll];
#pragma unroll
            for (int u = 0; u < unroll; u++) {
                const int from = first + (u << lanes.position_bits) + lanes.position();
                items[u] = own_item.shuffle_from_lane(from, count);
                e[u] = begin + from;
                valid[u] = from < own_end;
            }
            use(items, valid, e, unroll * steps);
        }
    }
}

// An Item (see for_each_position) that contains only the row of a position.
template <class I> struct SourceItem {
    I row;

    __device__ SourceItem shuffle_from_lane(int lane, int lanes) const {
        return {__shfl_sync(0xffffffffu, row, lane, lanes)};
    }
};

// Loads n columns of row items[u].row if valid[u], else sets them to zero.
template <int n, class S, class Item>
__device__ void load_item_rows(const S* columns, int width, const Item (&items)[unroll], const bool (&valid)[unroll],
                               Pack<S, n> (&rows)[unroll]) {
#pragma unroll
    for (int u = 0; u < unroll; u++) {
        rows[u] = {};
        if (valid[u]) {
            rows[u] = load_row<n>(columns, items[u].row, width);
        }
    }
}
