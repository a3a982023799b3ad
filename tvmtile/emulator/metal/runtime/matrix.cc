// 8x8 matrices, of which each lane of a simdgroup holds two elements.
#include <cstring>

#include "emulator/matrix_layout.h"
#include "emulator/matrix.h"
#include "machine.h"

namespace emulator {
namespace {

constexpr unsigned kSize = 8;

// Every element of a matrix is somewhere: all lanes must be there.
void require_full_simdgroup(const Site& site, unsigned lanes) {
  if (lanes == kWarpSize) return;
  fail_invalid_lane(site, lanes);
}

Thread& lane_thread(unsigned lane) {
  Thread& current = machine->current();
  return *(&current - current.context.lane + lane);
}

// --- load and store

void check_uniform(const Site& site, void* const* payloads) {
  auto& first = *static_cast<const MatrixTransfer*>(payloads[0]);
  for (unsigned lane = 1; lane < kWarpSize; ++lane) {
    auto& other = *static_cast<const MatrixTransfer*>(payloads[lane]);
    if (other.memory != first.memory) fail_not_uniform(site, "pointer", lane);
    if (other.stride != first.stride) fail_not_uniform(site, "stride", lane);
    if (other.transpose != first.transpose) fail_not_uniform(site, "transpose flag", lane);
  }
}

// Calls `move(elements, memory)` for the lane's two elements, after checking that memory.
template <typename Move>
void transfer_lane(const Site& site, const MatrixTransfer& transfer, unsigned lane, Access access,
                   Move move) {
  const unsigned bytes = bytes_of(transfer.type);
  const std::uint64_t across = transfer.transpose ? transfer.stride * bytes : bytes;
  const std::uint64_t down = transfer.transpose ? bytes : transfer.stride * bytes;
  auto* elements = static_cast<char*>(transfer.elements);
  auto* memory = static_cast<char*>(transfer.memory) + matrix_row(lane) * down +
                 matrix_column(lane) * across;
  for (unsigned i = 0; i < 2; ++i, elements += bytes, memory += across) {
    machine->access(lane_thread(lane), reinterpret_cast<std::uintptr_t>(memory), bytes, access, 0,
                    site.line);
    move(elements, memory);
  }
}

void load(const Site& site, void* const* payloads, unsigned lanes) {
  require_full_simdgroup(site, lanes);
  check_uniform(site, payloads);
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    auto& transfer = *static_cast<const MatrixTransfer*>(payloads[lane]);
    transfer_lane(site, transfer, lane, Access::kRead, [&](char* elements, char* memory) {
      std::memcpy(elements, memory, bytes_of(transfer.type));
    });
  }
}

[[noreturn]] void fail_never_written(const Site& site, const char* matrix, unsigned lane) {
  Report& report = machine->begin_report(Failure::kUninitialized, lane_thread(lane));
  report.line = site.line;
  std::strncpy(report.operation, site.name, sizeof report.operation - 1);
  std::strncpy(report.other_operation, matrix, sizeof report.other_operation - 1);
  machine->fail();
}

void store(const Site& site, void* const* payloads, unsigned lanes) {
  require_full_simdgroup(site, lanes);
  check_uniform(site, payloads);
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    auto& transfer = *static_cast<const MatrixTransfer*>(payloads[lane]);
    transfer_lane(site, transfer, lane, Access::kWrite, [&](char* elements, char* memory) {
      if (is_poison(elements, transfer.type)) fail_never_written(site, "matrix", lane);
      std::memcpy(memory, elements, bytes_of(transfer.type));
    });
  }
}

// --- multiply

float to_float(const void* element, Element type) {
  if (type == Element::kFloat) {
    float value;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  if (type == Element::kHalf) {
    _Float16 value;
    std::memcpy(&value, element, sizeof value);
    return static_cast<float>(value);
  }
  std::uint16_t high;
  std::memcpy(&high, element, sizeof high);
  std::uint32_t bits = std::uint32_t{high} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void from_float(void* element, Element type, float value) {
  machine->note_set(element, bytes_of(type));
  if (type == Element::kFloat) {
    std::memcpy(element, &value, sizeof value);
  } else if (type == Element::kHalf) {
    auto half = static_cast<_Float16>(value);
    std::memcpy(element, &half, sizeof half);
  } else {
    std::uint16_t high = bfloat_bits(value);
    std::memcpy(element, &high, sizeof high);
  }
}

using Matrix = float[kSize][kSize];

void gather(const Site& site, void* const* payloads, const void* MatrixMultiply::*operand,
            Element type, const char* name, Matrix& matrix) {
  const unsigned bytes = bytes_of(type);
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    auto* elements =
        static_cast<const char*>(static_cast<const MatrixMultiply*>(payloads[lane])->*operand);
    float* row = &matrix[matrix_row(lane)][matrix_column(lane)];
    for (unsigned i = 0; i < 2; ++i, elements += bytes) {
      if (is_poison(elements, type)) fail_never_written(site, name, lane);
      row[i] = to_float(elements, type);
    }
  }
}

// Products and sums are float32 whatever the types, and rounded once at the end. Apple does not
// say how its units round inside; results of 16-bit accumulators may differ in the last bit.
void multiply(const Site& site, void* const* payloads, unsigned lanes) {
  require_full_simdgroup(site, lanes);
  auto& first = *static_cast<const MatrixMultiply*>(payloads[0]);
  Matrix a, b, d = {};
  gather(site, payloads, &MatrixMultiply::a, first.a_type, "a", a);
  gather(site, payloads, &MatrixMultiply::b, first.b_type, "b", b);
  if (first.c != nullptr) gather(site, payloads, &MatrixMultiply::c, first.c_type, "c", d);
  for (unsigned i = 0; i < kSize; ++i) {
    for (unsigned k = 0; k < kSize; ++k) {
      for (unsigned j = 0; j < kSize; ++j) d[i][j] += a[i][k] * b[k][j];
    }
  }
  const unsigned bytes = bytes_of(first.d_type);
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    auto* elements = static_cast<char*>(static_cast<MatrixMultiply*>(payloads[lane])->d);
    const float* row = &d[matrix_row(lane)][matrix_column(lane)];
    from_float(elements, first.d_type, row[0]);
    from_float(elements + bytes, first.d_type, row[1]);
  }
}

// --- cooperative tensors

using Block = float[kBlock][kBlock];

// Gathers a block from where it starts in every lane's elements.
void gather_block(const Site& site, const void* const* elements, Element type, unsigned block,
                  const char* name, Block& out) {
  const unsigned bytes = bytes_of(type);
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    auto* first = static_cast<const char*>(elements[lane]) + block * kBlockElements * bytes;
    for (unsigned i = 0; i < kBlockElements; ++i) {
      if (is_poison(first + i * bytes, type)) fail_never_written(site, name, lane);
      out[block_row(lane, i)][block_column(lane, i)] = to_float(first + i * bytes, type);
    }
  }
}

void multiply_tensors(const Site& site, void* const* payloads, unsigned lanes) {
  require_full_simdgroup(site, lanes);
  const void* a[kWarpSize];
  const void* b[kWarpSize];
  const void* c[kWarpSize];
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    auto& part = *static_cast<const TensorMultiply*>(payloads[lane]);
    a[lane] = part.a, b[lane] = part.b, c[lane] = part.c;
  }
  auto& first = *static_cast<const TensorMultiply*>(payloads[0]);
  const unsigned bytes = bytes_of(first.c_type);
  Block left, right, sum;
  gather_block(site, a, first.a_type, 0, "left", left);
  for (unsigned half = 0; half < 2; ++half) {
    gather_block(site, b, first.b_type, half, "right", right);
    gather_block(site, c, first.c_type, half, "destination", sum);
    for (unsigned i = 0; i < kBlock; ++i) {
      for (unsigned j = 0; j < kBlock; ++j) {
        for (unsigned k = 0; k < kBlock; ++k) {
          sum[i][j] += (first.transpose_a ? left[k][i] : left[i][k]) *
                       (first.transpose_b ? right[j][k] : right[k][j]);
        }
      }
    }
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
      auto* elements = static_cast<char*>(static_cast<TensorMultiply*>(payloads[lane])->c);
      elements += half * kBlockElements * bytes;
      for (unsigned i = 0; i < kBlockElements; ++i) {
        from_float(elements + i * bytes, first.c_type, sum[block_row(lane, i)][block_column(lane, i)]);
      }
    }
  }
}

}  // namespace

void tensor_multiply(const Site& site, TensorMultiply& operands) {
  machine->warp_collective(site, &operands, multiply_tensors);
}

void matrix_load(const Site& site, MatrixTransfer& transfer) {
  machine->warp_collective(site, &transfer, load);
}

void matrix_store(const Site& site, MatrixTransfer& transfer) {
  machine->warp_collective(site, &transfer, store);
}

void matrix_multiply(const Site& site, MatrixMultiply& operands) {
  machine->warp_collective(site, &operands, multiply);
}

}  // namespace emulator
