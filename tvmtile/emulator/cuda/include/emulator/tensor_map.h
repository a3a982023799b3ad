// Where bytes lie under a swizzle, and what a tensor map says.
#pragma once

#include <cstdint>

#include "emulator/reductions.h"

namespace emulator {

// What the 128 bytes of a map say (`tensor_map.py`), decoded.
struct TensorMap {
  std::uint64_t host;        // address of the host's array
  std::uint64_t extents[5];  // elements, innermost first
  std::uint64_t strides[5];  // bytes
  std::uint32_t box[5];
  unsigned rank, element_bytes;
  unsigned swizzle;  // 0: none; 1, 2, 3: 32, 64, 128 bytes
  Element element;   // for reductions; none: no type that can be added up
};

// Where a byte of shared memory lies with a swizzle: 16 bytes move by bits of the row of 128.
inline std::uint32_t swizzled(std::uint32_t address, unsigned mode) {
  const std::uint32_t rows = mode == 3 ? 7 : mode == 2 ? 3 : mode == 1 ? 1 : 0;
  return address ^ (address >> 7 & rows) << 4;
}

}  // namespace emulator
