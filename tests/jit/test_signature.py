"""Extents of results as programs: what TVM computes of the expressions, from a call's arguments."""

from __future__ import annotations

import json

import pytest
import torch
from tvm import tirx

import tvmtile
import tvmtile.language as T
from tvmtile.errors import ArgumentError
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import substitute
from tvmtile.jit.signature import KernelSignature, program_of, sources_in, sources_of
from tvmtile.library import compute

n, m = tirx.Var("n", "int32"), tirx.Var("m", "int32")

EXPRESSIONS = [
    n * 3 + m - 1,
    tirx.floordiv(n - 9, 4),
    tirx.floormod(n - 9, 4),
    tirx.truncdiv(n - 9, 4),
    tirx.truncmod(n - 9, 4),
    tirx.max(n, m),
    tirx.min(n, m),
    (n << 2) + (n >> 1),
    tirx.Select(tirx.all(n >= 3, m < 4), n, m),
    tirx.if_then_else(tirx.any(n.equal(3), tirx.Not(n <= m)), n + 1, m),
    tirx.Cast("int64", n) * 2,
]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=str)
@pytest.mark.parametrize("values", [(3, 7), (8, 2), (0, 5)])
def test_a_program_computes_the_extent(expression, values):
    made = json.loads(json.dumps(program_of(expression, {n: [0, None], m: [1, 1]})))
    known = {var: tirx.const(value, "int32") for var, value in zip((n, m), values, strict=True)}
    args = values[0], torch.empty(4, values[1])
    assert compute(made, args) == constant(substitute(expression, known))


def test_a_program_of_bits():
    """TVM does not compute these."""
    made = program_of((n & 6) + (n | 1) + (n ^ 5), {n: [0, None]})
    assert compute(made, (12,)) == (12 & 6) + (12 | 1) + (12 ^ 5)


def test_what_can_not_be_computed_has_no_program():
    assert program_of(n + m, {n: [0, None]}) is None
    assert (
        program_of(tirx.Cast("int32", tirx.log2(tirx.Cast("float32", n))), {n: [0, None]}) is None
    )


def rows(extent, result):
    @T.prim_func
    def copied(
        A: T.Tensor((extent, 4), "float32"),
        B: T.Tensor((n,), "float32"),
        C: T.Tensor((result,), "float32"),
    ):
        with T.Kernel(1):
            C[0] = B[0]

    return copied


def test_equations_are_solved_when_programs_are_made():
    solved = KernelSignature.of(rows(m * 2 + n, m), [2])
    (result,) = solved.allocated
    assert result.shape((torch.empty(13, 4), torch.empty(3))) == (5,)
    assert result.strides is None
    assert KernelSignature.of(rows(m * m, 6), [2]).allocated[0].strides == (1,)


def test_an_argument_that_is_not_given_leaves_it_to_the_others():
    params = [param for param in rows(n, n).params[:2]]
    assert sources_of(params)[n] == [0, 0]
    assert sources_in(params, [None, torch.empty(3)])[n] == [1, 0]


def test_an_extent_that_no_argument_says():
    kernel = tvmtile.compile(rows(n, n + m), out_idx=-1, target="llvm")
    with pytest.raises(ArgumentError, match=r"the extent n \+ m of a result is not known"):
        kernel(torch.empty(3, 4), torch.empty(3))
