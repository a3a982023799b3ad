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
}  // namespace emulator
