// Who touched a byte last, and what orders it before another access: the race detector.
//
// Two accesses of one byte, one of them a write, race unless something orders them. Stores of one value
// by several threads don't, but whoever reads it must come after all of them. Who accesses memory
// is an agent: a thread, or what a thread has started and does not wait for, such as an asynchronous
// copy. Each agent has a clock, which goes up when others may learn of what it did; an access leaves a
// stamp, the agent and its clock. Each thread knows up to which clock every agent is ordered before it
// (a vector clock): barriers join what threads know. So the verdict does not depend on the order in
// which the emulator happens to run threads, or asynchronous work.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "machine/runtime.h"

namespace emulator {

struct Stamp {
  std::uint32_t clock;  // 0 is before every launch: nobody
  std::uint16_t agent;
  bool atomic : 1;
  bool repeated : 1;  // others wrote the same value at the same time
  bool changed : 1;   // the agent wrote another value just before
};

// Agents with the same clock in one group of kWarpSize that read a byte, or wrote what is in it.
struct Accessors {
  std::uint32_t clock = 0;
  std::uint32_t lanes = 0;
  std::uint16_t group = 0;
  bool wrote = false;
  std::uint32_t next = 0;  // in the pool; 0: none
};

// What is remembered of a byte.
struct Cell {
  Stamp write;       // the last one
  Accessors others;  // none where it has no lanes
};

// By agent: the last clock whose accesses are known to be over.
using Seen = std::vector<std::uint32_t>;

// What threads bring to a barrier: what they know, and all that they did.
struct Arrivals {
  Seen seen;  // empty: nobody came yet
  std::shared_ptr<const Seen> joined;  // held, so that no other takes its address
};

// The order of accesses to one kind of memory.
class Order {
 public:
  // `shared_by_blocks`: the memory outlives a block, and nothing orders two blocks.
  // Where a thread does not publish, what it did becomes known by `fence` only.
  explicit Order(bool shared_by_blocks, bool publishes = true)
      : shared_by_blocks_(shared_by_blocks), publishes_(publishes) {}

  void resize(unsigned threads, unsigned agents);
  void next_block();
  std::uint32_t block_start() const { return block_start_; }

  // --- what orders

  // A thread lets others learn, by `arrivals`, of what it did and knows.
  void arrive(Arrivals& arrivals, unsigned thread);
  // Who comes may learn nothing.
  void begin(Arrivals& arrivals) const {
    if (arrivals.seen.empty()) arrivals.seen.resize(clocks_.size());
  }
  // Everyone has come: `arrivals` is ready for the next time.
  std::shared_ptr<const Seen> complete(Arrivals& arrivals);
  // A thread that has done nothing since it arrived learns what all brought.
  void pass(unsigned thread, const std::shared_ptr<const Seen>& seen) { known_[thread] = seen; }
  // A thread learns what others brought.
  void join(unsigned thread, const Seen& seen);
  // A thread learns that an agent's work is over up to a clock.
  void learn(unsigned thread, unsigned agent, std::uint32_t clock);
  // An agent's work is over for all who pass where `arrivals` come.
  void bring(Arrivals& arrivals, unsigned agent) const { arrivals.seen[agent] = clocks_[agent]; }
  void bring(Arrivals& arrivals, const Seen& seen) const;
  const std::shared_ptr<const Seen>& known(unsigned thread) const { return known_[thread]; }
  // All that a thread did, and knows by another order, becomes known here.
  void fence(unsigned thread, const Order& other);
  bool knows(unsigned thread, Stamp stamp) const {
    return (*known_[thread])[stamp.agent] >= stamp.clock;
  }
  // What an agent does from now on is apart from what it did.
  std::uint32_t advance(unsigned agent) { return clocks_[agent]++; }

  // --- what was accessed

  Stamp stamp(unsigned agent, bool atomic) const {
    return {clocks_[agent], static_cast<std::uint16_t>(agent), atomic};
  }
  bool in_this_block(Stamp stamp) const { return stamp.clock >= block_start_; }
  // True if nothing orders `stamp`'s access before one that `thread` makes or starts now.
  bool concurrent(Stamp stamp, unsigned thread) const {
    if (!in_this_block(stamp)) return shared_by_blocks_ && stamp.clock != 0;
    return stamp.agent != thread && (*known_[thread])[stamp.agent] < stamp.clock;
  }
  void note_read(Cell& cell, Stamp now, unsigned thread) { note(cell, now, thread, false); }
  // A reader that a write by `thread` races with, or the stamp of nobody; and a writer. Readers may be known
  // by the order `free`, too.
  Stamp concurrent_reader(const Cell& cell, unsigned thread, const Order* free) const {
    return concurrent_accessor(cell, thread, false, free);
  }
  Stamp concurrent_writer(const Cell& cell, unsigned thread) const {
    if (concurrent(cell.write, thread)) return cell.write;
    return cell.write.repeated ? concurrent_accessor(cell, thread, true) : Stamp();
  }
  // One of the first so many agents that wrote what is in a byte, or has read it, and no fence since then is
  // known to `thread` by the order `fenced`; or the stamp of nobody. A fence is one for all that its thread knew.
  Stamp unfenced(const Cell& cell, unsigned thread, bool wrote, unsigned agents, const Order& fenced) const;
  // `repeats`: what others write at the same time is the same.
  void note_write(Cell& cell, Stamp now, unsigned thread, bool repeats);

 private:
  Stamp unordered(const Accessors& accessors, unsigned thread, const Order* free = nullptr) const;
  Stamp concurrent_accessor(const Cell& cell, unsigned thread, bool wrote,
                            const Order* free = nullptr) const;
  void note(Cell& cell, Stamp now, unsigned thread, bool wrote);

  bool shared_by_blocks_;
  bool publishes_;
  std::uint32_t block_start_ = 1;
  std::vector<std::uint32_t> clocks_;                // by agent
  std::vector<std::shared_ptr<const Seen>> known_;  // by thread
  std::vector<Accessors> pool_ = std::vector<Accessors>(1);
};

}  // namespace emulator
