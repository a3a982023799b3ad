// 8x8 matrices of 16 bits between shared memory and the registers of a warp.
#include <cstring>

#include "emulator/runtime.h"
#include "machine.h"

namespace emulator {
namespace {

constexpr unsigned kRows = 8;
constexpr unsigned kRowBytes = 16;

// A lane's part: its registers, and the address of a row of a matrix.
struct Transfer {
  ptx::MatrixPlaces places;
  std::uint32_t* words;
  unsigned count;
  std::uint32_t address;
};

using Matrix = std::uint16_t[kRows][kRows];

Thread& lane_thread(unsigned lane) {
  Thread& current = machine->current();
  return *(&current - current.context.lane + lane);
}

// The row of a matrix in memory that a lane gives the address of.
char* row_of(const Site& site, void* const* parts, unsigned lane, Access access) {
  auto* row = static_cast<char*>(from_shared(static_cast<Transfer*>(parts[lane])->address));
  const auto address = reinterpret_cast<std::uintptr_t>(row);
  if (address % kRowBytes != 0) {
    Report& report = machine->begin_report(Failure::kMisaligned, lane_thread(lane));
    machine->describe_memory(address, kRowBytes);
    report.line = site.line;
    std::strncpy(report.operation, site.name, sizeof report.operation - 1);
    machine->fail();
  }
  machine->access(lane_thread(lane), address, kRowBytes, access, 0, site.line);
  return row;
}

// Calls `move(element of the matrix, half of a register)` for all that lanes hold of a matrix.
template <typename Move>
void for_elements(void* const* parts, unsigned number, Move move) {
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    auto& part = *static_cast<Transfer*>(parts[lane]);
    auto* halves = reinterpret_cast<char*>(part.words + number);
    for (unsigned i = 0; i < 2; ++i) {
      const auto& place = part.places[2 * lane + i];
      move(place[0], place[1], halves + 2 * i);
    }
  }
}

void require_full_warp(const Site& site, unsigned lanes) {
  if (lanes != kWarpSize) fail_invalid_lane(site, lanes);
}

void load(const Site& site, void* const* parts, unsigned lanes) {
  require_full_warp(site, lanes);
  const unsigned count = static_cast<Transfer*>(parts[0])->count;
  for (unsigned number = 0; number < count; ++number) {
    Matrix matrix;
    for (unsigned row = 0; row < kRows; ++row) {
      std::memcpy(matrix[row], row_of(site, parts, number * kRows + row, Access::kRead), kRowBytes);
    }
    for_elements(parts, number, [&](unsigned row, unsigned column, char* half) {
      std::memcpy(half, &matrix[row][column], 2);
    });
  }
}

void store(const Site& site, void* const* parts, unsigned lanes) {
  require_full_warp(site, lanes);
  const unsigned count = static_cast<Transfer*>(parts[0])->count;
  for (unsigned number = 0; number < count; ++number) {
    Matrix matrix;
    for_elements(parts, number, [&](unsigned row, unsigned column, const char* half) {
      std::memcpy(&matrix[row][column], half, 2);
    });
    for (unsigned row = 0; row < kRows; ++row) {
      std::memcpy(row_of(site, parts, number * kRows + row, Access::kWrite), matrix[row], kRowBytes);
    }
  }
}

struct Move {
  ptx::MatrixPlaces to, from;
  std::uint32_t word;
  std::uint32_t* result;
};

void transpose(const Site& site, void* const* parts, unsigned lanes) {
  require_full_warp(site, lanes);
  Matrix matrix;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    auto& part = *static_cast<Move*>(parts[lane]);
    for (unsigned i = 0; i < 2; ++i) {
      const auto& place = part.from[2 * lane + i];
      std::memcpy(&matrix[place[0]][place[1]], reinterpret_cast<char*>(&part.word) + 2 * i, 2);
    }
  }
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    auto& part = *static_cast<Move*>(parts[lane]);
    for (unsigned i = 0; i < 2; ++i) {
      const auto& place = part.to[2 * lane + i];
      std::memcpy(reinterpret_cast<char*>(part.result) + 2 * i, &matrix[place[0]][place[1]], 2);
    }
  }
}

}  // namespace

namespace ptx {

void ldmatrix(int line, MatrixPlaces places, std::uint32_t* words, unsigned count,
              std::uint32_t address) {
  Transfer part = {places, words, count, address};
  warp_collective({kMatrixLoad, "ldmatrix", line}, &part, load);
}

void stmatrix(int line, MatrixPlaces places, std::uint32_t address, const std::uint32_t* words,
              unsigned count) {
  Transfer part = {places, const_cast<std::uint32_t*>(words), count, address};
  warp_collective({kMatrixStore, "stmatrix", line}, &part, store);
}

void movmatrix(int line, MatrixPlaces to, MatrixPlaces from, std::uint32_t& result,
               std::uint32_t word) {
  Move part = {to, from, word, &result};
  warp_collective({kWarpFunction, "movmatrix", line}, &part, transpose);
}

}  // namespace ptx
}  // namespace emulator
