"""The dtypes of the language."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
import torch
import tvm

import tvmtile
import tvmtile.language as T
from tests.fuzz.exact import converted
from tests.fuzz.run import TARGETS
from tests.fuzz.values import Invalid, storage
from tvmtile.errors import InvalidValue
from tvmtile.frontend.dtypes import as_dtype, dtype_names


def test_a_dtype_is_its_name_and_tvms_dtype():
    assert T.float16 == "float16"
    assert isinstance(T.float16, tvm.DataType)
    assert {"float16": 1}[T.float16] == 1


@pytest.mark.parametrize("name", dtype_names())
def test_every_name_is_exported_and_understood_by_tvm(name):
    dtype = getattr(T, name)
    assert tvm.DataType(str(dtype)) == dtype
    assert tvm.tirx.Var("v", dtype).ty.dtype == dtype


def test_widths():
    dtypes = [T.bool, T.int4, T.float16, T.float32x4, T.float8_e4m3fnx8, T.float4_e2m1fnx2]
    assert [dtype.bits for dtype in dtypes] == [8, 4, 16, 32, 8, 4]
    assert [dtype.lanes for dtype in dtypes] == [1, 1, 1, 4, 8, 2]
    assert [dtype.bytes for dtype in dtypes] == [1, 1, 2, 16, 8, 1]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        *[("half", "float16"), ("tfloat32", "float32"), ("float8_e4m3", "float8_e4m3fn")],
        *[
            (float, "float32"),
            (int, "int32"),
            (np.float64, "float64"),
            (np.dtype("uint8"), "uint8"),
        ],
        *[(torch.bfloat16, "bfloat16"), (tvm.DataType("int8x4"), "int8x4")],
        (tvm.script.tirx.int64, "int64"),
    ],
)
def test_spellings(written, name):
    assert as_dtype(written) == name
    assert T.dtype(written) == name


def test_the_torch_dtype_that_stores_it():
    dtypes = [T.float16, T.float8_e5m2, T.bool, T.int4, T.uint4]
    stored = [torch.float16, torch.float8_e5m2, torch.bool, torch.int8, torch.uint8]
    assert [dtype.as_torch() for dtype in dtypes] == stored
    assert T.float4_e2m1fn.as_torch() is getattr(torch, "float4_e2m1fn_x2", torch.int8)


def test_calling_a_dtype_makes_a_constant_a_cast_or_a_variable():
    assert T.int32(7).value == 7
    assert T.float32("inf").value == float("inf")
    assert T.int64(-(2**63)).value == -(2**63)
    assert "18446744073709551615" in str(T.uint64(2**64 - 1))
    x = tvm.tirx.Var("x", "int32")
    tvm.ir.assert_structural_equal(T.float32(x), tvm.tirx.Cast("float32", x))
    assert T.int32(x).same_as(x)
    assert T.int8().ty.dtype == "int8"


@pytest.mark.parametrize("dtype", [T.float16, T.float8_e4m3fn, T.float8_e5m2])
@pytest.mark.parametrize("number", [65519, -65520.0])
def test_a_vector_holds_what_a_number_becomes_that_its_dtype_can_not(dtype, number):
    alone = T.cast(number, dtype)
    tvm.ir.assert_structural_equal(T.cast(number, f"{dtype}x2"), tvm.tirx.Broadcast(alone, 2))


def test_dtypes_are_taken_apart_by_tvms_class():
    from tvmtile import DataType

    assert [(DataType(d).bits, DataType(d).lanes) for d in (T.float16, "int8x4")] == [
        (16, 1),
        (8, 4),
    ]


EDGES = [0, 1, -1, 2.5, -2.5, *(2**n + k for n in (7, 8, 16, 31, 32, 63, 64) for k in (-1, 0))]
EDGES += [
    *(-edge for edge in EDGES[5:]),
    65519.0,
    65520.0,
    -1e5,
    1e39,
    math.inf,
    -math.inf,
    math.nan,
]
INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def held(dtype):
    """The edges that a dtype holds, of integers; of floats, rounded."""
    if dtype in FLOATS:
        with np.errstate(over="ignore"):
            return np.array(EDGES, "float64").astype(storage(dtype))
    limits = np.iinfo(dtype)
    return np.array(
        [e for e in EDGES if isinstance(e, int) and limits.min <= e <= limits.max], dtype
    )


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["llvm", "metal", "sm_80"])
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_a_constant_is_converted_as_at_run_time_or_refused(dtype, target):
    """Also one that lowering comes to know; there what the dtype does not hold may be any number."""
    sources = [each for each in (*INTEGERS, *FLOATS) if target != "metal" or each != "float64"]
    if dtype not in sources:
        pytest.skip("no float64")
    constants, expected, number = [], [], 0
    for source in sources:
        for value in held(source):
            constant = getattr(T, source)(value.item())
            try:
                with np.errstate(over="ignore"):
                    expected.append(converted(np.array([value]), dtype)[0])
            except Invalid:
                with pytest.raises(InvalidValue, match=f"is no {dtype}"):
                    T.cast(constant, dtype)
            else:
                constants.append(T.cast(constant, dtype))
    number = len(constants)

    @T.prim_func
    def kernel(A: T.Tensor((number,), dtype), B: T.Tensor((8,), dtype)):
        with T.Kernel(1, threads=32):
            for n, constant in enumerate(constants):
                A[n] = constant
            for k in T.unroll(8):
                B[k] = T.cast(T.cast(k * 10000 - 20000, "float32"), dtype)

    a, b = (torch.zeros(n, dtype=T.dtype(dtype).as_torch()) for n in (number, 8))
    tvmtile.compile(kernel, **TARGETS[target])(a, b)
    assert list(map(repr, a.tolist())) == [repr(value.item()) for value in expected]
    for k, found in enumerate(b.tolist()):
        with contextlib.suppress(Invalid):
            assert found == converted(np.float32([k * 10000 - 20000]), dtype)[0].item()
