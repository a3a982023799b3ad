"""bfloat16 and floats of 8 bits by their bits, on a CPU, against torch."""

from __future__ import annotations

import functools

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.codegen.narrow_floats import NARROW_FLOATS

FLOAT8 = [dtype for dtype in NARROW_FLOATS if dtype != "bfloat16"]


@functools.cache
def converter(source, target, size):
    @T.prim_func
    def convert(A: T.Tensor((size,), source), B: T.Tensor((size,), target)):
        with T.Kernel(T.ceildiv(size, 256)) as bx:
            before = T.alloc_shared((256,), source)
            after = T.alloc_shared((256,), target)
            T.copy(A[bx * 256], before)
            T.copy(before, after)
            T.copy(after, B[bx * 256])

    return tvmtile.compile(convert, out_idx=1)


def all_codes(dtype):
    bits = NARROW_FLOATS[dtype].bits
    return torch.arange(2**bits, dtype=torch.int32).to(getattr(torch, f"uint{bits}")).view(
        getattr(torch, dtype)
    )  # fmt: skip


def codes(tensor):
    """The codes of a tensor of narrow floats, all NaNs of bfloat16 as one."""
    bits = tensor.view(torch.uint8 if tensor.itemsize == 1 else torch.uint16).to(torch.int32)
    return torch.where(tensor.float().isnan(), -1, bits)


def float32_near(dtype):
    """Every finite value of a dtype, the middles between neighbours, and floats next to all those."""
    values = all_codes(dtype).float()
    values = values[values.isfinite()].double().unique()
    middles = (values[1:] + values[:-1]) / 2
    exact = torch.cat([values, middles]).float()
    up = torch.full_like(exact, float("inf"))
    near = torch.cat([exact, exact.nextafter(up), exact.nextafter(-up)])
    return near[near.abs() <= values.abs().max()]


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_every_code_decodes_to_its_value(dtype):
    tensor = all_codes(dtype)
    result = converter(dtype, "float32", len(tensor))(tensor)
    expected = tensor.float()
    assert torch.equal(result.isnan(), expected.isnan())
    finite = ~expected.isnan()
    assert torch.equal(result[finite].view(torch.int32), expected[finite].view(torch.int32))


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_floats_round_to_the_nearest_value_ties_to_even(dtype):
    values = float32_near(dtype)
    if dtype == "bfloat16":
        values = values[:: len(values) // 50000].contiguous()
    result = converter("float32", dtype, len(values))(values)
    assert torch.equal(codes(result), codes(values.to(getattr(torch, dtype))))


@pytest.mark.parametrize("dtype", FLOAT8[:-1])
def test_values_beyond_the_largest_saturate(dtype):
    largest = torch.finfo(getattr(torch, dtype)).max
    values = torch.tensor([largest * 1.01, largest * 2, 1e38, float("inf")])
    values = torch.cat([values, -values])
    result = converter("float32", dtype, 8)(values).float()
    assert torch.equal(result, torch.tensor([largest] * 4 + [-largest] * 4))


def test_bfloat16_overflows_to_infinity():
    values = torch.tensor([3.3895314e38, 3.3961776e38, 3.4028235e38, float("inf"), -3.4028235e38])
    result = converter("float32", "bfloat16", 5)(values)
    assert torch.equal(result, values.to(torch.bfloat16))
    assert result.isinf().tolist() == [False, True, True, True, True]


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_nan_stays_nan_whatever_its_payload(dtype):
    patterns = [0x7FC00000, 0x7F800001, 0x7FFFFFFF, -1, -0x400000]
    values = torch.tensor(patterns, dtype=torch.int32).view(torch.float32)
    assert converter("float32", dtype, 5)(values).float().isnan().all()


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_a_copy_moves_bits(dtype):
    tensor = all_codes(dtype)
    result = converter(dtype, dtype, len(tensor))(tensor)
    as_integers = torch.uint8 if tensor.itemsize == 1 else torch.uint16
    assert torch.equal(result.view(as_integers), tensor.view(as_integers))


def test_float8_e8m0_rounds_like_torch_over_all_of_float32():
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 2**31 - 1, (100000,), dtype=torch.int32, generator=generator)
    edges = torch.tensor([0, 1, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFF, 0x7F3FFFFF, 0x7F400000])
    values = torch.cat([bits, edges.to(torch.int32)]).view(torch.float32)
    result = converter("float32", "float8_e8m0fnu", len(values))(values)
    assert torch.equal(result.view(torch.uint8), values.to(torch.float8_e8m0fnu).view(torch.uint8))
