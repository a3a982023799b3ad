"""CarryRemainders: loops carry the remainders of numbers that they count on."""

from __future__ import annotations

import re

import pytest
import torch
import tvm
from tvm.script import from_source

import tvmtile
import tvmtile.language as T
from tvmtile.passes import CarryRemainders

KERNEL = """
@T.prim_func
def main(A: T.Buffer((300,), "int32"), n: T.int32):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            done = T.alloc_local((1,), "int32")
            tile = T.alloc_shared((1,), "int32")
            view = T.decl_buffer((1,), "int32", data=done.data, scope="local")
            for k in range(FIRST, n):
                LINE
"""


def registers(line, first="0"):
    """How many registers a loop around a line gets."""
    source = KERNEL.replace("LINE", line).replace("FIRST", first)
    func = from_source(source, {"T": tvm.script.tirx})
    text = CarryRemainders(tvm.ir.IRModule({"main": func}))["main"].script()
    return len(set(re.findall(r"k_(?:remainder|parity)\w*", text)))


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
    lines = line.split("; ")
    assert registers(("\n" + " " * 16).join(lines)) == count


@pytest.mark.parametrize("first", [-7, 0, 2])
@pytest.mark.parametrize("divisor", [3, 5, 6])
@pytest.mark.parametrize("trips", [0, 1, 4, 7])
def test_remainders_are_those_of_each_iteration(first, divisor, trips):
    @T.prim_func
    def main(C: T.Tensor((3, 8, 3), "int32"), n: T.int32):
        with T.Kernel(1, threads=32) as _:
            done = T.alloc_local((1,), "int32")
            done[0] = first
            for turn in T.serial(3):
                for k in T.serial(n):
                    C[turn, k, 0] = (done[0] + k) % divisor
                    C[turn, k, 1] = (done[0] + k) // divisor % 2
                    C[turn, k, 2] = (k - 1 + done[0]) % divisor
                done[0] = done[0] + n

    target = {"kind": "cuda", "arch": "sm_80"}
    kernel = tvmtile.compile(main, target=target, execution_backend="emulator")
    assert "k_parity" in kernel.get_kernel_source()
    c = torch.full((3, 8, 3), -9, dtype=torch.int32)
    kernel(c, trips)
    expected = torch.full_like(c, -9)
    for turn in range(3):
        for k in range(trips):
            number = first + turn * trips + k
            values = number % divisor, number // divisor % 2, (number - 1) % divisor
            expected[turn, k] = torch.tensor(values)
    assert torch.equal(c, expected)
