"""Names and attributes that a kernel uses and that nothing has: what to write instead.

`translate` asks these rules about what Python raises there.
"""

from __future__ import annotations

import builtins
import difflib
import re
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tvm import ir

from tvmtile._tvm import is_buffer_var
from tvmtile.compat.absent import first_match, instead_of
from tvmtile.errors import InvalidOperand, TileError, UndefinedName
from tvmtile.ir.operands import describe

if TYPE_CHECKING:
    from tvmtile.frontend.translate import RaisedError

_LANGUAGE = "tvmtile.language"


def undefined(failure: RaisedError) -> TileError | None:
    """A name that nothing binds."""
    error = failure.error
    if not isinstance(error, NameError):
        return None
    quoted = re.search(r"'(\w+)'", str(error))
    name = error.name or (quoted[1] if quoted else str(error))
    names = {**vars(builtins), **failure.frame.f_globals, **failure.frame.f_locals}
    return UndefinedName(
        f"{name!r} is not defined", help=_near(name, names), location=failure.location
    )


def _near(name: str, names: Mapping[str, object]) -> str:
    language = next(
        (key for key, value in names.items() if getattr(value, "__name__", None) == _LANGUAGE), None
    )
    if language is not None and name in dir(names[language]):
        return f"did you mean {language}.{name}?"
    near = difflib.get_close_matches(name, [key for key in names if not key.startswith("__")], n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return "check the spelling; a kernel sees its own names and those around its definition"


def not_in_language(failure: RaisedError) -> TileError | None:
    """`T.copi`: an attribute that the language, or another module of ours, does not have."""
    error = failure.error
    if not isinstance(error, AttributeError) or not isinstance(error.obj, types.ModuleType):
        return None
    module, name = error.obj.__name__, str(error.name)
    if module.partition(".")[0] != "tvmtile":
        return None
    near = difflib.get_close_matches(name, dir(error.obj), n=1)
    return UndefinedName(
        f"{name!r} is not a name of {module}",
        help=instead_of("T", name)
        or (f"did you mean {near[0]!r}?" if near else "see dir(T) for the names of the language"),
        location=failure.location,
    )


def unknown_attribute(failure: RaisedError) -> TileError | None:
    """`A.size(0)`, `A[i].to("float16")`: an attribute of torch's tensors, or of none."""
    error = failure.error
    if not isinstance(error, AttributeError) or not isinstance(error.obj, ir.Expr):
        return None
    value, name = error.obj, str(error.name)
    if is_buffer_var(value):
        what = describe(value)
        help = first_match(_OF_TENSORS, name) or "it has .shape and .dtype, and elements, A[i, j]"
    else:
        what = f"{value}, a value of the running kernel,"
        help = (
            first_match(_OF_VALUES, name)
            or "T has the functions of values: T.exp(x), T.cast(x, dtype)"
        )
    return InvalidOperand(f"{what} has no attribute {name!r}", help=help, location=failure.location)


_CAST = "T.cast(x, dtype) converts a value"
_OF_TENSORS = {
    r"size|numel|dim|ndim|ndimension": "its extents are A.shape[0], A.shape[1], ...",
    r"stride": "declare strides by T.StridedTensor(shape, strides, dtype)",
    r"to|type|half|float|bfloat16|int|long|bool": "T.copy(A, B) converts to the dtype of B; "
    "T.cast(A[i], dtype) converts an element",
    r"reshape|view|flatten": "T.reshape(tile, shape) and T.view(tile, shape, dtype) are other names of "
    "the same memory",
    r"T|t|mT|transpose|permute": "T.gemm takes transpose_A=True and transpose_B=True; "
    "T.transpose(A, B) copies",
    r"sum|max|min|mean|amax|amin": "T.reduce_sum(tile, out, dim=1), T.reduce_max, ... reduce a tile",
    r"copy_|clone|contiguous": "T.copy(A, B) copies a tile",
    r"fill_|zero_": "T.fill(tile, value) and T.clear(tile) fill a tile",
    r"item": "an element is A[0]",
}
_OF_VALUES = {
    r"to|type|half|float|bfloat16|int|long|bool": _CAST,
    r"item": "it is known when the kernel runs, and used as it is",
    r"shape|size": "it is one element",
}


def length_of_tensor(failure: RaisedError) -> TileError | None:
    """`len(A)`."""
    if not isinstance(failure.error, TypeError) or "has no len()" not in str(failure.error):
        return None
    tensors = [tile for node in failure.nodes() if (tile := failure.tile(node)) is not None]
    if not tensors:
        return None
    return InvalidOperand(
        f"len() of {tensors[0]}",
        help="its extents are A.shape[0], A.shape[1], ...",
        location=failure.location,
    )
