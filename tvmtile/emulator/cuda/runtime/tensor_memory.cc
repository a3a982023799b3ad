// tcgen05: tensor memory, who may use it, and what orders work in it.
//
// It is memory that the threads of a block share, as far as races go. Products and copies of a thread are work
// of its pipe, in order; loads and stores are work of a warp. What a thread's work there may count on is what
// the thread knew at its last tcgen05.fence::after_thread_sync; what it has waited for, others know if it was
// fenced in front of the barrier, too. Products and copies are done at once or later, as the seed says; loads and
// stores move their words at once: whatever would be too early is a race.
#include "tensor_memory.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>
#include <vector>

#include "emulator/runtime.h"
#include "register_use.h"

namespace emulator {
namespace {

constexpr unsigned kUnit = 32;  // columns are allocated by so many
constexpr unsigned kUnits = kTensorColumns / kUnit;
constexpr unsigned kLanesOfWarp = 32;

// A word that a load has read, and the register that gets it at the wait.
struct Loaded {
  const Thread* thread;
  std::uint32_t* place;
  std::uint32_t word;
};

struct Allocation {
  unsigned columns;
  int line;
};

// What a block has allocated.
struct Tensors {
  std::map<unsigned, Allocation> allocations;  // by the first column
  bool gave_up = false;                        // the right to allocate
  unsigned last = kTensorColumns;              // columns that it asked for
  unsigned joint = 0;                          // operations that both blocks of a pair do, begun
  std::vector<Thread*> waiting;
};

std::vector<Tensors> blocks;
std::vector<std::shared_ptr<Seen>> fenced;  // by thread: what its work may count on
std::map<unsigned, std::deque<std::function<void()>>> pipes;  // by thread
std::map<const Thread*, std::vector<Loaded>> loaded;          // by the first lane of a warp
std::vector<std::uint32_t*> words;  // by block
unsigned group_of_kernel = 0;

void start() {
  blocks.assign(machine->blocks(), {});
  fenced.assign(machine->threads(), nullptr);
  pipes.clear();
  loaded.clear();
  words.clear();
  group_of_kernel = 0;
}

bool do_one() {
  if (pipes.empty()) return false;
  auto pipe = std::next(pipes.begin(), static_cast<std::ptrdiff_t>(random_below(pipes.size())));
  const std::function<void()> work = std::move(pipe->second.front());
  pipe->second.pop_front();
  if (pipe->second.empty()) pipes.erase(pipe);
  work();
  return true;
}

void end() {
  while (do_one()) {
  }
  for (const Tensors& block : blocks) {
    for (const auto& [first, allocation] : block.allocations) {
      char text[128];
      std::snprintf(text, sizeof text, "the end of a block that did not deallocate columns %u to %u of tensor memory",
                    first, first + allocation.columns);
      fail_protocol(allocation.line, text);
    }
  }
}

struct Registered {
  Registered() {
    add_block_start(start);
    add_block_end(end);
    add_idle(do_one);
  }
} registered;

Thread& first_lane(const Thread& thread) { return *(const_cast<Thread*>(&thread) - thread.context.lane); }

// Loads and stores of a warp are waited for apart: work of its first two lanes.
unsigned agent_of_warp(const Thread& thread, unsigned kind, bool loads) {
  return machine->agent_of(first_lane(thread).number + (loads ? 0 : 1), kind);
}

Seen& knowledge_of(const Thread& thread) {
  std::shared_ptr<Seen>& seen = fenced[thread.number];
  if (seen == nullptr) {
    const std::size_t agents = machine->known(thread)->size();
    const std::uint32_t before = machine->clock_before_blocks();
    seen = std::make_shared<Seen>(agents, before);
  }
  return *seen;
}

void note(const Thread& thread, unsigned agent, int line, unsigned rank, unsigned lane, unsigned column,
          unsigned words, Access access) {
  // Both ends are allocated, and what is between: allocations are whole units.
  for (unsigned c = column; c < column + words; c += kUnit) tensor_word(line, rank, lane, c);
  tensor_word(line, rank, lane, column + words - 1);
  const auto place = reinterpret_cast<std::uintptr_t>(tensor_word(line, rank, lane, column));
  machine->access(thread, agent, place, words * 4, access, 0, line);
}

std::uint32_t* words_of(unsigned rank) {
  if (!words.empty()) return words[rank];
  Memory& memory = machine->memory();
  const auto is_it = [](const Region& region) { return region.name == kTensorMemory; };
  auto found = std::find_if(memory.shared().begin(), memory.shared().end(), is_it);
  if (found == memory.shared().end()) {
    memory.add_shared(kTensorMemory, 0, kTensorLanes * kTensorColumns * 4, 4, 8);
    found = std::find_if(memory.shared().begin(), memory.shared().end(), is_it);
  }
  for (std::size_t i = 0; i < machine->blocks(); ++i) {
    words.push_back(reinterpret_cast<std::uint32_t*>((found + static_cast<std::ptrdiff_t>(i))->data));
  }
  return words[rank];
}

// Both blocks of a pair do it together.
void meet_peer(const Site& site, unsigned group) {
  if (group != 2) return;
  const Thread& thread = machine->current();
  Tensors& mine = blocks[thread.context.rank];
  Tensors& other = blocks[thread.context.rank ^ 1];
  const unsigned number = ++mine.joint;
  for (Thread* waiting : other.waiting) machine->unblock(*waiting);
  other.waiting.clear();
  while (other.joint < number) {
    mine.waiting.push_back(&machine->current());
    machine->block(site);
  }
}

bool is_free(const Tensors& block, unsigned first, unsigned columns) {
  return std::none_of(block.allocations.begin(), block.allocations.end(), [&](const auto& entry) {
    return entry.first < first + columns && first < entry.first + entry.second.columns;
  });
}

// The first place that is free; none where that is the end.
unsigned find_columns(const Tensors& block, unsigned columns) {
  unsigned first = 0;
  while (first + columns <= kTensorColumns && !is_free(block, first, columns)) first += columns;
  return first;
}

// All lanes learn that what the warp began before is over.
void wait_for_transfers(const Site& site, void* const* parts, unsigned lanes) {
  Thread& first = first_lane(machine->current());
  const bool loads = *static_cast<bool*>(parts[0]);
  if (loads) {
    for (const Loaded& each : loaded[&first]) end_result(site.line, *each.thread, each.place, each.word);
    loaded[&first].clear();
  }
  const unsigned agent = agent_of_warp(first, kTensorWarp, loads);
  const std::uint32_t over = machine->advance(agent);
  for (unsigned lane = 0; lane < lanes; ++lane) {
    const Thread& thread = *(&first + lane);
    machine->learn(thread, agent, over);
    knowledge_of(thread)[agent] = over;
  }
}

void check_columns(int line, unsigned columns) {
  if (columns < kUnit || columns > kTensorColumns || (columns & (columns - 1)) != 0) {
    fail_protocol(line, "columns of tensor memory that are no power of 2 from 32 to 512");
  }
}

}  // namespace

void check_group(int line, unsigned group) {
  if (group_of_kernel == 0) group_of_kernel = group;
  if (group != group_of_kernel) fail_protocol(line, "tcgen05 of another cta_group than the kernel's others");
  if (group == 2 && machine->blocks() % 2 != 0) fail_protocol(line, "tcgen05 of a pair of blocks in a cluster of one");
}

std::uint32_t* tensor_word(int line, unsigned rank, unsigned lane, unsigned column) {
  const auto& allocations = blocks[rank].allocations;
  auto found = allocations.upper_bound(column);
  char text[128];
  if (found == allocations.begin() || column >= (--found)->first + found->second.columns) {
    std::snprintf(text, sizeof text, "column %u of tensor memory, which is not allocated", column);
    fail_protocol(line, text);
  }
  if (lane >= kTensorLanes) {
    std::snprintf(text, sizeof text, "lane %u of tensor memory, which has 128", lane);
    fail_protocol(line, text);
  }
  return words_of(rank) + lane * kTensorColumns + column;
}

PipeAccess::PipeAccess(int line)
    : thread_(machine->current()), agent_(machine->agent_of(thread_, kTensorPipe)), line_(line) {
  knowledge_of(thread_)[agent_] = machine->clock_of(agent_);
  machine->go_by(thread_, fenced[thread_.number]);
}

PipeAccess::~PipeAccess() { machine->go_by_its_own(thread_); }

void PipeAccess::note(unsigned rank, unsigned lane, unsigned column, unsigned words, Access access) {
  emulator::note(thread_, agent_, line_, rank, lane, column, words, access);
}

void add_to_pipe(std::function<void()> work) {
  const unsigned number = machine->current().number;
  // In order: what is done at once must not overtake.
  if (pipes.count(number) == 0 && random_below(2) == 0) return work();
  pipes[number].push_back(std::move(work));
}

namespace ptx {

void tensor_alloc(int line, unsigned group, std::uint32_t to, unsigned columns) {
  const Site site = {kTensorMove, "tcgen05.alloc", line};
  InRuntime here(site);
  Thread& thread = machine->current();
  machine->meet_lanes(site);
  if (thread.context.lane == 0) {
    check_group(line, group);
    check_columns(line, columns);
    Tensors& block = blocks[thread.context.rank];
    if (block.gave_up) fail_protocol(line, "tcgen05.alloc of a block that gave up the right to allocate");
    if (columns > block.last) fail_protocol(line, "tcgen05.alloc of more columns than the one before it");
    block.last = columns;
    meet_peer(site, group);
    while (find_columns(block, columns) >= kTensorColumns) {
      block.waiting.push_back(&thread);
      machine->block(site);
    }
    const unsigned first = find_columns(block, columns);
    block.allocations[first] = {columns, line};
    machine->access(thread, reinterpret_cast<std::uintptr_t>(from_shared(to)), 4, Access::kWrite, 0, line);
    *static_cast<std::uint32_t*>(from_shared(to)) = first;
  }
  machine->meet_lanes(site);
}

// Nobody may be at work there: it is as if all was written.
void tensor_dealloc(int line, unsigned group, std::uint32_t address, unsigned columns) {
  const Site site = {kTensorMove, "tcgen05.dealloc", line};
  InRuntime here(site);
  Thread& thread = machine->current();
  machine->meet_lanes(site);
  if (thread.context.lane == 0) {
    check_group(line, group);
    check_columns(line, columns);
    Tensors& block = blocks[thread.context.rank];
    const auto found = block.allocations.find(column_of(address));
    if (found == block.allocations.end() || found->second.columns != columns || lane_of(address) != 0) {
      fail_protocol(line, "tcgen05.dealloc of columns that were not allocated so");
    }
    meet_peer(site, group);
    for (unsigned lane = 0; lane < kTensorLanes; ++lane) {
      note(thread, thread.number, line, thread.context.rank, lane, found->first, columns, Access::kWrite);
    }
    block.allocations.erase(found);
    for (Thread* waiting : block.waiting) machine->unblock(*waiting);
    block.waiting.clear();
  }
  machine->meet_lanes(site);
}

void tensor_relinquish(int line, unsigned group) {
  const Site site = {kTensorMove, "tcgen05.relinquish_alloc_permit", line};
  InRuntime here(site);
  machine->meet_lanes(site);
  check_group(line, group);
  blocks[machine->current().context.rank].gave_up = true;
}

void tensor_wait(int line, bool loads) {
  const Site site = {kTensorMove, loads ? "tcgen05.wait::ld" : "tcgen05.wait::st", line};
  InRuntime here(site);
  machine->warp_collective(site, &loads, wait_for_transfers);
}

// What a thread has waited for, and what its pipe does in order, is ordered before what others fence.
void tensor_fence_before(int line) {
  InRuntime here({kTensorMove, "tcgen05.fence::before_thread_sync", line});
  const Thread& thread = machine->current();
  const unsigned pipe = machine->agent_of(thread, kTensorPipe);
  machine->learn(thread, machine->agent_of(thread, kTensorPipeFenced), machine->advance(pipe));
  for (bool loads : {false, true}) {
    const std::uint32_t over = (*machine->known(thread))[agent_of_warp(thread, kTensorWarp, loads)];
    machine->learn(thread, agent_of_warp(thread, kTensorWarpFenced, loads), over);
  }
}

void tensor_fence_after(int line) {
  InRuntime here({kTensorMove, "tcgen05.fence::after_thread_sync", line});
  const Thread& thread = machine->current();
  const Seen old = knowledge_of(thread);
  auto now = std::make_shared<Seen>(*machine->known(thread));
  for (unsigned number = 0; number < machine->agents_of_kind(); ++number) {
    const unsigned pipe = machine->agent_of(number, kTensorPipe), warp = machine->agent_of(number, kTensorWarp);
    (*now)[pipe] = std::max({old[pipe], (*now)[pipe], (*now)[machine->agent_of(number, kTensorPipeFenced)]});
    (*now)[warp] = std::max(old[warp], (*now)[machine->agent_of(number, kTensorWarpFenced)]);
  }
  fenced[thread.number] = std::move(now);
}

}  // namespace ptx

namespace {

// Words of a warp's transfer, by lane of the warp.
struct TransferPart {
  const TensorTransfer* shape;
  unsigned count;
  bool packs, loads;
  std::uint32_t address;
  unsigned split;
  const std::uint32_t* words;    // to store
  std::uint32_t* const* places;  // of registers to load
};

// Where a warp begins: it has the lanes of its number in its warpgroup. An address in lane 0, as that of an
// allocation, is that of the warp's own first lane.
unsigned first_lane_of(const Site& site, const Thread& thread, const TransferPart& part) {
  const unsigned lane = lane_of(part.address), own = thread.context.warp % 4 * kLanesOfWarp;
  const bool is_half = part.shape->name[0] == '1';  // of 16 lanes
  const unsigned within = lane % kLanesOfWarp;
  const bool is_own = lane / kLanesOfWarp * kLanesOfWarp == own || lane < kLanesOfWarp;
  if (is_own && (within == 0 || (is_half && within == kLanesOfWarp / 2))) return own + within;
  char text[128];
  std::snprintf(text, sizeof text, "%s from lane %u on, by a warp that has lanes %u to %u", site.name, lane, own,
                own + kLanesOfWarp);
  fail_protocol(site.line, text);
}

// What of a place moves: the word, or the lower halves of it and the next column's.
void move(const TransferPart& part, std::uint32_t* place, std::uint32_t& word) {
  if (!part.packs) {
    part.loads ? word = *place : *place = word;
  } else if (part.loads) {
    word = (place[0] & 0xffff) | place[1] << 16;
  } else {
    place[0] = word & 0xffff;
    place[1] = word >> 16;
  }
}

void transfer(const Site& site, void* const* parts, unsigned lanes) {
  const TransferPart& first = *static_cast<TransferPart*>(parts[0]);
  const TensorTransfer& shape = *first.shape;
  const Thread& thread = first_lane(machine->current());
  if (lanes != kLanesOfWarp) fail_invalid_lane(site, lanes);
  const unsigned begin = first_lane_of(site, thread, first);
  const unsigned agent = agent_of_warp(thread, kTensorWarp, first.loads);
  knowledge_of(thread);
  machine->go_by(thread, fenced[thread.number]);
  const unsigned width = first.packs ? 2 : 1;
  for (unsigned i = 0; i < kLanesOfWarp; ++i) {
    const TransferPart& part = *static_cast<TransferPart*>(parts[i]);
    if (part.address != first.address) fail_not_uniform(site, "address", i);
    for (unsigned n = 0; n < part.count * shape.registers; ++n) {
      const std::uint8_t* const place = shape.places[i * shape.registers + n % shape.registers];
      const unsigned column = shape.is_split ? 0 : place[1];
      const unsigned behind = (n / shape.registers * shape.columns + column) * width;
      const unsigned at = column_of(part.address) + behind + (shape.is_split && place[1] ? part.split : 0);
      const unsigned lane = begin + place[0];
      note(thread, agent, site.line, thread.context.rank, lane, at, width,
           part.loads ? Access::kRead : Access::kWrite);
      std::uint32_t word = part.loads ? 0 : part.words[n];
      move(part, tensor_word(site.line, thread.context.rank, lane, at), word);
      if (!part.loads) continue;
      const Thread& own = *(&thread + i);
      begin_result(site.line, own, part.places[n], "tcgen05.ld");
      loaded[&thread].push_back({&own, part.places[n], word});
    }
  }
  machine->go_by_its_own(thread);
}

void transfer_of_warp(const Site& site, TransferPart part) {
  InRuntime here(site);
  machine->warp_collective(site, &part, transfer);
}

}  // namespace

namespace ptx {

// Registers, by where they are, have their words from the next wait on.
void tensor_ld(int line, const TensorTransfer& shape, unsigned count, bool packs, std::uint32_t address,
               unsigned split, std::uint32_t* const* places) {
  transfer_of_warp({kTensorMove, "tcgen05.ld", line}, {&shape, count, packs, true, address, split, nullptr, places});
}

void tensor_st(int line, const TensorTransfer& shape, unsigned count, bool unpacks, std::uint32_t address,
               unsigned split, const std::uint32_t* words) {
  transfer_of_warp({kTensorMove, "tcgen05.st", line},
                   {&shape, count, unpacks, false, address, split, words, nullptr});
}

}  // namespace ptx
}  // namespace emulator
