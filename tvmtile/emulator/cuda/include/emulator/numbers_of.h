// Elements of matrices as numbers, for the runtime.
#pragma once

#include <cmath>
#include <cstring>

#include "emulator/runtime.h"

namespace emulator {

inline unsigned bytes_of(Number type) {
  switch (type) {
    case Number::kF16: case Number::kBf16: return 2;
    case Number::kE4m3: case Number::kE5m2: case Number::kS8: case Number::kU8: return 1;
    case Number::kF64: return 8;
    default: return 4;
  }
}

template <typename T>
T read(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline double from_float8(unsigned bits, unsigned mantissa_bits, int bias) {
  const double sign = bits & 0x80 ? -1 : 1;
  const int exponent = static_cast<int>((bits & 0x7f) >> mantissa_bits);
  const unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
  const double fraction = static_cast<double>(mantissa) / (1u << mantissa_bits);
  if (mantissa_bits == 3 && (bits & 0x7f) == 0x7f) return NAN;
  if (mantissa_bits == 2 && exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1 + fraction, exponent - bias);
}

inline double number(const void* from, Number type) {
  switch (type) {
    case Number::kF16: return static_cast<double>(read<_Float16>(from));
    case Number::kBf16: {
      const std::uint32_t bits = std::uint32_t{read<std::uint16_t>(from)} << 16;
      return read<float>(&bits);
    }
    case Number::kTf32: {  // the instruction takes no notice of the lower bits
      const std::uint32_t bits = read<std::uint32_t>(from) & 0xffffe000;
      return read<float>(&bits);
    }
    case Number::kE4m3: return from_float8(read<std::uint8_t>(from), 3, 7);
    case Number::kE5m2: return from_float8(read<std::uint8_t>(from), 2, 15);
    case Number::kS8: return read<std::int8_t>(from);
    case Number::kU8: return read<std::uint8_t>(from);
    case Number::kF32: return read<float>(from);
    case Number::kF64: return read<double>(from);
    case Number::kS32: return read<std::int32_t>(from);
  }
  __builtin_unreachable();
}

}  // namespace emulator
