"""GuardLaunches: what has no blocks is not launched."""

from __future__ import annotations

import re

import pytest

import tvmtile
import tvmtile.language as T


@pytest.mark.parametrize("extents", [lambda n: (n,), lambda n: (4, n), lambda n: (n, n)])
def test_the_host_asks_before_it_launches(extents):
    n = T.dynamic("n")

    @T.prim_func
    def main(N: T.Tensor((n,), "float32"), A: T.Tensor((4,), "float32")):
        with T.Kernel(*extents(n), threads=32):
            A[0] = 1

    kernel = tvmtile.compile(main, target={"kind": "cuda", "arch": "sm_80"})
    script = dict(kernel.lowering)["tvmtile.GuardLaunches"].script()
    assert re.search(r"if n > 0.*:\n +Module\.main_kernel\(", script)
