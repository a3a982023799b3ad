"""`lower`, under the name of TileLang's module."""

from tvmtile.jit.lowering import lower

__all__ = ["lower"]
