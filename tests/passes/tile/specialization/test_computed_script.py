"""A tile that threads compute, as TVMScript: what WarpSpecialize makes of a conversion on the way."""

from __future__ import annotations

from tvm import ir
from tvm.script import from_source

from tvmtile.passes import WarpSpecialize

BEFORE = """
@T.prim_func
def main(
    A: T.Buffer((64, 256), "float16"),
    W: T.Buffer((64, 256), "int8"),
    C: T.Buffer((64, 64), "float32"),
):
    T.func_attr({"target": T.target({"kind": "cuda", "arch": "sm_90a"})})
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            T.tile.warp_specialization()
            a = T.alloc_buffer((64, 64), "float16", scope="shared.dyn")
            w = T.alloc_buffer((64, 64), "float16", scope="shared.dyn")
            own = T.alloc_buffer((64, 64), "int8", scope="local.fragment")
            acc = T.alloc_buffer((64, 64), "float32", scope="local.fragment")
            T.tile.fill(acc[0:64, 0:64], T.float32(0))
            for k in T.serial(4, annotations={"tvmtile.num_stages": 2}):
                T.tile.copy(A[0:64, k * 64 : k * 64 + 64], a[0:64, 0:64], impl="elements")
                T.tile.copy(W[0:64, k * 64 : k * 64 + 64], own[0:64, 0:64], impl="elements")
                for i in T.parallel(64):
                    for j in T.parallel(64):
                        w[i, j] = T.Cast("float16", own[i, j]) * T.float16(2)
                T.tile.gemm(
                    a[0:64, 0:64], w[0:64, 0:64], acc[0:64, 0:64], transpose_B=True, impl="wgmma"
                )
            T.tile.copy(acc[0:64, 0:64], C[0:64, 0:64], impl="elements")
"""

AFTER = """
@T.prim_func
def main(
    A: T.Buffer((64, 256), "float16"),
    W: T.Buffer((64, 256), "int8"),
    C: T.Buffer((64, 64), "float32"),
):
    T.func_attr({"target": T.target({"kind": "cuda", "arch": "sm_90a"})})
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            a = T.alloc_buffer((2, 64, 64), "float16", scope="shared.dyn")
            w = T.alloc_buffer((2, 64, 64), "float16", scope="shared.dyn")
            own = T.alloc_buffer((64, 64), "int8", scope="local.fragment")
            acc = T.alloc_buffer((64, 64), "float32", scope="local.fragment")
            full = T.alloc_buffer((2,), "uint64", scope="shared.barrier")
            T.tile.init_mbarriers(full, counts=[4, 4])
            empty = T.alloc_buffer((2,), "uint64", scope="shared.barrier")
            T.tile.init_mbarriers(empty, counts=[4, 4])
            T.tvm_storage_sync("shared")
            if tx < 128:
                with T.attr(0, "tvmtile.group", 128):
                    T.tile.warp_specialization()
                    T.tile.fill(acc[0:64, 0:64], T.float32(0))
                    for k in T.serial(4, annotations={"disable_unroll": 1}):
                        T.tile.mbarrier(full[k % 2], T.Cast("int32", k // 2 % 2), action="wait")
                        T.tile.gemm(
                            a[k % 2, 0:64, 0:64],
                            w[k % 2, 0:64, 0:64],
                            acc[0:64, 0:64],
                            transpose_B=True,
                            impl="wgmma",
                        )
                        T.tvm_storage_sync("warp")
                        if tx % 32 == 0:
                            T.tile.mbarrier(empty[k % 2], 1)
                    T.tile.copy(acc[0:64, 0:64], C[0:64, 0:64], impl="elements")
            else:
                with T.attr(128, "tvmtile.group", 128):
                    for k in T.serial(4, annotations={"disable_unroll": 1}):
                        T.tile.copy(
                            W[0:64, k * 64 : k * 64 + 64], own[0:64, 0:64], impl="elements"
                        )
                        T.tile.mbarrier(
                            empty[k % 2], 1 - T.Cast("int32", k // 2 % 2), action="wait"
                        )
                        T.tile.tma_copy(
                            A[0:64, k * 64 : k * 64 + 64], a[k % 2, 0:64, 0:64], full[k % 2]
                        )
                        for i in T.parallel(64):
                            for j in T.parallel(64):
                                w[k % 2, i, j] = T.Cast("float16", own[i, j]) * T.float16(2)
                        T.tile.fence_proxy()
                        T.tvm_storage_sync("warp")
                        if (tx - 128) % 32 == 0:
                            T.tile.mbarrier(full[k % 2], 1)
"""


def parsed(text):
    return ir.IRModule({"main": from_source(text)})


def test_threads_compute_a_tile_while_another_comes_by_a_tensor_map():
    """The fragment is theirs alone, and is loaded before the tile is free."""
    ir.assert_structural_equal(WarpSpecialize(parsed(BEFORE)), parsed(AFTER))
