// What a reducing copy does to each element that it writes.
#pragma once

#include <cstdint>

namespace emulator {

// Types of elements that are added up.
enum class Element : std::uint8_t { kNone, kU32, kS32, kU64, kS64, kF16, kBf16, kF32, kF64 };
enum class Reduction { kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };

}  // namespace emulator
