// What a kernel's translation unit and the runtime agree on.
//
// Every thread of a block is a fiber. A fiber gives up the processor in two places only: at a
// barrier and at an operation of its warp. The last thread that arrives does the work for all.
#pragma once

#include <cstddef>
#include <cstdint>

// Of functions that kernels call, what would be memory traffic by a call; and what accesses memory for a
// kernel, whose line is then found.
#define EMULATOR_INLINE [[gnu::always_inline]] inline

namespace emulator {

constexpr unsigned kWarpSize = 32;

// What threads may meet at: an index into Statistics::operations. A front end numbers what warps do
// together from kFirstCollective on.
using Operation = unsigned;
constexpr Operation kBlockBarrier = 0;
constexpr Operation kWarpBarrier = 1;
constexpr Operation kFirstCollective = 2;
constexpr unsigned kOperations = 16;
constexpr Operation kClusterBarrier = kOperations - 1;

// A place in the source where threads meet. Two places are the same if name and line are.
struct Site {
  Operation operation;
  const char* name;
  int line;
};

// What a thread is told about itself; the entry glue hands it on as a kernel's attributes ask.
struct ThreadContext {
  unsigned position[3];        // in its block
  unsigned block_position[3];  // in the grid
  unsigned threads[3];         // per block
  unsigned grid[3];            // blocks
  unsigned cluster[3];         // blocks of a cluster
  unsigned rank;               // of its block in the cluster
  unsigned index;              // in its block
  unsigned lane;
  unsigned warp;
  unsigned warps;  // in the block
};

// The running thread's index in its warp.
unsigned this_lane();

// How many threads its warp has: the last one of a block may be short.
unsigned this_warp_size();

// The lanes of its warp that have not returned.
std::uint32_t unfinished_lanes();

// The lanes of its warp that come to the same place together: those that wait elsewhere do not.
std::uint32_t active_lanes(const Site& site);

constexpr std::uint32_t kAllLanes = 0xffffffff;

// Waits for the lanes of `mask`. The last one to arrive calls `execute` with every lane's `payload`, null
// for lanes that are not in the mask.
using Collective = void (*)(const Site& site, void* const* payloads, unsigned lanes);
void warp_collective(const Site& site, void* payload, Collective execute,
                     std::uint32_t mask = kAllLanes);

// What a barrier orders: accesses to global memory, to shared memory, or to both.
constexpr unsigned kMemoryGlobal = 1;
constexpr unsigned kMemoryShared = 2;

void block_barrier(const Site& site, unsigned memory);
void warp_barrier(const Site& site, unsigned memory, std::uint32_t mask = kAllLanes);
// A barrier that so many threads of the block come to, 0 for all of them.
void named_barrier(const Site& site, unsigned number, unsigned threads, bool wait);
// The barrier of a cluster, in two steps: a thread arrives, then waits until all have arrived that have not
// returned. An arrival that does not release orders nothing. All lanes of a warp do it together.
void cluster_arrive(const Site& site, bool release);
void cluster_wait(const Site& site);

// The memory of a shared variable: every thread of a block gets the same.
void* shared_variable(const char* name, int line, std::size_t bytes, std::size_t element_bytes,
                      std::size_t alignment);

// A variable of the running thread that has no value yet, filled with what marks that: a thread that reads of
// it before it writes, and then stores such a mark in global memory, is mistaken. It is watched until
// `forget_unset`.
void note_unset(const void* variable, std::size_t bytes, std::size_t element_bytes, const char* name);
void forget_unset(const void* variable, std::size_t bytes);

// The marks: what 2 or 4 bytes hold that nobody wrote, or made of such by arithmetic. No arithmetic yields the
// signalling NaNs by itself.
constexpr std::uint32_t kUnsetFloat = 0x7fa5a5a5;
constexpr std::uint16_t kUnsetHalf = 0x7da5;
constexpr std::uint16_t kUnsetBfloat = 0x7fa5;
constexpr std::uint32_t kUnsetInteger = 0x00a5a5a5;  // a sum of a hundred is an integer still
constexpr unsigned char kUnsetByte = 0xa5;

// What the launch binds to the kernel's last parameter.
void* last_argument();

// Ends the launch: the kernel says that it must not get here, or does what can't be emulated.
[[noreturn]] void fail_trap(int line, const char* message);
[[noreturn]] void fail_unsupported(int line, const char* what);
// Ends the launch: a rule of work in the background, or of its barriers, is broken.
[[noreturn]] void fail_protocol(int line, const char* what);

// Ends the launch: a lane index that names no lane of the warp.
[[noreturn]] void fail_invalid_lane(const Site& site, unsigned lane);

// Ends the launch: an argument that must be the same in all lanes and is not.
[[noreturn]] void fail_not_uniform(const Site& site, const char* argument, unsigned lane);

}  // namespace emulator

// The entry of a kernel: glue, which is not part of it, and reads the launch's own memory.
#define EMULATOR_ENTRY(name)                                                  \
  extern "C" __attribute__((externally_visible, visibility("default"),        \
                            no_sanitize("thread", "undefined"))) void         \
  emulator_entry_##name(void* const* arguments, const emulator::ThreadContext& context)
