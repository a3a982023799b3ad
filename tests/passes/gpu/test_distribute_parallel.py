"""DistributeParallel: how long the source is."""

from __future__ import annotations

import pytest

import tvmtile
import tvmtile.language as T
from tests.fuzz.run import compiled
from tests.programs import catalogue


def test_conditions_on_the_outer_loops_are_looked_at_outside_of_the_inner_ones(tmp_path):
    """Of a fragment of 4 x 8 elements a thread, that end where rows and columns do."""
    kernel = compiled(catalogue()["rows_and_columns_of_any_number"].case(), "metal", tmp_path)
    _, outer, inner = kernel.get_kernel_source().rsplit("for (", 2)
    assert outer.count("arg.m[0]") == inner.count("arg.n[0]) {") == inner.count("C_ptr[") == 1
    assert "arg.m[0]" not in inner


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("target", "backend"), [("metal", "emulator"), ({"kind": "cuda", "arch": "sm_90a"}, "auto")]
)
def test_source_does_not_grow_with_the_share_of_a_thread(target, backend):
    def kilobytes(rows):
        @T.prim_func
        def main(A: T.Tensor((rows, 32), "float32"), C: T.Tensor((rows, 32), "float32")):
            with T.Kernel(1, threads=32):
                tile = T.alloc_shared((rows, 32), "float32")
                T.copy(A, tile)
                for i, j in T.Parallel(rows, 32):
                    tile[i, j] = T.exp(tile[i, j]) / (1.0 + T.abs(tile[i, j] * A[i, j]))
                T.copy(tile, C)

        kernel = tvmtile.compile(main, target=target, execution_backend=backend)
        return len(kernel.get_kernel_source()) / 1000

    assert kilobytes(256) < kilobytes(64)
