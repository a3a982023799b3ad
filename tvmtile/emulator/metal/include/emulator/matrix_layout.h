// Where the elements of an 8x8 simdgroup matrix are: two neighbours of a row in each lane.
//
// Apple does not document the map. It is the one that MLX's steel GEMM is built on
// (mlx/backend/metal/kernels/steel/gemm/mma.h, BaseMMAFrag<T, 8, 8>::get_coord), which runs on every
// Apple GPU since M1. This file is the only place of the emulator that knows such maps.
#pragma once

namespace emulator {

constexpr unsigned matrix_row(unsigned lane) { return ((lane / 4) & 4) + (lane / 2) % 4; }

// The column of the lane's first element; the second is to the right of it.
constexpr unsigned matrix_column(unsigned lane) { return ((lane / 4) & 2) * 2 + (lane % 2) * 2; }

// Where the elements of a cooperative tensor of `matmul2d` are. It consists of blocks of 16x16, side by
// side where it has 32 columns and one below the other where it has 32 rows; a lane holds 8 elements of
// each. Apple lets a kernel ask for the map; MLX relies on this one on GPUs from M5 on
// (mlx/backend/metal/kernels/steel/gemm/nax.h, BaseNAXFrag::get_coord).

constexpr unsigned kBlock = 16;
constexpr unsigned kBlockElements = 8;  // a lane's

constexpr unsigned block_row(unsigned lane, unsigned element) {
  return ((lane / 4) & 4) + (lane / 2) % 4 + element / 4 * 8;
}

constexpr unsigned block_column(unsigned lane, unsigned element) {
  return ((lane / 4) & 2) * 4 + (lane % 2) * 4 + element % 4;
}

}  // namespace emulator
