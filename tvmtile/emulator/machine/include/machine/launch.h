// What Python and the runtime exchange at a launch. Structures of plain C, a field a line: `abi.py` reads them.
#pragma once

#include <cstdint>

#include "runtime.h"

namespace emulator {

// The kernel behind a uniform signature. `arguments` has an address for every parameter that is
// bound to a buffer or to shared memory, in the order of the kernel's parameters.
using Entry = void (*)(void* const* arguments, const ThreadContext& thread);

struct BufferArgument {
  void* host;
  std::uint64_t bytes;
  std::uint64_t element_bytes;
  const char* name;
  std::int32_t writable;  // copied back after the launch
  std::int32_t tracked;   // for races
};

struct Binding {
  std::int32_t buffer;   // an index of Launch::buffers; -1 for shared memory
  std::uint64_t offset;  // into the buffer
  std::uint64_t bytes;   // of shared memory
  std::uint64_t element_bytes;
  const char* name;
};

struct Launch {
  Entry entry;
  const BufferArgument* buffers;
  const Binding* bindings;
  std::uint32_t buffer_count;
  std::uint32_t binding_count;
  std::uint32_t grid[3];
  std::uint32_t threads[3];
  std::uint32_t cluster[3];  // blocks that run together; the grid is a multiple of it
  std::uint32_t shared_memory_limit;
  std::uint32_t agents;  // kinds of work in the background that a thread may start
  std::int32_t returned_threads_pass;  // a block's barrier does not wait for them
  std::uint64_t seed;  // when work in the background is done, and the order of blocks; 0: theirs
  double seconds;  // of processor time for a block, or a cluster
  std::int32_t counts_conflicts;  // of banks, which takes time
  std::int32_t short_sums;  // where hardware adds with fewer bits than its sums have
  std::int32_t waits_for_all;  // what a warp waits for is over for all that began it together
  std::uint32_t least_blocks;  // that share the registers of a multiprocessor
};

enum class Failure : std::int32_t {
  kNone,
  kRace,
  kOutOfBounds,
  kUninitialized,
  kDivergence,
  kMisaligned,
  kSharedMemory,
  kNotUniform,
  kInvalidLane,
  kReadOnly,
  kResources,
  kDivision,
  kStack,
  kEndless,
  kDeadlock,
  kTrap,
  kUnsupported,
  kFence,
  kRegister,
  kProtocol,
  kOverflow,
  kShift,
};

// An atomic operation that modifies is a read and then a write, both atomic.
enum class Access : std::int32_t { kRead, kWrite, kAtomicRead, kAtomicWrite };

constexpr bool is_read(Access access) {
  return access == Access::kRead || access == Access::kAtomicRead;
}
constexpr bool is_atomic(Access access) {
  return access == Access::kAtomicRead || access == Access::kAtomicWrite;
}

struct Report {
  Failure failure;
  Access access;
  Access other_access;
  std::int32_t space;   // a Space, or -1: the address is in no buffer
  std::int32_t thread;  // index in its block
  std::int32_t agent;         // 0: the thread itself; else which kind of what it started
  std::int32_t other_thread;  // -1: none
  std::int32_t other_agent;
  std::uint32_t block[3];
  std::uint32_t other_block[3];
  std::int32_t line;  // of the kernel's source; 0 where only `instruction` is known
  std::int32_t other_line;
  std::uint64_t instruction;  // address in the module's image
  std::int64_t offset;        // bytes from the buffer's start
  std::uint64_t size;         // bytes of the access
  std::uint64_t buffer_bytes;
  std::uint64_t element_bytes;
  char buffer[64];
  char operation[128];
  char other_operation[128];
};

struct Statistics {
  std::uint64_t operations[kOperations];
  std::uint64_t global_bytes_read;
  std::uint64_t global_bytes_written;
  std::uint64_t shared_bytes_read;
  std::uint64_t shared_bytes_written;
  std::uint64_t global_reads;  // instructions of threads
  std::uint64_t global_writes;
  std::uint64_t shared_reads;
  std::uint64_t shared_writes;
  std::uint64_t bank_moves;  // of warps' threads, of 128 bytes at most; 0 where they are not counted
  std::uint64_t bank_conflicts;  // moves that come of conflicts
  std::uint64_t shared_memory;  // bytes that a block allocates
};

}  // namespace emulator
