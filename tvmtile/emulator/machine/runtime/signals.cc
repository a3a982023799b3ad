#include "signals.h"

#include <pthread.h>
#include <signal.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "machine.h"

namespace emulator {

volatile std::sig_atomic_t in_runtime = 0;
volatile std::sig_atomic_t time_is_up = 0;
std::uintptr_t called_from = 0;

namespace {

constexpr int kCaught[] = {SIGSEGV, SIGBUS, SIGFPE};
constexpr unsigned kCaughtCount = sizeof kCaught / sizeof kCaught[0];
#ifdef __linux__
// Of real-time signals, which nothing else is likely to use.
int timer_signal() { return SIGRTMAX - 5; }
struct sigaction timer_before;
#endif

struct sigaction before[kCaughtCount];
pthread_t launching;
// A handler can't run on a stack that has overflowed.
alignas(16) char handler_stack[64 * 1024];

std::uintptr_t instruction_of(const void* context) {
  [[maybe_unused]] const auto& machine_context = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__linux__) && defined(__x86_64__)
  return static_cast<std::uintptr_t>(machine_context.gregs[REG_RIP]);
#elif defined(__linux__) && defined(__aarch64__)
  return static_cast<std::uintptr_t>(machine_context.pc);
#elif defined(__APPLE__) && defined(__aarch64__)
  return static_cast<std::uintptr_t>(machine_context->__ss.__pc);
#elif defined(__APPLE__) && defined(__x86_64__)
  return static_cast<std::uintptr_t>(machine_context->__ss.__rip);
#else
  return 0;
#endif
}

// Whether the calling thread is in a launch; other threads' signals are none of ours.
bool is_ours() { return machine != nullptr && pthread_equal(pthread_self(), launching); }

// The fault happens again, for whoever caught it before.
void pass_on(int signal) {
  for (unsigned i = 0; i < kCaughtCount; ++i) {
    if (kCaught[i] == signal) sigaction(signal, &before[i], nullptr);
  }
}

void on_fault(int signal, siginfo_t* information, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(information->si_addr);
  if (is_ours() && signal == SIGFPE && !in_runtime) {
    machine->fail_at(Failure::kDivision, instruction_of(context));
  }
  if (is_ours() && signal != SIGFPE && machine->is_guard(address)) {
    const std::uintptr_t instruction = instruction_of(context);
    const bool in_kernel = !in_runtime && machine->is_in_image(instruction);
    machine->fail_at(Failure::kStack, in_kernel ? instruction : called_from - 1);
  }
  pass_on(signal);
}

#ifdef __linux__
void on_timer(int, siginfo_t*, void* context) {
  if (!is_ours()) return;
  // A loop that calls the runtime is ended by that, which knows the line. The timer comes again soon.
  if (!time_is_up) {
    time_is_up = 1;
    return;
  }
  const std::uintptr_t instruction = instruction_of(context);
  if (!in_runtime && machine->is_in_image(instruction)) {
    machine->fail_at(Failure::kEndless, instruction);
  }
}
#endif

void install(int signal, void (*handler)(int, siginfo_t*, void*), struct sigaction* old) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  // A handler may leave for good: its signal must not stay blocked.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
  sigaction(signal, &action, old);
}

}  // namespace

Signals::Signals() {
  launching = pthread_self();
  time_is_up = 0;
  in_runtime = 1;
  stack_t stack = {};
  stack.ss_sp = handler_stack;
  stack.ss_size = sizeof handler_stack;
  sigaltstack(&stack, &stack_before_);
  for (unsigned i = 0; i < kCaughtCount; ++i) install(kCaught[i], on_fault, &before[i]);
#ifdef __linux__
  install(timer_signal(), on_timer, &timer_before);
  sigevent event = {};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = timer_signal();
  event._sigev_un._tid = static_cast<int>(syscall(SYS_gettid));
  has_timer_ = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_) == 0;
#endif
}

Signals::~Signals() {
#ifdef __linux__
  if (has_timer_) timer_delete(timer_);
  sigaction(timer_signal(), &timer_before, nullptr);
#endif
  for (unsigned i = 0; i < kCaughtCount; ++i) sigaction(kCaught[i], &before[i], nullptr);
  sigaltstack(&stack_before_, nullptr);
}

void Signals::limit([[maybe_unused]] double seconds) {
#ifdef __linux__
  if (!has_timer_) return;
  constexpr long kAgain = 10'000'000;  // nanoseconds
  itimerspec time = {};
  time.it_value.tv_sec = static_cast<time_t>(seconds);
  time.it_value.tv_nsec = static_cast<long>((seconds - static_cast<double>(time.it_value.tv_sec)) * 1e9);
  time.it_interval.tv_nsec = kAgain;
  timer_settime(timer_, 0, &time, nullptr);
#endif
}

}  // namespace emulator
