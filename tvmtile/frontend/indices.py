"""The indices of several axes under one name: `with T.Kernel(4, 4) as block:`, then `block[0]`."""

from __future__ import annotations

from typing import Any, NoReturn

from tvmtile.errors import InvalidOperand


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
