"""A kernel as an operator of `torch.library`, which torch can trace, compile and export.

The schema and the implementation for tensors without memory come from the program: which parameters are
written, which are results, and of what shape and dtype these are. `tvmtile.jit.torch_op` does the same
for kernels in the eager style. Imported only where it is used, since it imports torch.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import pickle
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _functorch
from torch.library import CustomOpDef, custom_op
from tvm import ir

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import ArgumentError, InvalidValue, SourceLocation
from tvmtile.frontend.dtypes import DType
from tvmtile.jit.signature import KernelSignature, is_pointer
from tvmtile.library import OPERATIONS
from tvmtile.target import TORCH_DEVICES

if TYPE_CHECKING:
    from tvmtile.jit.kernel import Kernel

_ON_SYMBOLS = {**OPERATIONS, "Max": torch.sym_max, "Min": torch.sym_min}
"""The operations of extents' programs, on integers that torch may not know yet."""


class Operator(CustomOpDef):
    """An operator of torch, of which there is one in a process: a copy of it is the operator itself.

    Pickled it is its name, and what registers it where that has not been done: a module to import, or a
    kernel.
    """

    registers: tuple[Callable[..., object], tuple[Any, ...]]

    def __copy__(self) -> Operator:
        return self

    def __deepcopy__(self, memo: Any) -> Operator:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _operator, (self._qualname, *self.registers)


_OPERATORS: weakref.WeakValueDictionary[str, Operator] = weakref.WeakValueDictionary()


def _operator(name: str, register: Callable[..., object], args: tuple[Any, ...]) -> Operator:
    """The operator of a name, registered now if it was not."""
    if name not in _OPERATORS:
        register(*args)
    if name not in _OPERATORS:
        raise pickle.UnpicklingError(
            f"{args[0]} has no operator {name!r} once it is imported: define it in a module, or pickle "
            "one that a kernel's `as_torch_op` returns"
        )
    return _OPERATORS[name]


def as_torch_op(kernel: Kernel, name: str, backward: Callable[..., object] | None) -> Operator:
    """See `Kernel.as_torch_op`."""
    device = kernel.adapter.device
    program = TorchSignature(kernel.signature, kernel.artifact.written, device)
    operator = registered(name, program.schema, kernel, program.fake, backward)
    operator.registers = as_torch_op, (kernel, name, backward)
    return operator


def registered(
    name: str,
    schema: str,
    kernel: Callable[..., object],
    fake: Callable[..., object],
    backward: Callable[..., object] | None,
    module: str = "",
) -> Operator:
    """An operator of torch that calls a kernel.

    The name has a namespace; the schema is in torch's language; `fake` returns the like of what the
    kernel returns, for tensors without memory; `backward` is as of `Kernel.as_torch_op`; to import the
    module registers the operator.
    """
    # Bound here, since a call should do little else.
    is_grad_enabled, set_grad_enabled = torch.is_grad_enabled, torch._C._set_grad_enabled

    def run(*args: Any) -> Any:
        records = is_grad_enabled()
        set_grad_enabled(False)  # torch asks for a gradient elsewhere
        try:
            results = kernel(*args)
        finally:
            set_grad_enabled(records)
        return tuple(results) if isinstance(results, list) else results

    parsed = torch._C.parse_schema(f"op{schema}").arguments
    written = [bool(arg.alias_info and arg.alias_info.is_write) for arg in parsed]
    operator = custom_op(
        checked_name(name),
        run,
        mutates_args=[a.name for a, is_written in zip(parsed, written, strict=True) if is_written],
        schema=schema,
    )
    # Registered for a device too, it is called without what `custom_op` puts around it.
    torch.library.impl(name, tuple(TORCH_DEVICES.values()), run, lib=operator._lib)
    operator.register_fake(lambda *args: _returned(fake(*args)))
    operator.register_vmap(
        lambda info, dims, *args: _run_each(operator, written, info.batch_size, dims, args)
    )
    if backward is not None:
        names = [arg.name for arg in parsed]
        operator.register_autograd(_counted(name, names, backward), setup_context=_save)
    operator.__class__ = Operator
    operator.registers = importlib.import_module, (module,)
    _OPERATORS[name] = operator
    return operator


def _counted(
    name: str, parameters: Sequence[str], backward: Callable[..., object]
) -> Callable[..., object]:
    """A backward whose gradients are counted: torch's own error has names that only torch gave."""
    code = getattr(backward, "__code__", None)

    @functools.wraps(backward)
    def counted(ctx: Any, *gradients: torch.Tensor) -> object:
        returned = backward(ctx, *gradients)
        each = list(returned) if isinstance(returned, tuple | list) else [returned]
        if len(each) < len(parameters) or any(one is not None for one in each[len(parameters) :]):
            raise ArgumentError(
                f"{name} has the parameters {', '.join(parameters)}, and its backward returned "
                f"{len(each)} gradient{'s' if len(each) != 1 else ''}, not {len(parameters)}",
                help="return one for each parameter, None where there is none, as for a number",
                location=code and SourceLocation(code.co_filename, code.co_firstlineno),
            )
        return tuple(each)

    return counted


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


class TorchSignature:
    """The signature of a program, as torch asks for it.

    Results are on `device` where no argument is a tensor.

    Attributes
    ----------
    signature : KernelSignature
        Of the program.
    mutated : list of str
        The parameters that are written, results left out.
    """

    def __init__(self, signature: KernelSignature, written: Sequence[int], device: str) -> None:
        self.signature = signature
        self._device = device
        self._inputs = [signature.params[index] for index in signature.inputs]
        self.mutated = [signature.params[i].name for i in signature.inputs if i in written]

    @property
    def schema(self) -> str:
        """Its parameters and results, in torch's language."""
        parameters = [
            f"{_type(param, f'(a{i}!)' if param.name in self.mutated else '')} {param.name}"
            for i, param in enumerate(self._inputs)
        ]
        return f"({', '.join(parameters)}) -> {returned_type(len(self.signature.results))}"

    def fake(self, *args: Any) -> Any:
        """Allocate the results, whose shapes follow from those of the arguments."""
        for param, arg in zip(self._inputs, args, strict=True):
            if is_buffer_var(param):
                self._check(param, arg)
        complete = self.signature.completed(args, self._device, _ON_SYMBOLS)
        return self.signature.returned(complete)

    def _check(self, param: ir.Var, arg: torch.Tensor) -> None:
        dtype = DType(str(param.ty.dtype)).as_torch()
        if arg.ndim == len(param.ty.shape) and arg.dtype == dtype:
            return
        raise ArgumentError(
            f"{self.signature.name}: {param.name} is of dtype {dtype} and has {len(param.ty.shape)} "
            f"dimensions, not {arg.dtype} and {arg.ndim}",
            help="give what the program describes",
        )


def _run_each(
    operator: Any,
    written: Sequence[bool],
    size: int,
    dims: Sequence[int | None],
    args: Sequence[Any],
) -> tuple[Any, Any]:
    """The rule for `torch.vmap`: one call of the operator after the other."""
    calls = []
    for index in range(size):
        parts = [a if d is None else a.select(d, index) for a, d in zip(args, dims, strict=True)]
        given = [p.contiguous() if isinstance(p, torch.Tensor) else p for p in parts]
        calls.append(operator(*given))
        for part, copy, is_written in zip(
            parts, given, written, strict=False
        ):  # defaults may be left out
            if is_written and copy is not part:
                part.copy_(copy)
    if calls[0] is None:
        return None, None
    if isinstance(calls[0], tuple):
        return tuple(map(torch.stack, zip(*calls, strict=True))), (0,) * len(calls[0])
    return torch.stack(calls), 0


def returned_type(count: int) -> str:
    """The type of a number of results in a schema."""
    return "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"


def _type(param: ir.Var, alias: str) -> str:
    """The type of a parameter in a schema."""
    if is_buffer_var(param) or is_pointer(param):
        return f"Tensor{alias}"
    dtype = str(param.ty.dtype)
    return "bool" if dtype == "bool" else "SymInt" if "int" in dtype else "float"


def _returned(results: object) -> Any:
    return tuple(results) if isinstance(results, list) else results


def _save(ctx: Any, inputs: tuple[object, ...], output: object) -> None:
    """Keep for a backward the tensors that an operator was given and returned, and its constants."""
    results = output if isinstance(output, tuple) else (output,)
    ctx.constants = tuple(value for value in inputs if not isinstance(value, torch.Tensor))
    ctx.save_for_backward(*(t for t in (*inputs, *results) if isinstance(t, torch.Tensor)))


_COUNT = itertools.count()


def is_wrapper(tensor: object) -> bool:
    """Tell whether a tensor is one that has no memory, but says what operators do to it."""
    if not isinstance(tensor, torch.Tensor):
        return False
    disabled = torch._C._disabled_torch_dispatch_impl
    return getattr(
        type(tensor), "__torch_dispatch__", disabled
    ) is not disabled or _functorch.is_functorch_wrapped_tensor(tensor)


class Operators:
    """The operators of a kernel, for calls that torch has to see: one for each way to give arguments.

    A trace, a dispatch mode, a fake tensor and a tensor that stands for the negative of its memory are
    torch's business: it knows what to do with an operator whose schema says what is written. It is
    registered where it is first needed, since that takes milliseconds.
    """

    def __init__(self, launch: Callable[..., object], name: str, written: Collection[int]) -> None:
        self._launch = launch
        self._name = name
        self._written = written
        self._operators: dict[tuple[str, ...], Any] = {}

    def __call__(self, *args: Any) -> None:
        """Call the kernel through torch's dispatcher.

        Raises
        ------
        ArgumentError
            If a transform of `torch.func` is at work, which a kernel has no rule for.
        """
        if any(
            isinstance(a, torch.Tensor) and _functorch.is_functorch_wrapped_tensor(a) for a in args
        ):
            raise ArgumentError(
                f"{self._name}: vmap, grad and other transforms of torch.func can't look into a kernel",
                help="call it in a torch.autograd.Function that says what its vmap, jvp and backward "
                "are",
            )
        values = [_value(arg) for arg in args]
        types = tuple(map(_type_of, values))
        operator = self._operators.get(types)
        if operator is None:
            operator = self._operators[types] = self._operator(types)
        operator(*values)

    def _operator(self, types: tuple[str, ...]) -> Any:
        parameters = [
            f"Tensor(a{i}!) p{i}" if kind == "Tensor" and i in self._written else f"{kind} p{i}"
            for i, kind in enumerate(types)
        ]
        name, schema = f"tvmtile::{self._name}_{next(_COUNT)}", f"({', '.join(parameters)}) -> ()"
        return registered(name, schema, self._launch, lambda *_: None, None)


def _value(arg: object) -> Any:
    """An argument as torch takes it."""
    if arg is None or isinstance(arg, torch.Tensor | torch.SymInt | int | float):
        return arg
    if getattr(arg, "ndim", 0):
        return torch.from_dlpack(arg)  # of numpy or TVM, in place
    return arg.item() if hasattr(arg, "item") else arg


def _type_of(value: object) -> str:
    """The type of an argument in a schema."""
    if value is None:
        return "Tensor?"
    if isinstance(value, torch.Tensor):
        return "Tensor"
    return "float" if isinstance(value, float) else "SymInt"
