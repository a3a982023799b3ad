"""Sums that are copied or added to a tensor by boxes: which can be, the code, and each step missed.

What the tensors then hold is tested by the programs of tests/programs/bulk_copies.py.
"""

from __future__ import annotations

import re

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.running import random
from tvmtile.errors import CudaEmulationError, NoLowering

HOPPER = {"kind": "cuda", "arch": "sm_90a"}


def product(
    M=64,
    N=64,
    K=64,
    *,
    block=(64, 64, 32),
    out="float16",
    options=None,
    impl=None,
    add=None,
    room=0,
):
    """A product whose sums are copied to C, or added to it."""
    bM, bN, bK = block
    options = options or {}

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), out)
    ):
        with T.Kernel(T.ceildiv(N, bN), T.ceildiv(M, bM), threads=128) as (bx, by):
            a = T.alloc_shared((bM, bK), "float16")
            b = T.alloc_shared((bK, bN), "float16")
            c = T.alloc_fragment((bM, bN), "float32")
            if room:
                kept = T.alloc_shared((room,), "uint8")
                T.fill(kept, 0)
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=2):
                T.copy(A[by * bM, k * bK], a)
                T.copy(B[k * bK, bx * bN], b, **options)
                T.gemm(a, b, c)
            if add is not None:
                T.atomic_add(C[by * bM, bx * bN], c, memory_order=add)
            else:
                T.copy(c, C[by * bM, bx * bN], impl=impl, **options)

    return main


def used(how):
    """Sums of one product, copied to C or to its view, and what else is done with C."""

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((192 * 64,), "float16")):
        with T.Kernel(1, threads=128):
            matrix = T.reshape(C, (192, 64))
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.gemm(a, a, c, clear_accum=True)
            if how == "elements":
                T.copy(c, matrix[0, 0])
                for i in T.Parallel(64):
                    C[i] = T.float16(0)
            elif how == "overlap":
                T.copy(c, matrix[63, 0])
                T.copy(c, matrix[0, 0])
            elif how == "loop":
                for n in T.serial(2):
                    T.copy(c, matrix[n * 64, 0])
                    T.copy(c, matrix[n * 64 + 64, 0])
            else:
                other = T.alloc_fragment((64, 64), "float16")
                T.copy(A, other)
                T.copy(other, matrix[0, 0])

    return main


def compiled(program, **options):
    return tvmtile.compile(program, target=HOPPER, execution_backend="emulator", **options)


NO_MAPS = {"tl.disable_tma_lower": True}
TOLD = "it is not to use the tensor memory accelerator"
ELSEWHERE = "the kernel uses matrix[192, 64] float16 elsewhere too"
OVERLAP = "may store other values in the same part of matrix[192, 64] float16"
UNORDERED = "it is no addition of float32 in any order"


@pytest.mark.parametrize(
    ("program", "config", "reason"),
    [
        (product(out="float8_e4m3fn"), {}, "has no elements of 16 or 32 bits"),
        (product(N=60), {}, "may not begin at multiples of 16 bytes"),
        (used("elements"), {}, ELSEWHERE),
        (used("overlap"), {}, OVERLAP),
        (used("loop"), {}, OVERLAP),
        (used("a fragment"), {}, "do not lie as matrix instructions hold sums"),
        (product(options={"disable_tma": True}), {}, TOLD),
        (product(options={"annotations": {"disable_tma": True}}), {}, TOLD),
        (product(), NO_MAPS, TOLD),
        (product(room=212 << 10), {}, "bytes of shared memory are not left"),
        (product(out="float16", add="relaxed"), {}, UNORDERED),
        (product(out="float32", add="release"), {}, UNORDERED),
        (
            product(out="float32", add="relaxed", room=208 << 10),
            {},
            "of shared memory are not left",
        ),
        (product(out="float32", add="relaxed"), NO_MAPS, TOLD),
        (product(N=66, out="float32", add="relaxed"), {}, "multiples of 16 bytes"),
    ],
)
def test_where_boxes_can_not_be_stored_the_choice_says_why(program, config, reason):
    kernel = compiled(program, pass_configs=config)
    of_sums = [c for c in kernel.choices if c.operator in ("copy", "atomic_tile")][-1]
    declined = dict(of_sums.declined)
    assert of_sums.chosen == "elements"
    assert reason in declined.get("tma_store", "") + declined.get("tma_add", "")
    if reason is TOLD:
        loops = [c for c in kernel.choices if c.operator == "Pipelined"]
        ways = {("two roles", "copy can't go on by itself")}
        assert config or ways == set(loops[0].declined)
        assert not config or "cp_async_bulk_tensor" not in kernel.get_kernel_source()


def test_a_target_without_the_instructions_is_named():
    with pytest.raises(NoLowering, match="CUDA sm_80 has no wgmma, whose sums are copied so"):
        tvmtile.compile(product(impl="tma_store"), target={"kind": "cuda", "arch": "sm_80"})


# The code ----------------------------------------------------------------------------------------

_ORDERING = re.compile(
    r"__(syncthreads)\(\);|"
    r"tvm_builtin_ptx_(bar_sync_count_sync|fence_proxy_\w+|cp_async_bulk_wait_group\w+)\([^;]*\);"
)


@pytest.mark.full
def test_pieces_take_turns_in_two_slots():
    source = compiled(product(N=256, block=(64, 256, 32))).get_kernel_source()
    stored = source[source.rindex("wgmma_wait_group") :]
    assert len(re.findall(r"\w+_bulk_tensor_2d_global\w+\(", stored)) == 4
    assert len(re.findall(r"stmatrix_sync_aligned_m8n8_x4\w+\(", stored)) == 4 * 4
    waits = [m[2] for m in _ORDERING.finditer(stored) if "wait_group" in (m[2] or "")]
    assert [wait.rpartition("wait_group")[2] for wait in waits] == [
        "_read_0", "_0", "_read_1", "_read_1", "_read_0",
    ]  # fmt: skip


def test_pairs_of_wide_elements_are_stored_at_once():
    source = compiled(product(out="float32")).get_kernel_source()
    stored = source[source.rindex("wgmma_wait_group") :]
    assert "stmatrix" not in stored
    assert len(re.findall(r"\*\(float2\*\)\(C_staged\w* \+ .* = ", stored)) == 64 * 64 // 128 // 2


def tiles_in_a_loop(out, columns):
    @T.prim_func
    def program(
        A: T.Tensor((3, 64, 32), "float16"),
        B: T.Tensor((columns, 32), "float16"),
        C: T.Tensor((3, 64, columns), out),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((columns, 32), "float16")
            c = T.alloc_fragment((64, columns), "float32")
            T.copy(B, b)
            for i in T.serial(3):
                T.copy(A[i, 0, 0], a)
                T.gemm(a, b, c, transpose_B=True, clear_accum=True)
                T.copy(c, C[i, 0, 0])

    return program


def run(kernel, tensors):
    """Run a kernel with copies that arrive at several times."""
    for seed in range(2):
        kernel.adapter.seed = seed
        kernel(*tensors)


@pytest.mark.full
@pytest.mark.parametrize(("out", "columns", "number"), [("float16", 256, 16), ("float32", 64, 8)])
def test_every_barrier_fence_and_wait_is_missed(out, columns, number):
    """A block copies several tiles; the wait for their arrival includes that for the slots."""
    kernel = compiled(tiles_in_a_loop(out, columns))
    ((symbol, source),) = kernel.adapter.sources.items()
    start = source.rindex("wgmma_wait_group")
    found = [m.span() for m in _ORDERING.finditer(source) if m.start() > start]
    assert len(found) == number
    first, arrived, *rest = found
    a, b = random(3, 64, 32, dtype="float16"), random(columns, 32, dtype="float16")
    tensors = (a, b, torch.empty(3, 64, columns, dtype=getattr(torch, out)))
    for begin, end in [(first[0], arrived[1]), *rest]:
        kernel.adapter.sources[symbol] = source[:begin] + source[end:]
        with pytest.raises(CudaEmulationError):
            run(kernel, tensors)


@pytest.mark.full
@pytest.mark.parametrize(
    "step",
    [
        "tvm_builtin_ptx_cp_async_bulk_wait_group_async_bulk_wait_group_read_0();",
        "tvm_builtin_ptx_fence_proxy_proxy_async_shared__cta();",
    ],
)
def test_every_step_of_additions_is_missed(step):
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(2, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            for k in T.serial(2):
                T.gemm(a, a, c, clear_accum=True)
                T.atomic_add(C[0, 0], c)

    kernel = compiled(program)
    ((symbol, source),) = kernel.adapter.sources.items()
    begin = source.rindex("for (int k")
    at = source.rindex(step, begin, source.rindex("cp_reduce_async_bulk"))
    kernel.adapter.sources[symbol] = source[:at] + source[at + len(step) :]
    with pytest.raises(CudaEmulationError):
        run(kernel, (random(64, 64, dtype="float16"), torch.zeros(64, 64)))
