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

void wgmma(int line, const Wgmma& row, std::uint32_t* const* d, std::uint64_t a, std::uint64_t b,
           bool adds, int scale_a = 1, int scale_b = 1, int trans_a = 0, int trans_b = 0);
void wgmma(int line, const Wgmma& row, std::uint32_t* const* d, const Register* a,
           std::uint64_t b, bool adds, int scale_a = 1, int scale_b = 1, int trans_b = 0);
void wgmma_fence();
void wgmma_commit(int line);
void wgmma_wait(int line, unsigned groups);

// Of launches that may overlap: here, they follow each other.
inline void launch_order() {}

// A thread of a warp has so many registers from here on: more, for which it may have to wait, or less.
void set_registers(int line, unsigned count, bool more);

void mbarrier_init(int line, std::uint32_t address, unsigned count);
void mbarrier_inval(int line, std::uint32_t address);
// Who arrives at the mbarrier of another block publishes what it wrote, or only says that it has read; who
// waits learns of what threads `of_cluster` published.
void mbarrier_arrive(int line, std::uint32_t address, unsigned count = 1, bool publishes = false);
void mbarrier_arrive_when_copied(int line, std::uint32_t address);
void mbarrier_expect_tx(int line, std::uint32_t address, unsigned bytes, bool arrives, bool publishes = false);
void mbarrier_wait(int line, std::uint32_t address, unsigned parity, bool of_cluster = false);
// The address in the memory of another block of the cluster.
std::uint32_t mapa(int line, std::uint32_t address, unsigned rank);
void remote_store(int line, std::uint32_t address, std::uint64_t value, unsigned bytes);
void remote_copy(int line, std::uint32_t to, std::uint32_t from, unsigned bytes, std::uint32_t mbarrier);
// A value to another block's memory, whose mbarrier learns of its bytes.
void async_store_bytes(int line, std::uint32_t address, const void* value, unsigned bytes, std::uint32_t mbarrier);
template <typename T>
void async_store(int line, std::uint32_t address, const T& value, std::uint32_t mbarrier) {
  async_store_bytes(line, address, &value, sizeof value, mbarrier);
}
// What the thread wrote to shared memory may be read in the background.
void fence_proxy_async();
// The mbarriers that the thread initialised may be used in the background, and by who comes behind a barrier that
// publishes nothing else.
void fence_mbarrier_init(int line);

// Copies of a box by a tensor map: to shared memory, which completes on an mbarrier of the block or of its pair, and
// from it, in groups.
void tensor_load(int line, unsigned group, const void* map, const std::int32_t* coordinates, std::uint32_t shared,
                 std::uint32_t mbarrier);
// To the same place in all blocks of the cluster whose bit is set, each of which learns by its own mbarrier.
void tensor_load(int line, unsigned group, const void* map, const std::int32_t* coordinates, std::uint32_t shared,
                 std::uint32_t mbarrier, unsigned blocks);
void tensor_store(int line, const void* map, const std::int32_t* coordinates, std::uint32_t shared);
// Of four rows, whose numbers stand behind the column.
void tensor_gather(int line, unsigned group, const void* map, const std::int32_t* coordinates, std::uint32_t shared,
                   std::uint32_t mbarrier);
void tensor_scatter(int line, const void* map, const std::int32_t* coordinates, std::uint32_t shared);
void tensor_reduce(int line, Reduction reduction, const void* map, const std::int32_t* coordinates,
                   std::uint32_t shared);
void tensor_prefetch(int line, const void* map);
// Of bytes that follow each other.
void bulk_load(int line, std::uint32_t shared, const void* from, unsigned bytes, std::uint32_t mbarrier);
void bulk_store(int line, const void* to, std::uint32_t shared, unsigned bytes);
void bulk_reduce(int line, Reduction reduction, Element element, const void* to, std::uint32_t shared,
                 unsigned bytes);
void bulk_commit();
void bulk_wait(int line, unsigned groups, bool read);

void mma(int line, const Mma& row, void* d, const void* a, const void* b, const void* c,
         std::uint32_t metadata = 0, unsigned selector = 0);

// Row and column of the two elements of 16 bits that each lane holds of an 8x8 matrix.
using MatrixPlaces = const std::uint8_t (*)[2];

void ldmatrix(int line, MatrixPlaces places, std::uint32_t* words, unsigned count,
              std::uint32_t address);
void stmatrix(int line, MatrixPlaces places, std::uint32_t address, const std::uint32_t* words,
              unsigned count);
void movmatrix(int line, MatrixPlaces to, MatrixPlaces from, std::uint32_t& result,
               std::uint32_t word);

// Copies `from_bytes` bytes in the background, and zeros up to `bytes`.
void cp_async(int line, const char* name, std::uint32_t to, const void* from, unsigned bytes,
              unsigned from_bytes);
void cp_async_commit();
// Waits until so many of the last groups at most are under way.
void cp_async_wait(int line, unsigned groups);
void cp_async_finish(int line);
void cp_async_wait_all(int line);

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
