"""Alignment of a signature's tensors in memory: what is assumed, and the version without.

A tensor begins at a multiple of its `data_alignment`, 64 bytes by TVM's default. That decides what may
be moved at once; `CheckAlignment` has the host check what was made use of. The version of a program for
other tensors has the size of an element there: it has no tensor maps of these, which a tensor without
elements lacks too.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, is_buffer_var, mapped
from tvmtile.ir.operands import bits_of
from tvmtile.ir.rewriting import retyped, statements_in, variables_of
from tvmtile.ir.scopes import is_global

WIDEST = 16
"""Bytes: no instruction needs a tensor to begin at a multiple of more."""

BEGINNING = f"begin at a multiple of {WIDEST} bytes"
ELEMENTS = "have elements"
"""The demand on a tensor, for its vectors and boxes."""

_FAILURE = re.compile(
    rf"(\w+) must (?:({ELEMENTS})|begin at a multiple of (?:2|4|8|{WIDEST}) bytes)"
)


def failure_of(name: str, alignment: int) -> str:
    """The message where a tensor does not begin at a multiple of so many bytes."""
    return f"{name} must begin at a multiple of {alignment} bytes"


def failure_without_elements(name: str) -> str:
    """The message where a tensor has no elements that boxes could be copied from or to."""
    return f"{name} must {ELEMENTS}"


def failed_tensor(message: str) -> tuple[str, str] | None:
    """The tensor that such a message names, and what it must do."""
    found = _FAILURE.search(message)
    return (found.group(1), found.group(2) or BEGINNING) if found else None


def unaligned(func: tirx.PrimFunc, names: Collection[str]) -> tirx.PrimFunc:
    """A program of whose named parameters no more is assumed than their dtypes demand.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        The program.
    names : collection of str
        Tensors, and pointers to some.
    """
    chosen = [param for param in func.params if param.name in names]
    placed = {
        tensor: retyped(tensor, data_alignment=alignment)
        for tensor, alignment in least_alignments(func, chosen).items()
    }
    body = mapped(func.body, (ir.Var, lambda var: placed.get(var, var)))
    params = [placed.get(param, param) for param in func.params]
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs, func.span)


def least_alignments(func: tirx.PrimFunc, params: Collection[ir.Var]) -> dict[ir.Var, int]:
    """The alignments that the dtypes of some parameters demand, and those of their views."""
    alignments = {param: itemsize(param) for param in params if is_buffer_var(param)}
    pointers = [param for param in params if not is_buffer_var(param)]
    for view in statements_in(func.body, tirx.DeclBuffer):
        if not is_global(buffer_of(view)):
            continue
        used = set(variables_of(view.data))
        viewed = [known for tensor, known in alignments.items() if tensor in used]
        if viewed or not used.isdisjoint(pointers):
            alignments[buffer_of(view)] = min([itemsize(buffer_of(view)), *viewed])
    return alignments


def origins(func: tirx.PrimFunc) -> dict[ir.Var, tuple[ir.Var, int]]:
    """The parameter at whose address a tensor begins, and a number of which that is a multiple."""
    unknown = 2 * WIDEST
    found = {p: (p, int(p.ty.data_alignment) if is_buffer_var(p) else unknown) for p in func.params}
    for view in statements_in(func.body, tirx.DeclBuffer):
        if not is_global(buffer_of(view)):
            continue
        used = set(variables_of(view.data))
        known = next((found[var] for var in found if var in used), None)
        if known is not None:
            root, assumed = known
            found[buffer_of(view)] = root, min(assumed, int(buffer_of(view).ty.data_alignment))
    return found


def itemsize(buffer: ir.Var) -> int:
    """Bytes of an element."""
    return max(1, bits_of(buffer) // 8)
