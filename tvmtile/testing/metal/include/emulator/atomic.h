// Atomic types and the functions on them, which all name their memory order.
//
// Fibers run one at a time, so a load and a store with nothing between are one atomic step. They
// are written as atomic builtins for the sanitizer to report as atomic.
#pragma once

#include "math.h"

namespace metal {

enum memory_order {
  memory_order_relaxed,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel,
  memory_order_seq_cst,
};

template <typename T>
struct atomic {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || std::is_same_v<T, bool>);
  T value;
};

}  // namespace metal

namespace emulator {

template <typename T>
EMULATOR_INLINE T load(const volatile metal::atomic<T>* object) {
  using bits = integer_of_size<sizeof(T)>;
  return as_type<T>(
      __atomic_load_n(reinterpret_cast<const volatile bits*>(&object->value), __ATOMIC_RELAXED));
}

template <typename T>
EMULATOR_INLINE void store(volatile metal::atomic<T>* object, T value) {
  using bits = integer_of_size<sizeof(T)>;
  __atomic_store_n(reinterpret_cast<volatile bits*>(&object->value), as_type<bits>(value),
                   __ATOMIC_RELAXED);
}

template <typename T, typename F>
EMULATOR_INLINE T modify(volatile metal::atomic<T>* object, F function) {
  const T old = load(object);
  store(object, T(function(old)));
  return old;
}

// The operand's type is the atomic's, whatever the argument is.
template <typename T>
struct identity {
  using type = T;
};
template <typename T>
using operand = typename identity<T>::type;

}  // namespace emulator

namespace metal {

template <typename T>
EMULATOR_INLINE T atomic_load_explicit(const volatile atomic<T>* object, memory_order) {
  return emulator::load(object);
}

template <typename T>
EMULATOR_INLINE void atomic_store_explicit(volatile atomic<T>* object, emulator::operand<T> value,
                                           memory_order) {
  emulator::store(object, value);
}

template <typename T>
EMULATOR_INLINE bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* object, T* expected,
                                                           emulator::operand<T> desired,
                                                           memory_order, memory_order) {
  using bits = emulator::integer_of_size<sizeof(T)>;
  const T old = emulator::load(object);
  // Bits are compared, not values: a NaN equals itself and zero differs from minus zero.
  if (as_type<bits>(old) != as_type<bits>(*expected)) {
    *expected = old;
    return false;
  }
  emulator::store(object, desired);
  return true;
}

#define EMULATOR_ATOMIC(name, expression)                                                         \
  template <typename T>                                                                           \
  EMULATOR_INLINE T atomic_##name##_explicit(volatile atomic<T>* object,                          \
                                             emulator::operand<T> operand, memory_order) {        \
    return emulator::modify(object, [operand](T old) { return expression; });                     \
  }
EMULATOR_ATOMIC(exchange, ((void)old, operand))
EMULATOR_ATOMIC(fetch_add, old + operand)
EMULATOR_ATOMIC(fetch_sub, old - operand)
EMULATOR_ATOMIC(fetch_min, metal::min(old, operand))
EMULATOR_ATOMIC(fetch_max, metal::max(old, operand))
EMULATOR_ATOMIC(fetch_and, old & operand)
EMULATOR_ATOMIC(fetch_or, old | operand)
EMULATOR_ATOMIC(fetch_xor, old ^ operand)
#undef EMULATOR_ATOMIC

using atomic_bool = atomic<bool>;
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_ulong = atomic<ulong>;
using atomic_float = atomic<float>;

}  // namespace metal
