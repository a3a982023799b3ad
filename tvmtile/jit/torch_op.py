"""`@tvmtile.torch_op`: kernels in the eager style as operators of `torch.library`.

The operator is registered when the function is decorated, so that torch finds it in whatever it loads.
Its schema follows from the signature; the program of each specialisation says the rest, and is held to
the schema. Imported only where it is used, since it imports torch.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from typing_extensions import Unpack

from tvmtile.analysis.effects import written_parameters
from tvmtile.errors import ArgumentError, InvalidOperand, InvalidValue
from tvmtile.frontend.dtypes import DType
from tvmtile.frontend.syntax import parse_definition
from tvmtile.jit.compiler import result_positions
from tvmtile.jit.decorator import JitFunction, jit
from tvmtile.jit.kernel import Kernel
from tvmtile.jit.signature import KernelSignature
from tvmtile.jit.torch_library import TorchSignature, registered, returned_type
from tvmtile.jit.typing import JitOptions

if TYPE_CHECKING:
    from torch.library import CustomOpDef

_TYPES = {bool: "bool", int: "SymInt", float: "float", str: "str"}
"""A schema's names of Python's types of arguments."""


@overload
def torch_op(
    name: str | None = None,
    *,
    backward: Callable[..., object] | None = None,
    mutates: Sequence[str] = (),
    **options: Unpack[JitOptions],
) -> Callable[[Callable[..., Any]], CustomOpDef]: ...
@overload
def torch_op(name: Callable[..., object]) -> CustomOpDef: ...
def torch_op(
    name: str | Callable[..., Any] | None = None,
    *,
    backward: Callable[..., object] | None = None,
    mutates: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Make a kernel in the eager style an operator of torch's own.

    torch.compile, torch.export and AOTInductor take it as a whole, and its results have the shapes and
    dtypes that the program of a call's specialisation says: extents by `T.dynamic` stay symbolic, those
    by `T.const` are numbers of which each makes a program.

    Parameters
    ----------
    name : str, optional
        With a namespace, "my_library::matmul". Where absent, the namespace is that of the module.
    backward : callable, optional
        As of `Kernel.as_torch_op`: `backward(ctx, *gradients)`.
    mutates : sequence of str
        The parameters that the kernel writes, apart from what it returns.
    **options
        As of `tvmtile.jit`, where the function is not decorated by it.

    Returns
    -------
    torch.library.CustomOpDef
        Callable as the function is. Parameters with a default, or annotated with one of Python's types,
        are constants; the others are tensors.

    Raises
    ------
    InvalidOperand
        If the function is not in the eager style.
    InvalidValue
        If a constant is neither a number nor a string, or the kernel writes what `mutates` leaves out.
    """
    names = dict(sys._getframe(1).f_locals)

    def decorate(function: Any) -> Any:
        if not isinstance(function, JitFunction):
            function = jit(function, scope=names, **options)
        return _Operator(function, mutates).registered(
            name if isinstance(name, str) else _name_of(function.func), backward
        )

    return decorate(name) if callable(name) else decorate


def _name_of(func: Callable[..., object]) -> str:
    return f"{func.__module__.replace('.', '_')}::{func.__name__}"


class _Operator:
    """A kernel in the eager style, and the schema that its programs are held to."""

    def __init__(self, function: JitFunction, mutates: Sequence[str]) -> None:
        if function.mode != "eager":
            raise InvalidOperand(
                f"{function.func.__name__} is no kernel in the eager style",
                help="describe its tensors in its body; of a kernel in the lazy style, "
                "`kernel.as_torch_op(name)` makes an operator",
            )
        self._function = function
        self._mutates = tuple(mutates)
        self._count = _returned_count(function.func)
        unknown = set(mutates) - function.signature.parameters.keys()
        if unknown:
            raise InvalidValue(
                f"mutates={list(mutates)} names {min(unknown)!r}, which is no parameter",
                help=f"the parameters of {function.func.__name__} are {function.signature}",
            )
        self._programs: dict[object, TorchSignature] = {}
        self._checked: set[Kernel] = set()

    def registered(self, name: str, backward: Callable[..., object] | None) -> Any:
        """The operator."""
        module = self._function.func.__module__
        return registered(name, self._schema, self._run, self._fake, backward, module)

    @property
    def _schema(self) -> str:
        parameters = [
            self._declared(index, param)
            for index, param in enumerate(self._function.signature.parameters.values())
        ]
        return f"({', '.join(parameters)}) -> {returned_type(self._count)}"

    def _declared(self, index: int, param: inspect.Parameter) -> str:
        """A parameter in torch's language."""
        described = self._function.annotations.get(param.name)
        if isinstance(described, DType):
            return f"{'SymInt' if 'int' in described else 'float'} {param.name}"
        annotated = _TYPES.get(_NAMES.get(param.annotation, param.annotation))
        if param.default is param.empty:
            alias = f"(a{index}!)" if param.name in self._mutates else ""
            return f"{annotated or f'Tensor{alias}'} {param.name}"
        kind = annotated or _TYPES.get(type(param.default))
        if kind is None:
            raise InvalidValue(
                f"{param.name}={param.default!r}: torch's operators take numbers and strings besides "
                "tensors",
                help="give a dtype by its name, as a string, or leave the parameter to a closure",
            )
        default = json.dumps(param.default) if kind == "str" else repr(param.default)
        return f"{kind} {param.name}={default}"

    def _run(self, *args: object) -> Any:
        kernel, tensors = self._function.prepared(*args)
        if kernel not in self._checked:
            self._check(kernel.prim_func, kernel.out_idx)
            self._checked.add(kernel)
        return kernel(*tensors)

    def _fake(self, *args: object) -> Any:
        """The results of a call with tensors without memory."""
        program, tensors = self._program(args)
        return program.fake(*tensors)

    def _program(self, args: Sequence[object]) -> tuple[TorchSignature, list[Any]]:
        """The program of a call, checked against the schema, and what it is called with."""
        key, build, tensors = self._function.specialisation(*args)
        program = self._programs.get(key)
        if program is None:
            func = build()
            results = result_positions(func, None)
            self._check(func, results)
            program = TorchSignature(
                KernelSignature.of(func, results), written_parameters(func), "cpu"
            )
            self._programs[key] = program
        return program, tensors

    def _check(self, func: Any, results: Sequence[int]) -> None:
        params = list(func.params)
        written = {params[i].name for i in written_parameters(func) if i not in results}
        missing = sorted(written - {*self._mutates})
        if missing:
            raise InvalidValue(
                f"{self._function.func.__name__} writes {', '.join(missing)}, which its operator does "
                "not declare",
                help=f"write @tvmtile.torch_op(..., mutates={missing})",
            )
        if len(results) != self._count:
            raise ArgumentError(
                f"{self._function.func.__name__} returns {len(results)} results, and its return "
                f"statement names {self._count}",
                help="name them in the return statement: `return Y, Z`",
            )


_NAMES = {kind.__name__: kind for kind in _TYPES}
"""Annotations that are strings."""


def _returned_count(func: Callable[..., object]) -> int:
    """The number of tensors that the function's return statement names."""
    tree = parse_definition(inspect.unwrap(func).__code__)
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return) and node.value]
    if not values:
        return 0
    return len(values[-1].elts) if isinstance(values[-1], ast.Tuple) else 1
