// What the warp collectives compute once every lane of their mask has arrived; runtime.cpp waits for the lanes.

#include <algorithm>

#include "runtime.h"

namespace cuda_host {

void finish_syncwarp([[maybe_unused]] Collective& warp) {
#ifdef CUDA_HOST_RACE
    race_syncwarp(rank(*current) / 32, warp.mask);
#endif
}

void finish_ballot(Collective& warp) {
    Bits votes = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
        votes |= (warp.mask >> lane & 1) != 0 && warp.value[lane] != 0 ? Bits(1) << lane : 0;
    }
    std::fill_n(warp.result, 32, votes);
}

namespace {

// source(lane, operand, first, end) names the lane to read from; outside of what the shuffle can reach, a lane reads
// itself.
template <class Source>
void finish_shuffle(Collective& warp, Source source) {
    for (int lane = 0; lane < 32; lane++) {
        if ((warp.mask >> lane & 1) == 0) {
            continue;
        }
        const int operand = int(unsigned(warp.argument[lane]) & 31);  // the hardware looks at five bits
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

void finish_shuffle_index(Collective& warp) {
    finish_shuffle(warp, [](int, int operand, int first, int end) { return first + operand % (end - first); });
}

void finish_shuffle_xor(Collective& warp) {
    finish_shuffle(warp,
                   [](int lane, int operand, int, int end) { return (lane ^ operand) < end ? lane ^ operand : lane; });
}

}  // namespace cuda_host
