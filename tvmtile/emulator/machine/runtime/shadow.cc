#include "shadow.h"

#include <algorithm>

namespace emulator {

void Order::resize(unsigned threads, unsigned agents) {
  clocks_.assign(agents, 0);
  known_.resize(threads);
}

void Order::next_block() {
  block_start_ = 1 + *std::max_element(clocks_.begin(), clocks_.end());
  std::fill(clocks_.begin(), clocks_.end(), block_start_);
  auto nothing = std::make_shared<const Seen>(clocks_.size(), block_start_ - 1);
  std::fill(known_.begin(), known_.end(), nothing);
}

namespace {

// The later of two clocks, by agent.
void merge(Seen& seen, const Seen& more) {
  std::transform(more.begin(), more.end(), seen.begin(), seen.begin(),
                 [](std::uint32_t a, std::uint32_t b) { return std::max(a, b); });
}

}  // namespace

void Order::bring(Arrivals& arrivals, const Seen& seen) const {
  if (arrivals.seen.empty()) {
    arrivals.seen = seen;
  } else {
    merge(arrivals.seen, seen);
  }
}

void Order::arrive(Arrivals& arrivals, unsigned thread) {
  const std::shared_ptr<const Seen>& known = known_[thread];
  if (arrivals.seen.empty()) {
    arrivals.seen = *known;
  } else if (arrivals.joined != known) {  // threads that passed a barrier know the same
    merge(arrivals.seen, *known);
  }
  arrivals.joined = known;
  if (publishes_) arrivals.seen[thread] = clocks_[thread];
  ++clocks_[thread];
}

void Order::fence(unsigned thread, const Order& other) {
  auto known = std::make_shared<Seen>(*other.known_[thread]);
  (*known)[thread] = clocks_[thread];
  known_[thread] = std::move(known);
}

std::shared_ptr<const Seen> Order::complete(Arrivals& arrivals) {
  auto seen = std::make_shared<const Seen>(std::move(arrivals.seen));
  arrivals = Arrivals();
  return seen;
}

void Order::join(unsigned thread, const Seen& seen) {
  auto joined = std::make_shared<Seen>(*known_[thread]);
  merge(*joined, seen);
  known_[thread] = std::move(joined);
}

void Order::learn(unsigned thread, unsigned agent, std::uint32_t clock) {
  if ((*known_[thread])[agent] >= clock) return;
  auto more = std::make_shared<Seen>(*known_[thread]);
  (*more)[agent] = clock;
  known_[thread] = std::move(more);
}

// A reader that `thread` does not come after, or the stamp of nobody.
Stamp Order::unordered(const Readers& readers, unsigned thread) const {
  for (std::uint32_t lanes = readers.lanes; lanes != 0; lanes &= lanes - 1) {
    const unsigned agent = readers.group * kWarpSize + static_cast<unsigned>(__builtin_ctz(lanes));
    const Stamp reader = {readers.clock, static_cast<std::uint16_t>(agent), false};
    if (concurrent(reader, thread)) return reader;
  }
  return Stamp();
}

void Order::note_read(Cell& cell, Stamp now, unsigned thread) {
  const auto group = static_cast<std::uint16_t>(now.agent / kWarpSize);
  const std::uint32_t lane = 1u << now.agent % kWarpSize;
  bool earlier_block = false;
  for (Readers* readers = &cell.readers;;) {
    if (readers->clock == now.clock && readers->group == group && readers->lanes != 0) {
      readers->lanes |= lane;
      return;
    }
    // Whoever comes after this reader comes after those that this one comes after. Of earlier blocks
    // one reader is as good as another.
    const bool is_earlier = readers->lanes != 0 && readers->clock < block_start_;
    const bool needless =
        readers->lanes == 0 || (is_earlier ? earlier_block || !shared_by_blocks_
                                           : unordered(*readers, thread).clock == 0);
    if (needless) {
      readers->clock = now.clock;
      readers->lanes = lane;
      readers->group = group;
      return;
    }
    earlier_block |= is_earlier;
    if (readers->next == 0) {
      // The pool may move: the link is set behind.
      const auto added = static_cast<std::uint32_t>(pool_.size());
      readers->next = added;
      pool_.push_back({now.clock, lane, group, 0});
      return;
    }
    readers = &pool_[readers->next];
  }
}

Stamp Order::concurrent_reader(const Cell& cell, unsigned thread) const {
  for (const Readers* readers = &cell.readers;; readers = &pool_[readers->next]) {
    const Stamp reader = unordered(*readers, thread);
    if (reader.clock != 0 || readers->next == 0) return reader;
  }
}

void Order::note_write(Cell& cell, Stamp now) {
  cell.write = now;
  if (now.atomic) return;  // it orders nothing: plain reads race with the atomic writes that follow
  for (Readers* readers = &cell.readers;; readers = &pool_[readers->next]) {
    readers->lanes = 0;
    if (readers->next == 0) return;
  }
}

}  // namespace emulator
