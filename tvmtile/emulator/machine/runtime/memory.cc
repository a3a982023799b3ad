#include "memory.h"

#include <sys/mman.h>

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

namespace emulator {
namespace {

constexpr std::uint64_t kPage = 16384;

// Address space that costs memory only where it is touched.
void* map(std::size_t bytes, int protection) {
  void* mapped =
      mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return mapped == MAP_FAILED ? nullptr : mapped;
}

}  // namespace

Memory::~Memory() {
  if (base_ != 0) munmap(reinterpret_cast<void*>(base_), span_);
  for (const Mapping& shadow : shadows_) munmap(shadow.address, shadow.bytes);
}

bool Memory::reserve(unsigned global, unsigned blocks) {
  blocks_ = blocks;
  span_ = (global + 1) * kSlot;
  base_ = reinterpret_cast<std::uintptr_t>(map(span_, PROT_NONE));
  if (base_ == 0) span_ = 0;
  global_.resize(global);
  // Pointers to its elements are kept: it must not move.
  shared_.reserve(kSlot / kVariable);
  return base_ != 0;
}

Region* Memory::add_global(unsigned index, const char* name, std::uintptr_t host,
                           std::uint64_t bytes, std::uint64_t element_bytes, bool writable,
                           bool tracked) {
  Region& region = global_[index];
  region.name = name;
  region.data = base_ + (index + 1) * kSlot + kSlot / 2 + host % 16;
  region.bytes = bytes;
  region.element_bytes = element_bytes;
  region.writable = writable;
  if (bytes > kSlot / 4 || !commit(region.data, bytes)) return nullptr;
  if (tracked && (region.cells = add_cells(bytes)) == nullptr) return nullptr;
  return &region;
}

Region* Memory::add_shared(const char* name, int line, std::uint64_t bytes,
                                std::uint64_t element_bytes, std::uint64_t alignment) {
  const std::uint64_t index = shared_.size();
  if (index + blocks_ > kSlot / kVariable || bytes > kVariable / 4) return nullptr;
  Region region;
  region.name = name;
  region.space = Space::kShared;
  region.line = line;
  // One after the other in the lower bits, as where they share a window: they tell where in it a variable is.
  if (alignment >= 16) used_ = (used_ + alignment - 1) / alignment * alignment;
  const std::uintptr_t first =
      base_ + index * kVariable + kVariable / 2 + (alignment < 16 ? alignment : used_);
  if (alignment >= 16) used_ += bytes;
  region.bytes = bytes;
  region.element_bytes = element_bytes;
  for (unsigned rank = 0; rank < blocks_; ++rank) {
    region.data = of_block(first, rank);
    region.cells = add_cells(bytes);
    if (region.cells == nullptr || !commit(region.data, bytes)) return nullptr;
    shared_.push_back(region);
  }
  return &shared_[index];
}

Cell* Memory::add_cells(std::uint64_t bytes) {
  std::size_t size = (bytes + 1) * sizeof(Cell);
  void* cells = map(size, PROT_READ | PROT_WRITE);
  if (cells != nullptr) shadows_.push_back({cells, size});
  return static_cast<Cell*>(cells);
}

bool Memory::commit(std::uintptr_t address, std::uint64_t bytes) {
  std::uintptr_t first = address & ~(kPage - 1);
  std::uintptr_t end = (address + bytes + kPage) & ~(kPage - 1);
  return mprotect(reinterpret_cast<void*>(first), end - first, PROT_READ | PROT_WRITE) == 0;
}

}  // namespace emulator
