"""`tvmtile.ops.softmax`, `rms_norm` and `layer_norm`, operators of torch's with gradients.

Gradients are torch's own kernels where it has them for a device, and formulas elsewhere.

Imported only where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

import tvmtile.language as T
from tvmtile.errors import ArgumentError, hide_internal_frames
from tvmtile.jit import Kernel
from tvmtile.ops import programs
from tvmtile.ops.checks import check_same_kind, check_tensor, described
from tvmtile.ops.configurations import rows_configuration
from tvmtile.ops.kernels import Plans, compiled, how_it_lies, is_plain, size_class, target_for

__all__ = ["layer_norm", "rms_norm", "softmax", "softmax_operator"]


@hide_internal_frames
def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """The softmax along an axis, computed in float32; another axis than the last is copied to be it.

    Parameters
    ----------
    x : torch.Tensor
        Of any shape.
    dim : int
        The axis.

    Raises
    ------
    ArgumentError
        If `x` is no tensor of floats, or has no such axis.
    """
    check_tensor("softmax", "x", x, 1)
    if not -x.dim() <= dim < x.dim():
        raise ArgumentError(
            f"softmax: dim={dim}, and x is {described(x)}",
            help=f"the axes are {-x.dim()} to {x.dim() - 1}",
        )
    if dim not in (-1, x.dim() - 1):
        return softmax(x.movedim(dim, -1)).movedim(-1, dim)
    return _apply("softmax", [("x", x)], 0.0, softmax_operator)


@hide_internal_frames
def rms_norm(x: Tensor, weight: Tensor | None = None, epsilon: float = 1e-6) -> Tensor:
    """Rows over the root of their mean square, times a weight for each column, computed in float32.

    Parameters
    ----------
    x : torch.Tensor
        Of shape (..., N).
    weight : torch.Tensor, optional
        Of shape (N,); ones where absent.
    epsilon : float
        What is added to the mean square.

    Raises
    ------
    ArgumentError
        For an argument that does not fit; the message says which.
    """
    check_tensor("rms_norm", "x", x, 1)
    weight = x.new_ones(x.shape[-1]) if weight is None else weight
    return _apply("rms_norm", [("x", x), ("weight", weight)], epsilon, _rms_norm)


@hide_internal_frames
def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, epsilon: float = 1e-5
) -> Tensor:
    """Rows less their mean over their deviation, scaled and shifted a column, computed in float32.

    Parameters
    ----------
    x : torch.Tensor
        Of shape (..., N).
    weight, bias : torch.Tensor, optional
        Of shape (N,); ones and zeros where absent.
    epsilon : float
        What is added to the variance.

    Raises
    ------
    ArgumentError
        For an argument that does not fit; the message says which.
    """
    check_tensor("layer_norm", "x", x, 1)
    weight = x.new_ones(x.shape[-1]) if weight is None else weight
    bias = x.new_zeros(x.shape[-1]) if bias is None else bias
    tensors = [("x", x), ("weight", weight), ("bias", bias)]
    return _apply("layer_norm", tensors, epsilon, _layer_norm)


def _apply(
    name: str, named: Sequence[tuple[str, Tensor]], epsilon: float, operator: Callable[..., Tensor]
) -> Tensor:
    tensors = [tensor for _, tensor in named]
    if is_plain(*tensors):
        return _run(name, named, epsilon)
    return operator(*tensors) if name == "softmax" else operator(*tensors, epsilon)


def _check(name: str, named: Sequence[tuple[str, Tensor]]) -> None:
    x = named[0][1]
    for argument, tensor in named:
        check_tensor(name, argument, tensor, 1)
    check_same_kind(name, *named)
    for argument, tensor in named[1:]:
        if tensor.shape != x.shape[-1:]:
            raise ArgumentError(
                f"{name}: {argument} is {described(tensor)}, and x is {described(x)}",
                help=f"it has one element for each column of x: its shape is ({x.shape[-1]},)",
            )


_plans = Plans()


def _run(name: str, named: Sequence[tuple[str, Tensor]], epsilon: float) -> Tensor:
    x, *columns = (tensor for _, tensor in named)
    try:
        key = (name, epsilon, *[how_it_lies(tensor) for _, tensor in named])
    except (AttributeError, RuntimeError):  # no dense tensors, which the checks say
        _check(name, named)
        raise
    kernel: Kernel | None = _plans.get(key)
    if kernel is None:
        _check(name, named)
        width = x.shape[-1]
        if not x.numel():
            return torch.empty_like(x, memory_format=torch.contiguous_format)
        rows = size_class(x.numel() // width)
        kernel = _plans[key] = _kernel(name, rows, width, x.dtype, epsilon, x.device.type)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    columns = [column.contiguous() for column in columns]
    if x.dim() == 2:
        kernel(x.contiguous(), *columns, out)
    else:
        width = x.shape[-1]
        kernel(x.reshape(-1, width).contiguous(), *columns, out.view(-1, width))
    return out


@lru_cache(maxsize=4096)
def _kernel(
    name: str, rows: int, width: int, dtype: torch.dtype, epsilon: float, device: str
) -> Kernel:
    target, element = target_for(device), str(dtype).removeprefix("torch.")
    configuration = rows_configuration(target, rows, width, element)
    options: dict[str, object] = {} if name == "softmax" else {"epsilon": epsilon}

    def program() -> Any:
        make = getattr(programs, name)
        M = T.dynamic("M")
        return make(M, width, element, target=target, configuration=configuration, **options)

    return compiled((name, width, element, epsilon, *configuration.values()), program, target)


# As operators of torch's -----------------------------------------------------------------------------


@torch.library.custom_op("tvmtile::softmax", mutates_args=(), schema="(Tensor x) -> Tensor")
def softmax_operator(x: Tensor) -> Tensor:
    """`softmax` along the last axis, as torch knows it."""
    return _run("softmax", [("x", x)], 0.0)


@torch.library.custom_op(
    "tvmtile::rms_norm",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, float epsilon) -> Tensor",
)
def _rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return _run("rms_norm", [("x", x), ("weight", weight)], epsilon)


@torch.library.custom_op(
    "tvmtile::layer_norm",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor bias, float epsilon) -> Tensor",
)
def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    return _run("layer_norm", [("x", x), ("weight", weight), ("bias", bias)], epsilon)


def _fake(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep_inputs(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    del output
    *tensors, ctx.epsilon = inputs
    ctx.save_for_backward(*tensors)


def _keep_output(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    del inputs
    ctx.save_for_backward(output)


def _of_softmax(ctx: Any, gradient: Tensor) -> Tensor:
    (y,) = ctx.saved_tensors
    of_x: Tensor = torch._softmax_backward_data(gradient.to(y.dtype), y, -1, y.dtype)
    return of_x


def _of_rms_norm(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    if x.is_cuda and hasattr(torch.ops.aten, "_fused_rms_norm_backward"):
        operators, shape = torch.ops.aten, [x.shape[-1]]
        _, factor = operators._fused_rms_norm(x, shape, weight, ctx.epsilon)
        given = gradient.contiguous(), x, shape, factor, weight, [True, True]
        return (*operators._fused_rms_norm_backward(*given), None)
    x, weight = x.float(), weight.float()
    factor = torch.rsqrt(x.square().mean(-1, keepdim=True) + ctx.epsilon)
    unit = x * factor
    inner = gradient * weight
    of_x = factor * (inner - unit * (inner * unit).mean(-1, keepdim=True))
    return of_x.to(gradient.dtype), _summed(gradient * unit, gradient), None


def _of_layer_norm(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias = ctx.saved_tensors
    if x.is_cuda:
        operators, shape = torch.ops.aten, [x.shape[-1]]
        _, mean, factor = operators.native_layer_norm(x, shape, weight, bias, ctx.epsilon)
        given = gradient.contiguous(), x, shape, mean, factor, weight, bias, [True, True, True]
        return (*operators.native_layer_norm_backward(*given), None)
    x, weight = x.float(), weight.float()
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    factor = torch.rsqrt(variance + ctx.epsilon)
    unit, inner = (x - mean) * factor, gradient * weight
    mean_inner, mean_both = inner.mean(-1, keepdim=True), (inner * unit).mean(-1, keepdim=True)
    of_x = factor * (inner - mean_inner - unit * mean_both)
    of_weight, of_bias = _summed(gradient * unit, gradient), _summed(gradient.float(), gradient)
    return of_x.to(gradient.dtype), of_weight, of_bias, None


def _summed(rows: Tensor, like: Tensor) -> Tensor:
    """The sum over all axes but the last."""
    return rows.flatten(0, -2).sum(0).to(like.dtype)


for _operator, _gradient, _keep in (
    (softmax_operator, _of_softmax, _keep_output),
    (_rms_norm, _of_rms_norm, _keep_inputs),
    (_layer_norm, _of_layer_norm, _keep_inputs),
):
    _operator.register_fake(_fake)
    _operator.register_autograd(_gradient, setup_context=_keep)
