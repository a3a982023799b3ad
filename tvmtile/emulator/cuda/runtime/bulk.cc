// mbarriers, and bulk copies by tensor maps (TMA) that complete on them or in groups.
//
// What a copy reads and writes is recorded when it is issued, as work of an agent: of the mbarrier that it
// completes on, or of the thread's groups of stores. The bytes move when the launch's seed says so: at
// once, or when no thread can go on. What threads wrote is read, and what they used is written, behind a proxy
// fence.
//
// A wait names a phase by its parity alone: who begins to wait for a phase when the next one is over, too, waits
// for the one after that. So whoever ends a phase must know that those who wait for the one before have seen it.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "emulator/runtime.h"
#include "emulator/tensor_map.h"
#include "combine.h"
#include "machine.h"
#include "mbarriers.h"

namespace emulator {
namespace {

constexpr unsigned kMostArrivals = (1 << 20) - 1;
constexpr unsigned kWarpgroup = 128;
constexpr unsigned kChunk = 16;  // bytes that stay together under a swizzle
constexpr std::uint64_t kInMemory = 0x7265697272616d62;  // the bytes of an mbarrier: a store over them is seen

// A thread has seen the end of a phase, at that clock of its own.
struct Waited {
  const Thread* thread;
  std::uint32_t clock;
};

struct Mbarrier {
  unsigned number = 0;
  unsigned expected = 0;  // 0: it is not valid any more
  unsigned pending = 0;
  std::int64_t bytes = 0;  // to come
  unsigned under_way = 0;  // copies
  bool awaits_copies = false;  // nobody has waited since one was issued
  unsigned phase = 0;
  // Who initialised it, and the clock of the fence behind that; 0: none.
  const Thread* thread = nullptr;
  std::uint32_t fenced = 0;
  // Of the block that it is of, and of the others of its cluster; and of the last phase.
  Arrivals arrivals[kOrders];
  Arrivals others[kOrders];
  Passage passage;
  Passage from_others;
  std::vector<Thread*> waiting;
  std::vector<Waited> waited;  // for the last phase
  std::map<const Thread*, std::uint32_t> used;  // the clock of the last use
};

struct Copy {
  const Thread* thread;
  int line;
  std::vector<std::pair<char*, const char*>> chunks;  // to, from; from null: zeros
  std::vector<unsigned> sizes;
  std::uint32_t mbarrier;  // 0: a store
  std::uint64_t bytes;
  std::uint32_t group;  // clock of the stores' agent
  Combine combine = nullptr;  // null: the bytes take the place of others
  std::vector<char> value;    // what comes of registers
};


std::map<std::uint32_t, Mbarrier> mbarriers;
std::map<std::uint32_t, CopiedTile> tiles;  // by their start
std::vector<Copy> under_way;
std::vector<std::vector<std::uint32_t>> groups;  // clocks of the committed ones, by thread
struct Stores {
  std::uint32_t issued = 0;  // clock of the last one, and until which they are waited for
  std::uint32_t waited = 0;
  int line = 0;
};
std::vector<Stores> stores;  // by thread
std::map<const Thread*, std::pair<std::uint32_t, unsigned>> waits;

void start() {
  mbarriers.clear();
  tiles.clear();
  under_way.clear();
  waits.clear();
  groups.assign(machine->threads(), {});
  stores.assign(machine->threads(), {});
}

bool is_there(std::uint32_t address) {
  const auto found = mbarriers.find(address);
  return found != mbarriers.end() && found->second.expected != 0 &&
         std::memcmp(from_shared(address), &kInMemory, sizeof kInMemory) == 0;
}

// Behind fence.mbarrier_init it is there for all who come behind that, and for what they start. Without it, a barrier
// is needed that publishes writes, and a proxy fence for what is started.
Mbarrier& mbarrier_at(int line, std::uint32_t address, bool in_background = false) {
  const auto place = reinterpret_cast<std::uintptr_t>(from_shared(address));
  const Thread& thread = machine->current();
  const auto found = mbarriers.find(address);
  const bool is_fenced = found != mbarriers.end() && found->second.fenced != 0;
  const bool is_known = is_fenced && machine->comes_after(thread, *found->second.thread, found->second.fenced);
  // An initialisation with a fence is atomic: a plain read does not come after it.
  const Access access = is_fenced && !is_known ? Access::kRead : Access::kAtomicRead;
  machine->access(thread, thread.number, place, 8, access, 0, line, in_background && !is_known);
  if (!is_there(address)) fail_protocol(line, "an mbarrier that is not initialised");
  found->second.used[&thread] = machine->clock_of(thread.number);
  return found->second;
}

// Of the block that has an address of shared memory.
unsigned rank_of(std::uint32_t address) {
  return machine->memory().block_of(reinterpret_cast<std::uintptr_t>(from_shared(address)));
}

// An mbarrier that ends, or begins anew, is behind all that used it, and all copies that arrive at it.
void check_unused(int line, const Mbarrier& barrier, const char* step) {
  char what[sizeof Report().operation];
  if (barrier.awaits_copies) {
    std::snprintf(what, sizeof what, "%s of an mbarrier for which copies may be under way", step);
    fail_protocol(line, what);
  }
  const Thread& thread = machine->current();
  for (const auto& [other, clock] : barrier.used) {
    if (other == &thread || machine->comes_after(thread, *other, clock)) continue;
    std::snprintf(what, sizeof what, "%s of an mbarrier that thread %u may still use", step, other->context.index);
    fail_protocol(line, what);
  }
}

unsigned agent_of(const Mbarrier& barrier) {
  return machine->agent_of(barrier.number, kMbarrier);
}

// Those who have seen the last phase end are known, as such, to those who have arrived in this one. Of threads
// that wait together, as those of a warp do, any stands for all.
void check_waits(int line, const Mbarrier& barrier) {
  const unsigned together = machine->launch().waits_for_all ? kWarpgroup : kWarpSize;
  const auto is_known = [&](const Waited& waited) {
    const auto brought = [&](const Arrivals (&arrivals)[kOrders]) {
      const Seen& seen = arrivals[kDone].seen;
      return !seen.empty() && seen[waited.thread->number] >= waited.clock;
    };
    return brought(barrier.arrivals) || brought(barrier.others);
  };
  std::map<std::pair<unsigned, unsigned>, std::pair<const Thread*, bool>> known;  // by block and group of threads
  for (const Waited& waited : barrier.waited) {
    const ThreadContext& context = waited.thread->context;
    auto& [thread, any] = known.emplace(std::pair(context.rank, context.index / together),
                                        std::pair(waited.thread, false)).first->second;
    any = any || is_known(waited);
  }
  for (const auto& [_, each] : known) {
    if (each.second) continue;
    char what[sizeof Report().operation];
    std::snprintf(what, sizeof what, "the end of a phase of an mbarrier, which thread %u may miss as it waits for "
                  "the one before", each.first->context.index);
    fail_protocol(line, what);
  }
}

void complete_if_done(int line, Mbarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  if (barrier.under_way != 0) {
    fail_protocol(line, "the end of a phase of an mbarrier that expects less bytes than its copies bring");
  }
  check_waits(line, barrier);
  barrier.waited.clear();
  if (machine->blocks() > 1) barrier.from_others = machine->complete(barrier.others, agent_of(barrier));
  barrier.passage = machine->complete(barrier.arrivals, agent_of(barrier));
  barrier.pending = barrier.expected;
  ++barrier.phase;
  for (Thread* thread : barrier.waiting) machine->unblock(*thread);
  barrier.waiting.clear();
  machine->count(kPhase);
}

// At the mbarrier of another block a thread says what it wrote if it `publishes` that.
void arrive(int line, std::uint32_t address, Mbarrier& barrier, unsigned count, bool publishes) {
  if (count > barrier.pending) fail_protocol(line, "more arrivals at an mbarrier than it expects");
  const Thread& thread = machine->current();
  const auto place = reinterpret_cast<std::uintptr_t>(from_shared(address));
  if (machine->memory().block_of(place) == thread.context.rank) {
    machine->arrive(thread, barrier.arrivals);
  } else {
    machine->arrive(thread, barrier.others, publishes);
  }
  barrier.pending -= count;
  complete_if_done(line, barrier);
}

void finish(const Copy& copy) {
  for (std::size_t i = 0; i < copy.chunks.size(); ++i) {
    const auto& [to, from] = copy.chunks[i];
    for (const char* place : {static_cast<const char*>(to), from}) {
      if (!machine->has_ended(reinterpret_cast<std::uintptr_t>(place))) continue;
      fail_protocol(copy.line, "a copy in the shared memory of a block that has ended");
    }
    if (copy.combine != nullptr) {
      copy.combine(to, from, copy.sizes[i]);
    } else if (from == nullptr) {
      std::memset(to, 0, copy.sizes[i]);
    } else {
      std::memcpy(to, from, copy.sizes[i]);
    }
  }
  if (copy.mbarrier == 0) return;
  Mbarrier& barrier = mbarriers[copy.mbarrier];
  barrier.bytes -= static_cast<std::int64_t>(copy.bytes);
  --barrier.under_way;
  complete_if_done(copy.line, barrier);
}

// The bytes move at once, or later.
void issue(Copy copy) {
  machine->count(kBulk);
  if (copy.mbarrier != 0) {
    Mbarrier& barrier = mbarriers[copy.mbarrier];
    ++barrier.under_way;
    barrier.awaits_copies = true;
    machine->begin(machine->current(), barrier.arrivals);
  }
  if (random_below(2) == 0) return finish(copy);
  under_way.push_back(std::move(copy));
}

// No thread can go on: a copy under way, any of them, is what they wait for.
bool idle() {
  if (under_way.empty()) return false;
  const std::size_t which = random_below(under_way.size());
  const Copy copy = std::move(under_way[which]);
  under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(which));
  finish(copy);
  return true;
}

// Shared memory that a copy reads or fills goes with the block.
void end() {
  for (const Stores& thread : stores) {
    if (thread.issued > thread.waited) {
      fail_protocol(thread.line, "the end of a block that did not wait for a bulk store");
    }
  }
  while (idle()) {
  }
}

// Its name: `full[1]`.
std::string name_of(std::uint32_t mbarrier) {
  const auto place = reinterpret_cast<std::uintptr_t>(from_shared(mbarrier));
  const Region& region = *machine->memory().find(place);
  return region.name + ("[" + std::to_string((place - region.data) / region.element_bytes) + "]");
}

void describe_load(unsigned kind, unsigned number, char* text, std::size_t size) {
  if (kind != kMbarrier) return;
  for (const auto& [address, barrier] : mbarriers) {
    if (barrier.number == number) {
      std::snprintf(text, size, "a bulk load for mbarrier %s", name_of(address).c_str());
    }
  }
}

void describe(const Thread& thread, char* text, std::size_t size) {
  const auto found = waits.find(&thread);
  if (found == waits.end() || std::strcmp(thread.site.name, "mbarrier wait") != 0) return;
  const auto [address, parity] = found->second;
  const Mbarrier& barrier = mbarriers[address];
  const auto bytes = static_cast<long long>(barrier.bytes);
  std::snprintf(text, size, "mbarrier %s, parity %u (%u of %u to arrive, %lld bytes %s)",
                name_of(address).c_str(), parity, barrier.pending, barrier.expected, bytes < 0 ? -bytes : bytes,
                bytes < 0 ? "more than expected" : "to come");
}

struct Registered {
  Registered() {
    add_block_start(start);
    add_idle(idle);
    add_block_end(end);
    describe_wait = describe;
    describe_agent = describe_load;
  }
} registered;

// --- boxes

char* in_machine(int line, std::uint64_t host) {
  const Launch& launch = machine->launch();
  for (unsigned i = 0; i < launch.buffer_count; ++i) {
    const auto start = reinterpret_cast<std::uintptr_t>(launch.buffers[i].host);
    if (host - start >= launch.buffers[i].bytes) continue;
    return reinterpret_cast<char*>(machine->memory().global()[i].data + (host - start));
  }
  fail_protocol(line, "a tensor map of memory that the launch does not have");
}

// Types by their number in a map; 8 and a bit more are of TF32 and of numbers without subnormal ones.
struct TypeOfMap {
  Element element;
  unsigned bytes;
};
constexpr TypeOfMap kTypes[] = {
    {Element::kNone, 1}, {Element::kNone, 2}, {Element::kU32, 4},  {Element::kS32, 4},
    {Element::kU64, 8},  {Element::kS64, 8},  {Element::kF16, 2},  {Element::kF32, 4},
    {Element::kF32, 4},  {Element::kF64, 8},  {Element::kBf16, 2},
};

// The fields that the driver makes, of 32-bit words: what they are was read off its maps.
TensorMap map_of(int line, const void* address) {
  std::uint32_t words[32];
  std::memcpy(words, address, sizeof words);
  const auto bits = [&](unsigned word, unsigned first, unsigned count) {
    return words[word] >> first & ((1u << count) - 1);
  };
  const unsigned type = bits(2, 7, 4);
  TensorMap map = {};
  map.host = words[0] | std::uint64_t{words[1]} << 32;
  map.rank = bits(2, 4, 3) + 1;
  map.swizzle = bits(2, 13, 2);
  if (map.host == 0 || map.rank > 5 || type >= std::size(kTypes)) {
    fail_protocol(line, "a tensor map that is not one");
  }
  map.element = kTypes[type].element;
  map.element_bytes = kTypes[type].bytes;
  std::uint64_t bytes = map.element_bytes;
  for (unsigned d = 0; d < map.rank; ++d) {
    map.extents[d] = std::uint64_t{words[8 + d]} + 1;
    map.box[d] = (d == 0 ? bits(13, 24, 8) : bits(14, 8 * (d - 1), 8)) + 1;
    if (d != 0) map.strides[d] = (words[2 + d] | std::uint64_t{bits(7, 4 * (d - 1), 4)} << 32) * 16;
    bytes *= map.box[d];
  }
  if (bits(2, 11, 2) != 0) fail_unsupported(line, "a tensor map that is interleaved");
  if (bits(2, 15, 1) != 0) fail_unsupported(line, "a tensor map that fills with NaN");
  if (bits(13, 0, 15) != 0) fail_unsupported(line, "a tensor map that leaves out elements");
  const unsigned atom = map.swizzle == 0 ? 16 : 128u << map.swizzle;
  if (words[16] != bytes || words[18] != atom) fail_protocol(line, "a tensor map that is not one");
  return map;
}

// Calls `move(global address or null, shared address, bytes)` for all pieces of a box.
template <typename Move>
std::uint64_t for_box(int line, const TensorMap& map, const std::int32_t* coordinates,
                      std::uint32_t shared, Move move) {
  char* const origin = in_machine(line, map.host);
  std::uint64_t rows = 1;
  for (unsigned d = 1; d < map.rank; ++d) rows *= map.box[d];
  const unsigned row_bytes = map.box[0] * map.element_bytes;
  for (std::uint64_t row = 0; row < rows; ++row) {
    std::uint64_t rest = row, offset = 0;
    bool inside = true;
    for (unsigned d = 1; d < map.rank; ++d) {
      const std::int64_t at = coordinates[d] + static_cast<std::int64_t>(rest % map.box[d]);
      rest /= map.box[d];
      inside = inside && at >= 0 && at < static_cast<std::int64_t>(map.extents[d]);
      offset += static_cast<std::uint64_t>(at) * map.strides[d];
    }
    for (unsigned byte = 0; byte < row_bytes; byte += map.element_bytes) {
      const std::int64_t at = coordinates[0] + static_cast<std::int64_t>(byte / map.element_bytes);
      const bool there = inside && at >= 0 && at < static_cast<std::int64_t>(map.extents[0]);
      // As many elements at once as are alike, within a chunk.
      unsigned bytes = map.element_bytes;
      while (byte + bytes < row_bytes && (byte + bytes) % kChunk != 0) {
        const std::int64_t next = coordinates[0] + static_cast<std::int64_t>((byte + bytes) / map.element_bytes);
        const bool next_there = inside && next >= 0 && next < static_cast<std::int64_t>(map.extents[0]);
        if (next_there != there) break;
        bytes += map.element_bytes;
      }
      const auto to = swizzled(shared + static_cast<std::uint32_t>(row * row_bytes) + byte, map.swizzle);
      move(there ? origin + offset + at * map.element_bytes : nullptr, to, bytes);
      byte += bytes - map.element_bytes;
    }
  }
  return rows * row_bytes;
}

// What of a tensor: a box from coordinates on, or four rows of a column.
enum Shape { kBox, kFourRows };
struct Where {
  const std::int32_t* coordinates;
  Shape shape;
};

template <typename Move>
std::uint64_t for_place(int line, const TensorMap& map, Where where, std::uint32_t shared, Move move) {
  if (shared % 128 != 0) fail_protocol(line, "a bulk tensor copy not at a multiple of 128 bytes");
  if (where.coordinates[0] * map.element_bytes % 16 != 0) {
    fail_protocol(line, "a bulk tensor copy of rows that do not begin at multiples of 16 bytes");
  }
  if (where.shape == kBox) return for_box(line, map, where.coordinates, shared, move);
  if (map.rank != 2 || map.box[1] != 1) {
    fail_protocol(line, "a copy of four rows by a tensor map that is not of boxes of one row");
  }
  std::uint64_t bytes = 0;
  for (unsigned row = 1; row <= 4; ++row) {
    const std::int32_t coordinates[] = {where.coordinates[0], where.coordinates[row]};
    bytes += for_box(line, map, coordinates, shared + static_cast<std::uint32_t>(bytes), move);
  }
  return bytes;
}

void note(const Thread& thread, unsigned agent, const void* place, unsigned bytes, Access access, int line,
          bool needs_fence = false) {
  machine->access(thread, agent, reinterpret_cast<std::uintptr_t>(place), bytes, access, 0, line, needs_fence);
}

// A store that combines races with no other that does.
void note_store(const Thread& thread, unsigned agent, const void* place, unsigned bytes, Combine combine,
                int line) {
  if (combine != nullptr) note(thread, agent, place, bytes, Access::kAtomicRead, line);
  note(thread, agent, place, bytes, combine == nullptr ? Access::kWrite : Access::kAtomicWrite, line);
}

void check_bytes(int line, std::uint64_t numbers) {
  if (numbers % 16 != 0) fail_protocol(line, "a bulk copy not of multiples of 16 bytes, from such to such");
}

Copy new_store(int line, Combine combine) {
  const Thread& thread = machine->current();
  const std::uint32_t group = machine->clock_of(machine->agent_of(thread, kBulkStore));
  stores[thread.number].issued = group;
  stores[thread.number].line = line;
  return {&thread, line, {}, {}, 0, 0, group, combine};
}

// A copy completes on an mbarrier of the block whose memory it fills, or of a `group` of blocks, for two of which
// copies and products may be.
unsigned agent_of_copy(int line, std::uint32_t to, std::uint32_t mbarrier, unsigned group = 1) {
  if (rank_of(to) / group != rank_of(mbarrier) / group) {
    fail_protocol(line, group == 1 ? "a copy to one block's memory for another one's mbarrier"
                                   : "a copy to a block's memory for an mbarrier that is not of its pair");
  }
  return agent_of(mbarrier_at(line, mbarrier, true));
}

void load(int line, unsigned group, const void* map_address, Where where, std::uint32_t shared,
          std::uint32_t mbarrier) {
  InRuntime here({kBulk, "cp.async.bulk.tensor", line});
  const TensorMap map = map_of(line, map_address);
  const unsigned agent = agent_of_copy(line, shared, mbarrier, group);
  const Thread& thread = machine->current();
  Copy copy = {&thread, line, {}, {}, mbarrier, 0, 0};
  copy.bytes = for_place(line, map, where, shared,
                         [&](const char* from, std::uint32_t to, unsigned bytes) {
    auto* target = static_cast<char*>(from_shared(to));
    note(thread, agent, target, bytes, Access::kWrite, line, true);
    if (from != nullptr) note(thread, agent, from, bytes, Access::kRead, line);
    copy.chunks.emplace_back(target, from);
    copy.sizes.push_back(bytes);
  });
  const std::uint32_t plane = map.box[0] * map.element_bytes * map.box[1];
  tiles[shared] = {shared + static_cast<std::uint32_t>(copy.bytes), plane, map.swizzle};
  issue(std::move(copy));
}

void store(int line, const void* map_address, Where where, std::uint32_t shared, Combine combine) {
  InRuntime here({kBulk, "cp.async.bulk.tensor", line});
  const TensorMap map = map_of(line, map_address);
  // PTX does not say so: on an H200 it was an illegal instruction, of all stores and of no load.
  const unsigned coordinates = where.shape == kBox ? map.rank : 0;
  if (std::any_of(where.coordinates, where.coordinates + coordinates, [](std::int32_t at) { return at < 0; })) {
    fail_protocol(line, "a bulk tensor store that begins at a negative coordinate");
  }
  Copy copy = new_store(line, combine);
  const unsigned agent = machine->agent_of(*copy.thread, kBulkStore);
  for_place(line, map, where, shared, [&](char* to, std::uint32_t from, unsigned bytes) {
    const auto* source = static_cast<const char*>(from_shared(from));
    note(*copy.thread, agent, source, bytes, Access::kRead, line, true);
    if (to == nullptr) return;
    note_store(*copy.thread, agent, to, bytes, combine, line);
    copy.chunks.emplace_back(to, source);
    copy.sizes.push_back(bytes);
  });
  issue(std::move(copy));
}

void store_bytes(int line, const void* to, std::uint32_t shared, unsigned bytes, Combine combine) {
  InRuntime here({kBulk, "cp.async.bulk", line});
  check_bytes(line, reinterpret_cast<std::uintptr_t>(to) | shared | bytes);
  Copy copy = new_store(line, combine);
  const unsigned agent = machine->agent_of(*copy.thread, kBulkStore);
  const auto* const source = static_cast<const char*>(from_shared(shared));
  auto* const target = static_cast<char*>(const_cast<void*>(to));
  note(*copy.thread, agent, source, bytes, Access::kRead, line, true);
  note_store(*copy.thread, agent, target, bytes, combine, line);
  copy.chunks.emplace_back(target, source);
  copy.sizes.push_back(bytes);
  issue(std::move(copy));
}

}  // namespace

void check_mbarrier(int line, std::uint32_t address) { mbarrier_at(line, address, true); }

void arrive_later(int line, std::uint32_t address, const Passage& brought) {
  Mbarrier& barrier = mbarriers[address];
  if (barrier.pending == 0) fail_protocol(line, "more arrivals at an mbarrier than it expects");
  machine->bring(barrier.arrivals, brought);
  --barrier.pending;
  complete_if_done(line, barrier);
}

const CopiedTile* copied_tile(std::uint32_t address) {
  const auto place = reinterpret_cast<std::uintptr_t>(from_shared(address));
  if (machine->kind_of_writer(place) != kMbarrier) return nullptr;
  auto found = tiles.upper_bound(address);
  if (found == tiles.begin() || address >= (--found)->second.end) return nullptr;
  return &found->second;
}

namespace ptx {

void mbarrier_init(int line, std::uint32_t address, unsigned count) {
  InRuntime here({kBulk, "mbarrier.init", line});
  if (address % 8 != 0) fail_protocol(line, "an mbarrier not at a multiple of 8 bytes");
  if (count - 1 >= kMostArrivals) fail_protocol(line, "an mbarrier of less than one arrival, or 2^20");
  const auto place = reinterpret_cast<std::uintptr_t>(from_shared(address));
  if (is_there(address)) check_unused(line, mbarriers.at(address), "the initialisation");
  machine->access(machine->current(), place, 8, Access::kWrite, 0, line);
  if (mbarriers.count(address) == 0 && mbarriers.size() == machine->threads()) {
    fail_unsupported(line, "more mbarriers than the block has threads");
  }
  const auto next = static_cast<unsigned>(mbarriers.size());
  const auto [found, is_new] = mbarriers.emplace(address, Mbarrier());
  Mbarrier& barrier = found->second;
  const unsigned number = is_new ? next : barrier.number;
  barrier = Mbarrier();
  barrier.number = number;
  std::memcpy(from_shared(address), &kInMemory, sizeof kInMemory);
  barrier.thread = &machine->current();
  barrier.expected = barrier.pending = count;
}

void mbarrier_inval(int line, std::uint32_t address) {
  InRuntime here({kBulk, "mbarrier.inval", line});
  Mbarrier& barrier = mbarrier_at(line, address);
  check_unused(line, barrier, "the end");
  barrier.expected = 0;
}

// Who arrives at the mbarrier of another block publishes what it wrote, or only says that it has read; who
// waits learns of what threads `of_cluster` published.
void mbarrier_arrive(int line, std::uint32_t address, unsigned count = 1, bool publishes = false) {
  InRuntime here({kBulk, "mbarrier.arrive", line});
  arrive(line, address, mbarrier_at(line, address), count, publishes);
}

// The copies are over at once, and the thread knows: who waits for the mbarrier does.
void mbarrier_arrive_when_copied(int line, std::uint32_t address) {
  cp_async_finish(line);
  mbarrier_arrive(line, address, 1);
}

void mbarrier_expect_tx(int line, std::uint32_t address, unsigned bytes, bool arrives, bool publishes = false) {
  InRuntime here({kBulk, "mbarrier.expect_tx", line});
  Mbarrier& barrier = mbarrier_at(line, address);
  barrier.bytes += bytes;
  if (arrives) arrive(line, address, barrier, 1, publishes);
}

void mbarrier_wait(int line, std::uint32_t address, unsigned parity, bool of_cluster = false) {
  const Site site = {kBulk, "mbarrier wait", line};
  InRuntime here(site);
  Mbarrier& barrier = mbarrier_at(line, address);
  Thread& thread = machine->current();
  while (barrier.phase % 2 == (parity & 1)) {
    waits[&thread] = {address, parity & 1};
    barrier.waiting.push_back(&thread);
    machine->block(site);
  }
  barrier.awaits_copies = barrier.under_way != 0;
  barrier.waited.push_back({&thread, machine->clock_of(thread.number)});
  machine->pass(thread, barrier.passage);
  if (machine->blocks() > 1) machine->pass(thread, barrier.from_others, of_cluster);
}

// What the thread wrote to shared memory may be read in the background.
void fence_proxy_async() { machine->fence(machine->current()); }

// The mbarriers that the thread initialised may be used in the background, and by who comes behind a barrier that
// publishes nothing else.
void fence_mbarrier_init(int line) {
  InRuntime here({kBulk, "fence.mbarrier_init", line});
  const Thread& thread = machine->current();
  for (auto& [address, barrier] : mbarriers) {
    if (barrier.thread != &thread || barrier.fenced != 0) continue;
    barrier.fenced = machine->clock_of(thread.number);
    machine->access(thread, reinterpret_cast<std::uintptr_t>(from_shared(address)), 8, Access::kAtomicWrite, 0, line);
  }
  machine->advance(thread.number);
}

// Copies of a box by a tensor map: to shared memory, which completes on an mbarrier of the block or of its pair, and
// from it, in groups.
void tensor_load(int line, unsigned group, const void* map, const std::int32_t* coordinates, std::uint32_t shared,
                 std::uint32_t mbarrier) {
  load(line, group, map, {coordinates, kBox}, shared, mbarrier);
}

// Of four rows, whose numbers stand behind the column.
void tensor_gather(int line, unsigned group, const void* map, const std::int32_t* coordinates, std::uint32_t shared,
                   std::uint32_t mbarrier) {
  load(line, group, map, {coordinates, kFourRows}, shared, mbarrier);
}

// Of pairs, the even blocks learn or the odd ones, as the mbarrier's is.
// To the same place in all blocks of the cluster whose bit is set, each of which learns by its own mbarrier.
void tensor_load(int line, unsigned group, const void* map, const std::int32_t* coordinates, std::uint32_t shared,
                 std::uint32_t mbarrier, unsigned blocks) {
  for (unsigned rank = 0; blocks >> rank != 0; ++rank) {
    if (!(blocks >> rank & 1)) continue;
    const unsigned learns = rank / group * group + (group == 1 ? 0 : rank_of(mbarrier) % group);
    tensor_load(line, group, map, coordinates, mapa(line, shared, rank), mapa(line, mbarrier, learns));
  }
}

// Between shared tiles of two blocks: the mbarrier is in the one that is written.
void remote_copy(int line, std::uint32_t to, std::uint32_t from, unsigned bytes, std::uint32_t mbarrier) {
  InRuntime here({kBulk, "cp.async.bulk", line});
  check_bytes(line, to | from | bytes);
  const Thread& thread = machine->current();
  const unsigned agent = agent_of_copy(line, to, mbarrier);
  auto* const target = static_cast<char*>(from_shared(to));
  const auto* const source = static_cast<const char*>(from_shared(from));
  note(thread, agent, source, bytes, Access::kRead, line, true);
  note(thread, agent, target, bytes, Access::kWrite, line, true);
  issue({&thread, line, {{target, source}}, {bytes}, mbarrier, bytes, 0});
}

void async_store_bytes(int line, std::uint32_t to, const void* value, unsigned bytes, std::uint32_t mbarrier) {
  InRuntime here({kBulk, "st.async", line});
  const Thread& thread = machine->current();
  const unsigned agent = agent_of_copy(line, to, mbarrier);
  auto* const target = static_cast<char*>(from_shared(to));
  note(thread, agent, target, bytes, Access::kWrite, line);
  const char* const first = static_cast<const char*>(value);
  Copy copy = {&thread, line, {}, {bytes}, mbarrier, bytes, 0, nullptr, {first, first + bytes}};
  copy.chunks.emplace_back(target, copy.value.data());
  issue(std::move(copy));
}

void tensor_store(int line, const void* map, const std::int32_t* coordinates, std::uint32_t shared) {
  store(line, map, {coordinates, kBox}, shared, nullptr);
}

void tensor_scatter(int line, const void* map, const std::int32_t* coordinates, std::uint32_t shared) {
  store(line, map, {coordinates, kFourRows}, shared, nullptr);
}

void tensor_reduce(int line, Reduction reduction, const void* map, const std::int32_t* coordinates,
                   std::uint32_t shared) {
  const Combine combine = combine_of(reduction, map_of(line, map).element);
  if (combine == nullptr) fail_protocol(line, "a reducing copy of elements that it can't combine");
  store(line, map, {coordinates, kBox}, shared, combine);
}

void tensor_prefetch(int line, const void* map) {
  InRuntime here({kBulk, "prefetch", line});
  map_of(line, map);
}

// Of bytes that follow each other.
void bulk_load(int line, std::uint32_t shared, const void* from, unsigned bytes, std::uint32_t mbarrier) {
  InRuntime here({kBulk, "cp.async.bulk", line});
  check_bytes(line, reinterpret_cast<std::uintptr_t>(from) | shared | bytes);
  const Thread& thread = machine->current();
  const unsigned agent = agent_of_copy(line, shared, mbarrier);
  auto* const target = static_cast<char*>(from_shared(shared));
  note(thread, agent, target, bytes, Access::kWrite, line, true);
  note(thread, agent, from, bytes, Access::kRead, line);
  issue({&thread, line, {{target, static_cast<const char*>(from)}}, {bytes}, mbarrier, bytes, 0});
}

void bulk_store(int line, const void* to, std::uint32_t shared, unsigned bytes) {
  store_bytes(line, to, shared, bytes, nullptr);
}

void bulk_reduce(int line, Reduction reduction, Element element, const void* to, std::uint32_t shared,
                 unsigned bytes) {
  store_bytes(line, to, shared, bytes, combine_of(reduction, element));
}

void bulk_commit() {
  Thread& thread = machine->current();
  const std::uint32_t clock = machine->advance(machine->agent_of(thread, kBulkStore));
  groups[thread.number].push_back(clock);
}

// With `read`, what the copies read may be written again; what they wrote is not there yet.
void bulk_wait(int line, unsigned left, bool read) {
  InRuntime here({kBulk, "cp.async.bulk.wait_group", line});
  Thread& thread = machine->current();
  const auto& committed = groups[thread.number];
  if (committed.size() <= left) return;
  const std::uint32_t clock = committed[committed.size() - 1 - left];
  for (std::size_t i = 0; i < under_way.size();) {
    const bool is_over = under_way[i].thread == &thread && under_way[i].mbarrier == 0 &&
                         under_way[i].group <= clock;
    if (!is_over) {
      ++i;
      continue;
    }
    finish(under_way[i]);
    under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(i));
  }
  stores[thread.number].waited = clock;
  machine->learn(thread, machine->agent_of(thread, kBulkStore), clock,
                 read ? kMemoryShared : kMemory);
}

}  // namespace ptx
}  // namespace emulator
