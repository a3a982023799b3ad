#include "banks.h"

#include <algorithm>

namespace emulator {
namespace {

constexpr unsigned kBanks = 32;
constexpr unsigned kBankBytes = 4;
constexpr std::uint64_t kWidest = 16;  // bytes that a lane moves at once

}  // namespace

void Banks::note(unsigned lane, std::uintptr_t place, std::uintptr_t address, std::uint64_t bytes) {
  for (; bytes > kWidest; address += kWidest, bytes -= kWidest) {
    note_at_once(lane, place, address, kWidest);
  }
  note_at_once(lane, place, address, bytes);
}

void Banks::note_at_once(unsigned lane, std::uintptr_t place, std::uintptr_t address,
                         std::uint64_t bytes) {
  Instruction& instruction = instructions_[{place, bytes}];
  const std::uint32_t number = instruction.done[lane]++;
  if (number == instruction.accesses.size()) instruction.accesses.emplace_back();
  WarpAccess& access = instruction.accesses[number];
  access.lanes |= 1u << lane;
  access.addresses[lane] = address;
}

void Banks::count(Statistics& statistics) {
  for (const auto& [key, instruction] : instructions_) {
    for (const WarpAccess& access : instruction.accesses) count(access, key.second, statistics);
  }
  instructions_.clear();
}

// 128 bytes move at a time: those of 32 lanes, of 16 with 8 bytes each, of 8 with 16. Different words of
// one bank move one after the other; a word that several lanes read moves once.
void Banks::count(const WarpAccess& access, std::uint64_t bytes, Statistics& statistics) {
  const unsigned together = kBanks * kBankBytes / std::max<std::uint64_t>(bytes, kBankBytes);
  for (unsigned first = 0; first < kWarpSize; first += together) {
    std::vector<std::uintptr_t> words;
    for (unsigned lane = first; lane < first + together; ++lane) {
      if (!(access.lanes >> lane & 1)) continue;
      const std::uintptr_t end = access.addresses[lane] + bytes;
      for (std::uintptr_t word = access.addresses[lane] / kBankBytes; word * kBankBytes < end; ++word) {
        words.push_back(word);
      }
    }
    if (words.empty()) continue;
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    unsigned in_bank[kBanks] = {};
    for (std::uintptr_t word : words) ++in_bank[word % kBanks];
    const unsigned moves = *std::max_element(in_bank, in_bank + kBanks);
    statistics.bank_moves += moves;
    statistics.bank_conflicts += moves - 1;
  }
}

}  // namespace emulator
