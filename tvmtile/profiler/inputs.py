"""Inputs for kernels that are given none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import tvm
from tvm import ir, tirx

from tvmtile.errors import ArgumentError, import_optional
from tvmtile.ir.packed import has_float4
from tvmtile.ir.scopes import is_tensor

if TYPE_CHECKING:
    import torch


class TensorSupplyType(Enum):
    """The contents that a profiler gives a kernel's inputs, where it is given none."""

    Integer = 1
    """Small whole numbers, which every float dtype holds exactly."""
    Uniform = 2
    """Uniform between -1 and 1."""
    Normal = 3
    """Normal with mean -1 and deviation 1, as TileLang's."""
    Randn = 4
    """Normal with mean 0 and deviation 1."""
    Zero = 5
    """Zeros."""
    One = 6
    """Ones."""
    Auto = 7
    """Uniform for floats of 16 bits or more, small whole numbers for the others."""


def make_inputs(
    params: Sequence[ir.Var],
    supply: TensorSupplyType,
    device: str,
    sizes: Mapping[str, int] | None = None,
) -> list[Any]:
    """Tensors for parameters of a program, of the kinds that `Profiler.inputs` tells.

    Parameters
    ----------
    params : sequence of Var
        The parameters.
    supply : TensorSupplyType
        What the tensors hold.
    device : str
        Where they are.
    sizes : mapping of str to int, optional
        The values of dynamic extents, by name.

    Raises
    ------
    ArgumentError
        If a dynamic extent has no value, or a parameter is no tensor.
    """
    tensors: list[Any] = []
    for param in params:
        if not is_tensor(param):
            raise ArgumentError(
                f"the profiler makes tensors; {param.name} is a scalar",
                help="give the arguments by input_tensors=[...]",
            )
        shape = [_extent(param.name, extent, sizes or {}) for extent in param.ty.shape]
        tensors.append(_made(param, shape, supply, device))
    return tensors


def _made(param: ir.Var, shape: list[int], supply: TensorSupplyType, device: str) -> Any:
    """A tensor of torch where that is installed; else an array on a CPU, and TVM's tensor elsewhere."""
    if has_float4(param):
        return _filled_pairs([*shape[:-1], shape[-1] // 2], supply).to(device)
    dtype = str(param.ty.dtype)
    try:
        import torch
    except ImportError:
        array = _filled_array(shape, dtype, supply)
        is_plain = device == "cpu" and array.dtype.isbuiltin == 1
        return array if is_plain else tvm.runtime.tensor(array, tvm.device(device))
    return filled(shape, getattr(torch, dtype), supply).to(device)


def _extent(name: str, extent: ir.Expr, sizes: Mapping[str, int]) -> int:
    if isinstance(extent, int | tirx.IntImm):
        return int(extent)
    if isinstance(extent, ir.Var) and extent.name in sizes:
        return sizes[extent.name]
    raise ArgumentError(
        f"the extent {extent} of {name} is not known",
        help="give dynamic extents by dynamic_symbolic_constraints={name: value}",
    )


def _filled_pairs(shape: list[int], supply: TensorSupplyType) -> torch.Tensor:
    """Bytes of two floats of 4 bits: all codes but where zeros or ones are asked for."""
    torch = import_optional("torch", "torch", "tvmtile.profiler")
    codes = {TensorSupplyType.Zero: 0x00, TensorSupplyType.One: 0x22}
    if supply in codes:
        pairs = torch.full(shape, codes[supply], dtype=torch.uint8)
    else:
        pairs = torch.randint(256, shape, dtype=torch.uint8)
    return pairs.view(torch.float4_e2m1fn_x2)


def filled(shape: list[int], dtype: torch.dtype, supply: TensorSupplyType) -> torch.Tensor:
    """A tensor on the CPU, filled as a supply says."""
    torch = import_optional("torch", "torch", "tvmtile.profiler")

    if supply is TensorSupplyType.Zero:
        return torch.zeros(shape).to(dtype)
    if supply is TensorSupplyType.One:
        return torch.ones(shape).to(dtype)
    wide = dtype.is_floating_point and dtype.itemsize > 1
    if supply is TensorSupplyType.Integer or (supply is TensorSupplyType.Auto and not wide):
        low, high = (-2, 3) if dtype.is_signed else (0, 2 if dtype == torch.bool else 3)
        return torch.randint(low, high, shape).to(dtype)
    if supply in (TensorSupplyType.Auto, TensorSupplyType.Uniform):
        return torch.empty(shape).uniform_(-1, 1).to(dtype)
    mean = -1.0 if supply is TensorSupplyType.Normal else 0.0
    return (torch.randn(shape) + mean).to(dtype)


def _filled_array(shape: list[int], dtype: str, supply: TensorSupplyType) -> Any:
    """The same as an array of numpy, which has narrow floats from ml_dtypes."""
    import ml_dtypes  # noqa: F401
    import numpy as np

    random = np.random.default_rng()
    is_float = "float" in dtype
    if supply in (TensorSupplyType.Zero, TensorSupplyType.One):
        array = np.full(shape, supply is TensorSupplyType.One)
    elif supply is TensorSupplyType.Integer or (
        supply is TensorSupplyType.Auto and not (is_float and tvm.DataType(dtype).bits > 8)
    ):
        is_signed = is_float or dtype.startswith("int")
        low, high = (-2, 3) if is_signed else (0, 2 if dtype == "bool" else 3)
        array = random.integers(low, high, shape)
    elif supply in (TensorSupplyType.Auto, TensorSupplyType.Uniform):
        array = random.uniform(-1, 1, shape)
    else:
        array = random.normal(-1 if supply is TensorSupplyType.Normal else 0, 1, shape)
    return array.astype(np.dtype(dtype))
