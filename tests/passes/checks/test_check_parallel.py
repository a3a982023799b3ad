"""Iterations of T.Parallel that exchange elements are refused; what is right, or not known, is not."""

from __future__ import annotations

import importlib.util
import textwrap

import pytest

from tvmtile.errors import DataRace
from tvmtile.pipeline import check

TARGETS = ("llvm", "metal", {"kind": "cuda", "arch": "sm_80"})
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

RACES = {
    "s[i] = s[63 - i]": "iteration i=63 writes s[63], which iteration i=0 reads",
    "Y[i] = Y[63 - i]": "iteration i=63 writes Y[63], which iteration i=0 reads",
    "f[i] = f[63 - i]": "iteration i=63 writes f[63], which iteration i=0 reads",
    "Y[0] += X[i]": "iteration i=0 writes Y[0], which iteration i=1 reads",
    "Y[bx] += X[i]": "iteration i=0 writes Y[0], which iteration i=1 reads",
    "Y[n] += X[i]": "iteration i=0 writes Y[n + 0], which iteration i=1 reads",
    "s[i] = T.if_then_else(i > 0, s[i - 1], 0.0)": "writes s[0], which iteration i=1 reads",
    "s[i] = X[i]; Y[i] = s[63 - i]": "iteration i=63 writes s[63], which iteration i=0 reads",
    "if i < 2: Y[0] += X[i]": "iteration i=0 writes Y[0]",
    "if bx * 64 + i < 100: Y[bx] += 1": "iteration i=0 writes Y[0]",
    "for k in T.serial(8): Y[k] += X[i]": "iteration i=0 writes Y[0]",
    "Y[0] = X[i]": "iteration i=1 and iteration i=0 write different values to Y[0]",
    "s[i // 2] = i": "iteration i=1 and iteration i=0 write different values to s[0]",
    "k = i % 2; s[k] = X[i]": "iteration i=2 and iteration i=0 write different values to s[0]",
    "s[i] += Z[i, j]": "iteration i=0, j=0 writes s[0], which iteration i=0, j=1 reads",
    "v += X[i]": "an iteration of T.Parallel reads what another one has left in v[1] float32",
}
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


@pytest.mark.parametrize("statements", RACES)
def test_iterations_that_exchange_elements(statements, tmp_path):
    program = compiled(statements, tmp_path)
    for target in TARGETS:
        with pytest.raises(DataRace) as error:
            check(program, target)
        assert RACES[statements] in error.value.message
        assert error.value.location.text in statements


@pytest.mark.parametrize("statements", RIGHT)
def test_iterations_that_do_not(statements, tmp_path):
    check(compiled(statements, tmp_path), "llvm")


def test_a_race_of_large_loops_is_seen(tmp_path):
    program = compiled("Z[i, j] = Z[i, 63 - j]", tmp_path)
    with pytest.raises(DataRace, match=r"j=63 writes Z\[0, 63\], which iteration i=0, j=0 reads"):
        check(program, "llvm")
