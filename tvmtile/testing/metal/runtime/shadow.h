// Who touched a byte last, and whether a barrier lies between: the race detector.
//
// Two accesses of one byte by two threads, one of them a write, race unless something orders them.
// In a threadgroup that is a threadgroup barrier, or a simdgroup barrier for threads of one
// simdgroup; nothing orders two threadgroups of a launch. Time is counted by barriers (Clock), each
// access leaves a stamp of it, and a later access compares stamps. The verdict does not depend on
// the order in which the emulator happens to run the threads.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "../include/emulator/runtime.h"

namespace emulator {

constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxSimdgroups = kMaxThreads / kSimdgroupSize;

// When and by whom: the threadgroup's epoch, the thread, and the simdgroup's phase in that epoch.
class Stamp {
 public:
  Stamp() = default;
  Stamp(std::uint32_t epoch, unsigned thread, std::uint32_t phase, bool atomic)
      : bits_(std::uint64_t{epoch} << 32 | std::uint64_t{phase & kPhaseMask} << 11 |
              std::uint64_t{thread} << 1 | std::uint64_t{atomic}) {}

  std::uint32_t epoch() const { return static_cast<std::uint32_t>(bits_ >> 32); }
  std::uint32_t phase() const { return static_cast<std::uint32_t>(bits_ >> 11) & kPhaseMask; }
  unsigned thread() const { return static_cast<unsigned>(bits_ >> 1) & (kMaxThreads - 1); }
  unsigned simdgroup() const { return thread() / kSimdgroupSize; }
  bool atomic() const { return (bits_ & 1) != 0; }
  bool operator==(Stamp other) const { return bits_ == other.bits_; }

  static constexpr std::uint32_t kPhaseMask = (1u << 21) - 1;

 private:
  std::uint64_t bits_ = 0;  // epoch 0 is before every launch: nobody
};

// The barriers passed, for one kind of memory: mem_flags say which kinds a barrier orders.
struct Clock {
  std::uint32_t epoch = 0;        // goes up with each threadgroup barrier and each threadgroup
  std::uint32_t group_start = 1;  // the running threadgroup's first epoch
  bool shared_by_groups = false;  // device memory is; threadgroup memory is new for each group
  std::uint32_t phase[kMaxSimdgroups] = {};

  void next_group() { group_start = ++epoch; }

  Stamp now(unsigned thread, bool atomic = false) const {
    return {epoch, thread, phase[thread / kSimdgroupSize], atomic};
  }
  bool in_this_group(Stamp stamp) const { return stamp.epoch() >= group_start; }

  // True if `stamp`'s access can't be told apart in time from one that `now` makes.
  bool concurrent(Stamp stamp, Stamp now) const {
    if (!in_this_group(stamp)) return shared_by_groups && stamp.epoch() != 0;
    if (stamp.epoch() != now.epoch() || stamp.thread() == now.thread()) return false;
    return stamp.simdgroup() != now.simdgroup() || stamp.phase() == now.phase();
  }
};

// What is remembered of a byte. Four readers are enough for a write to find one that it races with
// if there is any: the latest, one of another simdgroup, one beside it in its simdgroup and phase,
// and one of an earlier threadgroup.
struct Cell {
  Stamp write;
  Stamp read;
  Stamp read_in_other_simdgroup;
  Stamp read_beside;
  Stamp read_in_other_group;

  void note_read(const Clock& clock, Stamp now) {
    if (read == now) return;
    if (!clock.in_this_group(read)) {
      if (read.epoch() != 0) read_in_other_group = read;
      forget_others();
    } else if (read.epoch() != now.epoch()) {
      forget_others();
    } else if (read.simdgroup() != now.simdgroup()) {
      read_in_other_simdgroup = read;
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
    for (Stamp reader : {read, read_in_other_simdgroup, read_beside, read_in_other_group}) {
      if (clock.concurrent(reader, now)) return reader;
    }
    return Stamp();
  }

 private:
  void forget_others() {
    read_in_other_simdgroup = Stamp();
    read_beside = Stamp();
  }
};

}  // namespace emulator
