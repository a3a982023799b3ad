"""Zeros that are opaque to LLVM, for what it must not fold."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from tvmtile.codegen.llvm_integers import unknown_zero
from tvmtile.ir.kernels import Launch, importing_llvm, with_body, with_kernels, with_launch_body
from tvmtile.ir.rewriting import seq


class Zeros:
    """The zeros that a kernel uses, one a dtype."""

    def __init__(self) -> None:
        self.binds: dict[str, tirx.Bind] = {}

    def of(self, dtype: str) -> ir.Var:
        """The zero of an integer's dtype."""
        if dtype not in self.binds:
            name, _ = unknown_zero(dtype)
            call = tirx.call_extern(dtype, name)
            self.binds[dtype] = tirx.Bind(tirx.Var("zero", dtype), call)
        return self.binds[dtype].var


def with_unknown_zeros(
    func: tirx.PrimFunc, rewrite: Callable[[tirx.Stmt, Zeros], tirx.Stmt]
) -> tirx.PrimFunc:
    """A copy of a function with the body of each of its kernels rewritten.

    The zeros that `rewrite` asks for are bound in front of the body.
    """
    texts: list[str] = []

    def visit(kernel: tirx.For) -> tirx.For:
        zeros = Zeros()
        body = rewrite(Launch(kernel).body, zeros)
        texts.extend(unknown_zero(dtype)[1] for dtype in zeros.binds)
        return with_launch_body(kernel, seq([*zeros.binds.values(), body]))

    rewritten = with_kernels(func, visit)
    return with_body(rewritten, importing_llvm(rewritten.body, texts))
