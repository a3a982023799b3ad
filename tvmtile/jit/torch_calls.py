"""What torch expects of whoever reads and writes its tensors, beside TVM's calling convention.

TVM hands a tensor's memory to compiled code. Torch knows more of a tensor than its memory, and a call
of a kernel respects that as torch's own operators do:

- what is written counts as modified (`_version`), so that a backward that needs the old value says so;
- what is computed from tensors that require a gradient raises an error when a backward reaches it,
  since a kernel has no gradient of its own;
- a trace, a dispatch mode, a fake tensor and a tensor with the negative bit see one operator
  (`tvmtile.jit.torch_operators`).

A call with plain tensors costs a look at each of them. Imported only where torch has been.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tvmtile.errors import ArgumentError, user_location
from tvmtile.jit.torch_operators import Operators, is_wrapper

__all__ = ["as_torch_operator"]

_NO_GRADIENT = "a kernel has no gradient of its own"
_REMEDY = (
    "call it under torch.no_grad(), or in the forward of a torch.autograd.Function whose backward "
    "says what the gradient is"
)


def as_torch_operator(
    launch: Callable[..., object],
    name: str,
    tensors: Sequence[int],
    written: Collection[int],
    signed: Collection[int],
) -> Callable[..., None]:
    """`launch`, doing to torch's tensors what torch expects of an operator.

    Parameters are given by number: those that are tensors or pointers, those of them that the program
    may write, and those that can have the negative bit, as parts of complex numbers do.
    """
    operators = Operators(launch, name, written)
    outputs_of = _items([index for index in tensors if index in written])
    tensors, signed = tuple(tensors), tuple(signed)
    # Bound here, since a call does little else.
    is_grad_enabled, increment_version = torch.is_grad_enabled, torch._C._increment_version
    is_tracing, modes = torch._C._is_tracing, torch._C._len_torch_dispatch_stack

    def call(*args: Any) -> None:
        is_plain = not (modes() or is_tracing()) and forward_ad._current_level < 0
        try:
            for index in tensors:
                if args[index].requires_grad and is_grad_enabled():
                    is_plain = False
            for index in signed:
                if args[index].is_neg():
                    is_plain = False
        except (AttributeError, IndexError):  # not a tensor of torch's, or too few arguments
            is_plain = False
        if not is_plain:
            outputs = [args[index] for index in written if index < len(args)]
            _call_with_care(launch, operators, args, outputs, name)
            return
        try:
            launch(*args)
        except Exception:
            if not any(map(is_wrapper, args)):
                raise
            operators(*args)  # nothing ran, since there is no memory
        else:
            increment_version(outputs_of(args))

    return call


def _items(indices: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """What takes the arguments of these indices out of all, which are in order."""
    if not indices or indices[-1] - indices[0] == len(indices) - 1:
        return itemgetter(slice(indices[0], indices[-1] + 1) if indices else slice(0))
    return itemgetter(*indices)


def _call_with_care(
    launch: Callable[..., object],
    operators: Operators,
    args: tuple[Any, ...],
    outputs: Sequence[Any],
    name: str,
) -> None:
    """Call with tensors that require a gradient, that torch has to see, or that are not torch's."""
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


def _dispatch(operators: Operators, args: Sequence[Any], outputs: Sequence[Tensor]) -> None:
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
    def forward(ctx: Any, name: str, call: Any, source: Tensor, output: Tensor) -> Tensor:
        """Record that `output` was computed from `source` by the kernel `name`, in the line `call`."""
        del source
        ctx.name, ctx.call = name, call
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *_gradients: object) -> Any:
        """Raise an error."""
        raise ArgumentError(f"{ctx.name}: {_NO_GRADIENT}", help=_REMEDY, location=ctx.call)
