// Registers of threads that work in the background writes or reads: each is a word of its thread's stack.
//
// What is written may not be touched until it is waited for, and what is read not be written. It is poisoned, so that
// who touches it all the same, where no access is seen, gets a NaN. And a word knows whether its thread wrote it behind
// its last wgmma.fence.
#pragma once

#include <cstdint>

#include "machine.h"

namespace emulator {

// From here on accesses to registers are looked at, until the blocks that run have ended.
void watch_registers();

// The registers of a thread are ordered in front of the products that follow.
void fence_registers(const Thread& thread);
std::uint32_t fences_of(const Thread& thread);
bool is_written_since_fence(const Thread& thread, const void* place);

// What reads registers in the background, and writes others.
inline constexpr char kProductWork[] = "a product";

// Work in the background, as it is called, begins to write a register: what that had. And it is over.
std::uint32_t begin_result(int line, const Thread& thread, std::uint32_t* place, const char* work);
void end_result(int line, const Thread& thread, std::uint32_t* place, std::uint32_t value);
// A product begins to read a register, and has read it; there is none where the place is null.
void begin_operand(int line, const Thread& thread, const std::uint32_t* place);
void end_operand(const Thread& thread, const std::uint32_t* place);

}  // namespace emulator
