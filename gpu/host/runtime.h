// The interface between the scheduler (runtime.cpp) and the race detector (race.cpp).
#pragma once

#include "cuda_host.h"

namespace cuda_host {

// The running thread; null outside of kernels.
struct Thread;
extern Thread* current;
unsigned rank(const Thread& thread);         // index of the thread within its block
std::string describe_thread(unsigned rank);  // for example "thread (3, 0, 0)"
CallSite site_of(const Thread& thread);      // where the thread waits, or completes a collective
inline std::string site_text(const CallSite& site) { return std::string(site.file) + ":" + std::to_string(site.line); }

#ifdef CUDA_HOST_RACE
// The scheduler calls these functions. Sizes are in bytes; `element_bytes` sets the resolution of recorded accesses.
void race_begin_launch(const Kernel& kernel, const LaunchArgument* arguments, unsigned num_threads);
void race_begin_block();
void race_add_shared_array(void* data, size_t bytes, size_t element_bytes, const char* name);
void race_barrier();
void race_syncwarp(unsigned warp, unsigned mask);
void race_set_stack(const void* low, size_t bytes);  // announces the stack of the running thread
void race_end_launch();
#endif

}  // namespace cuda_host
