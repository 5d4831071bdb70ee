// Computes the results of warp collectives after all lanes of the mask have arrived; runtime.cpp waits for them.

#include <math.h>

#include <algorithm>

#include "runtime.h"

namespace cuda_host {

void finish_syncwarp([[maybe_unused]] WarpCollective& warp) {
#ifdef CUDA_HOST_RACE
    race_syncwarp(rank(*current) / 32, warp.mask);
#endif
}

void finish_ballot(WarpCollective& warp) {
    Bits votes = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
        votes |= (warp.mask >> lane & 1) != 0 && warp.value[lane] != 0 ? Bits(1) << lane : 0;
    }
    std::fill_n(warp.result, 32, votes);
}

namespace {

// source(lane, operand, first, end) returns the lane to read from: `lane` itself if the requested lane is out of range.
template <class Source>
void finish_shuffle(WarpCollective& warp, Source source) {
    for (int lane = 0; lane < 32; lane++) {
        if ((warp.mask >> lane & 1) == 0) {
            continue;
        }
        const int operand = int(unsigned(warp.argument[lane]) & 31);  // the hardware uses only the lowest five bits
        const int width = int(warp.argument[lane] >> 32);
        if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
            fail("%s at %s: width %d is not a power of two up to 32", warp.name, site_text(site_of(*current)).c_str(),
                 width);
        }
        const int first = lane / width * width;
        const int other = source(lane, operand, first, first + width);
        if ((warp.mask >> other & 1) == 0) {
            fail("%s at %s: lane %d reads from lane %d, which is not in mask 0x%08x", warp.name,
                 site_text(site_of(*current)).c_str(), lane, other, warp.mask);
        }
        warp.result[lane] = warp.value[other];
    }
}

}  // namespace

void finish_shuffle_index(WarpCollective& warp) {
    finish_shuffle(warp, [](int, int operand, int first, int end) { return first + operand % (end - first); });
}

void finish_shuffle_xor(WarpCollective& warp) {
    finish_shuffle(warp,
                   [](int lane, int operand, int, int end) { return (lane ^ operand) < end ? lane ^ operand : lane; });
}

namespace {

double bfloat16_value(unsigned bits) { return from_bits<float>(Bits(bits & 0xffffu) << 16); }

// Returns sum plus the 8 products left[x] right[x]. Exact products are aligned to the exponent of the largest term,
// truncated to 24 bits, and added; the result is truncated to float32. This is intentionally less accurate than any
// tensor core: according to studies, devices of compute capability 8.0 add 8 products at a time, later devices add
// more, and all of them keep more bits. An overflow yields infinity.
float add_products_truncated(float sum, const double* left, const double* right) {
    double terms[9], largest = fabs(double(sum)), total = sum;
    terms[8] = sum;
    for (int x = 0; x < 8; x++) {
        terms[x] = left[x] * right[x];  // exact, because products of bfloat16 numbers have at most 16 significant bits
        largest = fmax(largest, fabs(terms[x]));
        total += terms[x];
    }
    if (!isfinite(total) || largest == 0) {
        return float(total);
    }
    const double unit = ldexp(1.0, ilogb(largest) - 23);
    total = 0;
    for (const double term : terms) {
        total += trunc(term / unit) * unit;
    }
    const float rounded = float(total);
    return fabs(double(rounded)) > fabs(total) && isfinite(rounded) ? nextafterf(rounded, 0.0f) : rounded;
}

}  // namespace

// The operands are distributed over lanes as PTX specifies for mma.m16n8k16 with bfloat16 numbers.
void finish_multiply_add_tiles(WarpCollective& warp) {
    double left[16][16], right[8][16];
    const TileOperands* operands[32];
    for (int lane = 0; lane < 32; lane++) {
        operands[lane] = reinterpret_cast<const TileOperands*>(size_t(warp.value[lane]));
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < 4; i++) {
                left[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8 + half] =
                    bfloat16_value(operands[lane]->left[i] >> 16 * half);
            }
            for (int i = 0; i < 2; i++) {
                right[lane / 4][lane % 4 * 2 + i * 8 + half] = bfloat16_value(operands[lane]->right[i] >> 16 * half);
            }
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 4; i++) {
            const double* const row = left[lane / 4 + i / 2 * 8];
            const double* const col = right[lane % 4 * 2 + i % 2];
            float& sum = operands[lane]->sum[i];
            sum = add_products_truncated(add_products_truncated(sum, row, col), row + 8, col + 8);
        }
    }
}

}  // namespace cuda_host
