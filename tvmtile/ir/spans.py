"""The user's lines in TIR: every tile operator, store and kernel carries its own."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import walk
from tvmtile.errors import SourceLocation, user_location


def current_span() -> ir.Span | None:
    """The line of the user's that is being executed, as a TVM span."""
    location = user_location()
    if location is None:
        return None
    return ir.Span(ir.SourceName(location.file), location.line, location.line, 1, 1)


def location_of(node: ir.Node) -> SourceLocation | None:
    """The user's line that a node carries, if any."""
    span = getattr(node, "span", None)
    if isinstance(span, ir.Span):
        return SourceLocation(str(span.source_name.name), int(span.line))
    return None


def span_within(stmt: tirx.Stmt) -> ir.Span | None:
    """The span of the first node in a statement that has one."""
    found: list[ir.Span] = []

    def look(node: ir.Node) -> Any:
        span = getattr(node, "span", None)
        if not isinstance(span, ir.Span):
            return None
        found.append(span)
        return tvm_ffi.VisitInterrupt(True)

    walk(stmt, (Any, look), order="pre")
    return found[0] if found else None


def first_location(stmt: tirx.Stmt) -> SourceLocation | None:
    """The user's line of the first node in a statement that carries one."""
    span = span_within(stmt)
    return None if span is None else SourceLocation(str(span.source_name.name), int(span.line))
