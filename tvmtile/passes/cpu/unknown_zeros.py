"""Zeros that LLVM does not know: added to operands of arithmetic that it must not fold."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from tvmtile.codegen.llvm_integers import unknown_zero
from tvmtile.ir.kernels import Launch, importing_llvm, with_body, with_kernels, with_launch_body
from tvmtile.ir.rewriting import seq


class Zeros:
    """The zeros that a kernel uses, one a dtype, and the functions of LLVM that give them."""

    def __init__(self) -> None:
        self._binds: dict[str, tirx.Bind] = {}
        self.texts: list[str] = []

    def of(self, dtype: str) -> ir.Var:
        """The zero of an integer's dtype."""
        if dtype not in self._binds:
            name, text = unknown_zero(dtype)
            self._binds[dtype] = tirx.Bind(tirx.Var("zero", dtype), tirx.call_extern(dtype, name))
            self.texts.append(text)
        return self._binds[dtype].var

    def bound_in(self, kernel: tirx.For) -> tirx.For:
        """The kernel, with the zeros bound in front of its body."""
        if not self._binds:
            return kernel
        return with_launch_body(kernel, seq([*self._binds.values(), Launch(kernel).body]))


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
        texts.extend(zeros.texts)
        return zeros.bound_in(with_launch_body(kernel, body))

    rewritten = with_kernels(func, visit)
    return with_body(rewritten, importing_llvm(rewritten.body, texts))
