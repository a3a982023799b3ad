"""T.fp8_scaled_matmul: forms of scales, dtypes, ragged edges, special values, and what is refused."""

from __future__ import annotations

import itertools
import re

import ml_dtypes
import numpy as np
import pytest
import torch
from tvm.ir import assert_structural_equal
from tvm.script import from_source

import tvmtile
import tvmtile.language as T
from tvmtile.tileop.fp8_scaled_matmul import reference

E4M3, E5M2, FLOAT4 = "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"
FLOAT8 = (E4M3, E5M2, "float8_e4m3fnuz", "float8_e5m2fnuz")
MX = T.BlockScaledLayout.e8m0_k32()
DEEPSEEK = T.BlockScaledLayout("float32", 128, b_rows=128)
FORMS = {
    "tensor": None,
    "row": None,
    "mx": MX,
    "mx codes": T.BlockScaledLayout("uint8", 32),
    "nvfp4": T.BlockScaledLayout.nvfp4_k16(),
    "squares": DEEPSEEK,
}


def scaled(
    M, N, K, form, a=E4M3, b=E4M3, transpose_B=True, block=(32, 32, 64), clear=False, threads=64
):
    """C += (A * A_scale) @ (B * B_scale) in blocks; `clear` begins each block of K anew."""
    layout, (BM, BN, BK) = FORMS[form], block
    dtype = "float32" if layout is None else layout.scale_dtype
    a_shape = (M,) if layout is None else layout.a_scale_shape(M, K)
    b_shape = (N,) if layout is None else layout.b_scale_shape(N, K)

    @T.prim_func
    def main(
        A: T.Tensor((M, K), a),
        A_scale: T.Tensor(a_shape, dtype),
        B: T.Tensor((N, K) if transpose_B else (K, N), b),
        B_scale: T.Tensor(b_shape, dtype),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
            left = T.alloc_shared((BM, BK), a)
            right = T.alloc_shared((BN, BK) if transpose_B else (BK, BN), b)
            sums = T.alloc_fragment((BM, BN), "float32")
            T.copy(C[by * BM, bx * BN], sums)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=2):
                T.copy(A[by * BM, k * BK], left)
                if transpose_B:
                    T.copy(B[bx * BN, k * BK], right)
                else:
                    T.copy(B[k * BK, bx * BN], right)
                T.fp8_scaled_matmul(
                    left,
                    layout_region(A_scale, layout, form, BM, by * BM, k * BK, BK, "a_rows"),
                    right,
                    layout_region(B_scale, layout, form, BN, bx * BN, k * BK, BK, "b_rows"),
                    sums,
                    transpose_B=transpose_B,
                    block_scale_layout=layout,
                    clear_accum=clear,
                )
            T.copy(sums, C[by * BM, bx * BN])

    return main


def layout_region(scales, layout, form, rows, origin, k, depth, shared):
    """The scales of a tile of `rows` rows and `depth` elements of K."""
    if form == "tensor":
        return scales[0:1]
    if layout is None:
        return scales[origin : origin + rows]
    first, group = layout.scale_index(k), getattr(layout, shared)
    row, count = origin // group, layout.scale_blocks(depth)
    return scales[row : row + T.ceildiv(rows, group), first : first + count]


def random_scales(shape, layout):
    if layout is not None and layout.is_e8m0:
        codes = torch.randint(120, 134, shape, dtype=torch.uint8)
        return codes.view(getattr(torch, layout.scale_dtype))
    scales = torch.rand(shape) + 0.5
    return scales if layout is None else scales.to(getattr(torch, layout.scale_dtype))


def values(tensor):
    if tensor.dtype is torch.uint8:
        tensor = tensor.view(torch.float8_e8m0fnu)
    return tensor.double().numpy()


def arguments(M, N, K, form, a=E4M3, b=E4M3, transpose_B=True):
    torch.manual_seed(0)
    layout = FORMS[form]
    A = torch.randn(M, K).to(getattr(torch, a))
    B = torch.randn((N, K) if transpose_B else (K, N)).to(getattr(torch, b))
    a_shape = (M,) if layout is None else layout.a_scale_shape(M, K)
    b_shape = (N,) if layout is None else layout.b_scale_shape(N, K)
    return A, random_scales(a_shape, layout), B, random_scales(b_shape, layout), torch.randn(M, N)


def check(compiled, M, N, K, form, transpose_B=True, a=E4M3, b=E4M3, **options):
    A, a_scale, B, b_scale, C = arguments(M, N, K, form, a, b, transpose_B)
    left, right = values(A), values(B.T if transpose_B else B)
    scales = [values(s)[:1] if form == "tensor" else values(s) for s in (a_scale, b_scale)]
    args = (left, scales[0], right, scales[1], C.double().numpy())
    expected = reference(*args, block_scale_layout=FORMS[form])
    magnitude = reference(*(np.abs(x) for x in args), block_scale_layout=FORMS[form])
    program = scaled(M, N, K, form, a, b, transpose_B, **options)
    compiled(program)(A, a_scale, B, b_scale, C)
    assert (np.abs(C.numpy() - expected) <= 2**-23 * (K + 4) * magnitude).all()


@pytest.mark.parametrize("transpose_B", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_scales(compiled, form, transpose_B):
    block = (32, 32, 128) if form == "squares" else (32, 32, 64)
    check(compiled, 40, 33, 256, form, transpose_B, block=block)


@pytest.mark.parametrize("form", ["tensor", "row", "mx", "squares"])
def test_hopper_multiplies_by_wgmma(form):
    def compiled(program):
        target = {"kind": "cuda", "arch": "sm_90a"}
        kernel = tvmtile.compile(program, target=target, execution_backend="emulator")
        assert "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3" in kernel.get_kernel_source()
        return kernel

    check(compiled, 40, 33, 256, form, block=(64, 64, 128), threads=128)


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

    target = {"kind": "cuda", "arch": "sm_90a"}
    compiled = tvmtile.compile(kernel, target=target, execution_backend="emulator")
    source = compiled.get_kernel_source()
    registers = re.findall(r"float (partial|a_scale)\w*\[", source)
    assert registers == ["partial", "a_scale"]
    # The scales come with the tile that they are used with: stages have one pair of mbarriers.
    inits = re.findall(r"^ +tvm_builtin_ptx_mbarrier_init\w*\(", source, re.MULTILINE)
    assert len(inits) == 2 * 2
    a, b = (torch.randn(rows, 384).to(torch.float8_e4m3fn) for rows in (128, 64))
    a_scale, b_scale = torch.rand(3, 128), torch.rand(1, 3)
    result = torch.empty(128, 64)
    compiled(a, a_scale, b, b_scale, result)
    wide = a.double() * a_scale.double().T.repeat_interleave(128, dim=1)
    expected = wide @ (b.double() * b_scale.double().repeat_interleave(128, dim=1)).T
    torch.testing.assert_close(result.double(), expected, rtol=1e-2, atol=1e-1)


def test_a_block_scale_of_the_tile_is_loaded_once_before_the_product():
    program = scaled(128, 128, 256, "squares", block=(64, 64, 128), threads=128)
    kernel = tvmtile.compile(program, target={"kind": "cuda", "arch": "sm_90a"})
    kernel_text = kernel.get_kernel_source().rpartition("main_kernel(")[2]
    assert kernel_text.count("= B_scale") == 1
    assert kernel_text.index("= B_scale") < kernel_text.index("m64n64k32")


@pytest.mark.parametrize(("a", "b"), list(itertools.product(FLOAT8, FLOAT8)))
def test_dtypes(a, b):
    check(tvmtile.compile, 32, 32, 64, "row", a=a, b=b)


@pytest.mark.parametrize(("a", "b"), [(E5M2, E4M3), ("float8_e4m3fnuz", "float8_e5m2fnuz")])
def test_dtypes_that_differ(compiled, a, b):
    check(compiled, 32, 32, 64, "row", a=a, b=b)


def values_of_pairs(pairs):
    codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(len(pairs), -1)
    return codes.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)


@pytest.mark.parametrize(
    ("M", "form", "block"),
    [(1, "row", (1, 32, 128)), (8, "mx", (8, 16, 64)), (5, "squares", (5, 32, 128))],
)
def test_few_rows(compiled, M, form, block):
    """Metal multiplies them by the lanes of simdgroups."""
    check(compiled, M, 40, 256, form, block=block)


@pytest.mark.parametrize(
    ("a", "form", "transpose_B"),
    [(FLOAT4, "row", False), (FLOAT4, "nvfp4", True), (E4M3, "mx", True)],
)
def test_floats_of_4_bits(compiled, a, form, transpose_B):
    M, N, K = 40, 34, 128
    A, a_scale, _, b_scale, C = arguments(M, N, K, form)
    if a == FLOAT4:
        A = torch.randint(256, (M, K // 2), dtype=torch.uint8)
    B = torch.randint(256, (N, K // 2) if transpose_B else (K, N // 2), dtype=torch.uint8)
    left = values_of_pairs(A.numpy()) if a == FLOAT4 else values(A)
    right = values_of_pairs(B.numpy())
    args = (left, values(a_scale), right.T if transpose_B else right, values(b_scale), C.numpy())
    expected = reference(*args, block_scale_layout=FORMS[form])
    magnitude = reference(*(np.abs(x) for x in args), block_scale_layout=FORMS[form])
    compiled(scaled(M, N, K, form, a, FLOAT4, transpose_B))(A, a_scale, B, b_scale, C)
    assert (np.abs(C.numpy() - expected) <= 2**-23 * (K + 4) * magnitude).all()


TOGETHER = list(itertools.product(FORMS, (32, 4096)))
"""The dtypes and the transposes change along, each with a period of its own."""


@pytest.mark.parametrize("number", range(len(TOGETHER)))
def test_forms_dtypes_transposes_and_ragged_extents_together(number):
    form, depth = TOGETHER[number]
    pairs = [(E4M3, E5M2), (E5M2, E4M3), (FLOAT8[2], E4M3), (E5M2, FLOAT8[3]), (E4M3, E4M3)]
    a, b = pairs[number % len(pairs)]
    check(tvmtile.compile, 37, 70, depth, form, transpose_B=number % 3 > 0, a=a, b=b)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_code_is_multiplied_as_its_value(compiled, dtype):
    """Zeros, subnormals and the largest values, by ones and the scales 2 and 1/2, exactly."""
    codes = torch.arange(256, dtype=torch.uint8).repeat(8).reshape(32, 64)
    A = codes.view(getattr(torch, dtype))
    A = torch.where(A.float().isfinite(), A.float(), 0).to(A.dtype)
    B, C = torch.eye(64).to(A.dtype), torch.zeros(32, 64)
    scales = torch.full((32,), 2.0), torch.full((64,), 0.5)
    compiled(scaled(32, 64, 64, "row", dtype, dtype))(A, scales[0], B, scales[1], C)
    assert torch.equal(C, A.float())


@pytest.mark.parametrize(("M", "N", "K"), [(300, 70, 96), (1, 32, 32), (31, 1, 4096)])
def test_ragged_rows_take_the_scales_of_their_own(M, N, K):
    check(tvmtile.compile, M, N, K, "row", block=(128, 32, 32))
    check(tvmtile.compile, M, N, K, "mx", block=(128, 32, 32))


def test_a_tile_within_a_block(compiled):
    """Two tiles of 64 elements have the scales of one block of 128."""
    check(compiled, 32, 32, 256, "squares")


def test_clear_accum_begins_from_zero():
    A, a_scale, B, b_scale, C = arguments(32, 32, 128, "mx")
    tvmtile.compile(scaled(32, 32, 128, "mx", clear=True))(A, a_scale, B, b_scale, C)
    last = (values(A)[:, 64:], values(a_scale)[:, 2:], values(B.T)[64:], values(b_scale)[:, 2:])
    expected = reference(*last, C.numpy(), block_scale_layout=MX, clear_accum=True)
    np.testing.assert_allclose(C.numpy(), expected, rtol=1e-4, atol=1e-4)


def one_tile(a_scale, b_scale, M=16, N=16, K=64, layout=None, **tensors):
    """A program of one tile; scales are made by functions of the tensors S (M, 8) and R (8,)."""
    dtype = tensors.get("dtype", "float32")

    @T.prim_func
    def main(
        A: T.Tensor((M, K), tensors.get("a", E4M3)),
        B: T.Tensor((K, N), E4M3),
        S: T.Tensor((M, 2), dtype),
        R: T.Tensor((16,), dtype),
        C: T.Tensor((M, N), tensors.get("c", "float32")),
    ):
        with T.Kernel(1, threads=32):
            left, right = T.alloc_shared((M, K), A.dtype), T.alloc_shared((K, N), E4M3)
            sums = T.alloc_fragment((M, N), C.dtype)
            T.clear(sums)
            T.copy(A, left)
            T.copy(B, right)
            T.fp8_scaled_matmul(
                left, a_scale(S, R), right, b_scale(S, R), sums, block_scale_layout=layout
            )
            T.copy(sums, C)

    return main


def test_values_and_vectors_of_scales(compiled):
    """A number, an element, and scales of blocks that all rows share."""
    A, B = (torch.randn(shape).to(torch.float8_e4m3fn) for shape in ((16, 64), (64, 16)))
    S, R, C = torch.rand(16, 2), torch.rand(16), torch.zeros(16, 16)
    compiled(one_tile(lambda S, R: 0.25, lambda S, R: R[3] * 2))(A, B, S, R, C)
    expected = A.double() @ B.double() * (0.25 * R[3].double() * 2)
    torch.testing.assert_close(C.double(), expected, rtol=1e-5, atol=1e-5)

    layout = T.BlockScaledLayout("float32", 32)
    compiled(one_tile(lambda S, R: S, lambda S, R: R[4:6], layout=layout))(A, B, S, R, C)
    args = (values(A), values(S), values(B), values(R[4:6]), np.zeros((16, 16)))
    expected = reference(*args, block_scale_layout=layout)
    np.testing.assert_allclose(C.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_a_narrow_accumulator():
    A, B = (torch.randn(shape).to(torch.float8_e4m3fn) for shape in ((16, 64), (64, 16)))
    C = torch.zeros(16, 16).bfloat16()
    program = one_tile(lambda S, R: 2.0, lambda S, R: R, c="bfloat16")
    R = torch.rand(16)
    tvmtile.compile(program)(A, B, torch.rand(16, 2), R, C)
    torch.testing.assert_close(C.float(), 2 * (A.float() @ B.float()) * R, rtol=2**-8, atol=1e-3)


def test_nan_of_a_number_or_a_scale_is_in_its_row_or_column(compiled):
    A, a_scale, B, b_scale, C = arguments(32, 32, 64, "mx")
    A.view(torch.uint8)[3, 5] = 0x7F
    a_scale.view(torch.uint8)[7, 1] = 0xFF
    b_scale.view(torch.uint8)[2, 0] = 0xFF
    compiled(scaled(32, 32, 64, "mx"))(A, a_scale, B, b_scale, C)
    expected = torch.zeros(32, 32, dtype=torch.bool)
    expected[[3, 7]] = expected[:, 2] = True
    assert torch.equal(C.isnan(), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e8m0fnu", "uint8"])
def test_dtypes_of_scales_of_rows(dtype):
    A, a_scale, B, _, C = arguments(16, 16, 64, "row", transpose_B=False)
    R = torch.randint(125, 130, (16,), dtype=torch.uint8)
    if "8" not in dtype or "1" in dtype:
        R = (a_scale * 2).to(getattr(torch, dtype))
    elif dtype != "uint8":
        R = R.view(torch.float8_e8m0fnu)
    program = one_tile(lambda S, R: R, lambda S, R: 1.0, dtype=dtype)
    S = torch.zeros(16, 2, dtype=torch.uint8).view(torch.uint8)
    S = S.view(R.dtype) if R.itemsize == 1 else S.to(R.dtype)
    tvmtile.compile(program)(A, B, S, R, C)
    expected = (values(A) * values(R)[:, None]) @ values(B)
    np.testing.assert_allclose(C.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("arch", "instruction"), [("sm_80", "f16.f16"), ("sm_89", "e4m3.e4m3")])
def test_instructions_of_nvidias_gpus(arch, instruction):
    program = scaled(64, 64, 128, "mx", block=(64, 64, 64))
    kernel = tvmtile.compile(program, target={"kind": "cuda", "arch": arch})
    source = kernel.get_kernel_source()
    assert f"{instruction}.f32" in source
    assert not re.search(r"__shared__.*float16", source), "decoded through shared memory"
    assert kernel.cubin


@pytest.mark.parametrize(
    ("form", "block", "transpose_B", "registers"),
    [
        ("row", (16, 16, 64), True, True),
        ("nvfp4", (16, 16, 32), True, True),
        ("mx", (16, 16, 64), False, False),
    ],
)
def test_decoding_in_registers_on_gpus_without_such_instructions(
    form, block, transpose_B, registers
):
    options = {"target": {"kind": "cuda", "arch": "sm_80"}, "execution_backend": "emulator"}
    kernels = []

    def compiled(program):
        kernels.append(tvmtile.compile(program, **options))
        return kernels[0]

    check(compiled, 16, 16, block[2], form, transpose_B, block=block, threads=32)
    shared = re.findall(r"__shared__.*float16", kernels[0].get_kernel_source())
    assert bool(shared) != registers


def test_the_printed_program_parses_back():
    func = scaled(64, 64, 128, "mx")
    assert "tvmtile.fp8_scaled_matmul" in func.script()
    assert_structural_equal(from_source(func.script()), func)
