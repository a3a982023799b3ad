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
  merge(*known, *known_[thread]);  // fences of others, by arrivals that publish nothing
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

// One that `thread` does not come after, or the stamp of nobody.
Stamp Order::unordered(const Accessors& accessors, unsigned thread, const Order* free) const {
  for (std::uint32_t lanes = accessors.lanes; lanes != 0; lanes &= lanes - 1) {
    const unsigned agent = accessors.group * kWarpSize + static_cast<unsigned>(__builtin_ctz(lanes));
    const Stamp stamp = {accessors.clock, static_cast<std::uint16_t>(agent)};
    if (concurrent(stamp, thread) && (free == nullptr || !free->knows(thread, stamp))) return stamp;
  }
  return Stamp();
}

void Order::note(Cell& cell, Stamp now, unsigned thread, bool wrote) {
  const auto group = static_cast<std::uint16_t>(now.agent / kWarpSize);
  const std::uint32_t lane = 1u << now.agent % kWarpSize;
  bool earlier_block = false;
  for (Accessors* others = &cell.others;;) {
    const bool is_alike = others->wrote == wrote;
    if (is_alike && others->clock == now.clock && others->group == group && others->lanes != 0) {
      others->lanes |= lane;
      return;
    }
    // Whoever comes after this one comes after those that this one comes after. Of earlier blocks
    // one is as good as another.
    const bool is_earlier = others->lanes != 0 && others->clock < block_start_;
    const bool needless =
        others->lanes == 0 ||
        (is_alike && (is_earlier ? earlier_block || !shared_by_blocks_
                                 : unordered(*others, thread).clock == 0));
    if (needless) {
      others->clock = now.clock;
      others->lanes = lane;
      others->group = group;
      others->wrote = wrote;
      return;
    }
    earlier_block |= is_alike && is_earlier;
    if (others->next == 0) {
      // The pool may move: the link is set behind.
      const auto added = static_cast<std::uint32_t>(pool_.size());
      others->next = added;
      pool_.push_back({now.clock, lane, group, wrote, 0});
      return;
    }
    others = &pool_[others->next];
  }
}

Stamp Order::concurrent_accessor(const Cell& cell, unsigned thread, bool wrote,
                                 const Order* free) const {
  for (const Accessors* others = &cell.others;; others = &pool_[others->next]) {
    const Stamp other = others->wrote == wrote ? unordered(*others, thread, free) : Stamp();
    if (other.clock != 0 || others->next == 0) return other;
  }
}

Stamp Order::unfenced(const Cell& cell, unsigned thread, bool wrote, unsigned agents,
                      const Order& fenced) const {
  const auto is_unfenced = [&](Stamp stamp) {
    return stamp.agent < agents && in_this_block(stamp) && !fenced.knows(thread, stamp);
  };
  if (wrote && is_unfenced(cell.write)) return cell.write;
  for (const Accessors* others = &cell.others;; others = &pool_[others->next]) {
    for (std::uint32_t lanes = others->wrote == wrote ? others->lanes : 0; lanes != 0; lanes &= lanes - 1) {
      const unsigned agent = others->group * kWarpSize + static_cast<unsigned>(__builtin_ctz(lanes));
      const Stamp stamp = {others->clock, static_cast<std::uint16_t>(agent)};
      if (is_unfenced(stamp)) return stamp;
    }
    if (others->next == 0) return Stamp();
  }
}

void Order::note_write(Cell& cell, Stamp now, unsigned thread, bool repeats) {
  const Stamp before = cell.write;
  cell.write = now;
  if (now.atomic) return;  // it orders nothing: plain reads race with the atomic writes that follow
  cell.write.repeated = repeats;
  if (repeats) return note(cell, before, thread, true);
  // Whoever comes after this write comes after those that wrote before. Readers stay: who stores the same
  // value as this write at the same time need not come after them.
  for (Accessors* others = &cell.others;; others = &pool_[others->next]) {
    if (others->wrote) others->lanes = 0;
    if (others->next == 0) return;
  }
}

}  // namespace emulator
