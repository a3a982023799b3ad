"""The dtypes of the language."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm

import tvmtile.language as T
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
