"""`tvmtile.ops.matmul`, an operator of torch's with a gradient. Imported only where it is used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

import tvmtile.language as T
from tvmtile.errors import ArgumentError, hide_internal_frames
from tvmtile.ir.types import Precision
from tvmtile.jit import Kernel
from tvmtile.ops import programs
from tvmtile.ops.checks import check_same_kind, check_tensor, described
from tvmtile.ops.configurations import matmul_configuration
from tvmtile.ops.kernels import (
    Plans,
    call_in_parts,
    compiled,
    float32_precision,
    how_it_lies,
    is_plain,
    size_class,
    sum_of_rows,
    target_for,
)
from tvmtile.ops.programs.gemm import check_activation
from tvmtile.target import CUDA_MOST_BLOCKS

_FROM_RESULT = (None, "relu")
"""Activations whose gradient follows from their result."""
_BY_TORCH = {
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


@hide_internal_frames
def matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Tensor:
    """`activation(a @ b + bias)`, on the device of the tensors.

    It is one kernel; two where the result has too few elements to keep a GPU busy, the second of which
    adds, in order, what the first has summed over parts of K. A call gives the same bits as the one
    before it.

    Sums are of float32 (of float64 for float64) and are rounded once, behind the epilogue.
    Products of float32 are of all bits; on CUDA they are those of TF32, of 10 bits, where torch's are:
    `torch.backends.cuda.matmul.fp32_precision` says so, which the older `allow_tf32` and
    `torch.set_float32_matmul_precision` set.

    A matrix whose columns are contiguous, as `weight.T`, is read as it lies; one with other strides is
    copied first. It has a gradient, of three such products; with an activation other than relu, the
    activation is torch's where a gradient is asked for.

    Parameters
    ----------
    a : torch.Tensor
        Of shape (..., M, K).
    b : torch.Tensor
        Of shape (K, N), or (..., K, N) with the leading extents of `a`.
    bias : torch.Tensor, optional
        Of shape (N,).
    activation : str, optional
        "relu", "silu", "gelu", or "gelu_tanh", torch's `gelu(approximate="tanh")`.
    out_dtype : torch.dtype, optional
        Of the result, float16, bfloat16, float32 or float64; that of `a` where absent.
    transpose_a, transpose_b : bool
        The last two axes of `a` or `b` are swapped before.

    Raises
    ------
    ArgumentError
        For an argument that does not fit; the message says which.
    InvalidValue
        If there is no such activation.

    Examples
    --------
    >>> y = tvmtile.ops.matmul(x, weight.T, bias, activation="gelu")
    """
    if is_plain(a, b, bias):
        return _product(a, b, bias, activation, out_dtype, transpose_a, transpose_b)
    check_activation(activation)
    _check_result(out_dtype)
    a, b = _transposed(a, b, transpose_a, transpose_b)
    if activation in _FROM_RESULT:
        return matmul_operator(a, b, bias, activation, out_dtype)
    return apply_activation(activation, matmul_operator(a, b, bias, None, out_dtype))


def apply_activation(activation: str | None, value: Tensor) -> Tensor:
    """An activation as torch computes it."""
    return value if activation is None else _BY_TORCH[activation](value)


def _check_result(dtype: torch.dtype | None) -> None:
    if dtype not in (None, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise ArgumentError(
            f"matmul: out_dtype={dtype}, but sums are floats",
            help="a result is of float16, bfloat16, float32 or float64; convert it with `.to(...)`",
        )


def _check(a: Tensor, b: Tensor, bias: Tensor | None) -> None:
    check_tensor("matmul", "a", a, 1)
    check_tensor("matmul", "b", b, 2)
    check_same_kind("matmul", ("a", a), ("b", b))
    if a.shape[-1] != b.shape[-2] or (b.dim() > 2 and a.shape[:-2] != b.shape[:-2]):
        raise ArgumentError(
            f"matmul: b is {described(b)}, and a is {described(a)}",
            help="a is of shape (..., M, K) and b of shape (K, N) or (..., K, N); transpose_b=True "
            "takes b as (N, K), and b.expand(...) gives it the leading extents of a",
        )
    if bias is None:
        return
    check_tensor("matmul", "bias", bias, 1)
    check_same_kind("matmul", ("a", a), ("bias", bias))
    if bias.shape != b.shape[-1:]:
        raise ArgumentError(
            f"matmul: bias is {described(bias)}, and b is {described(b)}",
            help=f"the bias has one element for each column: its shape is ({b.shape[-1]},)",
        )


def _transposed(
    a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool
) -> tuple[Tensor, Tensor]:
    if transpose_a:
        check_tensor("matmul", "a", a, 2)
        a = a.mT
    if transpose_b:
        check_tensor("matmul", "b", b, 2)
        b = b.mT
    return a, b


class _Computation(NamedTuple):
    """The computation of a product of tensors that lie in a way."""

    kernel: Kernel | None
    """None where the result has no elements."""
    splits: int
    """Into how many parts it splits K."""
    shape: tuple[int, ...]
    view: tuple[int, ...]
    """Of the result as the kernel writes it, and as it is given."""
    of_a: Callable[[Tensor], Tensor]
    of_b: Callable[[Tensor], Tensor]
    """The functions that give the kernel its operands."""
    whole: tuple[int, ...] = ()
    """The arguments that each of several calls takes whole."""
    most: int = sys.maxsize
    """Matrices, or rows of one, of a call."""


_plans = Plans()
_LEAST_ROWS = 16
"""Of a block: that of tensor cores."""


def _product(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str | None,
    out_dtype: torch.dtype | None,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Tensor:
    try:
        added = None if bias is None else how_it_lies(bias)
        operands = how_it_lies(a), how_it_lies(b), added
    except (AttributeError, RuntimeError):  # no dense tensors, which the checks say
        _check(*_transposed(a, b, transpose_a, transpose_b), bias)
        raise
    precision = float32_precision(a.dtype)
    key = (*operands, activation, out_dtype, transpose_a, transpose_b, precision)
    plan: _Computation | None = _plans.get(key)
    if plan is None:
        plan = _plans[key] = _plan(
            a, b, bias, activation, out_dtype, transpose_a, transpose_b, precision
        )
    out = a.new_empty(plan.shape, dtype=out_dtype)
    if plan.kernel is not None:
        columns = () if bias is None else (bias.contiguous(),)
        partial = () if plan.splits == 1 else (_partial_sums(out, plan.splits, a.dtype),)
        args = plan.of_a(a), plan.of_b(b), *columns, out, *partial
        call_in_parts(plan.kernel, *args, whole=plan.whole, most=plan.most)
    return out if plan.view == plan.shape else out.view(plan.view)


def _plan(
    given_a: Tensor,
    given_b: Tensor,
    bias: Tensor | None,
    activation: str | None,
    out_dtype: torch.dtype | None,
    transpose_a: bool,
    transpose_b: bool,
    precision: Precision,
) -> _Computation:
    a, b = _transposed(given_a, given_b, transpose_a, transpose_b)
    _check(a, b, bias)
    _check_result(out_dtype)
    view, is_shared = (*a.shape[:-1], b.shape[-1]), b.dim() == 2
    of_a, transposed_a = _operand(given_a, -1, transpose_a, is_shared)
    of_b, transposed_b = _operand(given_b, -2, transpose_b, is_shared)
    a, b = of_a(given_a), of_b(given_b)
    batch = a.shape[:-2]
    K, M = a.shape[-2:] if transposed_a else (a.shape[-1], a.shape[-2])
    N = b.shape[-2 if transposed_b else -1]
    shape = (*batch, M, N)
    if 0 in shape:
        return _Computation(None, 1, shape, view, of_a, of_b)
    # What varies between calls, since no row in memory is as long.
    m = M if transposed_a else size_class(M)
    k = size_class(K) if transposed_a and not transposed_b else K
    kernel, splits = _kernel(
        a.dtype, out_dtype or a.dtype, transposed_a, transposed_b,
        size_class(batch[0]) if batch else 0, m, N, k, bias is not None, activation, precision,
        a.device.type,
    )  # fmt: skip
    plan = _Computation(kernel, splits, shape, view, of_a, of_b)
    if splits > 1 or (transposed_a and not batch):
        return plan
    columns = () if bias is None else (2,)
    if batch:
        return plan._replace(whole=columns, most=CUDA_MOST_BLOCKS)
    return plan._replace(whole=(1, *columns), most=CUDA_MOST_BLOCKS * _LEAST_ROWS)


def _operand(
    x: Tensor, summed: int, is_swapped: bool, is_shared: bool
) -> tuple[Callable[[Tensor], Tensor], bool]:
    """A function that gives a kernel its operand, and whether that is the transposed one.

    Parameters
    ----------
    x : torch.Tensor
        As it is given.
    summed : int
        The axis along which products are summed, once it is swapped.
    is_swapped : bool
        Whether its last two axes are to be swapped.
    is_shared : bool
        Whether the operands' leading axes are further rows of `a`.
    """

    def as_matrices(x: Tensor) -> Tensor:
        x = x.mT if is_swapped else x
        if is_shared:
            x = x.flatten(0, -2) if x.dim() > 1 else x[None]
        elif x.dim() > 3:
            x = x.flatten(0, -3)
        if x.shape[summed] == 0:  # the sum of nothing, as that of a zero
            shape = list(x.shape)
            shape[summed] = 1
            x = x.new_zeros(shape)
        return x

    def without_gaps(x: Tensor) -> Tensor:
        return _as_it_lies(as_matrices(x))[0]

    lies, is_transposed = _as_it_lies(as_matrices(x))
    for way in (_same, _swapped) if x.dim() > 1 else ():
        if way(x).shape == lies.shape and way(x).is_contiguous():
            return way, is_transposed
    return without_gaps, is_transposed


def _same(x: Tensor) -> Tensor:
    return x


def _swapped(x: Tensor) -> Tensor:
    return x.mT


def _partial_sums(out: Tensor, splits: int, dtype: torch.dtype) -> Tensor:
    """The partial sums where K is split: torch's memory, for kernels of several streams may run."""
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    return out.new_empty((splits, *out.shape), dtype=sums)


def _as_it_lies(x: Tensor) -> tuple[Tensor, bool]:
    """A matrix, or a batch of them, without gaps, and whether it is the transposed one."""
    if x.is_contiguous():
        return x, False
    transposed = x.mT
    return (transposed, True) if transposed.is_contiguous() else (x.contiguous(), False)


@lru_cache(maxsize=4096)
def _kernel(
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    transpose_A: bool,
    transpose_B: bool,
    batch: int,
    M: int,
    N: int,
    K: int,
    bias: bool,
    activation: str | None,
    precision: Precision,
    device: str,
) -> tuple[Kernel, int]:
    """The kernel for operands of a kind, and for all numbers of rows and matrices of a size class.

    With it comes the number of parts into which it splits K.

    The length of rows in memory is constant, since that is what vectors and TMA are made for.
    """
    target, name = target_for(device), str(dtype).removeprefix("torch.")
    configuration = matmul_configuration(target, M, N, K, name, batch or None, may_split=True)
    options: dict[str, Any] = {
        "transpose_A": transpose_A, "transpose_B": transpose_B, "bias": bias,
        "activation": activation, "out_dtype": str(out_dtype).removeprefix("torch."),
        "precision": precision,
    }  # fmt: skip
    m = M if transpose_A or M == 1 else T.dynamic("M")
    k = T.dynamic("K") if transpose_A and not transpose_B else K

    def program() -> Any:
        return programs.matmul(
            m, N, k, name, target=target, batch=T.dynamic("batch") if batch else None,
            configuration=configuration, **options,
        )  # fmt: skip

    extents = (batch > 0, m if isinstance(m, int) else None, N, k if isinstance(k, int) else None)
    key = ("matmul", name, extents, tuple(options.values()), tuple(configuration.values()))
    return compiled(key, program, target), configuration["splits"]


# As an operator of torch's ---------------------------------------------------------------------------


@torch.library.custom_op(
    "tvmtile::matmul",
    mutates_args=(),
    schema="(Tensor a, Tensor b, Tensor? bias, str? activation, ScalarType? out_dtype) -> Tensor",
)
def matmul_operator(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str | None,
    out_dtype: torch.dtype | None,
) -> Tensor:
    """`matmul` as torch knows it, of all arguments."""
    return _product(a, b, bias, activation, out_dtype)


@matmul_operator.register_fake
def _fake(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str | None,
    out_dtype: torch.dtype | None,
) -> Tensor:
    del activation
    _check(a, b, bias)
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=out_dtype or a.dtype)


def _keep(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    a, b, _, activation, _ = inputs
    ctx.activation = activation
    ctx.save_for_backward(a, b, output if activation else None)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    a, b, output = ctx.saved_tensors
    if ctx.activation:
        gradient = gradient.masked_fill(output <= 0, 0)  # of infinity, too
    of_bias = sum_of_rows(gradient).to(a.dtype) if ctx.needs_input_grad[2] else None
    gradient = gradient.to(a.dtype)
    of_a = matmul_operator(gradient, b.mT, None, None, None) if ctx.needs_input_grad[0] else None
    of_b = _gradient_of_b(a, b, gradient) if ctx.needs_input_grad[1] else None
    return of_a, of_b, of_bias, None, None


def _gradient_of_b(a: Tensor, b: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of `b`, which lies as `b` does: torch copies it into no parameter's gradient."""
    if b.dim() == 2:
        a, gradient = (x.flatten(0, -2) if x.dim() > 1 else x[None] for x in (a, gradient))
    if b.is_contiguous():
        return matmul_operator(a.mT, gradient, None, None, None)
    return matmul_operator(gradient.mT, a, None, None, None).mT


matmul_operator.register_autograd(_gradients, setup_context=_keep)
