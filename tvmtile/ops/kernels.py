"""Kernels of the operators: compiled once for a program and a kind of device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from tvmtile.errors import ArgumentError
from tvmtile.ir.types import Precision
from tvmtile.jit import Kernel
from tvmtile.jit import compile as compile_program
from tvmtile.jit.backends import chosen_target, target_on
from tvmtile.target import CUDA_MOST_BLOCKS, TargetLike

_LARGEST = 1 << 14
_MOST_PLANS = 4096
_kernels: dict[Any, Kernel] = {}


def target_for(device: Any) -> Any:
    """The target of a kind of device of torch's; what `TVMTILE_TARGET` names where it is set."""
    return chosen_target() or target_on(device)


def size_class(extent: int) -> int:
    """The class of an extent that varies between calls: the next power of two, up to a limit.

    So calls of many different extents share few configurations, and as many kernels.
    """
    return min(_LARGEST, 1 << max(0, extent - 1).bit_length())


def float32_precision(dtype: Any) -> Precision:
    """The precision of products of a dtype on CUDA: of float32 as torch's switches say."""
    torch = sys.modules["torch"]
    if dtype != torch.float32:
        return "tf32"
    switches = torch.backends.cuda.matmul
    of_all = getattr(switches, "fp32_precision", None)  # torch 2.9; the older ones set it
    may = switches.allow_tf32 if of_all is None else of_all == "tf32"
    return "tf32" if may else "ieee"


def compiled(key: Any, program: Callable[[], Any], target: TargetLike) -> Kernel:
    """The kernel of a program.

    Parameters
    ----------
    key : hashable
        All that decides the program.
    program : callable
        Makes it.
    target : str or dict
        What it is compiled for.
    """
    key = (str(target), key)
    kernel = _kernels.get(key)
    if kernel is None:
        kernel = _kernels[key] = compile_program(program(), target=target)
    return kernel


def call_in_parts(
    kernel: Callable[..., Any],
    *tensors: Any,
    whole: Sequence[int] = (),
    most: int = CUDA_MOST_BLOCKS,
) -> None:
    """Call a kernel as often as its tensors have more along their first axis than a grid.

    Parameters
    ----------
    kernel : Kernel
        What takes them, or as many parts of them.
    *tensors : torch.Tensor
        The arguments, the first one in parts.
    whole : sequence of int
        Which arguments each call is given whole.
    most : int
        Of the first axis; that of a batch is the third of a grid.
    """
    count = tensors[0].shape[0]
    if count <= most:
        kernel(*tensors)
        return
    for start in range(0, count, most):
        part = slice(start, start + most)
        kernel(*(x if i in whole else x[part] for i, x in enumerate(tensors)))


def is_plain(*tensors: Any) -> bool:
    """Tell whether torch has nothing to record or to trace of these tensors, None aside."""
    torch = sys.modules["torch"]  # they are its tensors, or an error that a check names
    if is_traced(*tensors):
        return False
    if not torch.is_grad_enabled():
        return True
    return not any(getattr(tensor, "requires_grad", False) for tensor in tensors)


def is_traced(*tensors: Any) -> bool:
    """Tell whether torch has to see an operator of its own that gets these tensors, None aside.

    Raises
    ------
    ArgumentError
        If torch.func is to differentiate it: operators of torch.library have no rule for that.
    """
    torch = sys.modules["torch"]
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    if torch._C._functorch.maybe_current_level() is not None:
        _refuse_derivatives(torch, tensors)
        return True
    plain = (torch.Tensor, torch.nn.Parameter, type(None))
    return any(type(tensor) not in plain and _is_wrapper(tensor) for tensor in tensors)


def _refuse_derivatives(torch: Any, tensors: Sequence[Any]) -> None:
    functorch, tangent_of = torch._C._functorch, torch.autograd.forward_ad.unpack_dual
    for given in tensors:
        tensor = given
        while tensor is not None and functorch.is_functorch_wrapped_tensor(tensor):
            is_tracked = functorch.is_gradtrackingtensor(tensor)
            if is_tracked and (tensor.requires_grad or tangent_of(tensor).tangent is not None):
                raise ArgumentError(
                    "torch.func's grad, vjp and jvp do not reach into tvmtile.ops",
                    help="use torch.autograd.grad or backward(); torch.vmap works",
                )
            tensor = functorch.get_unwrapped(tensor)


def _is_wrapper(tensor: Any) -> bool:
    from tvmtile.jit.torch_library import is_wrapper

    return is_wrapper(tensor)


def sum_of_rows(tensor: Any) -> Any:
    """The sum over all axes but the last."""
    return tensor.unsqueeze(0).flatten(0, -2).sum(0)


def sum_dtype(tensor: Any) -> Any:
    """The dtype of torch's in which an operator adds elements of a tensor."""
    torch = sys.modules["torch"]
    return torch.promote_types(tensor.dtype, torch.float32)


def how_it_lies(tensor: Any) -> Hashable:
    """All that decides what kernel reads a tensor, and how; what is no dense tensor is an error.

    Raises
    ------
    AttributeError, RuntimeError
        For what has no strides.
    """
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


class Plans(dict[Hashable, Any]):
    """Decisions by how arguments lie, forgotten where there are too many."""

    def __setitem__(self, key: Hashable, plan: Any) -> None:
        if len(self) >= _MOST_PLANS:
            self.clear()
        super().__setitem__(key, plan)
