// What the lanes of a warp do together: shuffles, votes, sums.
#pragma once

namespace emulator {

// A lane's part in an exchange of values.
template <typename T>
struct Exchange {
  T value;
  T result;
  int from;  // a lane
};

// Its accesses are none of the kernel's: a loop whose time is up in one would have no line.
template <typename T>
[[gnu::no_sanitize("thread")]] T exchange(const char* name, unsigned mask, T value,
                                          int from, int line) {
  Exchange<T> part = {value, value, from};
  Collective execute = [](const Site& site, void* const* parts, unsigned lanes) {
    for (unsigned lane = 0; lane < lanes; ++lane) {
      auto* part = static_cast<Exchange<T>*>(parts[lane]);
      if (part == nullptr) continue;
      const auto from = static_cast<unsigned>(part->from);
      if (from >= lanes || parts[from] == nullptr) fail_invalid_lane(site, from);
      part->result = static_cast<Exchange<T>*>(parts[from])->value;
    }
  };
  warp_collective({kWarpFunction, name, line}, &part, execute, mask);
  return part.result;
}

// Calls `combine(parts, lanes)` once for all lanes; it fills in their results.
template <typename T, typename R>
struct Vote {
  T value;
  R result;
};

template <typename T, typename R, typename F>
[[gnu::no_sanitize("thread")]] R vote(const char* name, unsigned mask, T value, int line, F) {
  Vote<T, R> part = {value, R()};
  Collective execute = [](const Site&, void* const* parts, unsigned lanes) {
    for (unsigned lane = 0; lane < lanes; ++lane) {
      if (parts[lane] == nullptr) continue;
      auto* part = static_cast<Vote<T, R>*>(parts[lane]);
      part->result = R();
      bool first = true;
      for (unsigned other = 0; other < lanes; ++other) {
        if (parts[other] == nullptr) continue;
        F()(part->result, part->value, static_cast<Vote<T, R>*>(parts[other])->value, other, first);
        first = false;
      }
    }
  };
  warp_collective({kWarpFunction, name, line}, &part, execute, mask);
  return part.result;
}

// The lane that a lane gets a value from, in its segment of `width` lanes; itself if there is none.
inline int lane_at(int index, int width) {
  const int lane = static_cast<int>(this_lane());
  return (lane & ~(width - 1)) | (index & (width - 1));
}
inline int lane_above(int by, int width) {
  const int lane = static_cast<int>(this_lane());
  return (lane & (width - 1)) + by < width ? lane + by : lane;
}
inline int lane_below(int by, int width) {
  const int lane = static_cast<int>(this_lane());
  return (lane & (width - 1)) - by >= 0 ? lane - by : lane;
}
inline int lane_across(int bits, int width) {
  const int lane = static_cast<int>(this_lane());
  const int other = lane ^ bits;
  return other < (lane & ~(width - 1)) + width ? other : lane;
}

}  // namespace emulator

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, int line = __builtin_LINE()) {
  return emulator::exchange("__shfl_sync", mask, value, emulator::lane_at(lane, width), line);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, int line = __builtin_LINE()) {
  return emulator::exchange("__shfl_up_sync", mask, value,
                            emulator::lane_below(static_cast<int>(by), width), line);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                   int line = __builtin_LINE()) {
  return emulator::exchange("__shfl_down_sync", mask, value,
                            emulator::lane_above(static_cast<int>(by), width), line);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, int line = __builtin_LINE()) {
  return emulator::exchange("__shfl_xor_sync", mask, value, emulator::lane_across(bits, width),
                            line);
}

inline unsigned __activemask(int line = __builtin_LINE()) {
  return emulator::active_lanes({emulator::kWarpFunction, "__activemask", line});
}

#define EMULATOR_VOTE(name, T, R, update)                                          \
  template <typename = void>                                                       \
  R name(unsigned mask, T value, int line = __builtin_LINE()) {             \
    return emulator::vote<T, R>(#name, mask, value, line,                          \
                                [](R& result, T mine, T other, unsigned lane, bool first) { update; }); \
  }
EMULATOR_VOTE(__any_sync, int, int, result |= other != 0)
EMULATOR_VOTE(__all_sync, int, int, result = (first || result) && other != 0)
EMULATOR_VOTE(__ballot_sync, int, unsigned, result |= unsigned(other != 0) << lane)
EMULATOR_VOTE(__match_any_sync, unsigned, unsigned, result |= unsigned(other == mine) << lane)
EMULATOR_VOTE(__match_any_sync, unsigned long long, unsigned, result |= unsigned(other == mine) << lane)
EMULATOR_VOTE(__match_any_sync, int, unsigned, result |= unsigned(other == mine) << lane)
EMULATOR_VOTE(__match_any_sync, float, unsigned, result |= unsigned(__builtin_memcmp(&other, &mine, 4) == 0) << lane)
EMULATOR_VOTE(__reduce_add_sync, unsigned, unsigned, result += other)
EMULATOR_VOTE(__reduce_add_sync, int, int, result = int(unsigned(result) + unsigned(other)))
EMULATOR_VOTE(__reduce_min_sync, unsigned, unsigned, result = first || other < result ? other : result)
EMULATOR_VOTE(__reduce_min_sync, int, int, result = first || other < result ? other : result)
EMULATOR_VOTE(__reduce_max_sync, unsigned, unsigned, result = first || other > result ? other : result)
EMULATOR_VOTE(__reduce_max_sync, int, int, result = first || other > result ? other : result)
EMULATOR_VOTE(__reduce_and_sync, unsigned, unsigned, result = first ? other : result & other)
EMULATOR_VOTE(__reduce_or_sync, unsigned, unsigned, result |= other)
EMULATOR_VOTE(__reduce_xor_sync, unsigned, unsigned, result ^= other)
#undef EMULATOR_VOTE

template <typename T>
unsigned __match_all_sync(unsigned mask, T value, int* predicate, int line = __builtin_LINE()) {
  const unsigned same = __match_any_sync(mask, value, line);
  *predicate = same == (mask & emulator::unfinished_lanes());
  return *predicate ? same : 0;
}
