"""Functions that are given addresses, and what they do with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvmtile.analysis.conflicts.expressions import bits, strides

_MATRIX_EXTENT = 8
_ROW = 16  # bytes


@dataclass(frozen=True)
class Role:
    """The use that a function makes of an address."""

    reads: bool = False
    writes: bool = False
    matrix: bool = False
    """An 8x8 matrix, whose rows are as far apart as the fourth argument says, by a simdgroup."""
    row: bool = False
    """A row of 16 bytes; the addresses of all threads of a simdgroup are those of a few matrices."""
    copied: bool = False
    """As many bytes as the third argument says, asynchronously."""
    tile: tuple[int, int] | None = None
    """Rows and columns, by a group of threads, asynchronously."""

    @property
    def names_elements(self) -> bool:
        """The address is that of a known number of elements."""
        return self.is_collective or self.copied

    @property
    def is_collective(self) -> bool:
        """The threads of a simdgroup do it together."""
        return self.matrix or self.row or self.tile is not None

    @property
    def is_asynchronous(self) -> bool:
        """Tell whether the function goes on until a wait."""
        return self.copied or self.tile is not None

    def block(self, buffer: ir.Var, arguments: Sequence[Any]) -> tuple[tuple[int, Any], ...]:
        """Extents and strides, in elements, of what lies at the address and is touched with it.

        `arguments` are those of the function.
        """
        one = tirx.const(1, "int32")
        if self.matrix:
            return (_MATRIX_EXTENT, arguments[3]), (_MATRIX_EXTENT, one)
        if self.tile is not None:
            *_, along_column, along_row = strides(buffer)
            rows, columns = self.tile
            return (rows, along_column), (columns, along_row)
        if not self.names_elements:
            return ()
        size = _ROW if self.row else int(arguments[2])
        return ((-(-size * 8 // bits(buffer)), one),)


UNKNOWN = Role(reads=True, writes=True)
COPIED = (Role(writes=True, copied=True), Role(reads=True, copied=True))
"""Of the arguments of asynchronous copies."""
FUNCTIONS = {
    "tirx.simdgroup_load": (Role(reads=True, matrix=True),),
    "tirx.simdgroup_store": (Role(writes=True, matrix=True),),
    "tirx.ptx.ldmatrix": (Role(reads=True, row=True),),
    "tirx.ptx.stmatrix": (Role(writes=True, row=True),),
}
"""By function: the role of each argument, the last one that of those after it too."""
CONVERSIONS = ("tirx.cuda.cvta_generic_to_shared",)
"""Functions that give an address in another form."""
