"""T.gemm by Intel's AMX: machine code, numbers by a model of the instructions, what is declined."""

from __future__ import annotations

import pytest
import torch
import tvm

import tvmtile
from tests.tileop.gemm.test_dots import multiply
from tvmtile.codegen.llvm_tiles import TILE_PRODUCTS
from tvmtile.errors import NoLowering
from tvmtile.target import CpuCapability, resolve
from tvmtile.tileop.gemm import amx

SERVER = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "sapphirerapids"}
MODEL = """\
define i32 @{name}(ptr %c, i64 %c.row, ptr %a, i64 %a.row, ptr %b, i64 %b.row, i64 %steps) {{
entry:
  %depth = mul i64 %steps, {depth}
  %block = mul i64 %depth, 32
  %all = mul i64 %block, 32
  br label %loop
loop:
  %n = phi i64 [ 0, %entry ], [ %next, %loop ]
  %row = udiv i64 %n, %block
  %inside = urem i64 %n, %block
  %column = udiv i64 %inside, %depth
  %k = urem i64 %inside, %depth
  %word = udiv i64 %k, {per_word}
  %in.word = urem i64 %k, {per_word}
  %a.offset = mul i64 %row, %a.row
  %a.first = getelementptr i8, ptr %a, i64 %a.offset
  %a.place = getelementptr {stored}, ptr %a.first, i64 %k
  %b.offset = mul i64 %word, %b.row
  %b.first = getelementptr i8, ptr %b, i64 %b.offset
  %b.word = getelementptr i32, ptr %b.first, i64 %column
  %b.place = getelementptr {stored}, ptr %b.word, i64 %in.word
  %c.offset = mul i64 %row, %c.row
  %c.first = getelementptr i8, ptr %c, i64 %c.offset
  %c.place = getelementptr {sums}, ptr %c.first, i64 %column
  %a.stored = load {stored}, ptr %a.place
  %b.stored = load {stored}, ptr %b.place
  %x = {a_wide} {stored} %a.stored to {sums}
  %y = {b_wide} {stored} %b.stored to {sums}
  %product = {multiply} {sums} %x, %y
  %before = load {sums}, ptr %c.place
  %is.first = icmp eq i64 %k, 0
  %is.clear = and i1 %is.first, {clear}
  %start = select i1 %is.clear, {sums} zeroinitializer, {sums} %before
  %sum = {add} {sums} %start, %product
  store {sums} %sum, ptr %c.place
  %next = add i64 %n, 1
  %more = icmp ult i64 %next, %all
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}}
"""
EXTENDED = {"bfloat16": "fpext", "int8": "sext", "uint8": "zext"}


def model(name, clear):
    """A model of an instruction, an element at a time."""
    a, b, sums = TILE_PRODUCTS[name]
    is_float = sums == "float32"
    function = f"tvmtile_model_{name}_{clear}".lower()
    return function, MODEL.format(
        name=function,
        depth=32 if is_float else 64,
        per_word=2 if is_float else 4,
        stored="bfloat" if is_float else "i8",
        sums="float" if is_float else "i32",
        a_wide=EXTENDED[a],
        b_wide=EXTENDED[b],
        multiply="fmul" if is_float else "mul",
        add="fadd" if is_float else "add",
        clear=str(clear).lower(),
    )


def random(shape, dtype):
    if dtype == "bfloat16":
        return torch.randint(-8, 9, shape).bfloat16()  # sums are exact in any order
    kind = torch.iinfo(getattr(torch, dtype))
    return torch.randint(kind.min, kind.max + 1, shape).to(getattr(torch, dtype))


@pytest.mark.full(but=2)
@pytest.mark.parametrize("name", TILE_PRODUCTS)
@pytest.mark.parametrize(("transpose_b", "clear"), [(False, False), (True, True)])
def test_numbers_by_a_model(name, transpose_b, clear, monkeypatch):
    monkeypatch.setattr(amx, "cpu", lambda _: CpuCapability(512, 32, tiles=tuple(TILE_PRODUCTS)))
    monkeypatch.setattr(amx, "tile_function", model)
    nothing = "define i32 @tvmtile_nothing() {\n  ret i32 0\n}\n"
    monkeypatch.setattr(amx, "ALLOW_TILES", ("tvmtile_nothing", nothing))
    dtypes, (m, n, k) = TILE_PRODUCTS[name], (64, 32, 128)
    kernel = tvmtile.compile(multiply(dtypes, (m, n, k), False, transpose_b, clear, "amx"))
    torch.manual_seed(0)
    a, b = random((m, k), dtypes[0]), random((n, k) if transpose_b else (k, n), dtypes[1])
    c = torch.randint(-9, 9, (m, n)).to(getattr(torch, dtypes[2]))
    expected = a.double() @ (b.T if transpose_b else b).double() + (0 if clear else c.double())
    kernel(a, b, c)
    assert torch.equal(c.double(), expected)


@pytest.mark.full(but=3)
@pytest.mark.parametrize("name", TILE_PRODUCTS)
def test_machine_code(name):
    target = resolve(SERVER)
    with target:
        func = multiply(TILE_PRODUCTS[name], (64, 64, 128), impl="amx")
    assembly = tvm.tirx.build(func, target=target, pipeline="tvmtile").inspect_source("asm")
    names = [line.split()[0] for line in assembly.splitlines() if line.startswith("\t")]
    assert names.count(name) >= 4
    # Four tiles of operands for four products, and the sums before the loop.
    assert names.count("tileloadd") == names.count(name) + names.count("tilestored")
    assert names.index("syscall") < names.index("ldtilecfg")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((TILE_PRODUCTS["tdpbssd"], (48, 32, 64)), "M = 48 is not a multiple of 32"),
        ((TILE_PRODUCTS["tdpbssd"], (32, 32, 96)), "K = 96 is not a multiple of 64"),
        ((TILE_PRODUCTS["tdpbssd"], (32, 32, 64), True), "the rows of A do not lie along K"),
        (
            (("float16", "float16", "float32"), (32, 32, 64)),
            "no product of tiles of float16 and float16 into float32",
        ),
    ],
)
def test_what_is_declined(arguments, reason):
    with pytest.raises(NoLowering, match=reason):
        tvmtile.compile(multiply(*arguments, impl="amx"), target=SERVER)


def test_it_is_not_chosen_unless_asked_for():
    target = resolve(SERVER)
    with target:
        func = multiply(TILE_PRODUCTS["tdpbssd"], (32, 32, 64))
    assembly = tvm.tirx.build(func, target=target, pipeline="tvmtile").inspect_source("asm")
    assert "tdpbssd" not in assembly
    assert "vpdpbusd" in assembly
