// Scores, lanes and stores of graph attention, shared by gat.cu and gat_backward.cuh. docs/maths.md calls the score r
// and the logit s = act(score); alpha is the softmax of the logits, i a destination, j a source, p a position.
#pragma once

#include "gat_activations.cuh"
#include "rows.cuh"
#include "gat_storage.cuh"

// Scores of nodes and edge rows, in arrays of shape (n, num_heads); `score` adds the scores for position p of row i.
template <class T, class I> struct Scores {
    const T* src;
    const T* dst;
    const T* edge;
    const I* indices;
    const I* edge_ids;
    int num_heads;

    __device__ T score(I p, I i, int h) const { return score(p, i, src != nullptr ? indices[p] : I(0), h); }
    __device__ T score(I p, I i, I j, int h) const {
        T sum = src != nullptr ? src[(long long)(j) * num_heads + h] : T(0);
        sum += dst != nullptr ? dst[(long long)(i) * num_heads + h] : T(0);
        return edge != nullptr ? sum + edge[(long long)(edge_ids == nullptr ? p : edge_ids[p]) * num_heads + h] : sum;
    }
};

// Lanes of gat_forward and gat_backward: first along the columns of a head, then along heads, then along positions.
struct HeadLaneLayout {
    int column_bits;
    int head_bits;
    int position_bits;

    __device__ LaneLayout of_head() const { return {column_bits, 0}; }
    __device__ LaneLayout of_heads() const { return {column_bits, head_bits}; }
    __device__ LaneLayout all() const { return {column_bits + head_bits, position_bits}; }
    __device__ int head() const { return threadIdx.x >> column_bits & ((1 << head_bits) - 1); }
    // Slots are the numbers of all lanes of a head; computations without columns divide the positions among the slots.
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

// The in-edges of a piece for one head. All lanes of a group share a piece, but not the head. `size` is 0 for lanes
// without a head, which still take part in shuffles.
template <class T, class I> struct HeadEdges {
    const Scores<T, I>& scores;
    const Activation<T>& act;
    RowPiece<I> piece;
    int h;
    int size;

    __device__ T score(int e) const { return scores.score(piece.begin + I(e), piece.row, h); }
    __device__ T logit(int e) const { return act.value(score(e)); }
    __device__ SourceItem<I> source(int e) const { return {scores.indices[piece.begin + I(e)]}; }
};

// Writes a lane's columns of the sum of a piece, for a whole row to `out`, for a part to its overflow row. Overflow
// rows are not rounded until reduce_long_rows has added them.
template <class S, class I, int n>
__device__ void store_piece_columns(const RowPartition<I>& partition, long long s, int width, int column,
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

// Writes the sums of one head to a row of shape (count, num_heads).
template <int count, class T>
__device__ void store_head_sums(T* row, int num_heads, int h, T sum, T second_sum) {
#pragma unroll
    for (int i = 0; i < count; i++) {
        row[i * num_heads + h] = i == 0 ? sum : i == 1 ? second_sum : T(0);
    }
}
