"""Moves from global to shared memory as `cp.async`: how wide, how much is read, and what is none."""

from __future__ import annotations

import pytest
from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_map, structural_walk

from tvmtile.ir.asynchronous import issued
from tvmtile.passes.gpu.issue_async_copies import as_async_copies

I, J, K = (tirx.Var(name, "int32") for name in "ijk")


def tile(dtype="float16", columns=64, scope="shared"):
    return tirx.decl_buffer((16, columns), dtype, name="tile", scope=scope)


def tensor(dtype="float16", columns=256):
    return tirx.decl_buffer((128, columns), dtype, name="A")


def copies(move, lanes=8):
    """The copies that a loop over neighbours, 0 <= i < 16, becomes: size and bytes read, by piece."""
    analyzer = Analyzer()
    analyzer.bind(I, ir.Range(0, 16))
    result = as_async_copies(J, lanes, move, analyzer, "cp.async/1")
    if result is None:
        return None
    found, loops = [], []
    structural_walk(result, (tirx.For, loops.append))
    structural_walk(result, (ir.Call, lambda call: found.append(issued(call))))
    (copy,) = filter(None, found)
    *_, size, read = copy.operands if copy.fills else (*copy.operands, copy.operands[2])
    pieces = int(loops[0].extent) if loops else 1
    places = [
        {loop.loop_var: tirx.const(piece, "int32")} for piece in range(pieces) for loop in loops
    ]
    return int(size), [substituted(read, place) for place in places or [{}]]


def substituted(expression, values):
    return structural_map(expression, (ir.Var, lambda var: values.get(var, var)))


def bytes_read(expressions, **values):
    """The numbers of bytes for values of `i`, and of `k` where the move has one."""
    analyzer = Analyzer()
    known = {I: values.get("i", 0), K: values.get("k", 0)}
    place = {var: tirx.const(number, "int32") for var, number in known.items()}
    return [int(analyzer.simplify(substituted(expression, place))) for expression in expressions]


def stored(value):
    return tirx.BufferStore(tile(), value, [I, J])


def move(source, target, *, row=I, column=J, condition=None, outside=0):
    value = tirx.BufferLoad(source, [row, column])
    if condition is not None:
        value = tirx.if_then_else(condition, value, tirx.const(outside, str(source.ty.dtype)))
    return tirx.BufferStore(target, value, [I, J])


@pytest.mark.parametrize(
    ("dtype", "lanes", "columns", "size", "count"),
    [
        ("float16", 8, 256, 16, 1),
        ("float16", 8, 100, 8, 2),
        ("float16", 8, 90, 4, 4),
        ("float32", 4, 256, 16, 1),
        ("float32", 4, 99, 4, 4),
        ("float32", 1, 256, 4, 1),
        ("float64", 2, 255, 8, 2),
        ("int8", 16, 256, 16, 1),
        ("bfloat16", 2, 256, 4, 1),
    ],
)
def test_a_copy_is_as_wide_as_both_sides_are_aligned(dtype, lanes, columns, size, count):
    found, read = copies(move(tensor(dtype, columns), tile(dtype)), lanes)
    assert found == size
    assert bytes_read(read) == [size] * count


@pytest.mark.parametrize(
    "statement",
    [
        move(tensor(columns=99), tile()),  # no two elements of a row are aligned
        move(tensor(), tile(columns=63)),
        move(tensor(), tile(), column=J * 2),
        move(tensor(), tile(), column=J + 1),
        move(tensor(), tile(scope="local")),
        stored(tirx.Cast("float16", tirx.BufferLoad(tensor("float32"), [I, J]))),
        stored(tirx.BufferLoad(tensor(), [I, J]) + tirx.const(1, "float16")),
        move(tensor(), tile(), condition=I < 5, outside=1),  # not zero
        move(tensor(), tile(), condition=(J % 2).equal(0)),
        move(tile(), tile()),
    ],
    ids=range(10),
)
def test_what_is_no_copy_of_neighbours_is_left_alone(statement):
    assert copies(statement) is None


def test_single_elements_of_two_bytes_are_left_alone():
    assert copies(move(tensor(), tile()), lanes=1) is None


def vector(extent):
    """A move of eight neighbours of a vector, from the one with the number 8 k."""
    row = tirx.decl_buffer((extent,), "float16", name="A")
    target = tirx.decl_buffer((64,), "float16", name="tile", scope="shared")
    value = tirx.BufferLoad(row, [K * 8 + J])
    value = tirx.if_then_else(K * 8 + J < extent, value, tirx.const(0, "float16"))
    return tirx.BufferStore(target, value, [J])


ROWS = move(tensor(), tile(), row=K + I, condition=K + I < 128)
COLUMNS = move(tensor(), tile(), column=K * 8 + J, condition=tirx.all(K * 8 + J >= 0, I < 3))


@pytest.mark.parametrize(
    ("statement", "k", "i", "expected"),
    [
        (ROWS, 120, 7, 16),
        (ROWS, 120, 8, 0),
        (COLUMNS, -1, 0, 0),
        (COLUMNS, 0, 0, 16),
        (COLUMNS, 0, 3, 0),
        (vector(2000), 249, 0, 16),
        (vector(2000), 250, 0, 0),
        (vector(1003), 0, 0, 16),
        (vector(1003), 124, 0, 16),
        (vector(1003), 125, 0, 6),  # a tensor may end in the middle of a copy
        (vector(1003), 126, 0, 0),
    ],
)
def test_what_lies_outside_is_zeros(statement, k, i, expected):
    _, read = copies(statement)
    assert bytes_read(read, k=k, i=i) == [expected]
