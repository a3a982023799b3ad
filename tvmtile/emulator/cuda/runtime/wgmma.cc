// wgmma: products of matrices in shared memory that a warpgroup starts and waits for by groups.
//
// What a product reads in memory is recorded when it is issued, as work of an agent of each warp, which has 16 rows of
// A and all of B: a warp that has waited knows of its own part only. Its registers are its own until the wait. The
// product itself is done at once or at the wait, as the launch's seed says.
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "emulator/numbers_of.h"
#include "emulator/runtime.h"
#include "descriptors.h"
#include "machine.h"
#include "register_use.h"

namespace emulator {
namespace {

constexpr unsigned kThreads = 128;
constexpr unsigned kWarps = kThreads / kWarpSize;
constexpr unsigned kRows = 64;
constexpr unsigned kRegistersOfA = 4;

// One thread's part.
struct Part {
  const Wgmma* row;
  std::uint32_t* const* d;
  const Register* a;  // its registers of A; null where A is in shared memory
  std::uint64_t a_descriptor, b_descriptor;
  bool adds;
  int scale_a, scale_b, trans_a, trans_b;
};

// Accumulators that a product in flight writes: registers of each thread, by the first thread's.
struct Sums {
  std::vector<std::vector<std::uint32_t*>> registers;  // by thread
  std::vector<std::vector<std::uint32_t>> values;      // their bits
  unsigned in_flight = 0;
  const Wgmma* row = nullptr;  // of the last one, behind so many fences
  std::uint32_t fences = 0;
};

struct Product {
  const Wgmma* row;
  Sums* sums;
  std::vector<std::uint32_t> a_addresses, b_addresses;  // of elements, in shared memory
  std::vector<double> a_values;                         // where A is in registers:
  std::vector<const std::uint32_t*> a_registers;        // by thread
  bool adds, done;
  double scale;
  std::uint32_t group;
};

struct Warpgroup {
  std::map<std::uint32_t*, Sums> sums;
  std::vector<Product> under_way;
  std::vector<std::uint32_t> groups;
};

std::vector<Warpgroup> warpgroups;
std::vector<bool> fenced;  // by thread: registers are ordered before the next product

// By a number that a block's warpgroups have to themselves, though its threads may be no multiple of theirs.
Warpgroup& group_of(const Thread& thread) {
  return warpgroups[thread.number / kThreads + thread.context.rank];
}

void start() {
  warpgroups.assign(machine->threads() / kThreads + machine->blocks(), {});
  fenced.assign(machine->threads(), false);
}

struct Registered {
  Registered() { add_block_start(start); }
} registered;

Thread& first_thread() {
  Thread& current = machine->current();
  return *(&current - current.context.index % kThreads);
}

// A descriptor of wgmma: its swizzle is in two bits, 1 for 128 bytes and 3 for 32.
MatrixLayout layout_of(const Site& site, std::uint64_t descriptor) {
  const auto kind = static_cast<unsigned>(descriptor >> 62);
  if ((descriptor >> 49 & 7) != 0) fail_unsupported(site.line, "a descriptor with a base offset");
  return matrix_layout(site, descriptor, kind == 0 ? 0 : 4 - kind);
}

Thread& first_lane(unsigned warp) { return *(&first_thread() + warp * kWarpSize); }

unsigned agent_of(unsigned warp) { return machine->agent_of(first_lane(warp), kWgmma); }

double value_at(std::uint32_t address, Number type) { return number(from_shared(address), type); }

// A sum, in 32 bits; integers wrap.
std::uint32_t bits_of(double sum, Number type) {
  if (type == Number::kS32) return static_cast<std::uint32_t>(static_cast<std::int64_t>(sum));
  const float rounded = static_cast<float>(sum);
  std::uint32_t bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  return bits;
}

constexpr int kShortBits = 13;  // of sums of float8, behind the leading bit of the largest term

// The exponent of a float8: subnormal numbers have that of the smallest normal one.
int exponent_of(double value, Number type) {
  return std::max(std::ilogb(value), type == Number::kE4m3 ? -6 : -14);
}

double cut_off(double value, int exponent) {
  const double step = std::ldexp(1.0, exponent - kShortBits);
  return std::trunc(value / step) * step;
}

// Terms are aligned at the largest sum of two operands' exponents and cut off before they are added,
// and so is the result: bit for bit what an H200 computes.
double short_sum(const Wgmma& row, const double* left, const double* right, double scale, double before) {
  int largest = before == 0 ? INT_MIN : std::ilogb(before);
  for (unsigned k = 0; k < row.k; ++k) {
    if (left[k] * right[k] == 0) continue;
    largest = std::max(largest, exponent_of(left[k], row.a_type) + exponent_of(right[k], row.b_type));
  }
  if (largest == INT_MIN) return 0;
  double total = cut_off(before, largest);
  for (unsigned k = 0; k < row.k; ++k) total += cut_off(scale * left[k] * right[k], largest);
  return total == 0 ? 0 : cut_off(total, std::ilogb(total));
}

bool adds_few_bits(const Wgmma& row) {
  return machine->launch().short_sums && (row.a_type == Number::kE4m3 || row.a_type == Number::kE5m2);
}

void compute(Product& product) {
  const Wgmma& row = *product.row;
  std::vector<double> a = product.a_values, b;
  for (std::uint32_t address : product.a_addresses) a.push_back(value_at(address, row.a_type));
  for (std::uint32_t address : product.b_addresses) b.push_back(value_at(address, row.b_type));
  Sums& sums = *product.sums;
  const unsigned registers = row.n / 2;
  const bool few_bits = adds_few_bits(row);
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    for (unsigned r = 0; r < registers; ++r) {
      const auto& place = row.sums[thread * registers + r];
      const double* left = &a[place.row * row.k];
      const double* right = &b[place.column * row.k];
      std::uint32_t& sum = sums.values[thread][r];
      const double before = product.adds ? number(&sum, row.sum_type) : 0.0;
      double total = 0;
      for (unsigned k = 0; k < row.k; ++k) total += left[k] * right[k];
      double result = before + product.scale * total;
      if (few_bits && std::isfinite(result)) {
        result = short_sum(row, left, right, product.scale, before);
      }
      sum = bits_of(result, row.sum_type);
    }
  }
  product.done = true;
}

// A of m64: each warp has 16 rows, which its lanes hold as those of mma.sync.
std::vector<double> a_of(void* const* parts, const Wgmma& row) {
  std::vector<double> a(kRows * row.k);
  const unsigned bytes = bytes_of(row.a_type), count = 16 * row.k / kWarpSize;
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    std::uint32_t words[kRegistersOfA];
    for (unsigned r = 0; r < kRegistersOfA; ++r) words[r] = static_cast<Part*>(parts[thread])->a[r].value;
    auto* const from = reinterpret_cast<const char*>(words);
    for (unsigned i = 0; i < count; ++i) {
      const auto& place = row.a[thread % kWarpSize * count + i];
      a[(thread / kWarpSize * 16 + place[0]) * row.k + place[1]] = number(from + i * bytes, row.a_type);
    }
  }
  return a;
}

void issue(const Site& site, void* const* parts, unsigned) {
  const Part& part = *static_cast<Part*>(parts[0]);
  const Wgmma& row = *part.row;
  Thread& leader = first_thread();
  Warpgroup& group = group_of(leader);
  Product product = {&row, nullptr, {}, {}, {}, {}, part.adds, false,
                     double(part.scale_a * part.scale_b), machine->clock_of(agent_of(0))};
  for (unsigned thread = 1; thread < kThreads; ++thread) {
    const Part& other = *static_cast<Part*>(parts[thread]);
    if (other.a_descriptor != part.a_descriptor || other.b_descriptor != part.b_descriptor ||
        other.adds != part.adds) {
      fail_protocol(site.line, "wgmma whose threads have different descriptors");
    }
  }
  if (part.a != nullptr) {
    product.a_values = a_of(parts, row);
    for (unsigned i = 0; i < kThreads * kRegistersOfA; ++i) {
      const Register& a = static_cast<Part*>(parts[i / kRegistersOfA])->a[i % kRegistersOfA];
      product.a_registers.push_back(a.place);
      begin_operand(site.line, *(&leader + i / kRegistersOfA), a.place);
    }
  } else {
    product.a_addresses = places(site, layout_of(site, part.a_descriptor), kRows, row.k, bytes_of(row.a_type), part.trans_a);
  }
  product.b_addresses = places(site, layout_of(site, part.b_descriptor), row.n, row.k, bytes_of(row.b_type), part.trans_b);
  for (unsigned warp = 0; warp < kWarps; ++warp) {
    const std::size_t rows = product.a_addresses.size() / kWarps;
    const Thread& thread = first_lane(warp);
    const std::uint32_t* const a = product.a_addresses.data() + warp * rows;
    note_reads(site, thread, agent_of(warp), a, rows, bytes_of(row.a_type));
    note_reads(site, thread, agent_of(warp), product.b_addresses.data(), product.b_addresses.size(),
               bytes_of(row.b_type));
  }
  Sums& sums = group.sums[part.d[0]];
  if (sums.in_flight++ == 0) {
    sums.registers.assign(kThreads, {});
    sums.values.assign(kThreads, {});
    for (unsigned thread = 0; thread < kThreads; ++thread) {
      std::uint32_t* const* d = static_cast<Part*>(parts[thread])->d;
      for (unsigned r = 0; r < row.n / 2; ++r) {
        sums.registers[thread].push_back(d[r]);
        sums.values[thread].push_back(begin_result(site.line, *(&leader + thread), d[r], kProductWork));
      }
    }
  } else if (row.n != sums.row->n || row.k != sums.row->k) {
    // Products of one shape are in order by themselves.
    if (fences_of(leader) == sums.fences) {
      fail_protocol(site.line, "wgmma of another shape than the one before it that has its accumulators, without wgmma.fence");
    }
    if (row.n != sums.row->n) fail_unsupported(site.line, "wgmma of accumulators that one of another width has in flight");
  }
  sums.row = &row;
  sums.fences = fences_of(leader);
  product.sums = &sums;
  // In order: what is done at once must not overtake.
  const bool all_done = group.under_way.empty() || group.under_way.back().done;
  if (all_done && random_below(2) == 0) compute(product);
  group.under_way.push_back(std::move(product));
}

void retire(const Site& site, Product& product) {
  if (!product.done) compute(product);
  Thread& leader = first_thread();
  for (std::size_t i = 0; i < product.a_registers.size(); ++i) {
    end_operand(*(&leader + i / kRegistersOfA), product.a_registers[i]);
  }
  Sums& sums = *product.sums;
  if (--sums.in_flight != 0) return;
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    for (std::size_t r = 0; r < sums.registers[thread].size(); ++r) {
      end_result(site.line, *(&leader + thread), sums.registers[thread][r], sums.values[thread][r]);
    }
  }
}

void wait(const Site& site, void* const* parts, unsigned) {
  const unsigned left = *static_cast<unsigned*>(parts[0]);
  Thread& leader = first_thread();
  Warpgroup& group = group_of(leader);
  if (group.groups.size() <= left) return;
  const std::uint32_t clock = group.groups[group.groups.size() - 1 - left];
  auto product = group.under_way.begin();
  for (; product != group.under_way.end() && product->group <= clock; ++product) retire(site, *product);
  group.under_way.erase(group.under_way.begin(), product);
  for (unsigned i = 0; i < kThreads; ++i) {
    for (unsigned warp = 0; warp < kWarps; ++warp) {
      const bool learns = machine->launch().waits_for_all || warp == i / kWarpSize;
      if (learns) machine->learn(*(&leader + i), agent_of(warp), clock);
    }
  }
}

void commit(const Site&, void* const*, unsigned) {
  Thread& leader = first_thread();
  std::uint32_t clock = 0;  // the agents of a warpgroup keep step
  for (unsigned warp = 0; warp < kWarps; ++warp) clock = machine->advance(agent_of(warp));
  group_of(leader).groups.push_back(clock);
}

void together(const Site& site, void* payload, Collective execute) {
  InRuntime here(site);
  machine->group_collective(site, payload, execute, kThreads);
}

// The thread's registers are ordered in front of the product.
void check_fence(int line, const Part& part) {
  const Thread& thread = machine->current();
  if (!fenced[thread.number]) fail_protocol(line, "wgmma without wgmma.fence");
  for (unsigned r = 0; r < part.row->n / 2; ++r) {
    if (is_written_since_fence(thread, part.d[r])) {
      fail_protocol(line, "wgmma of accumulators that were written behind wgmma.fence");
    }
  }
  for (unsigned r = 0; part.a != nullptr && r < kRegistersOfA; ++r) {
    if (is_written_since_fence(thread, part.a[r].place)) {
      fail_protocol(line, "wgmma of registers of A that were written behind wgmma.fence");
    }
  }
}

void multiply(int line, Part part) {
  check_fence(line, part);
  together({kWgmmaProduct, part.row->name, line}, &part, issue);
}

}  // namespace

namespace ptx {

void wgmma(int line, const Wgmma& row, std::uint32_t* const* d, std::uint64_t a, std::uint64_t b,
           bool adds, int scale_a = 1, int scale_b = 1, int trans_a = 0, int trans_b = 0) {
  multiply(line, {&row, d, nullptr, a, b, adds, scale_a, scale_b, trans_a, trans_b});
}

void wgmma(int line, const Wgmma& row, std::uint32_t* const* d, const Register* a,
           std::uint64_t b, bool adds, int scale_a = 1, int scale_b = 1, int trans_b = 0) {
  multiply(line, {&row, d, a, 0, b, adds, scale_a, scale_b, 0, trans_b});
}

void wgmma_fence() {
  const Thread& thread = machine->current();
  fenced[thread.number] = true;
  fence_registers(thread);
}

void wgmma_commit(int line) { together({kGroup, "wgmma.commit_group", line}, nullptr, commit); }

void wgmma_wait(int line, unsigned left) {
  together({kGroup, "wgmma.wait_group", line}, &left, wait);
  fenced[machine->current().number] = false;
}

}  // namespace ptx
}  // namespace emulator
