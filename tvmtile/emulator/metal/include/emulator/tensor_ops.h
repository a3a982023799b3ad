// Metal Performance Primitives, as far as a simdgroup multiplies cooperative tensors that its threads
// fill element by element: `matmul2d` of 16x16 by 16x32, which adds to its destination.
//
// Apple leaves open which lane holds which element; matrix_layout.h says what is modelled here. Other
// extents, tensors in memory and several simdgroups together do not compile.
#pragma once

#include "stdlib.h"

namespace metal {

struct execution_simdgroup {};

}  // namespace metal

namespace mpp::tensor_ops {

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };

  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;

  constexpr matmul2d_descriptor(int m, int n, int k, bool transpose_left = false,
                                bool transpose_right = false, bool relaxed_precision = false,
                                mode matmul_mode = mode::multiply)
      : m(m), n(n), k(k), transpose_left(transpose_left), transpose_right(transpose_right),
        relaxed_precision(relaxed_precision), matmul_mode(matmul_mode) {}
};

}  // namespace mpp::tensor_ops

namespace emulator {

// What a lane holds of a tensor of [16, 16] or of [16, 32], or of one with the extents swapped.
template <typename T, int Blocks>
class cooperative_tensor {
 public:
  cooperative_tensor() {
    for (T& element : elements_) poison(&element, element_of<T>);
  }

  static constexpr unsigned short get_capacity() { return Blocks * kBlockElements; }
  T& operator[](unsigned short i) { return elements_[i]; }
  const T& operator[](unsigned short i) const { return elements_[i]; }

 private:
  T elements_[Blocks * kBlockElements];
};

}  // namespace emulator

namespace mpp::tensor_ops {

template <matmul2d_descriptor Descriptor, typename Scope>
class matmul2d {
  static_assert(Descriptor.m == 16 && Descriptor.n == 32 && Descriptor.k == 16,
                "the emulator multiplies 16x16 by 16x32");
  static_assert(Descriptor.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate);
  static_assert(std::is_same_v<Scope, metal::execution_simdgroup>);

 public:
  template <typename Left, typename Right, typename Destination>
  auto get_left_input_cooperative_tensor() const {
    return emulator::cooperative_tensor<Left, 1>();
  }
  template <typename Left, typename Right, typename Destination>
  auto get_right_input_cooperative_tensor() const {
    return emulator::cooperative_tensor<Right, 2>();
  }
  template <typename Left, typename Right, typename Destination>
  auto get_destination_cooperative_tensor() const {
    return emulator::cooperative_tensor<Destination, 2>();
  }

  template <typename A, typename B, typename C>
  void run(const emulator::cooperative_tensor<A, 1>& a, const emulator::cooperative_tensor<B, 2>& b,
           emulator::cooperative_tensor<C, 2>& c, int line = __builtin_LINE()) const {
    emulator::TensorMultiply multiply{
        &c, &a, &b, emulator::element_of<C>, emulator::element_of<A>, emulator::element_of<B>,
        Descriptor.transpose_left, Descriptor.transpose_right};
    emulator::tensor_multiply({emulator::kTensorMultiply, "matmul2d", line}, multiply);
  }
};

}  // namespace mpp::tensor_ops
