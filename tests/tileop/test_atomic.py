"""Atomic operations: former values, memory orders, vectors; sums are programs of the catalogue."""

from __future__ import annotations

import pytest
import torch
from tvm.target import Target

import tvmtile
import tvmtile.language as T
from tvmtile.codegen.atomics import ORDERS, llvm_function, supported_dtypes


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


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_former_values_of_neighbours(compiled, dtype):
    """The tensor is updated, not neighbours of it that a thread has loaded at once."""

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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_round_to_nearest_even(dtype):
    """Each step rounds as torch does, also without the instructions of a particular processor."""

    @T.prim_func
    def main(value: T.Tensor((400,), dtype), out: T.Tensor((400,), dtype)):
        with T.Kernel(25) as bx:
            for i in T.Parallel(16):
                T.atomic_add(out[bx * 16 + i], value[bx * 16 + i])

    value = torch.linspace(-3, 3, 400, dtype=torch.float64).to(getattr(torch, dtype))
    start = torch.full((400,), 1.3, dtype=value.dtype)
    for target in (None, Target("llvm")):
        out = start.clone()
        tvmtile.compile(main, target=target)(value, out)
        assert torch.equal(out, start + value)


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("dtype", "order"),
    [("int32", "relaxed"), ("float32", "acq_rel"), ("float16", "relaxed"), ("uint8", "acq_rel")],
)
def test_every_thread_gets_another_former_value_on_metal(dtype, order):
    """In device and in threadgroup memory; orders are fences."""

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
    assert values.tolist() == [0, 64, 5, 0]


def test_vectors_of_two_and_four():
    """Of elements, of regions, of one value, of ramps; none is done of which a part is outside."""

    @T.prim_func
    def main(
        A: T.Tensor((4, 8), "float32"),
        C: T.Tensor((4, 8), "float32"),
        P: T.Tensor((8, 2), "float32"),
    ):
        with T.Kernel(4, threads=1) as bx:
            P[bx, 0:2] = T.atomic_addx2(C[bx, 0], A[bx, 0], return_prev=True)
            T.atomic_addx4(C[bx, 2:6], A[bx, 4:8])
            T.atomic_addx2(C[bx, 6], T.Broadcast(T.float32(2), 2))
            T.atomic_addx2(C[bx, 7], A[bx, 0])  # the second is outside: neither is done
            P[4 + bx, 0:2] = T.atomic_addx2(
                C[bx, T.Ramp(3, 1, 2)], A[bx, T.Ramp(4, 1, 2)], return_prev=True
            )

    a, c = torch.randint(-9, 9, (2, 4, 8)).float()
    p = torch.zeros(8, 2)
    expected, before = c.clone(), c[:, 0:2].clone()
    expected[:, 0:2] += a[:, 0:2]
    expected[:, 2:6] += a[:, 4:8]
    expected[:, 6:8] += 2
    between = expected[:, 3:5].clone()
    expected[:, 3:5] += a[:, 4:6]
    tvmtile.compile(main)(a, c, p)
    assert torch.equal(c, expected)
    assert torch.equal(p, torch.cat([before, between]))


@pytest.mark.parametrize("dtype", ["int32", "float16", "bfloat16", "float64", "int8", "uint64"])
def test_loads_stores_and_updates_of_every_order(dtype):
    """`while` loads again each time; a former value has the dtype of the element.

    The largest number of an unsigned dtype is no small one, as it is where bits are taken for signed.
    """

    @T.prim_func
    def main(A: T.Tensor((2,), dtype), C: T.Tensor((5,), dtype), flag: T.Tensor((1,), "int32")):
        with T.Kernel(1, threads=1):
            for order in ORDERS:
                T.atomic_add(C[0], 1, memory_order=order)
            T.atomic_store(C[1], T.atomic_load(A[1], "acquire") + A[1], "release")
            before = T.atomic_max(A[0], T.max_value(dtype), return_prev=True)
            C[2] = before
            C[3] = T.atomic_min(A[0], 1, return_prev=True)
            while T.atomic_load(flag[0]) < 10:
                T.atomic_add(flag[0], 3)
            C[4] = T.cast(flag[0], dtype)

    kind = getattr(torch, dtype)
    a, c = torch.tensor([3, 2]).to(kind), torch.zeros(5).to(kind)
    tvmtile.compile(main)(a, c, torch.zeros(1, dtype=torch.int32))
    largest = (torch.finfo if kind.is_floating_point else torch.iinfo)(kind).max
    assert c.tolist() == [len(ORDERS), 4, 3, largest, 12]
    assert a.tolist() == [1, 2]


def test_function_names_differ():
    kinds = ("add", "max", "min", "or", "store", "load")
    names = [
        llvm_function(kind, dtype, order)[0]
        for kind in kinds
        for dtype in supported_dtypes(kind)
        for order in ORDERS
    ]
    assert len(set(names)) == len(names)
