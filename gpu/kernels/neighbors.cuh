// Neighbour search with a fixed capacity, which a CUDA graph can capture. gpu/neighbors.py launches the kernels.
//
// A structure's cell is divided into bins no thinner than the cutoff. There are no more bins than atoms, so bins are numbered
// like the structure's entries in `members`. Atoms whose structure number is at least num_structures are ghosts without a bin.
#pragma once

#include "constants.cuh"

namespace neighbor {

constexpr int max_bin_range = 64;  // largest distance of neighbours along one direction, in bins
constexpr double huge = 1e300;

// Products and sums of lengths are rounded separately, as on the CPU, so that the CPU and the GPU find the same pairs.
#ifdef TRIGRAPH_GPU_HOST
__device__ inline double times(double a, double b) { return a * b; }
__device__ inline double plus(double a, double b) { return a + b; }
#else
__device__ inline double times(double a, double b) { return __dmul_rn(a, b); }
__device__ inline double plus(double a, double b) { return __dadd_rn(a, b); }
#endif

// The cell of a structure, with zero vectors along nonperiodic directions, and its bins.
struct CellFrame {
    double box[9], inverse[9];  // cell vectors and their duals, in rows
    double lowest[3], scale[3];  // along each vector, bin = (coordinate - lowest) scale
    int num_bins[3], bin_range[3];  // number of bins, and largest distance of neighbours in bins
    int periodic[3];
    int valid;                   // whether the device may search this structure

    // Coordinate of a position along vector k.
    __device__ double coordinate(const double* x, int k) const {
        return inverse[3 * k] * x[0] + inverse[3 * k + 1] * x[1] + inverse[3 * k + 2] * x[2];
    }
};
static_assert(sizeof(CellFrame) == NEIGHBOR_FRAME * sizeof(double), "gpu/neighbors.py allocates frames");

__device__ inline void cross(const double* a, const double* b, double* out) {
    for (int k = 0; k < 3; k++) {
        const int l = (k + 1) % 3, m = (k + 2) % 3;
        out[k] = a[l] * b[m] - a[m] * b[l];
    }
}

__device__ inline double norm(const double* a) { return sqrt(a[0] * a[0] + a[1] * a[1] + a[2] * a[2]); }

// Completes a frame with its dual vectors. Stores the periodic vectors in `rows`, completed by unit vectors that are
// perpendicular to all other rows.
__device__ inline void compute_dual_vectors(CellFrame& frame, double* rows) {
    const int number = frame.periodic[0] + frame.periodic[1] + frame.periodic[2];
    const int only = frame.periodic[0] ? 0 : frame.periodic[1] ? 1 : 2;
    double* const vector = rows + 3 * only;
    for (int k = 0; k < 9; k++) {
        rows[k] = number > 0 ? frame.box[k] : k % 4 == 0 ? 1.0 : 0.0;
    }
    for (int k = 0; k < 3 && number > 0; k++) {
        double* const row = rows + 3 * k;
        if (frame.periodic[k]) {
            continue;
        }
        const bool ready = number == 2 || k == 2 || (k == 1 && only == 2);  // whether the two other vectors are known
        if (ready) {
            cross(rows + 3 * ((k + 1) % 3), rows + 3 * ((k + 2) % 3), row);
        } else {  // perpendicular to the periodic vector and to the axis along which its component is smallest
            int least = fabs(vector[1]) < fabs(vector[0]) ? 1 : 0;
            least = fabs(vector[2]) < fabs(vector[least]) ? 2 : least;
            const int l = (least + 1) % 3, m = (least + 2) % 3;
            row[least] = 0.0;
            row[l] = vector[m];
            row[m] = -vector[l];
        }
        const double length = norm(row);
        for (int m = 0; m < 3; m++) {
            row[m] /= length;
        }
    }
    cross(rows + 3, rows + 6, frame.inverse);
    cross(rows + 6, rows, frame.inverse + 3);
    cross(rows, rows + 3, frame.inverse + 6);
    const double volume = rows[0] * frame.inverse[0] + rows[1] * frame.inverse[1] + rows[2] * frame.inverse[2];
    for (int k = 0; k < 9; k++) {
        frame.inverse[k] /= volume;
    }
    // Almost linearly dependent vectors are left to the CPU. The comparison is false for NaN.
    frame.valid = fabs(volume) > 1e-12 * norm(rows) * norm(rows + 3) * norm(rows + 6);
}

// Returns the first edge in `begin` .. `end` - 1 whose destination is at least b, or `end` if there is none.
__device__ inline int lower_bound(const int* dst, int begin, int end, int b) {
    while (begin < end) {
        const int middle = begin + (end - begin) / 2;
        if (dst[middle] < b) {
            begin = middle + 1;
        } else {
            end = middle;
        }
    }
    return begin;
}

}  // namespace neighbor

// Computes frames[s], with a block for each structure.
template <class T, class I>
__global__ void __launch_bounds__(THREADS)
neighbor_frames(const T* __restrict__ pos, const T* __restrict__ cells, const bool* __restrict__ periodic,
                const I* __restrict__ offsets, const I* __restrict__ members, double cutoff, double* __restrict__ frames) {
    __shared__ neighbor::CellFrame frame;
    __shared__ double rows[9];
    __shared__ double low[3][THREADS];
    __shared__ double high[3][THREADS];
    const int s = int(blockIdx.x), lane = int(threadIdx.x);
    if (lane == 0) {
        for (int k = 0; k < 9; k++) {
            frame.periodic[k / 3] = periodic[3 * s + k / 3];
            frame.box[k] = frame.periodic[k / 3] ? double(cells[9 * (long long)(s) + k]) : 0.0;
        }
        neighbor::compute_dual_vectors(frame, rows);
    }
    __syncthreads();
    for (int k = 0; k < 3; k++) {
        low[k][lane] = neighbor::huge;
        high[k][lane] = -neighbor::huge;
    }
    for (long long p = (long long)(offsets[s]) + lane; p < (long long)(offsets[s + 1]); p += THREADS) {
        const T* const of = pos + 3 * (long long)(members[p]);
        const double x[3] = {double(of[0]), double(of[1]), double(of[2])};
        for (int k = 0; k < 3; k++) {
            low[k][lane] = fmin(low[k][lane], frame.coordinate(x, k));
            high[k][lane] = fmax(high[k][lane], frame.coordinate(x, k));
        }
    }
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half) {
            for (int k = 0; k < 3; k++) {
                low[k][lane] = fmin(low[k][lane], low[k][lane + half]);
                high[k][lane] = fmax(high[k][lane], high[k][lane + half]);
            }
        }
    }
    if (lane != 0) {
        return;
    }
    const double most = double(offsets[s + 1] - offsets[s]), reach = 1.000001 * cutoff;  // with a margin for rounding
    double heights[3], widths[3];
    for (int k = 0; k < 3; k++) {
        frame.lowest[k] = frame.periodic[k] ? 0.0 : low[k][0];
        widths[k] = frame.periodic[k] ? 1.0 : fmax(high[k][0] - low[k][0], 1e-300);
        heights[k] = 1.0 / neighbor::norm(frame.inverse + 3 * k);
        frame.num_bins[k] = int(fmin(fmax(heights[k] * widths[k] / reach, 1.0), 16384.0));
    }
    while (double(frame.num_bins[0]) * frame.num_bins[1] * frame.num_bins[2] > fmax(most, 1.0)) {
        int largest = frame.num_bins[1] > frame.num_bins[0] ? 1 : 0;
        largest = frame.num_bins[2] > frame.num_bins[largest] ? 2 : largest;
        frame.num_bins[largest] = (frame.num_bins[largest] + 1) / 2;
    }
    for (int k = 0; k < 3; k++) {
        const double apart = frame.periodic[k] ? ceil(reach * frame.num_bins[k] / heights[k]) : 1.0;
        frame.valid = frame.valid && apart <= neighbor::max_bin_range;
        frame.bin_range[k] = int(fmin(apart, double(neighbor::max_bin_range)));
        frame.scale[k] = frame.num_bins[k] / widths[k];
    }
    for (int k = 0; k < 3 && !frame.valid; k++) {
        frame.bin_range[k] = 0;
    }
    reinterpret_cast<neighbor::CellFrame*>(frames)[s] = frame;
}

// Computes for each atom its bin (num_atoms for ghosts), its offset from the structure's cell in cells, and whether the CPU
// has to search instead, because the atom is too far away or its structure has no valid cell.
template <class T, class I>
__global__ void __launch_bounds__(THREADS)
neighbor_bins(const T* __restrict__ pos, const long long* __restrict__ batch, const I* __restrict__ offsets,
              const double* __restrict__ frames, int num_atoms, int num_structures, double most_cells, double most_length,
              int* __restrict__ bins, int* __restrict__ crossed, int* __restrict__ refused) {
    const int i = int(blockIdx.x) * int(blockDim.x) + int(threadIdx.x);
    if (i >= num_atoms) {
        return;
    }
    const int s = int(batch[i]);
    refused[i] = 0;
    bins[i] = num_atoms;
    if (s >= num_structures) {
        return;
    }
    const neighbor::CellFrame& frame = reinterpret_cast<const neighbor::CellFrame*>(frames)[s];
    const double x[3] = {double(pos[3 * i]), double(pos[3 * i + 1]), double(pos[3 * i + 2])};
    const bool any_periodic = frame.periodic[0] || frame.periodic[1] || frame.periodic[2];
    int bin = 0;
    bool valid = frame.valid != 0;
    for (int k = 0; k < 3; k++) {
        const double at = frame.coordinate(x, k);
        const double limit = frame.periodic[k] ? most_cells : any_periodic ? most_length : 1e150;
        valid = valid && fabs(at) < limit;  // the comparison is false for NaN
        const double whole = frame.periodic[k] && valid ? floor(at) : 0.0;
        const double part = valid ? (at - whole - frame.lowest[k]) * frame.scale[k] : 0.0;
        crossed[3 * i + k] = int(whole);
        bin = bin * frame.num_bins[k] + int(fmin(fmax(part, 0.0), frame.num_bins[k] - 1.0));
    }
    refused[i] = !valid;
    bins[i] = int(offsets[s]) + bin;
}

// Counts the neighbours that each thread of an atom finds, up to `most` + 1, or, if `writes`, writes the edges to these
// neighbours (source, destination, shifts) in no particular order. `ends` contains the cumulative sums of the counts, `order`
// the atoms sorted by bin, and `starts` the first position of each bin in `order`.
template <class T, class I, bool writes>
__global__ void __launch_bounds__(THREADS)
neighbor_pairs(const T* __restrict__ pos, const long long* __restrict__ batch, const I* __restrict__ offsets,
               const double* __restrict__ frames, const int* __restrict__ bins, const int* __restrict__ crossed,
               const int* __restrict__ order, const int* __restrict__ starts, int num_atoms, int num_structures, double cutoff,
               int most, const long long* __restrict__ ends, const bool* __restrict__ fits, int* __restrict__ counts,
               int* __restrict__ edges, int most_edges) {
    const long long thread = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
    const int a = int(thread / NEIGHBOR_LANES), lane = int(thread % NEIGHBOR_LANES);
    if (a >= num_atoms || (writes && !*fits)) {
        return;
    }
    int count = 0;
    const int s = int(batch[a]);
    if (s < num_structures) {
        const neighbor::CellFrame& frame = reinterpret_cast<const neighbor::CellFrame*>(frames)[s];
        const int base = int(offsets[s]), own = bins[a] - base, *const num_bins = frame.num_bins;
        const int at[3] = {own / num_bins[2] / num_bins[1], own / num_bins[2] % num_bins[1], own % num_bins[2]};
        const double x[3] = {double(pos[3 * a]), double(pos[3 * a + 1]), double(pos[3 * a + 2])};
        const int sides[3] = {2 * frame.bin_range[0] + 1, 2 * frame.bin_range[1] + 1, 2 * frame.bin_range[2] + 1};
        const int steps = sides[0] * sides[1] * sides[2];
        for (int step = 0; step < steps && count <= most; step++) {
            const int steps_of[3] = {step / sides[2] / sides[1], step / sides[2] % sides[1], step % sides[2]};
            int cells[3], bin = 0;
            bool inside = true;
            for (int k = 0; k < 3; k++) {
                const int next = at[k] + steps_of[k] - frame.bin_range[k];
                cells[k] = next >= 0 ? next / num_bins[k] : -((num_bins[k] - 1 - next) / num_bins[k]);
                inside = inside && (frame.periodic[k] || cells[k] == 0);
                bin = bin * num_bins[k] + next - cells[k] * num_bins[k];
            }
            if (!inside) {
                continue;
            }
            for (int p = starts[base + bin] + lane; p < starts[base + bin + 1] && count <= most; p += NEIGHBOR_LANES) {
                const int b = order[p];
                int shift[3];
                for (int k = 0; k < 3; k++) {
                    shift[k] = crossed[3 * b + k] - crossed[3 * a + k] - cells[k];
                }
                const bool itself = a == b && shift[0] == 0 && shift[1] == 0 && shift[2] == 0;
                double square = 0.0;
                for (int k = 0; k < 3; k++) {
                    double offset = neighbor::times(shift[0], frame.box[k]);
                    offset = neighbor::plus(offset, neighbor::times(shift[1], frame.box[3 + k]));
                    offset = neighbor::plus(offset, neighbor::times(shift[2], frame.box[6 + k]));
                    const double along = neighbor::plus(x[k] - double(pos[3 * b + k]), offset);
                    square = neighbor::plus(square, neighbor::times(along, along));
                }
                if (itself || !(sqrt(square) < cutoff)) {
                    continue;
                }
                if (writes) {
                    const long long e = ends[thread] - counts[thread] + count;
                    if (e < most_edges) {
                        edges[e] = a;
                        edges[most_edges + e] = b;
                        for (int k = 0; k < 3; k++) {
                            edges[(2 + k) * (long long)(most_edges) + e] = shift[k];
                        }
                    }
                } else if (square < 1e-10 * cutoff * cutoff) {
                    count = most;  // exceeds the limit, so that the CPU reports that two atoms coincide
                }
                count++;
            }
        }
    }
    if (!writes) {
        counts[thread] = count;
    }
}

// Sorts the edges of each source by destination and shifts: the position of an edge is the number of smaller edges.
__global__ void __launch_bounds__(THREADS)
neighbor_sort_edges(const int* __restrict__ row_offsets, const int* __restrict__ edges, int num_atoms, int most_edges,
                    int* __restrict__ sorted) {
    const long long stride = most_edges;
    const int e = int(blockIdx.x) * int(blockDim.x) + int(threadIdx.x);
    if (e >= row_offsets[num_atoms]) {
        return;
    }
    const int a = edges[e];
    int place = row_offsets[a];
    for (int other = row_offsets[a]; other < row_offsets[a + 1]; other++) {
        bool less = false;
        for (int k = 4; k > 0; k--) {  // in reverse order, so that the first differing column decides
            const int mine = edges[k * stride + e], its = edges[k * stride + other];
            less = its < mine || (its == mine && less);
        }
        place += less;
    }
    for (int k = 0; k < 5; k++) {
        sorted[k * stride + place] = edges[k * stride + e];
    }
}

// Writes the arrays of an EdgeGraph. Every edge from a to b has a reverse edge from b to a with the opposite shifts, so
// that the edges from b to a have the opposite order. The edges into a, sorted by source, have the same numbers as the
// edges out of a, sorted by destination.
template <class T, class I>
__global__ void __launch_bounds__(THREADS)
neighbor_link_edges(const int* __restrict__ row_offsets, const int* __restrict__ sorted, int num_atoms, int most_edges,
                    I* __restrict__ dst_edge_index, I* __restrict__ src, I* __restrict__ dst,
                    I* __restrict__ reverse_start, I* __restrict__ reverse_stop, I* __restrict__ reverse_edge,
                    I* __restrict__ edge_start, I* __restrict__ edge_stop, T* __restrict__ shifts) {
    const int e = int(blockIdx.x) * int(blockDim.x) + int(threadIdx.x);
    if (e >= row_offsets[num_atoms]) {
        return;
    }
    const int a = sorted[e], b = sorted[most_edges + e];
    const int* const ends = sorted + most_edges;
    const int first = neighbor::lower_bound(ends, row_offsets[a], row_offsets[a + 1], b);
    const int last = neighbor::lower_bound(ends, first, row_offsets[a + 1], b + 1) - 1;
    const int first_reverse = neighbor::lower_bound(ends, row_offsets[b], row_offsets[b + 1], a);
    src[e] = a;
    dst[e] = b;
    dst_edge_index[e] = first_reverse + (e - first);
    reverse_edge[e] = first_reverse + (last - e);
    reverse_start[e] = first;
    reverse_stop[e] = last + 1;
    edge_start[e] = first + (last - e);
    edge_stop[e] = first + (last - e) + 1;
    if (shifts != nullptr) {
        for (int k = 0; k < 3; k++) {
            shifts[3 * (long long)(e) + k] = T(sorted[(2 + k) * (long long)(most_edges) + e]);
        }
    }
}
