// Products of matrices that lie in the registers of a warp.
#include <cmath>
#include <cstring>

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

unsigned bytes_of(Number type) {
  switch (type) {
    case Number::kF16: case Number::kBf16: return 2;
    case Number::kE4m3: case Number::kE5m2: case Number::kS8: case Number::kU8: return 1;
    case Number::kF64: return 8;
    default: return 4;
  }
}

template <typename T>
T read(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

double from_float8(unsigned bits, unsigned mantissa_bits, int bias) {
  const double sign = bits & 0x80 ? -1 : 1;
  const int exponent = static_cast<int>((bits & 0x7f) >> mantissa_bits);
  const unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
  const double fraction = static_cast<double>(mantissa) / (1u << mantissa_bits);
  if (mantissa_bits == 3 && (bits & 0x7f) == 0x7f) return NAN;
  if (mantissa_bits == 2 && exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1 + fraction, exponent - bias);
}

double number(const void* from, Number type) {
  switch (type) {
    case Number::kF16: return static_cast<double>(read<_Float16>(from));
    case Number::kBf16: {
      const std::uint32_t bits = std::uint32_t{read<std::uint16_t>(from)} << 16;
      return read<float>(&bits);
    }
    case Number::kTf32: {  // the instruction takes no notice of the lower bits
      const std::uint32_t bits = read<std::uint32_t>(from) & 0xffffe000;
      return read<float>(&bits);
    }
    case Number::kE4m3: return from_float8(read<std::uint8_t>(from), 3, 7);
    case Number::kE5m2: return from_float8(read<std::uint8_t>(from), 2, 15);
    case Number::kS8: return read<std::int8_t>(from);
    case Number::kU8: return read<std::uint8_t>(from);
    case Number::kF32: return read<float>(from);
    case Number::kF64: return read<double>(from);
    case Number::kS32: return read<std::int32_t>(from);
  }
  __builtin_unreachable();
}

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
         std::uint32_t metadata, unsigned selector) {
  if (selector != 0) fail_unsupported(line, "mma.sp with a selector other than 0");
  Part part = {&row, d, a, b, c, metadata, selector};
  warp_collective({kMatrixMultiply, row.name, line}, &part, multiply);
}

}  // namespace ptx
}  // namespace emulator
