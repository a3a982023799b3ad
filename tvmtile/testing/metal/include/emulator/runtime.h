// What a kernel's translation unit and the runtime agree on.
//
// Every thread of a threadgroup is a fiber. A fiber gives up the processor in two places only: at a
// barrier and at an operation of its simdgroup. The last thread that arrives does the work for all.
#pragma once

#include <cstddef>
#include <cstdint>

#include "element.h"

namespace emulator {

constexpr unsigned kSimdgroupSize = 32;

// What threads may meet at. The order is that of Statistics::operations, which Python reads.
enum class Operation : unsigned {
  kThreadgroupBarrier,
  kSimdgroupBarrier,
  kMatrixLoad,
  kMatrixStore,
  kMatrixMultiply,
  kSimdFunction,
  kTensorMultiply,
  kCount,
};

// A place in the source where threads meet. Two places are the same if name and line are.
struct Site {
  Operation operation;
  const char* name;
  int line;
};

// What a thread is told about itself; the entry glue hands it on as a kernel's attributes ask.
struct ThreadContext {
  unsigned position[3];              // in its threadgroup
  unsigned threadgroup_position[3];  // in the grid
  unsigned threads[3];               // per threadgroup
  unsigned grid[3];                  // threadgroups
  unsigned index;                    // in its threadgroup
  unsigned lane;
  unsigned simdgroup;
  unsigned simdgroups;  // in the threadgroup
};

// The running thread's index in its simdgroup.
unsigned this_lane();

// How many threads its simdgroup has: the last one of a threadgroup may be short.
unsigned this_simdgroup_size();

// Waits for the simdgroup. The last lane to arrive calls `execute` with every lane's `payload`.
using Collective = void (*)(const Site& site, void* const* payloads, unsigned lanes);
void meet_simdgroup(const Site& site, void* payload, Collective execute);

// Bits of mem_flags.
constexpr unsigned kMemoryDevice = 1;
constexpr unsigned kMemoryThreadgroup = 2;

void threadgroup_barrier(const Site& site, unsigned memory);
void simdgroup_barrier(const Site& site, unsigned memory);

// The memory of a threadgroup variable: every thread of a threadgroup gets the same.
void* threadgroup_variable(const char* name, int line, std::size_t bytes,
                           std::size_t element_bytes, std::size_t alignment);

// Ends the launch: a lane index that names no lane of the simdgroup.
[[noreturn]] void fail_invalid_lane(const Site& site, unsigned lane);

// Ends the launch: an argument that must be the same in all lanes and is not.
[[noreturn]] void fail_not_uniform(const Site& site, const char* argument, unsigned lane);

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
