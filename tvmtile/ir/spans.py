"""The user's lines in TIR: every tile operator, store and kernel carries its own."""

from __future__ import annotations

from typing import Any

from tvm import ir

from tvmtile.errors import SourceLocation, user_location

__all__ = ["current_span", "location_of"]


def current_span() -> ir.Span | None:
    """The line of the user's that is being executed, as a TVM span."""
    location = user_location()
    if location is None:
        return None
    return ir.Span(ir.SourceName(location.file), location.line, location.line, 1, 1)


def location_of(node: Any) -> SourceLocation | None:
    """The user's line that a node carries, if any."""
    span = getattr(node, "span", None)
    if isinstance(span, ir.Span):
        return SourceLocation(str(span.source_name.name), int(span.line))
    return None
