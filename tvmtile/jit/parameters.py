"""What a kernel's parameters are, in Python's terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir

from tvmtile._tvm import is_buffer_var
from tvmtile.frontend.dtypes import DType
from tvmtile.ir.operands import constant


@dataclass(frozen=True)
class KernelParam:
    """A parameter of a compiled kernel."""

    name: str
    """Its name in the program."""
    dtype: DType
    """Of a tensor's elements, or of a scalar; "handle" for a pointer."""
    shape: list[Any]
    """Extents of a tensor, those that the calls decide as expressions; empty for other parameters."""

    @classmethod
    def of(cls, param: ir.Var) -> KernelParam:
        """Describe a parameter of a program: a buffer, a scalar or a pointer."""
        if is_buffer_var(param):
            extents = [constant(extent) for extent in param.ty.shape]
            shape = [
                extent if known is None else known
                for extent, known in zip(param.ty.shape, extents, strict=True)
            ]
            return cls(param.name, DType(str(param.ty.dtype)), shape)
        dtype = str(param.ty.dtype) if ir.is_prim_expr(param) else "handle"
        return cls(param.name, DType(dtype), [])

    def is_scalar(self) -> bool:
        """Tell whether the parameter is no tensor."""
        return not self.shape

    def torch_dtype(self) -> Any:
        """The torch dtype that stores such elements (imports torch)."""
        return self.dtype.as_torch()
