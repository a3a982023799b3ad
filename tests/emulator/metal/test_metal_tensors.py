"""Metal 4's `matmul2d` of cooperative tensors, in kernels that tvmtile did not write."""

import numpy as np
import pytest
import torch

from tvmtile.emulator.metal import compile_msl
from tvmtile.errors import MetalCompileError, MetalEmulationError

# Element i of a lane is where MLX's kernels for M5 put it: two rows, 8 apart, of four neighbours.
SOURCE = """
#include <metal_stdlib>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;

template <typename Tensor, typename T>
void fill(thread Tensor& tensor, device const T* memory, ushort lane, ushort stride, bool below) {
  ushort q = lane / 4, row = (q & 4) | (lane / 2 & 3), column = ((q & 2) | (lane & 1)) * 4;
  for (ushort i = 0; i < tensor.get_capacity(); ++i) {
    ushort block = i / 8 * 16;
    ushort r = row + i % 8 / 4 * 8 + (below ? block : 0);
    ushort c = column + i % 4 + (below ? 0 : block);
    tensor[i] = memory[r * stride + c];
  }
}

kernel void k(device const TYPE* a [[buffer(0)]], device const TYPE* b [[buffer(1)]],
              device float* c [[buffer(2)]], ushort lane [[thread_index_in_simdgroup]]) {
  constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
      M, 32, 16, TA, TB, false, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
  mpp::tensor_ops::matmul2d<descriptor, execution_simdgroup> op;
  auto left = op.get_left_input_cooperative_tensor<TYPE, TYPE, float>();
  auto right = op.get_right_input_cooperative_tensor<TYPE, TYPE, float>();
  auto sum = op.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
  fill(left, a, lane, 16, false);
  fill(right, b, lane, TB ? 16 : 32, TB);
  fill(sum, c, lane, 32, false);
  op.run(left, right, sum);
  ushort q = lane / 4, row = (q & 4) | (lane / 2 & 3), column = ((q & 2) | (lane & 1)) * 4;
  for (ushort i = 0; i < 16; ++i)
    c[(row + i % 8 / 4 * 8) * 32 + column + i % 4 + i / 8 * 16] = sum[i];
}
"""


def source_of(dtype="half", transpose_a=False, transpose_b=False, m=16):
    text = SOURCE.replace("TYPE", dtype).replace(
        "descriptor(\n      M,", f"descriptor(\n      {m},"
    )
    return text.replace("TA", str(transpose_a).lower()).replace("TB", str(transpose_b).lower())


@pytest.mark.full(but=1)
@pytest.mark.parametrize(("dtype", "torch_dtype"), [("half", "float16"), ("bfloat", "bfloat16")])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_tensors_are_multiplied_and_added(dtype, torch_dtype, transpose_a, transpose_b):
    a, b = (torch.randn(shape).to(getattr(torch, torch_dtype)) for shape in ((16, 16), (16, 32)))
    c = torch.randn(16, 32)
    expected = c.double() + a.double() @ b.double()
    stored_a, stored_b = (
        t.T.contiguous() if flag else t for t, flag in ((a, transpose_a), (b, transpose_b))
    )
    kernel = compile_msl(source_of(dtype, transpose_a, transpose_b)).kernel("k")
    statistics = kernel(stored_a, stored_b, c, grid=1, threads=32)
    torch.testing.assert_close(c.double(), expected, rtol=1e-5, atol=1e-5)
    assert statistics.tensor_multiplies == 1
    assert statistics.matrix_multiplies == 0


def test_a_tensor_that_was_not_filled_is_found():
    source = source_of().replace("fill(right, b, lane, false ? 16 : 32, false);", "")
    a, b = np.ones((16, 16), np.float16), np.ones((16, 32), np.float16)
    with pytest.raises(MetalEmulationError, match="never written: matmul2d takes matrix 'right'"):
        compile_msl(source).kernel("k")(a, b, np.zeros((16, 32), np.float32), grid=1, threads=32)


def test_a_product_that_is_not_for_all_lanes_is_found():
    source = source_of().replace("op.run", "if (lane < 16) op.run")
    a, b = np.ones((16, 16), np.float16), np.ones((16, 32), np.float16)
    with pytest.raises(MetalEmulationError, match="divergence"):
        compile_msl(source).kernel("k")(a, b, np.zeros((16, 32), np.float32), grid=1, threads=32)


def test_extents_that_the_emulator_does_not_know_are_refused():
    with pytest.raises(MetalCompileError, match="the emulator multiplies 16x16 by 16x32"):
        compile_msl(source_of(m=32))
