"""Products by `tcgen05` (`blackwell.cu`): of all kinds, with scales, by one block and by two.

They are right at any time that copies and products may take; without any step of the protocol, or with
one of its numbers off, the emulator objects.
"""

from dataclasses import dataclass, field
from functools import cache

import pytest
import torch

from tests.emulator.cuda.sources import with_mbarriers
from tvmtile.emulator.cuda import compile_cuda, tensor_map
from tvmtile.errors import CudaEmulationError
from tvmtile.jit.cuda import compile_source

TILES, STEPS, ROWS, COLUMNS, ROW = 2, 3, 128, 64, 128
STAGE_BYTES = 1024 + 2 * (ROWS * ROW + COLUMNS * ROW + 2 * 4 * 512)


@dataclass(frozen=True)
class Case:
    """A kind of product: its types' numbers in the descriptor, and what makes its operands."""

    kind: str
    a: int
    b: int
    sums: int
    dtype: torch.dtype
    scales: int = 0
    scale_type: int = 0
    signed: bool = True
    blocks: int = 1
    values: tuple[float, ...] = field(default=(-2, -1, 0, 1, 2, 3))

    @property
    def text(self) -> str:
        scaled = ", [%4], [%5]" if self.scales else ""
        vector = f".block_scale.scale_vec::{self.scales}X" if self.scales else ""
        source = with_mbarriers("blackwell.cu")
        for name, value in {
            "$BLOCKS": self.blocks,
            "$SCALES": self.scales,
            "$KIND": self.kind + vector,
            "$OPERANDS": scaled,
            "$PREDICATE": 6,
            "$MULTICAST": ".multicast::cluster" if self.blocks == 2 else "",
            "$MASK": ", %1" if self.blocks == 2 else "",
        }.items():
            source = source.replace(name, str(value))
        return source


CASES = {
    "float16": Case("f16", 0, 0, 1, torch.float16),
    "bfloat16": Case("f16", 1, 1, 1, torch.bfloat16),
    "tf32": Case("tf32", 2, 2, 1, torch.float32),
    "e4m3": Case("f8f6f4", 0, 0, 1, torch.float8_e4m3fn),
    "e5m2 x e4m3": Case("f8f6f4", 1, 0, 1, torch.float8_e5m2),
    "int8": Case("i8", 1, 1, 2, torch.int8),
    "uint8": Case("i8", 0, 0, 2, torch.uint8, values=(0, 1, 2, 255)),
    "mxf8": Case("mxf8f6f4", 0, 0, 1, torch.float8_e4m3fn, scales=1, scale_type=1),
    "mxf4": Case("mxf4", 1, 1, 1, torch.uint8, scales=2, scale_type=1),
    "nvf4": Case("mxf4nvf4", 1, 1, 1, torch.uint8, scales=4, scale_type=0),
    "float16 by two": Case("f16", 0, 0, 1, torch.float16, blocks=2),
}
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]).double()
PLAIN = {"without": -1, "flip": 0, "consumers": 4, "bytes_off": 0, "group": 64, "mode": 2}


def operand(case: Case, rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The memory of an operand, rows of whole 128 bytes, and its values."""
    if case.kind.startswith("mxf4"):
        stored = torch.randint(0, 256, (rows, STEPS * ROW), dtype=torch.uint8)
        pairs = torch.stack((E2M1[(stored & 15).int()], E2M1[(stored >> 4).int()]), -1)
        return stored, pairs.flatten(1)
    chosen = torch.tensor(case.values)[
        torch.randint(0, len(case.values), (rows, STEPS * ROW // dtype.itemsize))
    ]
    return chosen.to(dtype), chosen.to(dtype).double()


def scales_of(case: Case, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales as the copies take them, by step, and their values by row and column of scales."""
    per_row = 4 * case.scales * STEPS
    if case.scale_type == 1:
        stored = torch.randint(125, 130, (rows, per_row)).to(torch.uint8)
        values = torch.exp2(stored.double() - 127)
    else:
        values = torch.randint(1, 5, (rows, per_row)).to(torch.float8_e4m3fn)
        stored, values = values.view(torch.uint8), values.double()
    # A word holds four scales of a row; a lane has those of rows 0, 32, 64 and 96 behind it.
    padded = torch.zeros(ROWS, per_row, dtype=torch.uint8)
    padded[:rows] = stored
    words = padded.view(4, 32, STEPS, case.scales, 4)
    return words.permute(2, 3, 1, 0, 4).contiguous(), values


@cache
def kernel(name):
    return compile_cuda(CASES[name].text, arch="sm_100a").kernel("product")


def product(name, *, seed=0, what=0, **changed):
    """The kernel's result, the right one, and the statistics."""
    case = CASES[name]
    torch.manual_seed(0)
    rows = TILES * ROWS * case.blocks
    b_dtype = torch.float8_e4m3fn if name == "e5m2 x e4m3" else case.dtype
    (a, a_values), (b, b_values) = operand(case, rows, case.dtype), operand(case, COLUMNS, b_dtype)
    width = ROW // case.dtype.itemsize
    scales = [torch.zeros(16, dtype=torch.uint8)] * 2
    if case.scales:
        tiles = [scales_of(case, ROWS) for _ in range(TILES)]
        b_scales, b_factors = scales_of(case, COLUMNS)
        scales = [torch.stack([stored for stored, _ in tiles]), b_scales]
        a_factors = torch.cat([factors for _, factors in tiles])
        block = a_values.shape[1] // a_factors.shape[1]
        a_values = a_values * a_factors.repeat_interleave(block, 1)
        b_values = b_values * b_factors.repeat_interleave(block, 1)
    maps = [
        tensor_map(x, (x.shape[1], x.shape[0]), (STEPS * ROW,), (width, box), 3)
        for x, box in ((a, ROWS), (b, COLUMNS // case.blocks))
    ]
    c = torch.zeros(rows, COLUMNS, dtype=torch.int32 if case.kind == "i8" else torch.float32)
    extents = COLUMNS >> 3 << 17 | ROWS * case.blocks >> 4 << 24
    types = case.scale_type << 23 if case.scales else case.sums << 4
    told = extents | types | case.a << 7 | case.b << 10
    numbers = {**PLAIN, **changed}
    did = kernel(name)(
        *maps, *scales, c, TILES, STEPS, width, told ^ what, *numbers.values(),
        grid=case.blocks, block=192, cluster=case.blocks, shared_bytes=STAGE_BYTES, seed=seed,
    )  # fmt: skip
    return c.double(), a_values @ b_values.T, did


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_products_of_all_kinds_are_right(name):
    result, expected, did = product(name)
    assert torch.equal(result, expected)
    assert did.tensor_multiplies == TILES * STEPS * 4


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", ["mxf8", "float16 by two"])
@pytest.mark.parametrize("seed", range(1, 5))
def test_they_are_right_whenever_work_is_done(name, seed):
    result, expected, _ = product(name, seed=seed)
    assert torch.equal(result, expected)


@pytest.mark.full
def test_nvrtc_takes_the_kernel():
    for name in ("float16", "nvf4", "float16 by two"):
        assert compile_source(CASES[name].text, "sm_100a").cubin


STEPS_OF_THE_PROTOCOL = {
    0: "fence",  # of the mbarriers, which copies complete on
    1: "race",  # barrier behind their initialisation
    2: "protocol",  # wait for an empty stage: more arrive at it than should
    3: "deadlock",  # expected bytes
    4: "race",  # wait until the last tile's sum has been loaded
    5: "fence",  # tcgen05.fence::after_thread_sync behind that
    6: "race",  # wait for a full stage
    7: "uninitialized",  # tcgen05.cp of scales
    8: "deadlock",  # tcgen05.commit to an empty stage
    9: "deadlock",  # tcgen05.commit of the sum
    10: "uninitialized",  # wait for the sum
    11: "fence",  # tcgen05.fence::after_thread_sync behind that
    12: "register",  # tcgen05.wait::ld
    13: "fence",  # tcgen05.fence::before_thread_sync
    14: "deadlock",  # arrival of who has loaded the sum
    15: "race",  # barrier in front of tcgen05.dealloc
    16: "protocol",  # tcgen05.dealloc
}
# Of two blocks: a barrier of the cluster stands beside the block's, and there are no scales.
BY_TWO = [step for step in STEPS_OF_THE_PROTOCOL if step not in {1, 7, 15}]


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("name", "step"),
    [
        *(("mxf8", step) for step in STEPS_OF_THE_PROTOCOL),
        *(("float16 by two", step) for step in BY_TWO),
    ],
)
def test_without_a_step_the_emulator_objects(name, step):
    with pytest.raises(CudaEmulationError) as caught:
        product(name, without=step)
    assert caught.value.kind == STEPS_OF_THE_PROTOCOL[step], str(caught.value)


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"flip": 1}, "race: a bulk load for mbarrier full"),
        ({"consumers": 3}, "writes lane 96, column 0 of tensor memory, which tcgen05.ld"),
        ({"consumers": 5}, "deadlock"),
        ({"bytes_off": ROW}, "deadlock"),
        ({"bytes_off": -ROW}, "deadlock"),
        ({"group": 32}, "atoms of 1024 bytes overlap"),
        ({"mode": 4}, "a swizzle of 64 bytes, of a tile that was copied with 128 bytes"),
        ({"mode": 3}, "a swizzle that there is not"),
        ({"what": 1 << 2}, "not emulated: tcgen05.mma of a sparse matrix"),
        ({"what": 1 << 6}, "an instruction descriptor whose bit 6 is 1"),
        ({"what": 1 << 8}, "an instruction descriptor whose type of A is 2"),
        ({"what": 1 << 23}, "an instruction descriptor whose type of scales is 0"),
        ({"what": 1 << 24}, "tcgen05.mma.kind::mxf8f6f4 of 144 x 64, by 1 blocks"),
    ],
    ids=str,
)
def test_with_a_number_off_the_emulator_objects(changed, text):
    with pytest.raises(CudaEmulationError, match=text):
        product("mxf8", **changed)
