"""`Tile`: what a kernel allocates, to a type checker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import ir

if TYPE_CHECKING:

    class Tile(ir.Var):
        """A buffer of a kernel, whose elements the kernel reads and assigns."""

        shape: Any
        dtype: Any

        def __getitem__(self, indices: object) -> Any: ...

        def __setitem__(self, indices: object, value: object) -> None: ...

else:  # assignments are rewritten before Python sees them
    Tile = ir.Var
