"""Atomic operations: nothing gets lost between blocks that run at the same time."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from tvm.target import Target

import tvmtile
import tvmtile.language as T
from tests.gpu.machine import by_way_of_gpu
from tvmtile.codegen.llvm_atomics import ORDERS, atomic_function, supported_dtypes
from tvmtile.codegen.metal_atomics import has_atomic
from tvmtile.errors import (
    NoLowering,
)
from tvmtile.tileop.atomic import reference

UPDATES = {"add": T.atomic_add, "max": T.atomic_max, "min": T.atomic_min, "or": T.atomic_or}
CASES = [(kind, dtype) for kind in UPDATES for dtype in supported_dtypes(kind)]


def histogram(kind, dtype, count, bins, compiled):
    """`count` updates of `bins` elements, by blocks of 16."""
    update = UPDATES[kind]

    @T.prim_func
    def main(
        index: T.Tensor((count,), "int32"),
        value: T.Tensor((count,), dtype),
        out: T.Tensor((bins,), dtype),
    ):
        with T.Kernel(T.ceildiv(count, 16)) as bx:
            for i in T.Parallel(16):
                if bx * 16 + i < count:
                    update(out[index[bx * 16 + i]], value[bx * 16 + i])

    return compiled(main)


@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_many_blocks_update_few_elements(tensors, kind, dtype, compiled):
    """Values are small integers, so that sums are exact in every dtype and order."""
    on_cpu = compiled is tvmtile.compile
    if not on_cpu and compiled is not by_way_of_gpu and not has_atomic(dtype):
        with pytest.raises(NoLowering, match=f"Metal has no atomic operations on {dtype}"):
            histogram(kind, dtype, 16, 8, compiled)
        return
    count = 3001 if on_cpu else 301
    index = tensors((count,), "int32", 0, 5)
    limit = 1 if dtype.startswith("uint") else 2
    value = torch.tensor([-1, 0, 1, 0])[tensors((count,), "int64", 0, 4)]
    value = (value if limit == 2 else value.abs()).to(getattr(torch, dtype))
    if kind != "add":
        value = tensors((count,), dtype, 1, 100)
    out = torch.zeros(8, dtype=value.dtype)
    expected = reference(tensors.wide(out), index.numpy(), tensors.wide(value), kind)
    histogram(kind, dtype, count, 8, compiled)(index, value, out)
    np.testing.assert_array_equal(
        tensors.wide(out), tensors.wide(torch.tensor(expected).to(out.dtype))
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_round_to_nearest_even(dtype):
    """Each step rounds as torch does, also without the instructions of a particular processor."""
    value = torch.linspace(-3, 3, 400, dtype=torch.float64).to(getattr(torch, dtype))
    start = torch.full((400,), 1.3, dtype=value.dtype)
    expected = start + value
    for target in (None, Target("llvm")):
        out = start.clone()
        index = torch.arange(400, dtype=torch.int32)
        histogram("add", dtype, 400, 400, partial(tvmtile.compile, target=target))(
            index, value, out
        )
        assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_not_a_number_and_infinity(dtype, compiled):
    value = torch.tensor([math.nan, math.inf, -math.inf, 1], dtype=getattr(torch, dtype))
    out = torch.ones(4, dtype=value.dtype)
    histogram("add", dtype, 4, 4, compiled)(torch.arange(4, dtype=torch.int32), value, out)
    assert out.isnan()[0]
    assert out[1:].tolist() == [math.inf, -math.inf, 2]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_split_k_tiles(dtype, compiled):
    """Blocks that share the sum over K add their tiles into one result; all edges are ragged."""
    M, N, K = 50, 70, 100

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float32"), B: T.Tensor((K, N), "float32"), C: T.Tensor((M, N), dtype)
    ):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), T.ceildiv(K, 32)) as (bx, by, bz):
            a = T.alloc_shared((32, 32), "float32")
            b = T.alloc_shared((32, 32), "float32")
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            T.copy(A[by * 32, bz * 32], a)
            T.copy(B[bz * 32, bx * 32], b)
            T.gemm(a, b, c)
            T.atomic_add(C[by * 32, bx * 32], c)

    a, b = torch.randint(-3, 4, (M, K)).float(), torch.randint(-3, 4, (K, N)).float()
    c = torch.zeros(M, N, dtype=getattr(torch, dtype))
    compiled(main)(a, b, c)
    assert torch.equal(c.double(), a.double() @ b.double())


@pytest.mark.parametrize("kind", ["add", "max", "min"])
def test_tile_forms(tensors, close, kind):
    """A whole buffer, a region and an origin, of another dtype than the value."""
    update = UPDATES[kind]

    @T.prim_func
    def main(A: T.Tensor((8, 12), "float32"), C: T.Tensor((3, 8, 12), "float64")):
        with T.Kernel(1):
            tile = T.alloc_fragment((8, 12), "float32")
            T.copy(A, tile)
            update(C[0, 0:8, 0:12], tile)
            update(C[1, 0, 0], tile)
            update(C[2, 2:5, 3:12], tile[1:4, 0:9])

    src, out = tensors((8, 12), "float32"), tensors((3, 8, 12), "float64")
    combine = {"add": np.add, "max": np.maximum, "min": np.minimum}[kind]
    expected = out.numpy().copy()
    for part, value in (
        (expected[0], src),
        (expected[1], src),
        (expected[2, 2:5, 3:12], src[1:4, 0:9]),
    ):
        part[...] = combine(part, value.double().numpy())
    tvmtile.compile(main)(src, out)
    close(out, expected)


def test_elements_outside_are_skipped_and_read_as_zero():
    @T.prim_func
    def main(C: T.Tensor((10,), "int32"), previous: T.Tensor((4, 4), "int32")):
        with T.Kernel(4, threads=1) as bx:
            for i in T.serial(4):
                previous[bx, i] = T.atomic_add(C[bx * 4 + i], 1 + bx, return_prev=True)

    out, previous = (
        torch.full((10,), 7, dtype=torch.int32),
        torch.full((4, 4), -1, dtype=torch.int32),
    )
    tvmtile.compile(main)(out, previous)
    assert out.tolist() == [8] * 4 + [9] * 4 + [10] * 2
    assert previous.flatten().tolist() == [7] * 10 + [0] * 6


def test_former_values_are_all_different():
    """Each block takes the next free place, also where the value is an index in a guarded access."""

    @T.prim_func
    def main(counters: T.Tensor((2,), "int32"), out: T.Tensor((2, 500), "int32")):
        with T.Kernel(500, threads=1) as bx:
            place = T.atomic_add(counters[0], 1, return_prev=True)
            out[0, place] = bx
            out[1, T.atomic_add(counters[1], 1, return_prev=True)] = bx

    counters, out = torch.zeros(2, dtype=torch.int32), torch.full((2, 500), -1, dtype=torch.int32)
    tvmtile.compile(main)(counters, out)
    assert counters.tolist() == [500, 500]
    assert [sorted(row) for row in out.tolist()] == [list(range(500))] * 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "uint8"])
def test_former_value_has_the_dtype_of_the_element(dtype):
    @T.prim_func
    def main(C: T.Tensor((1,), dtype), out: T.Tensor((2,), dtype)):
        with T.Kernel(1, threads=1):
            before = T.atomic_max(C[0], 5, return_prev=True)
            out[0] = before
            out[1] = T.atomic_min(C[0], 1, return_prev=True)

    c, out = torch.full((1,), 3).to(getattr(torch, dtype)), torch.zeros(2).to(getattr(torch, dtype))
    tvmtile.compile(main)(c, out)
    assert c.tolist() == [1]
    assert out.tolist() == [3, 5]


def test_threads_of_a_block_each_add(compiled):
    @T.prim_func
    def main(C: T.Tensor((3,), "int32")):
        with T.Kernel(10, threads=64):
            tx = T.get_thread_binding()
            T.atomic_add(C[0], 1)
            T.atomic_add(C[1], tx)
            if tx == 5:
                T.atomic_add(C[2], 1)

    out = torch.zeros(3, dtype=torch.int32)
    compiled(main)(out)
    assert out.tolist() == [640, 10 * 63 * 32, 10]


@pytest.mark.parametrize("dtype", ["int32", "float32", "float16", "uint8"])
@pytest.mark.parametrize("order", ["relaxed", "acq_rel"])
def test_former_values_on_metal(dtype, order):
    """Every thread gets another value, in device and in threadgroup memory; orders are fences."""

    @T.prim_func
    def main(C: T.Tensor((4,), dtype), out: T.Tensor((3, 64), dtype)):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            shared = T.alloc_shared((4,), dtype)
            T.clear(shared)
            out[0, tx] = T.atomic_add(C[1], 1, memory_order=order, return_prev=True)
            out[1, tx] = T.atomic_add(shared[2], 1, memory_order=order, return_prev=True)
            T.sync_threads()
            out[2, tx] = T.atomic_load(shared[2], "relaxed")
            if tx == 0:
                T.atomic_store(C[2], 5, "release")

    kind = getattr(torch, dtype)
    values, out = torch.zeros(4, dtype=kind), torch.zeros(3, 64, dtype=kind)
    tvmtile.compile(main, target="metal", execution_backend="emulator")(values, out)
    assert [sorted(row) for row in out[:2].tolist()] == [list(range(64))] * 2
    assert out[2].tolist() == [64] * 64
    assert values[1].item() == 64
    assert values[[0, 2, 3]].tolist() == [0, 5, 0]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_former_values_of_neighbours(compiled, dtype):
    """What is updated is the tensor, not neighbours of it that a thread has loaded at once."""

    @T.prim_func
    def main(
        A: T.Tensor((256,), dtype), C: T.Tensor((256,), dtype), previous: T.Tensor((256,), dtype)
    ):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(256):
                previous[i] = T.atomic_add(C[i], A[i], return_prev=True)

    kind = getattr(torch, dtype)
    values, out = torch.arange(256).to(kind), torch.zeros(256, dtype=kind)
    compiled(main)(torch.ones(256, dtype=kind), values, out)
    assert out.tolist() == list(range(256))
    assert values.tolist() == list(range(1, 257))
    assert tvmtile.compile(main, target={"kind": "cuda", "arch": "sm_90a"}).cubin


def test_a_function_of_cuda_updates_the_tensor_and_not_a_copy():
    @T.prim_func
    def main(A: T.Tensor((256,), "float32"), C: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(256):
                A[i] = T.call_extern("float32", "atomicAdd", T.address_of(C[i]), A[i])

    kernel = tvmtile.compile(main, target={"kind": "cuda", "arch": "sm_90a"})
    assert "atomicAdd((&(C_ptr[" in kernel.get_kernel_source()


def test_shared_counters(compiled):
    """A histogram in a shared tile, then added to the result."""

    @T.prim_func
    def main(A: T.Tensor((1000,), "int32"), C: T.Tensor((8,), "int32")):
        with T.Kernel(10, threads=64) as bx:
            bins = T.alloc_shared((8,), "int32")
            T.clear(bins)
            for i in T.Parallel(100):
                T.atomic_add(bins[A[bx * 100 + i]], 1)
            T.atomic_add(C[0], bins)

    src, out = torch.randint(0, 8, (1000,), dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    compiled(main)(src, out)
    assert torch.equal(out, torch.bincount(src, minlength=8).int())


def test_vectors_of_two_and_four():
    @T.prim_func
    def main(
        A: T.Tensor((4, 8), "float32"),
        C: T.Tensor((4, 8), "float32"),
        P: T.Tensor((4, 4), "float32"),
    ):
        with T.Kernel(4, threads=1) as bx:
            P[bx, 0:2] = T.atomic_addx2(C[bx, 0], A[bx, 0], return_prev=True)
            T.atomic_addx4(C[bx, 2:6], A[bx, 4:8])
            T.atomic_addx2(C[bx, 6], T.Broadcast(T.float32(2), 2))
            T.atomic_addx2(C[bx, 7], A[bx, 0])  # the second is outside: neither is done

    a, c, p = torch.randn(4, 8), torch.randn(4, 8), torch.zeros(4, 4)
    expected = c.clone()
    expected[:, 0:2] += a[:, 0:2]
    expected[:, 2:6] += a[:, 4:8]
    expected[:, 6:8] += 2
    before = c.clone()
    tvmtile.compile(main)(a, c, p)
    assert torch.equal(c, expected)
    assert torch.equal(p[:, 0:2], before[:, 0:2])


def test_vectors_that_a_ramp_names():
    @T.prim_func
    def main(
        A: T.Tensor((8,), "float32"), C: T.Tensor((8,), "float32"), P: T.Tensor((2,), "float32")
    ):
        with T.Kernel(1, threads=1):
            P[0:2] = T.atomic_addx2(C[T.Ramp(1, 1, 2)], A[T.Ramp(4, 1, 2)], return_prev=True)

    a, c, p = torch.randn(8), torch.randn(8), torch.zeros(2)
    before = c.clone()
    tvmtile.compile(main)(a, c, p)
    assert torch.equal(c[1:3], before[1:3] + a[4:6])
    assert torch.equal(c[3:], before[3:])
    assert torch.equal(p, before[1:3])


def test_alignment_that_is_known_is_not_looked_for():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(4, threads=128) as bx:
            for i, j in T.Parallel(16, 64):
                T.atomic_add(C[bx * 16 + i, j], A[bx * 16 + i, j])
            T.atomic_addx2(C[bx, bx], A[bx, 0])

    kernel = tvmtile.compile(
        main, target={"kind": "cuda", "arch": "sm_90a"}, execution_backend="emulator"
    )
    source = kernel.get_kernel_source()
    assert "tvmtile_atomic_add_float32x4_global_aligned_relaxed(" in source
    assert source.count("place & ") == 1  # of the neighbours that begin anywhere
    a, c = torch.randn(64, 64), torch.zeros(64, 64)
    kernel(a, c)
    expected = a.clone()
    for bx in range(4):
        expected[bx, bx : bx + 2] += a[bx, :2]
    assert torch.equal(c, expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "uint64"])
def test_load_and_store(dtype):
    @T.prim_func
    def main(A: T.Tensor((4,), dtype), C: T.Tensor((4,), dtype)):
        with T.Kernel(4, threads=1) as bx:
            T.atomic_store(C[bx], T.atomic_load(A[bx], "acquire") + A[bx], "release")

    a = torch.tensor([0, 1, 2, 3]).to(getattr(torch, dtype))
    c = torch.zeros_like(a)
    tvmtile.compile(main)(a, c)
    assert torch.equal(c.double(), 2 * a.double())


def test_waiting_for_another_block():
    """`while` loads again each time: the flag changes in the loop."""

    @T.prim_func
    def main(flag: T.Tensor((1,), "int32"), out: T.Tensor((1,), "int32")):
        with T.Kernel(1, threads=1):
            while T.atomic_load(flag[0]) < 10:
                T.atomic_add(flag[0], 3)
            out[0] = flag[0]

    flag, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    tvmtile.compile(main)(flag, out)
    assert out.item() == 12


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["int32", "float16"])
def test_memory_orders(order, dtype):
    @T.prim_func
    def main(C: T.Tensor((1,), dtype)):
        with T.Kernel(30, threads=1):
            T.atomic_add(C[0], 1, memory_order=order)

    out = torch.zeros(1).to(getattr(torch, dtype))
    tvmtile.compile(main)(out)
    assert out.item() == 30


def test_function_names_differ():
    kinds = ("add", "max", "min", "or", "store", "load")
    names = [
        atomic_function(kind, dtype, order)[0]
        for kind in kinds
        for dtype in supported_dtypes(kind)
        for order in ORDERS
    ]
    assert len(set(names)) == len(names)


def test_program_parses_back():
    from tvm.ir import assert_structural_equal
    from tvm.script import from_source

    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), C: T.Tensor((8,), "float32")):
        with T.Kernel(8, threads=1) as bx:
            T.atomic_max(C[bx], A[bx], "release")
            T.atomic_add(C, A)
            C[bx] = T.atomic_add(C[bx], 1, return_prev=True) + T.atomic_load(A[bx], "relaxed")

    assert_structural_equal(from_source(main.script()), main)


def test_one_value_updates_a_tile_once_a_block(compiled):
    """In a kernel that names no thread, however many threads a block has; an element likewise."""

    @T.prim_func
    def program(A: T.Tensor((3,), "int32"), B: T.Tensor((1,), "int32"), C: T.Tensor((1,), "int32")):
        with T.Kernel(5, threads=64) as bx:
            T.atomic_add(A, bx)
            T.atomic_add(B, 1)
            T.atomic_add(C[0], 1)

    a, b, c = torch.zeros(3, dtype=torch.int32), *torch.zeros(2, 1, dtype=torch.int32)
    compiled(program)(a, b, c)
    assert a.tolist() == [10, 10, 10]
    assert b.item() == 5
    assert c.item() == 5
