// What the entry glue of a kernel needs: attributes in the type that the kernel asks for.
#pragma once

#include "machine/runtime.h"
#include "vector.h"

namespace emulator {

template <typename T>
struct attribute_type {
  static T from(const unsigned (&value)[3]) { return T(value[0]); }
};
template <typename T>
struct attribute_type<metal::vec<T, 2>> {
  static metal::vec<T, 2> from(const unsigned (&value)[3]) { return {T(value[0]), T(value[1])}; }
};
template <typename T>
struct attribute_type<metal::vec<T, 3>> {
  static metal::vec<T, 3> from(const unsigned (&value)[3]) {
    return {T(value[0]), T(value[1]), T(value[2])};
  }
};

template <typename T>
T attribute(unsigned x, unsigned y = 0, unsigned z = 0) {
  const unsigned value[3] = {x, y, z};
  return attribute_type<std::remove_cv_t<T>>::from(value);
}

}  // namespace emulator
