// The operations of runtime.h and of launch.h, as the kernels and Python call them.
#include <cstring>

#include "machine.h"

namespace emulator {

unsigned this_lane() { return machine->current().context.lane; }

unsigned this_warp_size() { return machine->warp_size(); }

std::uint32_t unfinished_lanes() { return machine->unfinished_lanes(); }

std::uint32_t active_lanes(const Site& site) {
  InRuntime here(site);
  return machine->active_lanes(site);
}

void note_unset(const void* variable, std::size_t bytes, std::size_t element_bytes, const char* name) {
  machine->note_unset({name, reinterpret_cast<std::uintptr_t>(variable), bytes, element_bytes});
}

void forget_unset(const void* variable, std::size_t bytes) {
  machine->forget_unset(reinterpret_cast<std::uintptr_t>(variable), bytes);
}

void* last_argument() { return machine->last_argument(); }

void warp_collective(const Site& site, void* payload, Collective execute, std::uint32_t mask) {
  InRuntime here(site);
  machine->warp_collective(site, payload, execute, mask);
}

void block_barrier(const Site& site, unsigned memory) {
  InRuntime here(site);
  machine->block_barrier(site, memory);
}

void warp_barrier(const Site& site, unsigned memory, std::uint32_t mask) {
  InRuntime here(site);
  Collective order = [](const Site&, void* const* payloads, unsigned lanes) {
    for (unsigned lane = 0; lane < lanes; ++lane) {
      if (payloads[lane] == nullptr) continue;
      machine->order_lanes(*static_cast<unsigned*>(payloads[lane]));
      return;
    }
  };
  machine->warp_collective(site, &memory, order, mask);
}

void named_barrier(const Site& site, unsigned number, unsigned threads, bool wait) {
  InRuntime here(site);
  machine->named_barrier(site, number, threads, wait);
}

// All lanes come to the same instruction of a cluster's barrier.
void cluster_arrive(const Site& site, bool release) {
  InRuntime here(site);
  machine->meet_lanes(site);
  machine->cluster_arrive(site, release);
}

void cluster_wait(const Site& site) {
  InRuntime here(site);
  machine->meet_lanes(site);
  machine->cluster_wait(site);
}

void* shared_variable(const char* name, int line, std::size_t bytes,
                           std::size_t element_bytes, std::size_t alignment) {
  InRuntime here({kBlockBarrier, name, line});
  return machine->shared_variable(name, line, bytes, element_bytes, alignment);
}

namespace {

[[noreturn]] void fail_with(Failure failure, int line, const char* text) {
  in_runtime = 1;
  Report& report = machine->begin_report(failure, machine->current());
  report.line = line;
  std::strncpy(report.operation, text, sizeof report.operation - 1);
  machine->fail();
}

}  // namespace

void fail_trap(int line, const char* message) { fail_with(Failure::kTrap, line, message); }

void fail_unsupported(int line, const char* what) { fail_with(Failure::kUnsupported, line, what); }

void fail_protocol(int line, const char* what) { fail_with(Failure::kProtocol, line, what); }

void fail_invalid_lane(const Site& site, unsigned lane) {
  Report& report = machine->begin_report(Failure::kInvalidLane, machine->current());
  report.line = site.line;
  report.offset = lane;
  std::strncpy(report.operation, site.name, sizeof report.operation - 1);
  machine->fail();
}

void fail_not_uniform(const Site& site, const char* argument, unsigned lane) {
  Report& report = machine->begin_report(Failure::kNotUniform, machine->current());
  report.line = site.line;
  report.other_thread = static_cast<std::int32_t>(
      machine->current().context.warp * kWarpSize + lane);
  std::strncpy(report.operation, site.name, sizeof report.operation - 1);
  std::strncpy(report.other_operation, argument, sizeof report.other_operation - 1);
  machine->fail();
}

}  // namespace emulator

extern "C" __attribute__((visibility("default"))) int emulator_launch(
    const emulator::Launch* launch, emulator::Report* report, emulator::Statistics* statistics) {
  emulator::Machine machine(*launch, *report, *statistics);
  return machine.run() ? 0 : 1;
}
