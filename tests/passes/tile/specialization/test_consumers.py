"""What the consumers of a kernel do: products go on until something needs them."""

from __future__ import annotations

import re

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.metal.programs import assert_close, random
from tvmtile.errors import CudaEmulationError

HOPPER = {"kind": "cuda", "arch": "sm_90a"}
BLOCK = 64


def chained(steps, *, stages=2):
    """Sums of `max(A B[i]^T, 0) * A C[i]^T`, and of the products of that with B[i]."""
    N = BLOCK

    @T.prim_func
    def main(
        A: T.Tensor((N, N), "float16"),
        B: T.Tensor((steps * N, N), "float16"),
        C: T.Tensor((steps * N, N), "float16"),
        sums: T.Tensor((N, N), "float32"),
        total: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((N, N), "float16")
            b = T.alloc_shared((N, N), "float16")
            c = T.alloc_shared((N, N), "float16")
            x = T.alloc_fragment((N, N), "float32")
            y = T.alloc_fragment((N, N), "float32")
            z = T.alloc_fragment((N, N), "float16")
            kept = T.alloc_fragment((N, N), "float32")
            added = T.alloc_fragment((N, N), "float32")
            T.copy(A, a)
            T.clear(kept)
            T.clear(added)
            for i in T.Pipelined(steps, num_stages=stages):
                T.copy(B[i * N, 0], b)
                T.copy(C[i * N, 0], c)
                T.gemm(a, b, x, transpose_B=True, clear_accum=True)
                T.gemm(a, c, y, transpose_B=True, clear_accum=True)
                for m, n in T.Parallel(N, N):
                    x[m, n] = T.max(x[m, n], 0)
                for m, n in T.Parallel(N, N):
                    x[m, n] *= y[m, n]
                T.copy(x, z)
                T.gemm(z, b, added)
                for m, n in T.Parallel(N, N):
                    kept[m, n] += x[m, n]
            T.copy(kept, sums)
            T.copy(added, total)

    return main


def emulated(program):
    return tvmtile.compile(program, target=HOPPER, execution_backend="emulator")


def check(kernel, steps, seeds=2):
    a, b, c = (random(rows * BLOCK, BLOCK, dtype="float16") / 4 for rows in (1, steps, steps))
    sums, total = torch.zeros(2, BLOCK, BLOCK, dtype=torch.float64)
    for left, right in zip(b.split(BLOCK), c.split(BLOCK), strict=True):
        x = (a.double() @ left.double().T).clamp_min(0) * (a.double() @ right.double().T)
        sums += x
        total += x.half().double() @ left.double()
    for seed in range(seeds):
        kernel.adapter.seed = seed
        results = torch.zeros(2, BLOCK, BLOCK)
        kernel(a, b, c, *results)
        assert_close(results[0], sums, "float16")
        assert_close(results[1], total, "float16")


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_products_that_go_on(steps):
    check(emulated(chained(steps)), steps)


EVENTS = {
    r"wgmma_f16_ss_\w+\(x_ptr": "x",
    r"wgmma_f16_ss_\w+\(y_ptr": "y",
    r"wgmma_f16_rs_\w+\(added_ptr": "added",
    r"x_ptr\[0\] = max": "clamp",
    r"x_ptr\[0\] = \(x_ptr\[0\] \* y_ptr": "scale",
    r"kept_ptr\[0\] = \(kept": "keep",
    r"wait_group_sync_aligned_1\(": "all but one",
    r"wait_group_sync_aligned_0\(": "all",
    r"arrive_shared_b64": "release",
}


def test_products_are_waited_for_where_they_are_needed():
    source = tvmtile.compile(chained(5), target=HOPPER).get_kernel_source()
    text = source[source.index("for (int i") : source.rindex("for (int i")]
    found = re.finditer("|".join(f"({pattern})" for pattern in EVENTS), text)
    events = [list(EVENTS.values())[each.lastindex - 1] for each in found]
    assert [e for i, e in enumerate(events) if i == 0 or e != events[i - 1]] == [
        *("x", "y", "all but one", "clamp", "all", "release", "scale"),
        *("added", "keep", "all", "release"),
    ]


@pytest.mark.nightly
def test_every_wait_is_missed():
    kernel = emulated(chained(3))
    ((symbol, source),) = kernel.adapter.sources.items()
    waits = list(re.finditer(r"^ +tvm_builtin_ptx_wgmma_wait_group\w+\(.*\);$", source, re.M))
    assert len(waits) == 3
    for wait in waits:
        kernel.adapter.sources[symbol] = source[: wait.start()] + source[wait.end() :]
        with pytest.raises(CudaEmulationError):
            check(kernel, 3, seeds=4)
