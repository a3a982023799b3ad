// Where a thread is, the memory that it shares with its block, and barriers of the block.
#pragma once

namespace emulator {

// The running thread's. It never changes for it, so a kernel has it as a constant, whose reads are no accesses
// that are checked. To clang it is none, who does not see how it is made: the machine knows of it.
struct Positions {
  uint3 thread, block, threads, blocks;
};
extern const Positions position;
// By value: what is read in the machine's own memory is no access of the kernel.
__attribute__((const)) uint3 cluster_extent();
__attribute__((const)) unsigned rank_in_cluster();
__attribute__((const)) unsigned blocks_of_cluster();

// Sums a number over the threads of the block that come to the same barrier.
int sum_over_block(int value, int line);

}  // namespace emulator

#define threadIdx (::emulator::position.thread)
#define blockIdx (::emulator::position.block)
#define blockDim (::emulator::position.threads)
#define gridDim (::emulator::position.blocks)
#define warpSize 32

// `__shared__ half A[64];` is a reference to memory of the machine.
#define EMULATOR_SHARED(alignment, name, extents, ...)                                     \
  __VA_ARGS__(&name) extents = *static_cast<__VA_ARGS__(*) extents>(                       \
      ::emulator::shared_variable(#name, __LINE__, sizeof(__VA_ARGS__ extents),            \
                                  sizeof(__VA_ARGS__), alignment))
// `extern __shared__ half A[];` begins where the launch's memory does.
#define EMULATOR_DYNAMIC_SHARED(name, ...) \
  __VA_ARGS__* const name = static_cast<__VA_ARGS__*>(::emulator::last_argument())

inline void __syncthreads(int line = __builtin_LINE()) {
  emulator::block_barrier({emulator::kBlockBarrier, "__syncthreads", line}, emulator::kMemory);
}
inline int __syncthreads_count(int predicate, int line = __builtin_LINE()) {
  return emulator::sum_over_block(predicate != 0, line);
}
inline int __syncthreads_or(int predicate, int line = __builtin_LINE()) {
  return emulator::sum_over_block(predicate != 0, line) != 0;
}
inline int __syncthreads_and(int predicate, int line = __builtin_LINE()) {
  return emulator::sum_over_block(predicate == 0, line) == 0;
}
inline void __syncwarp(unsigned mask = emulator::kAllLanes, int line = __builtin_LINE()) {
  emulator::warp_barrier({emulator::kWarpBarrier, "__syncwarp", line}, emulator::kMemory, mask);
}

// One fiber runs at a time, and what orders accesses of threads are barriers.
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) {}

inline std::size_t __cvta_generic_to_shared(const void* address) {
  return emulator::to_shared(address);
}
inline void* __cvta_shared_to_generic(std::size_t address) {
  return emulator::from_shared(static_cast<std::uint32_t>(address));
}
inline std::size_t __cvta_generic_to_global(const void* address) {
  return reinterpret_cast<std::size_t>(address);
}

#undef assert
#define assert(condition) \
  ((condition) ? void(0) : ::emulator::fail_trap(__LINE__, "assert(" #condition ")"))
namespace emulator {
[[noreturn]] inline void fail_assertion(int line, const char* message, const char* file,
                                        unsigned file_line) {
  static char text[1024];  // the report is written after the kernel's stack is gone
  std::snprintf(text, sizeof text, "%s (%s:%u)", message, file, file_line);
  fail_trap(line, text);
}
}  // namespace emulator
inline void __assertfail(const char* message, const char* file, unsigned file_line, const char*,
                         std::size_t, int line = __builtin_LINE()) {
  emulator::fail_assertion(line, message, file, file_line);
}
// glibc declares __assert_fail, which ends the process.
#define __assert_fail(message, file, line, function) \
  ::emulator::fail_assertion(__LINE__, message, file, line)
