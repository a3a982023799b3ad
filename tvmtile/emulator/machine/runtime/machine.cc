#include "machine.h"

#ifdef __APPLE__
#include <dlfcn.h>
#include <mach-o/loader.h>
#else
#include <link.h>
#endif
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

namespace emulator {

Machine* machine = nullptr;
void (*at_switch)(const ThreadContext&) = nullptr;
Image shown;
void (*at_block_start)() = nullptr;
bool (*at_idle)() = nullptr;
void (*at_block_end)() = nullptr;
void (*at_private_access)(const Thread&, std::uintptr_t, std::uint64_t, Access, std::uintptr_t) = nullptr;
void (*describe_agent)(unsigned, unsigned, char*, std::size_t) = nullptr;
void (*describe_wait)(const Thread&, char*, std::size_t) = nullptr;

namespace {

constexpr std::size_t kGuardBytes = 16 * 1024;
constexpr std::uint64_t kWidestAccess = 16;  // bytes of an instruction of a thread
constexpr unsigned kNamedBarriers = 16;

// Where the library is loaded that has the kernel.
#ifdef __APPLE__
Image image_of(Entry entry) {
  Dl_info library;
  if (dladdr(reinterpret_cast<const void*>(entry), &library) == 0) return {};
  auto* header = static_cast<const mach_header_64*>(library.dli_fbase);
  auto* command = reinterpret_cast<const char*>(header + 1);
  std::uintptr_t bytes = 0;
  for (std::uint32_t i = 0; i < header->ncmds; ++i) {
    auto* each = reinterpret_cast<const load_command*>(command);
    if (each->cmd == LC_SEGMENT_64) {
      auto* segment = reinterpret_cast<const segment_command_64*>(command);
      if (std::strcmp(segment->segname, SEG_LINKEDIT) != 0) bytes = segment->vmaddr + segment->vmsize;
    }
    command += each->cmdsize;
  }
  return {reinterpret_cast<std::uintptr_t>(header), bytes};
}
#else
Image image_of(Entry entry) {
  struct Search {
    std::uintptr_t address;
    Image found;
  } search = {reinterpret_cast<std::uintptr_t>(entry), {}};
  dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* data) {
        auto& search = *static_cast<Search*>(data);
        std::uintptr_t bytes = 0;
        for (int i = 0; i < library->dlpi_phnum; ++i) {
          const auto& segment = library->dlpi_phdr[i];
          if (segment.p_type == PT_LOAD) bytes = segment.p_vaddr + segment.p_memsz;
        }
        const bool has_it = search.address - library->dlpi_addr < bytes;
        if (has_it) search.found = {library->dlpi_addr, bytes};
        return int{has_it};
      },
      &search);
  return search.found;
}
#endif

unsigned volume(const std::uint32_t (&extent)[3]) { return extent[0] * extent[1] * extent[2]; }

void unflatten(std::uint64_t number, const std::uint32_t (&extent)[3], std::uint32_t (&position)[3]) {
  position[0] = static_cast<std::uint32_t>(number % extent[0]);
  position[1] = static_cast<std::uint32_t>(number / extent[0] % extent[1]);
  position[2] = static_cast<std::uint32_t>(number / extent[0] / extent[1]);
}

bool is_block_barrier(const Site& site) { return site.operation == kBlockBarrier; }

bool same(const Site& one, const Site& other) {
  return one.operation == other.operation && one.line == other.line &&
         (one.name == other.name || std::strcmp(one.name, other.name) == 0);
}

// A mark as it is stored, or quieted by arithmetic, or converted from or to another width.
bool is_unset_word(std::uint32_t bits) {
  constexpr std::uint32_t kQuiet = 1u << 22, kOfHalf = 0x7fffe000, kBytes = kUnsetByte * 0x01010101u;
  const std::uint32_t number = (bits | kQuiet) & kOfHalf;
  return bits == kUnsetInteger || bits == kBytes || number == ((kUnsetFloat | kQuiet) & kOfHalf) ||
         number == (std::uint32_t{kUnsetBfloat} << 16 | kQuiet) ||
         number == (0x7f800000 | kQuiet | std::uint32_t{kUnsetHalf & 0x3ff} << 13);
}

bool is_unset_half(std::uint16_t bits) {
  constexpr std::uint16_t kHalfQuiet = 1 << 9, kBfloatQuiet = 1 << 6, kBytes = kUnsetByte * 0x0101;
  const std::uint16_t number = bits & 0x7fff;
  return bits == kBytes || (number | kHalfQuiet) == (kUnsetHalf | kHalfQuiet) ||
         (number | kBfloatQuiet) == (kUnsetBfloat | kBfloatQuiet) ||
         number == (0x7c00 | kHalfQuiet | (kUnsetFloat >> 13 & 0x3ff));
}

template <std::size_t N>
void copy_text(char (&to)[N], const char* from) {
  std::strncpy(to, from, N - 1);
  to[N - 1] = '\0';
}

}  // namespace

// --- a launch

Machine::Machine(const Launch& launch, Report& report, Statistics& statistics)
    : launch_(launch), report_(report), statistics_(statistics), image_(image_of(launch.entry)) {
  block_threads_ = volume(launch.threads);
  blocks_.resize(volume(launch.cluster));
  warps_apart_ = (block_threads_ + kWarpSize - 1) / kWarpSize;
  const auto count = static_cast<unsigned>(blocks_.size()) * block_threads_;
  threads_.resize(count);
  warps_.resize(blocks_.size() * warps_apart_);
  agents_apart_ = static_cast<unsigned>(warps_.size()) * kWarpSize;
  for (Order& order : orders_) order.resize(count, agents_apart_ * (1 + launch.agents));
  arrived_in_.resize(count);
  groups_.resize(warps_.size());
  group_payloads_.resize(warps_.size());
  for (unsigned i = 0; i < warps_.size(); ++i) {
    const unsigned before = i % warps_apart_ * kWarpSize;
    warps_[i].first = i / warps_apart_ * block_threads_ + before;
    const unsigned rest = block_threads_ - before;
    warps_[i].members = rest < kWarpSize ? (1u << rest) - 1 : kAllLanes;
  }
  machine = this;
}

Machine::~Machine() {
  machine = nullptr;
  for (Thread& thread : threads_) release_fiber(thread.fiber);
  release_fiber(scheduler_);
  for (std::uintptr_t memory : {stacks_, unset_}) {
    if (memory != 0) munmap(reinterpret_cast<void*>(memory), threads_.size() * kStackBytes);
  }
}

bool Machine::run() {
  if (!place_buffers()) {
    report_.failure = Failure::kResources;
    return false;
  }
  const std::uint64_t blocks =
      std::uint64_t{launch_.grid[0]} * launch_.grid[1] * launch_.grid[2];
  if (launch_.seed != 0) shuffle_clusters(blocks / blocks_.size());
  for (cluster_ = 0; cluster_ < blocks / blocks_.size() && !failed_; ++cluster_) {
    prepare_cluster();
    signals_.limit(launch_.seconds);
    run_cluster();
  }
  if (failed_) return false;
  copy_back();
  count_traffic();
  return true;
}

bool Machine::place_buffers() {
  void* stacks = mmap(nullptr, threads_.size() * kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) return false;
  stacks_ = reinterpret_cast<std::uintptr_t>(stacks);
  for (const Thread& thread : threads_) {
    // A stack that overflows must not reach the next thread's.
    mprotect(reinterpret_cast<void*>(stack_of(thread)), kGuardBytes, PROT_NONE);
  }
  if (!memory_.reserve(launch_.buffer_count, static_cast<unsigned>(blocks_.size()))) return false;
  for (unsigned i = 0; i < launch_.buffer_count; ++i) {
    const BufferArgument& buffer = launch_.buffers[i];
    Region* region = memory_.add_global(i, buffer.name, reinterpret_cast<std::uintptr_t>(buffer.host),
                                        buffer.bytes, buffer.element_bytes, buffer.writable != 0,
                                        buffer.tracked != 0);
    if (region == nullptr) return false;
    std::memcpy(reinterpret_cast<void*>(region->data), buffer.host, buffer.bytes);
  }
  for (unsigned i = 0; i < launch_.binding_count; ++i) {
    const Binding& binding = launch_.bindings[i];
    void* address;
    if (binding.buffer >= 0) {
      address = reinterpret_cast<void*>(memory_.global()[binding.buffer].data + binding.offset);
    } else {
      address = allocate_shared(binding.name, 0, binding.bytes, binding.element_bytes,
                                     kWidestAccess);
    }
    if (address == nullptr) return false;
    const auto first = reinterpret_cast<std::uintptr_t>(address);
    for (unsigned rank = 0; rank < blocks_.size(); ++rank) {
      const bool shared = binding.buffer < 0;
      const std::uintptr_t own = shared ? memory_.of_block(first, rank) : first;
      blocks_[rank].arguments.push_back(reinterpret_cast<void*>(own));
    }
  }
  return true;
}

void Machine::copy_back() {
  for (unsigned i = 0; i < launch_.buffer_count; ++i) {
    const BufferArgument& buffer = launch_.buffers[i];
    const Region& region = memory_.global()[i];
    if (region.bytes_written == 0) continue;
    std::memcpy(buffer.host, reinterpret_cast<void*>(region.data), buffer.bytes);
  }
}

void Machine::count_traffic() {
  for (const Region& region : memory_.global()) {
    statistics_.global_bytes_read += region.bytes_read;
    statistics_.global_bytes_written += region.bytes_written;
    statistics_.global_reads += region.reads;
    statistics_.global_writes += region.writes;
  }
  for (const Region& region : memory_.shared()) {
    statistics_.shared_bytes_read += region.bytes_read;
    statistics_.shared_bytes_written += region.bytes_written;
    statistics_.shared_reads += region.reads;
    statistics_.shared_writes += region.writes;
  }
}

// --- the blocks that run together

// No kernel may count on an order.
void Machine::shuffle_clusters(std::uint64_t count) {
  order_.resize(count);
  std::iota(order_.begin(), order_.end(), 0);
  std::uint64_t state = launch_.seed * 0x9e3779b97f4a7c15;
  for (std::uint64_t i = count; i > 1; --i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    std::swap(order_[i - 1], order_[(state >> 33) % i]);
  }
}

void Machine::prepare_cluster() {
  for (Order& order : orders_) order.next_block();
  starts_.push_back(orders_[static_cast<int>(Space::kGlobal)].block_start());
  for (Barrier& barrier : groups_) barrier = Barrier();
  cluster_barrier_ = ClusterBarrier();
  cluster_barrier_.members = static_cast<unsigned>(threads_.size());
  std::fill(arrived_in_.begin(), arrived_in_.end(), std::nullopt);
  finished_ = 0;
  if (at_block_start != nullptr) at_block_start();
  for (Warp& warp : warps_) {
    warp.finished = 0;
    warp.lanes.clear();
    lanes_of(warp, warp.members);
  }
  for (unsigned rank = 0; rank < blocks_.size(); ++rank) prepare_block(rank);
}

void Machine::prepare_block(unsigned rank) {
  Block& block = blocks_[rank];
  block.barrier = Barrier();
  block.finished = 0;
  place_block(cluster_, rank, block.position);
  block.barrier.members = block_threads_;
  block.named_barriers.assign(kNamedBarriers, Barrier());
  for (unsigned i = 0; i < block_threads_; ++i) {
    Thread& thread = threads_[rank * block_threads_ + i];
    thread.block = &block;
    thread.number = rank * block_threads_ + i;
    ThreadContext& context = thread.context;
    unflatten(i, launch_.threads, context.position);
    std::memcpy(context.block_position, block.position, sizeof context.block_position);
    std::memcpy(context.threads, launch_.threads, sizeof context.threads);
    std::memcpy(context.grid, launch_.grid, sizeof context.grid);
    std::memcpy(context.cluster, launch_.cluster, sizeof context.cluster);
    context.rank = rank;
    context.index = i;
    context.lane = i % kWarpSize;
    context.warp = i / kWarpSize;
    context.warps = warps_apart_;
    thread.unset_read = {};
    thread.state = Thread::State::kReady;
    release_fiber(thread.fiber);
    prepare_fiber(thread.fiber, reinterpret_cast<void*>(stack_of(thread)), kStackBytes, run_thread);
  }
}

void Machine::place_block(std::uint64_t cluster, unsigned rank,
                          std::uint32_t (&position)[3]) const {
  std::uint32_t clusters[3], inside[3];
  for (unsigned d = 0; d < 3; ++d) clusters[d] = launch_.grid[d] / launch_.cluster[d];
  unflatten(order_.empty() ? cluster : order_[cluster], clusters, position);
  unflatten(rank, launch_.cluster, inside);
  for (unsigned d = 0; d < 3; ++d) position[d] = position[d] * launch_.cluster[d] + inside[d];
}

void Machine::run_cluster() {
  become(threads_[0]);
  switch_fiber(scheduler_, current_->fiber);
  current_ = nullptr;
}

void Machine::run_thread() {
  Thread& thread = machine->current();
  in_runtime = 0;
  machine->launch_.entry(thread.block->arguments.data(), thread.context);
  in_runtime = 1;
  machine->finish(thread);
}

void Machine::finish(Thread& thread) {
  compare_stores();
  thread.state = Thread::State::kFinished;
  Block& block = *thread.block;
  Warp& warp = warp_of(thread);
  const std::uint32_t lane = 1u << thread.context.lane;
  for (const Lanes& lanes : warp.lanes) {
    const bool at_warp = lanes.barrier.arrived != 0 && (lanes.mask & lane) != 0;
    if (at_warp && !(launch_.returned_threads_pass && is_block_barrier(lanes.barrier.first->site))) {
      fail_divergence(*lanes.barrier.first, lanes.barrier.first->site, thread);
    }
  }
  warp.finished |= lane;
  ++finished_;
  if (block.finished++ == 0) block.first_finished = &thread;
  if (!launch_.returned_threads_pass) {
    if (block.barrier.arrived != 0) {
      fail_divergence(*block.barrier.first, block.barrier.first->site, thread);
    }
  } else if (--block.barrier.members == block.barrier.arrived && block.barrier.arrived != 0) {
    release_block(block, block.barrier.first->site, kMemoryGlobal | kMemoryShared);
  }
  leave_cluster_barrier(thread);
  if (finished_ == threads_.size() && never_written_.failure != Failure::kNone) fail();
  if (finished_ != threads_.size()) go_on(thread, next_ready(thread));
  for (Warp& other : warps_) count_conflicts(other);
  if (at_block_end != nullptr) at_block_end();
  switch_fiber(thread.fiber, scheduler_);
  __builtin_unreachable();
}

// The next thread to run: one of the same warp while there is one, so that operations of
// warps are over soon.
Thread* Machine::next_ready(const Thread& after) {
  const Warp& warp = warp_of(after);
  auto members = static_cast<unsigned>(__builtin_popcount(warp.members));
  for (unsigned i = 1; i < members; ++i) {
    Thread& thread = threads_[warp.first + (after.context.lane + i) % members];
    if (thread.state == Thread::State::kReady) return &thread;
  }
  std::size_t count = threads_.size();
  for (std::size_t i = 1; i < count; ++i) {
    std::size_t index = after.number + i;
    Thread& thread = threads_[index < count ? index : index - count];
    if (thread.state == Thread::State::kReady) return &thread;
  }
  return nullptr;
}

void Machine::go_on(Thread& from, Thread* to) {
  compare_stores();
  while (to == nullptr) {
    if (at_idle == nullptr || !at_idle()) fail_deadlock();
    to = from.state == Thread::State::kReady ? &from : next_ready(from);
  }
  if (to == &from) return;
  become(*to);
  switch_fiber(from.fiber, to->fiber);
}

void Machine::become(Thread& thread) {
  current_ = &thread;
  if (at_switch != nullptr) at_switch(thread.context);
}

// --- waiting

Lanes& Machine::lanes_of(Warp& warp, std::uint32_t mask) {
  for (Lanes& lanes : warp.lanes) {
    if (lanes.mask == mask) return lanes;
  }
  warp.lanes.emplace_back();
  warp.lanes.back().mask = mask;
  warp.lanes.back().barrier.members = static_cast<unsigned>(__builtin_popcount(mask));
  return warp.lanes.back();
}

bool Machine::arrive(Thread& thread, const Site& site, Barrier& barrier) {
  thread.site = site;
  if (barrier.arrived != 0 && !same(barrier.first->site, site)) {
    fail_divergence(thread, site, *barrier.first);
  }
  if (barrier.arrived++ == 0) barrier.first = &thread;
  return barrier.arrived == barrier.members;
}

void Machine::note_arrival(const Thread& thread, Barrier& barrier, unsigned memory) {
  for (unsigned order = 0; order < orders(); ++order) {
    if (memory & 1u << space_of(order)) orders_[order].arrive(barrier.arrivals[order], thread.number);
  }
}

void Machine::wait(Thread& thread, Barrier& barrier) {
  barrier.waiting.push_back(&thread);
  thread.state = Thread::State::kWaiting;
  go_on(thread, next_ready(thread));
}

void Machine::release(Barrier& barrier, unsigned memory) {
  for (unsigned order = 0; order < orders(); ++order) {
    if (!(memory & 1u << space_of(order))) continue;
    const auto seen = orders_[order].complete(barrier.arrivals[order]);
    for (const Thread* thread : barrier.waiting) orders_[order].pass(thread->number, seen);
  }
  for (Thread* thread : barrier.waiting) thread->state = Thread::State::kReady;
  barrier.waiting.clear();
  barrier.arrived = 0;
}

void Machine::warp_collective(const Site& site, void* payload, Collective execute,
                              std::uint32_t mask) {
  Thread& thread = *current_;
  Warp& warp = warp_of(thread);
  mask &= warp.members;
  if (!(mask >> thread.context.lane & 1)) fail_invalid_lane(site, thread.context.lane);
  Lanes& lanes = lanes_of(warp, mask);
  if (std::uint32_t returned = warp.finished & mask) {
    fail_divergence(thread, site, threads_[warp.first + __builtin_ctz(returned)]);
  }
  const bool last = arrive(thread, site, lanes.barrier);
  lanes.payloads[thread.context.lane] = payload;
  if (!last) return wait(thread, lanes.barrier);
  ++statistics_.operations[site.operation];
  // On this thread's stack, which code that is instrumented may read.
  void* payloads[kWarpSize];
  std::memcpy(payloads, lanes.payloads, sizeof payloads);
  collective_lanes_ = &lanes;
  execute(site, payloads, warp_size());
  collective_lanes_ = nullptr;
  if (mask == warp.members) count_conflicts(warp);
  release(lanes.barrier, 0);
}

void Machine::order_lanes(unsigned memory) {
  Lanes& lanes = *collective_lanes_;
  for (unsigned space = 0; space < orders(); ++space) {
    if (!(memory & 1u << space_of(space))) continue;
    const unsigned first = current_->number - current_->context.lane;
    Arrivals arrivals;
    for (std::uint32_t m = lanes.mask; m != 0; m &= m - 1) {
      orders_[space].arrive(arrivals, first + static_cast<unsigned>(__builtin_ctz(m)));
    }
    const auto seen = orders_[space].complete(arrivals);
    for (std::uint32_t m = lanes.mask; m != 0; m &= m - 1) {
      orders_[space].pass(first + static_cast<unsigned>(__builtin_ctz(m)), seen);
    }
  }
}

void Machine::block_barrier(const Site& site, unsigned memory) {
  Thread& thread = *current_;
  Block& block = *thread.block;
  if (block.finished != 0 && !launch_.returned_threads_pass) {
    fail_divergence(thread, site, *block.first_finished);
  }
  // A lane that does something with its warp in the meantime is as wrong as one that waits elsewhere.
  Barrier& warp = warp_of(thread).lanes.front().barrier;
  arrive(thread, site, warp);
  const bool last = arrive(thread, site, block.barrier);
  note_arrival(thread, block.barrier, memory);
  if (!last) return wait(thread, block.barrier);
  block.barrier.waiting.push_back(&thread);
  release_block(block, site, memory);
}

void Machine::release_block(Block& block, const Site& site, unsigned memory) {
  if (never_written_.failure != Failure::kNone) fail();
  ++statistics_.operations[site.operation];
  for (unsigned i = 0; i < warps_apart_; ++i) {
    Warp& warp = warps_of(block)[i];
    warp.lanes.front().barrier.arrived = 0;
    count_conflicts(warp);
  }
  release(block.barrier, memory);
}

void Machine::meet_lanes(const Site& site) {
  const auto nothing = [](const Site&, void* const*, unsigned) {};
  warp_collective(site, current_, nothing, unfinished_lanes());
}

std::uint32_t Machine::active_lanes(const Site& site) {
  Thread& thread = *current_;
  Thread* const first = &threads_[warp_of(thread).first];
  Thread* const end = first + warp_size();
  thread.site = site;
  thread.asks = true;
  while (thread.asks) {
    // Lanes go on until each of them asks or waits; then the earliest place is left, so that those who
    // come from there meet the others behind it.
    Thread* next = std::find_if(first, end, [](const Thread& lane) {
      return lane.state == Thread::State::kReady && !lane.asks;
    });
    if (next != end) {
      go_on(thread, next);
      continue;
    }
    const Thread* earliest = &thread;
    for (const Thread* lane = first; lane != end; ++lane) {
      if (lane->asks && lane->site.line < earliest->site.line) earliest = lane;
    }
    const Site place = earliest->site;
    std::uint32_t came = 0;
    for (Thread* lane = first; lane != end; ++lane) {
      if (lane->asks && same(lane->site, place)) came |= 1u << (lane - first);
    }
    for (Thread* lane = first; lane != end; ++lane) {
      if (!(came >> (lane - first) & 1)) continue;
      lane->active = came;
      lane->asks = false;
    }
  }
  return thread.active;
}

void Machine::cluster_arrive(const Site& site, bool release) {
  Thread& thread = *current_;
  ClusterBarrier& barrier = cluster_barrier_;
  if (arrived_in_[thread.number]) {
    fail_protocol(site.line, "an arrival at a cluster's barrier before the last one's wait");
  }
  if (release) {
    arrive(thread, barrier.arrivals);
  } else {
    begin(thread, barrier.arrivals);
  }
  arrived_in_[thread.number] = barrier.phase;
  if (++barrier.arrived == barrier.members) complete_cluster_barrier();
}

void Machine::cluster_wait(const Site& site) {
  Thread& thread = *current_;
  ClusterBarrier& barrier = cluster_barrier_;
  if (!arrived_in_[thread.number]) {
    fail_protocol(site.line, "a wait at a cluster's barrier without an arrival");
  }
  while (arrived_in_[thread.number] == barrier.phase) {
    barrier.waiting.push_back(&thread);
    block(site);
  }
  // Nobody can have completed the next phase: this thread did not arrive there.
  pass(thread, barrier.passage);
  arrived_in_[thread.number].reset();
}

// A thread that returns is not waited for; what it released it has released.
void Machine::leave_cluster_barrier(const Thread& thread) {
  ClusterBarrier& barrier = cluster_barrier_;
  --barrier.members;
  if (arrived_in_[thread.number] == barrier.phase) --barrier.arrived;
  if (barrier.arrived != 0 && barrier.arrived == barrier.members) complete_cluster_barrier();
}

void Machine::complete_cluster_barrier() {
  ClusterBarrier& barrier = cluster_barrier_;
  for (unsigned order = 0; order < orders(); ++order) {
    barrier.passage.seen[order] = nullptr;
    if (barrier.arrivals[order].seen.empty()) continue;
    barrier.passage.seen[order] = orders_[order].complete(barrier.arrivals[order]);
  }
  barrier.arrived = 0;
  ++barrier.phase;
  for (Thread* thread : barrier.waiting) unblock(*thread);
  barrier.waiting.clear();
}

void Machine::named_barrier(const Site& site, unsigned number, unsigned threads, bool wait) {
  Thread& thread = *current_;
  if (threads == 0) threads = block_threads_;
  if (number >= kNamedBarriers || threads % kWarpSize != 0) fail_invalid_lane(site, number);
  Barrier& barrier = thread.block->named_barriers[number];
  if (barrier.arrived == 0) barrier.members = threads;
  if (barrier.members != threads) fail_divergence(thread, site, *barrier.first);
  thread.site = site;
  if (barrier.arrived++ == 0) barrier.first = &thread;
  const unsigned memory = kMemoryGlobal | kMemoryShared;
  note_arrival(thread, barrier, memory);
  if (barrier.arrived != barrier.members) {
    if (wait) this->wait(thread, barrier);
    return;
  }
  ++statistics_.operations[site.operation];
  if (wait) barrier.waiting.push_back(&thread);
  release(barrier, memory);
}

void Machine::group_collective(const Site& site, void* payload, Collective execute,
                               unsigned threads) {
  Thread& thread = *current_;
  const unsigned first = thread.context.index / threads * threads;
  if (first + threads > block_threads_) fail_invalid_lane(site, first + threads);
  const unsigned group = thread.context.rank * warps_apart_ + first / kWarpSize;
  Barrier& barrier = groups_[group];
  std::vector<void*>& payloads = group_payloads_[group];
  payloads.resize(threads);
  barrier.members = threads;
  const bool last = arrive(thread, site, barrier);
  payloads[thread.context.index - first] = payload;
  if (!last) return wait(thread, barrier);
  ++statistics_.operations[site.operation];
  execute(site, payloads.data(), threads);
  release(barrier, 0);
}

void Machine::block(const Site& site) {
  current_->site = site;
  current_->state = Thread::State::kWaiting;
  go_on(*current_, next_ready(*current_));
}

void Machine::arrive(const Thread& thread, Arrivals (&arrivals)[kOrders], bool publishes) {
  for (unsigned order = 0; order < orders(); ++order) {
    if (publishes || !publishes_writes(order)) {
      orders_[order].arrive(arrivals[order], thread.number);
    } else {
      orders_[order].advance(thread.number);
    }
  }
}

Passage Machine::complete(Arrivals (&arrivals)[kOrders], unsigned agent) {
  Passage passage;
  for (unsigned order = 0; order < orders(); ++order) {
    orders_[order].begin(arrivals[order]);
    orders_[order].bring(arrivals[order], agent);
    passage.seen[order] = orders_[order].complete(arrivals[order]);
  }
  advance(agent);
  return passage;
}

void Machine::pass(const Thread& thread, const Passage& passage, bool acquires) {
  for (unsigned order = 0; order < orders(); ++order) {
    if (!acquires && publishes_writes(order)) continue;
    if (passage.seen[order]) orders_[order].join(thread.number, *passage.seen[order]);
  }
}

Passage Machine::capture(const Thread& thread, unsigned agent) {
  Passage passage;
  for (unsigned order = 0; order < orders(); ++order) {
    auto seen = std::make_shared<Seen>(*orders_[order].known(thread.number));
    (*seen)[agent] = orders_[order].stamp(agent, false).clock;
    if (order == kDone) (*seen)[thread.number] = orders_[order].stamp(thread.number, false).clock;
    passage.seen[order] = std::move(seen);
  }
  advance(agent);
  advance(thread.number);
  return passage;
}

void Machine::bring(Arrivals (&arrivals)[kOrders], const Passage& passage) {
  for (unsigned order = 0; order < orders(); ++order) orders_[order].bring(arrivals[order], *passage.seen[order]);
}

void Machine::begin(const Thread& thread, Arrivals (&arrivals)[kOrders]) {
  orders_[kDone].arrive(arrivals[kDone], thread.number);
  for (unsigned order = 0; order < kOrders; ++order) {
    if (order != kDone) orders_[order].advance(thread.number);
  }
}

bool Machine::comes_after(const Thread& thread, const Thread& other, std::uint32_t clock) const {
  return &thread == &other || (*orders_[kDone].known(thread.number))[other.number] >= clock;
}

const std::shared_ptr<const Seen>& Machine::known(const Thread& thread) const {
  return orders_[most_known()].known(thread.number);
}

void Machine::go_by(const Thread& thread, std::shared_ptr<const Seen> known) {
  for (unsigned order : {static_cast<unsigned>(Space::kShared), kFree}) {
    really_known_[order] = orders_[order].known(thread.number);
    orders_[order].pass(thread.number, known);
  }
}

void Machine::go_by_its_own(const Thread& thread) {
  for (unsigned order : {static_cast<unsigned>(Space::kShared), kFree}) {
    orders_[order].pass(thread.number, std::move(really_known_[order]));
  }
}

void Machine::fence(const Thread& thread) {
  orders_[kFenced].fence(thread.number, orders_[static_cast<int>(Space::kShared)]);
  advance(thread.number);
}

std::uint32_t Machine::advance(unsigned agent) {
  for (unsigned order = 1; order < kOrders; ++order) orders_[order].advance(agent);
  return orders_[0].advance(agent);
}

unsigned Machine::kind_of_writer(std::uintptr_t address) {
  const Region* region = memory_.contains(address) ? memory_.find(address) : nullptr;
  if (region == nullptr || address - region->data >= region->bytes) return 0;
  const Stamp write = region->cells[address - region->data].write;
  return order_of(*region).in_this_block(write) ? write.agent / agents_apart_ : 0;
}

void Machine::learn(const Thread& thread, unsigned agent, std::uint32_t clock, unsigned memory) {
  for (unsigned order = 0; order < orders(); ++order) {
    if (order == kFenced || !(memory & 1u << space_of(order))) continue;
    orders_[order].learn(thread.number, agent, clock);
  }
}

// --- memory

void* Machine::shared_variable(const char* name, int line, std::size_t bytes,
                                    std::size_t element_bytes, std::size_t alignment) {
  const unsigned rank = current_->context.rank;
  for (const Region& region : memory_.shared()) {
    if (region.line == line && std::strcmp(region.name, name) == 0) {
      return reinterpret_cast<void*>(memory_.of_block(region.data, rank));
    }
  }
  void* data = allocate_shared(name, line, bytes, element_bytes, alignment);
  if (data == nullptr) {
    Report& report = begin_report(Failure::kResources, *current_);
    report.line = line;
    fail();
  }
  if (statistics_.shared_memory > launch_.shared_memory_limit) {
    Report& report = begin_report(Failure::kSharedMemory, *current_);
    copy_text(report.buffer, name);
    report.buffer_bytes = bytes;
    report.size = statistics_.shared_memory;
    report.line = line;
    fail();
  }
  return reinterpret_cast<void*>(memory_.of_block(reinterpret_cast<std::uintptr_t>(data), rank));
}

// The memory of the first block of the cluster; the others have theirs at the same place.
void* Machine::allocate_shared(const char* name, int line, std::uint64_t bytes,
                                    std::uint64_t element_bytes, std::uint64_t alignment) {
  Region* region = memory_.add_shared(name, line, bytes, element_bytes, alignment);
  if (region == nullptr) return nullptr;
  statistics_.shared_memory += (bytes + 15) / 16 * 16;
  return reinterpret_cast<void*>(region->data);
}

std::uintptr_t Machine::stack_of(const Thread& thread) const {
  return stacks_ + (&thread - threads_.data()) * kStackBytes;
}

// Its stack, and constants. Work for a whole warp uses the stacks of all.
bool Machine::is_private(const Thread& thread, std::uintptr_t address, std::uint64_t size) const {
  if (address - stack_of(thread) <= kStackBytes - size) return true;
  if (address - image_.start <= image_.bytes - size) return true;
  if (shown.bytes != 0 && address - shown.start <= shown.bytes - size) return true;
  return collective_lanes_ != nullptr && address - stacks_ < threads_.size() * kStackBytes;
}

// A copy of a structure may leave bytes of it out: those that are read are all unset.
void Machine::note_private(const Thread& thread, std::uintptr_t address, std::uint64_t size,
                           Access access, std::uintptr_t instruction) {
  if (address - stacks_ >= threads_.size() * kStackBytes) return;  // a constant
  auto* shadow = static_cast<char*>(shadow_of(address));
  if (!is_read(access)) {
    std::memset(shadow, 0, size);
  } else if (std::memchr(shadow, 0, size) == nullptr) {
    for (const Variable& variable : thread.unset) {
      if (address - variable.address >= variable.bytes) continue;
      threads_[thread.number].unset_read = {variable, address - variable.address, instruction};
    }
  }
}

// Threads beside the work read what they have not written, too, and exchange what comes of it: only a mark that
// gets to global memory is a mistake. It is there when the thread's next access comes.
void Machine::suspect(const Thread& thread, const Region& region, std::uintptr_t address,
                      std::uint64_t size) {
  suspect_ = {&thread, address, size, region.element_bytes};
}

void Machine::check_suspect() {
  const auto [thread, first, size, element_bytes] = suspect_;
  suspect_.thread = nullptr;
  const std::uint64_t step = element_bytes % 4 == 0 ? 4 : 2;
  for (std::uintptr_t at = first; at + step <= first + size; at += step) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, reinterpret_cast<const void*>(at), step);
    if (!(step == 4 ? is_unset_word(bits) : is_unset_half(static_cast<std::uint16_t>(bits)))) continue;
    const auto& [variable, offset, instruction] = thread->unset_read;
    agent_ = thread->number;
    Report& report = begin_access_report(Failure::kUninitialized, *thread, at, step, Access::kWrite, instruction, 0);
    const bool several = variable.bytes > variable.element_bytes;
    const auto index = static_cast<unsigned>(offset / variable.element_bytes);
    std::snprintf(report.other_operation, sizeof report.other_operation, several ? "%s[%u]" : "%s", variable.name, index);
    fail();
  }
}

void Machine::note_unset(const Variable& variable) {
  if (unset_ == 0) {
    void* memory = mmap(nullptr, threads_.size() * kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      begin_report(Failure::kResources, *current_);
      fail();
    }
    unset_ = reinterpret_cast<std::uintptr_t>(memory);
  }
  std::memset(shadow_of(variable.address), 1, variable.bytes);
  current_->unset.push_back(variable);
}

void Machine::forget_unset(std::uintptr_t address, std::uint64_t bytes) {
  std::memset(shadow_of(address), 0, bytes);
  current_->unset.pop_back();
}

void Machine::access(const Thread& thread, unsigned agent, std::uintptr_t address,
                     std::uint64_t size, Access access, std::uintptr_t instruction, int line,
                     bool needs_fence) {
  compare_stores();
  agent_ = agent;
  if (!memory_.contains(address)) {
    if (is_private(thread, address, size)) {
      if (at_private_access != nullptr) at_private_access(thread, address, size, access, instruction);
      if (unset_ != 0) note_private(thread, address, size, access, instruction);
      return;
    }
    fail_access(Failure::kOutOfBounds, thread, address, size, access, instruction, line);
  }
  Region* region = memory_.find(address);
  if (region == nullptr || size > region->bytes ||
      address - region->data > region->bytes - size) {
    fail_access(Failure::kOutOfBounds, thread, address, size, access, instruction, line);
  }
  if (has_ended(address)) fail_protocol(line, "the shared memory of a block that has ended");
  const std::uint64_t instructions = collective_lanes_ ? 0 : (size + kWidestAccess - 1) / kWidestAccess;
  // What happens in the background has banks to itself, as far as this counts.
  if (launch_.counts_conflicts && region->space == Space::kShared && agent == thread.number) {
    warp_of(thread).banks.note(thread.context.lane, instruction ? instruction : line, address,
                                           size);
  }
  if (is_read(access)) {
    region->bytes_read += size;
    region->reads += instructions;
  } else {
    region->bytes_written += size;
    region->writes += instructions;
    if (!region->writable) {
      fail_access(Failure::kReadOnly, thread, address, size, access, instruction, line);
    }
  }
  if (access == Access::kWrite && thread.unset_read.instruction != 0 && region->space == Space::kGlobal) {
    suspect(thread, *region, address, size);
  }
  if (region->cells != nullptr) {
    check_races(thread, agent, *region, address - region->data, size, access, instruction, line,
                needs_fence);
  }
}

void Machine::check_races(const Thread& thread, unsigned agent, const Region& region,
                          std::uint64_t offset, std::uint64_t size, Access access,
                          std::uintptr_t instruction, int line, bool needs_fence) {
  Order& order = order_of(region);
  const bool shared = region.space == Space::kShared;
  const Order* const free = shared && blocks() > 1 ? &orders_[kFree] : nullptr;
  const unsigned self = thread.number;
  const Stamp now = order.stamp(agent, is_atomic(access));
  const bool is_store = access == Access::kWrite && agent == self;
  // Work in the background that is no copy of the thread's own.
  const auto in_background = [&](Stamp stamp) { return stamp.agent >= 2 * agents_apart_; };
  std::uint64_t i = offset;
  const auto race = [&](Stamp other, Access other_access, Failure failure = Failure::kRace) {
    fail_race(thread, region.data + i, size - (i - offset), access, other, other_access, instruction, line,
              failure);
  };
  for (; i < offset + size; ++i) {
    Cell& cell = region.cells[i];
    if (shared && is_read(access) && !order.in_this_block(cell.write)) {
      note_never_written(thread, region.data + i, size - (i - offset), access, instruction, line);
    }
    const bool both_atomic = now.atomic && cell.write.atomic;
    Stamp writer = both_atomic ? Stamp() : order.concurrent_writer(cell, self);
    if (free != nullptr && in_background(writer) && free->knows(self, writer)) writer = Stamp();
    // Whether the values are the same is known when it has been done.
    const bool repeats = writer.clock != 0 && is_store && !writer.atomic && !writer.changed &&
                         writer.agent < agents_apart_;
    if (writer.clock != 0 && !repeats) {
      race(writer, writer.atomic ? Access::kAtomicWrite : Access::kWrite);
    }
    // Between threads, with their own copies, and work in the background; that needs none among itself.
    const auto check_fences = [&](bool wrote) {
      if (!needs_fence || !shared) return;
      const Stamp unfenced = order.unfenced(cell, self, wrote, 2 * agents_apart_, orders_[kFenced]);
      if (unfenced.clock != 0) race(unfenced, wrote ? Access::kWrite : Access::kRead, Failure::kFence);
    };
    check_fences(true);
    if (is_read(access)) {
      // What an atomic read races with is a plain write, which finds the write part of atomics.
      if (access == Access::kRead) order.note_read(cell, now, self);
      continue;
    }
    const Stamp reader = order.concurrent_reader(cell, self, free);
    if (reader.clock != 0) race(reader, Access::kRead);
    check_fences(false);
    const bool again = is_store && cell.write.agent == now.agent && cell.write.clock == now.clock;
    if (repeats || again) {
      const std::uintptr_t place = region.data + i;
      const std::uint64_t first = std::max(offset, i - i % region.element_bytes);
      stores_.push_back({&thread, region.data + first, size - (first - offset), place,
                         *reinterpret_cast<const char*>(place), &cell, repeats ? writer : Stamp(),
                         instruction, line});
    }
    Stamp write = now;
    write.changed = again && cell.write.changed;
    order.note_write(cell, write, self, repeats);
  }
}

void Machine::compare_stores() {
  if (suspect_.thread != nullptr) check_suspect();
  for (const Store& store : stores_) {
    if (*reinterpret_cast<const char*>(store.byte) == store.before) continue;
    if (store.other.clock == 0) {
      store.cell->write.changed = true;
      continue;
    }
    agent_ = store.thread->number;
    fail_race(*store.thread, store.address, store.size, Access::kWrite, store.other, Access::kWrite,
              store.instruction, store.line);
  }
  stores_.clear();
}

// --- failures

bool Machine::is_guard(std::uintptr_t address) const {
  const std::uintptr_t offset = address - stacks_;
  return offset < threads_.size() * kStackBytes && offset % kStackBytes < kGuardBytes;
}

bool Machine::is_in_image(std::uintptr_t address) const {
  return address - image_.start < image_.bytes;
}

void Machine::fail_at(Report& report, std::uintptr_t instruction) {
  in_runtime = 1;
  // A line is looked up by the address that follows an instruction.
  report.instruction = instruction + 1 - image_.start;
  fail();
}

void Machine::fail_deadlock() {
  const auto waits = [](const Thread& t) { return t.state == Thread::State::kWaiting; };
  const Thread& thread = *std::find_if(threads_.begin(), threads_.end(), waits);
  const auto elsewhere = [&](const Thread& t) { return waits(t) && !same(t.site, thread.site); };
  const auto other = std::find_if(threads_.begin(), threads_.end(), elsewhere);
  Report& report = begin_report(Failure::kDeadlock, thread);
  report.line = thread.site.line;
  describe(thread, report.operation);
  if (other != threads_.end()) {
    report.other_thread = static_cast<std::int32_t>(other->context.index);
    report.other_line = other->site.line;
    std::memcpy(report.other_block, other->block->position, sizeof report.other_block);
    describe(*other, report.other_operation);
  }
  fail();
}

// What a thread waits for, as far as the machine or the front end can say.
template <std::size_t N>
void Machine::describe(const Thread& thread, char (&text)[N]) const {
  copy_text(text, thread.site.name);
  if (thread.site.operation == kClusterBarrier) {
    const unsigned missing = cluster_barrier_.members - cluster_barrier_.arrived;
    std::snprintf(text, N, "%s (%u of %u threads to arrive)", thread.site.name, missing,
                  cluster_barrier_.members);
  } else if (describe_wait != nullptr) {
    describe_wait(thread, text, N);
  }
}

Report& Machine::begin_report(Failure failure, const Thread& thread) {
  report_.failure = failure;
  report_.space = -1;
  report_.thread = static_cast<std::int32_t>(thread.context.index);
  report_.agent = report_.other_agent = 0;
  report_.other_thread = -1;
  std::memcpy(report_.block, thread.block->position, sizeof report_.block);
  std::memcpy(report_.other_block, report_.block, sizeof report_.block);
  return report_;
}

void Machine::describe_memory(std::uintptr_t address, std::uint64_t size) {
  report_.size = size;
  Region* region = memory_.contains(address) ? memory_.find(address) : nullptr;
  if (region == nullptr) return;
  report_.space = static_cast<std::int32_t>(region->space);
  report_.offset = static_cast<std::int64_t>(address - region->data);
  report_.buffer_bytes = region->bytes;
  report_.element_bytes = region->element_bytes;
  copy_text(report_.buffer, region->name);
}

void Machine::fail() {
  // What came of a value that was never written is not the mistake; a race may be why.
  if (never_written_.failure != Failure::kNone && report_.failure != Failure::kRace) {
    report_ = never_written_;
  }
  failed_ = true;
  Thread& thread = *current_;
  switch_fiber(thread.fiber, scheduler_);
  __builtin_unreachable();
}

void Machine::fail_divergence(const Thread& thread, const Site& site, const Thread& other) {
  Report& report = begin_report(Failure::kDivergence, thread);
  report.line = site.line;
  copy_text(report.operation, site.name);
  report.other_thread = static_cast<std::int32_t>(other.context.index);
  std::memcpy(report.other_block, other.block->position, sizeof report.other_block);
  if (other.state != Thread::State::kFinished) {
    report.other_line = other.site.line;
    copy_text(report.other_operation, other.site.name);
  }
  fail();
}

template <std::size_t N>
void Machine::name_agent(unsigned agent, char (&text)[N]) const {
  const unsigned kind = agent / agents_apart_;
  if (kind != 0 && describe_agent != nullptr) describe_agent(kind, agent % agents_apart_, text, N);
}

Report& Machine::begin_access_report(Failure failure, const Thread& thread, std::uintptr_t address,
                                     std::uint64_t size, Access access, std::uintptr_t instruction,
                                     int line) {
  Report& report = begin_report(failure, thread);
  describe_memory(address, size);
  report.agent = static_cast<std::int32_t>(agent_ / agents_apart_);
  name_agent(agent_, report.operation);
  report.access = access;
  report.instruction = instruction - image_.start;
  report.line = line;
  return report;
}

void Machine::fail_access(Failure failure, const Thread& thread, std::uintptr_t address,
                          std::uint64_t size, Access access, std::uintptr_t instruction, int line) {
  begin_access_report(failure, thread, address, size, access, instruction, line);
  fail();
}

// Another thread may be about to write it: a missing barrier then, which that write will show.
void Machine::note_never_written(const Thread& thread, std::uintptr_t address, std::uint64_t size,
                                 Access access, std::uintptr_t instruction, int line) {
  if (never_written_.failure != Failure::kNone) return;
  never_written_ = begin_access_report(Failure::kUninitialized, thread, address, size, access,
                                       instruction, line);
  report_ = Report();
}

void Machine::fail_race(const Thread& thread, std::uintptr_t address, std::uint64_t size,
                        Access access, Stamp other, Access other_access,
                        std::uintptr_t instruction, int line, Failure failure) {
  // Ordered, though not for what goes by other knowledge.
  const auto& really_known = really_known_[most_known()];
  if (really_known && (*really_known)[other.agent] >= other.clock) failure = Failure::kFence;
  Report& report =
      begin_access_report(failure, thread, address, size, access, instruction, line);
  report.other_access = other_access;
  const unsigned number = other.agent % agents_apart_;
  report.other_thread = static_cast<std::int32_t>(number % block_threads_);
  report.other_agent = static_cast<std::int32_t>(other.agent / agents_apart_);
  name_agent(other.agent, report.other_operation);
  const bool is_global = report.space == static_cast<std::int32_t>(Space::kGlobal);
  place_block(is_global ? cluster_of(other) : cluster_, number / block_threads_, report.other_block);
  fail();
}

// The number of the cluster that made an access to global memory.
std::uint64_t Machine::cluster_of(Stamp stamp) const {
  auto next = std::upper_bound(starts_.begin(), starts_.end(), stamp.clock);
  return static_cast<std::uint64_t>(next - starts_.begin()) - 1;
}

}  // namespace emulator
