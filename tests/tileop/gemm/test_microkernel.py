"""The CPU's micro-kernel by itself: dtypes, transposes, odd sizes, offsets, machines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import tvm
from tvm import tirx

from tvmtile.target import CpuCapability, cpu, host_target
from tvmtile.tileop.gemm.microkernel import (
    GemmTile,
    column_panels,
    emit_gemm,
    register_block,
)
from tvmtile.tileop.gemm.packing import Matrix

FLOAT_MIXES = [
    (a, b, c)
    for c in ("float32", "float64")
    for a in ("float32", "float16", "bfloat16", "int8", "uint8")
    for b in ("float32", "float16", "bfloat16", "int8")
]
MIXES = [
    *FLOAT_MIXES,
    *((a, b, "float16") for a in ("float32", "float16") for b in ("float32", "float16")),
    ("float64", "float64", "float64"),
    *((a, b, "int32") for a in ("int8", "uint8") for b in ("int8", "uint8")),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("int32", "int8", "int32"),
]
# Half a unit in the last place of 1, the most that one rounding can be off.
ROUNDING = {"float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8, "float64": 2**-53}


def random(shape: tuple[int, ...], dtype: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if "int" in dtype:
        low, high = {"int8": (-128, 128), "uint8": (0, 256), "int32": (-999, 999)}[dtype]
        values = torch.randint(low, high, shape, generator=generator)
    else:
        values = torch.randn(shape, generator=generator)
    return values.to(getattr(torch, dtype))


def check(
    dtypes: tuple[str, str, str],
    extents: tuple[int, int, int],
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    clear: bool = False,
    machine: CpuCapability | None = None,
) -> None:
    """Multiply matrices that lie inside larger, 3-dimensional buffers; nothing else may change."""
    (a, b, c), (m, n, k) = dtypes, extents
    shapes = [(k, m) if transpose_a else (m, k), (n, k) if transpose_b else (k, n), (m, n)]
    buffers = [
        tirx.decl_buffer((2, rows + 1, columns + 3), dtype, name=name)
        for (rows, columns), dtype, name in zip(shapes, dtypes, "ABC", strict=True)
    ]
    matrices = [Matrix(buffer, (1, 1, 3)) for buffer in buffers]
    tile = GemmTile(*matrices, m, n, k, transpose_a, transpose_b, clear)
    body = emit_gemm(tile, machine or cpu(host_target()))
    func = tirx.PrimFunc(buffers, body).with_attr("global_symbol", "main")
    module = tvm.IRModule({"main": func.with_attr("tirx.noalias", True)})
    multiply = tvm.tirx.build(module, target=host_target())["main"]

    tensors = [
        random(tuple(int(e) for e in buffer.shape), dtype, seed)
        for seed, (buffer, dtype) in enumerate(zip(buffers, dtypes, strict=True))
    ]
    before = tensors[2].clone()
    multiply(*tensors)

    left, right, result, start = (t[1, 1:, 3:].double() for t in (*tensors, before))
    left, right = left.T if transpose_a else left, right.T if transpose_b else right
    expected = left @ right + (0 if clear else start)
    assert_rounded(result, expected, left.abs() @ right.abs() + start.abs(), c, k)
    outside = torch.ones(before.shape, dtype=torch.bool)
    outside[1, 1:, 3:] = False
    assert torch.equal(tensors[2][outside], before[outside])


def assert_rounded(
    result: torch.Tensor, expected: torch.Tensor, magnitude: torch.Tensor, dtype: str, k: int
) -> None:
    if dtype == "int32":
        assert torch.equal(result, expected)
        return
    compute = ROUNDING["float64" if dtype == "float64" else "float32"]
    bound = compute * (k + 2) * magnitude + 1.01 * ROUNDING[dtype] * expected.abs()
    assert ((result - expected).abs() <= bound + 1e-7 * (dtype == "float16")).all()


@pytest.mark.full(but=1)
@pytest.mark.parametrize("dtypes", MIXES, ids="-".join)
def test_dtypes(dtypes: tuple[str, str, str]) -> None:
    check(dtypes, (13, 43, 19))
    check(dtypes, (16, 32, 32), transpose_a=True, transpose_b=True, clear=True)


MACHINES = [CpuCapability(512, 32), CpuCapability(256, 16), CpuCapability(128, 16)]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_vector_widths(machine: CpuCapability) -> None:
    check(("float32",) * 3, (20, 50, 30), transpose_b=True, machine=machine)
    check(("float16", "float32", "float32"), (20, 50, 30), transpose_a=True, machine=machine)


@pytest.mark.parametrize("machine", MACHINES, ids=str)
@pytest.mark.parametrize("m", [1, 2, 7, 16, 37, 64, 128])
def test_register_block_fits_the_registers(machine: CpuCapability, m: int) -> None:
    for vectors in (1, 2, 3):
        rows = register_block(machine, vectors, m)
        assert 1 <= rows <= m
        assert rows == 1 or rows * vectors + vectors + 1 <= machine.vector_registers


@pytest.mark.parametrize("n", [1, 5, 16, 32, 75, 100, 257])
def test_column_panels_cover_every_column_once(n: int) -> None:
    panels = column_panels(n, 16, 2)
    assert sum(count * sum(widths) for count, widths in panels) == n
    assert all(lanes in (1, 2, 4, 8, 16) for _, widths in panels for lanes in widths)


def test_accumulators_stay_in_registers() -> None:
    """No load or store of the stack in the innermost loop of a full tile."""
    a, b, c = (tirx.decl_buffer((64, 64), "float32", name=name) for name in "ABC")
    origin: Any = (0, 0)
    tile = GemmTile(*(Matrix(buffer, origin) for buffer in (a, b, c)), 64, 64, 64)
    target = tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "mtriple": "x86_64-linux-gnu"})
    func = tirx.PrimFunc([a, b, c], emit_gemm(tile, cpu(target))).with_attr("global_symbol", "main")
    module = tvm.IRModule({"main": func.with_attr("tirx.noalias", True)})
    assembly = tvm.tirx.build(module, target=target).inspect_source("asm")
    kernel = innermost_loop_with(assembly, "vfmadd")
    assert sum("vfmadd" in line for line in kernel) >= 12
    assert not [line for line in kernel if "(%rsp" in line or "(%rbp" in line]


def innermost_loop_with(assembly: str, instruction: str, count: int = 1) -> list[str]:
    """The first basic block with so many of an instruction that jumps back to its own label."""
    label, block = "", []
    for line in assembly.splitlines():
        if line.startswith(".LBB"):
            label, block = line.partition(":")[0], []
        block.append(line)
        jumps_back = label and line.strip().startswith("j") and line.strip().endswith(label)
        if jumps_back and sum(instruction in item for item in block) >= count:
            return block
    raise AssertionError(f"no loop with {instruction}")
