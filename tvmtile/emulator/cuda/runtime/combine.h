// What a reducing copy does to the bytes that it writes. Not for kernels: there it would be checked as theirs.
#pragma once

#include <cstdint>
#include <cstring>

#include "emulator/reductions.h"

namespace emulator {

using Combine = void (*)(char* to, const char* from, unsigned bytes);

// bfloat16, computed as float and rounded to the nearest.
struct Bfloat {
  std::uint16_t bits;
  Bfloat(float value) {
    std::uint32_t wide;
    std::memcpy(&wide, &value, sizeof wide);
    bits = static_cast<std::uint16_t>(value != value ? 0x7fff : (wide + 0x7fff + (wide >> 16 & 1)) >> 16);
  }
  Bfloat() : bits(0) {}
  operator float() const {
    const std::uint32_t wide = std::uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
};

template <typename T, typename Update>
Combine combine_each(Update) {
  return [](char* to, const char* from, unsigned bytes) {
    for (unsigned i = 0; i < bytes; i += sizeof(T)) {
      T old, value;
      std::memcpy(&old, to + i, sizeof old);
      std::memcpy(&value, from + i, sizeof value);
      value = Update()(old, value);
      std::memcpy(to + i, &value, sizeof value);
    }
  };
}

#define EMULATOR_UPDATE(name, value)                 \
  struct name {                                      \
    template <typename T>                            \
    T operator()(T a, T b) const { return T(value); } \
  };
EMULATOR_UPDATE(Sum, a + b)
EMULATOR_UPDATE(Least, b < a ? b : a)
EMULATOR_UPDATE(Largest, a < b ? b : a)
EMULATOR_UPDATE(Next, a >= b ? T(0) : T(a + 1))
EMULATOR_UPDATE(Previous, a == 0 || a > b ? b : T(a - 1))
EMULATOR_UPDATE(And, a & b)
EMULATOR_UPDATE(Or, a | b)
EMULATOR_UPDATE(Xor, a ^ b)
#undef EMULATOR_UPDATE

template <typename T>
Combine of_floats(Reduction reduction, bool has_order) {
  if (reduction == Reduction::kAdd) return combine_each<T>(Sum());
  if (reduction == Reduction::kMin && has_order) return combine_each<T>(Least());
  if (reduction == Reduction::kMax && has_order) return combine_each<T>(Largest());
  return nullptr;
}

// Sums are those of numbers without a sign, which wrap.
template <typename T, typename Unsigned>
Combine of_integers(Reduction reduction) {
  switch (reduction) {
    case Reduction::kAdd: return combine_each<Unsigned>(Sum());
    case Reduction::kMin: return combine_each<T>(Least());
    case Reduction::kMax: return combine_each<T>(Largest());
    case Reduction::kInc: return combine_each<Unsigned>(Next());
    case Reduction::kDec: return combine_each<Unsigned>(Previous());
    case Reduction::kAnd: return combine_each<T>(And());
    case Reduction::kOr: return combine_each<T>(Or());
    case Reduction::kXor: return combine_each<T>(Xor());
  }
  return nullptr;
}

// Null where PTX has none.
inline Combine combine_of(Reduction reduction, Element element) {
  switch (element) {
    case Element::kU32: return of_integers<std::uint32_t, std::uint32_t>(reduction);
    case Element::kS32: return of_integers<std::int32_t, std::uint32_t>(reduction);
    case Element::kU64: return of_integers<std::uint64_t, std::uint64_t>(reduction);
    case Element::kS64: return of_integers<std::int64_t, std::uint64_t>(reduction);
    case Element::kF16: return of_floats<_Float16>(reduction, true);
    case Element::kBf16: return of_floats<Bfloat>(reduction, true);
    case Element::kF32: return of_floats<float>(reduction, false);
    case Element::kF64: return of_floats<double>(reduction, false);
    default: return nullptr;
  }
}

}  // namespace emulator
