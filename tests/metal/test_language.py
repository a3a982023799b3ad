"""The rest of the language on Metal: dtypes, views, loops, threads, scalars, several kernels."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T


@pytest.mark.parametrize(
    "dtype",
    [
        "bfloat16",
        "bool",
        "float16",
        "int16",
        "int64",
        "int8",
        "uint16",
        "uint32",
        "uint64",
        "uint8",
    ],
)
def test_tiles_of_a_dtype(compiled, dtype):
    """Copied through shared memory and registers, compared and converted; the rows are ragged."""

    @T.prim_func
    def main(
        A: T.Tensor((40, 64), dtype), C: T.Tensor((40, 64), dtype), D: T.Tensor((40, 64), "float32")
    ):
        with T.Kernel(T.ceildiv(40, 16), threads=64) as bx:
            shared = T.alloc_shared((16, 64), dtype)
            own = T.alloc_fragment((16, 64), dtype)
            T.copy(A[bx * 16, 0], shared)
            T.copy(shared, own)
            for i, j in T.Parallel(16, 64):
                zero = own[i, j] == T.cast(0, dtype)
                own[i, j] = T.if_then_else(zero, T.cast(1, dtype), own[i, j])
            T.copy(own, C[bx * 16, 0])
            T.copy(shared, D[bx * 16, 0])

    kind = getattr(torch, dtype)
    a = torch.randint(0, 2 if dtype == "bool" else 100, (40, 64)).to(kind)
    c, d = torch.zeros(40, 64, dtype=kind), torch.zeros(40, 64)
    kernel = compiled(main)
    kernel(a, c, d)
    assert torch.equal(c.double(), torch.where(a.double() == 0, 1.0, a.double()))
    assert torch.equal(d, a.float())
    if dtype in ("bfloat16", "float16", "int8", "uint8"):
        assert "uint4" in kernel.get_kernel_source()  # 16 bytes are moved at once


def test_views_of_shared_and_global_memory(compiled):
    @T.prim_func
    def main(
        A: T.Tensor((64,), "float32"),
        C: T.Tensor((8, 8), "float32"),
        bits: T.Tensor((64,), "int32"),
    ):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((64,), "float32")
            T.copy(A, tile)
            T.copy(T.reshape(tile, (8, 8)), C)
            T.copy(T.view(tile, (64,), "int32"), bits)
            rows = T.view(A, (4, 16))
            for i, j in T.Parallel(4, 16):
                C[i * 2 + j // 8, j % 8] += rows[i, j]

    a, c, bits = torch.randn(64), torch.zeros(8, 8), torch.zeros(64, dtype=torch.int32)
    compiled(main)(a, c, bits)
    assert torch.equal(c, 2 * a.view(8, 8))
    assert torch.equal(bits, a.view(torch.int32))


def test_persistent_blocks_and_scalars(compiled):
    @T.prim_func
    def main(
        A: T.Tensor((7, 64), "float32"),
        C: T.Tensor((7, 64), "float32"),
        n: T.int32,
        alpha: T.float32,
    ):
        with T.Kernel(3, threads=32) as block:
            for (i,) in T.Persistent([7], 3, block):
                for j in T.Parallel(64):
                    C[i, j] = A[i, j] * alpha + n

    a, c = torch.randn(7, 64), torch.zeros(7, 64)
    compiled(main)(a, c, -3, 0.7)
    torch.testing.assert_close(c, a * 0.7 - 3)


def test_loops_of_a_thread(compiled):
    """unroll, vectorized, serial with break and continue, while, and threads that end early."""

    @T.prim_func
    def main(A: T.Tensor((32, 16), "int32"), C: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            total = T.alloc_var("int32", 0)
            own = T.alloc_local((4,), "int32")
            for i in T.unroll(4):
                own[i] = A[tx, i]
            for i in T.vectorized(4):
                own[i] = own[i] + A[tx, 4 + i]
            for i in T.serial(16):
                if A[tx, i] < 0:
                    continue
                if A[tx, i] > 90:
                    break
                total += A[tx, i]
            k = T.alloc_var("int32", 0)
            while k < 4:
                total += own[k]
                k += 1
            if tx >= 30:
                T.thread_return()
            C[tx] = total

    a, results = torch.randint(-20, 100, (32, 16), dtype=torch.int32), []
    for compile_program in (compiled, tvmtile.compile):
        out = torch.full((32,), -1, dtype=torch.int32)
        compile_program(main)(a, out)
        results.append(out.tolist())
    assert results[0] == results[1]
    assert results[0][30:] == [-1, -1]


def test_two_kernels_of_an_extent_known_at_run_time(compiled):
    n = T.dynamic("n")

    @T.prim_func
    def main(
        A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32"), C: T.Tensor((1,), "float32")
    ):
        with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
            for i in T.Parallel(32):
                B[bx * 32 + i] = A[bx * 32 + i] * 2
        with T.Kernel(1, threads=64):
            tile, total = T.alloc_fragment((128,), "float32"), T.alloc_fragment((1,), "float32")
            T.copy(B[0:128], tile)
            T.reduce_sum(tile, total, dim=0)
            T.copy(total, C)

    kernel = compiled(main)
    for extent in (1, 100):
        a, b, c = torch.randn(extent), torch.zeros(extent), torch.zeros(1)
        kernel(a, b, c)
        assert torch.equal(b, 2 * a)
        torch.testing.assert_close(c[0], 2 * a.sum())


def test_functions_of_metal_by_name(compiled):
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                C[i] = T.call_extern("float32", "fma", A[i], 2.0, 1.0)

    a, c = torch.randn(64), torch.zeros(64)
    compiled(main)(a, c)
    torch.testing.assert_close(c, 2 * a + 1)


def test_lanes_and_votes(compiled):
    """Places, shuffles, reductions of a warp, votes of a warp and of the block."""

    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), C: T.Tensor((9, 64), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            value = A[tx]
            C[0, tx] = T.get_lane_idx() + 100 * T.get_warp_idx()
            C[1, tx] = T.shfl_xor(value, 3)
            C[2, tx] = T.shfl_down(value, 1)
            C[3, tx] = T.shfl_sync(value, 5)
            C[4, tx] = T.warp_reduce_sum(value)
            C[5, tx] = T.warp_reduce_max(value)
            C[6, tx] = T.syncthreads_count(value > 0)
            C[7, tx] = T.any_sync(value > 90) + 2 * T.all_sync(value < 100)
            C[8, tx] = T.syncthreads_or(value == 1000)

    a, c = torch.randint(-100, 100, (64,), dtype=torch.int32), torch.zeros(9, 64, dtype=torch.int32)
    compiled(main)(a, c)
    lanes, warps = torch.arange(64) % 32, a.reshape(2, 32)

    def everywhere(of_warp):
        return of_warp.reshape(2, 1).expand(2, 32).reshape(64).tolist()

    below = torch.where(lanes < 31, torch.arange(64) + 1, torch.arange(64)).clamp(max=63)
    expected = [
        (lanes + 100 * (torch.arange(64) // 32)).tolist(),
        a[torch.arange(64) ^ 3].tolist(),
        a[below].tolist(),
        everywhere(warps[:, 5]),
        everywhere(warps.sum(1)),
        everywhere(warps.amax(1)),
        [int((a > 0).sum())] * 64,
        everywhere((warps > 90).any(1).int() + 2 * (warps < 100).all(1).int()),
        [0] * 64,
    ]
    # The value that a lane gets from beyond its warp is its own, or nobody's.
    inside = [n for n in range(64) if n % 32 < 31]
    for row, (got, wanted) in enumerate(zip(c.tolist(), expected, strict=True)):
        places = inside if row == 2 else range(64)
        assert [got[n] for n in places] == [wanted[n] for n in places], row


def test_shuffles_in_groups_and_at_their_edges(compiled):
    """As on the CPU: Metal itself shuffles whole simdgroups, by lanes that exist."""

    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), C: T.Tensor((8, 64), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            value = A[tx]
            C[0, tx] = T.shfl_up(value, 3, 8)
            C[1, tx] = T.shfl_down(value, 2, 16)
            C[2, tx] = T.shfl_sync(value, 5, 4)
            C[3, tx] = T.shfl_xor(value, 2, 4)
            C[4, tx] = T.shfl_up(value, 3)
            C[5, tx] = T.shfl_down(value, 3)
            C[6, tx] = T.shfl_sync(value, tx)
            C[7, tx] = T.shfl_sync(value, tx % 8 + 1, 8)

    a, results = torch.randint(-100, 100, (64,), dtype=torch.int32), []
    for compile_program in (compiled, tvmtile.compile):
        out = torch.zeros(8, 64, dtype=torch.int32)
        compile_program(main)(a, out)
        results.append(out)
    assert torch.equal(*results)
    places = torch.arange(64)
    assert torch.equal(results[0][0], a[torch.where(places % 8 < 3, places, places - 3)])
    assert torch.equal(results[0][7], a[places // 8 * 8 + (places + 1) % 8])


def test_a_view_of_vectors_has_an_element_for_each_lane():
    @T.prim_func
    def main(A: T.Tensor((8,), "float16"), C: T.Tensor((8,), "float16")):
        with T.Kernel(1, threads=32):
            pairs = T.alloc_local((4,), "float16x2")
            single = T.view(pairs, (8,), "float16")
            for i in T.serial(8):
                single[i] = A[i] * 2
            for i in T.serial(8):
                C[i] = single[i]

    a, c = torch.randn(8).half(), torch.empty(8).half()
    tvmtile.compile(main)(a, c)
    assert torch.equal(c, a * 2)
