"""SerializeThreads: what no program of the catalogue shows of code by thread index on a CPU."""

import numpy as np
import pytest

import tvmtile
import tvmtile.language as T

RNG = np.random.default_rng(0)


@pytest.mark.full
def test_warps_go_through_a_loop_a_different_number_of_times():
    """Lanes begin at places of their own and exchange values; each warp has its own end."""

    @T.prim_func
    def program(A: T.Tensor((300,), "int32"), B: T.Tensor((300,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            end = T.alloc_var("int32")
            end = 96 + tx // 32 * 192
            for i in T.serial(tx // 32 * 96 + tx % 32, end, 32):
                B[i] = T.shfl_xor(A[i], 1) + T.popcount(
                    T.call_extern("uint32", "__match_any_sync", 0xFFFFFFFF, A[i])
                )
                T.sync_warp()

    a, b = RNG.integers(0, 5, 300, np.int32), np.zeros(300, np.int32)
    tvmtile.compile(program, target="llvm")(a, b)
    warps = a[:288].reshape(9, 32)
    peers = (warps[:, :, None] == warps[:, None, :]).sum(-1)
    partners = warps.reshape(9, 16, 2)[:, :, ::-1].reshape(9, 32)
    np.testing.assert_array_equal(b[:288], (partners + peers).ravel())
    assert not b[288:].any()


def test_previous_value_of_an_atomic_is_taken_once_by_each_thread():
    @T.prim_func
    def program(A: T.Tensor((64,), "int32"), C: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            count = T.alloc_shared((1,), "int32")
            if tx == 0:
                count[0] = 0
            T.sync_threads()
            place = T.alloc_var("int32", init=-1)
            if A[tx] > 60:
                place = T.atomic_add(count[0], 1, return_prev=True)
            T.sync_threads()
            if place >= 0:
                C[place] = tx

    a, c = RNG.integers(0, 100, 64).astype(np.int32), np.full(64, -1, np.int32)
    tvmtile.compile(program, target="llvm")(a, c)
    chosen = np.flatnonzero(a > 60)
    assert 0 < len(chosen) < 64
    np.testing.assert_array_equal(np.sort(c[: len(chosen)]), chosen)
    np.testing.assert_array_equal(c[len(chosen) :], -1)
