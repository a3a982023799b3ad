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
    case Number::kUe8m0: case Number::kUe4m3: return 1;
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

// Numbers of so many bits without NaN or infinity: the sign first.
inline double from_narrow(unsigned bits, unsigned exponent_bits, unsigned mantissa_bits, int bias) {
  const unsigned exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
  const double fraction = (bits & ((1u << mantissa_bits) - 1)) / static_cast<double>(1u << mantissa_bits);
  const double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1 + fraction, static_cast<int>(exponent) - bias);
}

inline unsigned bits_of(Number type) {
  switch (type) {
    case Number::kE2m3: case Number::kE3m2: return 6;
    case Number::kE2m1: return 4;
    default: return 8 * bytes_of(type);
  }
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
    case Number::kE2m3: return from_narrow(read<std::uint8_t>(from), 2, 3, 1);
    case Number::kE3m2: return from_narrow(read<std::uint8_t>(from), 3, 2, 3);
    case Number::kE2m1: return from_narrow(read<std::uint8_t>(from), 2, 1, 1);
    case Number::kUe8m0: {
      const unsigned bits = read<std::uint8_t>(from);
      return bits == 0xff ? NAN : std::ldexp(1.0, static_cast<int>(bits) - 127);
    }
    case Number::kUe4m3: return from_float8(read<std::uint8_t>(from) & 0x7f, 3, 7);
    case Number::kNone: break;
  }
  __builtin_unreachable();
}

}  // namespace emulator
