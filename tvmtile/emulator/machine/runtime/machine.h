// One launch: the threads of the running block, its memory, and how a launch ends early.
#pragma once

#include <cstdint>
#include <vector>

#include "machine/launch.h"
#include "fiber.h"
#include "memory.h"
#include "signals.h"

namespace emulator {

struct Thread {
  enum class State { kReady, kWaiting, kFinished };

  ThreadContext context;
  Fiber fiber;
  State state = State::kReady;
  Site site = {};  // where it waits
};

// Threads that wait for each other: a warp at one of its operations, a block at a barrier.
struct Barrier {
  unsigned members = 0;
  unsigned waiting = 0;
  unsigned finished = 0;
  const Thread* waiter = nullptr;   // the first one; valid while any waits
  const Thread* finisher = nullptr;  // the first one; valid once any has
};

struct Warp {
  Barrier barrier;
  unsigned first = 0;  // thread
  void* payloads[kWarpSize] = {};
};

class Machine {
 public:
  Machine(const Launch& launch, Report& report, Statistics& statistics);
  ~Machine();

  // Runs the grid. False: `report` says why.
  bool run();

  // --- called by fibers

  Thread& current() { return *current_; }
  unsigned warp_size() const {
    return warps_[current_->context.warp].barrier.members;
  }
  void warp_collective(const Site& site, void* payload, Collective execute);
  void block_barrier(const Site& site, unsigned memory);
  void warp_barrier_passed(unsigned memory);
  void* shared_variable(const char* name, int line, std::size_t bytes,
                             std::size_t element_bytes, std::size_t alignment);

  // Checks an access by `thread`. Ends the launch if it is wrong.
  void access(const Thread& thread, std::uintptr_t address, std::uint64_t size, Access access,
              std::uintptr_t instruction, int line = 0);
  void access(std::uintptr_t address, std::uint64_t size, Access access,
              std::uintptr_t instruction) {
    this->access(*current_, address, size, access, instruction);
  }

  // Whether an address is behind the end of a thread's stack, or in the module.
  bool is_guard(std::uintptr_t address) const;
  bool is_in_image(std::uintptr_t address) const;
  // Ends the launch for what the running thread does at an instruction.
  [[noreturn]] void fail_at(Failure failure, std::uintptr_t instruction);

  // A report about `thread`, filled in as far as it is the same for all failures.
  Report& begin_report(Failure failure, const Thread& thread);
  void describe_memory(std::uintptr_t address, std::uint64_t size);
  // Leaves the threads where they are and ends the launch.
  [[noreturn]] void fail();

 private:
  bool place_buffers();
  void copy_back();
  void count_traffic();
  void prepare_block();
  void run_block();
  static void run_thread();
  [[noreturn]] void finish(Thread& thread);
  Thread* next_ready(const Thread& after);
  void go_on(Thread& from, Thread* to);
  void arrive(Thread& thread, const Site& site, Barrier& barrier);
  void release(Warp& warp);
  void* allocate_shared(const char* name, int line, std::uint64_t bytes,
                             std::uint64_t element_bytes, std::uint64_t alignment);
  bool is_private(const Thread& thread, std::uintptr_t address, std::uint64_t size) const;
  std::uintptr_t stack_of(const Thread& thread) const;
  void check_races(const Thread& thread, const Region& region, std::uint64_t offset,
                   std::uint64_t size, Access access, std::uintptr_t instruction, int line);
  [[noreturn]] void fail_divergence(const Thread& thread, const Site& site, const Thread& other);
  Report& begin_access_report(Failure failure, const Thread& thread, std::uintptr_t address,
                              std::uint64_t size, Access access, std::uintptr_t instruction,
                              int line);
  void note_never_written(const Thread& thread, std::uintptr_t address, std::uint64_t size,
                          Access access, std::uintptr_t instruction, int line);
  [[noreturn]] void fail_access(Failure failure, const Thread& thread, std::uintptr_t address,
                                std::uint64_t size, Access access, std::uintptr_t instruction,
                                int line);
  [[noreturn]] void fail_race(const Thread& thread, std::uintptr_t address, std::uint64_t size,
                              Access access, Stamp other, Access other_access,
                              std::uintptr_t instruction, int line);
  std::uint64_t block_of(Stamp stamp) const;

  const Launch& launch_;
  Report& report_;
  Statistics& statistics_;
  Memory memory_;
  Signals signals_;
  std::vector<void*> arguments_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  Barrier block_barrier_;
  std::uint64_t block_ = 0;  // number of the running block, x fastest
  Clock global_clock_;
  Clock shared_clock_;
  std::vector<std::uint32_t> block_starts_;  // device epochs
  Fiber scheduler_;
  Thread* current_ = nullptr;
  std::uintptr_t stacks_ = 0;
  bool collective_ = false;  // a thread does work for its whole warp
  bool failed_ = false;
  Report never_written_ = {};  // the first read of that kind, until the next block barrier
};

// The launch in progress; null between launches.
extern Machine* machine;

}  // namespace emulator
