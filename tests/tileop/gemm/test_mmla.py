"""T.gemm by ARM's products of pairs: numbers by a model, machine code, what is left to others."""

from __future__ import annotations

import itertools

import pytest
import torch
import tvm

import tvmtile
from tests.tileop.gemm.test_amx import EXTENDED
from tests.tileop.gemm.test_dots import multiply
from tvmtile.codegen.llvm_dots import MATRIX_PRODUCTS
from tvmtile.target import CpuCapability, cpu, resolve
from tvmtile.tileop.gemm import mmla

ARM = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-v1"}


def model(name, lanes):
    """A model of an instruction: `sums[2 * i + j] += sum(a[i, k] * b[j, k])` of 64 bits along k."""
    assert lanes == 4
    product, function = MATRIX_PRODUCTS[name], f"tvmtile_model_{name}"
    depth, sums = 2 * product.depth, "float" if product.sums == "float32" else "i32"
    wide, stored = f"<{depth} x {sums}>", f"<{2 * depth} x {product.element}>"
    reduce, zero, multiplied = (
        ("fadd", f"{sums} 0.0, ", "fmul") if sums == "float" else ("add", "", "mul")
    )
    suffix = f"llvm.vector.reduce.{reduce}.v{depth}{'f32' if sums == 'float' else 'i32'}"
    declared = f"{sums}, {wide}" if zero else wide
    lines = [
        f"declare {sums} @{suffix}({declared})",
        f"define <4 x {sums}> @{function}(<4 x {sums}> %s, <4 x i32> %a, <4 x i32> %b) {{",
        *(f"  %{x} = bitcast <4 x i32> %{w} to {stored}" for x, w in (("x", "a"), ("y", "b"))),
    ]
    for row, (x, dtype) in itertools.product((0, 1), (("x", product.a), ("y", product.b))):
        places = ", ".join(f"i32 {row * depth + k}" for k in range(depth))
        narrow = f"<{depth} x {product.element}>"
        lines += [
            f"  %{x}n{row} = shufflevector {stored} %{x}, {stored} %{x}, <{depth} x i32> <{places}>",
            f"  %{x}{row} = {EXTENDED[dtype]} {narrow} %{x}n{row} to {wide}",
        ]
    last = "%s"
    for i, j in itertools.product((0, 1), repeat=2):
        n = 2 * i + j
        lines += [
            f"  %p{n} = {multiplied} {wide} %x{i}, %y{j}",
            f"  %t{n} = call {sums} @{suffix}({zero}{wide} %p{n})",
            f"  %e{n} = extractelement <4 x {sums}> %s, i32 {n}",
            f"  %u{n} = {reduce} {sums} %e{n}, %t{n}",
            f"  %r{n} = insertelement <4 x {sums}> {last}, {sums} %u{n}, i32 {n}",
        ]
        last = f"%r{n}"
    return function, ("\n".join([*lines, f"  ret <4 x {sums}> {last}", "}\n"]),)


def integers(shape, dtype):
    """Values whose sums are exact in any order."""
    return torch.randint(0 if dtype == "uint8" else -8, 9, shape).to(getattr(torch, dtype))


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", MATRIX_PRODUCTS)
@pytest.mark.parametrize(
    ("extents", "transpose_b", "clear"),
    [((10, 14, 32), False, False), ((4, 22, 16), True, True), ((2, 2, 8), True, False)],
)
def test_numbers_by_a_model(name, extents, transpose_b, clear, monkeypatch):
    monkeypatch.setattr(mmla, "cpu", lambda _: CpuCapability(128, 32, matrices=(name,)))
    monkeypatch.setattr(mmla, "dot_function", model)
    product, (m, n, k) = MATRIX_PRODUCTS[name], extents
    torch.manual_seed(0)
    a = integers((m, k), product.a)
    b = integers((n, k) if transpose_b else (k, n), product.b)
    c = integers((m, n), "int8").to(getattr(torch, product.sums))
    expected = a.double() @ (b.T if transpose_b else b).double() + (0 if clear else c.double())
    dtypes = (product.a, product.b, product.sums)
    kernel = tvmtile.compile(multiply(dtypes, extents, False, transpose_b, clear))
    assert "mmla" in str(kernel.choices)
    kernel(a, b, c)
    assert torch.equal(c.double(), expected)


def assembly_of(dtypes, extents, transpose_a=False):
    target = resolve(ARM)
    with target:
        func = multiply(dtypes, extents, transpose_a)
    return tvm.tirx.build(func, target=target, pipeline="tvmtile").inspect_source("asm")


@pytest.mark.full
@pytest.mark.parametrize("name", MATRIX_PRODUCTS)
def test_machine_code(name):
    """The innermost loop keeps its 16 sums in registers."""
    product = MATRIX_PRODUCTS[name]
    lines = assembly_of((product.a, product.b, product.sums), (32, 64, 256)).splitlines()
    first, last = (next(n for n in order if f"\t{name}\t" in lines[n]) for order in (
        range(len(lines)), range(len(lines) - 1, -1, -1)
    ))  # fmt: skip
    assert sum(f"\t{name}\t" in line for line in lines) >= 16
    assert not [line for line in lines[first:last] if "[sp" in line and "\tq" in line]


@pytest.mark.full(but=3)
@pytest.mark.parametrize(
    ("extents", "transpose_a"), [((3, 4, 16), False), ((4, 3, 16), False), ((4, 4, 12), False),
                                 ((4, 4, 16), True)],
)  # fmt: skip
def test_other_products_are_dot_products(extents, transpose_a):
    assembly = assembly_of(("int8", "int8", "int32"), extents, transpose_a)
    assert "\tsmmla\t" not in assembly
    assert "\tsdot\t" in assembly


def test_processors_that_have_them():
    assert cpu(resolve(ARM)).matrices == tuple(MATRIX_PRODUCTS)
    assert cpu(resolve(ARM | {"mcpu": "neoverse-n1"})).matrices == ()
