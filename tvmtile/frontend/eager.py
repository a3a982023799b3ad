"""The eager style: a kernel whose parameters are described in its body and bound at the call.

```
@tvmtile.jit
def matmul(A, B, block=128):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.float16)
    B: T.Tensor((K, N), T.float16)
    C = T.empty((M, N), T.float16)
    with T.Kernel(...) as (bx, by):
        ...
    return C
```

The function is traced twice. The first look ends when every tensor has been described: it finds which
extent of which argument gives each constant. The second one, with the constants known, is the kernel.
"""

from __future__ import annotations

import dis
import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import IRBuilder, traced
from tvmtile.errors import ArgumentError, SyntaxNotSupported, is_internal
from tvmtile.frontend.dtypes import DType
from tvmtile.frontend.entry import Macro, resolve_annotations, trace_body
from tvmtile.frontend.parameters import Parameters, TensorSpec, as_parameter, is_run_time
from tvmtile.frontend.program import completed
from tvmtile.frontend.tracer import Tracer
from tvmtile.ir.packed import FLOAT4
from tvmtile.library import strides_of

_STATE = threading.local()


def current_eager() -> _Look | None:
    """The eager function that this thread is tracing, or None."""
    return getattr(_STATE, "look", None)


class _DescriptionDone(BaseException):
    pass


class _Descriptions:
    """Collects the descriptions of tensors, and ends the first look with the last one."""

    def __init__(
        self, specs: dict[str, Any], missing: set[str], constants: Mapping[str, Any]
    ) -> None:
        self._specs, self._missing, self._constants = specs, missing, constants

    def __contains__(self, name: str) -> bool:
        return name in self._missing or name in self._constants

    def declare(self, name: str, annotation: Any) -> Any:
        _check_is_tensor(name, annotation, self._constants)
        if name not in self._missing:
            return traced(as_parameter(name, annotation))
        self._specs[name] = annotation
        self._missing.discard(name)
        if not self._missing:
            raise _DescriptionDone
        return traced(as_parameter(name, annotation))


class _Given(Parameters):
    """The parameters of a kernel, of which some were given as constants."""

    def __init__(self, func: Callable[..., Any], constants: Mapping[str, Any]) -> None:
        super().__init__(func)
        self._constants = constants

    def declare(self, name: str, annotation: Any) -> Any:
        _check_is_tensor(name, annotation, self._constants)
        return super().declare(name, annotation)


def _check_is_tensor(name: str, annotation: Any, constants: Mapping[str, Any]) -> None:
    """Refuse a list or a number for what the kernel describes as a tensor."""
    if name in constants and isinstance(annotation, TensorSpec):
        given = constants[name]
        shown = f"the {type(given).__name__} {given!r:.40}"
        raise ArgumentError(
            f"{name} is a tensor of {annotation.dtype}; it got {shown}",
            help=f"pass a tensor, e.g. `torch.tensor({name})`"
            if isinstance(given, list | tuple)
            else "pass a tensor",
        )


class _Look:
    """One trace of an eager function; `constant` answers `T.const`."""

    def __init__(self, values: Mapping[str, int] | None) -> None:
        self.variables: dict[str, ir.Var] = {}
        self._values = values

    def constant(self, name: str, dtype: DType) -> Any:
        if self._values is not None and name in self._values:
            return self._values[name]
        # Where no tensor gave it a value, the description of a parameter says which one should have.
        return self.variables.setdefault(name, tirx.Var(name, str(dtype)))

    def __enter__(self) -> _Look:
        _STATE.look = self
        return self

    def __exit__(self, *_: object) -> None:
        _STATE.look = None


class EagerFunction:
    """A function in the eager style.

    Parameters
    ----------
    func : callable
        Its tensor parameters are described by `A: T.Tensor(...)` in the body or the signature; the
        others are constants of the kernel, or run-time scalars where they are annotated with a dtype.
    scope : mapping
        Names around the definition, for annotations that are strings.

    Attributes
    ----------
    annotations : dict of str to TensorSpec, DType or pointer
        What the signature says of tensors, scalars of the run and pointers.
    """

    def __init__(self, func: Callable[..., Any], scope: Mapping[str, Any]) -> None:
        self.func = func
        self.signature = inspect.signature(func)
        self.annotations = {
            name: annotation
            for name, annotation in resolve_annotations(func, scope).items()
            if name in self.signature.parameters and is_run_time(annotation)
        }

    def describe(self, constants: Mapping[str, Any], tensors: set[str]) -> Description:
        """Look at the function once, with `constants` given and `tensors` the names of the rest."""
        specs: dict[str, Any] = dict(self.annotations)
        missing = tensors - specs.keys()
        if not missing:
            return Description(specs, {})

        def kernel_begins() -> None:
            raise SyntaxNotSupported(
                f"the parameter {min(missing)!r} is given a tensor but has no description",
                help=f"write `{min(missing)}: T.Tensor((M, N), T.float16)` before T.Kernel",
            )

        tracer = Tracer(_Descriptions(specs, missing, constants), on_kernel=kernel_begins)
        with _Look(None) as look:
            try:
                self._trace(tracer, {**constants, **dict.fromkeys(tensors)})
            except _DescriptionDone:
                pass
            else:
                kernel_begins()
            return Description(specs, look.variables)

    def build(
        self, constants: Mapping[str, Any], specs: Mapping[str, Any], values: Mapping[str, int]
    ) -> tirx.PrimFunc:
        """Trace the kernel with every constant known."""
        parameters = _Given(self.func, constants)
        with _Look(values):
            tracer = Tracer(parameters)
            func = self._trace(tracer, dict(constants), parameters, specs)
        return completed(parameters.in_order(func), tracer)

    def _trace(
        self,
        tracer: Tracer,
        arguments: dict[str, Any],
        parameters: Parameters | None = None,
        specs: Mapping[str, Any] | None = None,
    ) -> tirx.PrimFunc:
        with IRBuilder() as builder, tracer.activate(), T.prim_func():
            T.func_name(self.func.__name__)
            for name, annotation in self.annotations.items():
                if parameters is not None:
                    arguments[name] = parameters.declare(name, annotation)
            for name in specs or ():
                arguments.setdefault(name, None)
            trace_body(self.func, tracer, arguments)
        return builder.get()


class Description:
    """The findings of the first look: the tensors, and where each constant comes from.

    Attributes
    ----------
    specs : dict of str to TensorSpec or DType
        The described parameters.
    """

    def __init__(self, specs: Mapping[str, Any], variables: Mapping[str, ir.Var]) -> None:
        self.specs = dict(specs)
        self._sources: list[tuple[str, str, str, int]] = []
        for constant, variable in variables.items():
            self._sources.append((constant, *self._source(variable)))

    @property
    def constants(self) -> list[str]:
        """The names of the constants, which may be given by keyword."""
        return [constant for constant, *_ in self._sources]

    def _source(self, variable: ir.Var) -> tuple[str, str, int]:
        for name, spec in self.specs.items():
            if not isinstance(spec, TensorSpec):
                continue
            for kind, items in (("shape", spec.shape), ("stride", spec.strides or ())):
                for axis, item in enumerate(items):
                    if isinstance(item, ir.Var) and item.same_as(variable):
                        return name, kind, axis
        return "", "", 0

    def _elements_counted(self, tensor: str, kind: str, axis: int) -> int:
        """The elements of one of an extent or a stride: floats of 4 bits lie in pairs."""
        spec = self.specs[tensor]
        is_last = axis == len(spec.shape) - 1
        return 2 if spec.dtype == FLOAT4 and is_last == (kind == "shape") else 1

    def values(self, arguments: Mapping[str, Any], given: Mapping[str, int]) -> dict[str, int]:
        """The constants, from the arguments of a call or given by keyword."""
        result = {}
        for constant, tensor, kind, axis in self._sources:
            if constant in given:
                result[constant] = given[constant]
                continue
            if not tensor:
                raise ArgumentError(
                    f"the constant {constant!r} is no extent of a tensor of the kernel",
                    help=f"use {constant} as an extent by itself, or give it by keyword",
                )
            argument = arguments.get(tensor)
            if argument is None:
                raise ArgumentError(
                    f"the constant {constant!r} needs the argument {tensor!r}",
                    help=f"give the tensor, or `{constant}=...` by keyword",
                )
            if axis >= len(argument.shape):
                raise ArgumentError(
                    f"{tensor!r} has {len(argument.shape)} "
                    f"dimension{'s' * (len(argument.shape) != 1)}; axis {axis} gives {constant!r}"
                )
            sizes = argument.shape if kind == "shape" else strides_of(argument)
            result[constant] = int(sizes[axis]) * self._elements_counted(tensor, kind, axis)
        return result


_PLAIN = (bool, int, float, str, type(None))


_ABSENT = object()


class Surroundings:
    """Numbers, strings and tuples of them: globals, names around the function, attributes of `self`.

    Those of the macros and functions that it calls by name are among them.
    """

    def __init__(self, func: Callable[..., object]) -> None:
        seen: set[types.CodeType] = set()
        self._readers = [read for read in _readers(func, seen) if _plain(read()) is not None]

    def values(self) -> tuple[str, ...]:
        """Their present values."""
        return tuple(_plain(read()) or "" for read in self._readers)


def _readers(func: Callable[..., object], seen: set[types.CodeType]) -> Iterator[Callable[[], Any]]:
    code = getattr(func, "__code__", None)
    if code is None or code in seen or is_internal(code.co_filename):
        return
    seen.add(code)
    instructions = [step for part in (code, *_nested(code)) for step in dis.get_instructions(part)]
    for name in _named(instructions, "LOAD_GLOBAL") & func.__globals__.keys():
        yield _item_of(func.__globals__, name)
        value = func.__globals__[name]
        yield from _readers(value._func if isinstance(value, Macro) else value, seen)
    for cell in func.__closure__ or ():
        yield _value_in(cell)
    if isinstance(func, types.MethodType):
        yield from _attributes_of(func.__self__, _named(instructions, "LOAD_ATTR"))


def _item_of(names: Mapping[str, object], name: str) -> Callable[[], Any]:
    return lambda: names.get(name, _ABSENT)


def _attributes_of(instance: object, names: set[str]) -> Iterator[Callable[[], Any]]:
    for name in names:
        if not hasattr(inspect.getattr_static(instance.__class__, name, None), "__get__"):
            yield functools.partial(getattr, instance, name, _ABSENT)


def _named(instructions: list[dis.Instruction], operation: str) -> set[str]:
    return {step.argval for step in instructions if step.opname == operation}


def _value_in(cell: types.CellType) -> Callable[[], Any]:
    def read() -> Any:
        try:
            return cell.cell_contents
        except ValueError:  # it has no value yet
            return _ABSENT

    return read


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _nested(constant)


def _plain(value: object) -> str | None:
    """A plain value as text, which tells 1 from 1.0 and True, as a program does."""
    is_plain = isinstance(value, _PLAIN) or (
        isinstance(value, tuple) and all(_plain(item) is not None for item in value)
    )
    return repr(value) if is_plain else None
