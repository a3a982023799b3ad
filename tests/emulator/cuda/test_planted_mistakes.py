"""Mistakes in the protocols that tvmtile generates for Hopper: the emulator objects to each.

Every step of a kernel is left out, or off by one, in turn (`planted.py`). What is let through stands
below with its reason, and nothing else is.
"""

from __future__ import annotations

import dataclasses
import struct
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tvmtile.language as T
from benchmarks.gpu_programs import PROGRAMS
from tests.emulator.cuda.planted import Subject, subject, survivors
from tests.fuzz.run import loaded
from tests.passes.gpu.barriers.test_clusters import multicast_product
from tests.passes.tile.test_persistent_blocks import matmul
from tests.programs import catalogue
from tests.running import gemm, operands, random
from tests.tileop.test_copy_cluster import passed_on as _passed_on
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


def multicast() -> Subject:
    """A tile that one block loads for two, whose readers arrive at the mbarriers of both."""
    a, b = random(64, 512, dtype="float16"), random(512, 128, dtype="float16")
    program = multicast_product(rows=64, inner=512)
    return subject(program, (a, b, torch.empty(64, 128)), a.double() @ b.double())


def by_cp_async() -> Subject:
    """All threads copy, and multiply: without mbarriers."""
    a, b, expected = operands(64, 64, 192)
    options = {"block": (64, 64, 32), "stages": 3, "threads": 128, "roles": False}
    return subject(gemm(64, 64, 192, **options), (a, b, torch.empty(64, 64)), expected)


def passed_on(rows: int, columns: int, dtype: str) -> Subject:
    """Each block of a cluster gives its tile to the other one."""
    tile = torch.arange(4 * rows * columns).remainder(100).reshape(4, rows, columns)
    expected = tile.double().reshape(2, 2, rows, columns).flip(1).reshape(tile.shape)
    tensors = (tile.to(getattr(torch, dtype)), torch.empty_like(tile, dtype=getattr(torch, dtype)))
    return subject(_passed_on(rows, columns, columns, dtype), tensors, expected)


def _of_catalogue(name: str, **given: Any) -> Callable[[], Subject]:
    """A program of the catalogue; its last tensor is what it writes."""
    case = catalogue()[name].case(**given)

    def made() -> Subject:
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

    return made


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


FLASH = {"batch": 1, "heads": 1, "causal": False, "block_M": 64, "block_N": 32}
ATTENTION = "roles_two_products_with_a_sum_between_them"
CONVERTED = ("float32", "float16", "float16")
SUBJECTS: dict[str, Callable[[], Subject]] = {
    # To the other block, by stores and by a bulk copy.
    "stored_elsewhere": lambda: passed_on(3, 5, "int8"),
    "copied_elsewhere": lambda: passed_on(4, 32, "float32"),
    # Without roles: all threads do all of it.
    "by_cp_async": by_cp_async,
    "bulk_loads": _of_catalogue("bulk_loads_of_a_product"),
    "bulk_stores": _of_catalogue("bulk_stores_of_which_two_are_under_way"),
    "attention": _of_catalogue("attention", length=128, roles=False, **FLASH),
    # With roles.
    **{f.__name__: f for f in (three_stages, persistent, block_scaled_fp8, added_gradients)},
    "multicast": multicast,
    # Two warpgroups of consumers; the second product goes on under the next iteration's first one.
    "skewed_attention": _of_catalogue(ATTENTION),
    # Over iterations that both roles leave out: two products, and one in flight.
    "masked_attention": _of_catalogue(ATTENTION, masked=True),
    "masked_product": _of_catalogue("roles_masked"),
    # A warpgroup converts a tile, or computes it in registers, or copies its rows by cp.async.
    "converted": _of_catalogue("roles_product", dtypes=CONVERTED, stages=3),
    "unpacked_weights": _of_catalogue(
        "roles_weights_that_are_converted", form="packed, by way of fragments"
    ),
    "gathered_rows": _of_catalogue("roles_rows_that_threads_gather"),
}
MEET = "the lanes have met at the wait for a product in front of it"
TWICE = "a wait for all that copies do stands behind one for what they read"
ONCE = "the tile has not been written before: there is no loop around it"
PANEL = "an operand of one panel has no use for it"
STORED = "threads stored the tile, who need not say how: the numbers are wrong"
FREE = "the tile is copied once: nobody waits for it to be free"
LATER = "who waits has waited for a tile that is given back later"
COVERED = "the step of the product behind it covers it"
BETWEEN = "no register is touched between the product in front of it and this one"
BY_ITSELF = "the rows come by cp.async alone, which arrives by itself"
JOINS = "the store joins the next group"
TOGETHER = (
    "the lanes of a warp arrive together, and have not been one ahead for a warp's worth of turns"
)
ALONE = "no block is outside of the mask"
IN_FRONT = "nothing but a mbarrier, with its fence, is in front of it that another block reads"
UNUSED = "a proxy fence is behind it, or nothing in the background completes on the mbarrier"
GIVEN = "who has been given a tile has been read from"
NONE_LEFT = "the last group is empty"
MORE, LEFT_OUT = "one group more left under way", "left out"
TWICE_DONE = "done twice"
HALF, NARROWER = "half the leading dimension's offset", "the next narrower swizzle"
STAGE = "the stage's index off by one"
DESCRIPTOR, INIT = "ptx_wgmma_encode_matrix_descriptor", "mbarrier.init.shared.b64"
WAIT = "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64"
ARRIVE, LOAD = "mbarrier.arrive.shared.b64", "cp.async.bulk.tensor.2d.shared::cluster.global"
PROXY = "fence.proxy.async.shared::cta"
COMMIT, BULK = "cp.async.bulk.commit_group", "cp.async.bulk.wait_group"
SYNC_WARP, WGMMA = (LEFT_OUT, "__syncwarp"), "wgmma.%s.sync.aligned"
FENCE = (LEFT_OUT, WGMMA % "fence")
CLUSTER, FENCE_INIT = "barrier.cluster.%s.aligned", "fence.mbarrier_init.release.cluster"
MORE_ARRIVE, LESS_ARRIVE = ("an arrival more", INIT), ("an arrival less", INIT)


def _of_stores(reason: str) -> dict[tuple[str, str], tuple[int, str]]:
    """The waits for the stores before, of the elements that they read and of all."""
    waits = (f"{BULK}.read", BULK)
    return {(what, wait): (1, reason) for wait in waits for what in (MORE, LEFT_OUT)}


PUBLISHED = {("publishes nothing", CLUSTER % "arrive.release"): (3, IN_FRONT)}
STORED_ONCE = {**_of_stores(ONCE), (LEFT_OUT, "bar.sync"): (1, ONCE)}  # behind all loops
JOINED = {(LEFT_OUT, COMMIT): (1, JOINS)}
SKEWED = {
    SYNC_WARP: (6, f"{MEET}; {FREE}"),
    (HALF, DESCRIPTOR): (2, PANEL),
    **_of_stores(TWICE),
    **JOINED,
}
# By program: what is off, of which instruction, how often; and why the emulator may say nothing.
LET_THROUGH: dict[str, dict[tuple[str, str], tuple[int, str]]] = {
    "stored_elsewhere": {
        **PUBLISHED,
        (LEFT_OUT, FENCE_INIT): (1, UNUSED),
        (LEFT_OUT, CLUSTER % "wait.acquire"): (1, GIVEN),
    },
    "copied_elsewhere": {
        **PUBLISHED,
        (LEFT_OUT, FENCE_INIT): (1, UNUSED),
        (LEFT_OUT, PROXY): (2, f"{UNUSED}; {ONCE}"),
    },
    "by_cp_async": {
        (NARROWER, DESCRIPTOR): (1, STORED),
        (HALF, DESCRIPTOR): (1, PANEL),
        **{(what, "cp.async.wait_group"): (1, NONE_LEFT) for what in (MORE, LEFT_OUT)},
    },
    "bulk_loads": {},
    "bulk_stores": {key: (1, TWICE) for key in _of_stores(TWICE) if key != (MORE, BULK)},
    "attention": {
        (NARROWER, DESCRIPTOR): (2, STORED),
        (HALF, DESCRIPTOR): (1, PANEL),
        **_of_stores(ONCE),
        (LEFT_OUT, "__syncthreads"): (1, ONCE),
    },
    "three_stages": {SYNC_WARP: (1, MEET)},
    "persistent": {SYNC_WARP: (1, MEET), (HALF, DESCRIPTOR): (1, PANEL), **_of_stores(TWICE)},
    "skewed_attention": SKEWED,
    "masked_product": {
        SYNC_WARP: (2, MEET),
        (HALF, DESCRIPTOR): (1, PANEL),
        (LEFT_OUT, ARRIVE): (1, FREE),
        (TWICE_DONE, ARRIVE): (1, FREE),
        **STORED_ONCE,
    },
    "masked_attention": SKEWED,
    "converted": {
        MORE_ARRIVE: (1, FREE),
        LESS_ARRIVE: (1, FREE),
        (NARROWER, DESCRIPTOR): (1, STORED),
        (HALF, DESCRIPTOR): (1, PANEL),
        SYNC_WARP: (1, MEET),
        **STORED_ONCE,
        **JOINED,
    },
    "unpacked_weights": {
        (NARROWER, DESCRIPTOR): (1, STORED), SYNC_WARP: (1, MEET), **STORED_ONCE, **JOINED,
    },
    "gathered_rows": {
        (NARROWER, DESCRIPTOR): (1, STORED),
        SYNC_WARP: (2, f"{MEET}; {BY_ITSELF}"),
        **_of_stores(TWICE),
        **JOINED,
    },
    "block_scaled_fp8": STORED_ONCE,
    "added_gradients": {
        MORE_ARRIVE: (1, FREE),
        LESS_ARRIVE: (3, f"{LATER}; {FREE}"),
        (LEFT_OUT, WAIT): (2, f"{LATER}; {FREE}"),
        (LEFT_OUT, ARRIVE): (1, FREE),
        (TWICE_DONE, ARRIVE): (1, FREE),
        (HALF, DESCRIPTOR): (2, PANEL),
        SYNC_WARP: (3, f"{MEET}; {FREE}"),
        FENCE: (1, BETWEEN),
        (LEFT_OUT, WGMMA % "commit_group"): (1, COVERED),
        (MORE, WGMMA % "wait_group"): (1, COVERED),
        (LEFT_OUT, WGMMA % "wait_group"): (1, COVERED),
    },
    "multicast": {
        LESS_ARRIVE: (2, TOGETHER),
        (HALF, DESCRIPTOR): (1, PANEL),
        **PUBLISHED,
        (STAGE, f"{LOAD}.mbarrier::complete_tx::bytes"): (1, ALONE),
        **STORED_ONCE,
        **JOINED,
    },
}  # fmt: skip
WRONG = (NARROWER, STAGE)


def let_through(of: Subject, every: int = 1) -> Counter[tuple[str, str]]:
    """The mistakes that the emulator lets through: numbers are right, or a tile never comes."""
    found = list(survivors(of, every=every))
    for mistake, result in found:
        assert result == "right" or mistake.what in WRONG, str(mistake)
    return Counter((m.what, m.instruction.partition(" ")[0]) for m, _ in found)


# By tier: all that the emulator is shown of these there is little of.
TIERS = {
    "stored_elsewhere": (),
    "copied_elsewhere": (),
    **dict.fromkeys(("by_cp_async", "bulk_loads", "bulk_stores", "attention"), pytest.mark.full),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=TIERS.get(name, pytest.mark.nightly)) for name in SUBJECTS]
)
def test_every_step_is_missed(name):
    expected = {mistake: count for mistake, (count, _) in LET_THROUGH[name].items()}
    assert let_through(SUBJECTS[name]()) == expected


@pytest.mark.full
@pytest.mark.parametrize("name", ["three_stages", "multicast", "skewed_attention"])
def test_some_steps_are_missed(name):
    assert let_through(SUBJECTS[name](), every=ONE_IN).keys() <= LET_THROUGH[name].keys()


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
        ({"rows": 128}, r"race: a bulk load for mbarrier full_ptr\[1\] writes a_ptr"),
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
