"""Random elementwise work: `T.Parallel` with conditions, casts, inner loops, bindings, atomics."""

from __future__ import annotations

from tests.fuzz.collectives import Kernel
from tests.fuzz.parts import BOUND, Tile
from tests.fuzz.terms import FLOATS, Leaf, Terms

__all__ = ["Nests"]

_VARIABLES = "ijhl"


class Nests(Kernel):
    """Writes loops over the elements of tiles."""

    targets: tuple[str, ...] = ("mn", "mn", "mn", "mk", "kn", "m", "n", "mx", "nk")
    """The roles of a tile that is computed, of which one is chosen."""

    def elementwise(self) -> None:
        """One nest: over a tile, or over the block's part of a tensor."""
        target = self._target()
        forms = [self._plain, self._plain, self._plain, self._conditional, self._continued]
        forms += [self._bound_name, self._to_tensor, self._two_targets]
        if len(target.shape) == 2 and target.shape[1] % 4 == 0:
            forms += [self._by_fours]
        if len(target.shape) == 2:
            forms += [self._summed, self._flattened]
        self.rng.choice(forms)(target)
        target.filled = True

    def _target(self) -> Tile:
        known = self.filled(sums=False)
        if known and self.rng.random() < 0.6:
            return self.rng.choice(known)
        return self.allocate(self.rng.choice(self.targets))

    def _loop(self, tile: Tile) -> tuple[str, list[str]]:
        """The header of a nest over a tile, and the index of each axis."""
        names = list(_VARIABLES[: len(tile.shape)])
        order = list(range(len(names)))
        if len(names) >= 2 and self.rng.random() < 0.08:
            order.reverse()
        extents = ", ".join(str(tile.shape[axis]) for axis in order)
        return f"for {', '.join(names[axis] for axis in order)} in T.Parallel({extents}):", names

    # What an expression may read -----------------------------------------------------------------

    def _leaves(self, target: Tile, names: list[str], written: list[Tile]) -> list[Leaf]:
        """Elements that an iteration may read while it writes its own of the tiles `written`."""
        index = dict(zip(target.roles, names, strict=True))
        leaves: list[Leaf] = []
        for tile in self.filled():
            if all(role in index for role in tile.roles):
                leaves.append(_leaf(tile, [index[role] for role in tile.roles]))
            if tile.scope == "shared" and tile not in written and self.rng.random() < 0.25:
                leaves.append(_leaf(tile, [self._elsewhere(e, names) for e in tile.shape]))
        for _ in range(self.rng.randrange(2)):
            leaves.append(self._from_tensor(target, names))
        return leaves

    def _elsewhere(self, extent: int, names: list[str]) -> str:
        """An index within an extent, computed from the loop's variables."""
        name = self.rng.choice(names)
        factor, shift = self.rng.choice((1, 3, 5)), self.rng.randrange(4)
        return f"({name} * {factor} + {shift}) % {extent}"

    def _from_tensor(self, target: Tile, names: list[str]) -> Leaf:
        axes = [self.axes[role] for role in target.roles]
        tensor = self.source(tuple(a.size for a in axes))
        shift = [self.rng.choice(("", "", "", " - 1", " + 2")) for _ in axes]
        where = [f"{a.origin} + {n}{s}" for a, n, s in zip(axes, names, shift, strict=True)]
        signed = tensor.dtype != "uint8"
        return Leaf(f"{tensor.name}[{', '.join(where)}]", tensor.dtype, tensor.bound, signed)

    def _terms(self, target: Tile, names: list[str], written: list[Tile] | None = None) -> Terms:
        leaves = self._leaves(target, names, written or [target])
        return self.terms(leaves, names + self.indices)

    def _depth_of(self) -> int:
        return self.rng.choice((1, 2, 2, 3, 3, 4))

    # Forms ---------------------------------------------------------------------------------------

    def _plain(self, target: Tile) -> None:
        header, names = self._loop(target)
        terms = self._terms(target, names)
        with self.text.block(header):
            value = terms.stored(target.dtype, self._depth_of(), BOUND)
            self.text.add(f"{_element(target, names)} = {value}")

    def _conditional(self, target: Tile) -> None:
        """A store under a condition, to elements that hold something or get it otherwise."""
        header, names = self._loop(target)
        terms = self._terms(target, names)
        # Of an element that holds nothing it must be certain which branch writes it.
        condition = terms.condition(2) if target.filled else terms.index_condition()
        with self.text.block(header):
            with self.text.block(f"if {condition}:"):
                self._assign(target, names, terms)
            if not target.filled or self.rng.random() < 0.4:
                with self.text.block("else:"):
                    self._assign(target, names, terms)

    def _assign(self, target: Tile, names: list[str], terms: Terms) -> None:
        value = terms.stored(target.dtype, self.rng.choice((1, 2, 3)), BOUND)
        self.text.add(f"{_element(target, names)} = {value}")

    def _continued(self, target: Tile) -> None:
        """`continue` ends an iteration."""
        if not target.filled:
            self._plain(target)
            return
        header, names = self._loop(target)
        terms = self._terms(target, names)
        with self.text.block(header):
            with self.text.block(f"if {terms.condition(1)}:"):
                if self.rng.random() < 0.3:
                    self._assign(target, names, terms)
                self.text.add("continue")
            self._assign(target, names, terms)

    def _bound_name(self, target: Tile) -> None:
        """A name for a value, used twice."""
        header, names = self._loop(target)
        terms = self._terms(target, names)
        dtype = self.rng.choice((*FLOATS, "int32"))
        name = self.module.name("v")
        value, bound = terms.number(dtype, 2)
        with self.text.block(header):
            self.text.add(f"{name} = {value}")
            more = self.terms([Leaf(name, dtype, bound)], names)
            self.text.add(f"{_element(target, names)} = {more.stored(target.dtype, 2, BOUND)}")

    def _two_targets(self, target: Tile) -> None:
        """Two tiles of one shape, written in one nest."""
        others = [t for t in self.filled("".join(target.roles), sums=False) if t is not target]
        other = self.rng.choice(others) if others else self.allocate("".join(target.roles))
        header, names = self._loop(target)
        terms = self._terms(target, names, [target, other])
        with self.text.block(header):
            self._assign(target, names, terms)
            self._assign(other, names, terms)
        other.filled = True

    def _to_tensor(self, target: Tile) -> None:
        """Elements of the block's own part of a tensor, written one by one."""
        dtype = self.rng.choice((*FLOATS, "int32", "int8"))
        tensor, origins = self.place(target.roles, [dtype], BOUND)
        header, names = self._loop(target)
        terms = self._terms(target, names)
        lead = len(origins) - len(names)
        where = origins[:lead] + [f"{o} + {n}" for o, n in zip(origins[lead:], names, strict=True)]
        with self.text.block(header):
            value = terms.stored(tensor.dtype, self._depth_of(), BOUND)
            self.text.add(f"{tensor.name}[{', '.join(where)}] = {value}")
        self._plain(target)

    def _by_fours(self, target: Tile) -> None:
        """Four neighbours an iteration, in an inner loop, perhaps by way of a local array."""
        kind = self.rng.choice(("vectorized", "serial", "unroll", "vectorized"))
        rows, columns = target.shape
        names = ["i", "j * 4 + v"]
        terms = self._terms(target, names)
        depth = 2 if kind == "vectorized" else self._depth_of()
        with self.text.block(f"for i, j in T.Parallel({rows}, {columns // 4}):"):
            value = terms.stored(target.dtype, depth, BOUND)
            if kind != "vectorized" and self.rng.random() < 0.3:
                array = self.module.name("l")
                self.text.add(f'{array} = T.alloc_local((4,), "{target.dtype}")')
                with self.text.block(f"for v in T.{kind}(4):"):
                    self.text.add(f"{array}[v] = {value}")
                value = f"{array}[3 - v]" if self.rng.random() < 0.5 else f"{array}[v]"
            with self.text.block(f"for v in T.{kind}(4):"):
                self.text.add(f"{_element(target, names)} = {value}")

    def _summed(self, target: Tile) -> None:
        """A variable that an inner loop adds up."""
        extent = self.rng.choice((2, 3, 5))
        header, names = self._loop(target)
        leaves = [leaf for leaf in self._leaves(target, names, [target]) if leaf.bound <= BOUND]
        dtype = self.rng.choice(("float32", "int32"))
        total = self.module.name("t")
        with self.text.block(header):
            self.text.add(f'{total} = T.alloc_var("{dtype}", init=0)')
            with self.text.block(f"for q in T.serial({extent}):"):
                terms = self.terms(leaves, [*names, "q"])
                if self.rng.random() < 0.3:
                    with self.text.block(f"if {terms.index_condition()}:"):
                        self.text.add("continue")
                value, bound = terms.number(dtype, 2)
                self.text.add(f"{total} = {total} + {value}")
            leaf = Leaf(total, dtype, bound * extent)
            value = self.terms([leaf], names).stored(target.dtype, 1, BOUND)
            self.text.add(f"{_element(target, names)} = {value}")

    def _flattened(self, target: Tile) -> None:
        """One loop over a shared matrix, whose indices are quotient and remainder."""
        if target.scope != "shared":
            self._plain(target)
            return
        rows, columns = target.shape
        names = [f"q // {columns}", f"q % {columns}"]
        shared = [
            Leaf(_element(t, names), t.dtype, t.bound)
            for t in self.filled(scope="shared")
            if t.roles == target.roles
        ]
        terms = self.terms(shared, ["q", *self.indices])
        with self.text.block(f"for q in T.Parallel({rows * columns}):"):
            self._assign(target, names, terms)

    # Others --------------------------------------------------------------------------------------

    def atomic(self) -> None:
        """Atomic updates of a tensor that all blocks share."""
        tiles = self.filled(sums=False)
        kind = self.rng.choice(("add", "add", "max", "min"))
        dtype = self.rng.choice(("float32", "int32", "int32"))
        known = [t for t in tiles if t.dtype == dtype]
        if known and self.rng.random() < 0.3:
            tile = self.rng.choice(known)
            dims = tuple(str(e) for e in tile.shape)
            tensor = self.module.tensor(dims, dtype, kind, 1e9)
            origin = ", ".join("0" for _ in dims)
            self.text.add(f"T.atomic_{kind}({tensor.name}[{origin}], {tile.name})")
            return
        target = self.rng.choice(tiles) if tiles else self.allocate("mn")
        header, names = self._loop(target)
        terms = self._terms(target, names, [])
        bins = self.rng.choice((1, 5, 16))
        where = " + ".join(names)
        tensor = self.module.tensor((str(bins),), dtype, kind, 1e9)
        update = f"T.atomic_{kind}({tensor.name}[({where}) % {bins}], "
        with self.text.block(header):
            value = terms.stored(dtype, 2, BOUND)
            if self.rng.random() < 0.3:
                with self.text.block(f"if {terms.condition(1)}:"):
                    self.text.add(f"{update}{value})")
            else:
                self.text.add(f"{update}{value})")

    def variable(self) -> None:
        """A number that all threads compute alike, or one of an argument."""
        if self.rng.random() < 0.3:
            dtype = self.rng.choice(("float32", "int32"))
            name = self.module.name("a")
            self.module.scalars[name] = dtype
            self.scalars.append(Leaf(name, dtype, BOUND))
            return
        name = self.module.name("n")
        self.variables.append(f'{name} = T.alloc_var("int32", init={self.rng.randrange(4)})')
        loop = self.module.name("q")
        terms = self.terms([], [*self.indices, loop])
        with self.text.block(f"for {loop} in range({self.rng.choice((1, 2, 4))}):"):
            if self.rng.random() < 0.3:
                with self.text.block(f"if {terms.index_condition()}:"):
                    self.text.add("continue")
            self.text.add(f"{name} = ({name} * 2 + {loop} + {self.rng.choice(self.indices)}) % 7")
        self.scalars.append(Leaf(name, "int32", 7))

    def macro(self) -> None:
        """A macro over two tiles of one shape."""
        targets = self.filled(sums=False)
        if not targets:
            self.elementwise()
            return
        target = self.rng.choice(targets)
        source = self.rng.choice([t for t in targets if t.roles == target.roles])
        name = self.module.name("step")
        header, names = self._loop(target)
        index = ", ".join(names)
        leaves = [
            Leaf(f"dst[{index}]", target.dtype, BOUND),
            Leaf(f"src[{index}]", source.dtype, BOUND),
        ]
        value = Terms(self.rng, leaves, names).stored(target.dtype, 2, BOUND)
        body = [f"    {header}", f"        dst[{index}] = {value}", "", ""]
        self.module.macros += ["@T.macro", f"def {name}(dst, src):", *body]
        self.text.add(f"{name}({target.name}, {source.name})")


def _element(tile: Tile, names: list[str]) -> str:
    return f"{tile.name}[{', '.join(names)}]"


def _leaf(tile: Tile, names: list[str]) -> Leaf:
    """An element of a tile; that of a sum is clamped where it is read."""
    bound = 1e9 if tile.is_sum else tile.bound
    return Leaf(_element(tile, names), tile.dtype, bound, tile.dtype != "uint8")
