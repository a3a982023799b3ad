"""Forwards that stand in place of a module's own, and the modules that they fit.

A forward is a function of the module and its arguments, set on the instance: parameters, hooks and
`state_dict` stay what they are, and deleting the attribute brings the module's own forward back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tvmtile import ops


def _linear(module: Any, activation: str | None, x: Tensor) -> Tensor:
    return ops.matmul(x, module.weight.mT, module.bias, activation=activation)


def _softmax(module: Any, x: Tensor) -> Tensor:
    return ops.softmax(x, module.dim)


def _layer_norm(module: Any, x: Tensor) -> Tensor:
    return ops.layer_norm(x, module.weight, module.bias, module.eps)


def _rms_norm(module: Any, epsilon: float | None, x: Tensor) -> Tensor:
    epsilon = torch.finfo(x.dtype).eps if epsilon is None else epsilon
    return ops.rms_norm(x, module.weight, epsilon)


def identity(x: Tensor) -> Tensor:
    """A stand-in for an activation that is part of the product before it."""
    return x


def forward_of(
    module: nn.Module, activation: str | None = None
) -> tuple[str, Callable[..., Tensor] | str] | None:
    """The operator that does what a module does, and the forward, or why there is none.

    None for a module of another kind. A norm that is written by hand is known by its class's name, its
    weight and its epsilon. That it is one is for verification to say. `activation` is what follows a
    linear layer.
    """
    forward, named = type(module).forward, type(module).__name__.lower()
    if isinstance(module, nn.Linear):
        name = f"matmul + {activation}" if activation else "matmul"
        is_torchs = forward is nn.Linear.forward
        return name, partial(_linear, module, activation) if is_torchs else _OWN_FORWARD
    if isinstance(module, nn.Softmax) and forward is nn.Softmax.forward:
        return "softmax", "it names no axis" if module.dim is None else partial(_softmax, module)
    if isinstance(module, nn.LayerNorm) and forward is nn.LayerNorm.forward:
        many = len(module.normalized_shape) > 1
        return "layer_norm", _MANY_AXES if many else partial(_layer_norm, module)
    if isinstance(module, nn.RMSNorm) and forward is nn.RMSNorm.forward:
        many = len(module.normalized_shape) > 1
        return "rms_norm", _MANY_AXES if many else partial(_rms_norm, module, module.eps)
    if "rmsnorm" in named:
        return "rms_norm", _norm_by_hand(module)
    return ("layer_norm", _OWN_FORWARD) if "layernorm" in named else None


_OWN_FORWARD = "its class has a forward of its own"
_MANY_AXES = "it is over several axes"


def _norm_by_hand(module: nn.Module) -> Callable[..., Tensor] | str:
    weight = getattr(module, "weight", None)
    epsilon = next((getattr(module, n) for n in _EPSILONS if hasattr(module, n)), None)
    if not isinstance(weight, Tensor) or weight.dim() != 1:
        return "it has no `weight` of one axis"
    if not isinstance(epsilon, float):
        return f"it has no number {', '.join(_EPSILONS[:-1])} or {_EPSILONS[-1]}"
    return partial(_rms_norm, module, epsilon)


_EPSILONS = ("eps", "variance_epsilon", "epsilon")


def activation_of(module: nn.Module) -> str | None:
    """The activation that a module is, as `ops.matmul` names it."""
    if type(module) is nn.GELU:
        return {"none": "gelu", "tanh": "gelu_tanh"}[module.approximate]
    return {nn.ReLU: "relu", nn.SiLU: "silu"}.get(type(module))


# Functions that a forward calls ----------------------------------------------------------------------


def _attention_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Callable[[], Tensor] | str:
    if attn_mask is not None:
        return "it is given a mask"
    if dropout_p:
        return "it drops weights out"
    if not query.dim() == key.dim() == value.dim() == 4:
        return "its tensors have not 4 axes"
    if query.shape[0] != key.shape[0] or key.shape[:2] != value.shape[:2]:
        return "it broadcasts batches, or heads of values"
    if query.shape[1] != key.shape[1] and not enable_gqa:
        return "it broadcasts heads"
    return partial(ops.attention, query, key, value, causal=is_causal, scale=scale)


def _softmax_call(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: object = None
) -> Callable[[], Tensor] | str:
    del _stacklevel
    if dim is None or dtype not in (None, input.dtype):
        return "it computes in another dtype than its tensor's, or of no axis"
    return partial(ops.softmax, input, dim)


def _tensor_softmax_call(
    input: Tensor, dim: int | None = None, dtype: object = None
) -> Callable[[], Tensor] | str:
    return _softmax_call(input, dim, dtype=dtype)


FUNCTIONS: Mapping[Any, tuple[str, Callable[..., Callable[[], Tensor] | str]]] = {
    functional.scaled_dot_product_attention: ("attention", _attention_call),
    functional.softmax: ("softmax", _softmax_call),
    torch.softmax: ("softmax", _tensor_softmax_call),
    Tensor.softmax: ("softmax", _tensor_softmax_call),
}
"""By torch's function: the operator's name, and what makes a call of it, or says why there is none."""


class _ByKernels(TorchFunctionMode):
    """Calls kernels in place of some of torch's functions, where they do the same."""

    def __init__(self, functions: Collection[Any]) -> None:
        super().__init__()
        self._functions = functions

    def __torch_function__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func in self._functions:
            call = FUNCTIONS[func][1](*args, **kwargs)
            if not isinstance(call, str):
                return call()
        return func(*args, **kwargs)


def functions_by_kernels(
    module: nn.Module, functions: Collection[Any], *args: object, **kwargs: object
) -> Any:
    """A module's own forward, with kernels for some of the functions that it calls.

    Where torch.compile traces, these are torch's own: it does not know all of a tensor's methods under
    a mode.
    """
    if torch.compiler.is_compiling():
        return type(module).forward(module, *args, **kwargs)
    with _ByKernels(functions):
        return type(module).forward(module, *args, **kwargs)
