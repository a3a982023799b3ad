"""T.gemm on the CPU, against the reference: operands, dtypes, accumulation, mistakes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import ir

import tvmtile
import tvmtile.language as T
from tvmtile import errors
from tvmtile.errors import (
    TileWarning,
)
from tvmtile.passes import LowerTilePrograms
from tvmtile.tileop.gemm import reference


def program(m, n, k, dtypes, transpose_A=False, transpose_B=False, clear_accum=False):
    """Load three tiles, multiply, store the accumulator."""
    shape_a, shape_b = (k, m) if transpose_A else (m, k), (n, k) if transpose_B else (k, n)
    a_dtype, b_dtype, c_dtype = dtypes

    @T.prim_func
    def main(
        A: T.Tensor(shape_a, a_dtype), B: T.Tensor(shape_b, b_dtype), C: T.Tensor((m, n), c_dtype)
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared(shape_a, a_dtype)
            b = T.alloc_shared(shape_b, b_dtype)
            c = T.alloc_fragment((m, n), c_dtype)
            T.copy(A, a)
            T.copy(B, b)
            T.copy(C, c)
            T.gemm(a, b, c, transpose_A, transpose_B, clear_accum=clear_accum)
            T.copy(c, C)

    return main


def kernel(*shape_and_dtypes, **options):
    return tvmtile.compile(program(*shape_and_dtypes, **options))


def check(tensors, close, m, n, k, dtypes, **options):
    shape_a = (k, m) if options.get("transpose_A") else (m, k)
    shape_b = (n, k) if options.get("transpose_B") else (k, n)
    a, b, c = (tensors(s, d) for s, d in zip((shape_a, shape_b, (m, n)), dtypes, strict=True))
    expected = reference(*(tensors.wide(x) for x in (a, b, c)), **options)
    kernel(m, n, k, dtypes, **options)(a, b, c)
    scale = max(1.0, float(np.abs(expected).max()))
    if "float" in dtypes[2]:
        close(c / scale, expected / scale)
    else:
        close(c, expected)


@pytest.mark.parametrize("transpose_A", [False, True])
@pytest.mark.parametrize("transpose_B", [False, True])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(32, 64, 16), (7, 45, 13), (1, 33, 5), (33, 1, 5), (5, 3, 1)]
)
def test_orientations_and_extents(tensors, close, m, n, k, transpose_A, transpose_B):
    options = {"transpose_A": transpose_A, "transpose_B": transpose_B}
    check(tensors, close, m, n, k, ("float32",) * 3, **options)


@pytest.mark.parametrize(
    "dtypes",
    [
        ("float16", "float16", "float32"),
        ("float16", "float16", "float16"),
        ("bfloat16", "bfloat16", "float32"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float64", "float64", "float64"),
        ("int8", "int8", "int32"),
        ("uint8", "int8", "int32"),
        ("int16", "int16", "int32"),
        ("int8", "int8", "float32"),
    ],
)
def test_dtypes(tensors, close, dtypes):
    check(tensors, close, 18, 40, 21, dtypes)


CUDA = {"kind": "cuda", "arch": "sm_90a"}


@pytest.mark.parametrize("dtypes", [("float16", "float32"), ("bfloat16", "float16")])
def test_operands_of_different_dtypes_warn_alike_on_every_target(tensors, close, dtypes):
    with pytest.warns(TileWarning, match="gemm: a.* and b.* differ in dtype: .*T.copy one"):
        mixed = program(16, 32, 32, (*dtypes, "float32"))
    for target in (CUDA, "metal"):  # nothing more is said of it there
        LowerTilePrograms(target)(ir.IRModule({"main": mixed}))
    errors._SHOWN_WARNINGS.clear()
    with pytest.warns(TileWarning, match="differ in dtype"):
        check(tensors, close, 18, 40, 21, (*dtypes, "float32"))


def test_clearing_the_accumulator(tensors, close):
    check(tensors, close, 18, 40, 21, ("float32",) * 3, clear_accum=True)


def test_extreme_bytes_are_summed_exactly():
    a = torch.full((4, 64), -128, dtype=torch.int8)
    b = torch.full((64, 16), -128, dtype=torch.int8)
    c = torch.zeros(4, 16, dtype=torch.int32)
    kernel(4, 16, 64, ("int8", "int8", "int32"))(a, b, c)
    assert torch.equal(c, torch.full((4, 16), 64 * 128 * 128, dtype=torch.int32))


def test_float16_accumulator_is_rounded_once_a_call():
    """The sum of 4096 ones is 4096; taken in float16 it would stop at 2048."""
    a, b = torch.ones(1, 4096).half(), torch.ones(4096, 16).half()
    c = torch.zeros(1, 16).half()
    kernel(1, 16, 4096, ("float16",) * 3)(a, b, c)
    assert c.tolist() == [[4096] * 16]


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_any_regions_of_larger_tiles(data):
    """Operands that are parts of tiles of two or three axes; what is around the result stays."""
    m, n, k = (data.draw(st.integers(1, 40), label=label) for label in "mnk")
    transpose = {
        name: data.draw(st.booleans(), label=name) for name in ("transpose_A", "transpose_B")
    }
    extents = {
        "A": (k, m) if transpose["transpose_A"] else (m, k),
        "B": (n, k) if transpose["transpose_B"] else (k, n),
        "C": (m, n),
    }
    shapes, regions = {}, {}
    for name, (rows, columns) in extents.items():
        row, column, more = (data.draw(st.integers(0, 5), label=name) for _ in range(3))
        shape = (row + rows + more, column + columns + more)
        region = (slice(row, row + rows), slice(column, column + columns))
        stacked = data.draw(st.booleans(), label=name)
        shapes[name] = (2, *shape) if stacked else shape
        regions[name] = (slice(1, 2), *region) if stacked else region

    @T.prim_func
    def main(
        A: T.Tensor(shapes["A"], "int32"),
        B: T.Tensor(shapes["B"], "int32"),
        C: T.Tensor(shapes["C"], "int32"),
    ):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared(shapes["A"], "int32")
            b = T.alloc_shared(shapes["B"], "int32")
            c = T.alloc_fragment(shapes["C"], "int32")
            T.copy(A, a)
            T.copy(B, b)
            T.copy(C, c)
            T.gemm(a[regions["A"]], b[regions["B"]], c[regions["C"]], **transpose)
            T.copy(c, C)

    a, b, c = (torch.randint(-50, 50, shapes[name], dtype=torch.int32) for name in "ABC")
    expected = c.numpy().copy()
    parts = (x.numpy()[regions[name]] for name, x in zip("ABC", (a, b, c), strict=True))
    matrices = [part.reshape(part.shape[-2:]) for part in parts]
    expected[regions["C"]] = reference(*matrices, **transpose)
    tvmtile.compile(main)(a, b, c)
    np.testing.assert_array_equal(c.numpy(), expected)


def test_program_parses_back():
    from tvm.ir import assert_structural_equal
    from tvm.script import from_source

    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32"), C: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            T.gemm(A, A, C, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
            T.gemm(A[0:4, 0:8], A, C[4:8, 0:8], clear_accum=True)

    assert_structural_equal(from_source(main.script()), main)
