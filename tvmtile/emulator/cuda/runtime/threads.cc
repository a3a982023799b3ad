// Where a thread is, and the window of shared memory.
#include <cstddef>
#include <cstring>
#include <vector>

#include "emulator/runtime.h"
#include "machine.h"

struct uint3 {
  unsigned x, y, z;
};

namespace emulator {

struct Positions {
  uint3 thread, block, threads, blocks;
} position;

namespace {

uint3 triple(const unsigned (&values)[3]) { return {values[0], values[1], values[2]}; }


// Made at the first use: constructors of other files add to it.
std::vector<void (*)()>& starts() {
  static std::vector<void (*)()> all;
  return all;
}

std::vector<void (*)()>& ends() {
  static std::vector<void (*)()> all;
  return all;
}

std::vector<bool (*)()>& idles() {
  static std::vector<bool (*)()> all;
  return all;
}

std::uint64_t random_state = 0;

void end_block() {
  for (auto* end : ends()) end();
}

// The seed says whose work is done first.
bool go_on_idle() {
  const std::size_t count = idles().size();
  for (std::size_t i = 0; i < count; ++i) {
    if (idles()[(machine->launch().seed + i) % count]()) return true;
  }
  return false;
}

void show_place(const ThreadContext& thread) {
  position = {triple(thread.position), triple(thread.block_position), triple(thread.threads), triple(thread.grid)};
}

const bool shows_place = (at_switch = show_place) != nullptr;
const bool is_shown = (shown = {reinterpret_cast<std::uintptr_t>(&position), sizeof position}).bytes != 0;

void start_block() {
  random_state = (machine->launch().seed + 1) * 0x9e3779b97f4a7c15;
  for (auto* start : starts()) start();
}

}  // namespace

void add_block_start(void (*start)()) {
  at_block_start = start_block;
  starts().push_back(start);
}

void add_block_end(void (*end)()) {
  at_block_end = end_block;
  ends().push_back(end);
}

void add_idle(bool (*idle)()) {
  at_idle = go_on_idle;
  idles().push_back(idle);
}

// xorshift64
std::uint64_t random_below(std::uint64_t bound) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (random_state >> 32) % bound;
}

uint3 cluster_extent() { return triple(machine->current().context.cluster); }
unsigned rank_in_cluster() { return machine->current().context.rank; }
unsigned blocks_of_cluster() { return static_cast<unsigned>(machine->blocks()); }

std::uint32_t to_shared(const void* address) {
  return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(address) -
                                    machine->memory().shared_base());
}

void* from_shared(std::uint32_t address) {
  return reinterpret_cast<void*>(machine->memory().shared_base() + address);
}

namespace ptx {

std::uint32_t mapa(int line, std::uint32_t address, unsigned rank) {
  InRuntime here({kClusterBarrier, "mapa", line});
  if (rank >= machine->blocks()) fail_protocol(line, "the memory of a block that the cluster does not have");
  Memory& memory = machine->memory();
  const auto place = reinterpret_cast<std::uintptr_t>(from_shared(address));
  return to_shared(reinterpret_cast<void*>(memory.of_block(memory.of_first(place), rank)));
}

void remote_store(int line, std::uint32_t address, std::uint64_t value, unsigned bytes) {
  InRuntime here({kClusterBarrier, "st.shared::cluster", line});
  void* const target = from_shared(address);
  machine->access(machine->current(), reinterpret_cast<std::uintptr_t>(target), bytes, Access::kWrite, 0,
                  line);
  std::memcpy(target, &value, bytes);
}

}  // namespace ptx

namespace {

struct Sums {
  int sums[2] = {};  // of this barrier and of the next one
  unsigned round = 0;
};
std::vector<Sums> sums_of_blocks;

struct Registered {
  Registered() {
    add_block_start([] { sums_of_blocks.assign(machine->blocks(), Sums()); });
  }
} registered;

}  // namespace

int sum_over_block(int value, int line) {
  auto& [sums, round] = sums_of_blocks[rank_in_cluster()];
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
