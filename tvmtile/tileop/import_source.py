"""`T.import_source`: functions in CUDA C++ that a kernel calls with `T.call_extern`."""

from __future__ import annotations

from tvmtile.frontend.emit import emit
from tvmtile.ir.operators import ValueOp, tile_operator
from tvmtile.tileop.registry import lowering, no_code


@tile_operator
class ImportSource(ValueOp):
    """Put a text before the kernel."""

    name = "import_source"

    source: str = ""

    def imported_source(self) -> str:
        return self.source


def import_source(source: str | None = None) -> None:
    """Bring functions in CUDA C++ that the kernel calls by `T.call_extern` or `T.call_pure_extern`.

    Parameters
    ----------
    source : str, optional
        Definitions of `__device__` functions; None brings nothing.

    Notes
    -----
    The kernel can be compiled for CUDA only. What a function does to memory is not known to the
    compiler: a call counts as a use of the whole tiles that it gets the address of.
    """
    if source is not None:
        emit(ImportSource(source))


# CallImportedFunctions has put the text where it is needed.
lowering(ImportSource, target="cuda", variant="none")(no_code)
