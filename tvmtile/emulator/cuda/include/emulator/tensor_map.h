// A tensor map as the emulator encodes it, in the place of the driver's 128 bytes; `tensor_map.py` fills it.
#pragma once

#include <cstdint>

namespace emulator {

struct TensorMap {
  static constexpr std::uint64_t kMagic = 0x74766d74696c6531;
  std::uint64_t magic;
  std::uint64_t host;        // address of the host's array
  std::uint64_t extents[5];  // elements, innermost first
  std::uint64_t strides[5];  // bytes
  std::uint32_t box[5];
  std::uint8_t rank;
  std::uint8_t element_bytes;
  std::uint8_t swizzle;  // 0: none; 1, 2, 3: 32, 64, 128 bytes
  std::uint8_t element;  // an Element, for reductions; 0: no type that can be added up
};
static_assert(sizeof(TensorMap) <= 128, "it lies in a CUtensorMap");

// Where a byte of shared memory lies with a swizzle: 16 bytes move by bits of the row of 128.
inline std::uint32_t swizzled(std::uint32_t address, unsigned mode) {
  const std::uint32_t rows = mode == 3 ? 7 : mode == 2 ? 3 : mode == 1 ? 1 : 0;
  return address ^ (address >> 7 & rows) << 4;
}

}  // namespace emulator
