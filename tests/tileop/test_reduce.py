"""T.reduce and its short forms on the CPU, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tvmtile
import tvmtile.language as T
from tvmtile.tileop.reduce import reference

KINDS = ("sum", "max", "min", "abssum", "absmax", "bitand", "bitor", "bitxor")


def reduced_shape(shape, dim, keep=False):
    if keep:
        return tuple(1 if axis == dim else extent for axis, extent in enumerate(shape))
    return tuple(extent for axis, extent in enumerate(shape) if axis != dim) or (1,)


def kernel(shape, dim, dtype, out_dtype, kind, clear=True, keep=False, **options):
    """Load a tile, reduce it into another, store that."""
    out_shape = reduced_shape(shape, dim % len(shape), keep)

    @T.prim_func
    def main(A: T.Tensor(shape, dtype), C: T.Tensor(out_shape, out_dtype)):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared(shape, dtype)
            out = T.alloc_fragment(out_shape, out_dtype)
            T.copy(A, tile)
            T.copy(C, out)
            T.reduce(tile, out, kind, dim, clear, **options)
            T.copy(out, C)

    return tvmtile.compile(main)


def check(tensors, close, shape, dim, dtype, out_dtype, kind, clear=True, keep=False):
    axis = dim % len(shape)
    src = tensors(shape, dtype)
    out = tensors(reduced_shape(shape, axis, keep), out_dtype)
    before = tensors.wide(out).reshape(np.delete(shape, axis))
    expected = reference(tensors.wide(src), kind, axis, None if clear else before)
    kernel(shape, dim, dtype, out_dtype, kind, clear, keep)(src, out)
    close(out.reshape(expected.shape), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "dim"), [((5, 77), 1), ((37, 21), 0)])
def test_reduction_of_integers(tensors, close, shape, dim, kind):
    check(tensors, close, shape, dim, "int32", "int32", kind)


@pytest.mark.parametrize("kind", KINDS[:5])
@pytest.mark.parametrize(("shape", "dim"), [((5, 77), -1), ((37, 21), 0)])
def test_reduction_of_floats(tensors, close, shape, dim, kind):
    check(tensors, close, shape, dim, "float32", "float32", kind)


@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [
        ("float16", "float16"),
        ("float16", "float32"),
        ("bfloat16", "bfloat16"),
        ("float32", "bfloat16"),
        ("float64", "float64"),
        ("float64", "float32"),
        ("int8", "int8"),
        ("int8", "int32"),
        ("int8", "float32"),
        ("uint8", "uint8"),
        ("int64", "int64"),
        ("bool", "int32"),
        ("bool", "bool"),
    ],
)
@pytest.mark.parametrize("dim", [0, 1])
def test_dtypes(tensors, close, dtype, out_dtype, dim):
    kind = "bitor" if out_dtype == "bool" else "sum"
    check(tensors, close, (19, 45), dim, dtype, out_dtype, kind)


@pytest.mark.parametrize("kind", ["sum", "max", "min", "absmax", "bitand", "bitxor"])
@pytest.mark.parametrize("dim", [0, 1])
def test_result_is_combined_with_what_was_there(tensors, close, kind, dim):
    check(tensors, close, (9, 33), dim, "int32", "int32", kind, clear=False)


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
@pytest.mark.parametrize("keep", [False, True])
def test_any_axis_of_a_tile_of_four(tensors, close, dim, keep):
    check(tensors, close, (3, 4, 5, 6), dim, "float32", "float32", "sum", keep=keep)


@pytest.mark.parametrize(
    ("shape", "dim"),
    [((1, 64), 1), ((1, 64), 0), ((64, 1), 0), ((64, 1), 1), ((1, 1), 0), ((90,), 0)],
)
@pytest.mark.parametrize("clear", [True, False])
def test_extents_of_one(tensors, close, shape, dim, clear):
    check(tensors, close, shape, dim, "float32", "float32", "max", clear)


def test_long_float16_sum_is_rounded_once():
    """4096 ones and a half: summed in float16 it would stop at 2048."""
    src = torch.ones(1, 4096, dtype=torch.float16)
    out = torch.zeros(1, dtype=torch.float16)
    kernel((1, 4096), 1, "float16", "float16", "sum")(src, out)
    assert out.item() == 4096


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ["max", "min", "absmax"])
@pytest.mark.parametrize("propagate", [False, True])
def test_nan_is_ignored_or_propagated(tensors, dtype, dim, kind, propagate):
    src = tensors((6, 70), dtype)
    rows = src if dim == 1 else src.T.contiguous().T
    rows.select(1 - dim, 1)[0] = float("nan")
    rows.select(1 - dim, 2)[-1] = float("nan")
    src = rows.contiguous()
    out = torch.zeros(reduced_shape((6, 70), dim), dtype=src.dtype)
    kernel((6, 70), dim, dtype, dtype, kind, nan_propagate=propagate)(src, out)
    values = src.double().abs() if kind == "absmax" else src.double()
    reducer = {"max": np.nanmax, "absmax": np.nanmax, "min": np.nanmin}[kind]
    if propagate:
        reducer = {"max": np.max, "absmax": np.max, "min": np.min}[kind]
    np.testing.assert_array_equal(out.double().numpy(), reducer(values.numpy(), axis=dim))


@pytest.mark.parametrize("name", [f"reduce_{kind}" for kind in KINDS])
def test_short_forms(tensors, close, name):
    @T.prim_func
    def main(A: T.Tensor((4, 24), "int32"), C: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            getattr(T, name)(A, C)

    src, out = tensors((4, 24), "int32"), torch.zeros(4, dtype=torch.int32)
    tvmtile.compile(main)(src, out)
    close(out, reference(tensors.wide(src), name.removeprefix("reduce_"), 1))


def test_tensor_that_a_tile_reaches_over(tensors, close):
    """Elements outside a tensor read as zero, results outside are not stored."""

    @T.prim_func
    def main(A: T.Tensor((50, 70), "float32"), C: T.Tensor((50,), "float32")):
        with T.Kernel(T.ceildiv(50, 16)) as bx:
            T.reduce_sum(A[bx * 16 : bx * 16 + 16, 0:70], C[bx * 16 : bx * 16 + 16], dim=1)

    src, out = tensors((50, 70), "float32"), torch.zeros(50)
    tvmtile.compile(main)(src, out)
    close(out, reference(src.double().numpy(), "sum", 1))


@pytest.mark.parametrize("dim", [0, 1])
def test_extents_known_at_run_time(tensors, close, dim):
    m, n = T.dynamic("m, n")

    @T.prim_func
    def main(A: T.Tensor((m, n), "float32"), C: T.Tensor((m if dim else n,), "float32")):
        with T.Kernel(1):
            T.reduce_max(A, C, dim=dim)

    compiled = tvmtile.compile(main)
    for shape in ((7, 19), (1, 3)):
        src, out = tensors(shape, "float32"), torch.zeros(shape[1 - dim])
        compiled(src, out)
        close(out, reference(src.double().numpy(), "max", dim))


def test_row_of_a_larger_tile_into_a_variable(tensors, close):
    @T.prim_func
    def main(A: T.Tensor((5, 40), "float32"), C: T.Tensor((5,), "float32")):
        with T.Kernel(1, threads=1):
            for i in T.serial(5):
                total = T.alloc_var("float32", init=1)
                T.reduce_sum(A[i, 3:40], total, dim=1, clear=False)
                C[i] = total

    src, out = tensors((5, 40), "float32"), torch.zeros(5)
    tvmtile.compile(main)(src, out)
    close(out, 1 + src[:, 3:].double().sum(1).numpy())


def test_region_of_a_strided_tensor(tensors, close):
    @T.prim_func
    def main(A: T.StridedTensor((6, 30), (1, 6), "float32"), C: T.Tensor((6,), "float32")):
        with T.Kernel(1):
            T.reduce_sum(A, C, dim=1)

    src, out = tensors((30, 6), "float32").T, torch.zeros(6)
    tvmtile.compile(main)(src, out)
    close(out, src.double().sum(1).numpy())


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_regions(data):
    """Any region of a tile of up to three axes, along any of them."""
    rank = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.integers(1, 40)) for _ in range(rank))
    ranges = []
    for extent in shape:
        low = data.draw(st.integers(0, extent - 1))
        ranges.append((low, data.draw(st.integers(low + 1, extent))))
    dim = data.draw(st.integers(0, rank - 1))
    kind = data.draw(st.sampled_from(["sum", "max", "bitxor"]))
    extents = [high - low for low, high in ranges]
    out_shape = reduced_shape(extents, dim)

    @T.prim_func
    def main(A: T.Tensor(shape, "int32"), C: T.Tensor(out_shape, "int32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared(shape, "int32")
            T.copy(A, tile)
            T.reduce(tile[tuple(slice(low, high) for low, high in ranges)], C, kind, dim)

    src = torch.randint(-1000, 1000, shape, dtype=torch.int32)
    out = torch.zeros(out_shape, dtype=torch.int32)
    tvmtile.compile(main)(src, out)
    part = src.numpy()[tuple(slice(low, high) for low, high in ranges)]
    np.testing.assert_array_equal(out.numpy(), reference(part, kind, dim).reshape(out_shape))


def test_program_parses_back():
    from tvm.ir import assert_structural_equal
    from tvm.script import from_source

    @T.prim_func
    def main(A: T.Tensor((8, 16), "float32"), C: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            T.reduce_max(A, C, dim=1, clear=False, nan_propagate=True)

    assert_structural_equal(from_source(main.script()), main)


def traced(statement, shape=(8, 16), out_shape=(8,), dtype="float32", out_dtype="float32"):
    @T.prim_func
    def main(A: T.Tensor(shape, dtype), C: T.Tensor(out_shape, out_dtype)):
        with T.Kernel(1):
            statement(A, C)

    return main
