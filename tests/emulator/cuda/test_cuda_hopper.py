"""Asynchronous work of Hopper: mbarriers, bulk tensor copies and wgmma, in one product (`hopper.cu`).

It is right at any time that the copies and products may take; without any step of its protocol, or
with one of its numbers off, the emulator objects.
"""

import struct
from functools import cache

import pytest
import torch

from tests.emulator.cuda.sources import with_mbarriers
from tvmtile.emulator.cuda import compile_cuda, tensor_map
from tvmtile.errors import ArgumentError, CudaEmulationError
from tvmtile.instructions.wgmma import ROWS, Wgmma, sum_map

TILES, STEPS, TILE = 2, 4, 64
M, N, K = TILES * TILE, TILE, STEPS * TILE
PLAIN = {
    "without": -1,
    "bytes": 2 * TILE * TILE * 2,
    "consumers": 4,
    "flip": 0,
    "stage_off": 0,
    "group": 8 * 128 // 16,
    "mode": 1,
}
ALL_THAT_MAY_BE_LEFT_OUT = {
    0: "fence",  # of the mbarriers, which bulk copies complete on
    1: "race",  # barrier behind their initialisation
    2: "protocol",  # wait for an empty stage: more arrive at it than should
    3: "deadlock",  # expected bytes: nobody arrives
    4: "race",  # wait for a full stage
    5: "protocol",  # wgmma.fence
    6: "race",  # wgmma.commit_group: the wait is for nothing
    7: "race",  # wgmma.wait_group
    8: "deadlock",  # arrival at an empty stage
    9: "race",  # wait until the store has read
    10: "race",  # barrier behind that
    11: "fence",  # of what the bulk store reads
    12: "race",  # barrier behind that
    13: "race",  # cp.async.bulk.commit_group
    14: "protocol",  # wait for the last store
}


def wgmma():
    """The instruction in CUDA C++: 32 sums, two descriptors and a predicate."""
    sums = ", ".join(f"%{i}" for i in range(32))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(32))
    return (
        "__device__ void wgmma(float (&d)[32], unsigned long long a, unsigned long long b,\n"
        "                      int adds) {\n"
        '  asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; "\n'
        f'    "{Wgmma(TILE, ("float16", "float16")).instruction} {{{sums}}}, "\n'
        '    "%32, %33, p, 1, 1, 0, 0; }"\n'
        f'    : {outputs} : "l"(a), "l"(b), "r"(adds));\n}}'
    )


@cache
def written():
    source = with_mbarriers("hopper.cu")
    return compile_cuda(source.replace("WGMMA", wgmma(), 1)).kernel("product")


def product(*, seed=0, swizzle=3, box=(TILE, TILE), kernel=None, whole_warpgroups=False, **changed):
    """The kernel's result, the right one, and the statistics."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-3, 4, (rows, K), generator=generator).half() for rows in (M, N))
    c = torch.zeros(M, N).half()
    maps = [
        tensor_map(a, (K, M), (2 * K,), box, swizzle),
        tensor_map(b, (K, N), (2 * K,), (TILE, TILE), swizzle),
        tensor_map(c, (N, M), (2 * N,), (TILE, TILE)),
    ]
    numbers = {**PLAIN, **changed}
    did = (kernel or written())(
        *maps, TILES, STEPS, *numbers.values(),
        grid=1, block=256, seed=seed, whole_warpgroups=whole_warpgroups,
    )  # fmt: skip
    return c.double(), a.double() @ b.double().T, did


@pytest.mark.full(but=2)
@pytest.mark.parametrize("seed", range(4))
def test_it_is_right_whenever_its_work_is_done(seed):
    result, expected, did = product(seed=seed)
    assert torch.equal(result, expected)
    assert did.warpgroup_multiplies == TILES * STEPS * 4
    assert did.bulk_copies == TILES * STEPS * 2 + TILES


@pytest.mark.full(but=11)
@pytest.mark.parametrize("step", ALL_THAT_MAY_BE_LEFT_OUT)
def test_without_a_step_the_emulator_objects(step):
    with pytest.raises(CudaEmulationError) as caught:
        product(without=step)
    assert caught.value.kind == ALL_THAT_MAY_BE_LEFT_OUT[step], str(caught.value)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"bytes": PLAIN["bytes"] - TILE * 2},
            r"deadlock: .* \(0 of 1 to arrive, 128 bytes more than",
        ),
        (
            {"bytes": PLAIN["bytes"] + TILE * 2},
            r"deadlock: .* \(0 of 1 to arrive, 128 bytes to come\)",
        ),
        ({"consumers": 3}, "race: a bulk load .* which wgmma .* nothing between waits for that"),
        ({"consumers": 5}, r"deadlock: .* empty\[0\], parity 0 \(1 of 5 to arrive"),
        ({"flip": 1}, r"race: wgmma of .* reads a\[0\], which a bulk load for mbarrier full\[0\]"),
        (
            {"stage_off": 1},
            r"race: wgmma .* reads a\[4096\], which a bulk load for mbarrier full\[1\]",
        ),
        ({"box": (TILE, TILE // 2)}, "deadlock: .* 4096 bytes to come"),
        ({"mode": 2}, "a swizzle of 64 bytes, of a tile that was copied with 128 bytes"),
        ({"group": 32}, "atoms of 1024 bytes overlap"),
    ],
    ids=str,
)
def test_with_a_number_off_the_emulator_objects(changed, text):
    with pytest.raises(CudaEmulationError, match=text):
        product(**changed)


# One thread hands a stage back for its warpgroup.
BY_ONE = [("STEP(8) if (lane == 0) arrive", "STEP(8) if (thread == 128) arrive")]
# A thread of each warp arrives, for all of the warp: its fence, behind __syncwarp, is one for all.
READ = "d[0] += 0.f * __half2float(a[s][thread]); __syncwarp();"
FENCED = [("STEP(8) if", f"{READ} fence_proxy(); STEP(8) if")]
FENCED_BY_LOADER = [
    ("STEP(8) if", f"{READ} STEP(8) if"),
    ("STEP(3) expect", "fence_proxy(); STEP(3) expect"),
]
# Nobody waits for a second warp, which may come when the phase after its own is over, too.
WAITING = ("STEP(3) expect", "if (thread != 0) continue; STEP(3) expect")
LOOP = "if (thread %s) {\n      for"


@pytest.mark.full(but=3)
@pytest.mark.parametrize(
    ("changes", "options", "text"),
    [
        (BY_ONE, {"consumers": 1, "whole_warpgroups": True}, None),
        (BY_ONE, {"consumers": 1}, "race: a bulk load .* which wgmma of thread"),
        (FENCED, {}, None),
        (FENCED_BY_LOADER, {}, None),
        (FENCED_BY_LOADER[:1], {}, r"fence: a bulk load .* writes a\[.*, which .* read"),
        ([(LOOP % "== 0", LOOP % "< 32"), WAITING], {}, None),
        (
            [(LOOP % "== 0", LOOP % "< 64"), WAITING],
            {},
            "protocol: .*which thread 32 may miss as it waits",
        ),
    ],
)
def test_another_protocol_is_right_or_the_emulator_objects(changes, options, text):
    source = with_mbarriers("hopper.cu").replace("WGMMA", wgmma(), 1)
    for old, new in changes:
        assert source.count(old) == 1
        source = source.replace(old, new)
    kernel = compile_cuda(source).kernel("product")
    if text is not None:
        with pytest.raises(CudaEmulationError, match=text):
            product(kernel=kernel, **options)
        return
    result, expected, _ = product(kernel=kernel, **options)
    assert torch.equal(result, expected)


def test_a_tensor_map_is_what_the_driver_makes():
    array = torch.zeros(3, 1000, 4096).bfloat16()
    made = tensor_map(array, (4096, 1000, 3), (8192, 8192000), (64, 128, 1), 3)
    words = struct.unpack("<32I", made.encoded)
    assert words[0] | words[1] << 32 == array.data_ptr()
    # As an H200's driver encodes it, but for the hint to the L2 cache that is not given here.
    assert {i: f"{w:x}" for i, w in enumerate(words) if w and i > 1} == {
        2: "6520", 3: "200", 4: "7d000", 8: "fff", 9: "3e7", 10: "2", 13: "3f000000", 14: "7f",
        16: "4000", 18: "400",
    }  # fmt: skip


def test_tensor_maps_refuse_what_the_driver_does():
    array = torch.zeros(64, 64).half()
    with pytest.raises(ArgumentError, match="at multiples of 16 bytes"):
        tensor_map(array, (64, 64), (120,), (64, 64))
    with pytest.raises(ArgumentError, match="longer than the swizzle"):
        tensor_map(array, (64, 64), (128,), (64, 64), 2)
    with pytest.raises(ArgumentError, match="1 to 256"):
        tensor_map(array, (64, 64), (128,), (64, 257))


def test_every_sum_is_in_one_register():
    for n in range(8, 257, 8):
        held = sorted(p for places in sum_map(Wgmma(n, ("float16", "float16"))) for p in places)
        assert held == [(i, j) for i in range(ROWS) for j in range(n)]
