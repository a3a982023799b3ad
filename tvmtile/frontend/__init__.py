"""A Python function becomes a `tirx.PrimFunc`: rewrite it once, run it, record what it does.

`rewrite` turns the statements of a kernel (`if`, `for`, assignments, ...) into calls of a `Tracer`;
`tracer` gives those calls their meaning on TVM's IRBuilder; `entry` holds the decorators. The kernel
runs as ordinary Python, so closures, helper functions, comprehensions and compile-time values work
as they do anywhere, and a traceback shows the user's own lines.

TVMScript's own parser interprets the syntax tree instead. It stays the reader of printed programs
(`tvm.script.from_source`); tracing is 20 times faster and has Python's scoping rules.
"""

from tvmtile.frontend.entry import macro, prim_func

__all__ = ["macro", "prim_func"]
