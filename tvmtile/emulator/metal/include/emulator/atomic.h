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
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, uint> || std::is_same_v<T, bool> ||
                    std::is_same_v<T, float> || std::is_same_v<T, ulong>,
                "atomic types are those of int, uint, bool, float and ulong");
  T value;
};

}  // namespace metal

namespace emulator {

template <typename T>
constexpr bool is_integer = std::is_same_v<T, int> || std::is_same_v<T, uint>;
template <typename T>
constexpr bool is_number = is_integer<T> || std::is_same_v<T, float>;
template <typename T>
constexpr bool is_word = is_number<T> || std::is_same_v<T, bool>;

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
  static_assert(emulator::is_word<T>, "atomic_ulong has a minimum and a maximum only");
  return emulator::load(object);
}

template <typename T>
EMULATOR_INLINE void atomic_store_explicit(volatile atomic<T>* object, emulator::operand<T> value,
                                           memory_order) {
  static_assert(emulator::is_word<T>, "atomic_ulong has a minimum and a maximum only");
  emulator::store(object, value);
}

template <typename T>
EMULATOR_INLINE bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* object, T* expected,
                                                           emulator::operand<T> desired,
                                                           memory_order, memory_order) {
  static_assert(emulator::is_word<T>, "atomic_ulong has a minimum and a maximum only");
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

// Each is there for the types that the specification gives it.
#define EMULATOR_ATOMIC(name, types, expression)                                                  \
  template <typename T>                                                                           \
  EMULATOR_INLINE T atomic_##name##_explicit(volatile atomic<T>* object,                          \
                                             emulator::operand<T> operand, memory_order) {        \
    static_assert(emulator::types<T>, "atomic_" #name "_explicit takes no atomic of this type");  \
    return emulator::modify(object, [operand](T old) { return expression; });                     \
  }
EMULATOR_ATOMIC(exchange, is_word, ((void)old, operand))
EMULATOR_ATOMIC(fetch_add, is_number, old + operand)
EMULATOR_ATOMIC(fetch_sub, is_number, old - operand)
EMULATOR_ATOMIC(fetch_min, is_integer, metal::min(old, operand))
EMULATOR_ATOMIC(fetch_max, is_integer, metal::max(old, operand))
EMULATOR_ATOMIC(fetch_and, is_integer, old & operand)
EMULATOR_ATOMIC(fetch_or, is_integer, old | operand)
EMULATOR_ATOMIC(fetch_xor, is_integer, old ^ operand)
#undef EMULATOR_ATOMIC

// The two operations on 64 bits, which return nothing.
EMULATOR_INLINE void atomic_min_explicit(volatile atomic<ulong>* object, ulong operand,
                                         memory_order) {
  emulator::modify(object, [operand](ulong old) { return metal::min(old, operand); });
}
EMULATOR_INLINE void atomic_max_explicit(volatile atomic<ulong>* object, ulong operand,
                                         memory_order) {
  emulator::modify(object, [operand](ulong old) { return metal::max(old, operand); });
}

using atomic_bool = atomic<bool>;
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_ulong = atomic<ulong>;
using atomic_float = atomic<float>;

}  // namespace metal
