// Fibers: separate stacks between which a single OS thread switches.
//
// On x86-64 and aarch64 a switch saves the callee-saved registers and swaps the stack pointer; on other processors,
// ucontext does this with two system calls. AddressSanitizer must be told of each switch, or it reports false errors.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if !((defined(__x86_64__) || defined(__aarch64__)) && defined(__ELF__)) && !defined(CUDA_HOST_UCONTEXT)
#define CUDA_HOST_UCONTEXT
#endif
#ifdef CUDA_HOST_UCONTEXT
#include <ucontext.h>
#endif

namespace cuda_host {

// CUDA allows 512 KB of local memory per thread. Unused pages occupy no memory.
constexpr size_t stack_bytes = size_t(1) << 20;

struct Fiber {
#ifdef CUDA_HOST_UCONTEXT
    ucontext_t context;
#else
    void* stack_pointer = nullptr;
#endif
    char* stack = nullptr;  // lowest usable address; null for the launching thread's own stack
    size_t stack_size = 0;
    void* fake_stack = nullptr;  // AddressSanitizer's handle while the fiber is suspended
};

// Allocates a stack with a guard page below it; returns false if the system refuses memory.
bool allocate_stack(Fiber& fiber);

// Resets the fiber, so that the next switch to it starts `entry`. `entry` must not return. `colour` shifts the top of
// the stack, so that the most frequently used parts of the stacks do not compete for one cache set.
void reset_fiber(Fiber& fiber, void (*entry)(), unsigned colour);

// Switches from the running fiber `from` to `to`. If `last`, no fiber will ever switch back to `from`.
void switch_fiber(Fiber& from, Fiber& to, bool last = false);

// `entry` must call this function before anything else.
void finish_first_switch();

}  // namespace cuda_host
