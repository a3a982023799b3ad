"""Copies of statements."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.script import tirx as T

from tvmtile.ir.rewriting import seq, variables_of, with_fresh_variables


def test_a_copy_defines_variables_of_its_own():
    @T.prim_func
    def main(A: T.Buffer((8,), "float32")):
        for i in range(8):
            own = T.alloc_buffer((1,), "float32")
            twice: T.let = i * 2
            x = T.float32()
            own[0] = T.Let(x * x, where={x: A[twice]})
            A[i] = own[0]

    again = with_fresh_variables(main.body)
    tvm.ir.assert_structural_equal(main.body, again, map_free_vars=False)
    shared = set(variables_of(main.body)) & set(variables_of(again))
    assert [var.name for var in shared] == ["A"]
    both = main.with_body(seq([main.body, again]))
    assert tirx.analysis.verify_well_formed(both, assert_mode=False)
