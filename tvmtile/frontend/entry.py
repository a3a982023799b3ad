"""The decorators `T.prim_func` and `T.macro`."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from tvm import ir, tirx
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.script import builder as T

from tvmtile._tvm import IRBuilder, buffer_of, is_buffer_var, mapped, walk
from tvmtile.errors import (
    ArgumentError,
    InvalidOperand,
    InvalidValue,
    NestingError,
    SourceLocation,
    SyntaxNotSupported,
    TileError,
    UndefinedName,
    UnsupportedDtype,
    hide_internal_frames,
)
from tvmtile.frontend.bindings import with_launch
from tvmtile.frontend.dtypes import DType
from tvmtile.frontend.large import with_named_parts
from tvmtile.frontend.module import DISPATCH_TOKEN, as_member, is_module_body
from tvmtile.frontend.parameters import Parameters
from tvmtile.frontend.reached import reached
from tvmtile.frontend.rewrite import traced
from tvmtile.frontend.source import parameter_location, parse_definition
from tvmtile.frontend.tracer import Tracer, current_tracer
from tvmtile.frontend.translate import translate_errors
from tvmtile.frontend.variables import Ref, Reference, is_scalar_variable
from tvmtile.ir.rewriting import mentions, replace_loop
from tvmtile.ir.spans import location_of

OUT_IDX_ATTR = "tvmtile.out_idx"

# What Relax and dlight look at: a tile program is opaque to fusion (OpPatternKind::kOpaque of TVM's
# relax/op_attr_types.h), and its schedule is its own.
_FOR_SCHEDULERS = {"op_pattern": 8, "tirx.is_scheduled": True}


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


def completed(func: tirx.PrimFunc, tracer: Tracer) -> tirx.PrimFunc:
    """The program with what only the tracer knows: where its kernels stand, and what it returns."""
    located = with_named_parts(reached(_with_locations(func, tracer)), tracer.sizes)
    _check_variables(located)
    for name, value in {**_FOR_SCHEDULERS, **tracer.attributes}.items():
        located = located.with_attr(name, value)
    return _with_outputs(located, tracer)


def _check_variables(func: tirx.PrimFunc) -> None:
    """Refuse a dynamic extent that no parameter gives."""
    given = [
        expression
        for param in func.params
        if is_buffer_var(param)
        for expression in (*param.ty.shape, *param.ty.strides, param.ty.elem_offset)
    ]
    for variable in undefined_vars(func.body, list(func.params)):
        is_given = any(mentions(expression, variable) for expression in given)
        if not is_given and not is_buffer_var(variable):
            raise InvalidOperand(
                f"no parameter of the kernel gives {variable.name}",
                help="a T.dynamic extent is the extent of a tensor parameter; pass other values as "
                "parameters, e.g. `n: T.int32`",
                location=_first_use(func, variable),
            )


def _first_use(func: tirx.PrimFunc, variable: ir.Var) -> SourceLocation | None:
    nodes: list[Any] = []
    kinds = (ir.TensorLoad, ir.Call, tirx.BufferStore, tirx.For)
    walk(func.body, (kinds, nodes.append))  # what is inside comes first
    uses = (node for node in nodes if mentions(node, variable))
    return next(filter(None, map(location_of, uses)), None)


def _with_locations(func: tirx.PrimFunc, tracer: Tracer) -> tirx.PrimFunc:
    """Give kernels their launch, and what TVM's builder leaves without one its line."""
    from tvmtile.ir.annotations import KERNEL_ANNOTATION
    from tvmtile.ir.options import with_options

    spans, options = iter(tracer.kernel_spans), iter(tracer.kernel_options)
    assertions = iter(tracer.assertion_spans)

    def locate(loop: tirx.For) -> tirx.Stmt:
        if KERNEL_ANNOTATION not in loop.annotations:
            return loop
        located = with_options(replace_loop(loop, span=next(spans)), next(options))
        bound = tracer.launches.get(loop.loop_var)
        return located if bound is None else with_launch(located, bound)

    def locate_allocation(node: tirx.AllocBuffer) -> tirx.AllocBuffer:
        span = tracer.name_spans.get(buffer_of(node))
        return node if span is None else tirx.AllocBuffer(buffer_of(node), node.annotations, span)

    def locate_bind(node: tirx.Bind) -> tirx.Bind:
        span = tracer.name_spans.get(node.var)
        return node if span is None else tirx.Bind(node.var, node.value, span)

    def locate_assertion(node: tirx.AssertStmt) -> tirx.AssertStmt:
        span = next(assertions, None)
        return tirx.AssertStmt(node.condition, node.error_kind, node.message_parts, span)

    located = mapped(
        func.body,
        (tirx.For, locate),
        (tirx.AllocBuffer, locate_allocation),
        (tirx.Bind, locate_bind),
        (tirx.AssertStmt, locate_assertion),
    )
    return func.with_body(located)


def _with_outputs(func: tirx.PrimFunc, tracer: Tracer) -> tirx.PrimFunc:
    """Record which parameters are tensors that the kernel returns."""
    if not tracer.outputs:
        return func
    if len(tracer.returned) != len(tracer.outputs):
        names = ", ".join(str(output.name) for output in tracer.outputs)
        raise SyntaxNotSupported(
            f"not every tensor made by T.empty is returned: {names}",
            help="return them all, in the order in which the caller wants them",
        )
    params = list(func.params)
    positions = [
        next(i for i, p in enumerate(params) if p.same_as(output)) for output in tracer.returned
    ]
    return func.with_attr(OUT_IDX_ATTR, positions)


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
        self._func = func
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
                f"the macro {self._func.__name__} is called outside a kernel",
                help="call it in a function under @T.prim_func or @tvmtile.jit",
            )
        bound = self._bind(args, kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            bound.arguments[name] = self._argument(tracer, name, value)
        with tracer.call():
            return traced(self._func, tracer)(*bound.args, **bound.kwargs)

    def _bind(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(
                f"the macro {self._func.__name__}: {error}",
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
        if isinstance(value, Reference) or is_scalar_variable(value):
            return value
        if isinstance(value, ir.TensorLoad):
            return Reference(value)
        raise InvalidValue(
            f"{self._func.__name__}: {name} is passed by reference; {value!r} is nothing to store into",
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
