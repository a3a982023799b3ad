// Who touched a byte last, and whether a barrier lies between: the race detector.
//
// Two accesses of one byte by two threads, one of them a write, race unless something orders them.
// In a block that is a block barrier, or a warp barrier for threads of one warp; nothing orders two
// blocks of a launch. Time is counted by barriers (Clock), each access leaves a stamp of it, and a
// later access compares stamps. The verdict does not depend on the order in which the emulator
// happens to run the threads.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "machine/runtime.h"

namespace emulator {

constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxWarps = kMaxThreads / kWarpSize;

// When and by whom: the block's epoch, the thread, and the warp's phase in that epoch.
class Stamp {
 public:
  Stamp() = default;
  Stamp(std::uint32_t epoch, unsigned thread, std::uint32_t phase, bool atomic)
      : bits_(std::uint64_t{epoch} << 32 | std::uint64_t{phase & kPhaseMask} << 11 |
              std::uint64_t{thread} << 1 | std::uint64_t{atomic}) {}

  std::uint32_t epoch() const { return static_cast<std::uint32_t>(bits_ >> 32); }
  std::uint32_t phase() const { return static_cast<std::uint32_t>(bits_ >> 11) & kPhaseMask; }
  unsigned thread() const { return static_cast<unsigned>(bits_ >> 1) & (kMaxThreads - 1); }
  unsigned warp() const { return thread() / kWarpSize; }
  bool atomic() const { return (bits_ & 1) != 0; }
  bool operator==(Stamp other) const { return bits_ == other.bits_; }

  static constexpr std::uint32_t kPhaseMask = (1u << 21) - 1;

 private:
  std::uint64_t bits_ = 0;  // epoch 0 is before every launch: nobody
};

// The barriers passed, for one kind of memory: a barrier says which kinds it orders.
struct Clock {
  std::uint32_t epoch = 0;        // goes up with each block barrier and each block
  std::uint32_t block_start = 1;  // the running block's first epoch
  bool shared_by_blocks = false;  // global memory is; shared memory is new for each block
  std::uint32_t phase[kMaxWarps] = {};

  void next_block() { block_start = ++epoch; }

  Stamp now(unsigned thread, bool atomic = false) const {
    return {epoch, thread, phase[thread / kWarpSize], atomic};
  }
  bool in_this_block(Stamp stamp) const { return stamp.epoch() >= block_start; }

  // True if `stamp`'s access can't be told apart in time from one that `now` makes.
  bool concurrent(Stamp stamp, Stamp now) const {
    if (!in_this_block(stamp)) return shared_by_blocks && stamp.epoch() != 0;
    if (stamp.epoch() != now.epoch() || stamp.thread() == now.thread()) return false;
    return stamp.warp() != now.warp() || stamp.phase() == now.phase();
  }
};

// What is remembered of a byte. Four readers are enough for a write to find one that it races with
// if there is any: the latest, one of another warp, one beside it in its warp and phase,
// and one of an earlier block.
struct Cell {
  Stamp write;
  Stamp read;
  Stamp read_in_other_warp;
  Stamp read_beside;
  Stamp read_in_other_block;

  void note_read(const Clock& clock, Stamp now) {
    if (read == now) return;
    if (!clock.in_this_block(read)) {
      if (read.epoch() != 0) read_in_other_block = read;
      forget_others();
    } else if (read.epoch() != now.epoch()) {
      forget_others();
    } else if (read.warp() != now.warp()) {
      read_in_other_warp = read;
      read_beside = Stamp();
    } else if (read.phase() != now.phase()) {
      read_beside = Stamp();
    } else {
      read_beside = read;
    }
    read = now;
  }

  // A reader that a write at `now` races with, or the stamp of nobody.
  Stamp concurrent_reader(const Clock& clock, Stamp now) const {
    for (Stamp reader : {read, read_in_other_warp, read_beside, read_in_other_block}) {
      if (clock.concurrent(reader, now)) return reader;
    }
    return Stamp();
  }

 private:
  void forget_others() {
    read_in_other_warp = Stamp();
    read_beside = Stamp();
  }
};

}  // namespace emulator
