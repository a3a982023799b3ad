// The Metal standard library for compute kernels, as host C++17.
//
// Written from the definitions of the Metal Shading Language Specification (version 3.2). What MSL
// has and this lacks (textures, samplers, quads, ray tracing) does not compile.
#pragma once
#pragma GCC system_header  // its literal suffixes have no underscore

#define __METAL_VERSION__ 320
#define METAL_FUNC inline __attribute__((__always_inline__))

#include "scalar.h"
#include "vector.h"
#include "math.h"
#include "atomic.h"
#include "simdgroup.h"
#include "simdgroup_matrix.h"
#include "unset.h"
#include "address_space.h"  // last: it defines macros named as Metal's keywords
