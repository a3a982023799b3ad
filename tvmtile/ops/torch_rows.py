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
from tvmtile.ops.kernels import (
    Plans,
    compiled,
    how_it_lies,
    is_plain,
    is_traced,
    size_class,
    sum_dtype,
    sum_of_rows,
    target_for,
)

__all__ = ["layer_norm", "rms_norm", "softmax", "softmax_operator"]


@hide_internal_frames
def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """The softmax along an axis; another one than the last is copied to be it.

    It is computed in float32, for float64 in float64.

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
    """Rows over the root of their mean square, times a weight for each column.

    They are computed in float32, for float64 in float64.

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
    """Rows less their mean over their deviation, scaled and shifted a column.

    They are computed in float32, for float64 in float64.

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
    name: str, named: Sequence[tuple[str, Tensor]], epsilon: float, operator: Callable[..., Any]
) -> Tensor:
    tensors = [tensor for _, tensor in named]
    if is_plain(*tensors):
        return _run(name, named, epsilon)
    arguments = tensors if name == "softmax" else [*tensors, epsilon]
    if not is_traced(*tensors):
        recorded: Tensor = _RECORDED[name].apply(*arguments)
        return recorded
    results = operator(*arguments)
    return results if name == "softmax" else results[0]


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


def _run(
    name: str,
    named: Sequence[tuple[str, Tensor]],
    epsilon: float,
    statistics: Sequence[Tensor] = (),
) -> Tensor:
    """The result; `statistics`, of which each row has one, are written."""
    x, *columns = (tensor for _, tensor in named)
    try:
        key = (name, epsilon, len(statistics), *[how_it_lies(tensor) for _, tensor in named])
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
        kernel = _plans[key] = _kernel(
            name, rows, width, x.dtype, epsilon, bool(statistics), x.device.type
        )
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    columns = [column.contiguous() for column in columns]
    if x.dim() == 2:
        kernel(x.contiguous(), *columns, out, *statistics)
    else:
        width = x.shape[-1]
        kernel(x.reshape(-1, width).contiguous(), *columns, out.view(-1, width), *statistics)
    return out


@lru_cache(maxsize=4096)
def _kernel(
    name: str,
    rows: int,
    width: int,
    dtype: torch.dtype,
    epsilon: float,
    statistics: bool,
    device: str,
) -> Kernel:
    target, element = target_for(device), str(dtype).removeprefix("torch.")
    configuration = rows_configuration(target, rows, width, element)
    options: dict[str, object] = (
        {} if name == "softmax" else {"epsilon": epsilon, "statistics": statistics}
    )

    def program() -> Any:
        make = getattr(programs, name)
        M = T.dynamic("M")
        return make(M, width, element, target=target, configuration=configuration, **options)

    key = (name, width, element, epsilon, statistics, *configuration.values())
    return compiled(key, program, target)


# As operators of torch's -----------------------------------------------------------------------------


def _softmax_of(x: Tensor) -> Tensor:
    return _run("softmax", [("x", x)], 0.0)


def _rms_norm_of(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The result, and what each row was multiplied by."""
    factor = _statistic(x)
    named = [("x", x), ("weight", weight)]
    return _run("rms_norm", named, epsilon, (factor.view(-1),)), factor


def _layer_norm_of(
    x: Tensor, weight: Tensor, bias: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, the mean of each row, and what it was multiplied by."""
    mean, factor = _statistic(x), _statistic(x)
    named = [("x", x), ("weight", weight), ("bias", bias)]
    out = _run("layer_norm", named, epsilon, (mean.view(-1), factor.view(-1)))
    return out, mean, factor


def _statistic(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], 1), dtype=sum_dtype(x))


softmax_operator = torch.library.custom_op(
    "tvmtile::softmax", _softmax_of, mutates_args=(), schema="(Tensor x) -> Tensor"
)
"""`softmax` along the last axis, as torch knows it."""
_rms_norm = torch.library.custom_op(
    "tvmtile::rms_norm",
    _rms_norm_of,
    mutates_args=(),
    schema="(Tensor x, Tensor weight, float epsilon) -> (Tensor, Tensor)",
)
_layer_norm = torch.library.custom_op(
    "tvmtile::layer_norm",
    _layer_norm_of,
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor bias, float epsilon) -> (Tensor, Tensor, Tensor)",
)


@softmax_operator.register_fake
def _fake(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@_rms_norm.register_fake
def _fake_rms_norm(x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return _fake(x), _statistic(x)


@_layer_norm.register_fake
def _fake_layer_norm(x: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return _fake(x), _statistic(x), _statistic(x)


def _keep(ctx: Any, inputs: Sequence[Any], output: Sequence[Tensor]) -> None:
    *tensors, ctx.epsilon = inputs
    ctx.save_for_backward(*tensors, *output[1:])


def _keep_output(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    del inputs
    ctx.save_for_backward(output)


def _of_softmax(ctx: Any, gradient: Tensor) -> Tensor:
    (y,) = ctx.saved_tensors
    of_x: Tensor = torch._softmax_backward_data(gradient.to(y.dtype), y, -1, y.dtype)
    return of_x


def _of_rms_norm(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, factor = ctx.saved_tensors
    if x.is_cuda and hasattr(torch.ops.aten, "_fused_rms_norm_backward"):
        shape, wanted = [x.shape[-1]], list(ctx.needs_input_grad[:2])
        given = gradient.contiguous(), x, shape, factor, weight, wanted
        return (*torch.ops.aten._fused_rms_norm_backward(*given), None)
    if torch.is_grad_enabled():  # its own gradient is asked for: what was kept depends on x, too
        factor = torch.rsqrt(x.to(factor.dtype).square().mean(-1, keepdim=True) + ctx.epsilon)
    unit, inner = x * factor, gradient * weight.to(factor.dtype)
    of_x = factor * (inner - unit * (inner * unit).mean(-1, keepdim=True))
    return of_x.to(gradient.dtype), sum_of_rows(gradient * unit).to(gradient.dtype), None


def _of_layer_norm(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, mean, factor = ctx.saved_tensors
    if x.is_cuda:
        shape, wanted = [x.shape[-1]], list(ctx.needs_input_grad[:3])
        given = gradient.contiguous(), x, shape, mean, factor, weight, bias, wanted
        return (*torch.ops.aten.native_layer_norm_backward(*given), None)
    if torch.is_grad_enabled():
        variance, mean = torch.var_mean(x.to(factor.dtype), -1, correction=0, keepdim=True)
        factor = torch.rsqrt(variance + ctx.epsilon)
    unit, inner = (x - mean) * factor, gradient * weight.to(factor.dtype)
    mean_inner, mean_both = inner.mean(-1, keepdim=True), (inner * unit).mean(-1, keepdim=True)
    of_x = factor * (inner - mean_inner - unit * mean_both)
    of_weight, of_bias = sum_of_rows(gradient * unit), sum_of_rows(gradient.to(factor.dtype))
    return (*(x.to(gradient.dtype) for x in (of_x, of_weight, of_bias)), None)


def _recorded(
    operator: Any,
    compute: Callable[..., Any],
    keep: Callable[..., None],
    gradient: Callable[..., Any],
) -> Any:
    """Give an operator its gradient, and return a function of autograd's that does the same.

    Through torch's dispatcher a call takes longer than kernels do that read a few megabytes.
    """
    operator.register_autograd(gradient, setup_context=keep)

    def forward(ctx: Any, *arguments: Any) -> Tensor:
        results = compute(*arguments)
        keep(ctx, arguments, results)
        first: Tensor = results[0] if isinstance(results, tuple) else results
        return first

    methods = {"forward": staticmethod(forward), "backward": staticmethod(gradient)}
    return type("Recorded", (torch.autograd.Function,), methods)


_RECORDED = {
    "softmax": _recorded(softmax_operator, _softmax_of, _keep_output, _of_softmax),
    "rms_norm": _recorded(_rms_norm, _rms_norm_of, _keep, _of_rms_norm),
    "layer_norm": _recorded(_layer_norm, _layer_norm_of, _keep, _of_layer_norm),
}
"""Where autograd records, and nobody else looks."""
