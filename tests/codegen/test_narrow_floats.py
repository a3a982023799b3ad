"""Narrow floats by their bits, against torch and ml_dtypes: on a CPU, and wholly on all targets."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.gpu.machine import by_way_of_gpu
from tvmtile.codegen.narrow_floats import NARROW_FLOATS

FLOAT8 = [dtype for dtype in NARROW_FLOATS if dtype.startswith("float8")]
OF_TORCH = ["bfloat16", *FLOAT8]
KINDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def copied(source, target, size):
    @T.prim_func
    def main(A: T.Tensor((size,), source), B: T.Tensor((size,), target)):
        with T.Kernel(size // 256) as bx:
            before = T.alloc_shared((256,), source)
            after = T.alloc_shared((256,), target)
            T.copy(A[bx * 256], before)
            T.copy(before, after)
            T.copy(after, B[bx * 256])

    return main


def elementwise(source, target, size):
    @T.prim_func
    def main(A: T.Tensor((size,), source), B: T.Tensor((size,), target)):
        with T.Kernel(T.ceildiv(size, 4096), threads=256) as bx:
            for i in T.Parallel(4096):
                B[bx * 4096 + i] = T.cast(A[bx * 4096 + i], target)

    return main


def all_codes(dtype):
    bits = NARROW_FLOATS[dtype].bits
    return torch.arange(2**bits, dtype=torch.int32).to(getattr(torch, f"uint{bits}")).view(
        getattr(torch, dtype)
    )  # fmt: skip


def on_metal(program):
    return tvmtile.compile(program, target="metal", execution_backend="emulator")


def on_cuda(program):
    target = {"kind": "cuda", "arch": "sm_80"}
    return tvmtile.compile(program, target=target, execution_backend="emulator")


every_target = pytest.mark.parametrize(
    "compiled",
    [tvmtile.compile, on_metal, on_cuda, pytest.param(by_way_of_gpu, marks=pytest.mark.gpu)],
)


def bits_of(tensor):
    """The bits of floats, with all NaNs alike."""
    bits = tensor.view(KINDS[tensor.itemsize]).int()
    return torch.where(tensor.float().isnan(), -(2**31), bits)


@pytest.mark.parametrize("dtype", OF_TORCH)
def test_copies_of_every_code(dtype):
    tensor = all_codes(dtype)
    same, wide = (
        tvmtile.compile(copied(dtype, target, len(tensor)), out_idx=1)(tensor)
        for target in (dtype, "float32")
    )
    assert torch.equal(same.view(KINDS[same.itemsize]), tensor.view(KINDS[same.itemsize]))
    assert torch.equal(bits_of(wide), bits_of(tensor.float()))


@pytest.mark.full
@every_target
@pytest.mark.parametrize("wide", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_code_decodes_bit_by_bit(compiled, dtype, wide):
    tensor = all_codes(dtype)
    result = torch.zeros(256, dtype=getattr(torch, wide))
    compiled(elementwise(dtype, wide, 256))(tensor, result)
    assert torch.equal(bits_of(result), bits_of(tensor.to(result.dtype)))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float16_of_every_code_on_nvidias_gpus_is_made_directly(dtype, arch):
    """By its bits before sm_89, by an instruction since; not by way of float32."""
    target = {"kind": "cuda", "arch": arch}
    program = elementwise(dtype, "float16", 256)
    kernel = tvmtile.compile(program, target=target, execution_backend="emulator")
    assert f"tvmtile_half_{dtype}(" in kernel.get_kernel_source()
    tensor, result = all_codes(dtype), torch.zeros(256, dtype=torch.float16)
    kernel(tensor, result)
    assert torch.equal(bits_of(result), bits_of(tensor.half()))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("wide", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_vectors_on_nvidias_gpus_are_decoded_by_words(dtype, wide, arch):
    target = {"kind": "cuda", "arch": arch}
    program = elementwise(dtype, wide, 4096)
    kernel = tvmtile.compile(program, target=target, execution_backend="emulator")
    source = kernel.get_kernel_source()
    assert f"tvmtile_halves_{dtype}((&(" in source
    assert f"tvmtile_half_{dtype}" not in source
    assert f"tvmtile_decode_{dtype}" not in source
    generator = torch.Generator().manual_seed(0)  # each code beside many others
    codes = torch.randint(256, (4096,), dtype=torch.uint8, generator=generator)
    codes[1:2048:2] = torch.arange(256, dtype=torch.uint8).repeat(4)
    tensor = codes.view(getattr(torch, dtype))
    result = torch.zeros(4096, dtype=getattr(torch, wide))
    kernel(tensor, result)
    assert torch.equal(bits_of(result), bits_of(tensor.to(result.dtype)))


def test_registers_that_their_loop_changes_are_decoded_one_by_one():
    dtype = "float8_e4m3fn"

    @T.prim_func
    def main(A: T.Tensor((32, 8), dtype), B: T.Tensor((32, 8), "float16")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            codes = T.alloc_local((8,), dtype)
            for i in T.unroll(8):
                codes[i] = A[tx, i]
            for i in T.unroll(8):
                B[tx, i] = T.cast(codes[i], "float16")
                codes[(i + 1) % 8] = codes[i]

    kernel = on_cuda(main)
    assert "tvmtile_halves" not in kernel.get_kernel_source()
    tensor = torch.randn(32, 8).to(torch.float8_e4m3fn)
    result = torch.zeros(32, 8, dtype=torch.float16)
    kernel(tensor, result)
    assert torch.equal(result, tensor[:, :1].half().expand(32, 8))


def saturated(values, dtype):
    """Values as torch makes them; beyond the largest number, that where there is no infinity."""
    kind = getattr(torch, dtype)
    if dtype in ("bfloat16", "float8_e5m2", "float8_e8m0fnu"):
        return values.to(kind)
    largest = torch.finfo(kind).max
    return values.clamp(-largest, largest).to(kind)  # NaN stays NaN


def values_of(wide):
    """All values of a dtype of 16 bits; of float32 a million, and those with few bits."""
    if wide != "float32":
        codes = torch.arange(2**16, dtype=torch.int32).to(torch.uint16)
        return codes.view(getattr(torch, wide))
    generator = torch.Generator().manual_seed(0)
    low, high, million = -(2**31), 2**31 - 1, 1 << 20
    bits = torch.randint(low, high, (million,), generator=generator, dtype=torch.int32)
    exponents = torch.randint(110, 145, (million,), generator=generator, dtype=torch.int32)
    near_one = (bits & -0x7F800001) | (exponents << 23)
    few = torch.arange(2**17, dtype=torch.int32) << 15  # and what lies between two of bfloat16
    return torch.cat([bits, near_one, few, few + 1, few - 1]).view(torch.float32)


@pytest.mark.full(but=4)
@every_target
@pytest.mark.parametrize("wide", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", OF_TORCH)
def test_every_value_encodes_as_torchs(compiled, dtype, wide):
    values = values_of(wide)
    result = torch.zeros(len(values), dtype=getattr(torch, dtype))
    compiled(elementwise(wide, dtype, len(values)))(values, result)
    expected = saturated(values.float(), dtype)
    assert torch.equal(bits_of(result), bits_of(expected))


FLOAT4 = "float4_e2m1fn"


def codes_of_float4(values):
    """The bytes of the pairs that ml_dtypes makes of values."""
    codes = values.float().numpy().astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return torch.from_numpy(codes[0::2] | codes[1::2] << 4)


@every_target
@pytest.mark.parametrize("wide", ["float32", "float16", "bfloat16"])
def test_every_code_of_float4_decodes_bit_by_bit(compiled, wide):
    pairs = torch.arange(256, dtype=torch.uint8)
    codes = torch.stack([pairs & 15, pairs >> 4], dim=1).flatten().numpy()
    expected = torch.from_numpy(codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32))
    result = torch.zeros(512, dtype=getattr(torch, wide))
    compiled(elementwise(FLOAT4, wide, 512))(pairs, result)
    assert torch.equal(bits_of(result), bits_of(expected.to(result.dtype)))


@every_target
@pytest.mark.parametrize("wide", ["float32", "float16", "bfloat16"])
def test_every_value_encodes_as_ml_dtypes_does_to_float4(compiled, wide):
    values = values_of(wide)
    result = torch.zeros(len(values) // 2, dtype=torch.uint8)
    compiled(elementwise(wide, FLOAT4, len(values)))(values, result)
    with np.errstate(invalid="ignore"):
        assert torch.equal(result, codes_of_float4(values))
