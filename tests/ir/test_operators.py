"""Operators and their calls are the same thing."""

from __future__ import annotations

from dataclasses import MISSING, fields

import pytest
from tvm import tirx
from tvm.ir import assert_structural_equal

from tvmtile.errors import InvalidValue
from tvmtile.ir.operators import TileOp, all_operators, tile_operator
from tvmtile.tileop.atomic import Atomic
from tvmtile.tileop.copy import Copy
from tvmtile.tileop.cp_async import CpAsync
from tvmtile.tileop.gather import MoveRows
from tvmtile.tileop.reduce import Reduce
from tvmtile.tileop.rounded import Rounded
from tvmtile.tileop.tma import TmaCopy
from tvmtile.tileop.tma.instructions import BulkLoad

TENSOR = tirx.decl_buffer((8, 8), "float32", "A")
TILE = tirx.decl_buffer((4, 8), "float32", "tile", scope="shared.dyn")
ZERO = tirx.const(0, "int32")
FIRST = (tirx.BufferLoad(TENSOR, [ZERO, ZERO]), tirx.BufferLoad(TILE, [ZERO, ZERO]))
OPERATORS = [
    MoveRows(TENSOR, TILE, ZERO, (ZERO,) * 4, written="gather4", impl="loops"),
    CpAsync(FIRST[1], FIRST[0], (), 4),
    CpAsync(FIRST[1], FIRST[0], (ZERO == 1,), 4),
    TmaCopy(TENSOR, TILE, (ZERO,), impl="tma"),
    TmaCopy(TILE, TENSOR, leaders=32),
    BulkLoad(ZERO, FIRST[1], ZERO, (ZERO, ZERO), box=(4, 8)),
    Rounded((FIRST[0],) * 3, "fma", "rz"),
]


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
def test_an_operator_whose_last_operand_is_a_tuple_is_read_back_whole(op):
    again = type(op).from_call(op.to_call())
    assert_structural_equal(again.to_call(), op.to_call())
    for item in fields(op):
        expected, actual = (getattr(each, item.name) for each in (op, again))
        if "varargs" in item.metadata:
            assert len(actual) == len(expected)
        elif item.default is MISSING:
            assert_structural_equal(actual, expected)
        else:
            assert (tuple(actual) if isinstance(expected, tuple) else actual) == expected


def test_an_operator_of_a_users_needs_a_name_of_its_own():
    with pytest.raises(
        InvalidValue, match="the name 'copy' is that of an operator of tvmtile"
    ) as caught:

        @tile_operator
        class Mine(TileOp):
            name = "copy"

    assert caught.value.help == "give the operator another name"
    assert all_operators()["copy"] is Copy


def test_normalized_operands_are_regions_and_the_rest_stays():
    total = tirx.decl_buffer((4,), "float32", "total", scope="shared.dyn")
    op = Reduce(TILE, total, "max", 1, clear=False, impl="elements").normalized()
    assert [str(operand) for operand in (op.src, op.dst)] == ["tile[0:4, 0:8]", "total[0:4]"]
    assert (op.kind, op.dim, op.clear, op.impl) == ("max", 1, False, "elements")


def test_operators_on_elements_are_normal():
    update = Atomic(FIRST[0], tirx.const(1, "float32"))
    assert update.normalized() is update
