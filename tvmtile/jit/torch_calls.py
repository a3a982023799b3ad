"""Torch's demands on code that reads and writes its tensors, beside TVM's calling convention.

TVM hands a tensor's memory to compiled code. Torch knows more of a tensor than its memory, and a call
of a kernel respects that as torch's own operators do:

- what is written counts as modified (`_version`), so that a backward that needs the old value says so;
- what is computed from tensors that require a gradient raises an error when a backward reaches it,
  since a kernel has no gradient of its own;
- a trace, a dispatch mode, a fake tensor and a tensor with the negative bit see one operator
  (`tvmtile.jit.torch_library`).

A call with plain tensors costs a look at each of them, written out for each kernel; where it is to
have no negative bit either, torch's own guard answers for all of them at once as long as they are like
those before. Imported only where torch has been.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from textwrap import indent
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from tvm import ir

from tvmtile.errors import ArgumentError, as_shown, user_location
from tvmtile.jit import threads
from tvmtile.jit.dynamo import frame_callback, untraced
from tvmtile.jit.executable import PROGRAM_FAILURES, Executable
from tvmtile.jit.signature import is_pointer
from tvmtile.jit.torch_library import Operators, is_wrapper

_NO_GRADIENT = "a kernel has no gradient of its own"
_REMEDY = (
    "call it under torch.no_grad(), or in the forward of a torch.autograd.Function whose backward "
    "says what the gradient is"
)


_CALL = """\
try:
    is_plain = not ({special})
except AttributeError:  # not a tensor of torch's
    is_plain = False
if not is_plain:
    call_with_care({args})
    return
try:
    launch({args})
except Exception:
    if not any(map(is_wrapper, ({args}))):
        raise
    operators({args})  # nothing ran, since there is no memory
else:
    increment_version(({outputs}))
"""
"""Loops over the arguments written out: a call does little else."""

_FUNCTIONS = """
def call({args}):
    if {is_traced}:
        return untraced(call, ({args}), {{}})
{call}

def __call__(self, /, {optional}*more, **named):
    if {is_traced}:
        return untraced(self, ({args}*more,), named)
    if {is_other}:
        problem, results = self._outcome(given(({args}*more,)), named)
    else:
        try:
{called}
            return None
        except program_failures as error:
            problem = as_shown(error)
        except Exception as error:
            problem, results = run_converted(({args}), error)
    if problem is not None:
        raise problem
    return results
"""
"""Rare calls are done as in `Kernel.__call__`."""

_IS_TRACED = "is_dynamo_compiling() or frame_callback() is not None"
"""`dynamo.is_traced`, written out."""

_GUARD: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)
"""The check by torch.compile of the arguments of a compiled function, one call for all of them."""

_KINDS = 8
"""How often a guard is made anew for tensors that are not like those before."""


class TorchCalls:
    """Calls of an executable that do to torch's tensors what torch expects of an operator.

    Attributes
    ----------
    function : callable
        Takes all parameters.
    method : callable
        `Kernel.__call__` of a kernel without results: a call enters one function of ours.
    """

    def __init__(self, executable: Executable) -> None:
        signature, name = executable.signature, executable.name
        tensors = sorted((*signature.tensors, *signature.pointers))
        written = [index for index in tensors if index in executable.artifact.written]
        signed = [index for index in tensors if _may_be_negated(signature.params[index])]
        args = [f"a{index}" for index in range(len(signature.params))]
        given = _listed(args[index] for index in tensors)
        differentiable = " | ".join(f"{args[index]}.requires_grad" for index in tensors)
        special = " or ".join(
            [
                *([f"({differentiable}) and is_grad_enabled()"] if tensors else ()),
                *(f"{args[index]}.is_neg()" for index in signed),
                "is_tracing()",
            ]
        )
        if signed and _GUARD is not None:
            is_plain = f"is_like_before({given}) and (in_any_mode or not is_grad_enabled())"
            special = f"not ({is_plain}) and ({special} or not remember({given}))"
        first = f"getattr({args[0]}, 'device', None)" if args and executable.follows else ""
        moved = [f"self._on_devices.get({first}) is not executable"] if first else []
        call = _CALL.format(
            args=_listed(args),
            special=f"{special} or modes() or forward_ad._current_level >= 0 or threads.ending",
            outputs=_listed(args[index] for index in tensors if index in written),
        )
        source = _FUNCTIONS.format(
            args=_listed(args),
            is_traced=_IS_TRACED,
            optional=_listed(f"{arg}=absent" for arg in args),
            is_other=" or ".join(
                ["more", "named", *(f"{arg} is absent" for arg in args[-1:]), *moved]
            ),
            call=indent(call, " " * 4),
            called=indent(call, " " * 12),
        )

        def launch(*given: object) -> None:
            names["launch"](*given)

        operators = Operators(launch, name, written)

        def call_with_care(*given: object) -> None:
            _call_with_care(launch, operators, given, [given[index] for index in written], name)

        names: dict[str, Any] = {
            "__package__": __package__,  # by which `threads` knows a frame of ours
            "absent": _ABSENT,
            "call_with_care": call_with_care,
            "forward_ad": forward_ad,
            "executable": executable,
            "frame_callback": frame_callback(torch),
            "given": _given,
            "increment_version": torch._C._increment_version,
            "is_dynamo_compiling": torch.compiler.is_dynamo_compiling,
            "is_grad_enabled": torch.is_grad_enabled,
            "is_tracing": torch._C._is_tracing,
            "is_wrapper": is_wrapper,
            "launch": executable.launch,
            "modes": torch._C._len_torch_dispatch_stack,
            "operators": operators,
            "program_failures": PROGRAM_FAILURES,
            "threads": threads,
            "as_shown": as_shown,
            "run_converted": executable.run_converted,
            "untraced": untraced,
        }
        _remember_in(names)
        exec(compile(source, f"<tvmtile: call of {name}>", "exec"), names)
        self.function: Callable[..., None] = names["call"]
        self.method: Callable[..., Any] = names["__call__"]
        self._names = names

    def launch(self, function: Callable[..., object]) -> None:
        """Launch by another function from now on."""
        self._names["launch"] = function


_PARTS = ("float16", "float32", "float64")
"""The dtypes of parts of complex numbers."""


def _may_be_negated(param: ir.Var) -> bool:
    """Tell whether a tensor given for a parameter may have torch's negative bit."""
    return is_pointer(param) or str(param.ty.dtype) in _PARTS


_ABSENT = object()


def _given(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(arg for arg in args if arg is not _ABSENT)


def _listed(names: Iterable[str]) -> str:
    return "".join(f"{name}, " for name in names)


def _remember_in(names: dict[str, Any]) -> None:
    """Give a call `is_like_before`, by which torch tells in one call that all tensors are plain.

    They are where each has the type, the device and the dispatch keys of one that was found plain (the
    negative bit is such a key, and so is a trace), and the same need of a gradient. Sizes are free.
    A tensor that is given twice is never accepted: such calls look at their tensors one by one.
    """
    renewals = iter(range(_KINDS))  # else tensors of many kinds in turn would have one made a call

    def remember(*tensors: Tensor) -> bool:
        if not torch.compiler.is_dynamo_compiling() and next(renewals, None) is not None:
            free = [[None] * tensor.ndim for tensor in tensors]
            guard = _GUARD(*tensors, dynamic_dims_sizes=free, dynamic_dims_strides=free)
            names["is_like_before"] = guard.check
            # The guard does not ask whether gradients are recorded.
            names["in_any_mode"] = not any(tensor.requires_grad for tensor in tensors)
        return True

    names["remember"] = remember
    names["is_like_before"] = lambda *_: False
    names["in_any_mode"] = True


def _call_with_care(
    launch: Callable[..., object],
    operators: Operators,
    args: tuple[Any, ...],
    outputs: Sequence[Any],
    name: str,
) -> None:
    """Call with tensors that require a gradient, that torch has to see, or that are not torch's.

    As the interpreter ends, all calls come here.
    """
    threads.leave_daemon()
    outputs = [output for output in outputs if isinstance(output, Tensor)]
    inputs = [arg for arg in args if isinstance(arg, Tensor)]
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in inputs):
        raise ArgumentError(f"{name}: {_NO_GRADIENT}", help=_REMEDY)
    source = next((t for t in inputs if t.requires_grad), None) if torch.is_grad_enabled() else None
    if source is not None:
        _refuse_leaves(outputs, name)
    if _must_dispatch(inputs):
        _dispatch(operators, args, outputs)
    else:
        launch(*(arg.detach() if isinstance(arg, Tensor) else arg for arg in args))
        torch._C._increment_version(outputs)
    for output in outputs if source is not None else ():
        if output.is_floating_point() and not isinstance(output.grad_fn, _NoGradient._backward_cls):
            _NoGradient.apply(name, user_location(), source, output)


def _dispatch(operators: Operators, args: Sequence[object], outputs: Sequence[Tensor]) -> None:
    """Let torch call the kernel; it resolves what is read, and not what is written."""
    negated = {id(output): output.detach().resolve_neg() for output in outputs if output.is_neg()}
    operators(*(negated.get(id(arg), arg) for arg in args))
    for output in outputs:
        if id(output) in negated:
            output.detach().copy_(negated[id(output)])


def _must_dispatch(tensors: Sequence[Tensor]) -> bool:
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._is_tracing()
        or forward_ad._current_level >= 0
        or any(tensor.is_neg() or is_wrapper(tensor) for tensor in tensors)
    )


def _refuse_leaves(outputs: Sequence[Tensor], name: str) -> None:
    for output in outputs:
        base = output._base if output._base is not None else output
        if base.requires_grad and base.is_leaf:
            raise ArgumentError(
                f"{name} writes a tensor that requires a gradient and is a leaf of the graph",
                help=_REMEDY,
            )


class _NoGradient(torch.autograd.Function):
    """Stands in the graph where a kernel has written, for a backward to find."""

    @staticmethod
    def forward(ctx: Any, name: str, call: object, source: Tensor, output: Tensor) -> Tensor:
        """Record that `output` was computed from `source` by the kernel `name`, in the line `call`."""
        del source
        ctx.name, ctx.call = name, call
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *_gradients: object) -> Any:
        """Raise an error."""
        raise ArgumentError(f"{ctx.name}: {_NO_GRADIENT}", help=_REMEDY, location=ctx.call)
