#include "descriptors.h"

#include <algorithm>
#include <cstdio>

#include "emulator/runtime.h"
#include "emulator/tensor_map.h"
#include "tensor_memory.h"

namespace emulator {
namespace {

constexpr const char* kSwizzles[] = {"none", "32 bytes", "64 bytes", "128 bytes"};

// What a bulk copy laid out in one way is not read in another: neither by another swizzle, nor as if other
// columns were in a plane of rows that are as wide as the swizzle.
void check_copied(const Site& site, const MatrixLayout& layout, unsigned panels) {
  const CopiedTile* const tile = copied_tile(layout.start);
  if (tile == nullptr) return;
  char text[128];
  if (tile->swizzle != layout.mode) {
    std::snprintf(text, sizeof text, "a matrix descriptor with a swizzle of %s, of a tile that was copied with %s",
                  kSwizzles[layout.mode], kSwizzles[tile->swizzle]);
    fail_protocol(site.line, text);
  }
  if (layout.mode != 0 && panels > 1 && layout.leading < tile->plane) {
    std::snprintf(text, sizeof text, "a matrix descriptor with a leading dimension of %u bytes, of panels of %u",
                  layout.leading, tile->plane);
    fail_protocol(site.line, text);
  }
}

// Atoms of an operand lie apart: so many along each axis, at these offsets.
void check_atoms(const Site& site, std::uint32_t bytes, unsigned along, std::uint32_t leading, unsigned across,
                 std::uint32_t stride) {
  std::vector<std::uint32_t> starts;
  for (unsigned i = 0; i < along * across; ++i) starts.push_back(i / across * leading + i % across * stride);
  std::sort(starts.begin(), starts.end());
  for (std::size_t i = 1; i < starts.size(); ++i) {
    if (starts[i] - starts[i - 1] >= bytes) continue;
    char text[128];
    std::snprintf(text, sizeof text,
                  "a matrix descriptor under which atoms of %u bytes overlap (leading dimension %u, stride %u)",
                  bytes, leading, stride);
    fail_protocol(site.line, text);
  }
}

// The address in the window that the 18 bits of a descriptor name, of the block's own memory.
std::uint32_t address_of(const Site& site, std::uint64_t descriptor) {
  const auto bits = static_cast<std::uint32_t>((descriptor & 0x3fff) << 4);
  for (const Region& region : machine->memory().shared()) {
    if (machine->memory().block_of(region.data) != machine->current().context.rank) continue;
    if (region.name == kTensorMemory) continue;
    const std::uint32_t start = to_shared(reinterpret_cast<void*>(region.data));
    const std::uint32_t offset = (bits - start) & 0x3ffff;
    if (offset < region.bytes) return start + offset;
  }
  fail_protocol(site.line, "a matrix descriptor of no shared memory");
}

std::uint32_t field(std::uint64_t descriptor, unsigned shift) {
  return static_cast<std::uint32_t>((descriptor >> shift & 0x3fff) << 4);
}

}  // namespace

MatrixLayout matrix_layout(const Site& site, std::uint64_t descriptor, unsigned mode) {
  return {address_of(site, descriptor), field(descriptor, 16), field(descriptor, 32), mode};
}

std::vector<std::uint32_t> places(const Site& site, const MatrixLayout& layout, unsigned outer, unsigned k_extent,
                                  unsigned bytes, bool outer_major) {
  const unsigned mode = layout.mode;
  const unsigned width = mode == 0 ? 16 : 16u << mode;            // bytes of a row of an atom
  const unsigned row = (outer_major ? outer : k_extent) * bytes;  // along the atom's
  const unsigned rows = outer_major ? k_extent : outer;
  const unsigned along = mode == 0 || outer_major ? (row + width - 1) / width : 1;
  // Without a swizzle, the leading dimension is K's, whatever runs in memory.
  const bool swapped = mode == 0 && outer_major;
  const std::uint32_t leading = swapped ? layout.stride : layout.leading;
  const std::uint32_t stride = swapped ? layout.leading : layout.stride;
  check_copied(site, layout, along);
  check_atoms(site, std::min(rows, 8u) * width, along, leading, (rows + 7) / 8, stride);
  std::vector<std::uint32_t> result;
  result.reserve(outer * k_extent);
  for (unsigned i = 0; i < outer; ++i) {
    for (unsigned k = 0; k < k_extent; ++k) {
      // The atom is 8 rows of `width` bytes: along K, or along the outer axis.
      const unsigned at = (outer_major ? i : k) * bytes, across = outer_major ? k : i;
      std::uint32_t offset = across % 8 * width + at % width + across / 8 * stride;
      if (mode == 0 || outer_major) {
        offset += at / width * leading;
      } else if (at >= width) {
        fail_protocol(site.line, "a descriptor whose swizzle is narrower than K");
      }
      result.push_back(swizzled(layout.start + offset, mode));
    }
  }
  return result;
}

void note_reads(const Site& site, const Thread& thread, unsigned agent, const std::uint32_t* addresses,
                std::size_t count, unsigned bytes) {
  for (std::size_t i = 0; i < count;) {
    std::size_t n = 1;
    while (i + n < count && addresses[i + n] == addresses[i] + n * bytes && n * bytes < 16) ++n;
    machine->access(thread, agent, reinterpret_cast<std::uintptr_t>(from_shared(addresses[i])), n * bytes,
                    Access::kRead, 0, site.line, true);
    i += n;
  }
}

}  // namespace emulator
