// Darwin declares the functions of <ucontext.h> only where this is asked for, in front of any header.
#ifdef __APPLE__
#define _XOPEN_SOURCE 600
#define _DARWIN_C_SOURCE
#endif
#include "fiber.h"

// A switch saves the registers that a called function must preserve, and swaps stack pointers: a few
// nanoseconds. swapcontext, the fallback, makes two system calls, which a GEMM of some million
// switches would feel.

#if defined(__linux__) && defined(__x86_64__)

asm(R"(
.text
.hidden emulator_switch
.globl emulator_switch
.type emulator_switch, @function
emulator_switch:
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
.size emulator_switch, .-emulator_switch
)");

namespace emulator {
namespace {
// Six saved registers, then the address that the switch returns to. A function finds the stack
// pointer 8 bytes below a multiple of 16, which the padding arranges.
constexpr std::size_t kRegisters = 6;
constexpr std::size_t kFrame = 8;
constexpr std::size_t kReturn = kRegisters;
}  // namespace
}  // namespace emulator
#define EMULATOR_HAND_WRITTEN 1

#elif (defined(__linux__) || defined(__APPLE__)) && defined(__aarch64__)

#ifdef __APPLE__
asm(".private_extern _emulator_switch\n.globl _emulator_switch\n.p2align 2\n_emulator_switch:");
#else
asm(".hidden emulator_switch\n.globl emulator_switch\n.type emulator_switch, %function\nemulator_switch:");
#endif
asm(R"(
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
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
  ldp x19, x20, [sp, #0]
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
)");

namespace emulator {
namespace {
// Twelve general registers, of which x30 is the address to return to, and eight of floating point.
constexpr std::size_t kFrame = 20;
constexpr std::size_t kReturn = 11;
}  // namespace
}  // namespace emulator
#define EMULATOR_HAND_WRITTEN 1

#endif

#ifdef EMULATOR_HAND_WRITTEN

extern "C" void emulator_switch(void** save, void* load);

namespace emulator {

void prepare_fiber(Fiber& fiber, void* stack, std::size_t bytes, void (*start)()) {
  auto top = (reinterpret_cast<std::uintptr_t>(stack) + bytes) & ~std::uintptr_t{15};
  auto frame = reinterpret_cast<std::uintptr_t*>(top) - kFrame;
  frame[kReturn] = reinterpret_cast<std::uintptr_t>(start);
  fiber.stack_pointer = frame;
}

void switch_fiber(Fiber& from, Fiber& to) { emulator_switch(&from.stack_pointer, to.stack_pointer); }

void release_fiber(Fiber&) {}

}  // namespace emulator

#else

#include <ucontext.h>

namespace emulator {

void prepare_fiber(Fiber& fiber, void* stack, std::size_t bytes, void (*start)()) {
  auto* context = new ucontext_t;
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = bytes;
  context->uc_link = nullptr;
  makecontext(context, start, 0);
  fiber.context = context;
}

void switch_fiber(Fiber& from, Fiber& to) {
  if (from.context == nullptr) from.context = new ucontext_t;
  swapcontext(static_cast<ucontext_t*>(from.context), static_cast<ucontext_t*>(to.context));
}

void release_fiber(Fiber& fiber) {
  delete static_cast<ucontext_t*>(fiber.context);
  fiber.context = nullptr;
}

}  // namespace emulator

#endif
