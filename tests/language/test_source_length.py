"""How long the source of a program is."""

from __future__ import annotations

import pytest

import tvmtile
import tvmtile.language as T

TARGETS = {
    "metal": {"target": "metal", "execution_backend": "emulator"},
    "sm_80": {"target": {"kind": "cuda", "arch": "sm_80"}, "execution_backend": "emulator"},
    "sm_90a": {"target": {"kind": "cuda", "arch": "sm_90a"}, "execution_backend": "emulator"},
}


@pytest.mark.full(but=1)
@pytest.mark.parametrize("where", ["shared", "fragment"])
@pytest.mark.parametrize("target", ["llvm", "metal", "sm_90a"])
def test_the_source_of_a_copy_grows_with_its_text(target, where):
    """Columns that only a call knows, against columns that need as many guards on a GPU."""

    def size(columns):
        @T.prim_func
        def program(A: T.Tensor((32, columns), "float32"), C: T.Tensor((32, columns), "float32")):
            with T.Kernel(1, 2, threads=64) as (_, by):
                T.use_swizzle(2)
                if where == "shared":
                    tile = T.alloc_shared((16, 32), "float32")
                else:
                    tile = T.alloc_fragment((16, 32), "float32")
                T.copy(A[by * 16, 0], tile)
                T.copy(tile, C[by * 16, 0])

        options = TARGETS.get(target, {"target": "llvm"})
        return len(tvmtile.compile(program, **options).get_kernel_source())

    assert size(T.dynamic("columns")) < 3 * size(40 if target == "llvm" else 23)
