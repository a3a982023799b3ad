"""LowerNarrowFloatsOnCpu: what a kernel computes with bfloat16 and float8, against torch."""

from __future__ import annotations

import pytest
import torch
import tvm
from tvm.ir import assert_structural_equal

import tvmtile
import tvmtile.language as T
from tvmtile.passes import LowerNarrowFloatsOnCpu, Verifier

N = 128
BFLOAT16 = torch.bfloat16


def inputs(count, dtype=BFLOAT16):
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(N, generator=generator).to(dtype) for _ in range(count)]


def elementwise(compute, count, dtype="bfloat16", result="bfloat16"):
    """Run `compute(a, b, ...)` on the elements of tensors of a dtype."""

    @T.prim_func
    def main(
        A: T.Tensor((N,), dtype),
        B: T.Tensor((N,), dtype),
        C: T.Tensor((N,), dtype),
        out: T.Tensor((N,), result),
    ):
        with T.Kernel(2) as bx:
            for i in T.Parallel(N // 2):
                at = bx * (N // 2) + i
                out[at] = compute(*(X[at] for X in (A, B, C)[:count]))

    tensors = inputs(3, getattr(torch, dtype))
    kernel = tvmtile.compile(main, out_idx=3)
    return kernel(*tensors), tensors[:count]


def test_functions_without_narrow_floats_stay_as_they_are():
    @T.prim_func
    def main(A: T.Tensor((N,), "float16"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1) as _:
            for i in T.Parallel(N):
                B[i] = T.exp(T.cast(A[i], "float32")) * 2

    mod = tvm.IRModule({"main": main})
    assert_structural_equal(LowerNarrowFloatsOnCpu(mod), mod)


@pytest.mark.full(but=5)
@pytest.mark.parametrize(
    ("compute", "count", "expected"),
    [
        (lambda a, b, c: a * b + c, 3, lambda a, b, c: a * b + c),
        (lambda a, b: a - b, 2, lambda a, b: a - b),
        (lambda a, b: a / b, 2, lambda a, b: a / b),
        (T.max, 2, torch.maximum),
        (T.min, 2, torch.minimum),
        (
            lambda a, b: T.if_then_else(a < b, a, b * b),
            2,
            lambda a, b: torch.where(a < b, a, b * b),
        ),
        (lambda a, b: T.Select(a >= b, b, a), 2, lambda a, b: torch.where(a >= b, b, a)),
        (lambda a: T.sqrt(T.abs(a)), 1, lambda a: a.abs().sqrt()),
        (lambda a: -a, 1, lambda a: -a),
        (lambda a: a + T.bfloat16(1.1), 1, lambda a: a + torch.tensor(1.1, dtype=BFLOAT16)),
    ],
)
def test_every_operation_rounds_as_torchs_does(compute, count, expected):
    result, tensors = elementwise(compute, count)
    assert torch.equal(result, expected(*tensors))


def test_names_hold_rounded_values():
    @T.prim_func
    def main(
        A: T.Tensor((N,), "bfloat16"), B: T.Tensor((N,), "bfloat16"), C: T.Tensor((N,), "float32")
    ):
        with T.Kernel(1) as _:
            for i in T.Parallel(N):
                a = A[i]
                wide = T.cast(B[i], "float32")
                product = a * T.cast(wide, "bfloat16")
                C[i] = T.cast(product, "float32") + wide

    a, b = inputs(2)
    result = tvmtile.compile(main, out_idx=2)(a, b)
    assert torch.equal(result, (a * b).float() + b.float())


def test_functions_of_float32_take_decoded_values():
    result, (a,) = elementwise(lambda a: T.exp(T.cast(a, "float32")), 1, result="float32")
    torch.testing.assert_close(result, a.float().exp(), rtol=3e-7, atol=0)
    result, (a,) = elementwise(T.exp2, 1)
    torch.testing.assert_close(result, a.exp2(), rtol=8e-3, atol=0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_a_tile_and_a_cast_round(dtype):
    @T.prim_func
    def main(
        A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")
    ):
        with T.Kernel(1) as _:
            tile = T.alloc_fragment((N,), dtype)
            T.copy(A, tile)
            T.copy(tile, B)
            for i in T.Parallel(N):
                C[i] = T.cast(T.cast(A[i], dtype), "float32")

    (a,) = inputs(1, torch.float32)
    b, c = tvmtile.compile(main, out_idx=[1, 2])(a)
    expected = a.to(getattr(torch, dtype)).float()
    assert torch.equal(b, expected)
    assert torch.equal(c, expected)


@pytest.mark.full(but=2)
@pytest.mark.parametrize("source", ["bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("target", ["float64", "float16", "int32", "bfloat16", "float8_e5m2"])
def test_casts_to_other_dtypes(source, target):
    result, (a,) = elementwise(lambda a: T.cast(a, target), 1, source, target)
    assert torch.equal(result.float(), a.float().to(getattr(torch, target)).float())


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32"])
def test_casts_from_other_dtypes(dtype):
    @T.prim_func
    def main(A: T.Tensor((N,), dtype), B: T.Tensor((N,), "bfloat16")):
        with T.Kernel(1) as _:
            for i in T.Parallel(N):
                B[i] = A[i]

    a = (torch.randn(N) * 100).to(getattr(torch, dtype))
    assert torch.equal(tvmtile.compile(main, out_idx=1)(a), a.to(BFLOAT16))


def test_variables_bits_and_vectors():
    @T.prim_func
    def main(
        A: T.Tensor((N,), "bfloat16"), B: T.Tensor((N,), "bfloat16"), C: T.Tensor((N,), "uint16")
    ):
        with T.Kernel(1) as _:
            total = T.alloc_var("bfloat16", 0.0)
            tile = T.alloc_local((N,), "bfloat16")
            for i in T.serial(N // 8):
                for j in T.vectorized(8):
                    tile[i * 8 + j] = A[i * 8 + j] * A[i * 8 + j]
            for i in T.serial(N):
                total = total + tile[i]
                B[i] = total
                C[i] = T.reinterpret(tile[i], "uint16")

    (a,) = inputs(1)
    b, c = tvmtile.compile(main, out_idx=[1, 2])(a)
    square = a * a
    total, running = torch.zeros((), dtype=BFLOAT16), []
    for value in square:
        total = total + value
        running.append(total)
    assert torch.equal(b, torch.stack(running))
    assert torch.equal(c, square.view(torch.uint16))


def test_bits_become_a_float8():
    @T.prim_func
    def main(A: T.Tensor((N,), "uint8"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1) as _:
            for i in T.Parallel(N):
                B[i] = T.cast(T.reinterpret(A[i], "float8_e5m2"), "float32")

    a = torch.arange(N, dtype=torch.uint8)
    result = tvmtile.compile(main, out_idx=1)(a)
    torch.testing.assert_close(
        result, a.view(torch.float8_e5m2).float(), rtol=0, atol=0, equal_nan=True
    )


def test_a_choice_moves_bits():
    @T.prim_func
    def main(A: T.Tensor((256,), "float8_e5m2"), B: T.Tensor((256,), "float8_e5m2")):
        with T.Kernel(1) as _:
            for i in T.Parallel(256):
                B[i] = T.if_then_else(i % 2 == 0, A[i], A[255 - i])

    a = torch.arange(256, dtype=torch.uint8)
    result = tvmtile.compile(main, out_idx=1)(a.view(torch.float8_e5m2)).view(torch.uint8)
    assert torch.equal(result, torch.where(a % 2 == 0, a, 255 - a))


def test_elements_outside_a_tensor_are_zero():
    @T.prim_func
    def main(A: T.Tensor((100,), "bfloat16"), B: T.Tensor((N,), "bfloat16")):
        with T.Kernel(1) as _:
            tile = T.alloc_shared((N,), "bfloat16")
            T.copy(A[0], tile)
            T.copy(tile, B)

    a = torch.randn(100).to(BFLOAT16)
    result = tvmtile.compile(main, out_idx=1)(a)
    assert torch.equal(result[:100], a)
    assert result[100:].eq(0).all()


@pytest.mark.full
def test_a_deep_expression_is_no_deep_nest_of_lets():
    """TVM's code generator takes several times as long for each Let in the value of another one."""

    def compute(a, b, c):
        for _ in range(6):
            a = T.max(a / (T.abs(a * b) + T.bfloat16(1)), c)
        return a

    def reference(a, b, c):
        for _ in range(6):
            a = torch.maximum(a / ((a * b).abs() + 1), c)
        return a

    result, tensors = elementwise(compute, 3)
    assert torch.equal(result, reference(*tensors))


def test_a_function_of_bfloat16_becomes_a_float16():
    """Its value is computed once: what it is computed with is defined once."""

    @T.prim_func
    def main(A: T.Tensor((8,), "float16"), B: T.Tensor((8,), "float16")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                B[i] = T.cast(T.tanh(T.cast(A[i], "bfloat16")), "float16")

    a, b = torch.arange(-4, 4).half() / 2, torch.zeros(8).half()
    with tvm.transform.PassContext(instruments=[Verifier()]):
        kernel = tvmtile.compile(main, target="llvm")
    kernel(a, b)
    assert torch.equal(b, a.bfloat16().tanh().half())


def test_what_a_condition_guards_is_not_computed_before_it():
    @T.prim_func
    def main(
        A: T.Tensor((8,), "bfloat16"), P: T.Tensor((8,), "int32"), out: T.Tensor((8,), "bfloat16")
    ):
        with T.Kernel(1):
            s = T.alloc_shared((8,), "bfloat16")
            T.copy(A, s)
            for i in T.Parallel(8):
                out[i] = T.if_then_else(
                    P[i] < 8, (s[P[i]] + T.bfloat16(1)) * T.bfloat16(3), T.bfloat16(0)
                )

    a = torch.arange(8).to(BFLOAT16)
    places = torch.tensor([0, 1, 2, 3, 7, 8, 1 << 30, 5], dtype=torch.int32)
    expected = torch.tensor([3, 6, 9, 12, 24, 0, 0, 18]).to(BFLOAT16)
    assert torch.equal(tvmtile.compile(main, out_idx=2)(a, places), expected)


def test_vectors_in_private_arrays_and_views_of_them():
    @T.prim_func
    def main(A: T.Tensor((8,), "bfloat16"), B: T.Tensor((8,), "bfloat16")):
        with T.Kernel(1, threads=1):
            pairs = T.alloc_local((4,), "bfloat16x2")
            elements = T.view(pairs, (8,), "bfloat16")
            for i in T.serial(4):
                pairs[i] = T.abs2(T.bfloat16x2(A[2 * i], A[2 * i + 1]))
            for i in T.serial(8):
                B[i] = elements[i]

    a = torch.linspace(-2, 2, 8).to(BFLOAT16)
    b = torch.zeros(8, dtype=BFLOAT16)
    tvmtile.compile(main)(a, b)
    assert torch.equal(b, a.abs())


@pytest.mark.full
def test_registers_of_two_tiles_are_decoded_before_one_loop():
    """Each by a loop with a variable of its own."""

    @T.prim_func
    def main(A: T.Tensor((16, 16), "float8_e4m3fn"), B: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=64):
            a, b, c = (T.alloc_shared((16, 16), "float8_e4m3fn") for _ in range(3))
            T.copy(A, a)
            T.copy(A, b)
            for i, j in T.Parallel(16, 16):
                c[i, j] = T.cast(a[i, j], "float32") - T.cast(b[i, j], "float32") * 2
            T.copy(c, B)

    target = {"kind": "cuda", "arch": "sm_90a"}
    with tvm.transform.PassContext(instruments=[Verifier()]):
        kernel = tvmtile.compile(main, target=target, execution_backend="emulator")
    a, b = (torch.arange(-8.0, 8).repeat(16, 1)).to(torch.float8_e4m3fn), torch.zeros(16, 16)
    kernel(a, b)
    assert torch.equal(b, -a.float())
