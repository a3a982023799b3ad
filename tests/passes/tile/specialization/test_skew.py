"""Loops of two products: the second goes on under the next iteration, and the result is the same."""

from __future__ import annotations

import re

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.metal.programs import assert_close, random
from tvmtile.errors import CudaEmulationError

HOPPER = {"kind": "cuda", "arch": "sm_90a"}
ROWS = T.GemmWarpPolicy.FullRow
WAIT = re.compile(
    r"^ +tvm_builtin_(cuda_mbarrier_wait|ptx_wgmma_wait_group\w+)\(.*\);$", re.MULTILINE
)


def products(length, *, dtype="float16", block=(64, 64, 64), threads=128, stages=2):
    """Sums of `2 ** min(Q K[i]^T, 0) V[i]`, halved before each, for each tile of `steps`."""
    M, N, D = block
    n = T.dynamic("n")

    @T.prim_func
    def main(
        Q: T.Tensor((M, D), dtype),
        K: T.Tensor((length, D), dtype),
        V: T.Tensor((length, D), dtype),
        steps: T.Tensor((n,), "int32"),
        C: T.Tensor((M, D), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            q = T.alloc_shared((M, D), dtype)
            k_shared = T.alloc_shared((N, D), dtype)
            v_shared = T.alloc_shared((N, D), dtype)
            scores = T.alloc_fragment((M, N), "float32")
            weights = T.alloc_fragment((M, N), dtype)
            output = T.alloc_fragment((M, D), "float32")
            T.copy(Q, q)
            T.clear(output)
            for k in T.Pipelined(n, num_stages=stages):
                T.copy(K[k * N, 0], k_shared)
                T.gemm(q, k_shared, scores, transpose_B=True, policy=ROWS, clear_accum=True)
                T.copy(V[k * N, 0], v_shared)
                for i, j in T.Parallel(M, N):
                    scores[i, j] = T.exp2(T.min(scores[i, j], 0))
                T.copy(scores, weights)
                for i, j in T.Parallel(M, D):
                    output[i, j] *= 0.5
                T.gemm(weights, v_shared, output, policy=ROWS)
            T.copy(output, C)

    return main


def emulated(program):
    return tvmtile.compile(program, target=HOPPER, execution_backend="emulator")


def skews_of(kernel):
    """Of each pipelined loop whether it is skewed, or why not."""
    loops = [choice for choice in kernel.choices if choice.operator == "Pipelined"]
    return ["skewed" in loop.chosen.split(", ") or dict(loop.declined)["skewed"] for loop in loops]


def check(kernel, length, *, block=(64, 64, 64), dtype="float16", steps=None, seeds=2):
    """Run a kernel, with tiles and products that arrive at several times, and compare."""
    M, N, D = block
    q, keys, values = (random(rows, D, dtype=dtype) / 4 for rows in (M, length, length))
    tiles = -(-length // N) if steps is None else steps
    rest = torch.zeros(tiles * N, D, dtype=q.dtype)  # rows that are not there are zeros
    total = torch.zeros(M, D, dtype=torch.float64)
    for i in range(tiles):
        k, v = (torch.cat([x, rest])[i * N : (i + 1) * N].double() for x in (keys, values))
        weights = torch.exp2((q.double() @ k.T).clamp_max(0))
        total = total / 2 + weights @ v
    for seed in range(seeds):
        kernel.adapter.seed = seed
        result = torch.zeros(M, D)
        kernel(q, keys, values, torch.zeros(tiles, dtype=torch.int32), result)
        assert_close(result, total, dtype)


# Numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [2, 3])
def test_any_number_of_iterations(stages):
    block = (64, 32, 32)
    kernel = emulated(products(288, block=block, stages=stages))
    assert skews_of(kernel) == [True]
    for steps in range(10):
        check(kernel, 288, block=block, steps=steps)


@pytest.mark.parametrize("length", [40, 100])
def test_ragged_lengths(length):
    check(emulated(products(length)), length)


@pytest.mark.parametrize(("dtype", "dim"), [("bfloat16", 128), ("float16", 64)])
def test_two_warpgroups_and_dtypes(dtype, dim):
    block = (128, 128, dim)
    kernel = emulated(products(256, dtype=dtype, block=block, threads=256))
    assert skews_of(kernel) == [True]
    check(kernel, 256, block=block, dtype=dtype, seeds=1)


# Order -------------------------------------------------------------------------------------------


def events_of(source):
    """What consumers begin and wait for, in the order of the text."""
    text = source[source.index("extern") :]
    names = {
        "wgmma_f16_ss": "first",
        "wgmma_f16_rs": "second",
        "wait_group_sync_aligned_1": "wait but for one",
        "wait_group_sync_aligned_0": "wait",
        "exp2f": "compute",
        "for (int k = 1": "loop",
        "output_ptr[0] * ": "halve",
    }
    found = re.findall("|".join(map(re.escape, names)), text)
    events = [names[each] for each in found]
    return [event for i, event in enumerate(events) if i == 0 or event != events[i - 1]]


def test_the_second_product_goes_on_under_the_next_iteration():
    source = tvmtile.compile(products(256), target=HOPPER).get_kernel_source()
    assert events_of(source) == [
        *("first", "wait", "compute", "halve", "loop"),
        *("first", "second", "wait but for one", "compute", "wait", "halve"),
        *("second", "wait"),
    ]


@pytest.mark.nightly
def test_every_wait_is_missed():
    kernel = emulated(products(256))
    ((symbol, source),) = kernel.adapter.sources.items()
    waits = list(WAIT.finditer(source))
    assert len(waits) == 10  # two of them the producer's
    for wait in waits:
        kernel.adapter.sources[symbol] = source[: wait.start()] + source[wait.end() :]
        with pytest.raises(CudaEmulationError):
            check(kernel, 256, seeds=4)


# Where it is not done ----------------------------------------------------------------------------


def test_one_buffer_copy():
    kernel = emulated(products(192, stages=1))
    assert skews_of(kernel) == ["its tiles have one buffer copy"]
    check(kernel, 192)


@pytest.mark.parametrize(
    ("block", "threads", "reason"),
    [
        (
            (128, 256, 64),
            256,
            "the fragments take 224 registers of a thread, of which it has 240; 24 are for all else",
        ),
        ((192, 128, 64), 384, "3 warpgroups take turns with the matrix unit"),
    ],
)
def test_the_choices_say_why_products_do_not_overlap(block, threads, reason):
    kernel = emulated(products(256, block=block, threads=threads))
    assert skews_of(kernel) == [reason]
