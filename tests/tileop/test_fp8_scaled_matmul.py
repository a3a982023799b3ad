"""T.fp8_scaled_matmul: forms of scales, dtypes, ragged edges, special values, and what is refused."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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


def values(tensor, dtype=""):
    if dtype == FLOAT4:  # two a byte
        codes = np.stack([tensor.numpy() & 15, tensor.numpy() >> 4], axis=-1)
        codes = codes.reshape(len(tensor), -1).astype(np.uint8)
        return codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    if tensor.dtype is torch.uint8:
        tensor = tensor.view(torch.float8_e8m0fnu)
    return tensor.double().numpy()


def arguments(M, N, K, form, a=E4M3, b=E4M3, transpose_B=True):
    torch.manual_seed(0)
    layout = FORMS[form]

    def numbers(rows, columns, dtype):
        if dtype == FLOAT4:
            return torch.randint(256, (rows, columns // 2), dtype=torch.uint8)
        return torch.randn(rows, columns).to(getattr(torch, dtype))

    A, B = numbers(M, K, a), numbers(*((N, K) if transpose_B else (K, N)), b)
    a_shape = (M,) if layout is None else layout.a_scale_shape(M, K)
    b_shape = (N,) if layout is None else layout.b_scale_shape(N, K)
    return A, random_scales(a_shape, layout), B, random_scales(b_shape, layout), torch.randn(M, N)


def misses(compiled, extents, form, transpose_B=True, dtypes=(E4M3, E4M3), **options):
    """By how much results are off, in roundings of a sum of K products; at most one is right."""
    A, a_scale, B, b_scale, C = arguments(*extents, form, *dtypes, transpose_B)
    left, right = values(A, dtypes[0]), values(B, dtypes[1])
    scales = [values(s)[:1] if form == "tensor" else values(s) for s in (a_scale, b_scale)]
    args = (left, scales[0], right.T if transpose_B else right, scales[1], C.double().numpy())
    expected = reference(*args, block_scale_layout=FORMS[form])
    magnitude = reference(*(np.abs(x) for x in args), block_scale_layout=FORMS[form])
    compiled(scaled(*extents, form, *dtypes, transpose_B, **options))(A, a_scale, B, b_scale, C)
    return (np.abs(C.numpy() - expected) / (2**-23 * (extents[2] + 4) * magnitude)).max()


@pytest.mark.full(but=3)
@pytest.mark.parametrize(
    ("extents", "form", "transpose_B", "dtypes", "block"),
    [
        ((40, 33, 256), "tensor", False, (E4M3, E4M3), (32, 32, 64)),
        ((40, 33, 256), "row", True, (E5M2, E4M3), (32, 32, 64)),
        ((40, 33, 256), "mx", False, (E4M3, E4M3), (32, 32, 64)),
        ((40, 33, 256), "mx codes", True, (E4M3, E5M2), (32, 32, 64)),
        ((40, 33, 256), "nvfp4", True, (E4M3, E4M3), (32, 32, 64)),
        ((40, 33, 256), "squares", False, (E4M3, E4M3), (32, 32, 128)),
        ((32, 32, 256), "squares", True, ("float8_e4m3fnuz", "float8_e5m2fnuz"), (32, 32, 64)),
        ((1, 40, 256), "row", True, (E4M3, E4M3), (1, 32, 128)),  # Metal: by simdgroups' lanes
        ((8, 40, 256), "mx", True, (E4M3, E4M3), (8, 16, 64)),
        ((5, 40, 256), "squares", True, (E4M3, E4M3), (5, 32, 128)),
        ((40, 34, 128), "row", False, (FLOAT4, FLOAT4), (32, 32, 64)),
        ((40, 34, 128), "nvfp4", True, (FLOAT4, FLOAT4), (32, 32, 64)),
        ((40, 34, 128), "mx", True, (E4M3, FLOAT4), (32, 32, 64)),
    ],
)
def test_products_are_of_scaled_numbers(compiled, extents, form, transpose_B, dtypes, block):
    assert misses(compiled, extents, form, transpose_B, dtypes, block=block) <= 1


@given(
    st.tuples(
        st.sampled_from([1, 31, 37, 300]), st.integers(1, 70), st.sampled_from([32, 96, 4096])
    ),
    st.sampled_from(list(FORMS)),
    st.booleans(),
    st.tuples(st.sampled_from(FLOAT8), st.sampled_from(FLOAT8)),
    st.sampled_from([(32, 32, 64), (128, 32, 32)]),
)
def test_products_of_any_extents_and_dtypes(extents, form, transpose_B, dtypes, block):
    assert misses(tvmtile.compile, extents, form, transpose_B, dtypes, block=block) <= 1


@pytest.mark.parametrize("form", ["tensor", "row", "mx", "squares"])
def test_hopper_multiplies_by_wgmma(form):
    def compiled(program):
        target = {"kind": "cuda", "arch": "sm_90a"}
        kernel = tvmtile.compile(program, target=target, execution_backend="emulator")
        assert "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3" in kernel.get_kernel_source()
        return kernel

    assert misses(compiled, (40, 33, 256), form, block=(64, 64, 128), threads=128) <= 1


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

    extents = (16, 16, block[2])
    assert misses(compiled, extents, form, transpose_B, block=block, threads=32) <= 1
    shared = re.findall(r"__shared__.*float16", kernels[0].get_kernel_source())
    assert bool(shared) != registers
