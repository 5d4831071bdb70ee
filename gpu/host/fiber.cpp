#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#pragma GCC visibility push(hidden)

namespace cuda_host {

#ifdef __SANITIZE_ADDRESS__
static Fiber* previous_fiber = nullptr;  // fiber that ran before the last switch

static void finish_sanitizer_switch(void* fake_stack) {
    const void* stack;
    size_t size;
    __sanitizer_finish_switch_fiber(fake_stack, &stack, &size);
    if (previous_fiber->stack == nullptr) {  // the launching thread's stack is known only after the first switch
        previous_fiber->stack = static_cast<char*>(const_cast<void*>(stack));
        previous_fiber->stack_size = size;
    }
}
#endif

bool allocate_stack(Fiber& fiber) {
    const size_t guard = size_t(sysconf(_SC_PAGESIZE));
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    void* const memory = mmap(nullptr, guard + stack_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) {
        return false;
    }
    if (mprotect(memory, guard, PROT_NONE) != 0) {
        munmap(memory, guard + stack_bytes);
        return false;
    }
    fiber.stack = static_cast<char*>(memory) + guard;
    fiber.stack_size = stack_bytes;
    return true;
}

#ifndef CUDA_HOST_UCONTEXT
extern "C" void cuda_host_swap(void** save_stack_pointer, void* load_stack_pointer);
asm(R"(
    .text
    .hidden cuda_host_swap
    .globl cuda_host_swap
    .type cuda_host_swap, %function
cuda_host_swap:
)"
#ifdef __x86_64__
R"(
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)"
#else
R"(
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)"
#endif
R"(
    .size cuda_host_swap, .-cuda_host_swap
)");
#endif

void reset_fiber(Fiber& fiber, void (*entry)(), unsigned colour) {
    const size_t shift = (size_t(colour) * 448) % 4096 & ~size_t(63);
    fiber.fake_stack = nullptr;
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(fiber.stack, fiber.stack_size);  // an abandoned thread leaves red zones on its stack
#endif
#ifdef CUDA_HOST_UCONTEXT
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = fiber.stack_size - shift;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, entry, 0);
#else
    // Initial stack contents, which the first swap loads. On x86-64: six registers, then `entry`, to which the swap
    // returns, then a null return address of `entry`, at a multiple of 16 as after a call. On aarch64: 20 registers, of
    // which the twelfth is the link register.
#ifdef __x86_64__
    constexpr int words = 8, entered = 6;
#else
    constexpr int words = 20, entered = 11;
#endif
    void** const top = reinterpret_cast<void**>(fiber.stack + fiber.stack_size - shift) - words;
    for (int i = 0; i < words; i++) {
        top[i] = i == entered ? reinterpret_cast<void*>(entry) : nullptr;
    }
    fiber.stack_pointer = top;
#endif
}

void switch_fiber(Fiber& from, Fiber& to, [[maybe_unused]] bool last) {
#ifdef __SANITIZE_ADDRESS__
    previous_fiber = &from;
    __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.stack, to.stack_size);
#endif
#ifdef CUDA_HOST_UCONTEXT
    swapcontext(&from.context, &to.context);
#else
    cuda_host_swap(&from.stack_pointer, to.stack_pointer);
#endif
#ifdef __SANITIZE_ADDRESS__
    finish_sanitizer_switch(from.fake_stack);
#endif
}

void finish_first_switch() {
#ifdef __SANITIZE_ADDRESS__
    finish_sanitizer_switch(nullptr);
#endif
}

}  // namespace cuda_host
