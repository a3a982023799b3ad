// Products of matrices that lie in the registers of a warp.
#include <cmath>
#include <cstring>

#include "emulator/numbers_of.h"
#include "emulator/runtime.h"

namespace emulator {
namespace {

constexpr unsigned kExtent = 64;  // of a matrix at most

struct Part {
  const Mma* row;
  void* d;
  const void* a;
  const void* b;
  const void* c;
  std::uint32_t metadata;
  unsigned selector;
};

using Matrix = double[kExtent][kExtent];

const Part& part_of(void* const* parts, unsigned lane) {
  return *static_cast<const Part*>(parts[lane]);
}

void gather(void* const* parts, const void* Part::*operand, Number type, unsigned count,
            const std::uint8_t (*places)[2], Matrix& matrix) {
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    auto* from = static_cast<const char*>(part_of(parts, lane).*operand);
    for (unsigned i = 0; i < count; ++i, ++places, from += bytes_of(type)) {
      matrix[(*places)[0]][(*places)[1]] = number(from, type);
    }
  }
}

// Puts the stored elements of a row where its metadata says that they belong.
void expand(const Site& site, void* const* parts, const Mma& row, Matrix& a) {
  std::uint64_t bits[kExtent] = {};
  for (unsigned i = 0; i < row.metadata_pieces; ++i) {
    const MetadataPiece& piece = row.metadata[i];
    const std::uint64_t word = part_of(parts, piece.lane).metadata >> piece.shift;
    bits[piece.row] |= (word & ((std::uint64_t{1} << piece.bits) - 1)) << piece.first;
  }
  for (unsigned i = 0; i < row.m; ++i) {
    double stored[kExtent];
    std::memcpy(stored, a[i], sizeof stored);
    std::fill(a[i], a[i] + row.k, 0.0);
    for (unsigned e = 0; e < row.stored_k; ++e) {
      const auto place = static_cast<unsigned>(bits[i] >> e * row.place_bits);
      if (row.place_bits == 4) {
        // One of two elements, each of which is two halves.
        const unsigned halves = place & 0xf;
        if (halves != 0x4 && halves != 0xe) fail_unsupported(site.line, "metadata of no place");
        a[i][2 * e + (halves == 0xe)] = stored[e];
        continue;
      }
      const bool second = e % 2 == 1;
      const unsigned before = static_cast<unsigned>(bits[i] >> (e - second) * 2) & 3;
      if (second && (place & 3) <= before) {
        fail_unsupported(site.line, "metadata whose places do not ascend");
      }
      a[i][e / 2 * 4 + (place & 3)] = stored[e];
    }
  }
}

void store(void* to, Number type, double sum) {
  if (type == Number::kF32) {
    const auto value = static_cast<float>(sum);
    std::memcpy(to, &value, sizeof value);
  } else if (type == Number::kF16) {
    const auto value = static_cast<_Float16>(sum);
    std::memcpy(to, &value, sizeof value);
  } else if (type == Number::kF64) {
    std::memcpy(to, &sum, sizeof sum);
  } else {
    const auto value = static_cast<std::uint32_t>(static_cast<std::int64_t>(sum));  // wraps
    std::memcpy(to, &value, sizeof value);
  }
}

// Products are exact and sums those of doubles, rounded once at the end: hardware adds with fewer bits,
// in an order that is not documented, so its float32 sums may differ in the last bits where they are
// not exact. float64 is fused, in order.
void multiply(const Site& site, void* const* parts, unsigned lanes) {
  if (lanes != kWarpSize) fail_invalid_lane(site, lanes);
  const Mma& row = *part_of(parts, 0).row;
  static Matrix a, b, sums;
  gather(parts, &Part::a, row.a_type, row.a_count, row.a, a);
  gather(parts, &Part::b, row.b_type, row.b_count, row.b, b);
  gather(parts, &Part::c, row.sum_type, row.sum_count, row.sums, sums);
  if (row.metadata != nullptr) expand(site, parts, row, a);
  const bool fused = row.sum_type == Number::kF64;
  for (unsigned i = 0; i < row.m; ++i) {
    double total[kExtent] = {};
    for (unsigned k = 0; k < row.k; ++k) {
      for (unsigned j = 0; j < row.n; ++j) {
        if (fused) {
          sums[i][j] = std::fma(a[i][k], b[k][j], sums[i][j]);
        } else {
          total[j] += a[i][k] * b[k][j];
        }
      }
    }
    for (unsigned j = 0; j < row.n; ++j) sums[i][j] += total[j];
  }
  const std::uint8_t (*place)[2] = row.sums;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    auto* to = static_cast<char*>(part_of(parts, lane).d);
    for (unsigned i = 0; i < row.sum_count; ++i, ++place, to += bytes_of(row.sum_type)) {
      store(to, row.sum_type, sums[(*place)[0]][(*place)[1]]);
    }
  }
}

}  // namespace

namespace ptx {

void mma(int line, const Mma& row, void* d, const void* a, const void* b, const void* c,
         std::uint32_t metadata = 0, unsigned selector = 0) {
  if (selector != 0) fail_unsupported(line, "mma.sp with a selector other than 0");
  Part part = {&row, d, a, b, c, metadata, selector};
  warp_collective({kMatrixMultiply, row.name, line}, &part, multiply);
}

}  // namespace ptx
}  // namespace emulator
