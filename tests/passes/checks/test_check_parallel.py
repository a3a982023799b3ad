"""Iterations of T.Parallel that exchange elements are refused; what is right, or not known, is not."""

from __future__ import annotations

import importlib.util
import textwrap

import pytest

from tvmtile.pipeline import check

PROGRAM = """
import tvmtile.language as T

@T.prim_func
def program(
    X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32"), Z: T.Tensor((64, 64), "float32"),
    I: T.Tensor((64,), "int32"), n: T.int32,
):
    with T.Kernel(4, threads=32) as bx:
        s = T.alloc_shared((64,), "float32")
        f = T.alloc_fragment((64,), "float32")
        r = T.alloc_reducer((64,), "float32", op="sum")
        v = T.alloc_var("float32", init=0)
        T.copy(X, s)
        T.copy(X, f)
        T.clear(r)
        for i{more} in T.Parallel(64{extents}):
{body}
"""

RIGHT = (
    "s[i] = s[i] + 1",
    "s[i] = X[i]; Y[i] = s[i]",
    "Y[0] = 1",
    "Y[0] = X[3]",
    "s[i // 2] = X[i // 2]",
    "if i == 0: Y[0] += X[i]",
    "if i < 32: s[i] = s[i + 32]",
    "if (i ^ 1) > i: s[i] = s[i ^ 1]; s[i ^ 1] = 0",
    "T.atomic_add(Y[0], X[i])",
    "f[i] += Z[i, j]",
    "f[0] += X[i]",
    "r[i] += Z[i, j]",
    "for k in T.serial(8): Z[i, k] += X[i]",
    "v = X[i]; Y[i] = v * v",
    # What the arguments decide
    "if X[i] == X[0]: Y[0] = i",
    "if I[i] > 2: Y[0] += 1",
    "if i < n: Y[0] += 1",
    "Y[I[i]] += X[i]",
    "k = I[i]; Y[k] += X[i]",
    "k = X[i]; Y[T.cast(k, 'int32')] += X[i]",
    # Nothing lies outside of a tensor
    "Y[i + 64] = Y[i]",
)


def compiled(statements, path):
    """The program whose iterations do some statements."""
    axes = (", j", ", 64") if "j" in statements else ("", "")
    head, colon, rest = statements.partition(": ") if ":" in statements else ("", "", statements)
    lines = rest.split("; ")
    body = [f"{head}:", *(f"    {line}" for line in lines)] if colon else lines
    source = PROGRAM.format(
        more=axes[0], extents=axes[1], body=textwrap.indent("\n".join(body), " " * 12)
    )
    (path / "program.py").write_text(source)
    spec = importlib.util.spec_from_file_location("program", path / "program.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.program


@pytest.mark.parametrize("statements", RIGHT)
def test_iterations_that_do_not(statements, tmp_path):
    check(compiled(statements, tmp_path), "llvm")
