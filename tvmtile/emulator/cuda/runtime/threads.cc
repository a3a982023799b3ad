// Where a thread is, and the window of shared memory.
#include <cstddef>

#include "emulator/runtime.h"
#include "machine.h"

struct uint3 {
  unsigned x, y, z;
};

namespace emulator {
namespace {

uint3 triple(const unsigned (&values)[3]) { return {values[0], values[1], values[2]}; }

}  // namespace

uint3 thread_position() { return triple(machine->current().context.position); }
uint3 block_position() { return triple(machine->current().context.block_position); }
uint3 block_extent() { return triple(machine->current().context.threads); }
uint3 grid_extent() { return triple(machine->current().context.grid); }

std::uint32_t to_shared(const void* address) {
  return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(address) -
                                    machine->memory().shared_base());
}

void* from_shared(std::uint32_t address) {
  return reinterpret_cast<void*>(machine->memory().shared_base() + address);
}

int sum_over_block(int value, int line) {
  static int sums[2];
  static unsigned round = 0;
  const Site site = {kBlockBarrier, "__syncthreads_count", line};
  const unsigned mine = round;
  sums[mine % 2] += value;
  block_barrier(site, kMemory);
  const int sum = sums[mine % 2];
  if (round == mine) round = mine + 1, sums[round % 2] = 0;
  block_barrier(site, kMemory);
  return sum;
}

}  // namespace emulator
