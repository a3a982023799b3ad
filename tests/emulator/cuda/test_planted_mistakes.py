"""Mistakes in the protocols that tvmtile generates for Hopper: the emulator objects to each.

Every step of a kernel with roles is left out, or off by one, in turn (`planted.py`). What is let
through stands below with its reason, and nothing else is.
"""

from __future__ import annotations

import dataclasses
import struct
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import tvmtile.language as T
from benchmarks.gpu_programs import PROGRAMS
from tests.emulator.cuda.planted import Subject, subject, survivors
from tests.fuzz.run import loaded
from tests.metal.programs import flash_attention, gemm, operands, random
from tests.passes.gpu.barriers.test_clusters import multicast_product
from tests.passes.tile.test_persistent_blocks import matmul
from tests.pipelines import numbers, product
from tests.programs import catalogue
from tvmtile.emulator.cuda import compile_cuda
from tvmtile.errors import CudaEmulationError
from tvmtile.target import capabilities

SEEDS = 20
# The emulator is shown one mistake in so many of one program, in the tier nightly all of all.
ONE_IN = 8


def three_stages() -> Subject:
    a, b, expected = operands(64, 128, 256)
    options = {"block": (64, 128, 32), "stages": 3, "threads": 128, "tensor_copies": False}
    program = gemm(64, 128, 256, roles=True, **options)
    return subject(program, (a, b, torch.empty(64, 128)), expected)


def persistent() -> Subject:
    """Blocks of several tiles, which go through shared memory."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(capabilities._MULTIPROCESSORS, 90, 3)
        a, b = random(256, 64, dtype="float16"), random(64, 320, dtype="float16")
        program = matmul(256, 320, 64, stages=2)
        return subject(program, (a, b, torch.empty(256, 320).half()), a.double() @ b.double())


def attention() -> Subject:
    """Two warpgroups of consumers."""
    rows = T.GemmWarpPolicy.FullRow
    options = {"block_M": 128, "block_N": 32, "threads": 256, "dtype": "float16"}
    program = flash_attention(1, 1, 256, 64, False, stages=2, policy=rows, roles=True, **options)
    q, k, v = (random(1, 256, 1, 64, dtype="float16") for _ in range(3))
    inner = [x.double().transpose(1, 2) for x in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*inner).transpose(1, 2)
    return subject(program, (q, k, v, torch.empty_like(q)), expected)


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
                T.gemm(
                    q,
                    k_shared,
                    scores,
                    transpose_B=True,
                    policy=T.GemmWarpPolicy.FullRow,
                    clear_accum=True,
                )
                T.copy(V[k * N, 0], v_shared)
                for i, j in T.Parallel(M, N):
                    scores[i, j] = T.exp2(T.min(scores[i, j], 0))
                T.copy(scores, weights)
                for i, j in T.Parallel(M, D):
                    output[i, j] *= 0.5
                T.gemm(weights, v_shared, output, policy=T.GemmWarpPolicy.FullRow)
            T.copy(output, C)

    return main


def skewed_attention() -> Subject:
    """The second product goes on under the next iteration's first one."""
    q, keys, values = (random(rows, 64, dtype="float16") / 4 for rows in (64, 384, 384))
    steps = torch.zeros(6, dtype=torch.int32)
    total = torch.zeros(64, 64, dtype=torch.float64)
    for k, v in zip(keys.double().split(64), values.double().split(64), strict=True):
        total = total / 2 + torch.exp2((q.double() @ k.T).clamp_max(0)) @ v
    tensors = (q, keys, values, steps, torch.empty(64, 64))
    return subject(products(384), tensors, total, precision="float16")


def masked_product() -> Subject:
    """A product in flight over iterations that both roles leave out."""
    return _of_catalogue("roles_masked")


def masked_attention() -> Subject:
    """Two products skewed over such iterations, in a serial loop."""
    N = 64

    @T.prim_func
    def program(
        Q: T.Tensor((3, 2 * N, N), "float16"),
        K: T.Tensor((5 * N, N), "float16"),
        V: T.Tensor((5 * N, N), "float16"),
        mask: T.Tensor((3, 5), "int32"),
        C: T.Tensor((3, 2 * N, N), "float32"),
    ):
        with T.Kernel(1, threads=256):
            q = T.alloc_shared((2 * N, N), "float16")
            k, v = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            scores = T.alloc_fragment((2 * N, N), "float32")
            weights = T.alloc_fragment((2 * N, N), "float16")
            c = T.alloc_fragment((2 * N, N), "float32")
            for turn in T.serial(3):
                T.copy(Q[turn, 0, 0], q)
                T.clear(c)
                for i in T.Pipelined(5, num_stages=2):
                    if mask[turn, i] > 0:
                        T.copy(K[i * N, 0], k)
                        T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                        T.copy(V[i * N, 0], v)
                        for r, s in T.Parallel(2 * N, N):
                            scores[r, s] = T.max(T.min(scores[r, s], 2 + i), -2)
                        T.copy(scores, weights)
                        for r, s in T.Parallel(2 * N, N):
                            c[r, s] *= -1
                        T.gemm(weights, v, c)
                T.copy(c, C[turn, 0, 0])

    q, k, v = numbers(3, 2 * N, N), numbers(5 * N, N), numbers(5 * N, N)
    mask = torch.tensor([[0, 1, 0, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.int32)
    expected = torch.zeros(3, 2 * N, N)
    for turn in range(3):
        for i in range(5):
            if mask[turn, i]:
                s = slice(i * N, i * N + N)
                scores = product(q[turn], k[s].T).clamp(-2, 2 + i)
                expected[turn] = -expected[turn] + product(scores, v[s])
    return subject(program, (q, k, v, mask, torch.empty(expected.shape)), expected.double())


def converted() -> Subject:
    """A warpgroup converts a tile, beside one that comes by a tensor map."""
    dtypes = ("float32", "float16", "float16")
    return _of_catalogue("roles_product", dtypes=dtypes, stages=3)


def unpacked_weights() -> Subject:
    """A warpgroup loads a tile, computes it in registers and stores it."""
    return _of_catalogue("roles_packed_weights_by_way_of_fragments")


def multicast() -> Subject:
    """A tile that one block loads for two, whose readers arrive at the mbarriers of both."""
    a, b = random(64, 512, dtype="float16"), random(512, 128, dtype="float16")
    program = multicast_product(rows=64, inner=512)
    return subject(program, (a, b, torch.empty(64, 128)), a.double() @ b.double())


def _of_catalogue(name: str, **given: Any) -> Subject:
    """A program of the catalogue; its last tensor is what it writes."""
    case = catalogue()[name].case(**given)
    arguments = case.arguments(0)
    tensors = [
        torch.tensor(arguments[arg.arg]).to(getattr(torch, arg.annotation.args[-1].value))
        for arg in case.parameters
    ]
    expected = torch.tensor(case.meaning(0)[case.parameters[-1].arg].data).double()
    with tempfile.TemporaryDirectory() as directory:
        program = loaded(case, Path(directory)).main
        expected = expected.reshape(tensors[-1].shape)
        return subject(program, tuple(tensors), expected, precision="float16")


def gathered_rows() -> Subject:
    """A warpgroup copies rows by cp.async, beside tiles that come by tensor maps."""
    a, b = random(100, 352, dtype="bfloat16"), random(2, 128, 352, dtype="bfloat16")
    tokens = torch.randint(-1, 100, (128,), dtype=torch.int32)
    expert_of = torch.tensor([1, 0], dtype=torch.int32)
    program = PROGRAMS["moe_gemm"](100, 128, 352, 2, 2, block_M=64, num_stages=2)
    rows = torch.where((tokens >= 0)[:, None], a.double()[tokens.clamp_min(0).long()], 0)
    expected = torch.matmul(rows.view(2, 64, 352), b.double()[expert_of.long()].mT).view(128, 128)
    return subject(program, (a, b, tokens, expert_of, torch.empty(128, 128).bfloat16()), expected)


def block_scaled_fp8() -> Subject:
    """Products of 128 of K, whose sums are scaled and added by the threads."""
    a, b = (random(rows, 640).to(torch.float8_e4m3fn) for rows in (128, 128))
    a_scale, b_scale = torch.rand(5, 128) + 0.5, torch.rand(1, 5) + 0.5
    program = PROGRAMS["fp8_gemm_blocks"](128, 128, 640, stages=2, parts=1)
    steps = zip(
        a.double().split(128, 1), b.double().split(128, 1), a_scale, b_scale[0], strict=True
    )
    expected = sum(x @ y.T * s.double()[:, None] * t.double() for x, y, s, t in steps)
    tensors = (a, a_scale, b, b_scale, torch.empty(128, 128).bfloat16())
    return subject(program, tensors, expected)


def added_gradients() -> Subject:
    """As attention's backward pass: what a block contributes to all rows is added by bulk copies."""
    N, steps = 64, 6

    @T.prim_func
    def program(
        K: T.Tensor((N, N), "float16"),
        Q: T.Tensor((steps * N, N), "float16"),
        D: T.Tensor((steps * N, N), "float16"),
        sums: T.Tensor((steps * N, N), "float32"),
    ):
        with T.Kernel(2, threads=128):
            k, q = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            d, weights = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            scores = T.alloc_fragment((N, N), "float32")
            other = T.alloc_fragment((N, N), "float32")
            own = T.alloc_fragment((N, N), "float32")
            T.copy(K, k)
            for step in T.Pipelined(steps, num_stages=2):
                T.copy(Q[step * N, 0], q)
                T.copy(D[step * N, 0], d)
                T.gemm(k, q, scores, transpose_B=True, clear_accum=True)
                T.gemm(k, d, other, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(N, N):
                    scores[i, j] = T.max(scores[i, j], 0) * other[i, j]
                T.copy(scores, weights)
                T.gemm(weights, k, own, transpose_A=True, clear_accum=True)
                T.atomic_add(sums[step * N, 0], own)

    k, q, d = (random(rows, N, dtype="float16") / 4 for rows in (N, steps * N, steps * N))
    products = [(k.double() @ x.double().T) for x in (q, d)]
    expected = 2 * (products[0].clamp_min(0) * products[1]).half().double().T @ k.double()
    return subject(
        program, (k, q, d, torch.empty(steps * N, N)), expected, added=True, precision="float16"
    )


PROGRAMS_WITH_ROLES = (
    *(three_stages, persistent, attention, skewed_attention, masked_product, masked_attention),
    *(converted, unpacked_weights, gathered_rows, block_scaled_fp8, added_gradients, multicast),
)
SUBJECTS = {f.__name__: f for f in PROGRAMS_WITH_ROLES}
MEET = "the lanes have met at the wait for a product in front of it"
TWICE = "a wait for all that copies do stands behind one for what they read"
ONCE = "the tile has not been written before: there is no loop around it"
PANEL = "an operand of one panel has no use for it"
STORED = "threads stored the tile, who need not say how: the numbers are wrong"
FREE = "the tile is copied once: nobody waits for it to be free"
LATER = "who waits has waited for a tile that is given back later"
COVERED = "the step of the product behind it covers it"
BETWEEN = "no register is touched between the product in front of it and this one"
ARRIVED = "the copy of the iteration before is still there: the numbers are wrong"
BY_ITSELF = "the rows come by cp.async alone, which arrives by itself"
JOINS = "the store joins the next group"
TOGETHER = (
    "the lanes of a warp arrive together, and have not been one ahead for a warp's worth of turns"
)
ALONE = "no block is outside of the mask"
ALL_READ = "cp.async.bulk.wait_group.read"
ALL_DONE = "cp.async.bulk.wait_group"
DESCRIPTOR = "ptx_wgmma_encode_matrix_descriptor"
TYPES = "m64n64k16.f32.f16.f16"
MORE, LEFT_OUT = "one group more left under way", "left out"
# A tile that is stored behind all loops: the waits for the store before it.
STORED_ONCE = {
    (what, instruction): (1, ONCE)
    for what, instruction in (
        *((MORE, ALL_READ), (LEFT_OUT, ALL_READ)),
        *((MORE, ALL_DONE), (LEFT_OUT, ALL_DONE), (LEFT_OUT, "bar.sync")),
    )
}
# By program: what is off, of which instruction, how often; and why the emulator may say nothing.
LET_THROUGH: dict[str, dict[tuple[str, str], tuple[int, str]]] = {
    "three_stages": {(LEFT_OUT, "__syncwarp"): (1, MEET)},
    "persistent": {
        (LEFT_OUT, "__syncwarp"): (1, MEET),
        ("half the leading dimension's offset", DESCRIPTOR): (1, PANEL),
        (MORE, ALL_READ): (1, TWICE),
        (LEFT_OUT, ALL_READ): (1, TWICE),
        (MORE, ALL_DONE): (1, TWICE),
        (LEFT_OUT, ALL_DONE): (1, TWICE),
    },
    "attention": {
        (LEFT_OUT, "__syncwarp"): (3, f"{MEET}; {FREE}"),
        ("an arrival more", "mbarrier.init.shared.b64"): (1, FREE),
        ("an arrival less", "mbarrier.init.shared.b64"): (1, FREE),
        (LEFT_OUT, "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64"): (1, FREE),
        (LEFT_OUT, "mbarrier.arrive.shared.b64"): (1, FREE),
        ("half the leading dimension's offset", DESCRIPTOR): (1, PANEL),
        **STORED_ONCE,
    },
    "skewed_attention": {
        ("an arrival more", "mbarrier.init.shared.b64"): (1, FREE),
        ("an arrival less", "mbarrier.init.shared.b64"): (2, f"{LATER}; {FREE}"),
        ("half the leading dimension's offset", DESCRIPTOR): (2, PANEL),
        ("the stage's index off by one", f"wgmma.mma_async.sync.aligned.{TYPES}"): (4, ARRIVED),
        (LEFT_OUT, "__syncwarp"): (6, f"{MEET}; {FREE}"),
        (LEFT_OUT, "wgmma.fence.sync.aligned"): (1, BETWEEN),
        (LEFT_OUT, "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64"): (1, FREE),
        (LEFT_OUT, "mbarrier.arrive.shared.b64"): (3, f"{ONCE}; {FREE}"),
        **STORED_ONCE,
        (LEFT_OUT, "cp.async.bulk.commit_group"): (1, JOINS),
    },
    "masked_product": {
        (LEFT_OUT, "__syncwarp"): (2, MEET),
        ("half the leading dimension's offset", DESCRIPTOR): (1, PANEL),
        (LEFT_OUT, "mbarrier.arrive.shared.b64"): (1, FREE),
        **STORED_ONCE,
    },
    "masked_attention": {
        ("an arrival more", "mbarrier.init.shared.b64"): (1, FREE),
        ("an arrival less", "mbarrier.init.shared.b64"): (3, f"{LATER}; {FREE}"),
        ("half the leading dimension's offset", DESCRIPTOR): (2, PANEL),
        (LEFT_OUT, "__syncwarp"): (6, f"{MEET}; {FREE}"),
        (LEFT_OUT, "wgmma.fence.sync.aligned"): (1, BETWEEN),
        (LEFT_OUT, "mbarrier.arrive.shared.b64"): (2, FREE),
        (MORE, ALL_READ): (1, TWICE),
        (LEFT_OUT, ALL_READ): (1, TWICE),
        (MORE, ALL_DONE): (1, TWICE),
        (LEFT_OUT, ALL_DONE): (1, TWICE),
        (LEFT_OUT, "cp.async.bulk.commit_group"): (1, JOINS),
    },
    "converted": {
        ("an arrival more", "mbarrier.init.shared.b64"): (1, FREE),
        ("an arrival less", "mbarrier.init.shared.b64"): (1, FREE),
        ("the next narrower swizzle", DESCRIPTOR): (1, STORED),
        ("half the leading dimension's offset", DESCRIPTOR): (1, PANEL),
        (LEFT_OUT, "__syncwarp"): (1, MEET),
        **STORED_ONCE,
        (LEFT_OUT, "cp.async.bulk.commit_group"): (1, JOINS),
    },
    "unpacked_weights": {
        ("the next narrower swizzle", DESCRIPTOR): (1, STORED),
        (LEFT_OUT, "__syncwarp"): (1, MEET),
        **STORED_ONCE,
        (LEFT_OUT, "cp.async.bulk.commit_group"): (1, JOINS),
    },
    "gathered_rows": {
        ("the next narrower swizzle", DESCRIPTOR): (1, STORED),
        (LEFT_OUT, "__syncwarp"): (2, f"{MEET}; {BY_ITSELF}"),
        **STORED_ONCE,
        (LEFT_OUT, "cp.async.bulk.commit_group"): (1, JOINS),
    },
    "block_scaled_fp8": STORED_ONCE,
    "added_gradients": {
        ("an arrival more", "mbarrier.init.shared.b64"): (1, FREE),
        ("an arrival less", "mbarrier.init.shared.b64"): (3, f"{LATER}; {FREE}"),
        (LEFT_OUT, "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64"): (2, f"{LATER}; {FREE}"),
        (LEFT_OUT, "mbarrier.arrive.shared.b64"): (1, FREE),
        ("half the leading dimension's offset", DESCRIPTOR): (2, PANEL),
        (LEFT_OUT, "__syncwarp"): (3, f"{MEET}; {FREE}"),
        (LEFT_OUT, "wgmma.fence.sync.aligned"): (1, BETWEEN),
        (LEFT_OUT, "wgmma.commit_group.sync.aligned"): (1, COVERED),
        (MORE, "wgmma.wait_group.sync.aligned"): (1, COVERED),
        (LEFT_OUT, "wgmma.wait_group.sync.aligned"): (1, COVERED),
    },
    "multicast": {
        ("an arrival less", "mbarrier.init.shared.b64"): (2, TOGETHER),
        ("half the leading dimension's offset", DESCRIPTOR): (1, PANEL),
        ("the stage's index off by one", "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64"): (
            1,
            LATER,
        ),
        (
            "the stage's index off by one",
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes",
        ): (1, ALONE),
        **STORED_ONCE,
        (LEFT_OUT, "cp.async.bulk.commit_group"): (1, JOINS),
    },
}
WRONG = ("the next narrower swizzle", "the stage's index off by one")


def let_through(of: Subject, every: int = 1) -> Counter[tuple[str, str]]:
    """What the emulator says nothing of: the numbers are right, or the tile is none that is to come."""
    found = list(survivors(of, every=every))
    for mistake, result in found:
        assert result == "right" or mistake.what in WRONG, str(mistake)
    return Counter((m.what, m.instruction.partition(" ")[0]) for m, _ in found)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SUBJECTS)
def test_every_step_is_missed(name):
    expected = {mistake: count for mistake, (count, _) in LET_THROUGH[name].items()}
    assert let_through(SUBJECTS[name]()) == expected


@pytest.mark.full
def test_some_steps_are_missed():
    assert let_through(three_stages(), every=ONE_IN).keys() <= LET_THROUGH["three_stages"].keys()


@pytest.mark.nightly
@pytest.mark.parametrize("name", SUBJECTS)
def test_whenever_work_is_done_the_result_is_right(name):
    of = SUBJECTS[name]()
    kernel = compile_cuda(of.source, arch=of.arch).kernel(of.name)
    for seed in range(SEEDS):
        of.run(kernel, seed=seed)


def remapped(of: Subject, rows: int | None = None, swizzle: int | None = None) -> Subject:
    """With another number in the first tensor map, whose fields `tensor_map.py` lists."""
    first, *rest = of.arguments
    words = list(struct.unpack("<32I", first.encoded))
    if rows is not None:
        words[16] = words[16] // (words[14] + 1) * rows
        words[14] = rows - 1
    if swizzle is not None:
        words[2] = words[2] & ~(3 << 13) | swizzle << 13
        words[18] = 128 << swizzle if swizzle else 16
    changed = dataclasses.replace(first, encoded=struct.pack("<32I", *words))
    return dataclasses.replace(of, arguments=(changed, *rest))


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"rows": 32}, r"mbarrier full_ptr\[0\], parity 0 \(0 of 1 to arrive, 2048 bytes to"),
        ({"rows": 128}, r"race: a bulk load for mbarrier full_ptr\[1\] writes A_shared_ptr"),
        ({"swizzle": 3}, "swizzle of 64 bytes, of a tile that was copied with 128 bytes"),
        ({"swizzle": 0}, "swizzle of 64 bytes, of a tile that was copied with none"),
    ],
    ids=str,
)
def test_a_tensor_map_of_another_box_or_swizzle_is_found(changed, text):
    of = remapped(three_stages(), **changed)
    kernel = compile_cuda(of.source, arch=of.arch).kernel(of.name)
    with pytest.raises(CudaEmulationError, match=text):
        of.run(kernel)
