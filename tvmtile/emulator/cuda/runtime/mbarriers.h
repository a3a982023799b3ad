// Arrivals at mbarriers by what threads do not wait for.
#pragma once

#include <cstdint>

#include "machine.h"

namespace emulator {

// An arrival is to come: the address is one of an mbarrier.
void check_mbarrier(int line, std::uint32_t address);
// It comes, with what those learn who wait.
void arrive_later(int line, std::uint32_t address, const Passage& brought);

}  // namespace emulator
