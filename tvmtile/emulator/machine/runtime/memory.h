// The memory that kernels may touch, and what every access is checked against.
//
// Buffers lie 4 GiB apart in reserved address space, so that the upper half of an address names the
// buffer: an access that misses its buffer by less than 2 GiB, to either side, is known to be out of
// bounds and whose it was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shadow.h"

namespace emulator {

enum class Space : int { kGlobal, kShared };
constexpr unsigned kSpaces = 2;
// Beside the order of accesses to each space, there is one of what threads did to shared memory before a
// fence, so that work in the background may go on with it; one of what they have come past, whatever was
// written; and, of clusters, one that leaves out what threads wrote: who tells another block, without
// publishing it, that a tile is free says that it has been filled and read.
constexpr unsigned kOrders = 5;
constexpr unsigned kFenced = 2;
constexpr unsigned kDone = 3;
constexpr unsigned kFree = 4;

struct Region {
  const char* name = "";
  Space space = Space::kGlobal;
  int line = 0;  // where a shared variable is declared
  std::uintptr_t data = 0;
  std::uint64_t bytes = 0;
  std::uint64_t element_bytes = 1;
  bool writable = true;
  Cell* cells = nullptr;  // one a byte; none where nothing can race
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t reads = 0;  // instructions of threads; those of matrices are counted as such
  std::uint64_t writes = 0;
};

class Memory {
 public:
  ~Memory();

  // Reserves address space for `global` buffers and for the variables of so many blocks.
  bool reserve(unsigned global, unsigned blocks);

  // Places buffer number `index`. Its address keeps `host`'s remainder modulo 16, so that a view
  // into an array is aligned as the view is.
  Region* add_global(unsigned index, const char* name, std::uintptr_t host, std::uint64_t bytes,
                     std::uint64_t element_bytes, bool writable, bool tracked);

  // Places a variable at a multiple of `alignment`, which is none of a wider vector's. Each block has
  // one; that of the first is returned.
  Region* add_shared(const char* name, int line, std::uint64_t bytes,
                          std::uint64_t element_bytes, std::uint64_t alignment);

  // Where another block of the cluster has what the first has at an address.
  std::uintptr_t of_block(std::uintptr_t first, unsigned rank) const { return first + rank * kVariable; }
  std::uintptr_t of_first(std::uintptr_t address) const {
    return address - block_of(address) * kVariable;
  }
  // Which block has the memory at an address.
  unsigned block_of(std::uintptr_t address) const {
    return static_cast<unsigned>((address - base_) / kVariable % blocks_);
  }

  // Shared variables lie in the 4 GiB from here on.
  std::uintptr_t shared_base() const { return base_; }

  bool contains(std::uintptr_t address) const { return address - base_ < span_; }
  bool is_shared(std::uintptr_t address) const { return contains(address) && address - base_ < kSlot; }

  // The region that an address in reserved space belongs to, or is nearest to.
  Region* find(std::uintptr_t address) {
    std::uint64_t offset = address - base_;
    if (offset >= kSlot) return &global_[(offset >> kSlotBits) - 1];
    std::uint64_t index = offset >> kVariableBits;
    if (index >= shared_.size()) index = shared_.size() - 1;
    return shared_.empty() ? nullptr : &shared_[index];
  }

  std::vector<Region>& shared() { return shared_; }
  std::vector<Region>& global() { return global_; }

 private:
  static constexpr unsigned kSlotBits = 32;
  static constexpr std::uint64_t kSlot = std::uint64_t{1} << kSlotBits;
  // Shared variables, of 32 KiB at most together, share the first slot.
  static constexpr unsigned kVariableBits = 24;
  static constexpr std::uint64_t kVariable = std::uint64_t{1} << kVariableBits;

  Cell* add_cells(std::uint64_t bytes);
  bool commit(std::uintptr_t address, std::uint64_t bytes);

  std::uintptr_t base_ = 0;
  unsigned blocks_ = 1;
  std::uint64_t used_ = 0;
  std::uint64_t span_ = 0;
  std::vector<Region> global_;
  std::vector<Region> shared_;
  struct Mapping {
    void* address;
    std::size_t bytes;
  };
  std::vector<Mapping> shadows_;
};

}  // namespace emulator
