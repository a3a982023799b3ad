"""Headers that NVRTC gets from memory, and what else a source may include."""

from __future__ import annotations

import re

from tvmtile.cuda_runtime import include_directories

PREAMBLE = """\
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; };
typedef struct CUtensorMap_st CUtensorMap;
"""
"""What TVM's kernels take from headers that NVRTC does not read: <math.h> and <cuda.h>."""

# Of these two headers TVM's kernels use what is below. CUDA's own take NVRTC a second to read, four
# fifths of the time that it needs for a GEMM.
_LIGHT = {
    "cuda/std/cstdint": """\
#pragma once
namespace cuda { namespace std {
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
} }
""",
    "cuda/std/type_traits": """\
#pragma once
namespace cuda { namespace std {
template <bool V> struct bool_constant { static constexpr bool value = V; };
template <class A, class B> struct is_same : bool_constant<false> {};
template <class A> struct is_same<A, A> : bool_constant<true> {};
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;
template <class A, class... B> constexpr bool is_one_of = (is_same_v<A, B> || ...);
template <class A> struct without_cv { using type = A; };
template <class A> struct without_cv<const A> { using type = A; };
template <class A> struct without_cv<volatile A> { using type = A; };
template <class A> struct without_cv<const volatile A> { using type = A; };
template <class A> using without_cv_t = typename without_cv<A>::type;
template <class A> constexpr bool is_signed_integer =
    is_one_of<A, signed char, short, int, long, long long>
    || (is_same_v<A, char> && char(-1) < char(0));
template <class A> constexpr bool is_unsigned_integer =
    is_one_of<A, bool, unsigned char, unsigned short, unsigned int, unsigned long,
              unsigned long long>
    || (is_same_v<A, char> && !(char(-1) < char(0)));
template <class A> struct is_floating_point
    : bool_constant<is_one_of<without_cv_t<A>, float, double>> {};
template <class A> struct is_integral
    : bool_constant<is_signed_integer<without_cv_t<A>> || is_unsigned_integer<without_cv_t<A>>> {};
template <class A> struct is_signed
    : bool_constant<is_signed_integer<without_cv_t<A>> || is_floating_point<A>::value> {};
template <class A> struct is_unsigned : bool_constant<is_unsigned_integer<without_cv_t<A>>> {};
template <bool V, class A = void> struct enable_if {};
template <class A> struct enable_if<true, A> { using type = A; };
template <bool V, class A, class B> struct conditional { using type = A; };
template <class A, class B> struct conditional<false, A, B> { using type = B; };
} }
""",
}

_LIBRARY = re.compile(
    r"^\s*#\s*include\s*<((?:cuda|cub|thrust|cooperative_groups)\b[^>.]*)>", re.MULTILINE
)


def headers_in_memory(source: str) -> dict[str, str]:
    """Headers that stand in for CUDA's own of the same names, while a source is compiled.

    If the source, CUDA C++, includes more of CUDA's C++ library than TVM's kernels do, it gets all of
    that library's own headers.
    """
    included = set(_LIBRARY.findall(source))
    return _LIGHT if included <= _LIGHT.keys() else {}


_FOR_OTHER_COMPILERS = ("cstdint", "type_traits", "cuda.h")
"""What TVM's text includes where it is not NVRTC that reads it."""

_INCLUDED = re.compile(r"^\s*#\s*include\b[ \t]*(.*)$", re.MULTILINE)


def has_foreign_headers(source: str) -> bool:
    """Tell whether a source may include what is neither CUDA's nor in memory, and so may change."""
    return not all(_is_of_cuda(name.strip()) for name in _INCLUDED.findall(source))


def _is_of_cuda(name: str) -> bool:
    name = name.partition("//")[0].strip()
    if not (name.startswith("<") and name.endswith(">")):
        return False
    header = name[1:-1]
    if header in _LIGHT or header in _FOR_OTHER_COMPILERS:
        return True
    return any((directory / header).is_file() for directory in include_directories())
