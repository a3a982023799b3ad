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
from tvmtile.errors import InvalidOperand, TileError, UndefinedName
from tvmtile.ir.operands import describe

if TYPE_CHECKING:
    from tvmtile.frontend.translate import Failure

_LANGUAGE = "tvmtile.language"


def undefined(failure: Failure) -> TileError | None:
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


def not_in_language(failure: Failure) -> TileError | None:
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
        help=_first(_INSTEAD, name)
        or (f"did you mean {near[0]!r}?" if near else "see dir(T) for the names of the language"),
        location=failure.location,
    )


_COPIES = "T.copy(A[start], tile) copies a tile in, T.copy(tile, A[start]) out; there is no mask"
_INSTEAD = {
    r"tma_load_\w+|tma_store": "use T.tma_copy(A[y, x], tile, barrier=bar), "
    "which describes the tensor by itself",
    r"ptx_\w*barrier\w*": "use T.alloc_barrier, T.mbarrier_arrive and T.mbarrier_wait_parity",
    r"\w*wgmma_desc\w*|ptx_wgmma\w*": "use T.wgmma_gemm(A, B, C): the compiler writes descriptors",
    r"clc_\w+": "blocks go on to other tiles by T.Persistent, or by T.PersistentTileScheduler",
    r"float4_e2m1_unpacked": "T.float4_e2m1fn lies in pairs in bytes everywhere; T.cast decodes "
    "it, and T.gemm takes what comes of that",
    r"tcgen05\w*|\w*tmem": "tensor memory is not part of the language yet; T.gemm "
    "runs there by mma.sync",
    r"ws_op|annotate_ws_schedule|WS[A-Z]\w*": "T.Pipelined gives copies warps of their own where that "
    "fits; T.annotate_warp_specialize(True) asks for it, T.ws(0) writes groups by hand",
    # Triton's.
    r"program_id": "the index of a block is the variable of `with T.Kernel(blocks) as bx:`",
    r"num_programs": "the number of blocks is what T.Kernel is given",
    r"load|store|make_block_ptr|make_tensor_descriptor": _COPIES,
    r"arange": "the index of an element is the variable of `for i in T.Parallel(n):`",
    r"dot|matmul|mma": "use T.gemm(A, B, C), which adds the product of two tiles to C",
    r"zeros|zeros_like|full": "allocate a tile by T.alloc_fragment(shape, dtype); then T.clear(tile) "
    "or T.fill(tile, value)",
    r"(sum|mean|softmax|argmax|argmin)": "tiles are reduced by T.reduce_sum(tile, out, dim=1), "
    "T.reduce_max, ...",
    r"constexpr": "what is known when the kernel is compiled is a Python value: an argument of the "
    "function around it",
    r"static_range": "use T.unroll(n); a Python loop over a list is unrolled too",
}
"""What to use for names that the language does not have, by their patterns."""


def _first(table: Mapping[str, str], name: str) -> str | None:
    return next((help for names, help in table.items() if re.fullmatch(names, name)), None)


def unknown_attribute(failure: Failure) -> TileError | None:
    """`A.size(0)`, `A[i].to("float16")`: an attribute of torch's tensors, or of none."""
    error = failure.error
    if not isinstance(error, AttributeError) or not isinstance(error.obj, ir.Expr):
        return None
    value, name = error.obj, str(error.name)
    if is_buffer_var(value):
        what = describe(value)
        help = _first(_OF_TENSORS, name) or "it has .shape and .dtype, and elements, A[i, j]"
    else:
        what = f"{value}, a value of the running kernel,"
        help = (
            _first(_OF_VALUES, name) or "T has the functions of values: T.exp(x), T.cast(x, dtype)"
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


def length_of_tensor(failure: Failure) -> TileError | None:
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
