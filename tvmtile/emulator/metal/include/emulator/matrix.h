// What warps of a Metal kernel do together, beside barriers: 8x8 matrices and cooperative tensors.
#pragma once

#include <cstdint>

#include "element.h"
#include "machine/runtime.h"

namespace emulator {

// The order is that of `abi.Statistics.operations`, which metal/module.py reads.
constexpr Operation kMatrixLoad = kFirstCollective;
constexpr Operation kMatrixStore = kFirstCollective + 1;
constexpr Operation kMatrixMultiply = kFirstCollective + 2;
constexpr Operation kSimdFunction = kFirstCollective + 3;
constexpr Operation kTensorMultiply = kFirstCollective + 4;

// One lane's part in loading or storing an 8x8 matrix. `memory` is the address of the origin.
struct MatrixTransfer {
  void* elements;  // the lane's two
  void* memory;
  std::uint64_t stride;  // elements from one row in memory to the next
  Element type;
  bool transpose;
};

// One lane's part in d = a * b + c; c may be null.
struct MatrixMultiply {
  void* d;
  const void* a;
  const void* b;
  const void* c;
  Element d_type, a_type, b_type, c_type;
};

// One lane's part in c += a * b of cooperative tensors: a is [16, 16], b [16, 32] and c [16, 32].
struct TensorMultiply {
  void* c;  // the lane's 16 elements
  const void* a;  // 8
  const void* b;  // 16
  Element c_type, a_type, b_type;
  bool transpose_a, transpose_b;  // a, b hold the transposed factor
};

void tensor_multiply(const Site& site, TensorMultiply& multiply);
void matrix_load(const Site& site, MatrixTransfer& transfer);
void matrix_store(const Site& site, MatrixTransfer& transfer);
void matrix_multiply(const Site& site, MatrixMultiply& multiply);

}  // namespace emulator
