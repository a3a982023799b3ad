"""Aliases: the buffers of a program that are names of one memory."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, is_buffer_var, nodes_in
from tvmtile.ir.calls import op_name
from tvmtile.ir.operands import literal
from tvmtile.ir.rewriting import statements_in

MAY_SHARE = "tvmtile.may_share"
"""The operator of `may_share`."""


def may_share(tensor: ir.Var, other: ir.Var) -> ir.Call:
    """The pointer of a tensor, of whose memory nobody knows whether and where it is another one's too.

    A buffer that is declared on it is a view of the other one.
    """
    args = [other.data, tensor.data]
    return ir.Call(MAY_SHARE, args, ret_ty=tensor.data.ty)


class Start(NamedTuple):
    """The place in memory at which a buffer begins."""

    buffer: ir.Var
    """The root, or a view that begins somewhere inside it."""
    offset: int
    """The bytes from the first element of that buffer."""


class Aliases:
    """The views of a statement: buffers declared on the memory of others.

    They are declared in the statement; without one, `add` is told of each before it is used.

    Attributes
    ----------
    views : dict of Var to DeclBuffer
        The declarations of the views, in program order.
    """

    def __init__(self, stmt: tirx.Stmt | None = None) -> None:
        self.views: dict[ir.Var, tirx.DeclBuffer] = {}
        self._sources: dict[ir.Var, ir.Var] = {}
        self._roots: dict[int, ir.Var] = {}  # by address: variables are slow to compare
        if stmt is not None:
            for view in statements_in(stmt, tirx.DeclBuffer):
                self.add(view)

    def add(self, view: tirx.DeclBuffer) -> None:
        """Take in the declaration of a view."""
        self.views[buffer_of(view)] = view
        source = _source_of(view.data)
        if source is not None:
            self._sources[buffer_of(view)] = source
            self._roots[hash(buffer_of(view))] = self.root(source)

    def root(self, buffer: ir.Var) -> ir.Var:
        """The buffer whose memory a buffer names: itself, unless it is a view."""
        return self._roots.get(hash(buffer), buffer)

    def views_of(self, buffer: ir.Var) -> list[ir.Var]:
        """The views of a buffer that is none."""
        roots = ((view, self._roots.get(hash(view))) for view in self.views)
        return [view for view, root in roots if root is not None and root.same_as(buffer)]

    @cached_property
    def aliased(self) -> set[ir.Var]:
        """The buffers whose memory has another name: the views, and what they are views of."""
        return {*self.views, *self._sources.values()}

    def start(self, buffer: ir.Var) -> Start | None:
        """The start of a buffer, counted from the root, or from a view whose place in it is not known.

        None where the place at which a view begins may vary, between threads or iterations.
        """
        start, offset = None, 0
        while buffer in self._sources:
            source, data = self._sources[buffer], self.views[buffer].data
            distance = _bytes_from(source, data)
            if distance is None and not _is_fixed(data):
                return None
            if start is None and distance is None:
                start = Start(buffer, offset)
            offset += distance or 0
            buffer = source
        return Start(buffer, offset) if start is None else start


def _source_of(data: ir.Expr) -> ir.Var | None:
    """The buffer that a pointer is made from, or may point into."""
    return next(filter(is_buffer_var, nodes_in(data, ir.Var)), None)


def _bytes_from(buffer: ir.Var, data: Any) -> int | None:
    """The bytes from the start of a buffer to where a pointer points; None where that is not known."""
    if op_name(data) == "tirx.ptr_byte_offset":
        offset, distance = literal(data.args[1]), _bytes_from(buffer, data.args[0])
        return None if offset is None or distance is None else distance + offset
    if op_name(data) == "tirx.buffer_data":
        data = data.args[0]
    return 0 if data.same_as(buffer) else None


def _is_fixed(data: ir.Expr) -> bool:
    """Tell whether a pointer into a buffer is the same one everywhere: it names the buffer only."""
    return len(nodes_in(data, ir.Var)) == 1
