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

import inspect
from collections.abc import Callable, Collection, Mapping, Set
from contextlib import suppress
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import IRBuilder
from tvmtile.errors import ArgumentError, SyntaxNotSupported
from tvmtile.frontend.entry import resolve_annotations, trace_body
from tvmtile.frontend.parameters import Parameters, TensorSpec, is_run_time
from tvmtile.frontend.program import completed
from tvmtile.frontend.tracer import Tracer


class _DescriptionDone(BaseException):
    pass


class _Described(Parameters):
    """The parameters of a kernel, of which some were given as constants.

    The description of the last one in `missing` ends the first look.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        constants: Mapping[str, Any],
        missing: Collection[str] = (),
    ) -> None:
        super().__init__(func)
        self._constants, self._undescribed = constants, set(missing)

    def declare(self, name: str, annotation: Any) -> Any:
        if name in self._constants and isinstance(annotation, TensorSpec):
            raise _no_tensor(name, self._constants[name], annotation)
        parameter = super().declare(name, annotation)
        if self._undescribed == {name}:
            raise _DescriptionDone
        self._undescribed.discard(name)
        return parameter


def _no_tensor(name: str, given: object, spec: TensorSpec) -> ArgumentError:
    """The error of a list or a number for what the kernel describes as a tensor."""
    is_list = isinstance(given, list | tuple)
    return ArgumentError(
        f"{name} is a tensor of {spec.dtype}; it got the {type(given).__name__} {given!r:.40}",
        help=f"pass a tensor, e.g. `torch.tensor({name})`" if is_list else "pass a tensor",
    )


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
        names = inspect.signature(func).parameters
        self.annotations = {
            name: annotation
            for name, annotation in resolve_annotations(func, scope).items()
            if name in names and is_run_time(annotation)
        }

    def describe(
        self, constants: Mapping[str, Any], tensors: Set[str]
    ) -> tuple[dict[str, ir.Var], dict[str, ir.Var]]:
        """Look at the function once, with `constants` given and `tensors` the names of the rest.

        Returns
        -------
        parameters : dict of str to Var
            What is described: buffers, scalars and pointers.
        variables : dict of str to Var
            What stands in them for each constant by `T.const`.
        """
        missing = tensors - self.annotations.keys()
        if not missing:
            return {}, {}

        def kernel_begins() -> None:
            raise SyntaxNotSupported(
                f"the parameter {min(missing)!r} is given a tensor but has no description",
                help=f"write `{min(missing)}: T.Tensor((M, N), T.float16)` before T.Kernel",
            )

        parameters = _Described(self.func, constants, missing)
        tracer = Tracer(parameters, on_kernel=kernel_begins, constants={})
        with suppress(_DescriptionDone):
            self._trace(tracer, parameters, {**constants, **dict.fromkeys(tensors)})
            kernel_begins()
        return parameters.declared, tracer.variables

    def build(
        self, constants: Mapping[str, Any], tensors: Set[str], values: Mapping[str, int]
    ) -> tirx.PrimFunc:
        """Trace the kernel with every constant known, also those by `T.const`."""
        parameters = _Described(self.func, constants)
        tracer = Tracer(parameters, constants=values)
        func = self._trace(tracer, parameters, {**constants, **dict.fromkeys(tensors)})
        return completed(parameters.in_order(func), tracer)

    def _trace(
        self, tracer: Tracer, parameters: Parameters, arguments: dict[str, Any]
    ) -> tirx.PrimFunc:
        with IRBuilder() as builder, tracer.activate(), T.prim_func():
            T.func_name(self.func.__name__)
            for name, annotation in self.annotations.items():
                arguments[name] = parameters.declare(name, annotation)
            trace_body(self.func, tracer, arguments)
        return builder.get()
