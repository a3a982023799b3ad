"""Random totals: reducers, accumulations into fragments, and partial sums that a loop carries.

A total takes contributions in nests of several loops, and between them stands what needs it or does
not: other totals, copies, conditions, stores that scale it. Extents are ragged, and so are tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.fuzz.kernels import KernelMaker
from tests.fuzz.parts import BOUND, Axis, Tile
from tests.fuzz.terms import Leaf

__all__ = ["ReducerMaker"]

_EXTENTS = (8, 16, 33, 5, 24, 64, 7, 1)
_KINDS = ("sum", "sum", "sum", "max", "min")
_DTYPES = ("float32",) * 5 + ("int32",) * 4 + ("float16", "float16", "int64", "float64")
_OF_BITS = ("bitand", "bitor", "bitxor")
_FORMS = ("updates", "updates", "stores", "fragment", "fragment", "reduction")


@dataclass
class Total:
    """Totals that are being taken, one for each index of some axes.

    Attributes
    ----------
    roles : tuple of str
        The axes.
    form : str
        "updates" of a reducer, "stores" to one, accumulations into a "fragment", or a "reduction" that
        continues.
    """

    name: str
    kind: str
    dtype: str
    roles: tuple[str, ...]
    form: str


class ReducerMaker(KernelMaker):
    """Writes one `with T.Kernel(...)` into a module."""

    def _axis(self, role: str, index: str, extent: int) -> Axis:
        return super()._axis(role, index, self.rng.choice(_EXTENTS))

    def statement(self) -> None:
        """Totals, or an ordinary statement."""
        if self._depth < 2 and self.rng.random() < 0.5:
            self._totals()
        else:
            super().statement()

    def _totals(self) -> None:
        """Begin with some totals, add to them in a loop or without one, end, and use them."""
        rng = self.rng
        shape = rng.choice(("mk", "mn", "mx", "kn", "xn"))
        totals = [self._total(shape) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
        for total in totals:
            self._begin(total)
        source = self.loaded(shape, rng.choice(("float32", "int32", "float16")))
        if rng.random() < 0.3:
            self._contributions(totals, source)
        if rng.random() < 0.75:
            self._around(totals, shape)
        else:
            self._contributions(totals, source)
        for total in totals:
            self._end(total)

    def _total(self, shape: str) -> Total:
        rng, form = self.rng, self.rng.choice(_FORMS)
        kept = [role for role in shape if rng.random() < 0.4]
        if len(kept) == len(shape):
            kept.pop(rng.randrange(len(kept)))
        if form == "reduction" and not kept:
            kept = [rng.choice(shape)]
        kind = rng.choice(_KINDS)
        dtype = rng.choice(_DTYPES)
        if form == "updates" and dtype.startswith("int") and rng.random() < 0.3:
            kind = rng.choice(_OF_BITS)
        return Total(self.module.name("t"), kind, dtype, tuple(kept), form)

    def _begin(self, total: Total) -> None:
        rng, name = self.rng, total.name
        extents = ", ".join(str(self.axes[role].extent) for role in total.roles) or "1"
        shape = f'({extents},), "{total.dtype}"'
        start = {"max": -9, "min": 9}.get(total.kind, rng.randrange(3))
        if total.form in ("fragment", "reduction"):
            self.allocations.append(f"{name} = T.alloc_fragment({shape})")
            self.text.add(f"T.fill({name}, {start})")
            return
        self.allocations.append(f'{name} = T.alloc_reducer({shape}, op="{total.kind}")')
        if total.form == "stores":
            self.text.add(f"T.fill({name}, {start})" if start else f"T.clear({name})")
        else:
            init = rng.choice(("", f", {rng.randrange(4)}"))
            self.text.add(f"T.reducer_init({name}{init})")

    def _around(self, totals: list[Total], shape: str) -> None:
        """A loop around contributions, with other work before and behind them."""
        rng, axis, index = self.rng, self.axes["k"], self.module.name("k")
        walks = "k" in shape and not axis.index
        count = f"T.ceildiv({axis.size}, {axis.extent})" if walks else str(rng.choice((1, 2, 3, 4)))
        trips = axis.blocks if walks else int(count)
        kind = rng.choice(("serial", "Pipelined", "Pipelined"))
        stages = f", num_stages={rng.choice((1, 2, 3))}" if kind == "Pipelined" else ""
        if walks:
            self.axes["k"] = replace(axis, index=index)
        with self._repeated(trips), self.text.block(f"for {index} in T.{kind}({count}{stages}):"):
            self.indices.append(index)
            source = self.loaded(shape, rng.choice(("float32", "int32", "float16")))
            self._depth += 1
            if rng.random() < 0.3:
                self._some(1)
            if rng.random() < 0.2:
                condition = self.terms([], self.indices).index_condition()
                before = {tile.name: tile.filled for tile in self.tiles}
                with self.text.block(f"if {condition}:"):
                    self._contributions(totals, source)
                self._forget(before)
            else:
                self._contributions(totals, source)
            if rng.random() < 0.3:
                self._changed(rng.choice(totals))
            if rng.random() < 0.3:
                self._some(1)
            self._depth -= 1
        self.axes["k"] = axis

    def _changed(self, total: Total) -> None:
        """Write a change that is no contribution, between contributions: to a fragment only."""
        if total.form not in ("fragment", "reduction"):
            return
        names = "ij"[: len(total.roles)] if total.roles else "i"
        extents = ", ".join(str(self.axes[role].extent) for role in total.roles) or "1"
        element = f"{total.name}[{', '.join(names)}]"
        changes = [f"{element} = T.max({element}, -8)"]
        if total.dtype.startswith("float"):
            changes += [f"{element} *= 0.5", f"{element} = {element} / 2"]
        else:
            changes += [f"{element} = {element} // 2"]
        with self.text.block(f"for {', '.join(names)} in T.Parallel({extents}):"):
            self.text.add(self.rng.choice(changes))

    def _contributions(self, totals: list[Total], source: Tile) -> None:
        """One nest for all, or one for each."""
        rng = self.rng
        by_nest = [t for t in totals if t.form != "reduction"]
        groups = [by_nest] if rng.random() < 0.5 else [[t] for t in by_nest]
        for group in filter(None, groups):
            self._nest(group, source)
        for total in totals:
            if total.form == "reduction":
                self._reduced(total, source)

    def _nest(self, totals: list[Total], source: Tile) -> None:
        rng = self.rng
        header, names = self._loop(source)
        index = dict(zip(source.roles, names, strict=True))
        guard = rng.random()
        terms = self._terms(source, names, [source])
        leaves = [Leaf(f"{source.name}[{', '.join(names)}]", source.dtype, BOUND)]
        with self.text.block(header):
            if guard < 0.15:
                with self.text.block(f"if {terms.index_condition()}:"):
                    self.text.add("continue")
            for total in totals:
                own = self.terms([*leaves, *leaves], names)
                chosen = own if rng.random() < 0.7 else terms
                dtype = "float32" if total.dtype == "float64" else total.dtype
                value = chosen.stored(dtype, rng.choice((0, 1, 2)), BOUND)
                if total.kind in ("max", "min") or total.dtype == "float64":
                    value = f'T.cast({value}, "{total.dtype}")'
                where = ", ".join(index[role] for role in total.roles) or "0"
                line = self._contribution(total, f"{total.name}[{where}]", value)
                if 0.15 < guard < 0.3:
                    with self.text.block(f"if {own.index_condition()}:"):
                        self.text.add(line)
                else:
                    self.text.add(line)

    def _contribution(self, total: Total, element: str, value: str) -> str:
        if total.form == "updates":
            return f"T.reducer_update({element}, {value})"
        if total.kind == "sum":
            return f"{element} += {value}"
        return f"{element} = T.{total.kind}({element}, {value})"

    def _reduced(self, total: Total, source: Tile) -> None:
        """A reduction of the tile that continues the totals, axis after axis."""
        left, tile = list(source.roles), source.name
        axis = next(at for at, role in enumerate(left) if role not in total.roles)
        dim = axis if self.rng.random() < 0.5 else axis - len(left)
        if self.rng.random() < 0.5:  # of what is computed from it
            made = self.allocate("".join(source.roles), source.dtype, "fragment")
            header, names = self._loop(made)
            terms = self._terms(made, names)
            with self.text.block(header):
                self.text.add(
                    f"{made.name}[{', '.join(names)}] = {terms.stored(made.dtype, 2, BOUND)}"
                )
            made.filled = True
            tile = made.name
        self.text.add(f"T.reduce_{total.kind}({tile}, {total.name}, dim={dim}, clear=False)")

    def _end(self, total: Total) -> None:
        """Finalize, and store what there is."""
        rng, name = self.rng, total.name
        extents = ", ".join(str(self.axes[role].extent) for role in total.roles) or "1"
        if total.form in ("updates", "stores"):
            if rng.random() < 0.5:
                result, scope = self.module.name("f"), rng.choice(("fragment", "shared"))
                self.allocations.append(
                    f'{result} = T.alloc_{scope}(({extents},), "{total.dtype}")'
                )
                self.text.add(f"T.finalize_reducer({name}, {result})")
                name = result
            else:
                self.text.add(f"T.finalize_reducer({name})")
        if rng.random() < 0.3:
            names = "ij"[: len(total.roles)] if total.roles else "i"
            element = f"{name}[{', '.join(names)}]"
            leaves = [Leaf(element, total.dtype, 1e9)]
            terms = self.terms(leaves, list(names))
            value = terms.stored(total.dtype.replace("float64", "float32"), 1, BOUND)
            with self.text.block(f"for {', '.join(names)} in T.Parallel({extents}):"):
                self.text.add(f"{element} = {value}")
        grid = [self.axes[role] for role in self.grid if role not in total.roles]
        own = [self.axes[role] for role in total.roles]
        origins = [a.index for a in grid] + ([a.origin for a in own] if total.roles else ["0"])
        dims = [str(a.blocks) for a in grid] + ([a.size for a in own] if total.roles else ["1"])
        tensor = self.module.tensor(tuple(dims), total.dtype, "written", 1e9)
        self.text.add(f"T.copy({name}, {tensor.name}[{', '.join(origins)}])")
