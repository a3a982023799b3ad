// What the compiler calls from instrumented code.
//
// -fsanitize=thread puts a call in front of every memory access that might be shared. These
// functions stand where ThreadSanitizer's own runtime would. -fsanitize=alignment and
// -fsanitize=bounds call when a pointer is not aligned for its type, or an index is outside of an
// array whose extent is known; -fsanitize=integer-divide-by-zero, shift-exponent and
// signed-integer-overflow (which GCC does better by -ftrapv) where an operation has no result.
// Volatile accesses are told apart where a front end asks for it, and are as atomic ones.
#include <cstring>

#include "machine.h"

namespace emulator {
namespace {

// What the sanitizers pass along; the layout is the compilers' interface.
struct SourceLocation {
  const char* file;
  std::uint32_t line;
  std::uint32_t column;
};

struct TypeDescriptor {
  std::uint16_t kind;
  std::uint16_t info;
  char name[1];
};

struct TypeMismatch {
  SourceLocation location;
  const TypeDescriptor* type;
  unsigned char log_alignment;
  unsigned char check_kind;
};

struct OutOfBounds {
  SourceLocation location;
  const TypeDescriptor* array;
  const TypeDescriptor* index;
};

struct Overflow {
  SourceLocation location;
  const TypeDescriptor* type;
};

struct Shift {
  SourceLocation location;
  const TypeDescriptor* shifted;
  const TypeDescriptor* by;
};

void report_misaligned(const TypeMismatch& mismatch, std::uintptr_t address,
                       std::uintptr_t instruction) {
  std::uint64_t alignment = std::uint64_t{1} << mismatch.log_alignment;
  if (address % alignment == 0) return;
  Report& report = machine->begin_report(Failure::kMisaligned, machine->current());
  machine->describe_memory(address, alignment);
  std::strncpy(report.operation, mismatch.type->name, sizeof report.operation - 1);
  machine->fail_at(report, instruction - 1);
}

// An integer narrower than an address comes without its sign: `info` is the logarithm of its bits,
// times two, plus one if it has a sign.
std::int64_t signed_integer(const TypeDescriptor& type, std::uintptr_t value) {
  const unsigned bits = 1u << (type.info >> 1);
  if ((type.info & 1) == 0 || bits >= 64) return static_cast<std::int64_t>(value);
  const unsigned spare = 64 - bits;
  return static_cast<std::int64_t>(std::uint64_t{value} << spare) >> spare;
}

// Threads beside the work compute with what nobody wrote, and nobody looks at what comes of it.
bool computes_with_unset() { return machine->current().unset_read.instruction != 0; }

void report_shift(const Shift& shift, std::uintptr_t by, std::uintptr_t instruction) {
  if (computes_with_unset()) return;
  Report& report = machine->begin_report(Failure::kShift, machine->current());
  report.offset = signed_integer(*shift.by, by);
  report.size = std::uint64_t{1} << (shift.shifted->info >> 1);
  std::strncpy(report.other_operation, shift.shifted->name, sizeof report.other_operation - 1);
  machine->fail_at(report, instruction - 1);
}

void report_overflow(const char* type, std::uintptr_t instruction) {
  if (computes_with_unset()) return;
  Report& report = machine->begin_report(Failure::kOverflow, machine->current());
  std::strncpy(report.other_operation, type, sizeof report.other_operation - 1);
  machine->fail_at(report, instruction - 1);
}

void report_index(const OutOfBounds& bounds, std::uintptr_t index) {
  Report& report = machine->begin_report(Failure::kOutOfBounds, machine->current());
  report.line = static_cast<std::int32_t>(bounds.location.line);
  report.offset = signed_integer(*bounds.index, index);
  report.element_bytes = 1;
  std::strncpy(report.operation, bounds.array->name, sizeof report.operation - 1);
  machine->fail();
}

}  // namespace

// The constants of a program are made when it is loaded, before there is a launch to check.
inline void note(std::uintptr_t address, std::size_t bytes, Access access,
                 std::uintptr_t instruction) {
  if (machine == nullptr) return;
  const std::sig_atomic_t before = in_runtime;
  in_runtime = 1;
  called_from = instruction;
  machine->access(address, bytes, access, instruction);
  if (time_is_up && !before) machine->fail_at(Failure::kEndless, instruction - 1);
  in_runtime = before;
}

}  // namespace emulator

using emulator::Access;
using emulator::note;

#define INSTRUCTION reinterpret_cast<std::uintptr_t>(__builtin_return_address(0))

#define EMULATOR_ACCESS(name, bytes, kind) \
  void name(std::uintptr_t address) { note(address, bytes, kind, INSTRUCTION); }

#define EMULATOR_ACCESSES(bytes)                                           \
  EMULATOR_ACCESS(__tsan_read##bytes, bytes, Access::kRead)                \
  EMULATOR_ACCESS(__tsan_write##bytes, bytes, Access::kWrite)              \
  EMULATOR_ACCESS(__tsan_unaligned_read##bytes, bytes, Access::kRead)      \
  EMULATOR_ACCESS(__tsan_unaligned_write##bytes, bytes, Access::kWrite)    \
  EMULATOR_ACCESS(__tsan_volatile_read##bytes, bytes, Access::kAtomicRead) \
  EMULATOR_ACCESS(__tsan_volatile_write##bytes, bytes, Access::kAtomicWrite) \
  EMULATOR_ACCESS(__tsan_unaligned_volatile_read##bytes, bytes, Access::kAtomicRead) \
  EMULATOR_ACCESS(__tsan_unaligned_volatile_write##bytes, bytes, Access::kAtomicWrite)

// Only one fiber runs at a time, so plain loads and stores are atomic.
#define EMULATOR_ATOMICS(bits)                                                              \
  std::uint##bits##_t __tsan_atomic##bits##_load(const std::uint##bits##_t* address, int) { \
    note(reinterpret_cast<std::uintptr_t>(address), bits / 8,                    \
                    Access::kAtomicRead, INSTRUCTION);                                      \
    return *address;                                                                        \
  }                                                                                         \
  void __tsan_atomic##bits##_store(std::uint##bits##_t* address, std::uint##bits##_t value, \
                                   int) {                                                   \
    note(reinterpret_cast<std::uintptr_t>(address), bits / 8,                    \
                    Access::kAtomicWrite, INSTRUCTION);                                     \
    *address = value;                                                                       \
  }

extern "C" {

EMULATOR_ACCESSES(1)
EMULATOR_ACCESSES(2)
EMULATOR_ACCESSES(4)
EMULATOR_ACCESSES(8)
EMULATOR_ACCESSES(16)

void __tsan_read_range(std::uintptr_t address, std::size_t bytes) {
  note(address, bytes, Access::kRead, INSTRUCTION);
}
void __tsan_write_range(std::uintptr_t address, std::size_t bytes) {
  note(address, bytes, Access::kWrite, INSTRUCTION);
}

EMULATOR_ATOMICS(8)
EMULATOR_ATOMICS(16)
EMULATOR_ATOMICS(32)
EMULATOR_ATOMICS(64)

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

void __ubsan_handle_type_mismatch_v1(emulator::TypeMismatch* mismatch, std::uintptr_t address) {
  emulator::report_misaligned(*mismatch, address, INSTRUCTION);
}
void __ubsan_handle_divrem_overflow(void*, std::uintptr_t, std::uintptr_t) {
  emulator::machine->fail_at(emulator::Failure::kDivision, INSTRUCTION - 1);
}
void __ubsan_handle_shift_out_of_bounds(emulator::Shift* shift, std::uintptr_t, std::uintptr_t by) {
  emulator::report_shift(*shift, by, INSTRUCTION);
}
#define EMULATOR_OVERFLOW(handler)                                                      \
  void handler(emulator::Overflow* overflow, std::uintptr_t, std::uintptr_t) {          \
    emulator::report_overflow(overflow->type->name, INSTRUCTION);                       \
  }
EMULATOR_OVERFLOW(__ubsan_handle_add_overflow)
EMULATOR_OVERFLOW(__ubsan_handle_sub_overflow)
EMULATOR_OVERFLOW(__ubsan_handle_mul_overflow)
EMULATOR_OVERFLOW(__ubsan_handle_negate_overflow)
void __ubsan_handle_out_of_bounds(emulator::OutOfBounds* bounds, std::uintptr_t index) {
  emulator::report_index(*bounds, index);
}

// GCC calls these with -ftrapv, but for what the linker puts in front of their names: libgcc has its own.
#define EMULATOR_TRAP(name, type, builtin)                                              \
  type name(type a, type b) {                                                           \
    type result;                                                                        \
    if (builtin(a, b, &result)) emulator::report_overflow("'" #type "'", INSTRUCTION);  \
    return result;                                                                      \
  }
#define EMULATOR_TRAPS(type, mode, least)                                               \
  EMULATOR_TRAP(__wrap___addv##mode##3, type, __builtin_add_overflow)                   \
  EMULATOR_TRAP(__wrap___subv##mode##3, type, __builtin_sub_overflow)                   \
  EMULATOR_TRAP(__wrap___mulv##mode##3, type, __builtin_mul_overflow)                   \
  type __wrap___negv##mode##2(type value) {                                             \
    if (value == least) emulator::report_overflow("'" #type "'", INSTRUCTION);          \
    return value == least ? value : -value;                                             \
  }
EMULATOR_TRAPS(int, si, INT32_MIN)
EMULATOR_TRAPS(long, di, INT64_MIN)

// Clang calls these for copies; GCC accounts for copies by the functions above.
void* __tsan_memcpy(void* to, const void* from, std::size_t bytes) {
  __tsan_read_range(reinterpret_cast<std::uintptr_t>(from), bytes);
  __tsan_write_range(reinterpret_cast<std::uintptr_t>(to), bytes);
  return std::memcpy(to, from, bytes);
}
void* __tsan_memset(void* to, int value, std::size_t bytes) {
  __tsan_write_range(reinterpret_cast<std::uintptr_t>(to), bytes);
  return std::memset(to, value, bytes);
}

}  // extern "C"
