// Where the elements of an 8x8 simdgroup matrix are: two neighbours of a row in each lane.
//
// Apple does not document the map. It is the one that MLX's steel GEMM is built on
// (mlx/backend/metal/kernels/steel/gemm/mma.h, BaseMMAFrag<T, 8, 8>::get_coord), which runs on every
// Apple GPU since M1. This is the only place of the emulator that knows it.
#pragma once

namespace emulator {

constexpr unsigned matrix_row(unsigned lane) { return ((lane / 4) & 4) + (lane / 2) % 4; }

// The column of the lane's first element; the second is to the right of it.
constexpr unsigned matrix_column(unsigned lane) { return ((lane / 4) & 2) * 2 + (lane % 2) * 2; }

}  // namespace emulator
