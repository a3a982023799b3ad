"""The cost of dynamic extents and masks in a compile: at most twice the work and the source.

Work is counted, not timed: the statements that each pass leaves, all passes together, and how long the
text is that NVRTC, Metal's compiler or LLVM gets at the end. The nightly tests time the same programs.
"""

from __future__ import annotations

import time

import pytest
import tvm
from tvm import tirx
from tvm.ir.instrument import pass_instrument

import tvmtile
import tvmtile.language as T
from tvmtile._tvm import walk

M, N = T.dynamic("M, N")
STATIC = (4096, 4096)
DYNAMIC = [(M, 4096), (M, N)]
ORDERS = ["plain", "swizzle", "persistent"]
TARGETS = {
    "llvm": {"target": "llvm"},
    "sm_80": {"target": {"kind": "cuda", "arch": "sm_80"}},
    "sm_90a": {"target": {"kind": "cuda", "arch": "sm_90a"}},
    "metal": {"target": "metal", "execution_backend": "emulator"},
}

STATEMENTS = (
    *(tirx.BufferStore, tirx.Evaluate, tirx.IfThenElse),
    *(tirx.For, tirx.Bind, tirx.AllocBuffer),
)


def gemm(rows, columns, order, stages):
    @T.prim_func
    def main(
        A: T.Tensor((rows, 1024), "float16"),
        B: T.Tensor((1024, columns), "float16"),
        C: T.Tensor((rows, columns), "float16"),
    ):
        grid = [T.ceildiv(rows, 128), T.ceildiv(columns, 128)]

        def tile(by, bx):
            a = T.alloc_shared((128, 32), "float16")
            b = T.alloc_shared((32, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            T.clear(c)
            for k in T.Pipelined(32, num_stages=stages):
                T.copy(A[by * 128, k * 32], a)
                T.copy(B[k * 32, bx * 128], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 128, bx * 128])

        if order == "persistent":
            with T.Kernel(132, threads=128) as pid:
                for by, bx in T.Persistent(grid, 132, pid):
                    tile(by, bx)
        else:
            with T.Kernel(grid[1], grid[0], threads=128) as (bx, by):
                T.use_swizzle(8, enable=order == "swizzle")
                tile(by, bx)

    return main


def attention(n, in_halves):
    """Causal attention; in halves, by blocks of 16, where the first half sees itself and the other one.

    A step then copies its tile from one of two places, and masks by one of three rules, or by none.
    """
    blocks, tensor = n // 64 // (2 if in_halves else 1), T.Tensor((n, 64), "float16")

    @T.prim_func
    def main(Q: tensor, K: tensor, V: tensor, O: tensor):
        with T.Kernel(n // 64, threads=128) as block:
            q = T.alloc_shared((64, 64), "float16")
            k = T.alloc_shared((64, 64), "float16")
            v = T.alloc_shared((64, 64), "float16")
            scores = T.alloc_fragment((64, 64), "float32")
            weights = T.alloc_fragment((64, 64), "float16")
            result = T.alloc_fragment((64, 64), "float32")
            highest, before, total, share = (T.alloc_fragment((64,), "float32") for _ in range(4))
            T.copy(Q[block * 64, 0], q)
            T.clear(result)
            T.clear(total)
            T.fill(highest, -1e6)
            own = block % blocks
            is_first = block < blocks
            steps = T.if_then_else(is_first, own + 2, own + 1) if in_halves else own + 1
            for step in T.Pipelined(steps, num_stages=1):
                if in_halves and step > own:
                    T.copy(K[block * 64, 0], k)
                    T.copy(V[block * 64, 0], v)
                elif in_halves:
                    T.copy(K[n // 2 + step * 64, 0], k)
                    T.copy(V[n // 2 + step * 64, 0], v)
                else:
                    T.copy(K[step * 64, 0], k)
                    T.copy(V[step * 64, 0], v)
                if in_halves and step >= own:
                    for i, j in T.Parallel(64, 64):
                        clean = T.if_then_else(is_first, i // 16 > j // 16, i // 16 >= j // 16)
                        is_seen = T.if_then_else(step > own, i // 16 == j // 16, clean)
                        scores[i, j] = T.if_then_else(is_seen, 0.0, -1e6)
                elif not in_halves and step >= own:
                    for i, j in T.Parallel(64, 64):
                        scores[i, j] = T.if_then_else(i >= j, 0.0, -1e6)
                else:
                    T.clear(scores)
                T.gemm(q, k, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(highest, before)
                T.reduce_max(scores, highest, dim=1, clear=False)
                for i, j in T.Parallel(64, 64):
                    scores[i, j] = T.exp2(scores[i, j] - highest[i])
                T.reduce_sum(scores, share, dim=1)
                for i in T.Parallel(64):
                    total[i] = total[i] * T.exp2(before[i] - highest[i]) + share[i]
                for i, j in T.Parallel(64, 64):
                    result[i, j] *= T.exp2(before[i] - highest[i])
                T.copy(scores, weights)
                T.gemm(weights, v, result, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(64, 64):
                O[block * 64 + i, j] = result[i, j] / (total[i] + 1e-30)

    return main


def compiled(shape, order, target):
    stages = 2 if target == "metal" else 3  # as many as a block has room for
    return tvmtile.compile(gemm(*shape, order, stages), **TARGETS[target])


@pass_instrument
class _Statements:
    """The statements of a program after each pass, all together."""

    def __init__(self):
        self.total = 0

    def run_after_pass(self, mod, info):
        del info
        for func in mod.functions.values():
            walk(func.body, (STATEMENTS, self._count))

    def _count(self, _):
        self.total += 1


def cost(compiles):
    """The work of all passes, and how long the source is that comes of them."""
    counted = _Statements()
    with tvm.transform.PassContext(instruments=[counted]):
        kernel = compiles()
    return counted.total, len(kernel.get_kernel_source())


@pytest.mark.full
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_dynamic_kernel_costs_at_most_twice_as_much(target, order):
    work, source = cost(lambda: compiled(STATIC, order, target))
    for shape in DYNAMIC:
        its_work, its_source = cost(lambda: compiled(shape, order, target))
        assert its_work <= 2 * work, shape
        assert its_source <= 2 * source, shape


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS)
def test_attention_by_blocks_in_halves_costs_at_most_twice_as_much(target):
    causal, in_halves = (
        cost(lambda: tvmtile.compile(attention(1024, kind), **TARGETS[target]))
        for kind in (False, True)
    )
    assert in_halves[0] <= 2 * causal[0]
    assert in_halves[1] <= 2 * causal[1]


def seconds(compiles, target):
    """Processor time from the program to machine code, or to source for Metal."""
    start = time.process_time()
    kernel = compiles()
    if target.startswith("sm_"):
        _ = kernel.cubin
    return time.process_time() - start


@pytest.mark.nightly
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_dynamic_kernel_takes_at_most_twice_as_long(target, order, monkeypatch):
    monkeypatch.setenv("TVMTILE_DISABLE_CACHE", "1")
    tries = [
        [seconds(lambda: compiled(shape, order, target), target) for shape in (STATIC, *DYNAMIC)]
        for _ in range(4)
    ]
    static, *dynamic = map(min, zip(*tries, strict=True))
    assert max(dynamic) <= 2 * static


@pytest.mark.nightly
@pytest.mark.parametrize("target", TARGETS)
def test_attention_by_blocks_in_halves_takes_at_most_one_and_a_half_seconds(target, monkeypatch):
    monkeypatch.setenv("TVMTILE_DISABLE_CACHE", "1")
    program = attention(1024, in_halves=True)
    tries = (seconds(lambda: tvmtile.compile(program, **TARGETS[target]), target) for _ in range(4))
    assert min(tries) <= 1.5
