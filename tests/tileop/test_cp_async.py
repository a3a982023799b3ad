"""Addresses of asynchronous copies; what they copy is tested by programs of the catalogue."""

from __future__ import annotations

import torch

import tvmtile
import tvmtile.language as T


def test_addresses_of_buffers_and_regions():
    @T.prim_func
    def main(A: T.Tensor((4, 8), "float32"), C: T.Tensor((4, 8), "float32")):
        with T.Kernel(1, threads=1):
            tile = T.alloc_shared((4, 8), "float32")
            T.ptx_cp_async(T.access_ptr(tile, "w"), T.access_ptr(A[1:2, 4:8], "r"), 4)
            T.ptx_cp_async(
                T.access_ptr(tile[3, 4], "w", ignore_last_ndim=1),
                T.access_ptr(A[2, 0], "r", offset=2),
                2,
            )
            T.ptx_commit_group()
            T.ptx_wait_group(0)
            T.copy(tile, C)

    kernel = tvmtile.compile(main, target="llvm")
    a, c = torch.randn(4, 8), torch.zeros(4, 8)
    kernel(a, c)
    assert torch.equal(c[0, :4], a[1, 4:])
    assert torch.equal(c[3, :2], a[2, 2:4])
