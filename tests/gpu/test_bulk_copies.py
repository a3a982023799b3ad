"""mbarriers and copies by tensor maps on an NVIDIA GPU from Hopper on."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.machine import by_way_of_gpu
from tests.tileop.test_cp_async import on_mbarriers
from tests.tileop.test_mbarrier import STEPS, N, handed_over
from tests.tileop.tma.test_descriptors import copied
from tests.tileop.tma.test_tma_copy import by_hand, pipelined, stored, values
from tvmtile import layout

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]


def on_gpu(program):
    return by_way_of_gpu(program, arch="sm_90a")


def same(kernel, a, expected, times=5):
    for _ in range(times):
        c = torch.zeros_like(a)
        kernel(a, c)
        assert torch.equal(c, expected)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_halves_of_a_block(stages):
    a = torch.randn(STEPS, N)
    same(on_gpu(handed_over(stages=stages)), a, a.flip(1))


def test_copies_that_an_mbarrier_completes():
    a = torch.randn(6, 256)
    same(on_gpu(on_mbarriers(True)), a, a.flip(1))


@pytest.mark.parametrize("count", [1, 128])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "int32"])
def test_ragged_tiles(dtype, count):
    a = values((50, 80), dtype)
    same(on_gpu(by_hand((50, 80), (32, 32), dtype, count)), a, a)


@pytest.mark.parametrize(
    ("width", "columns"), [("full", 64), ("full", 128), ("half", 32), ("half", 64), ("quarter", 16)]
)
def test_swizzles(width, columns):
    a = torch.randn(64, columns).half()
    swizzle = getattr(layout, f"make_{width}_bank_swizzled_layout")
    same(on_gpu(by_hand((64, columns), (16, columns), "float16", 128, swizzle)), a, a)


@pytest.mark.parametrize(
    ("code", "dtype", "swizzle", "columns"),
    [(6, "float16", 3, 128), (9, "bfloat16", 2, 64), (7, "float32", 1, 32), (0, "uint8", 0, 64)],
)
def test_tensor_maps_that_a_user_describes(code, dtype, swizzle, columns):
    a = values((150, 192), dtype)
    same(on_gpu(copied(code, dtype, swizzle, columns, rows=150, width=192)), a, a)


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_stores(dtype, explicit):
    a = values((150, 80), dtype)
    same(on_gpu(stored((150, 80), (32, 32), dtype, explicit, steps=3)), a, a * 2)


@pytest.mark.parametrize("repeated", [1, 3])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_pipelined_products(stages, repeated):
    a, b = torch.randn(100, 160).half(), torch.randn(160, 72).half()
    kernel, c = on_gpu(pipelined(stages, repeated=repeated)), torch.zeros(100, 72)
    for _ in range(5):
        kernel(a, b, torch.zeros(5, dtype=torch.int32), c)
        expected = repeated * (a.double() @ b.double())
        torch.testing.assert_close(c.double(), expected, rtol=1e-3, atol=5e-2)
