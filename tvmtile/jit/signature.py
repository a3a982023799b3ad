"""A kernel's signature: its parameters, and its results, whose extents are programs.

A program computes an extent from the arguments of a call. It is a number, `[argument, axis]` with None
for the axis where the argument is the number, `[argument, axis, "stride"]`, or
`[operation, *operands]`, and thus plain JSON.
`tvmtile.library.compute` runs it on the integers of a call and on torch's symbolic ones. Equations that
bind a variable, such as an argument of `2 * n` elements, are solved when programs are made.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.codegen.names import in_c
from tvmtile.errors import ArgumentError
from tvmtile.frontend.dtypes import DType
from tvmtile.ir.extents import linear_in
from tvmtile.ir.operands import constant
from tvmtile.ir.packed import has_float4, params_in_bytes
from tvmtile.ir.rewriting import variables_of
from tvmtile.library import OPERATIONS, Program, Strides, allocator, compute


@dataclass(frozen=True)
class KernelParam:
    """A parameter of a compiled kernel."""

    name: str
    """Its name in the program."""
    dtype: DType
    """Of a tensor's elements, or of a scalar; "handle" for a pointer."""
    shape: list[Any]
    """Extents of a tensor, those that the calls decide as expressions; empty for other parameters."""

    @classmethod
    def of(cls, param: ir.Var) -> KernelParam:
        """Describe a parameter of a program: a buffer, a scalar or a pointer."""
        if is_buffer_var(param):
            extents = [(extent, constant(extent)) for extent in param.ty.shape]
            shape = [extent if known is None else known for extent, known in extents]
            return cls(param.name, DType(str(param.ty.dtype)), shape)
        dtype = str(param.ty.dtype) if ir.is_prim_expr(param) else "handle"
        return cls(param.name, DType(dtype), [])

    def is_scalar(self) -> bool:
        """Tell whether the parameter is no tensor."""
        return not self.shape

    def torch_dtype(self) -> Any:
        """The torch dtype that stores such elements (imports torch)."""
        return self.dtype.as_torch()


def name_of(func: tirx.PrimFunc) -> str:
    """The name of a program, in the letters of C, `main` where it has none."""
    symbol = func.attrs.get("global_symbol") if func.attrs is not None else None
    return in_c(str(symbol or "main"))


def is_pointer(param: ir.Var) -> bool:
    """Tell whether a parameter is a bare address."""
    return not is_buffer_var(param) and (
        not ir.is_prim_expr(param) or str(param.ty.dtype) == "handle"
    )


def row_major(shape: Sequence[int]) -> list[int]:
    """The strides of a tensor of a shape without gaps, in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return strides


@dataclass(frozen=True)
class Allocation:
    """A tensor that a call makes for a parameter."""

    index: int
    """The parameter's position."""
    dtype: str
    extents: tuple[ir.Expr, ...]
    programs: tuple[Any, ...]
    """The programs that compute its extents from the arguments; None where they don't say."""
    strides: Strides
    """Where all extents are numbers, which the programs are then."""

    @classmethod
    def of(cls, index: int, param: ir.Var, sources: Mapping[ir.Var, Program]) -> Allocation:
        """The allocation of a tensor parameter, by the programs of its extents' variables."""
        extents = tuple(param.ty.shape)
        programs: Any = tuple(program_of(extent, sources) for extent in extents)
        is_static = all(isinstance(program, int) for program in programs)
        strides = tuple(row_major(programs)) if is_static else None
        return cls(index, str(param.ty.dtype), extents, programs, strides)

    def shape(
        self, args: Sequence[Any], operations: Mapping[str, Any] = OPERATIONS
    ) -> tuple[Any, ...]:
        """The extents in a call.

        Raises
        ------
        ArgumentError
            If the arguments don't say.
        """
        if None in self.programs:
            raise ArgumentError(
                f"the extent {self.unknown} of a result is not known from the arguments",
                help="pass the result tensor too, or make the extent one of an argument",
            )
        return tuple(compute(program, args, operations) for program in self.programs)

    @property
    def unknown(self) -> ir.Expr | None:
        """The first extent that the arguments don't say."""
        return next(
            (e for e, p in zip(self.extents, self.programs, strict=True) if p is None), None
        )


@dataclass(frozen=True, eq=False)
class KernelSignature:
    """The parameters of a program, and which of them are results."""

    name: str
    """The program's."""
    params: tuple[ir.Var, ...]
    results: tuple[int, ...]
    """Positions of the results, in the order in which a call returns them."""

    @classmethod
    def of(cls, func: tirx.PrimFunc, results: Sequence[int]) -> KernelSignature:
        """Read it from a program."""
        return cls(name_of(func), tuple(func.params), tuple(results))

    @cached_property
    def stored(self) -> list[ir.Var]:
        """The parameters as compiled code takes them: floats of 4 bits as tensors of bytes."""
        return params_in_bytes(self.params)[0]

    def program_of(self, variable: ir.Var) -> Program | None:
        """The program of a variable, from all arguments; None where they don't say."""
        stored, values = params_in_bytes(self.params)
        return program_of(values.get(variable, variable), sources_of(stored))

    @cached_property
    def has_packed(self) -> bool:
        """Tell whether a parameter holds floats of 4 bits."""
        return any(map(has_float4, self.params))

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """The positions of the parameters that a call has to give."""
        return tuple(i for i in range(len(self.params)) if i not in self.results)

    @cached_property
    def pointers(self) -> tuple[int, ...]:
        """The positions of bare addresses."""
        return tuple(i for i, param in enumerate(self.params) if is_pointer(param))

    @cached_property
    def tensors(self) -> tuple[int, ...]:
        """The positions of tensors."""
        return tuple(i for i, param in enumerate(self.params) if is_buffer_var(param))

    @cached_property
    def allocated(self) -> list[Allocation]:
        """The results, in the order of the parameters; their arguments are those of `inputs`."""
        return self._allocated(sources_of([self.stored[index] for index in self.inputs]))

    def _allocated(self, sources: Mapping[ir.Var, Program]) -> list[Allocation]:
        return [Allocation.of(index, self.stored[index], sources) for index in sorted(self.results)]

    def bind(
        self, args: Sequence[object], named: Mapping[str, object]
    ) -> tuple[Any, ...] | ArgumentError:
        """The arguments of a call, those by keyword in their places, or what is wrong."""
        is_complete = len(args) + len(named) == len(self.params)
        given = range(len(self.params)) if is_complete else self.inputs
        names = [self.params[index].name for index in given]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])
        try:
            return signature.bind(*args, **named).args
        except TypeError as error:
            parameters = f"its parameters are {', '.join(names)}"
            return ArgumentError(f"{self.name}: {error}", help=parameters)

    def given(self, count: int) -> tuple[int, ...] | None:
        """The positions of the parameters that so many arguments are for; None where it is none."""
        if count == len(self.params):
            return tuple(range(count))
        return self.inputs if count == len(self.inputs) else None

    def completed(
        self,
        args: tuple[Any, ...],
        device: str,
        operations: Mapping[str, Any] = OPERATIONS,
    ) -> tuple[Any, ...]:
        """The arguments of a call as they are stored, with results in their places.

        Results are like the first tensor among the arguments, on `device` where none is one.

        Raises
        ------
        ArgumentError
            If the arguments don't say how large a result is.
        """
        if self.has_packed and (given := self.given(len(args))) is not None:
            args = as_bytes(args, [self.params[index] for index in given])
        if not self.results or len(args) != len(self.inputs):
            return args
        allocate = allocator(args, device)
        complete = list(args)
        for result in self.allocated:
            shape = result.programs
            if result.strides is None:
                shape = self._shape(result, args, operations)
            complete.insert(result.index, allocate(shape, result.dtype, result.strides))
        return tuple(complete)

    def _shape(
        self, result: Allocation, args: Sequence[Any], operations: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        try:
            return result.shape(args, operations)
        except (AttributeError, IndexError):  # an argument is None, or no tensor: others may tell
            sources = sources_in([self.stored[index] for index in self.inputs], args)
            return Allocation.of(result.index, self.stored[result.index], sources).shape(args)

    def returned(self, args: Sequence[Any]) -> Any:
        """The results of a call, among all of its arguments."""
        if not self.results:
            return None
        results = [args[index] for index in self.results]
        if self.has_packed:
            results = [as_elements(args[index], self.params[index]) for index in self.results]
        return results if len(results) > 1 else results[0]


def sources_of(params: Sequence[ir.Var | None]) -> dict[ir.Var, Program]:
    """Programs of parameters' variables, by their arguments; None for one that isn't given."""
    sources: dict[ir.Var, Program] = {}
    equations: list[tuple[ir.Expr, Program]] = []
    strides: list[tuple[ir.Expr, Program]] = []  # torch has any along an axis of one element
    for position, param in enumerate(params):
        if param is None:
            continue
        if not is_buffer_var(param):
            sources.setdefault(param, [position, None])
            continue
        equations += [(extent, [position, axis]) for axis, extent in enumerate(param.ty.shape)]
        steps = enumerate(param.ty.strides)
        strides += [(step, [position, axis, "stride"]) for axis, step in steps]
    equations += strides
    for extent, size in equations:
        if isinstance(extent, ir.Var):
            sources.setdefault(extent, size)
    while any(_solve(extent, size, sources) for extent, size in equations):
        pass
    return sources


def sources_in(params: Sequence[ir.Var], args: Sequence[Any]) -> dict[ir.Var, Program]:
    """`sources_of` the parameters whose arguments are integers, or tensors of as many dimensions."""

    def fits(param: ir.Var, arg: Any) -> bool:
        if not is_buffer_var(param):
            return isinstance(arg, int)
        return len(getattr(arg, "shape", ())) == len(param.ty.shape)

    return sources_of([p if fits(p, a) else None for p, a in zip(params, args, strict=True)])


def _solve(extent: ir.Expr, size: Program, sources: dict[ir.Var, Program]) -> bool:
    """Find the only variable of an extent that is not known yet, as NormalizeSignature does."""
    unknown = [var for var in variables_of(extent) if var not in sources]
    solution = linear_in(extent, unknown[0]) if len(unknown) == 1 else None
    if solution is None:
        return False
    coefficient, rest = solution
    known = program_of(rest, sources)
    if known is None:
        return False
    sources[unknown[0]] = ["FloorDiv", ["Sub", size, known], coefficient]
    return True


def program_of(extent: Any, sources: Mapping[ir.Var, Program]) -> Program | None:
    """The program of an extent, from those of its variables; None where it can't be computed."""
    if isinstance(extent, int | tirx.IntImm):
        return int(extent)
    if isinstance(extent, ir.Var):
        return sources.get(extent)
    if isinstance(extent, tirx.Cast):
        return program_of(extent.value, sources)
    if isinstance(extent, ir.Call):
        operation, parts = str(getattr(extent.op, "name", "")), list(extent.args)
    else:
        names = ("condition", "true_value", "false_value", "a", "b")
        operation = type(extent).__name__
        parts = [getattr(extent, name) for name in names if hasattr(extent, name)]
    operands = [program_of(part, sources) for part in parts]
    return [operation, *operands] if operation in OPERATIONS and None not in operands else None


_OF_TORCH = "torch.float4_e2m1fn_x2"


def as_bytes(args: Sequence[object], params: Sequence[ir.Var]) -> tuple[object, ...]:
    """The arguments, with the bytes of those that hold pairs of elements.

    Pairs are torch's `float4_e2m1fn_x2`, or its int8, as TileLang's.
    """
    return tuple(
        _bytes(arg) if has_float4(param) else arg for arg, param in zip(args, params, strict=True)
    )


def _bytes(arg: Any) -> Any:
    name = str(getattr(arg, "dtype", ""))
    torch = sys.modules.get("torch")
    if torch is not None and name in (_OF_TORCH, "torch.int8"):
        return arg.view(torch.uint8)
    return arg.view("uint8") if name == "int8" else arg


def as_elements(tensor: object, param: ir.Var) -> Any:
    """A result as torch's dtype of pairs of elements; bytes where it is not torch's tensor."""
    torch = sys.modules.get("torch")
    if torch is None or not has_float4(param) or not isinstance(tensor, torch.Tensor):
        return tensor
    return tensor.view(torch.float4_e2m1fn_x2)
