// What the runtime's own sources see of the language: PTX, without CUDA's headers.
#pragma once

#include <cstdint>

#include "machine/runtime.h"

namespace emulator {

constexpr Operation kMatrixLoad = kFirstCollective;
constexpr Operation kMatrixStore = kFirstCollective + 1;
constexpr Operation kMatrixMultiply = kFirstCollective + 2;
constexpr Operation kWarpFunction = kFirstCollective + 3;
constexpr Operation kAsyncCopy = kFirstCollective + 4;
constexpr Operation kBulk = kFirstCollective + 5;
constexpr Operation kWgmmaProduct = kFirstCollective + 6;
constexpr Operation kPhase = kFirstCollective + 7;  // of an mbarrier
constexpr Operation kGroup = kFirstCollective + 8;
constexpr Operation kTensorProduct = kFirstCollective + 9;
constexpr Operation kTensorMove = kFirstCollective + 10;
constexpr unsigned kMemory = kMemoryGlobal | kMemoryShared;

// Kinds of agents that work for a thread.
constexpr unsigned kCpAsync = 1;
constexpr unsigned kBulkStore = 2;
constexpr unsigned kWgmma = 3;
constexpr unsigned kMbarrier = 4;
// Those of tensor memory, which a launch has that uses it: products and copies of a thread, in order; loads
// of a warp, and its stores. What is ordered by a fence, too, is known as work of a second agent.
constexpr unsigned kTensorPipe = 5;
constexpr unsigned kTensorPipeFenced = 6;
constexpr unsigned kTensorWarp = 7;
constexpr unsigned kTensorWarpFenced = 8;

// What is done before each block, behind it, and when no thread can go on: whether some can, then. And
// chance, as the launch's seed gives it.
void add_block_start(void (*start)());
void add_block_end(void (*end)());
void add_idle(bool (*idle)());
std::uint64_t random_below(std::uint64_t bound);

// Shared memory is a window of addresses of 32 bits.
std::uint32_t to_shared(const void* address);
void* from_shared(std::uint32_t address);

// The address in the memory of another block of the cluster, and the end of a thread's own copies.
namespace ptx {
std::uint32_t mapa(int line, std::uint32_t address, unsigned rank);
void cp_async_finish(int line);
}  // namespace ptx

// What a bulk copy filled: where it ends, the bytes of its inner two axes, and the swizzle's mode.
struct CopiedTile {
  std::uint32_t end;
  std::uint32_t plane;
  unsigned swizzle;
};
// That of the copy that wrote an address last; null where it was another.
const CopiedTile* copied_tile(std::uint32_t address);

}  // namespace emulator

#include "emulator/ptx.h"
#include "emulator/tensor_cores.h"
