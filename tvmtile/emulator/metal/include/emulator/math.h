// Functions of scalars and, component by component, of vectors. 16-bit arguments are computed in
// float32 and rounded once. `fast::` and `precise::` are the same here.
//
// As in Metal, scalar functions are overloads for float and half, or for each integer type, and no
// templates: where the arguments' types are none of these, a call is ambiguous. There are none for
// bfloat.
#pragma once

#include "vector.h"

namespace emulator {

// Applies `function` to the components of a vector; further vectors must be as wide.
template <typename R, int N, typename F, typename... V>
EMULATOR_INLINE metal::vec<R, N> map(F function, const V&... values) {
  metal::vec<R, N> result;
  EMULATOR_EACH(result.data[i] = function(values.data[i]...));
  return result;
}

}  // namespace emulator

namespace metal {

using emulator::if_scalar;

// What takes a bfloat, or a half beside a float, is chosen, and refused. Of the latter Metal can't choose the
// overload; some versions of C++ compilers prefer that of floats.
template <typename... A>
constexpr bool is_refused = (std::is_same_v<A, bfloat> || ...) ||
                            ((std::is_same_v<A, half> || ...) && (std::is_same_v<A, float> || ...));
#define EMULATOR_REFUSED(name)                                                                    \
  template <typename... A, std::enable_if_t<is_refused<A...>, int> = 0>                           \
  void name(A...) = delete;

#define EMULATOR_INTEGERS(define) \
  define(char) define(int8_t) define(uchar) define(short) define(ushort) define(int) \
  define(uint) define(long) define(ulong)

// --- one scalar function makes a family: of vectors, and of vectors with a scalar

#define EMULATOR_UNARY_VECTOR(name)                                                    \
  template <typename T, int N>                                                         \
  EMULATOR_INLINE auto name(const vec<T, N>& x) {                                      \
    return emulator::map<decltype(name(T())), N>([](T a) { return name(a); }, x);      \
  }
#define EMULATOR_BINARY_VECTOR(name)                                                          \
  template <typename T, int N>                                                                \
  EMULATOR_INLINE vec<T, N> name(const vec<T, N>& x, const vec<T, N>& y) {                    \
    return emulator::map<T, N>([](T a, T b) { return name(a, b); }, x, y);                    \
  }                                                                                           \
  template <typename T, int N, typename S, if_scalar<S> = 0>                                  \
  EMULATOR_INLINE vec<T, N> name(const vec<T, N>& x, S y) { return name(x, vec<T, N>(y)); }   \
  template <typename T, int N, typename S, if_scalar<S> = 0>                                  \
  EMULATOR_INLINE vec<T, N> name(S x, const vec<T, N>& y) { return name(vec<T, N>(x), y); }
#define EMULATOR_TERNARY_VECTOR(name)                                                          \
  template <typename T, int N>                                                                 \
  EMULATOR_INLINE vec<T, N> name(const vec<T, N>& x, const vec<T, N>& y, const vec<T, N>& z) { \
    return emulator::map<T, N>([](T a, T b, T c) { return name(a, b, c); }, x, y, z);          \
  }                                                                                            \
  template <typename T, int N, typename S, typename U, if_scalar<S> = 0, if_scalar<U> = 0>     \
  EMULATOR_INLINE vec<T, N> name(const vec<T, N>& x, S y, U z) {                               \
    return name(x, vec<T, N>(y), vec<T, N>(z));                                                \
  }

// --- floating point

#define EMULATOR_FLOAT_UNARY(name, builtin)                                             \
  EMULATOR_INLINE float name(float x) { return builtin(x); }                            \
  EMULATOR_INLINE half name(half x) { return half(builtin(static_cast<float>(x))); }    \
  EMULATOR_REFUSED(name)                                                              \
  EMULATOR_UNARY_VECTOR(name)

namespace detail {
EMULATOR_INLINE float exp10(float x) { return __builtin_exp10f(x); }
EMULATOR_INLINE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
EMULATOR_INLINE float sinpi(float x) { return __builtin_sinf(M_PI_F * __builtin_fmodf(x, 2.0f)); }
EMULATOR_INLINE float cospi(float x) { return __builtin_cosf(M_PI_F * __builtin_fmodf(x, 2.0f)); }
EMULATOR_INLINE float tanpi(float x) { return sinpi(x) / cospi(x); }
EMULATOR_INLINE float fract(float x) {
  return __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f);
}
EMULATOR_INLINE float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? x : 0.0f; }
EMULATOR_INLINE float saturate(float x) { return __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f); }
}  // namespace detail

EMULATOR_FLOAT_UNARY(acos, __builtin_acosf)
EMULATOR_FLOAT_UNARY(acosh, __builtin_acoshf)
EMULATOR_FLOAT_UNARY(asin, __builtin_asinf)
EMULATOR_FLOAT_UNARY(asinh, __builtin_asinhf)
EMULATOR_FLOAT_UNARY(atan, __builtin_atanf)
EMULATOR_FLOAT_UNARY(atanh, __builtin_atanhf)
EMULATOR_FLOAT_UNARY(ceil, __builtin_ceilf)
EMULATOR_FLOAT_UNARY(cos, __builtin_cosf)
EMULATOR_FLOAT_UNARY(cosh, __builtin_coshf)
EMULATOR_FLOAT_UNARY(cospi, detail::cospi)
EMULATOR_FLOAT_UNARY(exp, __builtin_expf)
EMULATOR_FLOAT_UNARY(exp2, __builtin_exp2f)
EMULATOR_FLOAT_UNARY(exp10, detail::exp10)
EMULATOR_FLOAT_UNARY(fabs, __builtin_fabsf)
EMULATOR_FLOAT_UNARY(floor, __builtin_floorf)
EMULATOR_FLOAT_UNARY(fract, detail::fract)
EMULATOR_FLOAT_UNARY(log, __builtin_logf)
EMULATOR_FLOAT_UNARY(log2, __builtin_log2f)
EMULATOR_FLOAT_UNARY(log10, __builtin_log10f)
EMULATOR_FLOAT_UNARY(rint, __builtin_rintf)
EMULATOR_FLOAT_UNARY(round, __builtin_roundf)
EMULATOR_FLOAT_UNARY(rsqrt, detail::rsqrt)
EMULATOR_FLOAT_UNARY(saturate, detail::saturate)
EMULATOR_FLOAT_UNARY(sign, detail::sign)
EMULATOR_FLOAT_UNARY(sin, __builtin_sinf)
EMULATOR_FLOAT_UNARY(sinh, __builtin_sinhf)
EMULATOR_FLOAT_UNARY(sinpi, detail::sinpi)
EMULATOR_FLOAT_UNARY(sqrt, __builtin_sqrtf)
EMULATOR_FLOAT_UNARY(tan, __builtin_tanf)
EMULATOR_FLOAT_UNARY(tanh, __builtin_tanhf)
EMULATOR_FLOAT_UNARY(tanpi, detail::tanpi)
EMULATOR_FLOAT_UNARY(trunc, __builtin_truncf)
#undef EMULATOR_FLOAT_UNARY

#define EMULATOR_FLOAT_BINARY(name, builtin)                            \
  EMULATOR_INLINE float name(float x, float y) { return builtin(x, y); } \
  EMULATOR_INLINE half name(half x, half y) {                           \
    return half(builtin(static_cast<float>(x), static_cast<float>(y))); \
  }                                                                     \
  EMULATOR_REFUSED(name)                                              \
  EMULATOR_BINARY_VECTOR(name)

namespace detail {
EMULATOR_INLINE float step(float edge, float x) { return x < edge ? 0.0f : 1.0f; }
}  // namespace detail

EMULATOR_FLOAT_BINARY(atan2, __builtin_atan2f)
EMULATOR_FLOAT_BINARY(copysign, __builtin_copysignf)
EMULATOR_FLOAT_BINARY(fdim, __builtin_fdimf)
EMULATOR_FLOAT_BINARY(fmax, __builtin_fmaxf)
EMULATOR_FLOAT_BINARY(fmin, __builtin_fminf)
EMULATOR_FLOAT_BINARY(fmod, __builtin_fmodf)
EMULATOR_FLOAT_BINARY(nextafter, __builtin_nextafterf)
EMULATOR_FLOAT_BINARY(pow, __builtin_powf)
EMULATOR_FLOAT_BINARY(powr, __builtin_powf)
EMULATOR_FLOAT_BINARY(step, detail::step)
#undef EMULATOR_FLOAT_BINARY

#define EMULATOR_FLOAT_TERNARY(name, function)                                          \
  EMULATOR_INLINE float name(float x, float y, float z) { return function(x, y, z); }   \
  EMULATOR_INLINE half name(half x, half y, half z) {                                   \
    return half(function(static_cast<float>(x), static_cast<float>(y),                  \
                         static_cast<float>(z)));                                       \
  }                                                                                     \
  EMULATOR_REFUSED(name)                                                              \
  EMULATOR_TERNARY_VECTOR(name)

namespace detail {
EMULATOR_INLINE float mix(float x, float y, float a) { return x + (y - x) * a; }
EMULATOR_INLINE float smoothstep(float low, float high, float x) {
  const float t = saturate((x - low) / (high - low));
  return t * t * (3.0f - 2.0f * t);
}
}  // namespace detail

EMULATOR_FLOAT_TERNARY(fma, __builtin_fmaf)
EMULATOR_FLOAT_TERNARY(mix, detail::mix)
EMULATOR_FLOAT_TERNARY(smoothstep, detail::smoothstep)
template <typename T, int N, typename S, if_scalar<S> = 0>
EMULATOR_INLINE vec<T, N> mix(const vec<T, N>& x, const vec<T, N>& y, S a) {
  return mix(x, y, vec<T, N>(a));
}
#undef EMULATOR_FLOAT_TERNARY

EMULATOR_INLINE float ldexp(float x, int exponent) { return __builtin_ldexpf(x, exponent); }
EMULATOR_INLINE half ldexp(half x, int exponent) {
  return half(__builtin_ldexpf(static_cast<float>(x), exponent));
}
EMULATOR_REFUSED(ldexp)
template <typename T, int N>
EMULATOR_INLINE vec<T, N> ldexp(const vec<T, N>& x, const vec<int, N>& exponent) {
  return emulator::map<T, N>([](T a, int k) { return ldexp(a, k); }, x, exponent);
}
template <typename T>
EMULATOR_INLINE T sincos(T x, T& cosine) {
  cosine = cos(x);
  return sin(x);
}

#define EMULATOR_CLASSIFY(name, expression)                                        \
  EMULATOR_INLINE bool name(float x) { return expression; }                        \
  EMULATOR_INLINE bool name(half x) { return name(static_cast<float>(x)); }        \
  EMULATOR_REFUSED(name)                                                         \
  EMULATOR_UNARY_VECTOR(name)
EMULATOR_CLASSIFY(isnan, __builtin_isnan(x))
EMULATOR_CLASSIFY(isinf, __builtin_isinf(x) != 0)
EMULATOR_CLASSIFY(isfinite, __builtin_isfinite(x))
EMULATOR_CLASSIFY(signbit, __builtin_signbit(x) != 0)
#undef EMULATOR_CLASSIFY

// --- integers and any scalar

// A NaN argument gives the other one, as fmin and fmax.
EMULATOR_INLINE float max(float x, float y) { return fmax(x, y); }
EMULATOR_INLINE half max(half x, half y) { return fmax(x, y); }
EMULATOR_INLINE float min(float x, float y) { return fmin(x, y); }
EMULATOR_INLINE half min(half x, half y) { return fmin(x, y); }
EMULATOR_INLINE float abs(float x) { return fabs(x); }
EMULATOR_INLINE half abs(half x) { return fabs(x); }

#define EMULATOR_INTEGER(T)                                                                    \
  EMULATOR_INLINE T max(T x, T y) { return x > y ? x : y; }                                    \
  EMULATOR_INLINE T min(T x, T y) { return x < y ? x : y; }                                    \
  EMULATOR_INLINE T abs(T x) { return x < T(0) ? T(-x) : x; }                                  \
  EMULATOR_INLINE T popcount(T x) {                                                            \
    return T(__builtin_popcountll(std::uint64_t(std::make_unsigned_t<T>(x))));                 \
  }                                                                                            \
  EMULATOR_INLINE T clz(T x) {                                                                 \
    const std::uint64_t bits = std::make_unsigned_t<T>(x);                                     \
    const int width = int(sizeof(T)) * 8;                                                      \
    return T(bits == 0 ? width : __builtin_clzll(bits) - (64 - width));                        \
  }                                                                                            \
  EMULATOR_INLINE T ctz(T x) {                                                                 \
    const std::uint64_t bits = std::make_unsigned_t<T>(x);                                     \
    return T(bits == 0 ? int(sizeof(T)) * 8 : __builtin_ctzll(bits));                          \
  }                                                                                            \
  EMULATOR_INLINE T mulhi(T x, T y) { return T((__int128(x) * __int128(y)) >> (sizeof(T) * 8)); } \
  EMULATOR_INLINE T rotate(T x, T count) {                                                     \
    using U = std::make_unsigned_t<T>;                                                         \
    const unsigned width = sizeof(T) * 8, by = unsigned(U(count)) % width;                     \
    return by == 0 ? x : T(U(x) << by | U(x) >> (width - by));                                 \
  }                                                                                            \
  EMULATOR_INLINE T absdiff(T x, T y) { return x > y ? T(x - y) : T(y - x); }                  \
  EMULATOR_INLINE T extract_bits(T x, uint offset, uint bits) {                                \
    const unsigned width = sizeof(T) * 8;                                                      \
    if (bits == 0) return T(0);                                                                \
    using U = std::make_unsigned_t<T>;                                                         \
    return T(T(U(x) << (width - bits - offset)) >> (width - bits));                            \
  }
EMULATOR_INTEGERS(EMULATOR_INTEGER)
#undef EMULATOR_INTEGER

#define EMULATOR_SCALAR(T)                                                                     \
  EMULATOR_INLINE T max3(T x, T y, T z) { return max(x, max(y, z)); }                          \
  EMULATOR_INLINE T min3(T x, T y, T z) { return min(x, min(y, z)); }                          \
  EMULATOR_INLINE T clamp(T x, T low, T high) { return min(max(x, low), high); }               \
  EMULATOR_INLINE T select(T when_false, T when_true, bool condition) {                        \
    return condition ? when_true : when_false;                                                 \
  }
EMULATOR_INTEGERS(EMULATOR_SCALAR)
EMULATOR_SCALAR(float)
EMULATOR_SCALAR(half)
#undef EMULATOR_SCALAR
EMULATOR_INLINE bool select(bool when_false, bool when_true, bool condition) {
  return condition ? when_true : when_false;
}

EMULATOR_REFUSED(max)
EMULATOR_REFUSED(min)
EMULATOR_REFUSED(abs)
EMULATOR_REFUSED(max3)
EMULATOR_REFUSED(min3)
EMULATOR_REFUSED(clamp)
EMULATOR_REFUSED(select)
EMULATOR_BINARY_VECTOR(max)
EMULATOR_BINARY_VECTOR(min)
EMULATOR_BINARY_VECTOR(mulhi)
EMULATOR_BINARY_VECTOR(rotate)
EMULATOR_BINARY_VECTOR(absdiff)
EMULATOR_UNARY_VECTOR(abs)
EMULATOR_UNARY_VECTOR(popcount)
EMULATOR_UNARY_VECTOR(clz)
EMULATOR_UNARY_VECTOR(ctz)
EMULATOR_TERNARY_VECTOR(max3)
EMULATOR_TERNARY_VECTOR(min3)
EMULATOR_TERNARY_VECTOR(clamp)

// --- relations

template <typename T, int N>
EMULATOR_INLINE vec<T, N> select(const vec<T, N>& when_false, const vec<T, N>& when_true,
                                 const vec<bool, N>& condition) {
  return emulator::map<T, N>([](T a, T b, bool c) { return c ? b : a; }, when_false, when_true,
                             condition);
}
template <typename T, int N>
EMULATOR_INLINE vec<T, N> select(const vec<T, N>& when_false, const vec<T, N>& when_true,
                                 bool condition) {
  return condition ? when_true : when_false;
}

template <int N>
EMULATOR_INLINE bool all(const vec<bool, N>& x) {
  EMULATOR_EACH(if (!x.data[i]) return false);
  return true;
}
template <int N>
EMULATOR_INLINE bool any(const vec<bool, N>& x) { return !all(!x); }

// --- geometry

template <typename T, int N>
EMULATOR_INLINE T dot(const vec<T, N>& x, const vec<T, N>& y) {
  T sum = x.data[0] * y.data[0];
  for (int i = 1; i < N; ++i) sum += x.data[i] * y.data[i];
  return sum;
}
template <typename T, int N>
EMULATOR_INLINE T length_squared(const vec<T, N>& x) { return dot(x, x); }
template <typename T, int N>
EMULATOR_INLINE T length(const vec<T, N>& x) { return sqrt(dot(x, x)); }
template <typename T, int N>
EMULATOR_INLINE T distance(const vec<T, N>& x, const vec<T, N>& y) { return length(x - y); }
template <typename T, int N>
EMULATOR_INLINE vec<T, N> normalize(const vec<T, N>& x) { return x * rsqrt(dot(x, x)); }
template <typename T>
EMULATOR_INLINE vec<T, 3> cross(const vec<T, 3>& a, const vec<T, 3>& b) {
  return vec<T, 3>(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x);
}

#undef EMULATOR_UNARY_VECTOR
#undef EMULATOR_BINARY_VECTOR
#undef EMULATOR_TERNARY_VECTOR
#undef EMULATOR_REFUSED
#undef EMULATOR_INTEGERS

namespace fast {
using namespace metal;
}
namespace precise {
using namespace metal;
}

}  // namespace metal
