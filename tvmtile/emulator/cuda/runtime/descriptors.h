// Matrices in shared memory as descriptors of wgmma and tcgen05 say that they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "machine.h"

namespace emulator {

struct MatrixLayout {
  std::uint32_t start;            // in the window of shared memory
  std::uint32_t leading, stride;  // bytes
  unsigned mode;                  // of the swizzle, as a tensor map has it
};

// The fields that descriptors of both have, of the block's own memory.
MatrixLayout matrix_layout(const Site& site, std::uint64_t descriptor, unsigned mode);

// Where the elements lie of an operand with so many rows (M or N), one row after the other; `outer_major`:
// it runs along these in memory, not along K.
std::vector<std::uint32_t> places(const Site& site, const MatrixLayout& layout, unsigned outer, unsigned k_extent,
                                  unsigned bytes, bool outer_major);

// An agent of a thread reads elements of so many bytes, which threads may have written behind a fence only.
void note_reads(const Site& site, const Thread& thread, unsigned agent, const std::uint32_t* addresses,
                std::size_t count, unsigned bytes);

}  // namespace emulator
