// setmaxnreg: threads of a block give registers back to its pool, and take more from it.
//
// A block is taken to have the register file to itself, or what launch bounds leave it. How many the compiler
// chose for a start is not known: at most an even share of it, which a thread is taken to have.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "emulator/runtime.h"
#include "machine.h"

namespace emulator {
namespace {

constexpr unsigned kRegisters = 65536;  // of a multiprocessor
constexpr unsigned kStep = 8;
constexpr unsigned kLeast = 24, kMost = 256;

std::vector<unsigned> held;  // by thread
std::vector<bool> chosen;    // by thread: it has set how many
std::vector<unsigned> left;  // by rank of the block
std::vector<Thread*> waiting;

void start() {
  const auto blocks = static_cast<unsigned>(machine->blocks());
  const auto threads = static_cast<unsigned>(machine->threads()) / blocks;
  const unsigned registers = kRegisters / machine->launch().least_blocks;
  const unsigned each = std::min(registers / threads / kStep * kStep, kMost - kStep);
  held.assign(machine->threads(), each);
  chosen.assign(machine->threads(), false);
  left.assign(blocks, registers - threads * each);
  waiting.clear();
}

struct Registered {
  Registered() { add_block_start(start); }
} registered;

}  // namespace

namespace ptx {

// A thread of a warp has so many registers from here on: more, for which it may have to wait, or less.
void set_registers(int line, unsigned count, bool more) {
  const Site site = {kGroup, more ? "setmaxnreg.inc" : "setmaxnreg.dec", line};
  InRuntime here(site);
  Thread& thread = machine->current();
  unsigned& mine = held[thread.number];
  unsigned& pool = left[thread.context.rank];
  if (count % kStep != 0 || count < kLeast || count > kMost) {
    fail_protocol(line, "setmaxnreg of registers that are not a multiple of 8 from 24 to 256");
  }
  if (more ? count < mine && chosen[thread.number] : count > mine) {
    char text[128];
    std::snprintf(text, sizeof text, "%s to %u registers of a thread that has %u", site.name, count, mine);
    fail_protocol(line, text);
  }
  machine->meet_lanes(site);
  chosen[thread.number] = true;
  while (count > mine + pool) {
    waiting.push_back(&thread);
    machine->block(site);
  }
  pool += mine - count;
  mine = count;
  for (Thread* other : waiting) machine->unblock(*other);
  waiting.clear();
}

}  // namespace ptx
}  // namespace emulator
