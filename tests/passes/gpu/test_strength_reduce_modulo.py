"""StrengthReduceModulo: which remainders are carried; that they are right, the catalogue says."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm.script import from_source

from tvmtile.passes import StrengthReduceModulo

KERNEL = """
@T.prim_func
def main(A: T.Buffer((300,), "int32"), n: T.int32):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            done = T.alloc_local((1,), "int32")
            tile = T.alloc_shared((1,), "int32")
            view = T.decl_buffer((1,), "int32", data=done.data, scope="local")
            for k in range(n):
                LINE
"""


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("A[(done[0] + k) % 3] = 0", 1),
        ("A[(k + done[0] - 1) % 3] = (done[0] + k) % 3", 2),
        ("A[0] = (done[0] + k) // 3 % 2", 2),
        ("A[(done[0] + k) % 3] = (done[0] + k) // 3 % 2", 2),
        ("A[(view[0] + k) % 5] = 0", 1),
        ("A[(done[0] + k) % 4] = (done[0] + k) // 4 % 2", 0),  # a mask
        ("A[(done[0] + k) // 3 % 3] = 0", 0),
        ("A[k % 3] = 0", 0),
        ("A[(done[0] - k) % 3] = 0", 0),
        ("A[(done[0] + k + k) % 3] = 0", 0),
        ("A[(done[0] + k * 2) % 3] = 0", 0),
        ("A[(tile[0] + k) % 3] = 0", 0),  # others may write it
        ("done[0] = (done[0] + k) % 3", 0),
        ("view[0] = (done[0] + k) % 3", 0),
        ("A[0] = T.Select(k > 1, (done[0] + k) % 3, 0); T.continue_loop()", 0),
    ],
)
def test_what_counts_by_one_from_registers_is_carried(line, count):
    source = KERNEL.replace("LINE", line.replace("; ", "\n" + " " * 16))
    func = from_source(source, {"T": tvm.script.tirx})
    text = StrengthReduceModulo(tvm.ir.IRModule({"main": func}))["main"].script()
    assert len(set(re.findall(r"k_(?:remainder|parity)\w*", text))) == count
