"""The skewed loop as TVMScript: what WarpSpecialize makes of two products with a statement between."""

from __future__ import annotations

from tvm import ir
from tvm.script import from_source

from tvmtile.passes import WarpSpecialize

BEFORE = """
@T.prim_func
def main(
    K: T.Buffer((256, 64), "float16"),
    V: T.Buffer((256, 64), "float16"),
    C: T.Buffer((64, 64), "float32"),
):
    T.func_attr({"target": T.target({"kind": "cuda", "arch": "sm_90a"})})
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            q = T.alloc_buffer((64, 64), "float16", scope="shared.dyn")
            k = T.alloc_buffer((64, 64), "float16", scope="shared.dyn")
            v = T.alloc_buffer((64, 64), "float16", scope="shared.dyn")
            scores = T.alloc_buffer((64, 64), "float32", scope="local.fragment")
            weights = T.alloc_buffer((64, 64), "float16", scope="local.fragment")
            acc = T.alloc_buffer((64, 64), "float32", scope="local.fragment")
            T.tile.fill(acc[0:64, 0:64], T.float32(0))
            for i in T.serial(4, annotations={"tvmtile.num_stages": 2}):
                T.tile.copy(K[i * 64 : i * 64 + 64, 0:64], k[0:64, 0:64], impl="elements")
                T.tile.gemm(
                    q[0:64, 0:64],
                    k[0:64, 0:64],
                    scores[0:64, 0:64],
                    transpose_B=True,
                    clear_accum=True,
                    impl="wgmma",
                )
                T.tile.copy(V[i * 64 : i * 64 + 64, 0:64], v[0:64, 0:64], impl="elements")
                for r, s in T.grid(64, 64):
                    scores[r, s] = T.exp2(scores[r, s])
                T.tile.copy(scores[0:64, 0:64], weights[0:64, 0:64])
                T.tile.gemm(weights[0:64, 0:64], v[0:64, 0:64], acc[0:64, 0:64], impl="wgmma")
            T.tile.copy(acc[0:64, 0:64], C[0:64, 0:64], impl="elements")
"""

AFTER = """
@T.prim_func
def main(
    K: T.Buffer((256, 64), "float16"),
    V: T.Buffer((256, 64), "float16"),
    C: T.Buffer((64, 64), "float32"),
):
    T.func_attr({"target": T.target({"kind": "cuda", "arch": "sm_90a"})})
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            q = T.alloc_buffer((64, 64), "float16", scope="shared.dyn")
            k = T.alloc_buffer((2, 64, 64), "float16", scope="shared.dyn")
            v = T.alloc_buffer((2, 64, 64), "float16", scope="shared.dyn")
            scores = T.alloc_buffer((64, 64), "float32", scope="local.fragment")
            weights = T.alloc_buffer((64, 64), "float16", scope="local.fragment")
            acc = T.alloc_buffer((64, 64), "float32", scope="local.fragment")
            full = T.alloc_buffer((2,), "uint64", scope="shared.barrier")
            T.tile.init_mbarriers(full, counts=[1, 1])
            empty = T.alloc_buffer((2,), "uint64", scope="shared.barrier")
            T.tile.init_mbarriers(empty, counts=[4, 4])
            full_1 = T.alloc_buffer((2,), "uint64", scope="shared.barrier")
            T.tile.init_mbarriers(full_1, counts=[1, 1])
            empty_1 = T.alloc_buffer((2,), "uint64", scope="shared.barrier")
            T.tile.init_mbarriers(empty_1, counts=[4, 4])
            T.tvm_storage_sync("shared")
            if tx < 128:
                with T.attr(0, "tvmtile.group", 128):
                    T.tile.fill(acc[0:64, 0:64], T.float32(0.0))
                    T.tile.mbarrier(
                        full[T.FloorMod(0, 2)], T.Cast("int32", T.FloorDiv(0, 2) % 2), action="wait"
                    )
                    with T.attr(T.int32(0), "tvmtile.asynchronous", "wgmma/i1"):
                        T.tile.gemm(
                            q[0:64, 0:64],
                            k[T.FloorMod(0, 2), 0:64, 0:64],
                            scores[0:64, 0:64],
                            clear_accum=True,
                            impl="wgmma",
                            transpose_B=True,
                        )
                    T.tile.async_signal("wgmma/i1")
                    T.tile.async_wait("wgmma/i1", 0)
                    T.tvm_storage_sync("warp")
                    if tx % 32 == 0:
                        T.tile.mbarrier(empty[T.FloorMod(0, 2)], 1)
                    for r, s in T.grid(64, 64):
                        scores[r, s] = T.exp2(scores[r, s])
                    T.tile.copy(scores[0:64, 0:64], weights[0:64, 0:64])
                    for i in T.serial(1, 4, annotations={"disable_unroll": 1}):
                        T.tile.mbarrier(full[i % 2], T.Cast("int32", i // 2 % 2), action="wait")
                        with T.attr(T.int32(0), "tvmtile.asynchronous", "wgmma/i1"):
                            T.tile.gemm(
                                q[0:64, 0:64],
                                k[i % 2, 0:64, 0:64],
                                scores[0:64, 0:64],
                                clear_accum=True,
                                impl="wgmma",
                                transpose_B=True,
                            )
                        T.tile.async_signal("wgmma/i1")
                        T.tile.mbarrier(
                            full_1[(i - 1) % 2], T.Cast("int32", (i - 1) // 2 % 2), action="wait"
                        )
                        with T.attr(T.int32(0), "tvmtile.asynchronous", "wgmma/i5"):
                            T.tile.gemm(
                                weights[0:64, 0:64],
                                v[(i - 1) % 2, 0:64, 0:64],
                                acc[0:64, 0:64],
                                impl="wgmma",
                            )
                        T.tile.async_signal("wgmma/i5")
                        T.tile.async_wait("wgmma/i1", 0)
                        T.tvm_storage_sync("warp")
                        if tx % 32 == 0:
                            T.tile.mbarrier(empty[i % 2], 1)
                        for r, s in T.grid(64, 64):
                            scores[r, s] = T.exp2(scores[r, s])
                        T.tile.async_wait("wgmma/i5", 0)
                        T.tvm_storage_sync("warp")
                        if tx % 32 == 0:
                            T.tile.mbarrier(empty_1[(i - 1) % 2], 1)
                        T.tile.copy(scores[0:64, 0:64], weights[0:64, 0:64])
                    T.tile.mbarrier(
                        full_1[T.FloorMod(3, 2)],
                        T.Cast("int32", T.FloorDiv(3, 2) % 2),
                        action="wait",
                    )
                    with T.attr(T.int32(0), "tvmtile.asynchronous", "wgmma/i5"):
                        T.tile.gemm(
                            weights[0:64, 0:64],
                            v[T.FloorMod(3, 2), 0:64, 0:64],
                            acc[0:64, 0:64],
                            impl="wgmma",
                        )
                    T.tile.async_signal("wgmma/i5")
                    T.tile.async_wait("wgmma/i5", 0)
                    T.tvm_storage_sync("warp")
                    if tx % 32 == 0:
                        T.tile.mbarrier(empty_1[T.FloorMod(3, 2)], 1)
                    T.tile.copy(acc[0:64, 0:64], C[0:64, 0:64], impl="elements")
            else:
                with T.attr(128, "tvmtile.group", 128):
                    if tx >= 128 and tx < 160:
                        with T.attr(128, "tvmtile.group", 32):
                            for i in T.serial(4, annotations={"disable_unroll": 1}):
                                T.tile.mbarrier(
                                    empty[i % 2], 1 - T.Cast("int32", i // 2 % 2), action="wait"
                                )
                                T.tile.tma_copy(
                                    K[i * 64 : i * 64 + 64, 0:64], k[i % 2, 0:64, 0:64], full[i % 2]
                                )
                                if tx - 128 == 0:
                                    T.tile.mbarrier(full[i % 2], 1)
                                T.tile.mbarrier(
                                    empty_1[i % 2], 1 - T.Cast("int32", i // 2 % 2), action="wait"
                                )
                                T.tile.tma_copy(
                                    V[i * 64 : i * 64 + 64, 0:64],
                                    v[i % 2, 0:64, 0:64],
                                    full_1[i % 2],
                                )
                                if tx - 128 == 0:
                                    T.tile.mbarrier(full_1[i % 2], 1)
"""


def parsed(text):
    return ir.IRModule({"main": from_source(text)})


def test_the_second_product_is_issued_behind_the_next_first_one():
    """Both roles; the first iteration but for its second product, and that of the last, stand alone."""
    ir.assert_structural_equal(WarpSpecialize(parsed(BEFORE)), parsed(AFTER))
