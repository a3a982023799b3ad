"""T.fp8_scaled_matmul: floats of 4 bits, every code, NaN; `scaled_gemm` has the other numbers."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.fuzz.run import loaded
from tests.programs import catalogue
from tests.programs.scaled_products import DEEPSEEK, E4M3, FLOAT8, MX, NVFP4, ROW

FLOAT4 = "float4_e2m1fn"
HOPPER = {"target": {"kind": "cuda", "arch": "sm_90a"}, "execution_backend": "emulator"}


@pytest.fixture
def scaled(tmp_path):
    """A program of the catalogue with these parameters."""
    return lambda name="scaled_gemm", **given: (
        loaded(catalogue()[name].case(**given), tmp_path).main
    )


def values(tensor, dtype=""):
    if dtype == FLOAT4:  # two a byte
        codes = np.stack([tensor.numpy() & 15, tensor.numpy() >> 4], axis=-1)
        codes = codes.reshape(len(tensor), -1).astype(np.uint8)
        return codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    return tensor.double().numpy()


def product(a, a_scale, b, b_scale, c, layout):
    """The product in float64, of decoded operands, [M, K] and [K, N], added to [M, N]."""
    (m, k), n = a.shape, b.shape[1]
    scales = [np.asarray(scale, np.float64) for scale in (a_scale, b_scale)]
    if layout is None:
        wide = [
            np.broadcast_to(s.reshape(-1, 1), (r, k)) for s, r in zip(scales, (m, n), strict=True)
        ]
    else:
        block = np.arange(k) // layout.block_size
        wide = [
            np.broadcast_to(s[..., block], (-(-r // g) if s.ndim == 2 else 1, k)).repeat(
                g if s.ndim == 2 else r, axis=0
            )[:r]
            for s, r, g in zip(scales, (m, n), (layout.a_rows, layout.b_rows), strict=True)
        ]
    return (a * wide[0]) @ (b * wide[1].T) + c


def roundings(found, depth, *given, layout):
    """By how much a result is off, in roundings of a sum of `depth` products; at most one is right."""
    expected = product(*given, layout)
    magnitude = product(*map(np.abs, given), layout)
    return (np.abs(found.numpy() - expected) / (2**-23 * (depth + 4) * magnitude)).max()


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("dtype", "scales", "transpose_B"),
    [(FLOAT4, ROW, False), (FLOAT4, NVFP4, True), (E4M3, MX, True)],
)
def test_floats_of_4_bits(compiled, scaled, dtype, scales, transpose_B):
    M, N, K = 40, 34, 128
    blocks = K // scales[1] if scales[1] else 1
    A = torch.randint(256, (M, K // 2), dtype=torch.uint8)
    A = A if dtype == FLOAT4 else torch.randn(M, K).to(torch.float8_e4m3fn)
    B = torch.randint(256, (N, K // 2) if transpose_B else (K, N // 2), dtype=torch.uint8)
    R, S = (
        (2.0 ** torch.randint(-3, 4, (n, blocks))).to(getattr(torch, scales[0])) for n in (M, N)
    )
    C = torch.randn(M, N)
    right = values(B, FLOAT4).T if transpose_B else values(B, FLOAT4)
    given = values(A, dtype), values(R), right, values(S), values(C).copy()
    program = scaled(
        dtypes=(dtype, FLOAT4), extents=(M, N, K), scales=scales, transpose_B=transpose_B
    )
    compiled(program)(A, R, B, S, C)
    layout = T.BlockScaledLayout(*scales[:2]) if scales[1] else None
    assert roundings(C, K, *given, layout=layout) <= 1


def test_parts_of_a_tile_have_their_partial_sums_in_the_same_registers():
    layout = T.BlockScaledLayout("float32", 128, a_rows=1, b_rows=128)

    @T.prim_func
    def kernel(
        A: T.Tensor((128, 384), E4M3),
        A_scale: T.Tensor((3, 128), "float32"),
        B: T.Tensor((64, 384), E4M3),
        B_scale: T.Tensor((1, 3), "float32"),
        C: T.Tensor((128, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((128, 128), E4M3), T.alloc_shared((64, 128), E4M3)
            scales = T.alloc_shared((128, 1), "float32")
            sums = [T.alloc_fragment((64, 64), "float32") for _ in range(2)]
            for total in sums:
                T.clear(total)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[0, k * 128], a)
                T.copy(B[0, k * 128], b)
                T.copy(A_scale[k, 0:128], scales[:, 0])
                for first, total in zip((0, 64), sums, strict=True):
                    T.fp8_scaled_matmul(
                        a[first : first + 64, :], scales[first : first + 64, :],
                        b, B_scale[0:1, k : k + 1],
                        total, transpose_B=True, block_scale_layout=layout,
                    )  # fmt: skip
            for first, total in zip((0, 64), sums, strict=True):
                T.copy(total, C[first, 0])

    compiled = tvmtile.compile(kernel, **HOPPER)
    source = compiled.get_kernel_source()
    assert re.findall(r"float (partial|a_scale)\w*\[", source) == ["partial", "a_scale"]
    # The scales come with the tile that they are used with: stages have one pair of mbarriers.
    inits = re.findall(r"^ +tvm_builtin_ptx_mbarrier_init\w*\(", source, re.MULTILINE)
    assert len(inits) == 2 * 2
    a, b = (torch.randn(rows, 384).to(torch.float8_e4m3fn) for rows in (128, 64))
    a_scale, b_scale, result = torch.rand(3, 128), torch.rand(1, 3), torch.zeros(128, 64)
    compiled(a, a_scale, b, b_scale, result)
    given = (values(a), values(a_scale.T), values(b).T, values(b_scale), np.zeros((128, 64)))
    assert roundings(result, 384, *given, layout=layout) <= 1


def test_a_block_scale_of_the_tile_is_loaded_once_before_the_product(scaled):
    given = {"scales": DEEPSEEK, "extents": (128, 128, 256)}
    kernel = tvmtile.compile(scaled("scaled_gemm_by_wgmma", **given), **HOPPER)
    text = kernel.get_kernel_source().rpartition("main_kernel(")[2]
    assert text.count("= S_ptr") == 1
    assert text.index("= S_ptr") < text.index("m64n64k32")


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_code_is_multiplied_as_its_value(compiled, scaled, dtype):
    """Zeros, subnormals and the largest values, by ones and the scales 2 and 1/2, exactly."""
    codes = torch.arange(256, dtype=torch.uint8).repeat(8).reshape(32, 64)
    A = codes.view(getattr(torch, dtype))
    A = torch.where(A.float().isfinite(), A.float(), 0).to(A.dtype)
    B, C = torch.eye(64).to(A.dtype), torch.zeros(32, 64)
    program = scaled(dtypes=(dtype, dtype), scales=ROW, extents=(32, 64, 64), transpose_B=True)
    compiled(program)(A, torch.full((32, 1), 2.0), B, torch.full((64, 1), 0.5), C)
    assert torch.equal(C, A.float())


def test_values_and_expressions_are_scales(compiled):
    """Exactly, where they are powers of two; the sums are of few bits."""

    @T.prim_func
    def main(
        A: T.Tensor((16, 64), E4M3),
        B: T.Tensor((64, 16), E4M3),
        R: T.Tensor((16,), "float32"),
        C: T.Tensor((16, 16), "float32"),
    ):
        with T.Kernel(1, threads=32):
            a, b = T.alloc_shared((16, 64), E4M3), T.alloc_shared((64, 16), E4M3)
            sums = T.alloc_fragment((16, 16), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.fp8_scaled_matmul(a, 0.25, b, R[3] * 2, sums, clear_accum=True)
            T.copy(sums, C)

    A, B = (torch.randint(-8, 9, s).to(torch.float8_e4m3fn) for s in ((16, 64), (64, 16)))
    R, C = torch.full((16,), 4.0), torch.zeros(16, 16)
    compiled(main)(A, B, R, C)
    assert torch.equal(C.double(), 2 * (A.double() @ B.double()))


def test_nan_of_a_number_or_a_scale_is_in_its_row_or_column(compiled, scaled):
    A, B = torch.randn(2, 32, 64).to(torch.float8_e4m3fn)
    R, S = torch.full((2, 32, 2), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    A.view(torch.uint8)[3, 5] = 0x7F
    R.view(torch.uint8)[7, 1] = S.view(torch.uint8)[2, 0] = 0xFF
    C = torch.zeros(32, 32)
    compiled(scaled(scales=MX, extents=(32, 32, 64), transpose_B=True))(A, R, B, S, C)
    expected = torch.zeros(32, 32, dtype=torch.bool)
    expected[[3, 7]] = expected[:, 2] = True
    assert torch.equal(C.isnan(), expected)
