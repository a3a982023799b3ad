"""T.create_tma_descriptor and T.tma_load: numbers in the emulator, layouts, and what is refused."""

from __future__ import annotations

import re

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.jit.cuda import compile_source

SM90 = {"kind": "cuda", "arch": "sm_90a"}
M, N = 128, 192


def emulated(program, **options):
    return tvmtile.compile(program, target=SM90, execution_backend="emulator", **options)


def checked(program, *args, expected):
    kernel = emulated(program)
    for seed in range(3):
        kernel.adapter.seed = seed
        args[-1].zero_()
        kernel(*args)
        torch.testing.assert_close(args[-1], expected, rtol=0, atol=0)
    return kernel


def numbers(*shape, dtype="float16"):
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(0)).to(
        getattr(torch, dtype)
    )


# Numbers -------------------------------------------------------------------------------------------


def copied(code, dtype, swizzle, columns, rows=M, width=N, size=64):
    """Each block copies 64 rows of some columns, panel by panel."""
    item = torch.empty((), dtype=getattr(torch, dtype)).element_size()
    panel = {0: columns, 1: 32 // item, 2: 64 // item, 3: 128 // item}[swizzle]

    @T.prim_func
    def main(A: T.Tensor((rows, width), dtype), C: T.Tensor((rows, width), dtype)):
        with T.Kernel(T.ceildiv(width, columns), T.ceildiv(rows, size), threads=128) as (x, y):
            t = T.alloc_shared((size, columns), dtype)
            bar = T.alloc_barrier(1)
            desc = T.create_tma_descriptor(
                *(code, 2, A.data),
                *(width, rows),
                *(item, width * item),
                *(panel, size),
                *(1, 1),
                *(0, swizzle, 2, 0),
            )
            if T.get_thread_binding() == 0:
                T.mbarrier_arrive_expect_tx(bar, size * columns * item)
                for part in range(columns // panel):
                    place = T.access_ptr(t[0, part * panel], "w", size * panel)
                    T.tma_load(desc, bar, place, x * columns + part * panel, y * size)
            T.mbarrier_wait_parity(bar, 0)
            T.copy(t, C[y * size, x * columns])

    return main


@pytest.mark.full
@pytest.mark.parametrize(
    ("code", "dtype", "swizzle", "columns"),
    [
        (6, "float16", 0, 64),
        (6, "float16", 1, 32),
        (6, "float16", 2, 64),
        (6, "float16", 3, 128),
        (9, "bfloat16", 3, 64),
        (7, "float32", 3, 64),
        (3, "int32", 0, 16),
        (0, "uint8", 2, 64),
    ],
)
def test_tiles_in_each_swizzle(code, dtype, swizzle, columns):
    """Ragged ones: what lies outside of the tensor are zeros."""
    a = numbers(100, 80, dtype=dtype)
    program = copied(code, dtype, swizzle, columns, rows=100, width=80)
    source = checked(program, a, torch.zeros_like(a), expected=a).get_kernel_source()
    assert "expect_tx" in source
    assert "cp_async_bulk_tensor_g2s" in source
    assert columns != 128 or compile_source(source, "sm_90a").cubin


@pytest.mark.full
def test_another_view_of_a_tensor():
    """Three axes where the tensor has one, of dynamic extent; a box of four and two of them."""
    n = T.dynamic("n")

    @T.prim_func
    def program(A: T.Tensor((n * 256,), "float32"), C: T.Tensor((n, 2, 4, 32), "float32")):
        with T.Kernel(n, threads=128) as x:
            t = T.alloc_shared((2, 4, 32), "float32")
            bar = T.alloc_barrier(1)
            desc = T.create_tma_descriptor(
                *(7, 4, T.access_ptr(A)),
                *(32, 4, 2, n),
                *(4, 32 * 4, 128 * 4, 256 * 4),
                *(32, 4, 2, 1),
                *(1, 1, 1, 1),
                *(0, 0, 0, 0),
            )
            if T.get_thread_binding() == 32:
                T.mbarrier_expect_tx(bar, 1024)
                T.tma_load(desc, bar, t, 0, 0, 0, x, 1)
                T.mbarrier_arrive(bar)
            T.mbarrier_wait_parity(bar, 0)
            T.copy(t, C[x, 0, 0, 0])

    a = numbers(3 * 256, dtype="float32")
    kernel = checked(program, a, torch.zeros(3, 2, 4, 32), expected=a.view(3, 2, 4, 32))
    assert "evict_first" in kernel.get_kernel_source()


@pytest.mark.full
def test_a_producer_written_by_hand():
    """Stages of two tiles, a warpgroup that multiplies, a warp that copies ahead."""
    K, stages = 320, 2

    @T.prim_func
    def program(
        A: T.Tensor((64, K), "float16"),
        B: T.Tensor((K, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((stages, 64, 64), "float16")
            b = T.alloc_shared((stages, 64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            full, empty = T.alloc_barrier([1] * stages), T.alloc_barrier([128] * stages)
            a_desc = T.create_tma_descriptor(
                6, 2, A.data, K, 64, 2, K * 2, 64, 64, 1, 1, 0, 3, 2, 0
            )
            b_desc = T.create_tma_descriptor(6, 2, B.data, 64, K, 2, 128, 64, 64, 1, 1, 0, 3, 2, 0)
            tx = T.get_thread_binding()
            if tx < 128:
                T.clear(c)
                for k in T.serial(K // 64):
                    T.mbarrier_wait_parity(full[k % stages], k // stages % 2)
                    T.gemm(a[k % stages, :, :], b[k % stages, :, :], c)
                    T.mbarrier_arrive(empty[k % stages])
                T.copy(c, C)
            elif tx == 128:
                for k in T.serial(K // 64):
                    s = k % stages
                    T.mbarrier_wait_parity(empty[s], (k // stages + 1) % 2)
                    T.mbarrier_expect_tx(full[s], 2 * 64 * 64 * 2)
                    T.tma_load(a_desc, full[s], T.access_ptr(a[s, 0, 0], "w"), k * 64, 0)
                    T.tma_load(b_desc, full[s], T.access_ptr(b[s, 0, 0], "w"), 0, k * 64)
                    T.mbarrier_arrive(full[s])

    a, b = numbers(64, K), numbers(K, 64)
    kernel = checked(program, a, b, torch.zeros(64, 64), expected=(a.double() @ b.double()).float())
    assert "wgmma" in kernel.get_kernel_source()


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (r", \(uint\)8192\)", "bytes to|to arrive"),
        (r"\(&\(t_ptr\[0\]\)\)", r"out of bounds: a bulk load .* writes t_ptr\[4096\]"),
    ],
)
def test_planted_mistakes_are_found(wrong, message):
    """Too few bytes are expected; a box begins where the tile is not whole."""
    kernel = emulated(copied(6, "float16", 3, 64))
    ((symbol, source),) = kernel.adapter.sources.items()
    start = source.rindex("cp_async_bulk_tensor") if "t_ptr" in wrong else 0
    other = {", (uint)8192)": ", (uint)8064)", "(&(t_ptr[0]))": "(&(t_ptr[64]))"}
    changed = re.sub(wrong, lambda found: other[found[0]], source[start:], count=1)
    assert changed != source[start:]
    kernel.adapter.sources[symbol] = source[:start] + changed
    a = numbers(M, N)
    with pytest.raises(tvmtile.errors.CudaEmulationError, match=message):
        kernel(a, torch.zeros_like(a))
