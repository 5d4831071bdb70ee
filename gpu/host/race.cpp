// The race build: finds unordered accesses, reads of uninitialised shared memory and accesses out of bounds.
//
// The kernels are compiled with -fsanitize=thread, which inserts a call before every access to memory. libtsan is not
// linked; this file defines the functions that are called. For every few bytes of the launch's arrays and of shared
// memory, a cell records which threads wrote and read them, and when: the block, the number of __syncthreads so far,
// and the number of __syncwarp that the lane has passed. Within a block, a barrier orders all accesses; within a warp,
// __syncwarp orders accesses of the lanes in its mask (vector clocks); blocks are never ordered. Shuffles and votes do
// not order accesses. A launch stops at the first error.
//
// Not detected: accesses to __device__ variables or beyond local arrays, and races with reads that were not kept
// because a cell had more than four unordered readers. Kernels do not use atomics.
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>

#include <algorithm>
#include <vector>

#include "runtime.h"

namespace cuda_host {

namespace {

enum class Access : uint8_t { read, write };

struct AccessStamp {
    uint32_t block;  // serial number of the block; 0 if there was no access
    uint32_t barrier;
    uint32_t clock;
    uint16_t thread;
    uint32_t code;  // address of the code, as an offset into this library
};

constexpr int max_reads = 4;

// The last write to a cell, and the reads since then.
struct ShadowCell {
    bool initialised;
    AccessStamp write;
    AccessStamp reads[max_reads];
};

struct AddressRange {
    uintptr_t begin;
    uintptr_t end;
    bool contains(uintptr_t address) const { return begin <= address && address < end; }
};

struct WatchedRegion : AddressRange {
    size_t granule;        // bytes per cell
    size_t element_bytes;  // element size, from which messages compute indices
    bool is_shared;
    std::string name;
    std::vector<ShadowCell> cells;
};

std::vector<WatchedRegion> regions;  // first the arrays of the launch, then the shared arrays of the block
size_t num_arrays = 0;
size_t last_hit = 0;
bool watching = false;
std::vector<AddressRange> own_memory;  // memory that is not checked: this library's own data, and the argument table
AddressRange stack;
uint32_t block_now = 0;
uint32_t barrier_now = 0;
std::vector<uint32_t> clocks;             // clock of each thread
std::vector<std::vector<uint32_t>> vector_clocks;  // for each thread, a vector clock over the lanes of its warp

uintptr_t library_base() {
    Dl_info info;
    return dladdr(reinterpret_cast<void*>(&library_base), &info) != 0 ? reinterpret_cast<uintptr_t>(info.dli_fbase) : 0;
}

const uintptr_t library_start = library_base();

int add_library_segments(dl_phdr_info* object, size_t, void*) {
    if (object->dlpi_addr == library_start) {
        for (int i = 0; i < object->dlpi_phnum; i++) {
            const auto& segment = object->dlpi_phdr[i];
            if (segment.p_type == PT_LOAD) {
                const uintptr_t start = library_start + segment.p_vaddr;
                own_memory.push_back({start, start + segment.p_memsz});
            }
        }
    }
    return 0;
}

size_t granule_of(size_t element_bytes) { return element_bytes >= 4 ? 4 : element_bytes == 2 ? 2 : 1; }

void refine_cells(WatchedRegion& region, size_t granule) {
    if (granule >= region.granule) {
        return;
    }
    const size_t ratio = region.granule / granule;
    std::vector<ShadowCell> cells((region.end - region.begin + granule - 1) / granule);
    for (size_t i = 0; i < cells.size(); i++) {
        cells[i] = region.cells[i / ratio];
    }
    region.cells.swap(cells);
    region.granule = granule;
}

void add_region(uintptr_t begin, size_t bytes, size_t element_bytes, bool is_shared, const std::string& name) {
    const size_t granule = granule_of(element_bytes);
    WatchedRegion region{{begin, begin + bytes}, granule, element_bytes, is_shared, name, {}};
    region.cells.resize((bytes + granule - 1) / granule);
    regions.push_back(std::move(region));
}

// Returns whether the access recorded in `stamp` happens before the current access of the running thread.
bool happens_before(const AccessStamp& stamp, unsigned thread) {
    if (stamp.block != block_now) {
        return false;
    }
    if (stamp.thread == thread || stamp.barrier < barrier_now) {
        return true;
    }
    return stamp.thread / 32 == thread / 32 && stamp.clock < vector_clocks[thread][stamp.thread % 32];
}

std::string describe_element(const WatchedRegion& region, uintptr_t address) {
    return region.name + "[" + std::to_string((address - region.begin) / region.element_bytes) + "]" +
           (region.is_shared ? " (shared)" : "");
}

const char* verb(Access access) { return access == Access::read ? "reads" : "writes"; }

[[noreturn]] void report_race(const WatchedRegion& region, uintptr_t address, Access access, uint32_t code,
                              const AccessStamp& other, bool other_writes) {
    const char* const did = other_writes ? "wrote" : "read";
    const std::string whose = other.block == block_now ? describe_thread(other.thread) : "another block";
    fail("race: %s %s at {0x%x}, which %s %s at {0x%x} without anything that orders the two", verb(access),
         describe_element(region, address).c_str(), code, whose.c_str(), did, other.code);
}

// Reports an access outside all arrays, naming the array whose start or end is nearest.
[[noreturn]] void report_out_of_bounds(uintptr_t address, Access access, uint32_t code) {
    const auto distance = [&](const WatchedRegion& region) {
        return address < region.begin ? region.begin - address : address - region.end;
    };
    const auto nearest = std::min_element(
        regions.begin(), regions.end(),
        [&](const WatchedRegion& a, const WatchedRegion& b) { return distance(a) < distance(b); });
    if (nearest == regions.end() || distance(*nearest) > 65536) {
        const char* const what = address < 4096 ? "through a null pointer" : "far from any array";
        fail("out of bounds: %s at {0x%x} %s", verb(access), code, what);
    }
    const auto offset = intptr_t(address) - intptr_t(nearest->begin);
    const auto size = intptr_t(nearest->element_bytes);
    const auto index = offset >= 0 ? offset / size : -((size - 1 - offset) / size);
    fail("out of bounds: %s %s[%td]%s at {0x%x}, but there are %td elements", verb(access), nearest->name.c_str(),
         index, nearest->is_shared ? " (shared)" : "", code,
         (intptr_t(nearest->end) - intptr_t(nearest->begin)) / size);
}

// Records a read in the first entry that is free, or whose read is ordered before it or is by the same thread.
// Otherwise, overwrites a read by a warp that has several entries; if there is no such warp, does not keep the read.
void record_read(ShadowCell& cell, const AccessStamp& stamp) {
    int place = -1;
    for (int i = 0; i < max_reads; i++) {
        const AccessStamp& old = cell.reads[i];
        if (old.block == 0 || happens_before(old, stamp.thread)) {
            place = i;
            break;
        }
    }
    for (int i = 0; i < max_reads && place < 0; i++) {
        const AccessStamp& old = cell.reads[i];
        const auto same_warp = [&](const AccessStamp& other) {
            return other.block == old.block && other.thread / 32 == old.thread / 32;
        };
        if (std::count_if(cell.reads, cell.reads + max_reads, same_warp) > 1) {
            place = i;
        }
    }
    if (place >= 0) {
        cell.reads[place] = stamp;
    }
}

void check_and_update_cell(WatchedRegion& region, ShadowCell& cell, uintptr_t address, Access access,
                           const AccessStamp& stamp) {
    if (access == Access::read && region.is_shared && !cell.initialised) {
        fail("uninitialised: %s %s at {0x%x}, which nobody has written", verb(access),
             describe_element(region, address).c_str(), stamp.code);
    }
    if (cell.write.block != 0 && !happens_before(cell.write, stamp.thread)) {
        report_race(region, address, access, stamp.code, cell.write, true);
    }
    if (access == Access::write) {
        for (const AccessStamp& other : cell.reads) {
            if (other.block != 0 && !happens_before(other, stamp.thread)) {
                report_race(region, address, access, stamp.code, other, false);
            }
        }
        cell.initialised = true;
        cell.write = stamp;
        std::fill_n(cell.reads, max_reads, AccessStamp{});
    } else {
        record_read(cell, stamp);
    }
}

WatchedRegion* find_region(uintptr_t address) {
    const auto holds = [&](const WatchedRegion& region) { return region.contains(address); };
    if (last_hit >= regions.size() || !holds(regions[last_hit])) {
        last_hit = size_t(std::find_if(regions.begin(), regions.end(), holds) - regions.begin());
    }
    return last_hit < regions.size() ? &regions[last_hit] : nullptr;
}

void check_memory_access(const volatile void* pointer, size_t bytes, Access access, void* return_address) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    if (!watching || stack.contains(address)) {
        return;
    }
    // The byte before the return address belongs to the call instruction, and therefore to its source line.
    const uint32_t code = uint32_t(reinterpret_cast<uintptr_t>(return_address) - 1 - library_start);
    WatchedRegion* const region = find_region(address);
    if (region == nullptr) {
        if (std::none_of(own_memory.begin(), own_memory.end(),
                         [&](const AddressRange& range) { return range.contains(address); })) {
            report_out_of_bounds(address, access, code);
        }
        return;
    }
    if (address + bytes > region->end) {
        report_out_of_bounds(region->end, access, code);
    }
    if (bytes < region->granule || (address - region->begin) % region->granule != 0) {
        refine_cells(*region, 1);
    }
    const unsigned thread = rank(*current);
    const AccessStamp stamp{block_now, barrier_now, clocks[thread], uint16_t(thread), code};
    const size_t last = (address + bytes - 1 - region->begin) / region->granule;
    for (size_t i = (address - region->begin) / region->granule; i <= last; i++) {
        check_and_update_cell(*region, region->cells[i], region->begin + i * region->granule, access, stamp);
    }
}

// Adds the arrays of a launch; arrays that share memory become one region.
void add_launch_arrays(const Kernel& kernel, const LaunchArgument* arguments) {
    struct LaunchArray {
        uintptr_t begin;
        size_t bytes;
        size_t element_bytes;
        std::string name;
    };
    std::vector<LaunchArray> arrays;
    std::string names(kernel.parameters);
    for (int i = 0; !names.empty(); i++) {
        const size_t comma = std::min(names.find(','), names.size());
        if (arguments[i].bytes > 0) {
            arrays.push_back({uintptr_t(arguments[i].bits), size_t(arguments[i].bytes),
                              size_t(arguments[i].element_bytes), names.substr(0, comma)});
        }
        own_memory.push_back(
            {reinterpret_cast<uintptr_t>(&arguments[i]), reinterpret_cast<uintptr_t>(&arguments[i + 1])});
        names.erase(0, comma + 1);
    }
    std::sort(arrays.begin(), arrays.end(),
              [](const LaunchArray& a, const LaunchArray& b) { return a.begin < b.begin; });
    for (const LaunchArray& array : arrays) {
        WatchedRegion* const previous = regions.empty() ? nullptr : &regions.back();
        if (previous == nullptr || array.begin >= previous->end) {
            add_region(array.begin, array.bytes, array.element_bytes, false, array.name);
            continue;
        }
        previous->end = std::max(previous->end, array.begin + array.bytes);
        previous->name += "/" + array.name;
        previous->cells.resize((previous->end - previous->begin + previous->granule - 1) / previous->granule);
        refine_cells(*previous, granule_of(array.element_bytes));
    }
    num_arrays = regions.size();
}

}  // namespace

void race_begin_launch(const Kernel& kernel, const LaunchArgument* arguments, unsigned num_threads) {
    regions.clear();
    own_memory.clear();
    block_now = 0;
    watching = true;
    clocks.assign(num_threads, 0);
    vector_clocks.assign(num_threads, std::vector<uint32_t>(32, 0));
    dl_iterate_phdr(add_library_segments, nullptr);
    add_launch_arrays(kernel, arguments);
}

void race_begin_block() {
    regions.resize(num_arrays);
    block_now++;
    barrier_now = 0;
    std::fill(clocks.begin(), clocks.end(), 0);
    for (auto& thread : vector_clocks) {
        std::fill(thread.begin(), thread.end(), 0);
    }
}

void race_add_shared_array(void* data, size_t bytes, size_t element_bytes, const char* name) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(data);
    for (size_t i = num_arrays; i < regions.size(); i++) {
        if (regions[i].begin == begin) {  // every thread requests the dynamic buffer, perhaps with different types
            refine_cells(regions[i], granule_of(element_bytes));
            return;
        }
    }
    add_region(begin, bytes, element_bytes, true, name);
}

void race_barrier() { barrier_now++; }

void race_syncwarp(unsigned warp, unsigned mask) {
    uint32_t joined[32] = {};
    for (unsigned lane = 0; lane < 32; lane++) {
        if ((mask >> lane & 1) != 0) {
            const unsigned thread = warp * 32 + lane;
            clocks[thread]++;
            vector_clocks[thread][lane] = clocks[thread];
            for (unsigned other = 0; other < 32; other++) {
                joined[other] = std::max(joined[other], vector_clocks[thread][other]);
            }
        }
    }
    for (unsigned lane = 0; lane < 32; lane++) {
        if ((mask >> lane & 1) != 0) {
            std::copy_n(joined, 32, vector_clocks[warp * 32 + lane].begin());
        }
    }
}

void race_set_stack(const void* low, size_t bytes) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(low);
    stack = {begin, begin + bytes};
}

void race_end_launch() { watching = false; }

}  // namespace cuda_host

// ---- calls that -fsanitize=thread inserts ---------------------------------------------------------------------------
#define RETURN_ADDRESS __builtin_return_address(0)
using cuda_host::Access;
using cuda_host::check_memory_access;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

#define DEFINE_ACCESS_FUNCTIONS(bytes)                                                                          \
    void __tsan_read##bytes(void* p) { check_memory_access(p, bytes, Access::read, RETURN_ADDRESS); }           \
    void __tsan_write##bytes(void* p) { check_memory_access(p, bytes, Access::write, RETURN_ADDRESS); }         \
    void __tsan_unaligned_read##bytes(void* p) { check_memory_access(p, bytes, Access::read, RETURN_ADDRESS); } \
    void __tsan_unaligned_write##bytes(void* p) { check_memory_access(p, bytes, Access::write, RETURN_ADDRESS); }
DEFINE_ACCESS_FUNCTIONS(1)
DEFINE_ACCESS_FUNCTIONS(2)
DEFINE_ACCESS_FUNCTIONS(4)
DEFINE_ACCESS_FUNCTIONS(8)
DEFINE_ACCESS_FUNCTIONS(16)
void __tsan_read_range(void* p, size_t bytes) { check_memory_access(p, bytes, Access::read, RETURN_ADDRESS); }
void __tsan_write_range(void* p, size_t bytes) { check_memory_access(p, bytes, Access::write, RETURN_ADDRESS); }

}  // extern "C"
