"""Layouts: where the elements of a tile lie; here, those that a kernel fixes by `T.annotate_layout`.

```
T.annotate_layout({
    A_shared: make_swizzled_layout(A_shared),
    bias_shared: T.Layout((64, 64), lambda i, j: (j, i)),
})
```

`fragment` says which thread and register holds an element, `loops` which thread runs an iteration,
`shared` where elements lie in shared memory; `plot` and `drawing` show layouts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvmtile.errors import InvalidOperand

__all__ = [
    "Fragment",
    "Layout",
    "Swizzle",
    "make_full_bank_swizzled_layout",
    "make_half_bank_swizzled_layout",
    "make_linear_layout",
    "make_quarter_bank_swizzled_layout",
    "make_swizzled_layout",
]


class Layout:
    """A tile's elements at places given by a function of their indices.

    Parameters
    ----------
    shape : sequence of int
        The tile's extents.
    forward : callable
        `(i, j, ...) -> index or tuple of indices`, the place of element (i, j, ...).
    """

    def __init__(self, shape: Sequence[int], forward: Callable[..., object]) -> None:
        self.shape = tuple(shape)
        self._forward = forward

    def __repr__(self) -> str:
        written = str(self.index_map).removeprefix("T.index_map(lambda ").removesuffix(")")
        plain = re.sub(r"T\.int64\((-?\d+)\)", r"\1", written).replace("indices_", "i")
        indices, _, places = plain.partition(": ")
        return f"{type(self).__name__}({self.shape}, ({indices}) -> {places})"

    @property
    def index_map(self) -> tirx.IndexMap:
        """The function as TVM writes it."""
        return _index_map(self._forward, len(self.shape))


class Fragment(Layout):
    """A tile's elements in the registers of a block's threads.

    Parameters
    ----------
    shape : sequence of int
        The tile's extents.
    forward_fn : callable, optional
        `(i, j, ...) -> (thread, place)`; with `replicate` it takes the copy's number last.
    forward_thread_fn : callable, optional
        `(i, j, ...) -> thread`, in place of `forward_fn`.
    replicate : int
        How many threads hold each element.
    forward_index_fn : callable, optional
        `(i, j, ...) -> place` among the thread's registers, beside `forward_thread_fn`.
    """

    def __init__(
        self,
        shape: Sequence[int],
        forward_fn: Callable[..., object] | None = None,
        forward_thread_fn: Callable[..., object] | None = None,
        replicate: int = 1,
        forward_index_fn: Callable[..., object] | None = None,
    ) -> None:
        if (forward_fn is None) == (forward_thread_fn is None):
            raise InvalidOperand(
                "T.Fragment takes forward_fn or forward_thread_fn",
                help="give `lambda i, j: (thread, place)`, or the thread and the place by themselves",
            )
        self.replicate = replicate
        self._thread = forward_thread_fn
        self._place = forward_index_fn
        super().__init__(shape, forward_fn or self._by_parts)

    def _by_parts(self, *indices: object) -> list[Any]:
        parts = [self._thread(*indices)] if self._thread is not None else []
        return parts if self._place is None else [*parts, self._place(*indices[: len(self.shape)])]

    @property
    def index_map(self) -> tirx.IndexMap:
        """Thread and place of an element; the last variable is the copy's number if there are any."""
        return _index_map(self._forward, len(self.shape) + (self.replicate > 1))


def _index_map(function: Callable[..., object], ndim: int) -> tirx.IndexMap:
    # TVMScript reads the variables of a printed map as int64.
    def flat(value: Any) -> list[ir.Var]:
        if isinstance(value, tuple | list):
            return [part for item in value for part in flat(item)]
        return [tirx.const(value, "int64") if isinstance(value, int) else value]

    return tirx.IndexMap.from_func(
        lambda *indices: flat(function(*indices)), ndim=ndim, index_dtype="int64"
    )


@dataclass(frozen=True)
class Swizzle:
    """A layout of shared memory by its purpose; the compiler knows the banks of its target."""

    kind: str
    """"auto", the widest that the tile's rows allow; "full", "half" or "quarter", over 128, 64 or 32
    bytes of a row; or "linear", none.
    """


def make_swizzled_layout(buffer: Any, k_major: bool = True, allow_pad: bool = True) -> Swizzle:
    """The layout of a shared tile in which a matrix instruction meets no bank conflicts.

    Parameters
    ----------
    buffer : buffer
        The tile.
    k_major, allow_pad : bool
        Accepted for TileLang's kernels; the compiler sees how the tile is used.
    """
    del buffer, k_major, allow_pad
    return Swizzle("auto")


def _swizzle(kind: str, tile: Sequence[Any]) -> Swizzle | Layout:
    """A swizzle by its purpose, or of a tile of known extents as the function that it is."""
    if len(tile) != 3:
        return Swizzle(kind)
    from tvmtile.layout.shared import SWIZZLES, swizzled

    rows, columns, bits = tile
    layout = swizzled((rows, columns), f"uint{bits}", SWIZZLES[kind])
    if layout is None:
        raise InvalidOperand(
            f"rows of {columns} elements of {bits} bits have no panels of {SWIZZLES[kind]} bytes",
            help="give a tile whose rows consist of them, or a narrower swizzle",
        )
    panel = 8 * SWIZZLES[kind] // bits
    shift, mask = layout.per_element + layout.atom_len, (1 << layout.swizzle_len) - 1

    def place(i: Any, j: Any) -> Any:
        plain = j // panel * (rows * panel) + i * panel + j % panel
        return plain ^ (((plain >> shift) & mask) << layout.per_element)

    return Layout((rows, columns), place)


def make_full_bank_swizzled_layout(*tile: object) -> Swizzle | Layout:
    """Swizzle 16-byte pieces over 128 bytes of a row.

    Parameters
    ----------
    *tile : Any
        A shared tile, or its rows, its columns and the bits of an element.
    """
    return _swizzle("full", tile)


def make_half_bank_swizzled_layout(*tile: object) -> Swizzle | Layout:
    """Swizzle 16-byte pieces over 64 bytes of a row.

    Parameters
    ----------
    *tile : Any
        A shared tile, or its rows, its columns and the bits of an element.
    """
    return _swizzle("half", tile)


def make_quarter_bank_swizzled_layout(*tile: object) -> Swizzle | Layout:
    """Swizzle 16-byte pieces over 32 bytes of a row.

    Parameters
    ----------
    *tile : Any
        A shared tile, or its rows, its columns and the bits of an element.
    """
    return _swizzle("quarter", tile)


def make_linear_layout(buffer: Any) -> Swizzle:
    """Row-major, without a swizzle."""
    del buffer
    return Swizzle("linear")
