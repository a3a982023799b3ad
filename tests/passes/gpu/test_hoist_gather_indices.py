"""Indices that a loop copies by are loaded in front of it, where it changes none of them."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm.script import from_source

from tvmtile.passes import HoistGatherIndices

KERNEL = """
@T.prim_func
def main(A: T.Buffer((64, 64), "int8")):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            tile = T.alloc_buffer((64, 16), "int8", scope="shared.dyn")
            rows = T.alloc_buffer((64,), "int32", scope="shared.dyn")
            view = T.decl_buffer((4, 16), "int32", data=rows.data, scope="shared.dyn")
            for turn in range(2):
                rows[tx] = turn
                for k in range(4):
BODY
"""
COPY = (
    'T.tvmtile.async_issue("cp.async/1", T.address_of(tile[tx, 0]), T.address_of(A[PLACE, 0]), 16)'
)


def held(*lines, place="rows[tx]"):
    """The number of registers that a loop of such lines gets for indices."""
    body = "\n".join(" " * 20 + line.replace("COPY", COPY) for line in lines)
    source = KERNEL.replace("BODY", body).replace("PLACE", place)
    func = from_source(source, {"T": tvm.script.tirx})
    text = HoistGatherIndices(tvm.ir.IRModule({"main": func}))["main"].script()
    found = re.findall(r"_held\w*(?:: T.int32 =| = T.alloc_\w+\(\((\d+),\))", text)
    return [int(count or 1) for count in found]


@pytest.mark.parametrize(
    ("lines", "place", "registers"),
    [
        (["COPY"], "rows[tx]", [1]),
        (["COPY", "COPY"], "rows[tx]", [1]),
        (["for i in T.unroll(8):", "    COPY"], "rows[tx ^ i]", [8]),
        (["COPY"], "rows[tx] + rows[63 - tx]", [1, 1]),
        (["for i in T.unroll(32):", "    COPY"], "rows[tx ^ i]", []),  # too many
        (["for i in range(8):", "    COPY"], "rows[tx ^ i]", []),  # not all in registers
        (["COPY"], "rows[k]", []),
        (["COPY"], "rows[rows[k]]", []),
        (["if k > 1:", "    COPY"], "rows[tx]", []),
        (["COPY", "rows[tx] = k"], "rows[tx]", []),
        (["COPY"], "tile[tx, 0]", []),
        (["COPY"], "view[tx // 16, tx % 16]", [1]),
        (["COPY", "view[0, 0] = k"], "rows[tx]", []),
        (["COPY", "rows[tx] = k"], "view[tx // 16, tx % 16]", []),
    ],
)
def test_what_is_held(lines, place, registers):
    assert held(*lines, place=place) == registers


def test_what_other_threads_write():
    own = ["if tx < 32:", '    with T.attr(0, "tvmtile.group", 32):', "        for j in range(2):"]
    own += ["            COPY"]
    assert held(*own) == []  # the whole block writes the indices
    others = ["else:", '    with T.attr(32, "tvmtile.group", 32):', "        rows[tx] = 0"]
    assert held(*own, *others) == []
