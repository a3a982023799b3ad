"""Random pipelined loops: names and conditions, copies, products, and statements beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from tests.fuzz.collectives import Collectives
from tests.fuzz.nests import Nests
from tests.fuzz.parts import BOUND, Axis, Module, Tile

__all__ = ["PLACES", "Loop", "PipelinedLoops"]

_MOST_TRIPS = 9
_OPERANDS = (("float16", "float32"),) * 4 + (("bfloat16", "float32"), ("int8", "int32"))
PLACES = 8
"""How many numbers a tile of indices has."""


@dataclass
class Loop:
    """The work of an iteration; a later loop may do the same with its tiles.

    Attributes
    ----------
    wanted : list of tuple of str
        The roles and the dtype of each tile that it copies ahead.
    steps : list of callable
        Write what uses them.
    tiles : list of Tile
        They, once they are allocated.
    """

    wanted: list[tuple[str, str]] = field(default_factory=list)
    steps: list[Callable[[], None]] = field(default_factory=list)
    tiles: list[Tile] = field(default_factory=list)


class PipelinedLoops(Collectives, Nests):
    """Writes pipelined loops.

    Parameters
    ----------
    module : Module
        Of the program.
    size : int
        The most statements beside the copies and the products of a loop.
    """

    def __init__(self, module: Module, size: int) -> None:
        super().__init__(module)
        self._size = size
        self._splits = self.rng.random() < 0.8  # nothing stands against two roles
        self._ahead: list[Tile] = []
        self._places: Tile | None = None

    @contextmanager
    def _repeated(self, count: int) -> Iterator[None]:
        """Sums of a loop are added `count` times; its variable is unknown behind it."""
        known = list(self.indices)
        self.trips *= max(count, 1)
        yield
        self.trips //= max(count, 1)
        self.indices = known

    @contextmanager
    def _in_doubt(self) -> Iterator[None]:
        """Elements written here, if ever, are not known to be written."""
        before = {tile.name: tile.filled for tile in self.tiles}
        yield
        for tile in self.tiles:
            tile.filled = before.get(tile.name, False)

    # A loop --------------------------------------------------------------------------------------

    def _pipelined(self, former: Loop | None) -> Loop:
        """One loop, perhaps with the tiles of a former one."""
        loop = former or self._planned()
        bounds, trips, runs = self._bounds()
        index, stages = self.module.name("k"), self.rng.choice((1, 2, 2, 3, 3, 4))
        axis = self.axes["k"]
        header = f"for {index} in T.Pipelined({bounds}, num_stages={stages}):"
        doubt = nullcontext() if runs else self._in_doubt()
        with doubt, self._repeated(trips), self.text.block(header):
            self.indices.append(index)
            self._iteration(loop, replace(axis, index=index))
        self.axes["k"] = axis
        used_behind = not self._splits and self.rng.random() < 0.2
        for tile in loop.tiles:
            tile.filled = tile.filled and used_behind
        return loop

    def _planned(self) -> Loop:
        """Products and sums of a loop, whose accumulators are set here."""
        loop = Loop()
        self._products(loop)
        for _ in range(self.rng.randrange(0 if loop.steps else 1, 3)):
            roles = self.rng.choice(("mk", "kn", "nk", "k", "mn", "m", "kn"))
            dtype = self.rng.choice(("float16", "float32", "bfloat16", "int32", "int8"))
            if self._splits and len(roles) == 1:  # copies of 128 bytes
                roles, dtype = "m", "float32"
            loop.wanted.append((roles, dtype))
            loop.steps.insert(
                self.rng.randrange(len(loop.steps) + 1), self._added(loop, roles, dtype)
            )
        loop.wanted = list(dict.fromkeys(loop.wanted))
        return loop

    def _added(self, loop: Loop, roles: str, dtype: str) -> Callable[[], None]:
        """The elements of a tile, added up in a fragment."""
        sums = self.allocate(roles, "int32" if "int" in dtype else "float32", "fragment")
        self.text.add(f"T.clear({sums.name})")
        sums.filled = True

        def add() -> None:
            sums.bound += BOUND * self.trips
            header, names = self._loop(sums)
            index = ", ".join(names)
            read = f'T.cast({self._read(loop, roles, dtype).name}[{index}], "{sums.dtype}")'
            with self.text.block(header):
                self.text.add(f"{sums.name}[{index}] += {read}")

        return add

    def _bounds(self) -> tuple[str, int, bool]:
        """The bounds of a loop, the most iterations that it has, and whether it has one for sure."""
        rng, most = self.rng, _MOST_TRIPS
        start = rng.choice((0, 0, 0, 1, 2))
        begin = f"{start}, " if start else ""
        match rng.randrange(7):
            case 0:
                name = self.module.name("N")
                for sizes in self.module.sizes:
                    sizes[name] = rng.randrange(most + 1)
                return f"{begin}{start} + {name}" if start else name, most, False
            case 1:
                name = self.module.name("a")
                self.module.scalars[name] = "int32"
                return f"{begin}{name}", most, False
            case 2:
                tensor = self.module.tensor((str(rng.choice((1, 2, 3))),), "int32", "read")
                return f"{begin}{tensor.name}[bx]", most, False
            case 3:
                return f"{begin}{start + rng.randrange(3)} + by", most, False
        count = rng.choice((0, 1, 1, 2, 3, 3, 4, 5, 7, 9))
        return f"{begin}{start + count}", count, count > 0

    def _iteration(self, loop: Loop, axis: Axis) -> None:
        """Names and conditions, copies, products, other statements."""
        rng = self.rng
        condition = self._condition(axis.index) if rng.random() < 0.3 else ""
        named_first = rng.random() < 0.5
        if named_first:
            axis = self._named_place(axis)
        with self._in_doubt() if condition else nullcontext():
            with self.text.block(f"if {condition}:") if condition else nullcontext():
                self.axes["k"] = axis if named_first else self._named_place(axis)
                for number, (roles, dtype) in enumerate(loop.wanted):
                    self._copied_ahead(loop, number, roles, dtype)
                steps = list(loop.steps)
                for _ in range(rng.randrange(self._size // 2 + 1)):
                    steps.insert(rng.randrange(len(steps) + 1), self._beside)
                for step in steps:
                    step()

    def _condition(self, index: str) -> str:
        """A condition that all threads agree on: a mask of blocks, or arithmetic."""
        if self.rng.random() < 0.6:
            mask = self.module.tensor((str(_MOST_TRIPS),), "int32", "read")
            return f"{mask.name}[{index}] > {self.rng.choice((-4, 0, 0, 9))}"
        return self.terms([], [index, "bx", "by"]).index_condition()

    def _named_place(self, axis: Axis) -> Axis:
        """The place of an iteration's tiles along the loop's axis: its number, or one for it."""
        rng, index = self.rng, axis.index
        kind = rng.random()
        if kind < 0.55:
            return axis
        name = self.module.name("at")
        if kind < 0.7:
            self.text.add(f"{name} = {index} + {rng.choice((0, 1))}")
        elif kind < 0.85 or (self._splits and self._places is None):
            order = self.module.tensor((str(_MOST_TRIPS),), "int32", "read")
            self.text.add(f"{name} = {order.name}[{index}]")
        elif self._places is not None:
            self.text.add(f"{name} = {self._places.name}[{index} % {PLACES}]")
        else:
            # A variable that each iteration moves on, skipped ones perhaps not.
            self.variables.append(f'{name} = T.alloc_var("int32", init={rng.randrange(3)})')
            self.text.add(f"{name} = ({name} * 2 + {index}) % 5")
        return replace(axis, index=name)

    # Copies --------------------------------------------------------------------------------------

    def _copied_ahead(self, loop: Loop, number: int, roles: str, dtype: str) -> None:
        """A tile that an iteration copies before it uses it."""
        if number == len(loop.tiles):
            loop.tiles.append(self.allocate(roles, dtype, "shared"))
            self._ahead.append(loop.tiles[number])
        self._fill(loop.tiles[number])
        loop.tiles[number].filled = True

    @staticmethod
    def _read(loop: Loop, roles: str, dtype: str) -> Tile:
        return loop.tiles[loop.wanted.index((roles, dtype))]

    def _fill(self, tile: Tile) -> None:
        rng = self.rng
        kind = rng.random()
        if kind < 0.1 and not self._splits and len(tile.roles) == 2:
            self._plain(tile)  # computed from tensors, element by element
            return
        dims = self.dims(tile.roles)
        converts = kind > 0.85 and tile.dtype != "int8"
        dtype = "float32" if converts else tile.dtype
        known = [
            t for t in self.module.tensors if (t.dims, t.dtype, t.use) == (dims, dtype, "read")
        ]
        tensor = (
            rng.choice(known)
            if known and rng.random() < 0.3
            else self.module.tensor(dims, dtype, "read")
        )
        if kind < 0.2 and len(dims) == 2 and dtype in ("float16", "bfloat16", "float32"):
            self._gathered(tensor.name, tile)
            return
        self.text.add(f"T.copy({self._outside(tensor, tile, rng.random() < 0.5)}, {tile.name})")

    def _gathered(self, tensor: str, tile: Tile) -> None:
        """Rows named by a tensor of indices, of which some are out of range."""
        rows, columns = tile.shape
        index = self.module.tensor((str(rows),), "int32", "read")
        self.text.add(
            f"T.gather_rows({tensor}, {tile.name}, {index.name}, {self.axes[tile.roles[1]].origin})"
        )

    # Products ------------------------------------------------------------------------------------

    def _products(self, loop: Loop) -> None:
        """None, one or two products of an iteration."""
        kind = self.rng.random()
        if kind < 0.15:
            return
        if kind < 0.35 and self.axes["m"].extent >= 64:
            self._chain(loop)
            return
        dtype, result = self.rng.choice(_OPERANDS)
        sums = self._sums(result)
        for _ in range(1 if kind < 0.8 else 2):
            self._product(loop, dtype, sums)

    def _sums(self, dtype: str) -> Tile:
        """An accumulator: one that holds something, or a new one that is cleared."""
        known = [t for t in self.filled("mn", "fragment") if t.dtype == dtype and t.bound < 1e4]
        if known and self.rng.random() < 0.7:
            return self.rng.choice(known)
        tile = self.allocate("mn", dtype, "fragment")
        if self.rng.random() < 0.2:
            tensor = self.module.tensor(self.dims("mn"), dtype, "read")
            self.text.add(f"T.copy({self._outside(tensor, tile)}, {tile.name})")
        else:
            self.text.add(f"T.clear({tile.name})")
        tile.filled = True
        return tile

    def _product(self, loop: Loop, dtype: str, sums: Tile) -> None:
        left, right = self.rng.choice(("mk", "mk", "km")), self.rng.choice(("kn", "kn", "nk"))
        if dtype == "int8":
            left, right = "mk", "nk"
        loop.wanted += [(left, dtype), (right, dtype)]
        options = ", transpose_A=True" if left == "km" else ""
        options += ", transpose_B=True" if right == "nk" else ""

        def multiply() -> None:
            a, b = self._read(loop, left, dtype), self._read(loop, right, dtype)
            sums.bound += BOUND * BOUND * self.axes["k"].extent * self.trips
            self.text.add(f"T.gemm({a.name}, {b.name}, {sums.name}{options})")

        loop.steps.append(multiply)

    def _chain(self, loop: Loop) -> None:
        """Attention's two products: the first one's sums, made small, times another tile."""
        dtype = self.rng.choice(("float16", "float16", "bfloat16"))
        q = self.allocate("mn", dtype, "shared")
        tensor = self.module.tensor(self.dims("mn"), dtype, "read")
        self.text.add(f"T.copy({self._outside(tensor, q)}, {q.name})")
        q.filled = True
        sums, scores = self._sums("float32"), self.allocate("mk", "float32", "fragment")
        small = self.allocate("mk", dtype, "fragment")
        loop.wanted += [("kn", dtype)]
        policy = "" if self.rng.random() < 0.1 else ", policy=T.GemmWarpPolicy.FullRow"

        def first() -> None:
            keys = self._read(loop, "kn", dtype)
            scores.bound, scores.filled = BOUND * BOUND * self.axes["n"].extent, True
            options = ", transpose_B=True, clear_accum=True"
            self.text.add(f"T.gemm({q.name}, {keys.name}, {scores.name}{options}{policy})")

        def between() -> None:
            x = f"{scores.name}[i, j]"
            value = self.rng.choice(
                (
                    f"T.exp(T.min({x}, T.float32(1)))",
                    f"T.max(T.min({x}, T.float32(4)), T.float32(-4))",
                    f"T.if_then_else(i + by >= j, {x} / (T.abs({x}) + T.float32(1)), T.float32(0))",
                )
            )
            in_place = self.rng.random() < 0.7  # then it goes on under the second product
            header, _ = self._loop(scores)
            with self.text.block(header):
                self.text.add(f"{scores.name if in_place else small.name}[i, j] = {value}")
            if in_place:
                self.text.add(f"T.copy({scores.name}, {small.name})")
            small.filled = True

        def second() -> None:
            values = self._read(loop, "kn", dtype)
            sums.bound += BOUND * BOUND * self.axes["k"].extent * self.trips
            self.text.add(f"T.gemm({small.name}, {values.name}, {sums.name}{policy})")

        loop.steps += [first, between, second]

    # Beside the products -------------------------------------------------------------------------

    def _beside(self) -> None:
        steps: list[Callable[[], Any]] = [self._elementwise] * 4 + [self._scaled] * 2
        steps += [self.reduce, self.atomic, self.store]
        steps += [] if self._splits else [self.load]
        self.rng.choice(steps)()

    def _elementwise(self) -> None:
        """A nest that writes no tile that is copied ahead."""
        own = [t for t in self.filled(sums=False) if t not in self._ahead and t is not self._places]
        if own and self.rng.random() < 0.6:
            target = self.rng.choice(own)
        else:
            # A tile in shared memory that is computed from tensors alone would be copied ahead.
            scope = "fragment" if self._splits and self._ahead else ""
            target = self.allocate(self.rng.choice(("mn", "mk", "kn", "m", "n", "k")), scope=scope)
        forms = [self._plain, self._plain, self._conditional, self._bound_name, self._to_tensor]
        forms += [self._summed] if len(target.shape) == 2 else []
        self.rng.choice(forms)(target)
        target.filled = True

    def _scaled(self) -> None:
        """Sums that an iteration scales."""
        known = [t for t in self.filled("mn", "fragment") if t.is_sum and t.dtype == "float32"]
        if not known:
            self._elementwise()
            return
        tile = self.rng.choice(known)
        header, names = self._loop(tile)
        with self.text.block(header):
            self.text.add(
                f"{tile.name}[{', '.join(names)}] *= {self.rng.choice((0.5, 0.25, -1.0))}"
            )

    def _target(self) -> Tile:
        """The buffer that `atomic` and others take their loop from: no tile that is copied ahead."""
        return self.allocate("mn")
