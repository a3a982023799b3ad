// What a CUDA source is compiled against on the host: CUDA's own headers, which define the arithmetic of
// half, bfloat16 and float8 there too, and the parts of the language that only a device has.
//
// It is compiled once, but g++ instantiates the templates that its functions use for each kernel anew. So what
// uses one is a template itself.
#pragma once

#include <cstdint>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS  // Bessel functions and the like, which no kernel has
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <type_traits>

#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __trap() ::emulator::fail_trap(__LINE__, "__trap()")

#include <cuda.h>
#include <vector_functions.h>
// Their functions take numbers by value, and g++ has the loads of such arguments checked where it inlines a call.
#define unused unused, always_inline
// Those that it does not inline convert numbers bit by bit: at -O0 they would be slow.
#pragma GCC push_options
#pragma GCC optimize("O1")
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#pragma GCC pop_options
#undef unused
#include <math_constants.h>

#include "emulator/runtime.h"

#include "emulator/threads.h"
#include "emulator/warps.h"
#include "emulator/atomics.h"
#include "emulator/numbers.h"

// What the headers of the host know nothing of. From here on it is a device's code that is compiled.
#define __CUDA_ARCH__ EMULATOR_ARCHITECTURE
// Nothing to g++; defined here, since the headers of the host above say `__attribute__((__noinline__))`.
#define __noinline__
