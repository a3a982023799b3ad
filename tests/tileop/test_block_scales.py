"""Scales of blocks: their values on every target, their shapes, and what is refused."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.gpu.machine import by_way_of_gpu


def on_emulator(program):
    return tvmtile.compile(program, target="metal", execution_backend="emulator")


@pytest.mark.parametrize(
    "compiled", [tvmtile.compile, on_emulator, pytest.param(by_way_of_gpu, marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize("dtype", ["uint8", "float8_e8m0fnu"])
def test_every_code_of_e8m0(compiled, dtype):
    @T.prim_func
    def main(A: T.Tensor((256,), dtype), B: T.Tensor((2, 256), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(256):
                B[0, i] = T.e8m0_to_float(A[i])
                B[1, i] = T.e8m0_to_float(A[i], zero_codes=True)

    codes = torch.arange(256, dtype=torch.uint8)
    out = torch.zeros(2, 256)
    compiled(main)(codes.view(getattr(torch, dtype)), out)
    expected = codes.view(torch.float8_e8m0fnu).float()
    assert expected[0] == 2.0**-127
    assert torch.equal(out[0, :255], expected[:255])
    assert out[0, 255].isnan()
    expected[[0, 255]] = 0
    assert torch.equal(out[1], expected)


def test_shapes_of_mx_scales():
    layout = T.BlockScaledLayout.e8m0_k32()
    assert layout == T.BlockScaledLayout("float8_e8m0fnu", 32)
    assert hash(layout) == hash(T.BlockScaledLayout())
    assert layout.scale_blocks(100) == 4
    assert layout.a_scale_shape(300, 128) == (300, 4)
    assert layout.b_scale_shape(64, 128) == (64, 4)
    assert [layout.scale_index(k) for k in (0, 31, 32, 127)] == [0, 0, 1, 3]


def test_shapes_of_float32_scales_of_squares():
    layout = T.BlockScaledLayout("float32", 128, b_rows=128)
    assert layout.a_scale_shape(300, 1024) == (300, 8)
    assert layout.b_scale_shape(500, 1024) == (4, 8)


def test_a_layout_checks_scales():
    layout = T.BlockScaledLayout.e8m0_k32()
    layout.validate(300, 64, 128, a_scale=("uint8", (300, 4)), b_scale=(layout.scale_dtype, (4,)))
