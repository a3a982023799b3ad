"""Dot products of a CPU: extreme values, and other machines; `gemm_on_cpu` has the numbers."""

from __future__ import annotations

import itertools

import pytest
import torch
import tvm

import tvmtile
import tvmtile.language as T
from tests.tileop.gemm.test_microkernel import innermost_loop_with
from tvmtile.codegen.llvm_dots import DOT_PRODUCTS, dot_function
from tvmtile.target import cpu, host_target, resolve
from tvmtile.tileop.gemm.dots import choose
from tvmtile.tileop.gemm.microkernel import GemmTile
from tvmtile.tileop.gemm.packing import array

BYTES = ("int8", "uint8")


def multiply(dtypes, extents, transpose_a=False, transpose_b=False, clear=False, impl=None):
    """The program of one T.gemm."""
    (a, b, c), (m, n, k) = dtypes, extents

    @T.prim_func
    def main(
        A: T.Tensor((k, m) if transpose_a else (m, k), a),
        B: T.Tensor((n, k) if transpose_b else (k, n), b),
        C: T.Tensor((m, n), c),
    ):
        with T.Kernel(1):
            left, right = T.alloc_shared(A.shape, a), T.alloc_shared(B.shape, b)
            sums = T.alloc_fragment((m, n), c)
            T.copy(A, left)
            T.copy(B, right)
            T.copy(C, sums)
            T.gemm(left, right, sums, transpose_a, transpose_b, clear_accum=clear, impl=impl)
            T.copy(sums, C)

    return main


def test_sums_of_integers_wrap_only_where_the_result_does():
    """The terms that make up for flipped bits may go beyond int32 for a while."""
    kernel = tvmtile.compile(multiply(("int8", "int8", "int32"), (4, 32, 8)))
    a = torch.full((4, 8), 127, dtype=torch.int8)
    b = torch.full((8, 32), -128, dtype=torch.int8)
    for start in (-(2**31) + 127 * 128 * 8, 2**31 - 1):
        c = torch.full((4, 32), start, dtype=torch.int32)
        kernel(a, b, c)
        assert (c == start - 127 * 128 * 8).all()


def test_infinity_and_nan():
    kernel = tvmtile.compile(multiply(("bfloat16", "bfloat16", "float32"), (4, 16, 4)))
    a, b, c = torch.ones(4, 4).bfloat16(), torch.ones(4, 16).bfloat16(), torch.zeros(4, 16)
    a[0, 0], a[1, 1], a[2, :2] = torch.inf, torch.nan, torch.tensor([torch.inf, -torch.inf])
    kernel(a, b, c)
    torch.testing.assert_close(
        c[:, 0], torch.tensor([torch.inf, torch.nan, torch.nan, 4.0]), equal_nan=True
    )


X86, ARM = "x86_64-linux-gnu", "aarch64-linux-gnu"
MACHINES = [
    (X86, "znver4", ("bfloat16", "bfloat16", "float32"), "vdpbf16ps"),
    (X86, "znver4", ("float8_e4m3fn", "float8_e5m2", "float32"), "vdpbf16ps"),
    (X86, "sapphirerapids", ("int8", "int8", "int32"), "vpdpbusd"),
    (X86, "alderlake", ("uint8", "int8", "int32"), "vpdpbusd"),
    (X86, "arrowlake", ("int8", "int8", "int32"), "vpdpbssd"),
    (X86, "arrowlake", ("uint8", "uint8", "int32"), "vpdpbuud"),
    (X86, "arrowlake", ("int8", "uint8", "int32"), "vpdpbusd"),
    (ARM, "neoverse-v1", ("bfloat16", "bfloat16", "float32"), "bfdot"),
    (ARM, "neoverse-v1", ("int8", "uint8", "int32"), "usdot"),
    (ARM, "neoverse-n1", ("uint8", "int8", "int32"), "udot"),
    (ARM, "apple-m1", ("int8", "int8", "int32"), "sdot"),
]


@pytest.mark.full(but=1)
@pytest.mark.parametrize(("triple", "processor", "dtypes", "instruction"), MACHINES)
def test_machines(triple, processor, dtypes, instruction):
    """The innermost loop holds the instruction, and nothing of it goes through memory."""
    target = resolve({"kind": "llvm", "mtriple": triple, "mcpu": processor})
    with target:
        func = multiply(dtypes, (32 if triple == X86 else 33, 64, 64))  # pairs of rows are mmla's
    assembly = tvm.tirx.build(func, target=target, pipeline="tvmtile").inspect_source("asm")
    if triple == X86:
        loop = innermost_loop_with(assembly, instruction, count=12)
        assert not [line for line in loop if "mm" in line and ("(%rsp" in line or "(%rbp" in line)]
    else:
        assert assembly.count(f"\t{instruction}\t") >= 12


def choice(a, b, c, names):
    tile = GemmTile(array((4, 4), a, "a"), array((4, 4), b, "b"), array((4, 4), c, "c"), 4, 4, 4)
    return choose(tile, names)


@pytest.mark.parametrize(
    "names",
    [
        ("vpdpbusd",),
        ("vpdpbusd", "vpdpbssd", "vpdpbuud"),
        ("sdot", "udot"),
        ("sdot", "udot", "usdot"),
    ],
)
@pytest.mark.parametrize("pair", list(itertools.product(BYTES, BYTES)), ids="-".join)
def test_an_instruction_multiplies_what_it_can(pair, names):
    chosen = choice(*pair, "int32", names)
    operands = (chosen.b, chosen.a) if chosen.swapped else (chosen.a, chosen.b)
    assert operands == (chosen.dot.a, chosen.dot.b)
    assert chosen.a == pair[0]
    assert chosen.flips == (chosen.b != pair[1])
    available = {(DOT_PRODUCTS[name].a, DOT_PRODUCTS[name].b) for name in names}
    assert chosen.flips == available.isdisjoint({pair, pair[::-1]})


def test_what_no_instruction_multiplies():
    everything = tuple(DOT_PRODUCTS)
    for dtypes in (
        ("float16", "float16", "float32"),
        ("bfloat16", "float32", "float32"),
        ("bfloat16", "bfloat16", "float64"),
        ("int8", "int8", "float32"),
        ("int8", "int32", "int32"),
    ):
        assert choice(*dtypes, everything) is None
    assert choice("int8", "int8", "int32", ()) is None


def test_widths_that_an_instruction_has_not():
    with pytest.raises(ValueError, match="sdot has no form of 512 bits"):
        dot_function("sdot", 16)


def test_this_machine():
    """`gemm_on_cpu` is about dot products only where there are some."""
    features = tvm.target.codegen.llvm_get_cpu_features(host_target())
    assert ("vpdpbusd" in cpu(host_target()).dots) == (
        "avx512vnni" in features or "avxvnni" in features
    )
