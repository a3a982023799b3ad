// One launch: the threads of the blocks that run together, their memory, and how a launch ends early.
//
// Blocks run one after the other, apart from those of a cluster.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <vector>

#include "machine/launch.h"
#include "banks.h"
#include "fiber.h"
#include "memory.h"
#include "signals.h"

namespace emulator {

constexpr std::size_t kStackBytes = 256 * 1024;

struct Block;

// A variable of a thread that was declared without a value.
struct Variable {
  const char* name;
  std::uintptr_t address;
  std::uint64_t bytes;
  std::uint64_t element_bytes;
};

// A thread has read what it has not written.
struct UnsetRead {
  Variable variable = {};
  std::uint64_t offset = 0;
  std::uintptr_t instruction = 0;  // 0: none
};

struct Thread {
  enum class State { kReady, kWaiting, kFinished };

  ThreadContext context;
  Block* block = nullptr;
  unsigned number = 0;  // among those that run together: the agent that it is itself
  Fiber fiber;
  State state = State::kReady;
  Site site = {};  // where it waits
  std::vector<Variable> unset;  // those in scope
  UnsetRead unset_read;         // the last one
  // Lanes that came with it to where a mask of them is asked for; it waits there while `asks`.
  std::uint32_t active = 0;
  bool asks = false;
};

// Threads that wait for each other: lanes at an operation of their warp, a block at a barrier.
struct Barrier {
  unsigned members = 0;
  unsigned arrived = 0;
  const Thread* first = nullptr;  // that arrived; valid while any has
  std::vector<Thread*> waiting;
  Arrivals arrivals[kOrders];
};

// What those who pass a barrier learn, by order.
struct Passage {
  std::shared_ptr<const Seen> seen[kOrders];
};

struct Block {
  std::uint32_t position[3] = {};  // in the grid
  std::vector<void*> arguments;
  Barrier barrier;
  std::vector<Barrier> named_barriers;
  unsigned finished = 0;
  const Thread* first_finished = nullptr;
};

// What the threads of a cluster arrive at and, later, wait for.
struct ClusterBarrier {
  unsigned members = 0;  // threads that have not returned
  unsigned arrived = 0;
  unsigned phase = 0;
  std::vector<Thread*> waiting;
  Arrivals arrivals[kOrders];
  Passage passage;  // of the last phase
};

// Lanes that do something together: those of a mask.
struct Lanes {
  std::uint32_t mask = 0;
  Barrier barrier;
  void* payloads[kWarpSize] = {};
};

struct Warp {
  unsigned first = 0;  // thread
  std::uint32_t members = 0;
  std::uint32_t finished = 0;
  Banks banks;
  std::deque<Lanes> lanes;  // all of them first, then those of other masks; none moves
};

// A byte that a thread stores, as another one does at the same time, or as it did before.
struct Store {
  const Thread* thread;
  std::uintptr_t address;  // of its element
  std::uint64_t size;      // from there to the end of the store
  std::uintptr_t byte;
  char before;
  Cell* cell;
  Stamp other;  // nobody where it is its own
  std::uintptr_t instruction;
  int line;
};

// The kernel's library in memory: its constants are read by kernels, and are no buffer.
struct Image {
  std::uintptr_t start = 0;
  std::uintptr_t bytes = 0;
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
    return static_cast<unsigned>(__builtin_popcount(warp_of(*current_).members));
  }
  std::uint32_t unfinished_lanes() const {
    const Warp& warp = warp_of(*current_);
    return warp.members & ~warp.finished;
  }
  void warp_collective(const Site& site, void* payload, Collective execute,
                       std::uint32_t mask = kAllLanes);
  void block_barrier(const Site& site, unsigned memory);
  // A barrier that so many threads of the block come to; a thread that does not wait only arrives.
  void named_barrier(const Site& site, unsigned number, unsigned threads, bool wait);
  // The lanes of the warp that have not returned come to the same place.
  void meet_lanes(const Site& site);
  void cluster_arrive(const Site& site, bool release);
  void cluster_wait(const Site& site);
  std::uint32_t active_lanes(const Site& site);
  // Warps next to each other, so many threads, do something together. The last thread calls `execute`
  // with every thread's `payload`.
  void group_collective(const Site& site, void* payload, Collective execute, unsigned threads);

  // --- waiting for what a front end keeps

  // The running thread waits until `unblock`.
  void block(const Site& site);
  void unblock(Thread& thread) { thread.state = Thread::State::kReady; }
  // Threads arrive, and what `agent` does is over, where one learns it by `pass`. What threads wrote is
  // known of those that publish it, to those that acquire it.
  void arrive(const Thread& thread, Arrivals (&arrivals)[kOrders], bool publishes = true);
  Passage complete(Arrivals (&arrivals)[kOrders], unsigned agent);
  void pass(const Thread& thread, const Passage& passage, bool acquires = true);
  // What a thread knows, and that an agent's work is over up to now, for those who learn it by `bring`. Of the
  // thread's own accesses that says nothing.
  Passage capture(const Thread& thread, unsigned agent);
  void bring(Arrivals (&arrivals)[kOrders], const Passage& passage);
  // Where `arrivals` come because of what a thread begins, they come behind what it has come past.
  void begin(const Thread& thread, Arrivals (&arrivals)[kOrders]);
  // Whether a thread comes behind what another one did at a clock of its own, whatever was published.
  bool comes_after(const Thread& thread, const Thread& other, std::uint32_t clock) const;
  // What a thread did and knows may be read, and written, by work in the background.
  void fence(const Thread& thread);
  // What a thread knows of shared memory, at most; and its accesses go by other knowledge until that is put back.
  const std::shared_ptr<const Seen>& known(const Thread& thread) const;
  void go_by(const Thread& thread, std::shared_ptr<const Seen> known);
  void go_by_its_own(const Thread& thread);

  // What lanes did before they met comes before what they do now. For the collective's last lane.
  void order_lanes(unsigned memory);
  void* shared_variable(const char* name, int line, std::size_t bytes, std::size_t element_bytes,
                        std::size_t alignment);
  // What the launch binds to the kernel's last parameter.
  void* last_argument() const {
    const std::vector<void*>& arguments = current_->block->arguments;
    return arguments.empty() ? nullptr : arguments.back();
  }
  Memory& memory() { return memory_; }
  const Launch& launch() const { return launch_; }
  // Of all blocks that run together.
  std::size_t threads() const { return threads_.size(); }
  std::size_t blocks() const { return blocks_.size(); }
  void count(Operation operation) { ++statistics_.operations[operation]; }

  // Whether an address is of shared memory whose block has ended.
  bool has_ended(std::uintptr_t address) const {
    return memory_.is_shared(address) && blocks_[memory_.block_of(address)].finished == block_threads_;
  }
  // Checks an access by `thread`, or by an agent that works for it: what it started in the
  // background. Ends the launch if it is wrong.
  void access(const Thread& thread, std::uintptr_t address, std::uint64_t size, Access access,
              std::uintptr_t instruction, int line = 0) {
    this->access(thread, thread.number, address, size, access, instruction, line);
  }
  void access(const Thread& thread, unsigned agent, std::uintptr_t address, std::uint64_t size,
              Access access, std::uintptr_t instruction, int line, bool needs_fence = false);
  void access(std::uintptr_t address, std::uint64_t size, Access access,
              std::uintptr_t instruction) {
    this->access(*current_, address, size, access, instruction);
  }

  // The agent number `kind`, from 1 on, that works for a thread; `learn` says up to which clock of it the
  // thread knows its work to be over.
  unsigned agent_of(const Thread& thread, unsigned kind) const {
    return agent_of(thread.number, kind);
  }
  unsigned agent_of(unsigned number, unsigned kind) const { return number + kind * agents_apart_; }
  unsigned agents_of_kind() const { return agents_apart_; }
  // The last one of shared memory before the blocks that run.
  std::uint32_t clock_before_blocks() const {
    return orders_[static_cast<int>(Space::kShared)].block_start() - 1;
  }
  std::uint32_t clock_of(unsigned agent) const { return orders_[0].stamp(agent, false).clock; }
  std::uint32_t advance(unsigned agent);
  // The kind of agent that wrote an address of shared memory last in this block; 0 for threads, and nobody.
  unsigned kind_of_writer(std::uintptr_t address);
  void learn(const Thread& thread, unsigned agent, std::uint32_t clock,
             unsigned memory = kMemoryGlobal | kMemoryShared);

  // Where a thread's variables lie: in so many bytes, those of the next thread behind them.
  std::uintptr_t stack_of(const Thread& thread) const;
  // Bytes of a stack that nobody has written, and that somebody has.
  void note_unset(const Variable& variable);
  void forget_unset(std::uintptr_t address, std::uint64_t bytes);
  void note_set(void* address, std::uint64_t bytes) {
    if (unset_ != 0) std::memset(shadow_of(reinterpret_cast<std::uintptr_t>(address)), 0, bytes);
  }

  // Whether an address is behind the end of a thread's stack, or in the module.
  bool is_guard(std::uintptr_t address) const;
  bool is_in_image(std::uintptr_t address) const;
  // Ends the launch for what the running thread does at an instruction.
  [[noreturn]] void fail_at(Failure failure, std::uintptr_t instruction) {
    fail_at(begin_report(failure, *current_), instruction);
  }
  [[noreturn]] void fail_at(Report& report, std::uintptr_t instruction);

  // A report about `thread`, filled in as far as it is the same for all failures.
  Report& begin_report(Failure failure, const Thread& thread);
  void describe_memory(std::uintptr_t address, std::uint64_t size);
  // Leaves the threads where they are and ends the launch.
  [[noreturn]] void fail();

 private:
  bool place_buffers();
  void copy_back();
  void count_traffic();
  void count_conflicts(Warp& warp) { warp.banks.count(statistics_); }
  void shuffle_clusters(std::uint64_t count);
  void prepare_cluster();
  void prepare_block(unsigned rank);
  void run_cluster();
  static void run_thread();
  [[noreturn]] void finish(Thread& thread);
  Thread* next_ready(const Thread& after);
  void go_on(Thread& from, Thread* to);
  void become(Thread& thread);
  [[noreturn]] void fail_deadlock();
  // Whether all have come.
  bool arrive(Thread& thread, const Site& site, Barrier& barrier);
  void note_arrival(const Thread& thread, Barrier& barrier, unsigned memory);
  void wait(Thread& thread, Barrier& barrier);
  // Lets those who wait go on; what they know is what all that came brought.
  void release(Barrier& barrier, unsigned memory);
  void release_block(Block& block, const Site& site, unsigned memory);
  void complete_cluster_barrier();
  void leave_cluster_barrier(const Thread& thread);
  template <std::size_t N>
  void describe(const Thread& thread, char (&text)[N]) const;
  Warp* warps_of(const Block& block) { return &warps_[(&block - blocks_.data()) * warps_apart_]; }
  Warp& warp_of(const Thread& thread) { return warps_of(*thread.block)[thread.context.warp]; }
  const Warp& warp_of(const Thread& thread) const {
    return warps_[thread.context.rank * warps_apart_ + thread.context.warp];
  }
  Lanes& lanes_of(Warp& warp, std::uint32_t mask);
  // Those that this launch has: blocks that run alone need not the last.
  unsigned orders() const { return blocks_.size() > 1 ? kOrders : kFree; }
  // By which a thread knows most of shared memory.
  unsigned most_known() const { return orders() > kFree ? kFree : static_cast<unsigned>(Space::kShared); }
  // Whether who knows of a write by it may read what was written.
  static bool publishes_writes(unsigned order) { return order < kSpaces; }
  // The space that an order is about.
  static unsigned space_of(unsigned order) {
    return order < kSpaces ? order : static_cast<unsigned>(Space::kShared);
  }
  Order& order_of(const Region& region) { return orders_[static_cast<int>(region.space)]; }
  void* allocate_shared(const char* name, int line, std::uint64_t bytes,
                             std::uint64_t element_bytes, std::uint64_t alignment);
  bool is_private(const Thread& thread, std::uintptr_t address, std::uint64_t size) const;
  // By byte of a stack: whether nobody has written it.
  void* shadow_of(std::uintptr_t address) const { return reinterpret_cast<void*>(address - stacks_ + unset_); }
  void note_private(const Thread& thread, std::uintptr_t address, std::uint64_t size, Access access,
                    std::uintptr_t instruction);
  // A thread that has read what it has not written stores something.
  void suspect(const Thread& thread, const Region& region, std::uintptr_t address, std::uint64_t size);
  void check_suspect();
  void check_races(const Thread& thread, unsigned agent, const Region& region, std::uint64_t offset,
                   std::uint64_t size, Access access, std::uintptr_t instruction, int line,
                   bool needs_fence);
  // What the threads' last stores have left.
  void compare_stores();
  [[noreturn]] void fail_divergence(const Thread& thread, const Site& site, const Thread& other);
  template <std::size_t N>
  void name_agent(unsigned agent, char (&text)[N]) const;
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
                              std::uintptr_t instruction, int line,
                              Failure failure = Failure::kRace);
  // Where the block is in the grid that has a rank in a cluster, which is counted as they run.
  void place_block(std::uint64_t cluster, unsigned rank, std::uint32_t (&position)[3]) const;
  std::uint64_t cluster_of(Stamp stamp) const;

  const Launch& launch_;
  Report& report_;
  Statistics& statistics_;
  const Image image_;
  Memory memory_;
  Signals signals_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<Block> blocks_;  // that run together: a cluster
  unsigned block_threads_ = 0;
  unsigned warps_apart_ = 0;  // of two blocks
  ClusterBarrier cluster_barrier_;
  std::vector<std::optional<unsigned>> arrived_in_;  // by thread: the phase that it has not waited for
  Lanes* collective_lanes_ = nullptr;  // those whose work the running thread does
  unsigned finished_ = 0;
  std::uint64_t cluster_ = 0;  // the running one, in the order that they run in
  std::vector<std::uint32_t> order_;  // numbers of clusters, x fastest; empty: in their order
  Order orders_[kOrders] = {Order(true), Order(false), Order(false, false), Order(false), Order(false)};
  std::vector<Barrier> groups_;  // by the number of the first warp
  std::vector<std::vector<void*>> group_payloads_;
  unsigned agents_apart_ = 0;
  unsigned agent_ = 0;  // of the access that is checked
  std::vector<Store> stores_;  // checked, and not compared yet
  std::vector<std::uint32_t> starts_;  // of clusters: clocks of accesses to global memory
  std::shared_ptr<const Seen> really_known_[kOrders];  // while a thread goes by other knowledge
  Fiber scheduler_;
  Thread* current_ = nullptr;
  std::uintptr_t stacks_ = 0;
  struct {
    const Thread* thread;  // null: none
    std::uintptr_t address;
    std::uint64_t size;
    std::uint64_t element_bytes;
  } suspect_ = {};
  std::uintptr_t unset_ = 0;  // the stacks' shadow; 0 where no variable was declared without a value
  bool failed_ = false;
  Report never_written_ = {};  // the first read of that kind, until the next block barrier
};

// The launch in progress; null between launches.
extern Machine* machine;

// What a front end does where a thread begins to run, or goes on; null where it has nothing to do.
extern void (*at_switch)(const ThreadContext& thread);
// Memory of the runtime that kernels read as constants of theirs.
extern Image shown;
// What it does before the blocks that run together; null where it has nothing to do.
extern void (*at_block_start)();
// What it does when no thread can go on: whether some can, then. And when all have returned.
extern bool (*at_idle)();
extern void (*at_block_end)();
// An access to a thread's own variables; null where nobody looks.
extern void (*at_private_access)(const Thread& thread, std::uintptr_t address, std::uint64_t size, Access access,
                                 std::uintptr_t instruction);
// What an agent of a kind and a number does, in words; left empty where it is what a thread started.
extern void (*describe_agent)(unsigned kind, unsigned number, char* text, std::size_t size);
// What a thread waits for, in words; null where the site says it.
extern void (*describe_wait)(const Thread& thread, char* text, std::size_t size);

// While it lives, the runtime is not left for a signal. Threads that wait take turns in it.
struct InRuntime {
  explicit InRuntime(const Site& site) : line(site.line) { in_runtime = 1; }
  ~InRuntime() {
    if (time_is_up) {
      machine->begin_report(Failure::kEndless, machine->current()).line = line;
      machine->fail();
    }
    in_runtime = 0;
  }
  int line;
};

}  // namespace emulator
