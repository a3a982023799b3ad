// tcgen05.mma, .cp and .commit: products and copies to tensor memory that a thread starts.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "emulator/numbers_of.h"
#include "emulator/runtime.h"
#include "descriptors.h"
#include "mbarriers.h"
#include "tensor_memory.h"

namespace emulator {
namespace {

constexpr unsigned kRowBytes = 32;  // of an operand, along K
constexpr unsigned kLanesOfPart = 32;
constexpr unsigned kParts = kTensorLanes / kLanesOfPart;

unsigned bits(std::uint64_t word, unsigned first, unsigned count) {
  return static_cast<unsigned>(word >> first & ((std::uint64_t{1} << count) - 1));
}

[[noreturn]] void refuse(int line, const TensorMma& row, const char* what, unsigned number) {
  char text[128];
  std::snprintf(text, sizeof text, "%s by an instruction descriptor whose %s is %u", row.name, what, number);
  fail_protocol(line, text);
}

// A descriptor of shared memory: its swizzle is in three bits.
MatrixLayout layout_of(const Site& site, std::uint64_t descriptor) {
  constexpr unsigned kNo = 4;
  constexpr unsigned kModes[] = {0, kNo, 3, kNo, 2, kNo, 1, kNo};
  if (bits(descriptor, 46, 3) != 1) {
    fail_protocol(site.line, "a matrix descriptor of tcgen05 whose bits 46 to 48 are not 0b001");
  }
  if (bits(descriptor, 49, 3) != 0) fail_unsupported(site.line, "a descriptor with a base offset");
  if (bits(descriptor, 52, 1) != 0) fail_unsupported(site.line, "a descriptor with an absolute leading address");
  const unsigned code = bits(descriptor, 61, 3);
  if (code == 1) fail_unsupported(site.line, "a swizzle of 128 bytes with atoms of 32");
  if (kModes[code] == kNo) fail_protocol(site.line, "a matrix descriptor with a swizzle that there is not");
  return matrix_layout(site, descriptor, kModes[code]);
}

// What an instruction's descriptor says.
struct Instruction {
  const TensorMma* row;
  const TensorShape* shape;
  unsigned m, n;
  Number a_type, b_type, sum_type, scale_type;
  bool a_negated, b_negated, a_outer, b_outer, saturates;
  unsigned a_scale, b_scale;  // the first byte of a row's scales
};

const TensorShape* shape_of(const TensorMma& row, unsigned m, unsigned n) {
  for (unsigned i = 0; i < row.shape_count; ++i) {
    const TensorShape& shape = row.shapes[i];
    const bool fits = n >= shape.first && n <= shape.last && (n - shape.first) % shape.step == 0;
    if (shape.m == m && fits) return &shape;
  }
  return nullptr;
}

void check_scale(int line, const TensorMma& row, unsigned number) {
  if (number % row.scales != 0) refuse(line, row, "scale factor's ID", number);
}

Instruction decoded(int line, const TensorMma& row, std::uint32_t word) {
  Instruction told = {};
  told.row = &row;
  if (bits(word, 2, 1) != 0) fail_unsupported(line, "tcgen05.mma of a sparse matrix");
  if (bits(word, 0, 2) != 0) refuse(line, row, "sparsity selector", bits(word, 0, 2));
  if (bits(word, 6, 1) != 0) refuse(line, row, "bit 6", 1);
  told.a_type = row.formats[bits(word, 7, 3)];
  told.b_type = row.formats[bits(word, 10, 3)];
  if (told.a_type == Number::kNone) refuse(line, row, "type of A", bits(word, 7, 3));
  if (told.b_type == Number::kNone) refuse(line, row, "type of B", bits(word, 10, 3));
  told.a_negated = bits(word, 13, 1), told.b_negated = bits(word, 14, 1);
  told.a_outer = bits(word, 15, 1), told.b_outer = bits(word, 16, 1);
  told.m = bits(word, 24, 5) << 4, told.n = bits(word, 17, 6) << 3;
  if (!row.negates && (told.a_negated || told.b_negated)) refuse(line, row, "negation", 1);
  if (!row.transposes && (told.a_outer || told.b_outer)) refuse(line, row, "transposition", 1);
  const bool is_narrow = bits_of(told.a_type) < 8 || bits_of(told.b_type) < 8;
  if (is_narrow && (told.a_outer || told.b_outer)) refuse(line, row, "transposition", 1);
  told.shape = shape_of(row, told.m, told.n);
  if (told.shape == nullptr) {
    char text[128];
    std::snprintf(text, sizeof text, "%s of %u x %u, by %u blocks", row.name, told.m, told.n, row.blocks);
    fail_protocol(line, text);
  }
  if (row.scales == 0) {
    told.sum_type = row.sums[bits(word, 4, 2)];
    if (told.sum_type == Number::kNone) refuse(line, row, "type of D", bits(word, 4, 2));
    told.saturates = bits(word, 3, 1);
    if (told.saturates && !row.saturates) refuse(line, row, "saturation", 1);
    return told;
  }
  if (bits(word, 3, 1) != 0) refuse(line, row, "bit 3", 1);
  told.sum_type = Number::kF32;
  told.scale_type = row.scale_types[bits(word, 23, 1)];
  if (told.scale_type == Number::kNone) refuse(line, row, "type of scales", bits(word, 23, 1));
  if (row.scales == 2 && told.scale_type == Number::kUe4m3) refuse(line, row, "type of scales", 0);
  told.b_scale = bits(word, 4, 2), told.a_scale = bits(word, 29, 2);
  check_scale(line, row, told.a_scale);
  check_scale(line, row, told.b_scale);
  if (bits(word, 31, 1) != 0) fail_unsupported(line, "tcgen05.mma of K = 96");
  return told;
}

// The blocks that multiply together: that of the thread, or its pair.
unsigned first_rank(unsigned group) {
  const unsigned rank = machine->current().context.rank;
  return group == 2 ? rank & ~1u : rank;
}

// The same place in another block's shared memory.
std::uint32_t in_block(std::uint32_t address, unsigned rank) {
  Memory& memory = machine->memory();
  const auto place = reinterpret_cast<std::uintptr_t>(from_shared(address));
  return to_shared(reinterpret_cast<void*>(memory.of_block(memory.of_first(place), rank)));
}

// An operand in shared memory: where its elements lie, or the bytes of its rows.
struct Shared {
  std::vector<std::uint32_t> addresses;
  Number type;
  unsigned rows, k;
  bool outer;  // elements; else bytes along K

  unsigned bytes() const { return outer ? bytes_of(type) : 1; }
};

Shared shared_operand(const Site& site, std::uint64_t descriptor, Number type, unsigned rows, unsigned k, bool outer,
                      unsigned group) {
  Shared operand = {{}, type, rows * group, k, outer};
  const unsigned bytes = operand.bytes(), extent = outer ? k : kRowBytes;
  const auto own = places(site, layout_of(site, descriptor), rows, extent, bytes, outer);
  const Thread& thread = machine->current();
  const unsigned agent = machine->agent_of(thread, kTensorPipe);
  for (unsigned i = 0; i < group; ++i) {
    for (std::uint32_t address : own) operand.addresses.push_back(in_block(address, first_rank(group) + i));
  }
  note_reads(site, thread, agent, operand.addresses.data(), operand.addresses.size(), bytes);
  return operand;
}

// Elements of a row of 32 bytes. Narrow ones that are mixed with wider ones are 16 in each 16 bytes.
void unpack(const unsigned char* row, Number type, unsigned k, double* to) {
  const unsigned width = bits_of(type);
  const bool is_packed = k * width == 8 * kRowBytes;
  for (unsigned i = 0; i < k; ++i) {
    if (width >= 8) {
      to[i] = number(row + i * width / 8, type);
      continue;
    }
    const unsigned first = is_packed ? i * width : i / 16 * 128 + i % 16 * width;
    const unsigned pair = row[first / 8] | (first / 8 + 1 < kRowBytes ? row[first / 8 + 1] << 8 : 0);
    const auto element = static_cast<unsigned char>(pair >> first % 8 & ((1u << width) - 1));
    to[i] = number(&element, type);
  }
}

std::vector<double> values_of(const Shared& operand) {
  std::vector<double> values(operand.rows * operand.k);
  if (operand.outer) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = number(from_shared(operand.addresses[i]), operand.type);
    return values;
  }
  for (unsigned i = 0; i < operand.rows; ++i) {
    unsigned char row[kRowBytes];
    for (unsigned b = 0; b < kRowBytes; ++b) {
      row[b] = *static_cast<unsigned char*>(from_shared(operand.addresses[i * kRowBytes + b]));
    }
    unpack(row, operand.type, operand.k, &values[i * operand.k]);
  }
  return values;
}

// Lanes of a half of the datapath begin where the address says.
unsigned base_lane(int line, const TensorShape& shape, std::uint32_t address) {
  const unsigned lane = lane_of(address);
  if (lane != 0 && !(shape.chunk == kLanesOfPart / 2 && lane == kLanesOfPart / 2)) {
    fail_protocol(line, "tcgen05.mma of a matrix in tensor memory that does not begin at lane 0, or 16 of M = 64");
  }
  return lane;
}

unsigned lane_of_row(const TensorShape& shape, unsigned row) {
  return row / shape.chunk * kLanesOfPart + row % shape.chunk;
}

// A in tensor memory: each lane has the row of its sum.
struct InTensorMemory {
  std::vector<const std::uint32_t*> rows;
};

InTensorMemory tensor_operand(int line, const Instruction& told, std::uint32_t address) {
  const TensorShape& shape = *told.shape;
  if (shape.parts != 1) fail_unsupported(line, "A in tensor memory where columns of the sum are apart");
  if (told.a_outer) refuse(line, *told.row, "transposition of A in tensor memory", 1);
  if (bits_of(told.a_type) * told.row->k != 8 * kRowBytes) {
    fail_unsupported(line, "narrow floats mixed with wider ones in tensor memory");
  }
  InTensorMemory operand;
  PipeAccess pipe(line);
  const unsigned base = base_lane(line, shape, address), group = told.row->blocks;
  for (unsigned i = 0; i < told.m; ++i) {
    const unsigned rank = first_rank(group) + i / shape.rows;
    const unsigned lane = base + lane_of_row(shape, i % shape.rows);
    pipe.note(rank, lane, column_of(address), kRowBytes / 4, Access::kRead);
    operand.rows.push_back(tensor_word(line, rank, lane, column_of(address)));
  }
  return operand;
}

std::vector<double> values_of(const InTensorMemory& operand, Number type, unsigned k) {
  std::vector<double> values(operand.rows.size() * k);
  for (std::size_t i = 0; i < operand.rows.size(); ++i) {
    unpack(reinterpret_cast<const unsigned char*>(operand.rows[i]), type, k, &values[i * k]);
  }
  return values;
}

// Scales of rows, each with a byte or more along K.
struct Scales {
  std::vector<std::vector<const unsigned char*>> copies;  // by row: where its first byte lies
  Number type;
  unsigned count, k;
};

// Where the scales of a row lie: the parts of the lanes have all rows, or two of them each half.
struct ScalePlace {
  unsigned first_part, parts, row;
};

ScalePlace scale_place(unsigned row, unsigned rows, bool is_halved) {
  if (!is_halved) return {0, kParts, row};
  return {row / (rows / 2) * 2, 2, row % (rows / 2)};
}

// Of A each block has those of its rows, of B those of all.
Scales scales_of(int line, const Instruction& told, std::uint32_t address, unsigned byte, unsigned rows, bool of_a) {
  const unsigned group = told.row->blocks, of_block = of_a ? rows / group : rows;
  const bool is_halved = !of_a && told.shape->parts == 2;
  Scales scales = {{}, told.scale_type, told.row->scales, told.row->k};
  scales.copies.resize(rows);
  if (lane_of(address) != 0) fail_protocol(line, "scale factors that do not begin at lane 0");
  PipeAccess pipe(line);
  for (unsigned block = 0; block < group; ++block) {
    const unsigned rank = first_rank(group) + block;
    for (unsigned i = 0; i < of_block; ++i) {
      const ScalePlace place = scale_place(i, of_block, is_halved);
      const unsigned column = column_of(address) + place.row / kLanesOfPart;
      for (unsigned part = place.first_part; part < place.first_part + place.parts; ++part) {
        const unsigned lane = part * kLanesOfPart + place.row % kLanesOfPart;
        pipe.note(rank, lane, column, 1, Access::kRead);
        const auto* word = reinterpret_cast<const unsigned char*>(tensor_word(line, rank, lane, column));
        scales.copies[of_a ? block * of_block + i : i].push_back(word + byte);
      }
    }
  }
  return scales;
}

// Multiplies rows of an operand by their scales, which must be the same in all places.
void scale(int line, const Scales& scales, std::vector<double>& values) {
  for (std::size_t i = 0; i < scales.copies.size(); ++i) {
    const unsigned char* const first = scales.copies[i].front();
    for (const unsigned char* other : scales.copies[i]) {
      if (std::memcmp(first, other, scales.count) != 0) {
        fail_protocol(line, "scale factors that are not the same in all parts of tensor memory's lanes");
      }
    }
    for (unsigned k = 0; k < scales.k; ++k) {
      values[i * scales.k + k] *= number(first + k * scales.count / scales.k, scales.type);
    }
  }
}

// What a buffer of a block, or of a pair, keeps of a matrix that products read.
struct Kept {
  // Where the matrix lies and how it is read: as it is said of another that is the same.
  std::vector<std::uint64_t> said;  // empty: nothing
  std::vector<double> values;
};
std::map<std::pair<unsigned, unsigned>, Kept> kept;  // by rank and number

struct Registered {
  Registered() {
    add_block_start([] { kept.clear(); });
  }
} registered;

struct Product {
  Instruction told;
  Collector keeps;
  Kept* kept;
  int line;
  bool a_in_tensor_memory;
  Shared a, b;
  InTensorMemory tensor_a;
  Scales a_scales, b_scales;
  std::vector<std::uint32_t*> rows;  // of the sum, by row and part of its columns
  std::vector<bool> leaves;          // lanes of the blocks that keep what they have
  std::vector<unsigned> lanes;       // by row and part, among those of all blocks
  bool adds;
  double before;  // what the sum is multiplied by first
};

void note_sum(int line, Product& product, std::uint32_t address) {
  const Instruction& told = product.told;
  const TensorShape& shape = *told.shape;
  const unsigned base = base_lane(line, shape, address), width = told.n / shape.parts;
  PipeAccess pipe(line);
  for (unsigned i = 0; i < told.m; ++i) {
    for (unsigned part = 0; part < shape.parts; ++part) {
      const unsigned block = i / shape.rows, rank = first_rank(told.row->blocks) + block;
      const unsigned lane = base + lane_of_row(shape, i % shape.rows) + part * shape.apart;
      const unsigned number = block * kTensorLanes + lane;
      product.lanes.push_back(number);
      product.rows.push_back(tensor_word(line, rank, lane, column_of(address)));
      if (!product.leaves.empty() && product.leaves[number]) continue;
      if (product.adds) pipe.note(rank, lane, column_of(address), width, Access::kRead);
      pipe.note(rank, lane, column_of(address), width, Access::kWrite);
    }
  }
}

// A product that uses what is kept names it again.
void note_kept(int line, Product& product, std::vector<std::uint64_t> said) {
  Kept& kept = *product.kept;
  const CollectorUse use = product.keeps.use;
  if (use == kUse || use == kLastUse) {
    if (kept.said.empty()) fail_protocol(line, "tcgen05.mma with what a collector has, which nothing has filled");
    if (kept.said != said) fail_protocol(line, "tcgen05.mma with what a collector has, of another matrix");
  }
  if (use == kFill) kept.said = std::move(said);
  if (use == kLastUse || use == kDiscard) kept.said.clear();
}

// In the order of products: what is kept does not change with what it was read from.
void keep(const Product& product, const std::vector<double>& values) {
  Kept& kept = *product.kept;
  const CollectorUse use = product.keeps.use;
  if (use == kFill) kept.values = values;
  if (use != kUse && use != kLastUse) return;
  if (kept.values.size() != values.size()) return;  // that of another thread, which is not there yet
  if (std::memcmp(kept.values.data(), values.data(), values.size() * sizeof(double)) != 0) {
    fail_protocol(product.line, "tcgen05.mma with what a collector has, of a matrix that has changed since");
  }
}

// A sum in a word; integers wrap, or saturate.
std::uint32_t word_of(double sum, const Instruction& told) {
  std::uint32_t word = 0;
  if (told.sum_type == Number::kS32) {
    if (told.saturates) sum = std::clamp(sum, -2147483648.0, 2147483647.0);
    return static_cast<std::uint32_t>(static_cast<std::int64_t>(sum));
  }
  if (told.sum_type == Number::kF16) {
    const auto half = static_cast<_Float16>(sum);
    std::memcpy(&word, &half, sizeof half);
    return word;
  }
  const auto rounded = static_cast<float>(sum);
  std::memcpy(&word, &rounded, sizeof word);
  return word;
}

void compute(const Product& product) {
  const Instruction& told = product.told;
  const unsigned k = told.row->k, parts = told.shape->parts, width = told.n / parts;
  std::vector<double> a = product.a_in_tensor_memory ? values_of(product.tensor_a, told.a_type, k)
                                                     : values_of(product.a);
  std::vector<double> b = values_of(product.b);
  keep(product, product.keeps.buffer == 0 ? a : b);
  if (told.row->scales != 0) {
    scale(product.line, product.a_scales, a);
    scale(product.line, product.b_scales, b);
  }
  const double sign = told.a_negated == told.b_negated ? 1 : -1;
  for (std::size_t i = 0; i < product.rows.size(); ++i) {
    if (!product.leaves.empty() && product.leaves[product.lanes[i]]) continue;
    const double* const left = &a[i / parts * k];
    for (unsigned column = 0; column < width; ++column) {
      const double* const right = &b[(i % parts * width + column) * k];
      double total = 0;
      for (unsigned e = 0; e < k; ++e) total += left[e] * right[e];
      std::uint32_t& word = product.rows[i][column];
      const double before = product.adds ? number(&word, told.sum_type) * product.before : 0.0;
      word = word_of(before + sign * total, told);
    }
  }
}

struct Told {
  Collector keeps;
  std::uint32_t sum, descriptor;
  Operand a;
  std::uint64_t b;
  const std::uint32_t* leaves;
  bool adds;
  unsigned scale;
  std::uint32_t a_scales, b_scales;
};

void multiply(int line, const TensorMma& row, const Told& what) {
  const Site site = {kTensorProduct, row.name, line};
  InRuntime here(site);
  check_group(line, row.blocks);
  Product product = {decoded(line, row, what.descriptor), what.keeps};
  const Instruction& told = product.told;
  product.line = line;
  product.adds = what.adds;
  product.before = std::ldexp(1.0, -static_cast<int>(what.scale));
  for (unsigned i = 0; what.leaves != nullptr && i < row.blocks * kTensorLanes; ++i) {
    product.leaves.push_back(what.leaves[i / 32] >> i % 32 & 1);
  }
  product.a_in_tensor_memory = what.a.in_tensor_memory;
  if (what.a.in_tensor_memory) {
    product.tensor_a = tensor_operand(line, told, static_cast<std::uint32_t>(what.a.bits));
  } else {
    product.a = shared_operand(site, what.a.bits, told.a_type, told.m / row.blocks, row.k, told.a_outer, row.blocks);
  }
  product.b = shared_operand(site, what.b, told.b_type, told.n / row.blocks, row.k, told.b_outer, row.blocks);
  if (row.scales != 0) {
    product.a_scales = scales_of(line, told, what.a_scales, told.a_scale, told.m, true);
    product.b_scales = scales_of(line, told, what.b_scales, told.b_scale, told.n, false);
  }
  product.kept = &kept[{first_rank(row.blocks), what.keeps.buffer}];
  const bool of_a = what.keeps.buffer == 0;
  note_kept(line, product, {of_a ? what.a.bits : what.b, of_a && what.a.in_tensor_memory, of_a ? told.m : told.n, row.k,
                            static_cast<std::uint64_t>(of_a ? told.a_type : told.b_type),
                            of_a ? told.a_outer : told.b_outer});
  note_sum(line, product, what.sum);
  machine->count(kTensorProduct);
  add_to_pipe([product = std::move(product)] { compute(product); });
}

// Rows of 16 or 32 bytes to the lanes that get them.
struct Moved {
  std::vector<std::uint32_t> from;  // by byte
  std::vector<unsigned char*> to;
};

void copy_of_block(const Site& site, const TensorCopy& shape, const std::vector<std::uint32_t>& from, unsigned rank,
                   std::uint32_t to, Moved& moved) {
  PipeAccess pipe(site.line);
  for (unsigned row = 0; row < shape.rows; ++row) {
    for (unsigned i = 0; i < shape.each; ++i) {
      const unsigned lane = lane_of(to) + shape.lanes[row * shape.each + i];
      tensor_word(site.line, rank, lane, column_of(to));
      pipe.note(rank, lane, column_of(to), shape.bytes / 4, Access::kWrite);
      auto* const words = reinterpret_cast<unsigned char*>(tensor_word(site.line, rank, lane, column_of(to)));
      for (unsigned b = 0; b < shape.bytes; ++b) {
        moved.from.push_back(in_block(from[row * shape.bytes + b], rank));
        moved.to.push_back(words + b);
      }
    }
  }
}

}  // namespace

namespace ptx {

void tensor_copy(int line, const TensorCopy& shape, unsigned group, std::uint32_t to, std::uint64_t descriptor) {
  const Site site = {kTensorMove, shape.name, line};
  InRuntime here(site);
  check_group(line, group);
  const auto from = places(site, layout_of(site, descriptor), shape.rows, shape.bytes, 1, false);
  const Thread& thread = machine->current();
  const unsigned agent = machine->agent_of(thread, kTensorPipe);
  Moved moved;
  for (unsigned rank = first_rank(group); rank < first_rank(group) + group; ++rank) {
    std::vector<std::uint32_t> own;
    for (std::uint32_t address : from) own.push_back(in_block(address, rank));
    note_reads(site, thread, agent, own.data(), own.size(), 1);
    copy_of_block(site, shape, from, rank, to, moved);
  }
  machine->count(kTensorMove);
  add_to_pipe([moved = std::move(moved)] {
    for (std::size_t i = 0; i < moved.from.size(); ++i) {
      *moved.to[i] = *static_cast<unsigned char*>(from_shared(moved.from[i]));
    }
  });
}

// `leaves`: lanes that keep what they have, a bit each; `scale`: the sum is divided by 2 to the power of it.
void tensor_mma(int line, const TensorMma& row, Collector keeps, std::uint32_t sum, Operand a, std::uint64_t b,
                std::uint32_t descriptor, const std::uint32_t* leaves, bool adds, unsigned scale = 0) {
  multiply(line, row, {keeps, sum, descriptor, a, b, leaves, adds, scale, 0, 0});
}

void tensor_mma(int line, const TensorMma& row, Collector keeps, std::uint32_t sum, Operand a, std::uint64_t b,
                std::uint32_t descriptor, bool adds, unsigned scale = 0) {
  multiply(line, row, {keeps, sum, descriptor, a, b, nullptr, adds, scale, 0, 0});
}

void tensor_mma(int line, const TensorMma& row, Collector keeps, std::uint32_t sum, Operand a, std::uint64_t b,
                std::uint32_t descriptor, std::uint32_t a_scales, std::uint32_t b_scales, bool adds) {
  multiply(line, row, {keeps, sum, descriptor, a, b, nullptr, adds, 0, a_scales, b_scales});
}

void tensor_mma_ws(int line, const TensorMma& row, Collector keeps, std::uint32_t sum, Operand a, std::uint64_t b,
                   std::uint32_t descriptor, bool adds, std::uint64_t zero_columns = 0) {
  if (zero_columns != 0) fail_unsupported(line, "tcgen05.mma.ws with columns of zeros");
  if (descriptor >> 30 != 0) fail_unsupported(line, "tcgen05.mma.ws with a shift of B");
  multiply(line, row, {keeps, sum, descriptor, a, b, nullptr, adds, 0, 0, 0});
}

// Arrives where all that the thread's pipe has been given is done.
void tensor_commit(int line, unsigned group, std::uint32_t mbarrier, unsigned mask = 0) {
  InRuntime here({kTensorMove, "tcgen05.commit", line});
  check_group(line, group);
  const Thread& thread = machine->current();
  const Passage brought = machine->capture(thread, machine->agent_of(thread, kTensorPipe));
  for (unsigned rank = 0; rank < machine->blocks(); ++rank) {
    if (mask != 0 && !(mask >> rank & 1)) continue;
    const std::uint32_t address = mask == 0 ? mbarrier : in_block(mbarrier, rank);
    check_mbarrier(line, address);
    add_to_pipe([line, address, brought] { arrive_later(line, address, brought); });
    if (mask == 0) return;
  }
}

}  // namespace ptx
}  // namespace emulator
