// The element types of matrices: their sizes, the bits that stand for "never written", and
// bfloat16's rounding.
//
// A matrix is born full of a signalling NaN that no arithmetic yields (a NaN that comes out of an
// operation is quiet), so finding it means that nothing was written. It survives copies and
// `thread_elements()`, which a flag beside the elements would not.
#pragma once

#include <cstdint>
#include <cstring>

#include "machine/runtime.h"

namespace emulator {

enum class Element : unsigned { kHalf, kBfloat, kFloat };

constexpr unsigned bytes_of(Element type) { return type == Element::kFloat ? 4 : 2; }

constexpr std::uint32_t poison_of(Element type) {
  return type == Element::kFloat ? kUnsetFloat : type == Element::kHalf ? kUnsetHalf : kUnsetBfloat;
}

inline void poison(void* element, Element type) {
  const std::uint32_t bits = poison_of(type);
  std::memcpy(element, &bits, bytes_of(type));  // little-endian, as every host we know
}

inline bool is_poison(const void* element, Element type) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, element, bytes_of(type));
  return bits == poison_of(type);
}

// Round to nearest, ties to even; a NaN stays a NaN.
inline std::uint16_t bfloat_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace emulator
