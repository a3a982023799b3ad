// Stacks that are switched by hand: the threads of a block.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

// What is needed to go on with a suspended flow of control.
struct Fiber {
  void* stack_pointer = nullptr;
  void* context = nullptr;  // where there is no hand-written switch
};

// Makes `fiber` run `start` on the given stack when it is first switched to. `start` never returns.
void prepare_fiber(Fiber& fiber, void* stack, std::size_t bytes, void (*start)());

// Suspends the running flow into `from` and goes on with `to`.
void switch_fiber(Fiber& from, Fiber& to);

// Frees what prepare_fiber may have taken apart from the stack.
void release_fiber(Fiber& fiber);

}  // namespace emulator
