"""`break` and `continue` where no loop can be left."""

from __future__ import annotations

import pytest
import tvm
from tvm import ir
from tvm.script import tirx as T

from tvmtile.errors import NestingError
from tvmtile.passes import CheckLoops


@pytest.mark.parametrize("keyword", ["break", "continue"])
def test_outside_of_a_loop(keyword):
    func = tvm.script.from_source(
        f"""
@T.prim_func
def main(A: T.Buffer((40,), "float32")):
    for bx in T.thread_binding(2, thread="blockIdx.x", annotations={{"tvmtile.kernel": True}}):
        if A[bx] > T.float32(0):
            {keyword}
""",
        extra_vars={"T": T},
    )
    with pytest.raises(NestingError, match=f"`{keyword}` stands outside of a loop"):
        CheckLoops(ir.IRModule({"main": func}))
