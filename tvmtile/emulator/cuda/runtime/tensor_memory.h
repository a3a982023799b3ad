// A block's tensor memory, and what orders work in it.
#pragma once

#include <cstdint>
#include <functional>

#include "machine.h"

namespace emulator {

// What the region of it is called.
inline constexpr char kTensorMemory[] = "tensor memory";
constexpr unsigned kTensorColumns = 512;
constexpr unsigned kTensorLanes = 128;

// An address of tensor memory: lane and column.
inline unsigned lane_of(std::uint32_t address) { return address >> 16; }
inline unsigned column_of(std::uint32_t address) { return address & 0xffff; }

// All instructions of a kernel are for the same number of blocks; for two, the cluster has the other one.
void check_group(int line, unsigned blocks);

// The word at a place of a block's tensor memory, whose column is allocated.
std::uint32_t* tensor_word(int line, unsigned rank, unsigned lane, unsigned column);

// Products and copies of a thread happen in order, and go by what was fenced: notes an access of theirs.
class PipeAccess {
 public:
  explicit PipeAccess(int line);
  ~PipeAccess();
  PipeAccess(const PipeAccess&) = delete;
  PipeAccess& operator=(const PipeAccess&) = delete;
  // So many words of a lane.
  void note(unsigned rank, unsigned lane, unsigned column, unsigned words, Access access);

 private:
  const Thread& thread_;
  unsigned agent_;
  int line_;
};

// Does some work behind what the running thread gave before: now, or later.
void add_to_pipe(std::function<void()> work);

}  // namespace emulator
