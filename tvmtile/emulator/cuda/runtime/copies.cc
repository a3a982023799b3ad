// cp.async: copies that a thread starts and waits for by groups.
//
// What a copy reads and writes is recorded when it is issued, as work of the thread's agent: whoever
// touches that memory without knowing of the group's end races with it. The bytes move at once or when
// the group is waited for, as the launch's seed says, so that a mistake changes the result too.
#include <cstring>
#include <vector>

#include "emulator/runtime.h"
#include "machine.h"

namespace emulator {
namespace {

struct Copy {
  void* to;
  const void* from;
  unsigned bytes;
  unsigned from_bytes;
  std::uint32_t group;  // the agent's clock
};

struct Copies {
  std::vector<Copy> under_way;        // in the order of their groups
  std::vector<std::uint32_t> groups;  // clocks of the committed ones
};

std::vector<Copies> threads;

void start() { threads.assign(machine->threads(), Copies()); }

struct Registered {
  Registered() { add_block_start(start); }
} registered;

void finish(const Copy& copy) {
  std::memcpy(copy.to, copy.from, copy.from_bytes);
  std::memset(static_cast<char*>(copy.to) + copy.from_bytes, 0, copy.bytes - copy.from_bytes);
}

// The groups up to a clock are over, and the thread knows.
void finish_until(std::uint32_t clock) {
  Thread& thread = machine->current();
  Copies& copies = threads[thread.number];
  auto copy = copies.under_way.begin();
  for (; copy != copies.under_way.end() && copy->group <= clock; ++copy) finish(*copy);
  copies.under_way.erase(copies.under_way.begin(), copy);
  machine->learn(thread, machine->agent_of(thread, kCpAsync), clock);
}

void check_alignment(int line, const char* name, std::uintptr_t address, unsigned bytes) {
  if (address % bytes == 0) return;
  Report& report = machine->begin_report(Failure::kMisaligned, machine->current());
  machine->describe_memory(address, bytes);
  report.line = line;
  std::strncpy(report.operation, name, sizeof report.operation - 1);
  machine->fail();
}

}  // namespace

namespace ptx {

// Copies `from_bytes` bytes in the background, and zeros up to `bytes`.
void cp_async(int line, const char* name, std::uint32_t to, const void* from, unsigned bytes,
              unsigned from_bytes) {
  InRuntime here({kAsyncCopy, name, line});
  Thread& thread = machine->current();
  const unsigned agent = machine->agent_of(thread, kCpAsync);
  void* target = from_shared(to);
  const auto target_address = reinterpret_cast<std::uintptr_t>(target);
  const auto source_address = reinterpret_cast<std::uintptr_t>(from);
  if (from_bytes > bytes) fail_unsupported(line, "cp.async of more bytes than it writes");
  check_alignment(line, name, target_address, bytes);
  if (from_bytes != 0) {
    check_alignment(line, name, source_address, bytes);
    machine->access(thread, agent, source_address, from_bytes, Access::kRead, 0, line);
  }
  machine->access(thread, agent, target_address, bytes, Access::kWrite, 0, line);
  machine->count(kAsyncCopy);
  const Copy copy = {target, from, bytes, from_bytes, machine->clock_of(agent)};
  if (random_below(2) == 0) return finish(copy);
  threads[thread.number].under_way.push_back(copy);
}

void cp_async_commit() {
  Thread& thread = machine->current();
  const std::uint32_t clock = machine->advance(machine->agent_of(thread, kCpAsync));
  threads[thread.number].groups.push_back(clock);
}

// Waits until so many of the last groups at most are under way.
void cp_async_wait(int line, unsigned groups) {
  InRuntime here({kAsyncCopy, "cp.async.wait_group", line});
  const auto& committed = threads[machine->current().number].groups;
  if (committed.size() > groups) finish_until(committed[committed.size() - 1 - groups]);
}

void cp_async_finish(int line) {
  InRuntime here({kAsyncCopy, "cp.async.mbarrier.arrive", line});
  finish_until(machine->advance(machine->agent_of(machine->current(), kCpAsync)));
}

void cp_async_wait_all(int line) {
  cp_async_commit();
  cp_async_wait(line, 0);
}

}  // namespace ptx
}  // namespace emulator
