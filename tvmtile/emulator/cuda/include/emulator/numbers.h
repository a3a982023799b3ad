// Functions on numbers that CUDA declares for devices only. Those that CUDA gives an error of some units
// in the last place come from the host's library, which is nearer to the truth.
#pragma once

#define EMULATOR_FUNCTION(declaration, ...) \
  inline declaration { return __VA_ARGS__; }

// --- bits of numbers

EMULATOR_FUNCTION(float __int_as_float(int x), __builtin_bit_cast(float, x))
EMULATOR_FUNCTION(float __uint_as_float(unsigned x), __builtin_bit_cast(float, x))
EMULATOR_FUNCTION(int __float_as_int(float x), __builtin_bit_cast(int, x))
EMULATOR_FUNCTION(unsigned __float_as_uint(float x), __builtin_bit_cast(unsigned, x))
EMULATOR_FUNCTION(double __longlong_as_double(long long x), __builtin_bit_cast(double, x))
EMULATOR_FUNCTION(long long __double_as_longlong(double x), __builtin_bit_cast(long long, x))
EMULATOR_FUNCTION(double __hiloint2double(int high, int low),
                  __builtin_bit_cast(double, std::uint64_t(unsigned(high)) << 32 | unsigned(low)))
EMULATOR_FUNCTION(int __double2hiint(double x), int(__builtin_bit_cast(std::uint64_t, x) >> 32))
EMULATOR_FUNCTION(int __double2loint(double x), int(__builtin_bit_cast(std::uint64_t, x)))

// --- integers

EMULATOR_FUNCTION(int __popc(unsigned x), __builtin_popcount(x))
EMULATOR_FUNCTION(int __popcll(unsigned long long x), __builtin_popcountll(x))
EMULATOR_FUNCTION(int __clz(int x), x == 0 ? 32 : __builtin_clz(unsigned(x)))
EMULATOR_FUNCTION(int __clzll(long long x), x == 0 ? 64 : __builtin_clzll((unsigned long long)x))
EMULATOR_FUNCTION(int __ffs(int x), __builtin_ffs(x))
EMULATOR_FUNCTION(int __ffsll(long long x), __builtin_ffsll(x))
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1u) << (31 - i);
  return reversed;
}
inline unsigned long long __brevll(unsigned long long x) {
  return (unsigned long long)__brev(unsigned(x)) << 32 | __brev(unsigned(x >> 32));
}
namespace emulator {
// The same bits.
template <typename To, typename From>
To as(From from) {
  static_assert(sizeof(To) == sizeof from, "the same bits");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// Of pairs of numbers of 16 bits: products are added in double, which rounds none of them.
__forceinline__ __half fused(__half a, __half b, __half c) {
  return __double2half(double(float(a)) * float(b) + float(c));
}
__forceinline__ __nv_bfloat16 fused(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __double2bfloat16(double(float(a)) * float(b) + float(c));
}
template <typename Pair>
Pair fused_pair(Pair a, Pair b, Pair c) {
  return {fused(a.x, b.x, c.x), fused(a.y, b.y, c.y)};
}

// Of each bit of three words, what a table of 8 bits says.
inline unsigned lop3(unsigned a, unsigned b, unsigned c, unsigned table) {
  unsigned result = 0;
  for (unsigned row = 0; row < 8; ++row) {
    if (table >> row & 1) result |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
  }
  return result;
}
inline unsigned prmt(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned select = selector >> 4 * i & 0xf;
    unsigned byte = unsigned(bytes >> 8 * (select & 7)) & 0xff;
    if (select & 8) byte = byte & 0x80 ? 0xff : 0;  // the sign, all over
    result |= byte << 8 * i;
  }
  return result;
}
}  // namespace emulator
EMULATOR_FUNCTION(unsigned __byte_perm(unsigned x, unsigned y, unsigned selector),
                  emulator::prmt(x, y, selector & 0x7777))
EMULATOR_FUNCTION(int __mulhi(int a, int b), int((long long)a * b >> 32))
EMULATOR_FUNCTION(unsigned __umulhi(unsigned a, unsigned b), unsigned(std::uint64_t(a) * b >> 32))
EMULATOR_FUNCTION(unsigned long long __umul64hi(unsigned long long a, unsigned long long b),
                  (unsigned long long)((unsigned __int128)a * b >> 64))
EMULATOR_FUNCTION(int __mul24(int a, int b), (a << 8 >> 8) * (b << 8 >> 8))
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return unsigned((std::uint64_t(high) << 32 | low) << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return unsigned((std::uint64_t(high) << 32 | low) >> (by & 31));
}
namespace emulator {
// The products of four bytes of a and of b, each as its type has it, added to a sum that wraps.
template <class A, class B>
unsigned dp4a(unsigned a, unsigned b, unsigned sum) {
  for (int i = 0; i < 32; i += 8) sum += unsigned(int(A(a >> i)) * int(B(b >> i)));
  return sum;
}
}  // namespace emulator
EMULATOR_FUNCTION(int __dp4a(int a, int b, int sum),
                  int(::emulator::dp4a<std::int8_t, std::int8_t>(a, b, sum)))
EMULATOR_FUNCTION(unsigned __dp4a(unsigned a, unsigned b, unsigned sum),
                  (::emulator::dp4a<std::uint8_t, std::uint8_t>(a, b, sum)))
inline unsigned __fns(unsigned mask, unsigned base, int offset) {
  const int step = offset < 0 ? -1 : 1;
  int left = offset < 0 ? -offset : offset;
  if (offset == 0) return base < 32 && mask >> base & 1 ? base : ~0u;
  for (int i = int(base); i >= 0 && i < 32; i += step) {
    if (mask >> i & 1 && --left == 0) return unsigned(i);
  }
  return ~0u;
}

#define EMULATOR_EXTREMA(T)                                   \
  EMULATOR_FUNCTION(T min(T a, T b), b < a ? b : a)           \
  EMULATOR_FUNCTION(T max(T a, T b), a < b ? b : a)
EMULATOR_EXTREMA(int)
EMULATOR_EXTREMA(unsigned)
EMULATOR_EXTREMA(long)
EMULATOR_EXTREMA(unsigned long)
EMULATOR_EXTREMA(long long)
EMULATOR_EXTREMA(unsigned long long)
#undef EMULATOR_EXTREMA
EMULATOR_FUNCTION(unsigned min(int a, unsigned b), min(unsigned(a), b))
EMULATOR_FUNCTION(unsigned min(unsigned a, int b), min(a, unsigned(b)))
EMULATOR_FUNCTION(unsigned max(int a, unsigned b), max(unsigned(a), b))
EMULATOR_FUNCTION(unsigned max(unsigned a, int b), max(a, unsigned(b)))
EMULATOR_FUNCTION(float min(float a, float b), fminf(a, b))
EMULATOR_FUNCTION(float max(float a, float b), fmaxf(a, b))
EMULATOR_FUNCTION(double min(double a, double b), fmin(a, b))
EMULATOR_FUNCTION(double max(double a, double b), fmax(a, b))

template <typename T>
T __ldg(const T* place) {
  return *place;
}
template <typename T>
T __ldcs(const T* place) {
  return *place;
}
template <typename T>
T __ldcg(const T* place) {
  return *place;
}

// --- floats

EMULATOR_FUNCTION(float rsqrtf(float x), 1.0f / sqrtf(x))
EMULATOR_FUNCTION(double rsqrt(double x), 1.0 / sqrt(x))
EMULATOR_FUNCTION(float sinpif(float x), float(sin(CUDART_PI * double(x))))
EMULATOR_FUNCTION(float cospif(float x), float(cos(CUDART_PI * double(x))))
EMULATOR_FUNCTION(float normcdff(float x), float(0.5 * erfc(-double(x) * CUDART_SQRT_HALF)))
EMULATOR_FUNCTION(float __saturatef(float x), x > 0 ? (x < 1 ? x : 1.0f) : 0.0f)
EMULATOR_FUNCTION(float __fdividef(float a, float b), a / b)
EMULATOR_FUNCTION(float __expf(float x), expf(x))
EMULATOR_FUNCTION(float __exp10f(float x), exp10f(x))
EMULATOR_FUNCTION(float __logf(float x), logf(x))
EMULATOR_FUNCTION(float __log2f(float x), log2f(x))
EMULATOR_FUNCTION(float __log10f(float x), log10f(x))
EMULATOR_FUNCTION(float __sinf(float x), sinf(x))
EMULATOR_FUNCTION(float __cosf(float x), cosf(x))
EMULATOR_FUNCTION(float __tanf(float x), tanf(x))
EMULATOR_FUNCTION(float __powf(float x, float y), powf(x, y))

// Rounding as a suffix says: the exact result lies between two floats, of which one is taken.
namespace emulator {
enum class Toward { kNearest, kZero, kBelow, kAbove };

// `near` is the exact result rounded to nearest, `error` has the sign of what that leaves out.
inline float rounded(float near, double error, Toward toward) {
  if (error == 0 || near - near != 0) return near;
  const bool above = error > 0;  // the exact result is above
  const bool up = toward == Toward::kAbove || (toward == Toward::kZero && near < 0);
  const bool down = toward == Toward::kBelow || (toward == Toward::kZero && near > 0);
  if (above && up) return nextafterf(near, __builtin_inff());
  if (!above && down) return nextafterf(near, -__builtin_inff());
  return near;
}
inline float narrowed(double exact, Toward toward) {
  const auto near = static_cast<float>(exact);
  return rounded(near, exact - near, toward);
}
// A fused operation, so that no compiler makes the product a part of another sum.
inline float product(float a, float b, Toward toward) {
  const float near = fmaf(a, b, -0.0f);
  return rounded(near, double(a) * double(b) - near, toward);
}
// Sums of two floats may need more bits than a double has; their error is a float's.
inline float sum(float a, float b, Toward toward) {
  const float near = a + b;
  const float rest = near - a;
  const float error = (a - (near - rest)) + (b - rest);
  return rounded(near, error, toward);
}
inline float quotient(float a, float b, Toward toward) {
  const float near = a / b;
  const double error = double(a) - double(near) * double(b);
  return rounded(near, b < 0 ? -error : error, toward);
}
inline float root(float x, Toward toward) {
  const float near = sqrtf(x);
  return rounded(near, double(x) - double(near) * double(near), toward);
}
inline float fused(float a, float b, float c, Toward toward) {
  const float near = fmaf(a, b, c);
  const double product = double(a) * double(b);  // exact
  const double total = product + c, rest = total - product;
  const double lost = (product - (total - rest)) + (c - rest);
  const double left = total - near;
  return rounded(near, left != 0 ? left : lost, toward);
}
}  // namespace emulator

#define EMULATOR_ROUNDED(suffix, toward)                                                        \
  EMULATOR_FUNCTION(float __fadd_##suffix(float a, float b), emulator::sum(a, b, toward))       \
  EMULATOR_FUNCTION(float __fsub_##suffix(float a, float b), emulator::sum(a, -b, toward))      \
  EMULATOR_FUNCTION(float __fmul_##suffix(float a, float b),                                    \
                    emulator::product(a, b, toward))                                            \
  EMULATOR_FUNCTION(float __fdiv_##suffix(float a, float b), emulator::quotient(a, b, toward))  \
  EMULATOR_FUNCTION(float __frcp_##suffix(float x), emulator::quotient(1.0f, x, toward))        \
  EMULATOR_FUNCTION(float __fsqrt_##suffix(float x), emulator::root(x, toward))                 \
  EMULATOR_FUNCTION(float __fmaf_##suffix(float a, float b, float c),                           \
                    emulator::fused(a, b, c, toward))                                           \
  EMULATOR_FUNCTION(float __double2float_##suffix(double x), emulator::narrowed(x, toward))     \
  EMULATOR_FUNCTION(float __int2float_##suffix(int x), emulator::narrowed(double(x), toward))   \
  EMULATOR_FUNCTION(float __uint2float_##suffix(unsigned x), emulator::narrowed(double(x), toward))
EMULATOR_ROUNDED(rn, emulator::Toward::kNearest)
EMULATOR_ROUNDED(rz, emulator::Toward::kZero)
EMULATOR_ROUNDED(rd, emulator::Toward::kBelow)
EMULATOR_ROUNDED(ru, emulator::Toward::kAbove)
#undef EMULATOR_ROUNDED
EMULATOR_FUNCTION(float __frsqrt_rn(float x), float(1.0 / sqrt(double(x))))

EMULATOR_FUNCTION(double __dadd_rn(double a, double b), a + b)
EMULATOR_FUNCTION(double __dsub_rn(double a, double b), a - b)
EMULATOR_FUNCTION(double __dmul_rn(double a, double b), fma(a, b, -0.0))
EMULATOR_FUNCTION(double __ddiv_rn(double a, double b), a / b)
EMULATOR_FUNCTION(double __dsqrt_rn(double x), sqrt(x))
EMULATOR_FUNCTION(double __fma_rn(double a, double b, double c), fma(a, b, c))

// To integers: what does not fit becomes the nearest that does, NaN becomes 0.
namespace emulator {
template <typename T, typename F>
T to_integer(F x) {
  const F low = F(std::numeric_limits<T>::min()), high = F(std::numeric_limits<T>::max());
  if (x != x) return 0;
  if (x <= low) return std::numeric_limits<T>::min();
  return x >= high ? std::numeric_limits<T>::max() : T(x);
}
}  // namespace emulator
#define EMULATOR_TO_INTEGER(from, F, suffix, round)                                               \
  template <typename = void>                                                                      \
  EMULATOR_FUNCTION(int __##from##2int_##suffix(F x), emulator::to_integer<int>(round(x)))        \
  template <typename = void>                                                                      \
  EMULATOR_FUNCTION(unsigned __##from##2uint_##suffix(F x), emulator::to_integer<unsigned>(round(x))) \
  template <typename = void>                                                                      \
  EMULATOR_FUNCTION(long long __##from##2ll_##suffix(F x), emulator::to_integer<long long>(round(x))) \
  template <typename = void>                                                                      \
  EMULATOR_FUNCTION(unsigned long long __##from##2ull_##suffix(F x),                              \
                    emulator::to_integer<unsigned long long>(round(x)))
EMULATOR_TO_INTEGER(float, float, rn, rintf)
EMULATOR_TO_INTEGER(float, float, rz, truncf)
EMULATOR_TO_INTEGER(float, float, rd, floorf)
EMULATOR_TO_INTEGER(float, float, ru, ceilf)
EMULATOR_TO_INTEGER(double, double, rn, rint)
EMULATOR_TO_INTEGER(double, double, rz, trunc)
EMULATOR_TO_INTEGER(double, double, rd, floor)
EMULATOR_TO_INTEGER(double, double, ru, ceil)
#undef EMULATOR_TO_INTEGER

namespace emulator {
// Two numbers of 16 bits in a word, the first in the upper half.
template <typename T>
std::uint32_t pack(float upper, float lower);
template <>
inline std::uint32_t pack<__half>(float upper, float lower) {
  return std::uint32_t{__half_as_ushort(__float2half_rn(upper))} << 16 |
         __half_as_ushort(__float2half_rn(lower));
}
template <>
inline std::uint32_t pack<__nv_bfloat16>(float upper, float lower) {
  return std::uint32_t{__bfloat16_as_ushort(__float2bfloat16_rn(upper))} << 16 |
         __bfloat16_as_ushort(__float2bfloat16_rn(lower));
}
}  // namespace emulator
#undef EMULATOR_FUNCTION
