// vec<T, N> and packed_vec<T, N>: sizes and alignments are those of the specification, so that an
// address which Metal refuses is misaligned here too.
#pragma once

#include "scalar.h"

namespace metal {

template <typename T, int N>
struct vec;

}  // namespace metal

namespace emulator {

// What a vector is copied by: one machine vector, so that a copy is one access of the whole.
// (A copy by components would let the compiler read those that are used.)
template <int Bytes>
using integer_of_size = std::conditional_t<
    Bytes == 1, std::uint8_t,
    std::conditional_t<Bytes == 2, std::uint16_t,
                       std::conditional_t<Bytes == 4, std::uint32_t, std::uint64_t>>>;

template <typename T, int N>
struct raw_vector {
  using integer = integer_of_size<sizeof(T)>;
  typedef integer type __attribute__((vector_size(sizeof(T) * (N == 3 ? 4 : N))));
};

// Components of a vector that can be read and assigned together, as v.xy. `V` is the vector that
// they make; as a template argument it lets the vector's operators be found for a swizzle.
template <typename V, typename T, int Room, int... I>
struct swizzle {
  T data[Room];

  EMULATOR_INLINE operator V() const { return V(data[I]...); }
  EMULATOR_INLINE swizzle& operator=(V value) {
    int i = 0;
    ((data[I] = value[i++]), ...);
    return *this;
  }
  EMULATOR_INLINE swizzle& operator=(const swizzle& other) { return *this = V(other); }
  EMULATOR_INLINE swizzle& operator+=(V value) { return *this = V(*this) + value; }
  EMULATOR_INLINE swizzle& operator-=(V value) { return *this = V(*this) - value; }
  EMULATOR_INLINE swizzle& operator*=(V value) { return *this = V(*this) * value; }
  EMULATOR_INLINE swizzle& operator/=(V value) { return *this = V(*this) / value; }
};

template <typename T, int N>
struct storage;

// The swizzles of two components that differ, and the longer ones that are used in practice.
template <typename T>
struct storage<T, 2> {
  union {
    struct { T x, y; };
    struct { T r, g; };
    T data[2];
    swizzle<metal::vec<T, 2>, T, 2, 0, 1> xy;
    swizzle<metal::vec<T, 2>, T, 2, 1, 0> yx;
    typename raw_vector<T, 2>::type raw;
  };
};

template <typename T>
struct storage<T, 3> {
  union {
    struct { T x, y, z; };
    struct { T r, g, b; };
    T data[4];
    swizzle<metal::vec<T, 2>, T, 4, 0, 1> xy;
    swizzle<metal::vec<T, 2>, T, 4, 0, 2> xz;
    swizzle<metal::vec<T, 2>, T, 4, 1, 0> yx;
    swizzle<metal::vec<T, 2>, T, 4, 1, 2> yz;
    swizzle<metal::vec<T, 2>, T, 4, 2, 0> zx;
    swizzle<metal::vec<T, 2>, T, 4, 2, 1> zy;
    swizzle<metal::vec<T, 3>, T, 4, 0, 1, 2> xyz;
    typename raw_vector<T, 3>::type raw;
  };
};

template <typename T>
struct storage<T, 4> {
  union {
    struct { T x, y, z, w; };
    struct { T r, g, b, a; };
    T data[4];
    swizzle<metal::vec<T, 2>, T, 4, 0, 1> xy;
    swizzle<metal::vec<T, 2>, T, 4, 0, 2> xz;
    swizzle<metal::vec<T, 2>, T, 4, 0, 3> xw;
    swizzle<metal::vec<T, 2>, T, 4, 1, 0> yx;
    swizzle<metal::vec<T, 2>, T, 4, 1, 2> yz;
    swizzle<metal::vec<T, 2>, T, 4, 1, 3> yw;
    swizzle<metal::vec<T, 2>, T, 4, 2, 0> zx;
    swizzle<metal::vec<T, 2>, T, 4, 2, 1> zy;
    swizzle<metal::vec<T, 2>, T, 4, 2, 3> zw;
    swizzle<metal::vec<T, 2>, T, 4, 3, 0> wx;
    swizzle<metal::vec<T, 2>, T, 4, 3, 1> wy;
    swizzle<metal::vec<T, 2>, T, 4, 3, 2> wz;
    swizzle<metal::vec<T, 3>, T, 4, 0, 1, 2> xyz;
    swizzle<metal::vec<T, 3>, T, 4, 1, 2, 3> yzw;
    swizzle<metal::vec<T, 4>, T, 4, 0, 1, 2, 3> xyzw;
    swizzle<metal::vec<T, 4>, T, 4, 3, 2, 1, 0> wzyx;
    typename raw_vector<T, 4>::type raw;
  };
};

template <typename T, int N>
struct packed_storage;

template <typename T>
struct packed_storage<T, 2> {
  union {
    struct { T x, y; };
    T data[2];
  };
};

template <typename T>
struct packed_storage<T, 3> {
  union {
    struct { T x, y, z; };
    T data[3];
  };
};

template <typename T>
struct packed_storage<T, 4> {
  union {
    struct { T x, y, z, w; };
    T data[4];
  };
};

template <typename T>
constexpr int width = 1;
template <typename T, int N>
constexpr int width<metal::vec<T, N>> = N;
template <typename V, typename T, int Room, int... I>
constexpr int width<swizzle<V, T, Room, I...>> = sizeof...(I);

}  // namespace emulator

// A statement about each of N components, `i`. Not a loop: these are inlined all over a kernel.
#define EMULATOR_EACH(...)                        \
  do {                                            \
    { constexpr int i = 0; __VA_ARGS__; }         \
    { constexpr int i = 1; __VA_ARGS__; }         \
    if constexpr (N > 2) { constexpr int i = 2; __VA_ARGS__; } \
    if constexpr (N > 3) { constexpr int i = 3; __VA_ARGS__; } \
  } while (false)

namespace metal {

// The elementwise operators are friends, so that a scalar operand converts to a vector.
#define EMULATOR_VECTOR_OPERATOR(op)                                          \
  EMULATOR_INLINE friend vec operator op(const vec& a, const vec& b) {        \
    vec result;                                                               \
    EMULATOR_EACH(result.data[i] = T(a.data[i] op b.data[i]));   \
    return result;                                                            \
  }                                                                           \
  EMULATOR_INLINE vec& operator op##=(const vec& other) { return *this = *this op other; }

#define EMULATOR_VECTOR_COMPARISON(op)                                           \
  EMULATOR_INLINE friend vec<bool, N> operator op(const vec& a, const vec& b) {  \
    vec<bool, N> result;                                                         \
    EMULATOR_EACH(result.data[i] = bool(a.data[i] op b.data[i]));   \
    return result;                                                               \
  }

template <typename T, int N>
struct vec : emulator::storage<T, N> {
  static_assert(N >= 2 && N <= 4 && emulator::is_scalar<T>);
  using base = emulator::storage<T, N>;
  using base::data;
  using base::raw;

  vec() = default;
  vec(const vec& other) = default;  // trivial: an argument is passed in registers
  EMULATOR_INLINE vec& operator=(const vec& other) {
    raw = other.raw;
    return *this;
  }

  template <typename S, emulator::if_scalar<S> = 0>
  EMULATOR_INLINE vec(S value) {
    EMULATOR_EACH(data[i] = T(value));
  }
  template <typename U>
  EMULATOR_INLINE explicit vec(const vec<U, N>& other) {
    EMULATOR_EACH(data[i] = T(other.data[i]));
  }
  // From components, of which some may be vectors: float4(a.xy, 0, 1).
  template <typename A, typename B, typename... More>
  EMULATOR_INLINE vec(const A& a, const B& b, const More&... more) {
    static_assert((emulator::width<A> + ... + emulator::width<More>) + emulator::width<B> == N,
                  "a vector is made from as many components as it has");
    int at = 0;
    append(at, a);
    append(at, b);
    (append(at, more), ...);
  }

  EMULATOR_INLINE T& operator[](int i) { return data[i]; }
  EMULATOR_INLINE const T& operator[](int i) const { return data[i]; }

  EMULATOR_VECTOR_OPERATOR(+)
  EMULATOR_VECTOR_OPERATOR(-)
  EMULATOR_VECTOR_OPERATOR(*)
  EMULATOR_VECTOR_OPERATOR(/)
  EMULATOR_VECTOR_OPERATOR(%)
  EMULATOR_VECTOR_OPERATOR(&)
  EMULATOR_VECTOR_OPERATOR(|)
  EMULATOR_VECTOR_OPERATOR(^)
  EMULATOR_VECTOR_OPERATOR(<<)
  EMULATOR_VECTOR_OPERATOR(>>)
  EMULATOR_VECTOR_COMPARISON(==)
  EMULATOR_VECTOR_COMPARISON(!=)
  EMULATOR_VECTOR_COMPARISON(<)
  EMULATOR_VECTOR_COMPARISON(<=)
  EMULATOR_VECTOR_COMPARISON(>)
  EMULATOR_VECTOR_COMPARISON(>=)
  EMULATOR_VECTOR_COMPARISON(&&)
  EMULATOR_VECTOR_COMPARISON(||)

  EMULATOR_INLINE vec operator-() const {
    vec result;
    EMULATOR_EACH(result.data[i] = T(-data[i]));
    return result;
  }
  EMULATOR_INLINE vec operator~() const {
    vec result;
    EMULATOR_EACH(result.data[i] = T(~data[i]));
    return result;
  }
  EMULATOR_INLINE vec<bool, N> operator!() const {
    vec<bool, N> result;
    EMULATOR_EACH(result.data[i] = !data[i]);
    return result;
  }

 private:
  template <typename S, emulator::if_scalar<S> = 0>
  EMULATOR_INLINE void append(int& at, const S& value) {
    data[at++] = T(value);
  }
  template <typename U, int M>
  EMULATOR_INLINE void append(int& at, const vec<U, M>& values) {
    for (int i = 0; i < M; ++i) data[at++] = T(values.data[i]);
  }
  template <typename V, typename U, int Room, int... I>
  EMULATOR_INLINE void append(int& at, const emulator::swizzle<V, U, Room, I...>& values) {
    append(at, V(values));
  }
};

#undef EMULATOR_VECTOR_OPERATOR
#undef EMULATOR_VECTOR_COMPARISON

// A vector as an array has it: aligned as one component, three components in the room of three.
// `V` lets the vector's operators be found for a packed one.
template <typename T, int N, typename V = vec<T, N>>
struct packed_vec : emulator::packed_storage<T, N> {
  using emulator::packed_storage<T, N>::data;

  packed_vec() = default;
  EMULATOR_INLINE packed_vec(const vec<T, N>& value) {
    EMULATOR_EACH(data[i] = value.data[i]);
  }
  template <typename S, emulator::if_scalar<S> = 0>
  EMULATOR_INLINE packed_vec(S value) : packed_vec(vec<T, N>(value)) {}
  template <typename A, typename B, typename... More>
  EMULATOR_INLINE packed_vec(const A& a, const B& b, const More&... more)
      : packed_vec(vec<T, N>(a, b, more...)) {}

  EMULATOR_INLINE operator vec<T, N>() const {
    vec<T, N> result;
    EMULATOR_EACH(result.data[i] = data[i]);
    return result;
  }
  EMULATOR_INLINE T& operator[](int i) { return data[i]; }
  EMULATOR_INLINE const T& operator[](int i) const { return data[i]; }

  EMULATOR_INLINE packed_vec& operator+=(const V& other) { return *this = V(*this) + other; }
  EMULATOR_INLINE packed_vec& operator-=(const V& other) { return *this = V(*this) - other; }
  EMULATOR_INLINE packed_vec& operator*=(const V& other) { return *this = V(*this) * other; }
  EMULATOR_INLINE packed_vec& operator/=(const V& other) { return *this = V(*this) / other; }
};

}  // namespace metal

#define EMULATOR_VECTOR_NAMES(type)      \
  using type##2 = metal::vec<type, 2>;   \
  using type##3 = metal::vec<type, 3>;   \
  using type##4 = metal::vec<type, 4>;   \
  using packed_##type##2 = metal::packed_vec<type, 2>; \
  using packed_##type##3 = metal::packed_vec<type, 3>; \
  using packed_##type##4 = metal::packed_vec<type, 4>;
EMULATOR_VECTOR_NAMES(bool)
EMULATOR_VECTOR_NAMES(char)
EMULATOR_VECTOR_NAMES(uchar)
EMULATOR_VECTOR_NAMES(short)
EMULATOR_VECTOR_NAMES(ushort)
EMULATOR_VECTOR_NAMES(int)
EMULATOR_VECTOR_NAMES(uint)
EMULATOR_VECTOR_NAMES(long)
EMULATOR_VECTOR_NAMES(ulong)
EMULATOR_VECTOR_NAMES(half)
EMULATOR_VECTOR_NAMES(bfloat)
EMULATOR_VECTOR_NAMES(float)
#undef EMULATOR_VECTOR_NAMES
