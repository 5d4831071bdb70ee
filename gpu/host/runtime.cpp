// The scheduler: runs blocks in sequence and the threads of a block as fibers, with barriers and warp collectives.
//
// A thread that never waits costs only a function call, because its fiber starts the next thread. A waiting thread
// keeps its fiber, and another fiber continues. Any error inside a kernel ends in fail() or, if the system refuses
// memory, in fail_allocation(): these functions abandon all fibers and return to the caller of cuda_host_launch with a
// message.
//
// A launch allocates memory only for stacks and shared arrays. Everything else is allocated statically, because
// reporting an allocation failure in C++ may itself require memory.

// Standard headers must come first, because the headers of this project redefine names that they use.
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <vector>

#include "fiber.h"
#include "runtime.h"

uint3 threadIdx;
uint3 blockIdx;
uint3 blockDim;
uint3 gridDim;

namespace cuda_host {

constexpr unsigned max_threads = 1024;
constexpr size_t max_shared_bytes = 227 * 1024;  // the maximum for a block on any device

enum class Order : int { forward, reverse, random };
enum class State : unsigned char { unstarted, running, at_barrier, at_collective, returned };
enum Status : int { succeeded = 0, refused = 1, failed = 2, no_memory = 3 };

struct Thread {
    State state;
    Fiber* fiber;
    const char* operation;  // the operation at which the thread waits
    CallSite site;
    unsigned mask;
    Bits result;
};

// Collectives of a warp that are still waiting for lanes: bit i of `open` is set if pending[i] is in use.
struct Warp {
    unsigned open;
    unsigned absent;  // lanes that have returned, or do not exist in the block
    struct PendingCollective {
        WarpCollective call;
        unsigned arrived;
    } pending[32];
};

Thread* current = nullptr;
Bits block_serial = 0;

namespace {

struct Launch {
    const Kernel* kernel = nullptr;
    const LaunchArgument* arguments = nullptr;
    Order order = Order::forward;
    unsigned num_threads = 0;
    size_t shared_bytes = 0;
    bool in_progress = false;
    Status status = succeeded;
    char* message = nullptr;
    size_t message_capacity = 0;
    std::mt19937_64 random;
};

Launch launch;
Fiber main_fiber;
Fiber* running_fiber = nullptr;
Fiber fibers[max_threads];  // the first num_fibers have stacks, which are reused by later launches
Fiber* idle[max_threads];   // the first num_idle entries are fibers that run no thread
Thread threads[max_threads];   // indexed by rank
uint3 indices[max_threads];    // threadIdx of each rank
unsigned start_order[max_threads];   // ranks in the order in which threads start
Warp warps[max_threads / 32];
unsigned num_fibers = 0;
unsigned num_idle = 0;
unsigned ready[max_threads];  // ring buffer of the ranks that can continue
unsigned first_ready = 0;
unsigned num_ready = 0;
unsigned num_started = 0;
unsigned num_returned = 0;
unsigned num_at_barrier = 0;
std::unique_ptr<char, decltype(&free)> dynamic_data(nullptr, &free);

// Addresses are compared first, because equal texts usually have the same address.
bool equal_text(const char* a, const char* b) { return a == b || strcmp(a, b) == 0; }

// Returns null if the system refuses memory. The size is exact, so that sanitizers detect overruns.
void* allocate_aligned(size_t bytes) {
    void* memory = nullptr;
    return posix_memalign(&memory, 128, bytes) == 0 ? memory : nullptr;
}

// ---- choosing the next thread ---------------------------------------------------------------------------------------

void fiber_entry_point();

bool add_idle_fiber() {
    Fiber& fiber = fibers[num_fibers];
    if (!allocate_stack(fiber)) {
        return false;
    }
    reset_fiber(fiber, fiber_entry_point, ++num_fibers);
    idle[num_idle++] = &fiber;
    return true;
}

void record_allocation_failure(const char* what, size_t bytes) {
    snprintf(launch.message, launch.message_capacity, "the system refused %zu bytes for %s", bytes, what);
    launch.status = no_memory;
}

// Ends the launch, whatever the other threads are doing.
[[noreturn]] void abandon_launch() {
    current = nullptr;
    Fiber& from = *running_fiber;
    running_fiber = &main_fiber;
    switch_fiber(from, main_fiber, true);
    abort();  // not reached: no fiber switches back to an abandoned one
}

[[noreturn]] void fail_allocation(const char* what, size_t bytes) {
    record_allocation_failure(what, bytes);
    abandon_launch();
}

Fiber& take_idle_fiber() {
    if (num_idle == 0 && !add_idle_fiber()) {
        fail_allocation("the stack of a thread", stack_bytes);
    }
    return *idle[--num_idle];
}

unsigned& ready_at(unsigned place) { return ready[(first_ready + place) % max_threads]; }

void make_ready(unsigned rank) { ready_at(num_ready++) = rank; }

bool has_unstarted() { return num_started < launch.num_threads; }

// Returns whether a waiting thread should continue before a new one is started.
bool prefers_ready_thread() {
    if (num_ready == 0 || !has_unstarted()) {
        return num_ready > 0;
    }
    return launch.order != Order::random || (launch.random() & 1) == 0;
}

unsigned take_ready_rank() {
    if (launch.order == Order::random) {
        std::swap(ready_at(0), ready_at(unsigned(launch.random() % num_ready)));
    }
    const unsigned rank = ready_at(0);
    first_ready = (first_ready + 1) % max_threads;
    num_ready--;
    return rank;
}

void set_current_thread(unsigned rank) {
    current = &threads[rank];
    threadIdx = indices[rank];
    current->state = State::running;
#ifdef CUDA_HOST_RACE
    race_set_stack(running_fiber->stack, running_fiber->stack_size);
#endif
}

void switch_to(Fiber& fiber) {
    Fiber& from = *running_fiber;
    running_fiber = &fiber;
    switch_fiber(from, fiber);
}

// Resumes a waiting thread; returns at once if its fiber is already running.
void resume_thread(unsigned rank) {
    Fiber& from = *running_fiber;
    running_fiber = threads[rank].fiber;
    set_current_thread(rank);
    if (running_fiber != &from) {
        switch_fiber(from, *running_fiber);
    }
}

std::string describe_wait(const Thread& thread) {
    if (thread.state == State::returned) {
        return "have returned";
    }
    std::string text = std::string("wait at ") + thread.operation;
    if (thread.state == State::at_collective) {
        char mask[32];
        snprintf(mask, sizeof mask, " with mask 0x%08x", thread.mask);
        text += mask;
    }
    return text + " (" + site_text(thread.site) + ")";
}

// Reports where each thread waits; called if no thread can continue.
[[noreturn]] void report_deadlock() {
    struct WaitingGroup {
        unsigned first;
        unsigned number = 0;
    };
    std::map<std::string, WaitingGroup> groups;
    for (unsigned rank = 0; rank < launch.num_threads; rank++) {
        groups.try_emplace(describe_wait(threads[rank]), WaitingGroup{rank}).first->second.number++;
    }
    std::string message;
    for (const auto& [text, group] : groups) {
        message += (message.empty() ? "" : "; ") + std::to_string(group.number) + " threads, first " +
                   describe_thread(group.first) + ", " + text;
    }
    fail("deadlock: %s", message.c_str());
}

// Suspends the running thread until it is put into `ready`.
void wait_until_ready(State state, const char* operation, CallSite site, unsigned mask) {
    current->state = state;
    current->operation = operation;
    current->site = site;
    current->mask = mask;
    current->fiber = running_fiber;
    if (prefers_ready_thread()) {
        resume_thread(take_ready_rank());
    } else if (has_unstarted()) {
        switch_to(take_idle_fiber());
    } else {
        report_deadlock();
    }
}

// Starts threads one after another until one has to wait; continues when another thread can start.
void run_threads() {
    for (;;) {
        while (has_unstarted() && !prefers_ready_thread()) {
            const unsigned turn = start_order[num_started++];
            set_current_thread(turn);
            launch.kernel->run(launch.arguments);
            threads[turn].state = State::returned;
            warps[turn / 32].absent |= 1u << turn % 32;
            num_returned++;
        }
        idle[num_idle++] = running_fiber;
        if (num_ready > 0) {
            resume_thread(take_ready_rank());
        } else if (num_returned == launch.num_threads) {
            switch_to(main_fiber);
        } else {
            report_deadlock();
        }
    }
}

void fiber_entry_point() {
    finish_first_switch();
    try {
        run_threads();
    } catch (const std::bad_alloc&) {  // thrown while an error message is composed
    }
    fail_allocation("a message", launch.message_capacity);
}

// ---- launching ------------------------------------------------------------------------------------------------------

void reset_fibers() {
    for (num_idle = 0; num_idle < num_fibers; num_idle++) {
        reset_fiber(fibers[num_idle], fiber_entry_point, num_idle + 1);
        idle[num_idle] = &fibers[num_idle];
    }
}

void run_block(Bits block) {
    blockIdx = {unsigned(block % gridDim.x), unsigned(block / gridDim.x % gridDim.y),
                unsigned(block / gridDim.x / gridDim.y)};
    block_serial++;
    num_started = num_returned = num_at_barrier = num_ready = 0;
    for (unsigned first = 0; first < launch.num_threads; first += 32) {
        const unsigned lanes = launch.num_threads - first;
        warps[first / 32].open = 0;
        warps[first / 32].absent = lanes < 32 ? ~0u << lanes : 0;
    }
    if (launch.order == Order::random) {
        std::shuffle(start_order, start_order + launch.num_threads, launch.random);
    }
    if (launch.shared_bytes > 0) {
        memset(dynamic_data.get(), 0xff, launch.shared_bytes);
    }
#ifdef CUDA_HOST_RACE
    race_begin_block();
#endif
    switch_to(take_idle_fiber());
    current = nullptr;
}

// Runs all blocks, or stops at the first error.
void run_grid(Bits num_blocks) {
    std::vector<Bits> shuffled(launch.order == Order::random ? num_blocks : 0);
    std::iota(shuffled.begin(), shuffled.end(), Bits(0));
    std::shuffle(shuffled.begin(), shuffled.end(), launch.random);
    for (Bits turn = 0; turn < num_blocks && launch.status == succeeded; turn++) {
        const Bits forward = launch.order == Order::reverse ? num_blocks - 1 - turn : turn;
        run_block(shuffled.empty() ? forward : shuffled[turn]);
    }
    if (launch.status != succeeded) {
        reset_fibers();
    }
}

// Prepares a launch; returns false if the system refuses memory.
bool begin_launch() {
    for (unsigned rank = 0; rank < launch.num_threads; rank++) {
        threads[rank] = Thread{};
        indices[rank] = {rank % blockDim.x, rank / blockDim.x % blockDim.y, rank / blockDim.x / blockDim.y};
        start_order[rank] = launch.order == Order::reverse ? launch.num_threads - 1 - rank : rank;
    }
    dynamic_data.reset(static_cast<char*>(allocate_aligned(launch.shared_bytes)));
    if (dynamic_data == nullptr) {
        record_allocation_failure("dynamic shared memory", launch.shared_bytes);
        return false;
    }
    if (num_idle == 0 && !add_idle_fiber()) {
        record_allocation_failure("the stack of a thread", stack_bytes);
        return false;
    }
    main_fiber = Fiber{};
    running_fiber = &main_fiber;
    return true;
}

const char* describe_invalid_launch(const unsigned* grid, const unsigned* block, size_t shared_bytes) {
    const Bits num_threads = Bits(block[0]) * block[1] * block[2];
    if (num_threads == 0 || block[0] > max_threads || block[1] > max_threads || block[2] > 64 ||
        num_threads > max_threads) {
        return "the block has no threads or more than a device grants (1024 in all, 64 along z)";
    }
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[0] > 0x7fffffffu || grid[1] > 65535 || grid[2] > 65535) {
        return "the grid has no blocks or more than a device grants (2147483647, 65535, 65535)";
    }
    return shared_bytes > max_shared_bytes ? "more dynamic shared memory than any device grants (232448 bytes)"
                                           : nullptr;
}

}  // namespace

// ---- functions for kernels (cuda_host.h) ----------------------------------------------------------------------------

void fail(const char* format, ...) {
    va_list values;
    va_start(values, format);
    const bool by_thread = current->state == State::running;
    const int length =
        snprintf(launch.message, launch.message_capacity, "block (%u, %u, %u)%s%s: ", blockIdx.x, blockIdx.y,
                 blockIdx.z, by_thread ? ", " : "", by_thread ? describe_thread(rank(*current)).c_str() : "");
    vsnprintf(launch.message + length, launch.message_capacity - size_t(length), format, values);
    va_end(values);
    launch.status = failed;
    abandon_launch();
}

unsigned rank(const Thread& thread) { return unsigned(&thread - threads); }

CallSite site_of(const Thread& thread) { return thread.site; }

std::string describe_thread(unsigned rank) {
    const uint3 index = indices[rank];
    return "thread (" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " + std::to_string(index.z) + ")";
}

void wait_at_barrier(CallSite site) {
    num_at_barrier++;
    if (num_at_barrier < launch.num_threads) {
        wait_until_ready(State::at_barrier, "__syncthreads", site, 0);
        return;
    }
    for (unsigned other = 0; other < launch.num_threads; other++) {
        const Thread& thread = threads[other];
        if (&thread != current && (thread.site.line != site.line || !equal_text(thread.site.file, site.file))) {
            fail("reached __syncthreads at %s while %s waits at another one, %s", site_text(site).c_str(),
                 describe_thread(other).c_str(), site_text(thread.site).c_str());
        }
    }
    num_at_barrier = 0;
#ifdef CUDA_HOST_RACE
    race_barrier();
#endif
    for (unsigned place = 0; place < launch.num_threads; place++) {
        make_ready(start_order[place]);
    }
    current->fiber = running_fiber;
    resume_thread(take_ready_rank());
}

namespace {

// Returns the entry of a warp for a collective: a pending entry with the same mask, or a new one.
Warp::PendingCollective& find_or_open_collective(Warp& warp, const char* name, unsigned mask, CallSite site) {
    for (unsigned open = warp.open; open != 0; open &= open - 1) {
        Warp::PendingCollective& pending = warp.pending[__builtin_ctz(open)];
        if (pending.call.mask == mask) {
            if (!equal_text(pending.call.name, name)) {
                fail("reached %s at %s while other lanes of its mask 0x%08x wait at %s", name, site_text(site).c_str(),
                     mask, pending.call.name);
            }
            return pending;
        }
    }
    // 32 entries suffice, because at least one lane waits at each open entry.
    const unsigned slot = unsigned(__builtin_ctz(~warp.open));
    warp.open |= 1u << slot;
    Warp::PendingCollective& pending = warp.pending[slot];
    pending.call.name = name;
    pending.call.mask = mask;
    pending.arrived = 0;
    return pending;
}

void check_lanes(const char* name, unsigned mask, unsigned lane, unsigned first, CallSite site) {
    if ((mask >> lane & 1) == 0) {
        fail("%s at %s: lane %u calls with mask 0x%08x, which leaves it out", name, site_text(site).c_str(), lane,
             mask);
    }
    if (const unsigned absent = mask & warps[first / 32].absent) {
        const unsigned other = unsigned(__builtin_ctz(absent));
        fail("%s at %s: mask 0x%08x names lane %u, which %s", name, site_text(site).c_str(), mask, other,
             first + other < launch.num_threads ? "has returned" : "the block does not have");
    }
}

}  // namespace

Bits execute_collective(const char* name, unsigned mask, Finish finish, Bits value, Bits argument, CallSite site) {
    Thread& self = *current;
    const unsigned first = rank(self) / 32 * 32;
    const unsigned lane = rank(self) - first;
    check_lanes(name, mask, lane, first, site);
    Warp& warp = warps[first / 32];
    Warp::PendingCollective& pending = find_or_open_collective(warp, name, mask, site);
    pending.call.value[lane] = value;
    pending.call.argument[lane] = argument;
    pending.arrived |= 1u << lane;
    if (pending.arrived != mask) {
        wait_until_ready(State::at_collective, name, site, mask);
        return self.result;
    }
    self.site = site;
    warp.open &= ~(1u << (&pending - warp.pending));
    finish(pending.call);
    self.fiber = running_fiber;
    for (unsigned turn = 0; turn < 32; turn++) {
        const unsigned other = launch.order == Order::reverse ? 31 - turn : turn;
        if ((mask >> other & 1) != 0) {
            threads[first + other].result = pending.call.result[other];
            make_ready(first + other);
        }
    }
    resume_thread(take_ready_rank());
    return self.result;
}

void refill_shared_array(SharedArray& array, [[maybe_unused]] const char* name) {
    if (array.data == nullptr) {
        array.data = allocate_aligned(array.bytes);
        if (array.data == nullptr) {
            fail_allocation("a shared array", array.bytes);
        }
    }
    memset(array.data, 0xff, array.bytes);
    array.block = block_serial;
#ifdef CUDA_HOST_RACE
    race_add_shared_array(array.data, array.bytes, array.element_bytes, name);
#endif
}

void* get_dynamic_shared_buffer([[maybe_unused]] const char* name, [[maybe_unused]] size_t element_bytes) {
#ifdef CUDA_HOST_RACE
    race_add_shared_array(dynamic_data.get(), launch.shared_bytes, element_bytes, name);
#endif
    return dynamic_data.get();
}

}  // namespace cuda_host

#pragma GCC visibility pop

// ---- the C interface ------------------------------------------------------------------------------------------------
// Calls must not overlap (launcher.py holds a lock). A forked child discards a launch that another thread had begun.
#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT const char* cuda_host_family() { return cuda_host::family; }

EXPORT int cuda_host_num_kernels() { return cuda_host::num_kernels; }

EXPORT const char* cuda_host_kernel_name(int kernel) { return cuda_host::kernels[kernel].name; }

EXPORT const char* cuda_host_kernel_parameters(int kernel) { return cuda_host::kernels[kernel].parameters; }

// The returned text is valid until the next call.
EXPORT const char* cuda_host_kernel_signature(int kernel) {
    static std::string text;
    text = cuda_host::kernels[kernel].signature();
    return text.c_str();
}

EXPORT int cuda_host_launch(int kernel, const unsigned* grid, const unsigned* block, size_t shared_bytes,
                            const cuda_host::LaunchArgument* arguments, int order, unsigned long long seed,
                            char* message, size_t message_capacity) {
    using namespace cuda_host;
    if (const char* const reason = describe_invalid_launch(grid, block, shared_bytes)) {
        snprintf(message, message_capacity, "%s", reason);
        return refused;
    }
    const bool interrupted = launch.in_progress;
    launch.kernel = &kernels[kernel];
    launch.arguments = arguments;
    launch.order = Order(order);
    launch.num_threads = block[0] * block[1] * block[2];
    launch.shared_bytes = shared_bytes;
    launch.message = message;
    launch.message_capacity = message_capacity;
    launch.random.seed(seed);
    launch.in_progress = true;
    launch.status = succeeded;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    current = nullptr;
    if (interrupted) {
        reset_fibers();
    }
    try {
        if (begin_launch()) {
#ifdef CUDA_HOST_RACE
            race_begin_launch(*launch.kernel, arguments, launch.num_threads);
#endif
            run_grid(Bits(grid[0]) * grid[1] * grid[2]);
#ifdef CUDA_HOST_RACE
            race_end_launch();
#endif
        }
    } catch (const std::bad_alloc&) {  // thrown by the race detector, or while the random order of blocks is allocated
        record_allocation_failure("the order of blocks", Bits(grid[0]) * grid[1] * grid[2] * sizeof(Bits));
    }
    launch.in_progress = false;
    return launch.status;
}
