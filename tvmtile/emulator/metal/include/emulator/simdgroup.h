// Barriers, and functions that move values between the lanes of a simdgroup.
//
// Every lane brings its part, the last one to arrive works out all results. The specification lets
// a simdgroup function be called by some lanes only; the emulator takes that for a mistake, which in
// kernels for tiles it is.
#pragma once

#include "atomic.h"
#include "math.h"
#include "matrix.h"

namespace metal {

enum class mem_flags : uint {
  mem_none = 0,
  mem_device = emulator::kMemoryGlobal,
  mem_threadgroup = emulator::kMemoryShared,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16,
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
constexpr mem_flags operator&(mem_flags a, mem_flags b) { return mem_flags(uint(a) & uint(b)); }

// `line` is filled in where a function is called: it says which call threads meet at.
inline void threadgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  emulator::block_barrier(
      {emulator::kBlockBarrier, "threadgroup_barrier", line}, uint(flags));
}
inline void simdgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  emulator::warp_barrier({emulator::kWarpBarrier, "simdgroup_barrier", line},
                              uint(flags));
}

enum thread_scope {
  thread_scope_thread,
  thread_scope_simdgroup,
  thread_scope_threadgroup,
  thread_scope_device,
  thread_scope_system,
};
// Fibers run one at a time: what one has done, the next one sees.
inline void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) {}

}  // namespace metal

namespace emulator {

template <typename T>
struct Part {
  T value;
  unsigned argument;
  T result;
};

template <typename T>
struct scalar_of {
  using type = T;
};
template <typename T, int N>
struct scalar_of<metal::vec<T, N>> {
  using type = T;
};

// What the lanes of a simdgroup can hand to each other.
template <typename T>
constexpr bool is_exchanged =
    is_scalar<T> && sizeof(T) <= 4 && !std::is_same_v<T, bool> && !std::is_same_v<T, bfloat>;

// Its accesses are none of the kernel's: a loop whose time is up in one would have no line.
template <typename T>
[[gnu::no_sanitize("thread")]] T exchange(const char* name, int line, T value,
                                          unsigned argument, Collective execute) {
  static_assert(is_exchanged<typename scalar_of<T>::type>,
                "functions of a simdgroup take half, float and integers of 32 bits at most: "
                "no long, bool or bfloat");
  Part<T> part{value, argument, value};
  warp_collective({kSimdFunction, name, line}, &part, execute);
  return part.result;
}

// The lanes' parts, as `execute` gets them.
template <typename T>
class Lanes {
 public:
  Lanes(void* const* payloads) : payloads_(payloads) {}
  Part<T>& operator[](unsigned lane) const { return *static_cast<Part<T>*>(payloads_[lane]); }

 private:
  void* const* payloads_;
};

// --- how each function fills in the results

// Sums in pairs, as a machine of 32 lanes would: the order matters to rounding.
template <typename T, typename Combine>
void reduce(const Site&, void* const* payloads, unsigned count) {
  Lanes<T> lanes(payloads);
  T values[kWarpSize];
  for (unsigned i = 0; i < count; ++i) values[i] = lanes[i].value;
  unsigned live = count;
  while (live > 1) {
    const unsigned half_up = (live + 1) / 2;
    for (unsigned i = 0; i + half_up < live; ++i) {
      values[i] = Combine()(values[i], values[i + half_up]);
    }
    live = half_up;
  }
  for (unsigned i = 0; i < count; ++i) lanes[i].result = values[0];
}

template <typename T, typename Combine>
void scan_inclusive(const Site&, void* const* payloads, unsigned count) {
  Lanes<T> lanes(payloads);
  for (unsigned i = 1; i < count; ++i) {
    lanes[i].result = Combine()(lanes[i - 1].result, lanes[i].value);
  }
}

template <typename T, typename Combine>
void scan_exclusive(const Site& site, void* const* payloads, unsigned count) {
  Lanes<T> lanes(payloads);
  scan_inclusive<T, Combine>(site, payloads, count);
  for (unsigned i = count - 1; i > 0; --i) lanes[i].result = lanes[i - 1].result;
  lanes[0].result = Combine::template identity<T>();
}

// `From()(lane, argument, count)` is the lane to read from.
template <typename T, typename From>
void shuffle(const Site& site, void* const* payloads, unsigned count) {
  Lanes<T> lanes(payloads);
  for (unsigned i = 0; i < count; ++i) {
    const unsigned from = From()(i, lanes[i].argument, count);
    if (from >= count) fail_invalid_lane(site, from);
    lanes[i].result = lanes[from].value;
  }
}

inline void vote(const Site&, void* const* payloads, unsigned count) {
  Lanes<uint> lanes(payloads);
  uint votes = 0;
  for (unsigned i = 0; i < count; ++i) votes |= (lanes[i].value & 1) << i;
  for (unsigned i = 0; i < count; ++i) lanes[i].result = votes;
}

#define EMULATOR_COMBINE(name, expression, neutral)             \
  struct name {                                                 \
    template <typename T>                                       \
    T operator()(T a, T b) const { return T(expression); }      \
    template <typename T>                                       \
    static T identity() { return T(neutral); }                  \
  };
EMULATOR_COMBINE(Sum, a + b, 0)
EMULATOR_COMBINE(Product, a * b, 1)
EMULATOR_COMBINE(Minimum, metal::min(a, b), 0)
EMULATOR_COMBINE(Maximum, metal::max(a, b), 0)
EMULATOR_COMBINE(And, a & b, 0)
EMULATOR_COMBINE(Or, a | b, 0)
EMULATOR_COMBINE(Xor, a ^ b, 0)
#undef EMULATOR_COMBINE

#define EMULATOR_FROM(name, expression)                                                   \
  struct name {                                                                           \
    unsigned operator()([[maybe_unused]] unsigned lane, [[maybe_unused]] unsigned by,     \
                        [[maybe_unused]] unsigned count) const { return expression; }     \
  };
EMULATOR_FROM(FromLane, by)
EMULATOR_FROM(FromFirst, 0)
EMULATOR_FROM(FromXor, lane ^ by)
// The lanes that would read past an end keep their own value.
EMULATOR_FROM(FromBelow, lane < by ? lane : lane - by)
EMULATOR_FROM(FromAbove, lane + by < count ? lane + by : lane)
EMULATOR_FROM(FromBelowAround, (lane + kWarpSize - by % kWarpSize) % kWarpSize)
EMULATOR_FROM(FromAboveAround, (lane + by) % kWarpSize)
#undef EMULATOR_FROM

}  // namespace emulator

namespace metal {

#define EMULATOR_SIMD(name, execute)                                               \
  template <typename T>                                                            \
  T name(T value, int line = __builtin_LINE()) {                                   \
    return emulator::exchange<T>(#name, line, value, 0, execute);                  \
  }
EMULATOR_SIMD(simd_sum, (emulator::reduce<T, emulator::Sum>))
EMULATOR_SIMD(simd_product, (emulator::reduce<T, emulator::Product>))
EMULATOR_SIMD(simd_min, (emulator::reduce<T, emulator::Minimum>))
EMULATOR_SIMD(simd_max, (emulator::reduce<T, emulator::Maximum>))
EMULATOR_SIMD(simd_and, (emulator::reduce<T, emulator::And>))
EMULATOR_SIMD(simd_or, (emulator::reduce<T, emulator::Or>))
EMULATOR_SIMD(simd_xor, (emulator::reduce<T, emulator::Xor>))
EMULATOR_SIMD(simd_prefix_inclusive_sum, (emulator::scan_inclusive<T, emulator::Sum>))
EMULATOR_SIMD(simd_prefix_inclusive_product, (emulator::scan_inclusive<T, emulator::Product>))
EMULATOR_SIMD(simd_prefix_exclusive_sum, (emulator::scan_exclusive<T, emulator::Sum>))
EMULATOR_SIMD(simd_prefix_exclusive_product, (emulator::scan_exclusive<T, emulator::Product>))
EMULATOR_SIMD(simd_broadcast_first, (emulator::shuffle<T, emulator::FromFirst>))
#undef EMULATOR_SIMD

#define EMULATOR_SHUFFLE(name, from)                                                     \
  template <typename T>                                                                  \
  T name(T value, ushort argument, int line = __builtin_LINE()) {                        \
    return emulator::exchange<T>(#name, line, value, argument, emulator::shuffle<T, emulator::from>); \
  }
EMULATOR_SHUFFLE(simd_broadcast, FromLane)
EMULATOR_SHUFFLE(simd_shuffle, FromLane)
EMULATOR_SHUFFLE(simd_shuffle_xor, FromXor)
EMULATOR_SHUFFLE(simd_shuffle_up, FromBelow)
EMULATOR_SHUFFLE(simd_shuffle_down, FromAbove)
EMULATOR_SHUFFLE(simd_shuffle_rotate_up, FromBelowAround)
EMULATOR_SHUFFLE(simd_shuffle_rotate_down, FromAboveAround)
#undef EMULATOR_SHUFFLE

class simd_vote {
 public:
  using vote_t = ulong;
  simd_vote(vote_t votes, unsigned lanes) : votes_(votes), active_((vote_t{1} << lanes) - 1) {}
  explicit operator vote_t() const { return votes_; }
  bool all() const { return votes_ == active_; }
  bool any() const { return votes_ != 0; }

 private:
  vote_t votes_;
  vote_t active_;
};

inline simd_vote simd_ballot(bool value, int line = __builtin_LINE()) {
  return simd_vote(emulator::exchange<uint>("simd_ballot", line, value, 0, emulator::vote),
                   emulator::this_warp_size());
}
inline simd_vote simd_active_threads_mask(int line = __builtin_LINE()) {
  return simd_vote(
      emulator::active_lanes({emulator::kSimdFunction, "simd_active_threads_mask", line}),
      emulator::this_warp_size());
}
inline bool simd_any(bool value, int line = __builtin_LINE()) {
  return emulator::exchange<uint>("simd_any", line, value, 0, emulator::vote) != 0;
}
inline bool simd_all(bool value, int line = __builtin_LINE()) {
  return emulator::exchange<uint>("simd_all", line, !value, 0, emulator::vote) == 0;
}
inline bool simd_is_first() { return emulator::this_lane() == 0; }

}  // namespace metal
