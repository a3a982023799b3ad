"""Tile programs as members of an `@I.ir_module` class, beside functions that TVM's parser reads.

Python runs the body of the class before TVM sees it, so a `T.prim_func` in it is traced then, as it
is anywhere. TVM's decorator goes on to interpret the text of the class and asks, for each function,
the parser that its decorator's `dispatch_token` names: ours hands over the traced program.

The program travels to that parser with the function's annotations, which TVM collects from the
members of a class; `return` is free there, since a kernel has no return annotation of its own.
"""

from __future__ import annotations

import linecache
import types
from collections.abc import Callable
from typing import Any

from tvm import ir, tirx
from tvm.script.ir_builder import ir as module_builder

from tvmtile._tvm import parser_method, parser_method_of

DISPATCH_TOKEN = "tvmtile"
_TVM_TOKEN = "tirx"


def is_module_body(frame: types.FrameType) -> bool:
    """Tell whether a frame runs the body of a class under `@I.ir_module`."""
    if "__qualname__" not in frame.f_locals or "__module__" not in frame.f_locals:
        return False
    number = frame.f_code.co_firstlineno  # that of the first decorator
    while line := linecache.getline(frame.f_code.co_filename, number).strip():
        if not line.startswith("@"):
            return False
        if "ir_module" in line:
            return True
        number += 1
    return False


def as_member(func: Callable[..., object], program: tirx.PrimFunc) -> Callable[..., object]:
    """What stands in the class for a program until TVM's decorator reads the class."""
    func.__annotations__["return"] = program
    return func


def _program_of(parser: Any, name: str) -> tirx.PrimFunc | None:
    """The traced program; None where the parser reads text alone, without Python's functions."""
    program = (parser.function_annotations or {}).get(name, {}).get("return")
    return program if isinstance(program, tirx.PrimFunc) else None


@parser_method(DISPATCH_TOKEN, "tvm_declare_function")
def _declare(parser: Any, node: Any) -> ir.GlobalVar:
    program = _program_of(parser, node.name)
    if program is None:
        return parser_method_of(_TVM_TOKEN, "tvm_declare_function")(parser, node)
    return module_builder.decl_function(node.name, program)


@parser_method(DISPATCH_TOKEN, "FunctionDef")
def _define(parser: Any, node: Any) -> None:
    program = _program_of(parser, node.name)
    if program is None:
        parser_method_of(_TVM_TOKEN, "FunctionDef")(parser, node)
        return
    module_builder.def_function(node.name, program)
