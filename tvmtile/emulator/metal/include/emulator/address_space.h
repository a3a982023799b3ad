// Metal's keywords that C++ lacks.
//
// On the host all memory is one address space, so the qualifiers say nothing to the compiler; the
// driver checks them in the source, and the runtime checks every address. Where `constant` is next
// to `const`, and where `threadgroup` declares a variable, the driver replaces them beforehand.
#pragma once

#define device
#define threadgroup
#define thread
#define constant const
#define kernel

// A threadgroup variable is a reference to memory that its threadgroup shares. It is aligned as it is
// declared, and no better.
#define EMULATOR_THREADGROUP(name, extents, ...)                                           \
  EMULATOR_ALIGNED_THREADGROUP(alignof(__VA_ARGS__), name, extents, __VA_ARGS__)
#define EMULATOR_ALIGNED_THREADGROUP(alignment, name, extents, ...)                        \
  __VA_ARGS__(&name) extents = *static_cast<__VA_ARGS__(*) extents>(                       \
      ::emulator::shared_variable(#name, __LINE__, sizeof(__VA_ARGS__ extents),       \
                                       sizeof(__VA_ARGS__), alignment))
