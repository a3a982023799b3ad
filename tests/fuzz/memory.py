"""Memory of the interpreter: elements with their errors, and who touched them.

Two things make a program meaningless, and both are found here: to read an element of a tile that
nothing has written, and to touch an element that another iteration of the same `T.Parallel`, or
another block of the same kernel, writes, unless all write the same. Atomic updates may meet each other
and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.fuzz.sums import is_coarse, order_error
from tests.fuzz.values import Invalid, Value, cast, held, is_float, select, storage

__all__ = ["Buffer", "Lanes", "Owners", "View"]

_NOBODY = np.int64(2**62)


@dataclass(frozen=True)
class Lanes:
    """The iterations of a `T.Parallel` that run a statement; one lane outside of it.

    Attributes
    ----------
    runs : ndarray of bool
        Lanes that run it, or may.
    maybe : ndarray of bool
        Lanes of which an uncertain comparison decides.
    """

    runs: np.ndarray
    maybe: np.ndarray

    @staticmethod
    def all_of(count: int) -> Lanes:
        return Lanes(np.ones(count, bool), np.zeros(count, bool))

    def where(self, condition: Value, wanted: bool = True) -> Lanes:
        """The lanes in which a condition holds, or may."""
        unsure = condition.error > 0
        holds = condition.data if wanted else ~condition.data
        return Lanes(self.runs & (holds | unsure), self.maybe | (unsure & self.runs))

    def joined(self, other: Lanes) -> Lanes:
        """The lanes of either."""
        return Lanes(self.runs | other.runs, self.maybe | other.maybe)


class Owners:
    """The threads that read, wrote and updated each element, as far as others are concerned."""

    def __init__(self, size: int) -> None:
        self._writer = np.full(size, -1, np.int64)  # the one, or -2 for several, of one value
        self._value = np.full(size, np.nan)
        self._updater = np.full(size, -1, np.int64)  # the one, or -2 for several
        self._first = np.full(size, _NOBODY, np.int64)
        self._last = np.full(size, -1, np.int64)

    def _check(self, table: np.ndarray, offsets: np.ndarray, who: np.ndarray, what: str) -> None:
        if np.any((table[offsets] != -1) & (table[offsets] != who)):
            raise Invalid(f"an element is {what} by two at a time")

    def read(self, offsets: np.ndarray, who: np.ndarray) -> None:
        self._check(self._writer, offsets, who, "read and written")
        self._check(self._updater, offsets, who, "read and updated")
        np.minimum.at(self._first, offsets, who)
        np.maximum.at(self._last, offsets, who)

    def written(self, offsets: np.ndarray, who: np.ndarray, data: Any = np.nan) -> None:
        """Several may write an element where all write the same."""
        self._check_readers(offsets, who)
        self._check(self._updater, offsets, who, "written and updated")
        known = self._writer[offsets]
        shared = (known != -1) & (known != who)
        differs = shared & (self._value[offsets] != data)
        self._writer[offsets], self._value[offsets] = np.where(shared, -2, who), data
        others = self._writer[offsets] != who
        if np.any(differs | (others & (self._value[offsets] != data))):
            raise Invalid("an element is written by two at a time")
        self._writer[offsets[others]] = -2

    def updated(self, offsets: np.ndarray, who: np.ndarray) -> None:
        self._check_readers(offsets, who)
        self._check(self._writer, offsets, who, "written and updated")
        known = self._updater[offsets]
        self._updater[offsets] = np.where((known == -1) | (known == who), who, -2)

    def _check_readers(self, offsets: np.ndarray, who: np.ndarray) -> None:
        first, last = self._first[offsets], self._last[offsets]
        if np.any((last >= 0) & ((first != who) | (last != who))):
            raise Invalid("an element is read and written by two at a time")


@dataclass(eq=False)
class Buffer:
    """A tensor, a tile or a variable.

    Attributes
    ----------
    name, shape, dtype
        As in the program.
    scope : str
        "global", "shared", "fragment" or "local".
    private : bool
        Each lane has one of its own: the first axis of `data` is the lane.
    sums : tuple of ndarray or None
        Of a float tensor that is added to atomically: the sums of absolute values, and where all terms
        are coarse (see `tests.fuzz.sums`).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: str
    private: bool = False
    data: np.ndarray = field(init=False)
    error: np.ndarray = field(init=False)
    defined: np.ndarray = field(init=False)
    lane_owners: Owners | None = field(init=False, default=None)
    block_owners: Owners | None = field(init=False, default=None)
    sums: tuple[np.ndarray, np.ndarray] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.size = int(np.prod(self.shape, dtype=np.int64))
        self.allocate(1)

    def allocate(self, lanes: int) -> Buffer:
        """Fresh memory, of which nothing is defined."""
        count = self.size * lanes
        self.data = np.zeros(count, held(self.dtype))
        self.error = np.zeros(count)
        self.defined = np.zeros(count, bool)
        return self

    def give_each(self, lanes: int) -> None:
        """Let each lane have what there is for itself, from here on."""
        if not self.private:
            self.private = True
            parts = (self.data, self.error, self.defined)
            self.data, self.error, self.defined = (np.tile(part, lanes) for part in parts)

    def fill(self, elements: np.ndarray) -> None:
        """Define all elements, exactly."""
        self.data = elements.astype(held(self.dtype)).reshape(-1)
        self.defined[:] = True

    def load(self, offsets: np.ndarray) -> Value:
        """The elements at flat offsets."""
        if not self.defined[offsets].all():
            raise Invalid(f"an element of {self.name} is read before it is written")
        return Value(self.data[offsets], self.error[offsets], self.dtype)

    def store(self, offsets: np.ndarray, value: Value, maybe: np.ndarray) -> None:
        """Write elements; where `maybe`, what was there may remain."""
        value = cast(value, self.dtype)
        shape = offsets.shape
        value = Value(
            np.broadcast_to(value.data, shape), np.broadcast_to(value.error, shape), self.dtype
        )
        if maybe.any():
            kept = Value(self.data[offsets], self.error[offsets], self.dtype)
            if not self.defined[offsets][maybe].all():
                raise Invalid(f"an element of {self.name} may or may not be written first")
            value = select(Value(np.ones(shape, bool), maybe * 1.0, "bool"), value, kept)
        self.data[offsets], self.error[offsets] = value.data, value.error
        self.defined[offsets] = True

    def add(self, offsets: np.ndarray, value: Value, maybe: np.ndarray) -> None:
        """Add to elements atomically, in any order."""
        value = cast(value, self.dtype)
        data = np.broadcast_to(value.data, offsets.shape)
        error = np.broadcast_to(value.error, offsets.shape) + np.where(maybe, np.abs(data), 0)
        if is_float(self.dtype):
            np.add.at(self.error, offsets, self._rounding(offsets, data))
        np.add.at(self.data, offsets, data)
        np.add.at(self.error, offsets, error)
        self.error[~np.isfinite(self.data)] = 0.0

    def _rounding(self, offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
        """The error of the additions at `offsets` to an element, among all those so far."""
        if self.sums is None:
            self.sums = np.abs(self.data), is_coarse(self.data) & (self.error == 0)
        absolute, coarse = self.sums
        np.add.at(absolute, offsets, np.abs(data))
        np.logical_and.at(coarse, offsets, is_coarse(data))
        return order_error(absolute, self.error, coarse, 1, self.dtype)[offsets]

    def extreme(self, offsets: np.ndarray, value: Value, maybe: np.ndarray, largest: bool) -> None:
        """Take the maximum or minimum of elements and values atomically."""
        value = cast(value, self.dtype)
        at = np.fmax.at if largest else np.fmin.at
        data = np.broadcast_to(value.data, offsets.shape)
        before = self.data.copy()
        at(self.data, offsets, data)
        np.maximum.at(self.error, offsets, np.broadcast_to(value.error, offsets.shape))
        with np.errstate(invalid="ignore"):
            moved = np.abs(self.data.astype(np.float64) - before)[offsets]
        np.add.at(self.error, offsets, np.where(maybe, moved, 0.0))

    def combine(self, offsets: np.ndarray, value: Value, maybe: np.ndarray, function: Any) -> None:
        """Combine the bits of elements and values atomically."""
        value = cast(value, self.dtype)
        if maybe.any() or value.error.any() or self.error[offsets].any():
            raise Invalid(f"the bits of an element of {self.name} are not known")
        function.at(self.data, offsets, np.broadcast_to(value.data, offsets.shape))


def _shared(name: str) -> property:
    """The elements that a view has in common with its buffer."""

    def found(view: View) -> Any:
        return getattr(view.base, name)

    def replaced(view: View, value: Any) -> None:
        setattr(view.base, name, value)

    return property(found, replaced)


class View(Buffer):
    """Another name of a buffer's memory: `T.reshape` and `T.view`.

    Where its dtype is another one, its elements are the bits of the buffer's, which are known of exact
    numbers only.
    """

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str, base: Buffer) -> None:
        self.name, self.shape, self.dtype, self.base = name, shape, dtype, base
        self.scope = base.scope
        self.size = int(np.prod(shape, dtype=np.int64))
        if self.size != base.size or storage(dtype).itemsize != storage(base.dtype).itemsize:
            raise Invalid(f"{name} does not cover {base.name}")

    private = _shared("private")  # type: ignore[assignment]
    data = _shared("data")
    error = _shared("error")
    defined = _shared("defined")
    lane_owners = _shared("lane_owners")
    block_owners = _shared("block_owners")
    sums = _shared("sums")

    def load(self, offsets: np.ndarray) -> Value:
        found = self.base.load(offsets)
        if self.dtype == self.base.dtype:
            return found
        if found.error.any():
            raise Invalid(f"the bits of an element of {self.base.name} are not known")
        return Value(_bits(found.data, self.base.dtype, self.dtype), found.error, self.dtype)

    def store(self, offsets: np.ndarray, value: Value, maybe: np.ndarray) -> None:
        value = cast(value, self.dtype)
        if self.dtype == self.base.dtype:
            self.base.store(offsets, value, maybe)
            return
        if value.error.any() or maybe.any():
            raise Invalid(f"the bits that are written to {self.base.name} are not known")
        data = _bits(np.broadcast_to(value.data, offsets.shape), self.dtype, self.base.dtype)
        self.base.store(offsets, Value(data, np.zeros(data.shape), self.base.dtype), maybe)

    def add(self, offsets: np.ndarray, value: Value, maybe: np.ndarray) -> None:
        self._check_numbers()
        self.base.add(offsets, value, maybe)

    def extreme(self, offsets: np.ndarray, value: Value, maybe: np.ndarray, largest: bool) -> None:
        self._check_numbers()
        self.base.extreme(offsets, value, maybe, largest)

    def combine(self, offsets: np.ndarray, value: Value, maybe: np.ndarray, function: Any) -> None:
        self._check_numbers()
        self.base.combine(offsets, value, maybe, function)

    def _check_numbers(self) -> None:
        if self.dtype != self.base.dtype:
            raise Invalid(f"bits of {self.base.name} are updated as numbers")


def _bits(elements: np.ndarray, dtype: str, wanted: str) -> np.ndarray:
    """Elements of one dtype as those of another one that have the same bits."""
    stored = np.ascontiguousarray(elements.astype(storage(dtype)))
    return stored.view(storage(wanted)).astype(held(wanted))
