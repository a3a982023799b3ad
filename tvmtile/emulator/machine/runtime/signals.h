// What would end the process ends the launch: a stack that overflows, a division that the processor
// refuses, a loop without end.
#pragma once

#include <csignal>
#include <cstdint>
#include <ctime>

namespace emulator {

// Catches signals of the calling thread while it lives.
class Signals {
 public:
  Signals();
  ~Signals();

  // From now on the thread has so many seconds of processor time; 0: no limit.
  void limit(double seconds);

  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  stack_t stack_before_ = {};
#ifdef __linux__
  timer_t timer_ = {};
  bool has_timer_ = false;
#endif
};

// Whether the runtime runs, which must not be left where it is: its own state would be half changed.
extern volatile std::sig_atomic_t in_runtime;

// Where the kernel called the runtime last: what a fault in there is reported with.
extern std::uintptr_t called_from;

// Whether the time of the block is up. The runtime asks before it goes back to the kernel.
extern volatile std::sig_atomic_t time_is_up;

}  // namespace emulator
