"""Objects that a name of a kernel holds in place of a value: an error, a reference, several indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeGuard

from tvm import ir
from tvm.tirx.layout import S, TileLayout
from tvm_ffi import structural_equal

from tvmtile._tvm import buffer_of, indices_of, is_buffer_var
from tvmtile.errors import InvalidOperand, ScopeError, SourceLocation, TileError


class Unusable:
    """What a name holds that has no value here: any use is the error."""

    def __init__(self, error: Callable[[], TileError]) -> None:
        object.__setattr__(self, "_error", error)

    def __getattr__(self, attribute: str) -> Any:
        raise_unusable(self)

    def _use(self, *_: object, **__: object) -> Any:
        raise_unusable(self)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _use
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _use
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __pow__ = __rpow__ = _use
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __neg__ = __invert__ = _use
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _use
    __getitem__ = __setitem__ = __call__ = __iter__ = __len__ = __index__ = __bool__ = _use
    __float__ = __int__ = __enter__ = __exit__ = _use
    __hash__ = None  # type: ignore[assignment]


def raise_unusable(value: Unusable) -> NoReturn:
    """Report the use of a name that has no value."""
    make_error = object.__getattribute__(value, "_error")
    raise make_error()


def escaped(
    name: str, construct: str, location: SourceLocation | None, value: object | None = None
) -> Unusable:
    """What a name holds after the run-time loop or branch that bound it to a value."""
    where = f" (line {location.line})" if location is not None else ""
    if is_buffer_var(value):
        remedy = f"the tile belongs to the {construct}: allocate {name} before it"
    else:
        remedy = (
            f"there is no value where the {construct} is not entered: give {name} a first value "
            f"before the {construct}, such as `{name} = 0.0`"
        )
    return Unusable(
        lambda: ScopeError(
            f"{name!r} is bound inside a {construct}{where} and used after it", help=remedy
        )
    )


def counted(name: str) -> Unusable:
    """What the name of a loop's variable holds after the loop."""
    return Unusable(
        lambda: ScopeError(
            f"{name!r} counts the iterations of a loop and is used after it",
            help="write the value that is meant, such as the loop's extent",
        )
    )


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


class Indices(list[Any]):
    """A list of indices, which arithmetic does not take for one of them, or for a list to repeat."""

    def _refuse(self, _: object) -> NoReturn:
        raise InvalidOperand(
            f"arithmetic on the indices of {len(self)} axes, which have one name",
            help="name each, `with T.Kernel(m, n) as (bx, by):` and `for i, j in T.Parallel(m, n):`, "
            "or take one of them, `block[0]`",
        )

    def __add__(self, other: Any) -> Any:
        """More indices behind these, as those of an element."""
        return super().__add__(other) if isinstance(other, list) else self._refuse(other)

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __mod__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
