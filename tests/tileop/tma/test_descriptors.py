"""T.create_tma_descriptor and T.tma_load: numbers in the emulator, layouts, and what is refused."""

from __future__ import annotations

import re

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidOperand, NoLowering, ShapeMismatch
from tvmtile.jit.cuda.nvrtc import compile_source
from tvmtile.layout import make_half_bank_swizzled_layout, make_swizzled_layout

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
                code,
                2,
                A.data,
                width,
                rows,
                item,
                width * item,
                panel,
                size,
                1,
                1,
                0,
                swizzle,
                2,
                0,
            )
            if T.get_thread_binding() == 0:
                T.mbarrier_arrive_expect_tx(bar, size * columns * item)
                for part in range(columns // panel):
                    place = T.access_ptr(t[0, part * panel], "w", size * panel)
                    T.tma_load(desc, bar, place, x * columns + part * panel, y * size)
            T.mbarrier_wait_parity(bar, 0)
            T.copy(t, C[y * size, x * columns])

    return main


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
    a = numbers(M, N, dtype=dtype)
    kernel = checked(copied(code, dtype, swizzle, columns), a, torch.zeros_like(a), expected=a)
    source = kernel.get_kernel_source()
    assert "expect_tx" in source
    assert "cp_async_bulk_tensor_g2s" in source


def test_outside_of_the_tensor_are_zeros():
    a = numbers(50, 80)
    checked(copied(6, "float16", 3, 64, rows=50, width=80), a, torch.zeros_like(a), expected=a)


def test_the_source_compiles_for_hopper():
    source = emulated(copied(6, "float16", 3, 64)).get_kernel_source()
    assert compile_source(source, "sm_90a").cubin


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


# What is refused -----------------------------------------------------------------------------------

GOOD = (6, 2, None, 64, 64, 2, 128, 64, 64, 1, 1, 0, 3, 2, 0)


def described(**changes):
    args = list(GOOD)
    for place, value in changes.items():
        args[int(place[1:])] = value

    @T.prim_func
    def program(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128):
            T.create_tma_descriptor(*args[:2], A.data if args[2] is None else args[2](A), *args[3:])

    return program


@pytest.mark.parametrize(
    ("changes", "message", "remedy"),
    [
        ({"_1": 3}, "15 arguments", "7 + 4 * rank"),
        ({"_0": 11}, "the dtype is number 11", "6 float16"),
        ({"_0": 7}, "is of float16, not of float32", "as many bytes"),
        (
            {"_2": lambda A: A[1, 0]},
            "is no address of a tensor",
            "where a box begins to T.tma_load",
        ),
        ({"_2": lambda A: 5}, "5 is no address of a tensor", "`A.data`"),
        ({"_5": 4}, "the innermost stride is 4 bytes, of elements of 2", "lie side by side"),
        ({"_6": 100}, "a stride of 100 bytes", "multiples of 16"),
        ({"_8": 512}, "a box of 64, 512", "from 1 to 256"),
        ({"_7": 60}, "a box of 60, 64", "rows of multiples of 16"),
        ({"_9": 2}, "one element of 2, 1", "give 1 along each axis"),
        ({"_11": 1}, "interleave=1, oob_fill=0", "zeros outside"),
        ({"_14": 1}, "interleave=0, oob_fill=1", "zeros outside"),
        ({"_12": 5}, "swizzle=5", "none, 32, 64 or 128"),
        ({"_12": 2}, "rows of a box are 128 bytes, with a swizzle of 64", "32 elements a row"),
        ({"_13": 4}, "l2_promotion=4", "0 to 3"),
    ],
)
def test_descriptors_that_are_refused(changes, message, remedy):
    with pytest.raises(InvalidOperand, match=re.escape(message)) as caught:
        described(**changes)
    assert "T.create_tma_descriptor: " in str(caught.value)
    assert remedy in str(caught.value)


def loaded(load, tile=(64, 64), dtype="float16", layout=None, swizzle=3, box=(64, 64)):
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128):
            t = T.alloc_shared(tile, dtype)
            if layout is not None:
                T.annotate_layout({t: layout(t)})
            bar = T.alloc_barrier(1)
            desc = T.create_tma_descriptor(
                6, 2, A.data, 64, 64, 2, 128, *box, 1, 1, 0, swizzle, 2, 0
            )
            if T.get_thread_binding() == 0:
                T.mbarrier_arrive_expect_tx(bar, 8192)
                load(desc, bar, t, A)
            T.mbarrier_wait_parity(bar, 0)
            T.copy(t[0:64, 0:64], C)

    return program


@pytest.mark.parametrize(
    ("load", "options", "error", "message"),
    [
        (lambda d, b, t, A: T.tma_load(A, b, t, 0, 0), {}, InvalidOperand, "is no descriptor"),
        (lambda d, b, t, A: T.tma_load(d, b, t, 0), {}, InvalidOperand, "1 coordinates, of a desc"),
        (lambda d, b, t, A: T.tma_load(d, b, A, 0, 0), {}, InvalidOperand, "no address in shared"),
        (lambda d, b, t, A: T.tma_load(d, t, t, 0, 0), {}, InvalidOperand, "is no mbarrier"),
        (lambda d, b, t, A: T.tma_load(d, b, t, 0, 0, 7), {}, InvalidOperand, "eviction_policy=7"),
        (
            lambda d, b, t, A: T.tma_load(d, b, t, 0, 0),
            {"tile": (64, 48)},
            ShapeMismatch,
            "a box of",
        ),
        (
            lambda d, b, t, A: T.tma_load(d, b, t, 0, 0),
            {"dtype": "float32"},
            ShapeMismatch,
            "elements of 32 bits, the box of 16",
        ),
    ],
)
def test_loads_that_are_refused(load, options, error, message):
    with pytest.raises(error, match=message) as caught:
        loaded(load, **options)
    assert "T.tma_load: " in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": make_half_bank_swizzled_layout}, "the layout of t is fixed by hand"),
        (
            {"layout": make_swizzled_layout, "swizzle": 0},
            "lies in panels of 128 bytes, swizzled, and the descriptor writes in plain rows",
        ),
        ({"tile": (64, 128), "swizzle": 0}, "is 64 runs of memory, and the box is one"),
        ({"tile": (64, 72)}, "its rows do not consist of 128 bytes"),
    ],
)
def test_tiles_that_lie_otherwise(options, message):
    program = loaded(lambda d, b, t, A: T.tma_load(d, b, t, 0, 0), **options)
    with pytest.raises(NoLowering, match=re.escape(message)):
        emulated(program)


def test_gpus_without_tensor_maps():
    program = loaded(lambda d, b, t, A: T.tma_load(d, b, t, 0, 0))
    with pytest.raises(NoLowering):
        tvmtile.compile(program, target={"kind": "cuda", "arch": "sm_80"})


def test_a_descriptor_is_made_by_the_host():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float16"), C: T.Tensor((2, 64, 64), "float16")):
        with T.Kernel(2, threads=128) as bx:
            t = T.alloc_shared((64, 64), "float16")
            bar = T.alloc_barrier(1)
            desc = T.create_tma_descriptor(
                6, 2, A.data, 64, 64 - bx, 2, 128, 64, 64, 1, 1, 0, 3, 2, 0
            )
            if T.get_thread_binding() == 0:
                T.mbarrier_arrive_expect_tx(bar, 8192)
                T.tma_load(desc, bar, t, 0, 0)
            T.mbarrier_wait_parity(bar, 0)
            T.copy(t, C[bx, 0, 0])

    with pytest.raises(
        InvalidOperand, match="T.create_tma_descriptor: bx has its value in the kernel"
    ):
        emulated(program)
