"""Assumptions of sizes: a kernel is right where they hold, and an error says where they do not."""

import pytest
import torch

from tests.gpu.machine import ARCHITECTURES, DEVICE, on_gpu
from tests.pipelines import numbers, product
from tests.programs.text import Name
from tests.running import gemm
from tvmtile.errors import ArgumentError

K = 128
DTYPES = ("float16", "float32", "float16")


@pytest.mark.full
@pytest.mark.parametrize("arch", [ARCHITECTURES[0], "sm_90a"])
@pytest.mark.parametrize("multiple", [2, 8, 64])
@pytest.mark.parametrize(("m", "n"), [(64, 64), (77, 192), (1, 128)])
def test_a_product(m, n, multiple, arch):
    assumed = (Name(f"T.assume(n % {multiple} == 0)"),)
    given = {"block": (64, 64, 64), "dtypes": DTYPES, "stages": 2, "begin": assumed}
    program = gemm(Name("m"), Name("n"), K, name="gemm_of_assumed_extents", **given)
    kernel = on_gpu(program, arch)
    a, b = numbers(m, K), numbers(K, n)
    c = torch.full((m + 1, n), 77.0, device=DEVICE).half()
    kernel(a.to(DEVICE), b.to(DEVICE), c[:m])
    assert torch.equal(c[:m].cpu(), product(a, b).half())
    assert (c[m:] == 77).all()
    with pytest.raises(ArgumentError, match=f"main assumes that n % {multiple} == 0: n is 65"):
        kernel(a.to(DEVICE), b.new_zeros(K, 65).to(DEVICE), a.new_zeros(m, 65).to(DEVICE))
