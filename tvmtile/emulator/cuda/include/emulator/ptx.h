// PTX instructions, as the translated `asm` statements call them. `line` is where the kernel does.
#pragma once

#include "emulator/reductions.h"

namespace emulator {

enum class Number : unsigned {
  kNone, kF16, kBf16, kTf32, kE4m3, kE5m2, kS8, kU8, kF32, kF64, kS32, kE2m3, kE3m2, kE2m1, kUe8m0, kUe4m3
};

// Bits of a row's metadata, and the lane that holds them.
struct MetadataPiece {
  std::uint8_t row, first, lane, shift, bits;
};

// A row of the table of `mma`: extents, and row and column of each element of a lane.
struct Mma {
  const char* name;
  unsigned m, n, k, stored_k;
  Number a_type, b_type, sum_type;
  unsigned a_count, b_count, sum_count;  // elements of a lane
  const std::uint8_t (*a)[2];            // by lane and element
  const std::uint8_t (*b)[2];
  const std::uint8_t (*sums)[2];
  const MetadataPiece* metadata;  // null where A is dense
  unsigned metadata_pieces;
  unsigned place_bits;
};

// Row and column of an element.
struct Place {
  std::uint8_t row, column;
};

// A row of the table of `wgmma`: extents, and row and column of each register of a thread.
struct Wgmma {
  const char* name;
  unsigned n, k;
  Number a_type, b_type, sum_type;
  const std::uint8_t (*a)[2];  // of a warp, by lane and element
  const Place* sums;           // by thread and register
};

// A register that an instruction reads in the background, or a value that is in none as far as the source says.
struct Register {
  __attribute__((always_inline)) Register(const std::uint32_t& word) : value(word), place(&word) {}
  __attribute__((always_inline)) Register(std::uint32_t&& word) : value(word), place(nullptr) {}
  __attribute__((always_inline)) operator std::uint32_t() const { return value; }
  std::uint32_t value;
  const std::uint32_t* place;
};

// mov: to or from parts of a word, in an array.
template <typename To, typename From>
void move(To&& to, From&& from) {
  static_assert(sizeof to == sizeof from, "the same bits");
  __builtin_memcpy(&to, &from, sizeof to);
}

namespace ptx {

// Of launches that may overlap: here, they follow each other.
inline void launch_order() {}

// A value to another block's memory, whose mbarrier learns of its bytes.
void async_store_bytes(int line, std::uint32_t address, const void* value, unsigned bytes, std::uint32_t mbarrier);
template <typename T>
void async_store(int line, std::uint32_t address, const T& value, std::uint32_t mbarrier) {
  async_store_bytes(line, address, &value, sizeof value, mbarrier);
}

// Row and column of the two elements of 16 bits that each lane holds of an 8x8 matrix.
using MatrixPlaces = const std::uint8_t (*)[2];

inline void cluster_arrive(int line, bool release) {
  emulator::cluster_arrive({kClusterBarrier, "barrier.cluster.arrive", line}, release);
}
inline void cluster_wait(int line) {
  emulator::cluster_wait({kClusterBarrier, "barrier.cluster.wait", line});
}
inline void bar_sync(int line, unsigned number, unsigned threads = 0) {
  if (number == 0 && threads == 0) return block_barrier({kBlockBarrier, "bar.sync", line}, kMemory);
  named_barrier({kBlockBarrier, "bar.sync", line}, number, threads, true);
}
inline void bar_arrive(int line, unsigned number, unsigned threads) {
  named_barrier({kBlockBarrier, "bar.arrive", line}, number, threads, false);
}

}  // namespace ptx
}  // namespace emulator
