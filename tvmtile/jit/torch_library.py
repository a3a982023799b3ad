"""A kernel as an operator of `torch.library`, which torch can trace, compile and export.

The schema and the implementation for tensors without memory come from the program: which parameters are
written, which are results, and of what shape and dtype these are. Imported only where it is used, since
it imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.library import custom_op
from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import ArgumentError, InvalidValue
from tvmtile.frontend.dtypes import DType
from tvmtile.jit.arguments import is_pointer

if TYPE_CHECKING:
    from tvmtile.jit.kernel import Kernel

__all__ = ["as_torch_op", "checked_name"]

_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
    tirx.FloorDiv: lambda a, b: a // b,
    tirx.FloorMod: lambda a, b: a % b,
    tirx.Max: torch.sym_max,
    tirx.Min: torch.sym_min,
}
"""What a program's extents are made of, on integers that torch may not know yet."""


def as_torch_op(kernel: Kernel, name: str, backward: Callable[..., Any] | None) -> Any:
    """See `Kernel.as_torch_op`."""
    program = _Program(kernel)
    operator = custom_op(
        checked_name(name),
        program.run,
        mutates_args=[param.name for param in program.mutated],
        schema=program.schema,
    )
    operator.register_fake(program.fake)
    operator.register_vmap(
        lambda info, dims, *args: program.run_each(operator, info.batch_size, dims, args)
    )
    if backward is not None:
        operator.register_autograd(backward, setup_context=_save)
    return operator


def checked_name(name: str) -> str:
    """The name of an operator, if it has a namespace.

    Raises
    ------
    InvalidValue
        If it has none.
    """
    if name.count("::") != 1:
        raise InvalidValue(
            f"{name!r} is no name of a torch operator",
            help='write it with a namespace of your own: "my_library::matmul"',
        )
    return name


class _Program:
    """What torch asks of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        params = list(kernel.prim_func.params)
        self._inputs = [p for i, p in enumerate(params) if i not in kernel.out_idx]
        self._results = [params[index] for index in kernel.out_idx]
        written = [params[index] for index in kernel.artifact.written]
        self.mutated = [p for p in self._inputs if any(p.same_as(other) for other in written)]

    @property
    def schema(self) -> str:
        """Its parameters and results, in torch's language."""
        mutated = {param.name for param in self.mutated}
        parameters = [
            f"{_type(param, f'(a{i}!)' if param.name in mutated else '')} {param.name}"
            for i, param in enumerate(self._inputs)
        ]
        results = ", ".join("Tensor" for _ in self._results)
        return (
            f"({', '.join(parameters)}) -> {results if len(self._results) == 1 else f'({results})'}"
        )

    def run(self, *args: Any) -> Any:
        """Run the kernel: torch asks for a gradient elsewhere."""
        with torch.no_grad():
            return _returned(self._kernel(*args))

    def fake(self, *args: Any) -> Any:
        """Allocate the results, whose shapes follow from those of the arguments."""
        extents: dict[ir.Var, Any] = {}
        for param, arg in zip(self._inputs, args, strict=True):
            if is_buffer_var(param):
                self._check(param, arg)
                extents.update(
                    (extent, size)
                    for extent, size in zip(param.ty.shape, arg.shape, strict=True)
                    if isinstance(extent, ir.Var)
                )
            elif not is_pointer(param):
                extents[param] = arg
        like = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)
        results = [self._allocated(param, extents, like) for param in self._results]
        return _returned(results if len(results) > 1 else next(iter(results), None))

    def _check(self, param: ir.Var, arg: torch.Tensor) -> None:
        dtype = DType(str(param.ty.dtype)).as_torch()
        if arg.ndim == len(param.ty.shape) and arg.dtype == dtype:
            return
        raise ArgumentError(
            f"{self._kernel.name}: {param.name} is of dtype {dtype} and has {len(param.ty.shape)} "
            f"dimensions, not {arg.dtype} and {arg.ndim}",
            help="give what the program describes",
        )

    def _allocated(
        self, param: ir.Var, extents: Mapping[ir.Var, Any], like: torch.Tensor | None
    ) -> torch.Tensor:
        shape = [_evaluated(extent, extents) for extent in param.ty.shape]
        device = self._kernel.adapter.device if like is None else like.device
        return torch.empty(shape, dtype=DType(str(param.ty.dtype)).as_torch(), device=device)

    def run_each(
        self, operator: Any, size: int, dims: Sequence[int | None], args: Sequence[Any]
    ) -> tuple[Any, Any]:
        """The rule for `torch.vmap`: one call of the operator after the other."""
        written = [any(p.same_as(other) for other in self.mutated) for p in self._inputs]
        calls = []
        for index in range(size):
            parts = [
                a if d is None else a.select(d, index) for a, d in zip(args, dims, strict=True)
            ]
            given = [p.contiguous() if isinstance(p, torch.Tensor) else p for p in parts]
            calls.append(operator(*given))
            for part, copy, is_written in zip(parts, given, written, strict=True):
                if is_written and copy is not part:
                    part.copy_(copy)
        if calls[0] is None:
            return None, None
        if isinstance(calls[0], tuple):
            return tuple(map(torch.stack, zip(*calls, strict=True))), (0,) * len(calls[0])
        return torch.stack(calls), 0


def _type(param: ir.Var, alias: str) -> str:
    """What a schema calls a parameter."""
    if is_buffer_var(param) or is_pointer(param):
        return f"Tensor{alias}"
    dtype = str(param.ty.dtype)
    return "bool" if dtype == "bool" else "SymInt" if "int" in dtype else "float"


def _returned(results: Any) -> Any:
    return tuple(results) if isinstance(results, list) else results


def _evaluated(extent: Any, values: Mapping[ir.Var, Any]) -> Any:
    """The value of an extent, which is symbolic where those of its variables are."""
    if isinstance(extent, tirx.IntImm):
        return int(extent.value)
    if isinstance(extent, ir.Var) and extent in values:
        return values[extent]
    if isinstance(extent, tirx.Cast):
        return _evaluated(extent.value, values)
    operation = _OPERATIONS.get(type(extent))
    if operation is None:
        raise ArgumentError(
            f"the extent {extent} of a result does not follow from the arguments",
            help="make the result a parameter that the kernel writes",
        )
    return operation(_evaluated(extent.a, values), _evaluated(extent.b, values))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep for a backward the tensors that an operator was given, and those that it returned."""
    results = output if isinstance(output, tuple) else (output,)
    ctx.save_for_backward(*(t for t in (*inputs, *results) if isinstance(t, torch.Tensor)))
