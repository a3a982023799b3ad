// simdgroup_matrix<T, 8, 8>: each lane holds two elements; all 32 lanes work together.
#pragma once

#include "matrix_layout.h"
#include "simdgroup.h"

namespace emulator {

template <typename T>
constexpr Element element_of = Element::kFloat;
template <>
constexpr Element element_of<half> = Element::kHalf;
template <>
constexpr Element element_of<bfloat> = Element::kBfloat;

}  // namespace emulator

namespace metal {

template <typename T, int Columns, int Rows = Columns>
class simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "simdgroup matrices are 8x8");
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, half> || std::is_same_v<T, bfloat>);

 public:
  using storage_type = vec<T, 2>;

  simdgroup_matrix() {
    emulator::poison(&elements_.x, emulator::element_of<T>);
    emulator::poison(&elements_.y, emulator::element_of<T>);
  }
  // A diagonal matrix.
  explicit simdgroup_matrix(T diagonal) : elements_(T(0)) {
    const uint lane = emulator::this_lane();
    const uint row = emulator::matrix_row(lane), column = emulator::matrix_column(lane);
    if (column == row) elements_.x = diagonal;
    if (column + 1 == row) elements_.y = diagonal;
  }

  storage_type& thread_elements() { return elements_; }
  const storage_type& thread_elements() const { return elements_; }

 private:
  storage_type elements_;
};

using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

template <typename T, int Columns, int Rows>
simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Columns, Rows> matrix;
  matrix.thread_elements() = vec<T, 2>(value);
  return matrix;
}

template <typename T, int Columns, int Rows>
simdgroup_matrix<T, Columns, Rows> make_diagonal_simdgroup_matrix(T value) {
  return simdgroup_matrix<T, Columns, Rows>(value);
}

// The matrix's rows are `elements_per_row` apart in memory; it starts at row origin.y and column
// origin.x of what `source` points to. Transposed, memory holds its columns.
template <typename T, int C, int R>
void simdgroup_load(simdgroup_matrix<T, C, R>& matrix, const T* source, ulong elements_per_row = C,
                    ulong2 origin = 0, bool transpose = false, int line = __builtin_LINE()) {
  vec<T, 2> elements;
  emulator::MatrixTransfer transfer{
      &elements, const_cast<T*>(source + origin.y * elements_per_row + origin.x), elements_per_row,
      emulator::element_of<T>, transpose};
  emulator::matrix_load({emulator::kMatrixLoad, "simdgroup_load", line}, transfer);
  matrix.thread_elements() = elements;
}

template <typename T, int C, int R>
void simdgroup_store(const simdgroup_matrix<T, C, R>& matrix, T* destination,
                     ulong elements_per_row = C, ulong2 origin = 0, bool transpose = false,
                     int line = __builtin_LINE()) {
  vec<T, 2> elements = matrix.thread_elements();
  emulator::MatrixTransfer transfer{
      &elements, destination + origin.y * elements_per_row + origin.x, elements_per_row,
      emulator::element_of<T>, transpose};
  emulator::matrix_store({emulator::kMatrixStore, "simdgroup_store", line}, transfer);
}

// Types of a product may differ, as half matrices that are accumulated in float ones; of half and
// bfloat neither becomes the other.
template <typename... T>
constexpr bool can_multiply =
    !((std::is_same_v<T, half> || ...) && (std::is_same_v<T, bfloat> || ...));

// d = a * b + c.
template <typename D, typename A, typename B, typename C>
void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                   const simdgroup_matrix<B, 8, 8>& b,
                                   const simdgroup_matrix<C, 8, 8>& c,
                                   int line = __builtin_LINE()) {
  static_assert(can_multiply<D, A, B, C>, "half and bfloat matrices are not multiplied together");
  emulator::MatrixMultiply multiply{
      &d, &a, &b, &c, emulator::element_of<D>, emulator::element_of<A>, emulator::element_of<B>,
      emulator::element_of<C>};
  emulator::matrix_multiply(
      {emulator::kMatrixMultiply, "simdgroup_multiply_accumulate", line}, multiply);
}

template <typename D, typename A, typename B>
void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                        const simdgroup_matrix<B, 8, 8>& b, int line = __builtin_LINE()) {
  static_assert(can_multiply<D, A, B>, "half and bfloat matrices are not multiplied together");
  emulator::MatrixMultiply multiply{
      &d, &a, &b, nullptr, emulator::element_of<D>, emulator::element_of<A>,
      emulator::element_of<B>, emulator::element_of<D>};
  emulator::matrix_multiply({emulator::kMatrixMultiply, "simdgroup_multiply", line},
                            multiply);
}

}  // namespace metal
