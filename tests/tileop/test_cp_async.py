"""Addresses of asynchronous copies; what they copy is tested by programs of the catalogue."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidOperand


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


@pytest.mark.parametrize("target", ["llvm", "sm_80"])
def test_pointers_of_tvm_count_elements_from_the_beginning(target):
    @T.prim_func
    def main(A: T.Tensor((6, 256), "float16"), C: T.Tensor((6, 256), "float16")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((2, 256), "float16")
            tx = T.get_thread_binding()
            for k in T.serial(6):
                T.ptx_cp_async(
                    T.tvm_access_ptr(
                        T.type_annotation("float16"), tile.data, k % 2 * 256 + tx * 2, 2, 2
                    ),
                    T.tvm_access_ptr(T.type_annotation("float16"), A.data, k * 256 + tx * 2, 2, 1),
                    2,
                    predicate=tx != k,
                )
                T.ptx_commit_group()
                T.ptx_wait_group(0)
                T.sync_threads()
                for i in T.serial(2):
                    C[k, tx * 2 + i] = tile[k % 2, 255 - tx * 2 - i]
                T.sync_threads()

    backend = {} if target == "llvm" else {"execution_backend": "emulator"}
    kernel = tvmtile.compile(main, target=target, **backend)
    a, c = torch.randn(6, 256).half(), torch.zeros(6, 256).half()
    kernel(a, c)
    expected = a.clone()
    for k in range(6):
        expected[k, 2 * k : 2 * k + 2] = 0
    assert torch.equal(c, expected.flip(1))


@pytest.mark.parametrize("rows", ["float16", "gaps"])
def test_pointers_of_tvm_to_other_elements_are_refused(rows):
    A_of = T.StridedTensor((4, 8), (16, 1), "float32") if rows == "gaps" else T.Tensor((4, 8), rows)
    with pytest.raises(InvalidOperand, match=r"give what T.access_ptr"):

        @T.prim_func
        def main(A: A_of, C: T.Tensor((4, 8), "float32")):
            with T.Kernel(1, threads=1):
                tile = T.alloc_shared((4, 8), "float32")
                kind = T.type_annotation("float32")
                T.ptx_cp_async(T.access_ptr(tile, "w"), T.tvm_access_ptr(kind, A.data, 0, 4, 1), 4)
                T.ptx_wait_group(0)
                T.copy(tile, C)
