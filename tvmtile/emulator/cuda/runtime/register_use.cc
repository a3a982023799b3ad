#include "register_use.h"

#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "emulator/runtime.h"

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

namespace emulator {
namespace {

constexpr std::uint32_t kPoison = kUnsetFloat;

// What is known of a word.
struct Word {
  const char* result;          // the work that writes it; null: none
  std::uint32_t written = 0;   // behind so many fences
  std::uint32_t operands = 0;  // how much work reads it
};

Word* words = nullptr;  // of all stacks: pages that nobody touches cost nothing
std::size_t mapped = 0;
std::vector<std::uint32_t> fences;  // by thread, from 1 on

Word* word_of(const Thread& thread, std::uintptr_t address) {
  const std::uintptr_t offset = address - machine->stack_of(thread);
  if (words == nullptr || offset >= kStackBytes) return nullptr;
  return &words[(address - machine->stack_of(*(&thread - thread.number))) / 4];
}

Word* word_of(const Thread& thread, const void* place) {
  return word_of(thread, reinterpret_cast<std::uintptr_t>(place));
}

// That which a word waits for; null: none.
const char* work_of(const Word& word) {
  if (word.result != nullptr) return word.result;
  return word.operands == 0 ? nullptr : kProductWork;
}

Report& report_of(const Thread& thread, const char* work) {
  Report& report = machine->begin_report(Failure::kRegister, thread);
  std::strncpy(report.operation, work, sizeof report.operation - 1);
  return report;
}

[[noreturn]] void fail(int line, const Thread& thread, const char* work) {
  report_of(thread, work).line = line;
  machine->fail();
}

void look_at(const Thread& thread, std::uintptr_t address, std::uint64_t size, Access access,
             std::uintptr_t instruction) {
  for (std::uintptr_t at = address & ~std::uintptr_t{3}; at < address + size; at += 4) {
    Word* const word = word_of(thread, at);
    if (word == nullptr) continue;
    const bool writes = !is_read(access);
    const char* const work = work_of(*word);
    if (word->result != nullptr || (writes && work != nullptr)) {
      machine->fail_at(report_of(thread, work), instruction - 1);
    }
    if (writes) word->written = fences[thread.number];
  }
}

void forget() {
  at_private_access = nullptr;
  if (words != nullptr) munmap(words, mapped);
  words = nullptr;
}

struct Registered {
  Registered() {
    add_block_start(forget);
    add_block_end(forget);
  }
} registered;

}  // namespace

void watch_registers() {
  if (words != nullptr) return;
  mapped = machine->threads() * kStackBytes / 4 * sizeof(Word);
  void* const pages =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) fail_unsupported(0, "registers of so many threads");
  words = static_cast<Word*>(pages);
  fences.assign(machine->threads(), 1);
  at_private_access = look_at;
}

void fence_registers(const Thread& thread) {
  watch_registers();
  ++fences[thread.number];
}

std::uint32_t fences_of(const Thread& thread) { return fences[thread.number]; }

bool is_written_since_fence(const Thread& thread, const void* place) {
  const Word* const word = word_of(thread, place);
  return word != nullptr && word->written == fences[thread.number];
}

std::uint32_t begin_result(int line, const Thread& thread, std::uint32_t* place, const char* work) {
  watch_registers();
  if (Word* const word = word_of(thread, place)) {
    if (const char* const other = work_of(*word)) fail(line, thread, other);
    word->result = work;
  }
  const std::uint32_t had = *place;
  *place = kPoison;
  return had;
}

void end_result(int line, const Thread& thread, std::uint32_t* place, std::uint32_t value) {
  Word* const word = word_of(thread, place);
  if (*place != kPoison) fail(line, thread, word == nullptr ? kProductWork : word->result);
  if (word != nullptr) word->result = nullptr;
  *place = value;
}

void begin_operand(int line, const Thread& thread, const std::uint32_t* place) {
  if (Word* const word = word_of(thread, place)) {
    if (word->result != nullptr) fail(line, thread, word->result);
    ++word->operands;
  }
}

void end_operand(const Thread& thread, const std::uint32_t* place) {
  if (Word* const word = word_of(thread, place)) --word->operands;
}

}  // namespace emulator
