"""The decorators `T.prim_func` and `T.macro`, and tile programs in modules of TVMScript.

In an `@I.ir_module` class Python runs the body before TVM sees it, so a `T.prim_func` in it is traced
then, as it is anywhere. TVM's decorator goes on to interpret the text of the class and asks, for each
function, the parser that its decorator's `dispatch_token` names: ours hands over the traced program.
The program travels to that parser with the function's annotations, which TVM collects from the
members of a class; `return` is free there, since a kernel has no return annotation of its own.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from tvm import ir, tirx
from tvm.script.ir_builder import ir as module_builder
from tvm.tirx.script import builder as T

from tvmtile._tvm import IRBuilder, is_buffer_var, parser_method, parser_method_of, view_of
from tvmtile.errors import (
    ArgumentError,
    InvalidValue,
    NestingError,
    SourceLocation,
    SyntaxNotSupported,
    TileError,
    UndefinedName,
    UnsupportedDtype,
    hide_internal_frames,
)
from tvmtile.frontend.dtypes import DType
from tvmtile.frontend.expressions import Reference, is_variable
from tvmtile.frontend.parameters import Parameters
from tvmtile.frontend.program import completed
from tvmtile.frontend.proxy import Ref
from tvmtile.frontend.rewrite import traced
from tvmtile.frontend.syntax import parameter_location, parse_definition
from tvmtile.frontend.tracer import Tracer, current_tracer
from tvmtile.frontend.translate import translate_errors

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
    """A stand-in for a program in a class, until TVM's decorator reads the class."""
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


@hide_internal_frames
def prim_func(
    func: Callable[..., object] | None = None, *, private: bool = False, **_tvm_options: object
) -> Any:
    """Decorate a kernel: the function is traced and becomes a `tvm.tirx.PrimFunc`.

    Parameters
    ----------
    func : callable
        Its parameters are annotated: `T.Tensor(shape, dtype)`, a scalar dtype such as `T.int32`,
        `T.handle`, or a buffer. An annotation may also be a statement of the body.
    private : bool
        Leave out the global symbol, as a function of an IRModule that only others call.

    Returns
    -------
    tvm.tirx.PrimFunc
        A tile program. Tensors made by `T.empty` are parameters at the end, marked as outputs.

    Raises
    ------
    TileError
        For every mistake that can be seen in the program itself.
    """
    caller = sys._getframe(2)  # above hide_internal_frames
    if func is not None:
        return _prim_func(func, caller=caller, private=private)

    def decorate(function: Callable[..., object]) -> Any:
        return _prim_func(function, caller=caller, private=private)

    decorator = hide_internal_frames(decorate)
    decorator.dispatch_token = DISPATCH_TOKEN  # type: ignore[attr-defined]
    return decorator


# TVM's parser, which reads the text of `@I.ir_module` classes, looks for this mark.
prim_func.dispatch_token = DISPATCH_TOKEN  # type: ignore[attr-defined]


def _prim_func(func: Callable[..., object], caller: types.FrameType, private: bool) -> Any:
    program = _program(func, caller.f_locals, private)
    return as_member(func, program) if is_module_body(caller) else program


def _program(
    func: Callable[..., object], scope: Mapping[str, object], private: bool
) -> tirx.PrimFunc:
    annotations = resolve_annotations(func, scope)
    return trace_prim_func(func, annotations, private)


def trace_prim_func(
    func: Callable[..., object], annotations: Mapping[str, object], private: bool = False
) -> tirx.PrimFunc:
    """Trace `func` with its parameters as described by `annotations`."""
    parameters = Parameters(func)
    tracer = Tracer(parameters)
    with IRBuilder() as builder, tracer.activate(), T.prim_func(private):
        T.func_name(func.__name__)
        arguments = {
            name: _declared(func, parameters, name, annotations[name])
            if name in annotations
            else parameters.undeclared(name)
            for name in inspect.signature(func).parameters
        }
        trace_body(func, tracer, arguments)
    parameters.require_all()
    return completed(parameters.in_order(builder.get()), tracer)


def trace_body(func: Callable[..., object], tracer: Tracer, arguments: dict[str, Any]) -> None:
    """Write the statements of a kernel down.

    Raises
    ------
    SyntaxNotSupported
        If it is a generator, whose body nothing would run.
    """
    if inspect.isgeneratorfunction(func):
        yields = (ast.Yield, ast.YieldFrom)
        lines = [
            node.lineno
            for node in ast.walk(parse_definition(func.__code__))
            if isinstance(node, yields)
        ]
        raise SyntaxNotSupported(
            "a kernel with `yield` is a generator, which Python does not run",
            help="store results in a tensor; a generator that the kernel loops over is a function "
            "of its own",
            location=SourceLocation(func.__code__.co_filename, min(lines)),
        )
    with tracer.call(), translate_errors():
        traced(func, tracer)(**arguments)


def _declared(func: Callable[..., object], parameters: Parameters, name: str, note: object) -> Any:
    try:
        return parameters.declare(name, note)
    except (SyntaxNotSupported, UnsupportedDtype) as error:
        error.location = parameter_location(func.__code__, name)
        raise


def resolve_annotations(
    func: Callable[..., object], scope: Mapping[str, object]
) -> dict[str, object]:
    """Evaluate a function's annotations, which may be strings (`from __future__ import ...`)."""
    closure = {}
    for name, cell in zip(func.__code__.co_freevars, func.__closure__ or (), strict=True):
        try:
            closure[name] = cell.cell_contents
        except ValueError:  # a name that is bound later
            continue
    names = {**scope, **closure}
    resolved = {}
    for parameter, annotation in func.__annotations__.items():
        if isinstance(annotation, str) and not isinstance(annotation, DType):
            resolved[parameter] = _evaluated(func, parameter, annotation, names)
        else:
            resolved[parameter] = annotation
    return resolved


def _evaluated(func: Callable[..., object], parameter: str, annotation: str, names: Any) -> Any:
    try:
        return eval(annotation, func.__globals__, names)
    except NameError as error:
        raise UndefinedName(
            f"{error.name!r}, in the annotation of {parameter!r}, is not defined",
            help="define it before the kernel",
            location=parameter_location(func.__code__, parameter),
        ) from error
    except TileError as error:
        error.location = parameter_location(func.__code__, parameter)
        raise error.with_traceback(None) from None


class Macro:
    """A piece of a kernel, traced in place wherever it is called. Made by `T.macro`."""

    def __init__(self, func: Callable[..., object], annotations: Mapping[str, object]) -> None:
        functools.update_wrapper(self, func)
        self.func = func
        self._signature = inspect.signature(func)
        self._references = {
            name
            for name, annotation in annotations.items()
            if annotation is Ref or annotation is tirx.Var
        }

    def __get__(self, instance: object, owner: object = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: object) -> Any:
        tracer = current_tracer()
        if tracer is None:
            raise NestingError(
                f"the macro {self.func.__name__} is called outside a kernel",
                help="call it in a function under @T.prim_func or @tvmtile.jit",
            )
        bound = self._bind(args, kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            bound.arguments[name] = self._argument(tracer, name, value)
        with tracer.call():
            return traced(self.func, tracer)(*bound.args, **bound.kwargs)

    def _bind(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(
                f"the macro {self.func.__name__}: {error}",
                help=f"its parameters are {self._signature}",
            ) from None

    def _argument(self, tracer: Tracer, name: str, value: object) -> Any:
        """Values are passed as Python passes numbers; `T.Ref` parameters are passed by reference."""
        if name in self._references:
            return self._reference(name, value)
        if ir.is_prim_expr(value) and not is_buffer_var(value):
            return tracer._bind(name, value)
        return value

    def _reference(self, name: str, value: object) -> Any:
        if is_variable(value):
            return value
        if isinstance(value, ir.TensorLoad):
            return view_of(value, Reference)
        raise InvalidValue(
            f"{self.func.__name__}: {name} is passed by reference; {value!r} is nothing to store into",
            help="pass a variable made by T.alloc_var, or an element of a buffer",
        )


def macro(func: Callable[..., object] | None = None, **_tvm_options: object) -> Any:
    """Decorate a function whose statements are traced in place when a kernel calls it.

    It may take buffers, regions, values and Python objects, and may return a value. A parameter
    annotated `T.Ref` is passed by reference: storing into it stores into the caller's element.

    Examples
    --------
    ```
    @T.macro
    def relu(tile):
        for i, j in T.Parallel(*tile.shape):
            tile[i, j] = T.max(tile[i, j], 0)
    ```
    """
    if func is None:
        return macro
    try:
        annotations = resolve_annotations(func, sys._getframe(1).f_locals)
    except TileError:
        annotations = {}  # annotations of a macro are hints; only T.Ref has a meaning
    return Macro(func, annotations)
