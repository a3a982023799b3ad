// Scalar types: half, bfloat, and what the integers are called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "element.h"

using std::int8_t;
using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;
using half = _Float16;

constexpr half operator""h(long double value) { return static_cast<half>(value); }
constexpr half operator""H(long double value) { return static_cast<half>(value); }

// bfloat16: the upper half of a float. Arithmetic is float32, rounded after each operation.
//
// It becomes a float by itself, and nothing else: other conversions to and from floating point are
// written out.
class bfloat {
 public:
  bfloat() = default;
  template <typename T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
  EMULATOR_INLINE bfloat(T value) : bfloat(static_cast<float>(value)) {}
  template <typename T, std::enable_if_t<std::is_floating_point_v<T> || std::is_same_v<T, half>,
                                         int> = 0>
  EMULATOR_INLINE explicit bfloat(T value)
      : bits_(emulator::bfloat_bits(static_cast<float>(value))) {}

  // As templates: no conversion follows that of the class.
  template <typename T, std::enable_if_t<std::is_same_v<T, float>, int> = 0>
  EMULATOR_INLINE operator T() const {
    return wide();
  }
  template <typename T, std::enable_if_t<std::is_arithmetic_v<T> && !std::is_same_v<T, float>,
                                         int> = 0>
  EMULATOR_INLINE explicit operator T() const {
    return static_cast<T>(wide());
  }
  template <typename T, std::enable_if_t<std::is_same_v<T, half>, int> = 0>
  EMULATOR_INLINE explicit operator T() const {
    return static_cast<half>(wide());
  }

 private:
  EMULATOR_INLINE float wide() const {
    const std::uint32_t bits = std::uint32_t{bits_} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

  std::uint16_t bits_;
};

inline bfloat operator""bf(long double value) { return bfloat(value); }
inline bfloat operator""BF(long double value) { return bfloat(value); }

namespace emulator {

template <typename T>
constexpr bool is_floating = std::is_same_v<T, float> || std::is_same_v<T, half> ||
                             std::is_same_v<T, bfloat> || std::is_same_v<T, double>;
template <typename T>
constexpr bool is_scalar = std::is_integral_v<T> || is_floating<T>;

template <typename T>
using if_scalar = std::enable_if_t<is_scalar<T>, int>;
template <typename T>
using if_floating = std::enable_if_t<is_floating<T>, int>;
template <typename T>
using if_integer = std::enable_if_t<std::is_integral_v<T>, int>;

// What bfloat and another scalar give: float wins, an integer becomes bfloat, half is a mistake.
template <typename T>
using with_bfloat = std::conditional_t<std::is_same_v<T, float>, float, bfloat>;
template <typename T>
using if_with_bfloat = std::enable_if_t<std::is_integral_v<T> || std::is_same_v<T, float>, int>;

EMULATOR_INLINE float rounded_to(float, float value) { return value; }
EMULATOR_INLINE bfloat rounded_to(bfloat, float value) { return bfloat(value); }

}  // namespace emulator

#define EMULATOR_BFLOAT_OPERATOR(op)                                                      \
  EMULATOR_INLINE bfloat operator op(bfloat a, bfloat b) {                                \
    return bfloat(float(a) op float(b));                                                  \
  }                                                                                       \
  template <typename T, emulator::if_with_bfloat<T> = 0>                                  \
  EMULATOR_INLINE emulator::with_bfloat<T> operator op(bfloat a, T b) {                   \
    return emulator::rounded_to(emulator::with_bfloat<T>(), float(a) op float(b));        \
  }                                                                                       \
  template <typename T, emulator::if_with_bfloat<T> = 0>                                  \
  EMULATOR_INLINE emulator::with_bfloat<T> operator op(T a, bfloat b) {                   \
    return emulator::rounded_to(emulator::with_bfloat<T>(), float(a) op float(b));        \
  }                                                                                       \
  template <typename T>                                                                   \
  EMULATOR_INLINE bfloat& operator op##=(bfloat& a, T b) {                                \
    return a = bfloat(float(a) op float(b));                                              \
  }
EMULATOR_BFLOAT_OPERATOR(+)
EMULATOR_BFLOAT_OPERATOR(-)
EMULATOR_BFLOAT_OPERATOR(*)
EMULATOR_BFLOAT_OPERATOR(/)
#undef EMULATOR_BFLOAT_OPERATOR

EMULATOR_INLINE bfloat operator-(bfloat a) { return bfloat(-float(a)); }

// Comparisons convert both, to float.
#define EMULATOR_BFLOAT_COMPARISON(op)                                                     \
  EMULATOR_INLINE bool operator op(bfloat a, bfloat b) { return float(a) op float(b); }    \
  template <typename T, emulator::if_with_bfloat<T> = 0>                                   \
  EMULATOR_INLINE bool operator op(bfloat a, T b) { return float(a) op float(b); }         \
  template <typename T, emulator::if_with_bfloat<T> = 0>                                   \
  EMULATOR_INLINE bool operator op(T a, bfloat b) { return float(a) op float(b); }
EMULATOR_BFLOAT_COMPARISON(==)
EMULATOR_BFLOAT_COMPARISON(!=)
EMULATOR_BFLOAT_COMPARISON(<)
EMULATOR_BFLOAT_COMPARISON(<=)
EMULATOR_BFLOAT_COMPARISON(>)
EMULATOR_BFLOAT_COMPARISON(>=)
#undef EMULATOR_BFLOAT_COMPARISON

// Reinterprets bits, as `as_type<float>(0x3f800000u)`.
template <typename To, typename From>
EMULATOR_INLINE To as_type(From value) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  To result;
  std::memcpy(static_cast<void*>(&result), &value, sizeof result);
  return result;
}

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#define HUGE_VALF (__builtin_inff())
#define MAXFLOAT (__FLT_MAX__)
#define FLT_MAX (__FLT_MAX__)
#define FLT_MIN (__FLT_MIN__)
#define FLT_EPSILON (__FLT_EPSILON__)
#define MAXHALF (half(65504))
#define HALF_MAX (half(65504))
#define HALF_MIN (half(6.103515625e-5f))
#define HALF_EPSILON (half(9.765625e-4f))
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.434294481903251827651f
#define M_LN2_F 0.693147180559945309417f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.785398163397448309616f
#define M_1_PI_F 0.318309886183790671538f
#define M_2_PI_F 0.636619772367581343076f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.707106781186547524401f

#ifndef INT_MAX
#define CHAR_MAX 127
#define CHAR_MIN (-128)
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define SHRT_MIN (-32768)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX 9223372036854775807l
#define LONG_MIN (-9223372036854775807l - 1)
#define ULONG_MAX 18446744073709551615ul
#endif

namespace metal {

using ::as_type;
using std::bool_constant;
using std::conditional;
using std::conditional_t;
using std::enable_if;
using std::enable_if_t;
using std::false_type;
using std::integral_constant;
using std::is_const;
using std::is_convertible;
using std::is_convertible_v;
using std::is_floating_point;
using std::is_floating_point_v;
using std::is_integral;
using std::is_integral_v;
using std::is_same;
using std::is_same_v;
using std::is_signed;
using std::is_unsigned;
using std::make_signed_t;
using std::make_unsigned_t;
using std::ptrdiff_t;
using std::remove_const_t;
using std::remove_cv_t;
using std::remove_reference_t;
using std::size_t;
using std::true_type;

// The host has one address space.
template <typename T>
using remove_addrspace_t = T;

template <typename T>
struct numeric_limits {
  static_assert(std::is_integral_v<T>);
  static constexpr bool is_signed = T(-1) < T(0);
  static constexpr int digits = int(sizeof(T)) * 8 - (is_signed ? 1 : 0);
  static constexpr T max() { return T(~std::uint64_t{0} >> (64 - digits)); }
  static constexpr T min() { return is_signed ? T(-max() - 1) : T(0); }
  static constexpr T lowest() { return min(); }
};

template <>
struct numeric_limits<float> {
  static constexpr float max() { return FLT_MAX; }
  static constexpr float min() { return FLT_MIN; }
  static constexpr float lowest() { return -FLT_MAX; }
  static constexpr float epsilon() { return FLT_EPSILON; }
  static constexpr float infinity() { return INFINITY; }
  static constexpr float quiet_NaN() { return NAN; }
};

template <>
struct numeric_limits<half> {
  static constexpr half max() { return HALF_MAX; }
  static constexpr half min() { return HALF_MIN; }
  static constexpr half lowest() { return -HALF_MAX; }
  static constexpr half epsilon() { return HALF_EPSILON; }
  static constexpr half infinity() { return half(INFINITY); }
  static constexpr half quiet_NaN() { return half(NAN); }
};

template <>
struct numeric_limits<bfloat> {
  static bfloat max() { return as_type<bfloat>(std::uint16_t{0x7f7f}); }
  static bfloat min() { return as_type<bfloat>(std::uint16_t{0x0080}); }
  static bfloat lowest() { return as_type<bfloat>(std::uint16_t{0xff7f}); }
  static bfloat epsilon() { return bfloat(0.0078125f); }
  static bfloat infinity() { return bfloat(INFINITY); }
  static bfloat quiet_NaN() { return bfloat(NAN); }
};

}  // namespace metal
