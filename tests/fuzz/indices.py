"""Random kernels whose indices are computed: counted down, divided, clamped, chosen, looked up.

An index is written into a program together with the range of its values, so that it can be made to
lie within a tile. Elements are written at permutations of the loop's variables; reads go anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tests.fuzz.kernels import KernelMaker
from tests.fuzz.parts import BOUND, Axis, Module, Tile
from tests.fuzz.terms import Leaf, Terms

__all__ = ["IndexMaker"]

_UNKNOWN = (0, 127)
"""Of indices that other statements are given: blocks, iterations, positions in a tile."""


@dataclass(frozen=True)
class _Index:
    """An expression of integers, whose values lie between two."""

    text: str
    low: int
    high: int


class _Indices:
    """Makes indices from names.

    Parameters
    ----------
    module : Module
        For the names of values.
    ranges : mapping of str to tuple of int
        What the names in scope may be: the least, and the greatest.

    Attributes
    ----------
    lines : list of str
        Values that were bound to names, to be written first into the scope.
    """

    def __init__(self, module: Module, ranges: Mapping[str, tuple[int, int]]) -> None:
        self._module, self._rng = module, module.rng
        self._leaves = [_Index(name, *span) for name, span in ranges.items()]
        self.lines: list[str] = []

    def within(self, extent: int) -> str:
        """An index that an axis of that extent has."""
        if self._rng.random() < 0.3:
            return self._counted_down_to(extent)
        return self._fitted(self.made(self._rng.choice((1, 1, 2, 3))), extent)

    def _counted_down_to(self, extent: int) -> str:
        """A quotient, without a remainder or a bound around it, of a name that is counted down."""
        rng, x = self._rng, self._rng.choice(self._leaves)
        start = x.high + rng.choice((0, 0, 1, 3))
        by = (start - x.low) // extent + 1
        by = rng.choice((by, by, by + 1, 1 << (by - 1).bit_length()))
        return f"({start} - {x.text}) // {by}" if by > 1 else f"{start} - {x.text}"

    def made(self, depth: int) -> _Index:
        """Any index, perhaps by a name."""
        rng = self._rng
        if depth <= 0:
            return rng.choice(self._leaves)
        index = self._step(self.made(depth - 1), depth)
        if rng.random() > 0.2:
            return index
        name = self._module.name("x")
        self.lines.append(f"{name} = {index.text}")
        self._leaves.append(replace(index, text=name))
        return self._leaves[-1]

    def permuted(self, name: str, extent: int) -> str:
        """A different element of an axis for each value of a name that counts its elements."""
        rng, last = self._rng, extent - 1
        shift = rng.randrange(extent)
        factors = [f for f in (3, 5, 7) if math.gcd(f, extent) == 1]
        forms = [name, f"{last} - {name}", f"{last} - {name}", f"({name} + {shift}) % {extent}"]
        forms += [f"({shift} - {name}) % {extent}", f"{last} - ({name} + {shift}) % {extent}"]
        if factors:
            forms.append(f"({shift} - {name} * {rng.choice(factors)}) % {extent}")
        for part in (p for p in (2, 4, 8) if extent % p == 0):
            forms.append(f"{name} // {part} * {part} + {part - 1} - {name} % {part}")
            forms.append(f"({last} - {name}) // {part} * {part} + {name} % {part}")
            forms.append(f"{name} % {part} * {extent // part} + {name} // {part}")
            forms.append(f"{name} ^ {part - 1}")
        half = extent // 2
        if half:
            forms.append(f"T.if_then_else({name} < {half}, {half - 1} - {name}, {name})")
            forms.append(f"T.max({name}, {half}) + T.min({name}, {half}) - {half}")
        chosen = rng.choice(forms)
        if rng.random() > 0.25:
            return chosen
        bound = self._module.name("x")
        self.lines.append(f"{bound} = {chosen}")
        return bound

    def _step(self, x: _Index, depth: int) -> _Index:
        makers: list[Callable[[_Index, int], _Index]] = [
            self._counted_down,
            self._counted_down,
            self._divided,
            self._divided,
            self._remainder,
            self._remainder,
            self._scaled,
            self._joined,
            self._cancelled,
            self._clamped,
            self._chosen,
            self._by_bits,
            self._converted,
        ]
        return self._rng.choice(makers)(x, depth)

    def _counted_down(self, x: _Index, _: int) -> _Index:
        start = self._rng.randrange(max(0, x.low), max(1, x.high) + 4)
        return _Index(f"({start} - {x.text})", start - x.high, start - x.low)

    def _divided(self, x: _Index, _: int) -> _Index:
        by = self._rng.choice((2, 3, 4, 5, 8))
        if self._rng.random() < 0.15:
            return _Index(
                f"T.ceildiv({x.text}, {by})", (x.low + by - 1) // by, (x.high + by - 1) // by
            )
        return _Index(f"({x.text} // {by})", x.low // by, x.high // by)

    def _remainder(self, x: _Index, _: int) -> _Index:
        by = self._rng.choice((2, 3, 4, 5, 8, 16))
        return _Index(f"({x.text} % {by})", 0, by - 1)

    def _scaled(self, x: _Index, _: int) -> _Index:
        factor, shift = self._rng.choice((1, 2, 3, 4, -1, -2)), self._rng.randrange(-4, 5)
        ends = sorted((x.low * factor + shift, x.high * factor + shift))
        sign = "-" if shift < 0 else "+"
        return _Index(f"({x.text} * {factor} {sign} {abs(shift)})", *ends)

    def _joined(self, x: _Index, depth: int) -> _Index:
        y = self.made(depth - 1)
        if self._rng.random() < 0.5:
            return _Index(f"({x.text} + {y.text})", x.low + y.low, x.high + y.high)
        return _Index(f"({x.text} - {y.text})", x.low - y.high, x.high - y.low)

    def _cancelled(self, x: _Index, depth: int) -> _Index:
        y = self.made(depth - 1).text
        form = self._rng.choice(("({x} - {y} + {y})", "({y} + {x} - {y})", "({y} - ({y} - {x}))"))
        return _Index(form.format(x=x.text, y=y), x.low, x.high)

    def _clamped(self, x: _Index, depth: int) -> _Index:
        limit = self._rng.randrange(x.low, x.high + 1)
        match self._rng.randrange(4):
            case 0:
                return _Index(f"T.min({x.text}, {limit})", x.low, limit)
            case 1:
                return _Index(f"T.max({x.text}, {limit})", limit, x.high)
            case 2:
                return _Index(f"T.clamp({x.text}, {x.low}, {limit})", x.low, limit)
        y = self.made(depth - 1)
        name, choose = self._rng.choice((("min", min), ("max", max)))
        return _Index(f"T.{name}({x.text}, {y.text})", choose(x.low, y.low), choose(x.high, y.high))

    def _chosen(self, x: _Index, depth: int) -> _Index:
        y, test = self.made(depth - 1), self.made(0)
        function = self._rng.choice(("if_then_else", "Select"))
        middle = (test.low + test.high) // 2
        text = f"T.{function}({test.text} < {middle}, {x.text}, {y.text})"
        return _Index(text, min(x.low, y.low), max(x.high, y.high))

    def _by_bits(self, x: _Index, _: int) -> _Index:
        if x.low < 0 or self._rng.random() < 0.4:
            if self._rng.random() < 0.5:
                return _Index(f"({x.text} >> 1)", x.low >> 1, x.high >> 1)
            return _Index(f"({x.text} & 7)", 0, 7)
        most = 2 ** max(x.high, 3).bit_length() - 1
        operator = self._rng.choice("^|")
        return _Index(f"({x.text} {operator} 3)", 0, most)

    def _converted(self, x: _Index, _: int) -> _Index:
        dtype = "int8" if -100 < x.low and x.high < 100 else "int64"
        return _Index(f'T.cast(T.cast({x.text}, "{dtype}"), "int32")', x.low, x.high)

    def _fitted(self, x: _Index, extent: int) -> str:
        if x.low >= 0 and x.high < extent:
            return x.text
        last = extent - 1
        if x.high - x.low < extent and self._rng.random() < 0.7:
            return f"{x.text} - {x.low}" if x.low > 0 else f"{x.text} + {-x.low}"
        match self._rng.randrange(6):
            case 0:
                return f"T.max(T.min({x.text}, {last}), 0)"
            case 1:
                return f"T.clamp({x.text}, 0, {last})"
            case 2:
                return f"T.if_then_else({x.text} >= 0 and {x.text} < {extent}, {x.text}, {last})"
            case 3:
                return f"{last} - {x.text} % {extent}"
        return f"{x.text} % {extent}"


class IndexMaker(KernelMaker):
    """Writes one `with T.Kernel(...)` into a module."""

    def _axis(self, role: str, index: str, extent: int) -> Axis:
        return replace(super()._axis(role, index, extent), is_reversed=self.rng.random() < 0.4)

    def statement(self) -> None:
        """A statement with computed indices, or an ordinary one."""
        own: list[tuple[float, Callable[[], Any]]] = [
            (1.0, super().statement),
            (0.25, self._rows),
            (0.15, self._looked_up),
        ]
        if self._depth < 2:
            own.append((0.25, self._counted_loop))
        self.rng.choices([s for _, s in own], [w for w, _ in own])[0]()

    def elementwise(self) -> None:
        """One nest, whose stores are permuted as often as not."""
        if self.rng.random() < 0.4:
            super().elementwise()
            return
        target = self._target()
        forms: list[Callable[[Tile], None]] = [self._permuted, self._permuted]
        if len(target.shape) == 2:
            forms += [self._unrolled, self._by_steps]
        self.rng.choice(forms)(target)
        target.filled = True

    # Indices of other statements -----------------------------------------------------------------

    def _of(self, names: list[str]) -> _Indices:
        return _Indices(self.module, dict.fromkeys([f"({n})" for n in names], _UNKNOWN))

    def terms(self, leaves: list[Leaf], indices: list[str]) -> Terms:
        """Expressions of leaves and of indices, some of which count down."""
        made = self._of(indices)
        more = made.made(2)
        return super().terms(leaves, [*indices, *([] if made.lines else [more.text])])

    def _elsewhere(self, extent: int, names: list[str]) -> str:
        made = self._of([*names, *names, *self.indices])
        text = made.within(extent)
        return super()._elsewhere(extent, names) if made.lines else text

    # Elements ------------------------------------------------------------------------------------

    @contextmanager
    def _scope(self, header: str, indices: _Indices) -> Iterator[None]:
        """A loop, in front of whose body stand the values that have names."""
        with self.text.block(header):
            start = len(self.text.lines)
            yield
            indent = self.text.lines[start][: -len(self.text.lines[start].lstrip())]
            self.text.lines[start:start] = [indent + line for line in indices.lines]

    def _read(self, indices: _Indices, written: Tile) -> list[Leaf]:
        """Elements of other tiles, and of tensors, at any place."""
        leaves = []
        for tile in self.filled(sums=False):
            share = 0.4 if tile.scope == "shared" else 0.1
            if tile is not written and self.rng.random() < share:
                where = ", ".join(indices.within(extent) for extent in tile.shape)
                leaves.append(_leaf(f"{tile.name}[{where}]", tile.dtype, tile.bound))
        if self.rng.random() < 0.7:
            roles = self.rng.choice(("mn", "mk", "nk", "m", "n", "k", "x"))
            axes = [self.axes[role] for role in roles]
            source = self.source(tuple(a.size for a in axes))
            form = self.rng.randrange(3)
            places = [indices.within(a.extent) if form else indices.made(2).text for a in axes]
            if form == 1:
                places = [f"{a.origin} + {p}" for a, p in zip(axes, places, strict=True)]
            leaves.append(_leaf(f"{source.name}[{', '.join(places)}]", source.dtype, source.bound))
        return leaves

    def _stored(self, target: Tile, place: str, indices: _Indices, names: list[str]) -> None:
        """An element, of others and of what it holds."""
        element = f"{target.name}[{place}]"
        leaves = self._read(indices, target)
        if target.filled:
            leaves.append(_leaf(element, target.dtype, target.bound))
        terms = self.terms(leaves, [*names, *self.indices])
        self.text.add(f"{element} = {terms.stored(target.dtype, self._depth_of(), BOUND)}")

    def _permuted(self, target: Tile) -> None:
        """Each iteration writes an element of its own, in another order."""
        header, names = self._loop(target)
        spans = [(0, extent - 1) for extent in target.shape]
        indices = _Indices(self.module, dict(zip(names, spans, strict=True)))
        with self._scope(header, indices):
            permuted = map(indices.permuted, names, target.shape)
            self._stored(target, ", ".join(permuted), indices, names)

    def _unrolled(self, target: Tile) -> None:
        """One loop over a matrix, by quotient and remainder of a number that counts down."""
        rows, columns = target.shape
        count = rows * columns
        indices = _Indices(self.module, {"q": (0, count - 1)})
        with self._scope(f"for q in T.Parallel({count}):", indices):
            number = f"({indices.permuted('q', count)})"
            place = self.rng.choice(
                (f"{number} // {columns}, {number} % {columns}",) * 2
                + (f"{number} % {rows}, {number} // {rows}",)
            )
            self._stored(target, place, indices, ["q"])

    def _by_steps(self, target: Tile) -> None:
        """Some neighbours an iteration, in an inner loop that counts up or down."""
        rows, columns = target.shape
        step = self.rng.choice([s for s in (2, 3, 4, 8) if columns % s == 0] or [1])
        kind = self.rng.choice((f"T.vectorized({step})", f"T.serial({step})", f"T.unroll({step})"))
        if self.rng.random() < 0.3:
            kind = self.rng.choice((f"range({step - 1}, -1, -1)", f"T.unroll({step - 1}, -1, -1)"))
        spans = {"i": (0, rows - 1), "j": (0, columns // step - 1)}
        outer = _Indices(self.module, spans)
        with self._scope(f"for i, j in T.Parallel({rows}, {columns // step}):", outer):
            row = outer.permuted("i", rows)
            group = outer.permuted("j", columns // step)
            inner = _Indices(self.module, {**spans, "v": (0, step - 1)})
            with self._scope(f"for v in {kind}:", inner):
                last = self.rng.choice(("v", f"{step - 1} - v", inner.permuted("v", step)))
                self._stored(target, f"{row}, ({group}) * {step} + {last}", inner, ["i", "j", "v"])

    def _looked_up(self) -> None:
        """Rows of a tile by indices that stand in another one."""
        sources = [t for t in self.filled(scope="shared", sums=False) if len(t.shape) == 2]
        if not sources:
            self.load()
            return
        source = self.rng.choice(sources)
        target = self.allocate("".join(source.roles))
        rows, columns = source.shape
        table = self.allocate(source.roles[0], "int32", "shared")
        self.tiles.remove(table)  # its elements are larger than others'
        indices = _Indices(self.module, {"i": (0, rows - 1)})
        with self._scope(f"for i in T.Parallel({rows}):", indices):
            self.text.add(f"{table.name}[i] = {indices.within(rows)}")
        names = {"i": (0, rows - 1), "j": (0, columns - 1), f"{table.name}[i]": (0, rows - 1)}
        indices = _Indices(self.module, names)
        with self._scope(f"for i, j in T.Parallel({rows}, {columns}):", indices):
            row, column = indices.within(rows), indices.within(columns)
            leaves = [_leaf(f"{source.name}[{row}, {column}]", source.dtype, source.bound)]
            terms = self.terms([*leaves, *self._read(indices, target)], ["i", "j"])
            self.text.add(f"{target.name}[i, j] = {terms.stored(target.dtype, 2, BOUND)}")
        target.filled = True

    # Tiles ---------------------------------------------------------------------------------------

    def _counted_loop(self) -> None:
        """A serial loop that counts down, and names for what is computed of its variable."""
        index, count = self.module.name("r"), self.rng.choice((2, 3, 4))
        step = self.rng.choice((1, 1, 2))
        loop = self.rng.choice(("range", "T.serial", "T.unroll"))
        first = (count - 1) * step
        with (
            self._repeated(count),
            self.text.block(f"for {index} in {loop}({first}, -1, {-step}):"),
        ):
            indices = _Indices(self.module, {index: (0, first)})
            name = self.module.name("y")
            value = indices.made(2).text
            for line in (*indices.lines, f"{name} = {value}"):
                self.text.add(line)
            self.indices += [index, name]
            self._some(3)

    def _rows(self) -> None:
        """Parts of a tile copied to another one, last part first, or from where an index says."""
        sources = [t for t in self.filled(scope="shared", sums=False) if t.shape[0] > 1]
        if not sources:
            self.load()
            return
        source = self.rng.choice(sources)
        target = self._like(source, source.dtype, BOUND)
        extent = source.shape[0]
        parts = self.rng.choice([p for p in (2, 3, 4, 8, extent) if extent % p == 0])
        high = extent // parts
        index = self.module.name("r")
        loop = self.rng.choice((f"range({parts})", f"T.serial({parts - 1}, -1, -1)"))
        indices = _Indices(self.module, {index: (0, parts - 1)})
        with self._scope(f"for {index} in {loop}:", indices):
            to, from_ = indices.permuted(index, parts), indices.within(parts)
            pair = [_part(source, from_, high), _part(target, to, high)]
            self.text.add(f"T.copy({', '.join(pair)})")
        target.filled = True


def _leaf(text: str, dtype: str, bound: float) -> Leaf:
    return Leaf(text, dtype, bound, dtype != "uint8")


def _part(tile: Tile, number: str, high: int) -> str:
    """Some rows, of parts of equal height."""
    first = f"({number}) * {high}"
    rest = "".join(f", 0:{extent}" for extent in tile.shape[1:])
    return f"{tile.name}[{first} : {first} + {high}{rest}]"
