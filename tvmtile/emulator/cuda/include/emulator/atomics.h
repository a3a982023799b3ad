// Atomic functions. Fibers run one at a time, so a load and a store with nothing between are one atomic
// step; they are written as atomic builtins for the sanitizer to report as atomic.
#pragma once

namespace emulator {

template <std::size_t N>
struct Bits;
template <>
struct Bits<2> {
  using type = std::uint16_t;
};
template <>
struct Bits<4> {
  using type = std::uint32_t;
};
template <>
struct Bits<8> {
  using type = std::uint64_t;
};

// Where something is, which must be aligned for its type: the sanitizer looks where a reference is made.
template <typename T>
EMULATOR_INLINE T* aligned(T* place) {
  T& there = *place;
  return &there;
}
template <typename T>
EMULATOR_INLINE T atomic_load(const T* place) {
  using bits = typename Bits<sizeof(T)>::type;
  const bits loaded = __atomic_load_n(reinterpret_cast<const bits*>(aligned(place)), __ATOMIC_RELAXED);
  T value;
  __builtin_memcpy(&value, &loaded, sizeof value);
  return value;
}
template <typename T>
EMULATOR_INLINE void atomic_store(T* place, T value) {
  using bits = typename Bits<sizeof(T)>::type;
  bits stored;
  __builtin_memcpy(&stored, &value, sizeof stored);
  __atomic_store_n(reinterpret_cast<bits*>(place), stored, __ATOMIC_RELAXED);
}
template <typename T, typename F>
EMULATOR_INLINE T modify(T* place, F update) {
  const T old = atomic_load(place);
  atomic_store(place, T(update(old)));
  return old;
}

}  // namespace emulator

#define EMULATOR_ATOMIC(name, T, update)                                      \
  template <typename = void>                                                  \
  EMULATOR_INLINE T name(T* place, T value) {                                 \
    return emulator::modify(place, [value](T old) { return update; });        \
  }                                                                           \
  template <typename = void>                                                  \
  EMULATOR_INLINE T name##_block(T* place, T value) {                         \
    return name(place, value);                                                \
  }                                                                           \
  template <typename = void>                                                  \
  EMULATOR_INLINE T name##_system(T* place, T value) {                        \
    return name(place, value);                                                \
  }
#define EMULATOR_ATOMIC_INTEGERS(name, update)      \
  EMULATOR_ATOMIC(name, int, update)                \
  EMULATOR_ATOMIC(name, unsigned, update)           \
  EMULATOR_ATOMIC(name, unsigned long long, update)

// Sums without a sign: they may wrap.
EMULATOR_ATOMIC(atomicAdd, int, int(unsigned(old) + unsigned(value)))
EMULATOR_ATOMIC(atomicAdd, unsigned, old + value)
EMULATOR_ATOMIC(atomicAdd, unsigned long long, old + value)
EMULATOR_ATOMIC(atomicAdd, float, old + value)
EMULATOR_ATOMIC(atomicAdd, double, old + value)
EMULATOR_ATOMIC(atomicAdd, __half, __hadd(old, value))
EMULATOR_ATOMIC(atomicAdd, __nv_bfloat16, __hadd(old, value))
EMULATOR_ATOMIC(atomicSub, int, int(unsigned(old) - unsigned(value)))
EMULATOR_ATOMIC(atomicSub, unsigned, old - value)
EMULATOR_ATOMIC_INTEGERS(atomicExch, ((void)old, value))
EMULATOR_ATOMIC(atomicExch, float, ((void)old, value))
EMULATOR_ATOMIC_INTEGERS(atomicMin, value < old ? value : old)
EMULATOR_ATOMIC(atomicMin, long long, value < old ? value : old)
EMULATOR_ATOMIC_INTEGERS(atomicMax, value > old ? value : old)
EMULATOR_ATOMIC(atomicMax, long long, value > old ? value : old)
EMULATOR_ATOMIC_INTEGERS(atomicAnd, old & value)
EMULATOR_ATOMIC_INTEGERS(atomicOr, old | value)
EMULATOR_ATOMIC_INTEGERS(atomicXor, old ^ value)
EMULATOR_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
EMULATOR_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)
#undef EMULATOR_ATOMIC_INTEGERS
#undef EMULATOR_ATOMIC

// Each element of a vector is added atomically, not the vector.
#define EMULATOR_ATOMIC_VECTOR(V, E, ...)                                         \
  template <typename = void>                                                      \
  EMULATOR_INLINE V atomicAdd(V* place, V value) {                                \
    E* const places = reinterpret_cast<E*>(emulator::aligned(place));             \
    const E values[] = {__VA_ARGS__};                                             \
    V old;                                                                        \
    for (unsigned i = 0; i < sizeof(V) / sizeof(E); ++i) {                        \
      reinterpret_cast<E*>(&old)[i] = atomicAdd(places + i, values[i]);           \
    }                                                                             \
    return old;                                                                   \
  }
EMULATOR_ATOMIC_VECTOR(__half2, __half, value.x, value.y)
EMULATOR_ATOMIC_VECTOR(__nv_bfloat162, __nv_bfloat16, value.x, value.y)
EMULATOR_ATOMIC_VECTOR(float2, float, value.x, value.y)
EMULATOR_ATOMIC_VECTOR(float4, float, value.x, value.y, value.z, value.w)
#undef EMULATOR_ATOMIC_VECTOR

template <typename T>
EMULATOR_INLINE T atomicCAS(T* place, T expected, T desired) {
  const T old = emulator::atomic_load(place);
  if (old == expected) emulator::atomic_store(place, desired);
  return old;
}
