"""Products that no matrix instruction takes, element by element on NVIDIA GPUs."""

from __future__ import annotations

import pytest

import tvmtile
import tvmtile.language as T
from tests.metal.programs import gemm
from tvmtile.errors import TileWarning

SM_80 = {"kind": "cuda", "arch": "sm_80"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("block", "threads", "reason"),
    [
        ((32, 48, 24), 128, "K = 24 is not a multiple of 16"),
        ((24, 32, 32), 128, r"\[24, 32\] does not consist of 16x8 matrices"),
    ],
)
def test_a_warning_says_why(block, threads, reason):
    with pytest.warns(
        TileWarning, match=f"is computed element by element, which is slow.*{reason}"
    ):
        kernel = tvmtile.compile(gemm(48, 48, 48, block=block, threads=threads), target=SM_80)
    assert "mma.sync" not in kernel.get_kernel_source()


def test_operands_in_registers_lie_where_instructions_read_them():
    """The loops that a product stands for have no say in the layouts then: nothing is staged."""

    @T.prim_func
    def main(A: T.Tensor((32, 32), "int8"), B: T.Tensor((32, 32), "int8")):
        with T.Kernel(1, threads=32):
            a = T.alloc_fragment((32, 32), "int8")
            b = T.alloc_shared((32, 32), "int8")
            c = T.alloc_fragment((32, 32), "int32")
            T.copy(A, a)
            T.copy(B, b)
            T.clear(c)
            T.gemm(a, b, c)
            for i, j in T.Parallel(32, 32):
                B[i, j] = T.cast(c[i, j], "int8")

    kernel = tvmtile.compile(main, target=SM_80)  # a warning would be an error
    assert "mma.sync" in kernel.get_kernel_source()
