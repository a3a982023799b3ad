// tcgen05: tensor memory, and products of matrices whose sums lie in it.
#pragma once

#include <cstdint>

namespace emulator {

// A shape of tcgen05.ld and .st: lane and column of each register of a repetition, by thread.
struct TensorTransfer {
  const char* name;
  unsigned columns, registers;
  bool is_split;  // the upper threads take columns that begin elsewhere
  const std::uint8_t (*places)[2];
};

// A shape of tcgen05.cp: rows of shared memory, and the lanes that get each.
struct TensorCopy {
  const char* name;
  unsigned rows, bytes, each;
  const std::uint8_t* lanes;
};

// M and N of a product, and where a block's part of its sum lies.
struct TensorShape {
  unsigned m, first, last, step;      // N
  unsigned rows, chunk, parts, apart;  // as Datapath in tensor_memory.py
};

struct TensorMma {
  const char* name;
  unsigned blocks, k, scales;
  bool transposes, negates, saturates;
  Number formats[8], sums[4], scale_types[2];  // by their number in the descriptor
  const TensorShape* shapes;
  unsigned shape_count;
};

// A descriptor of shared memory, or an address in tensor memory, which has half the bits.
struct Operand {
  template <typename T>
  explicit Operand(T value) : bits(value), in_tensor_memory(sizeof value == 4) {}
  std::uint64_t bits;
  bool in_tensor_memory;
};

// What goes to a buffer or comes from it: a product's A to the first one, B to the others.
enum CollectorUse { kFill, kUse, kLastUse, kDiscard };
struct Collector {
  Collector(unsigned number, CollectorUse what) : buffer(number), use(what) {}
  unsigned buffer;
  CollectorUse use;
};

// An address of shared memory: in its window, or a pointer's.
template <typename T>
std::uint32_t shared_address(T address) {
  if constexpr (sizeof address == 4) {
    return static_cast<std::uint32_t>(address);
  } else {
    return to_shared(reinterpret_cast<const void*>(address));
  }
}

namespace ptx {

void tensor_alloc(int line, unsigned blocks, std::uint32_t to, unsigned columns);
void tensor_dealloc(int line, unsigned blocks, std::uint32_t address, unsigned columns);
void tensor_relinquish(int line, unsigned blocks);

// Registers, by where they are, have their words from the next wait on.
void tensor_ld(int line, const TensorTransfer& shape, unsigned count, bool packs, std::uint32_t address,
               unsigned split, std::uint32_t* const* places);
void tensor_st(int line, const TensorTransfer& shape, unsigned count, bool unpacks, std::uint32_t address,
               unsigned split, const std::uint32_t* words);
void tensor_wait(int line, bool loads);
void tensor_fence_before(int line);
void tensor_fence_after(int line);

void tensor_copy(int line, const TensorCopy& shape, unsigned blocks, std::uint32_t to, std::uint64_t descriptor);
// `leaves`: lanes that keep what they have, a bit each; `scale`: the sum is divided by 2 to the power of it.
void tensor_mma(int line, const TensorMma& row, Collector keeps, std::uint32_t sum, Operand a, std::uint64_t b,
                std::uint32_t descriptor, const std::uint32_t* leaves, bool adds, unsigned scale = 0);
void tensor_mma(int line, const TensorMma& row, Collector keeps, std::uint32_t sum, Operand a, std::uint64_t b,
                std::uint32_t descriptor, bool adds, unsigned scale = 0);
void tensor_mma(int line, const TensorMma& row, Collector keeps, std::uint32_t sum, Operand a, std::uint64_t b,
                std::uint32_t descriptor, std::uint32_t a_scales, std::uint32_t b_scales, bool adds);
void tensor_mma_ws(int line, const TensorMma& row, Collector keeps, std::uint32_t sum, Operand a, std::uint64_t b,
                   std::uint32_t descriptor, bool adds, std::uint64_t zero_columns = 0);
void tensor_commit(int line, unsigned blocks, std::uint32_t mbarrier, unsigned mask = 0);

}  // namespace ptx
}  // namespace emulator
