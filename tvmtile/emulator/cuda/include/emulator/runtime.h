// What the runtime's own sources see of the language: PTX, without CUDA's headers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "machine/runtime.h"

namespace emulator {

constexpr Operation kMatrixLoad = kFirstCollective;
constexpr Operation kMatrixStore = kFirstCollective + 1;
constexpr Operation kMatrixMultiply = kFirstCollective + 2;
constexpr Operation kWarpFunction = kFirstCollective + 3;
constexpr Operation kAsyncCopy = kFirstCollective + 4;
constexpr unsigned kMemory = kMemoryGlobal | kMemoryShared;

// Kinds of agents that work for a thread.
constexpr unsigned kCpAsync = 1;
constexpr unsigned kAgents = 1;

// Shared memory is a window of addresses of 32 bits.
std::uint32_t to_shared(const void* address);
void* from_shared(std::uint32_t address);

}  // namespace emulator

#include "emulator/ptx.h"
