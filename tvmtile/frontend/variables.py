"""Scalar variables of a kernel (`T.alloc_var`) and references to elements (`T.Ref`)."""

from __future__ import annotations

from typing import Any, TypeGuard

from tvm import ir
from tvm.tirx.layout import S, TileLayout
from tvm.tirx.script import builder as T
from tvm_ffi import structural_equal

from tvmtile._tvm import buffer_of, indices_of, is_buffer_var

_SCALAR_LAYOUT = TileLayout(S[1])


def is_scalar_variable(value: object) -> TypeGuard[Any]:
    """Tell whether `value` is the load of a variable made by `T.alloc_var` (TVM's local scalar)."""
    if not isinstance(value, ir.TensorLoad) or not is_buffer_var(buffer_of(value)):
        return False
    buffer = buffer_of(value).ty
    return (
        buffer.storage_scope == "local"
        and len(buffer.shape) == 1
        and structural_equal(buffer.layout, _SCALAR_LAYOUT)
    )


class _Let(type(T.let)):  # type: ignore[misc]
    """`T.let`: TVM's annotation of a binding, and a binding of a variable made before."""

    def __call__(self, var: ir.Var, value: Any) -> None:
        """Bind a variable to a value, from here on.

        The variable has no value yet, as `T.int32()` makes it; the value is converted to its dtype.
        """
        from tvmtile.frontend.dtypes import DType, cast

        T.Bind(cast(value, DType(str(var.ty.dtype))), var=var)


let = _Let()


class Ref:
    """Annotation of a macro's parameter that is passed by reference, so that the macro can store it."""

    def __class_getitem__(cls, _: object) -> type[Ref]:
        return cls


class Reference:
    """An element of a buffer passed to a macro by reference."""

    def __init__(self, element: ir.TensorLoad) -> None:
        self._element = element

    def load(self) -> ir.TensorLoad:
        return self._element

    def __tvm_ffi_object__(self) -> ir.TensorLoad:
        """What TVM's functions take for it: `T.exp(x)`."""
        return self._element

    def store(self, value: object, index: object = 0) -> None:
        from tvmtile.frontend.values import store_element

        if index != 0:
            raise IndexError("a reference is one element: use `x[0]` or `x = value`")
        store_element(buffer_of(self._element), tuple(indices_of(self._element)), value)

    def __getitem__(self, index: int) -> ir.TensorLoad:
        if index != 0:
            raise IndexError("a reference is one element: use `x[0]`")
        return self._element

    def __getattr__(self, name: str) -> Any:
        return getattr(self._element, name)


def _delegate(name: str) -> Any:
    def method(self: Reference, *args: object) -> Any:
        return getattr(self.load(), name)(*args)

    return method


_DELEGATED = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod neg invert "
    "lt le gt ge eq ne and rand or ror xor rxor lshift rlshift rshift rrshift"
)
for _name in _DELEGATED.split():
    setattr(Reference, f"__{_name}__", _delegate(f"__{_name}__"))
Reference.__hash__ = object.__hash__  # type: ignore[method-assign]
del _name
