"""Tensor maps that a user describes, on an NVIDIA GPU from Hopper on; the catalogue has others."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.machine import by_way_of_gpu
from tests.tileop.tma.test_descriptors import copied


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize(
    ("code", "dtype", "swizzle", "columns"),
    [(6, "float16", 3, 128), (9, "bfloat16", 2, 64), (7, "float32", 1, 32), (0, "uint8", 0, 64)],
)
def test_tensor_maps_that_a_user_describes(code, dtype, swizzle, columns):
    a = torch.randint(0, 100, (150, 192)).to(getattr(torch, dtype))
    kernel = by_way_of_gpu(
        copied(code, dtype, swizzle, columns, rows=150, width=192), arch="sm_90a"
    )
    for _ in range(5):
        c = torch.zeros_like(a)
        kernel(a, c)
        assert torch.equal(c, a)
