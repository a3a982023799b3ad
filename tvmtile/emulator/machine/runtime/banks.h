// Conflicts of shared memory's banks: which accesses of a warp's lanes must wait for each other.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "machine/launch.h"

namespace emulator {

// The accesses of one warp. Lanes run one after the other here, together on a GPU: what an instruction does
// for the n-th time in each lane since they last met is one access of the warp.
class Banks {
 public:
  // A lane's access; `place` tells instructions apart.
  void note(unsigned lane, std::uintptr_t place, std::uintptr_t address, std::uint64_t bytes);

  // The lanes have met: adds up what they did.
  void count(Statistics& statistics);

 private:
  struct WarpAccess {
    std::uint32_t lanes = 0;
    std::uintptr_t addresses[kWarpSize];
  };
  struct Instruction {
    std::uint32_t done[kWarpSize] = {};  // how often each lane did it
    std::vector<WarpAccess> accesses;
  };

  void note_at_once(unsigned lane, std::uintptr_t place, std::uintptr_t address, std::uint64_t bytes);
  static void count(const WarpAccess& access, std::uint64_t bytes, Statistics& statistics);

  std::map<std::pair<std::uintptr_t, std::uint64_t>, Instruction> instructions_;  // by place and bytes
};

}  // namespace emulator
