"""Random kernels of many axes: tiles of up to four, grids of three, extents of 1, slices, strides.

Beside them stand loops whose trips are known when the kernel runs: bounds that differ from block to
block or from iteration to iteration, `while`, and `break`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.fuzz.kernels import KernelMaker
from tests.fuzz.parts import BOUND, Axis, Tensor, Tile
from tests.fuzz.terms import Leaf, limit_of

__all__ = ["ShapeMaker"]

_HIGH = (8, 16, 16, 5, 1)
_WIDE = (8, 16, 16, 32, 7, 1)


class ShapeMaker(KernelMaker):
    """Writes one `with T.Kernel(...)` into a module."""

    grid = ("n", "m", "h")
    shapes = ("hmn", "hmn", "mhn", "hn", "hm", "mn", "hmxn", "xmn", "hmk", "hkn", "mk", "n", "h")
    targets = ("hmn", "hmn", "mn", "hm", "hn", "xmn", "mhn", "hmx", "hmxn", "m")

    def make(self) -> None:
        """Choose a grid, and fill it with statements."""
        rng = self.rng
        self.axes = {
            "h": self._axis("h", "bz", rng.choice((1, 2, 3, 4))),
            "m": self._axis("m", "by", rng.choice(_HIGH)),
            "n": self._axis("n", "bx", rng.choice(_WIDE)),
            "k": self._axis("k", "", rng.choice((8, 16))),
            "x": Axis("x", extent := rng.choice((1, 2, 3)), str(extent), 1, ""),
        }
        self.indices.append("bz")
        extents = [
            f"T.ceildiv({a.size}, {a.extent})" for a in (self.axes[role] for role in self.grid)
        ]
        threads = rng.choice((32, 64, 128, 256, 1024, 96))
        if rng.random() < 0.15:
            wave = rng.choice((1, 2, 3))
            reversed_extents = ", ".join(reversed(extents))
            with self.text.block(f"with T.Kernel({wave}, threads={threads}) as block:"):
                self._body(f"for bz, by, bx in T.Persistent([{reversed_extents}], {wave}, block):")
        else:
            grid = ", ".join(extents)
            with self.text.block(f"with T.Kernel({grid}, threads={threads}) as (bx, by, bz):"):
                self._body("")
        self._declare_extents()
        for tensor in self.module.tensors:
            if not tensor.strides and rng.random() < 0.2:
                tensor.strides = self._strides(tensor)

    def statement(self) -> None:
        """A statement on slices, a loop of unknown trips, or an ordinary one."""
        own: list[tuple[float, Callable[[], Any]]] = [
            (1.0, super().statement),
            (0.2, self._slice),
            (0.1, self._slice_of_tensor),
            (0.15, self._left_loop),
            (0.15, self._product),
        ]
        if self._depth < 2:
            own += [(0.15, self._slices), (0.15, self._counted), (0.15, self._ended)]
        self.rng.choices([s for _, s in own], [w for w, _ in own])[0]()

    # Tensors -------------------------------------------------------------------------------------

    def _strides(self, tensor: Tensor) -> tuple[str, ...]:
        """Any order of the axes, with elements between them; one of the strides may be dynamic."""
        rng, sizes = self.rng, self.module.sizes
        order = list(range(len(tensor.dims)))
        if rng.random() < 0.4:
            rng.shuffle(order)
        strides, stride = [""] * len(order), rng.choice((1, 1, 1, 2))
        for axis in reversed(order):
            strides[axis] = str(stride)
            extent = max(eval(tensor.dims[axis], dict(values)) for values in sizes)
            stride = stride * extent + rng.choice((0, 0, 1, 3, 8))
        if len(order) > 1 and rng.random() < 0.3:
            name = self.module.name("S")
            for values in sizes:
                values[name] = int(strides[order[0]])
            strides[order[0]] = name
        return tuple(strides)

    # Slices --------------------------------------------------------------------------------------

    def _tall(self) -> Tile | None:
        """A tile of several axes that holds something."""
        tiles = [t for t in self.filled(sums=False) if len(t.roles) > 1]
        return self.rng.choice(tiles) if tiles else None

    def _sliced(self, tile: Tile, axis: int, index: str) -> str:
        """The tile's elements at one index of an axis."""
        places = [f"0:{extent}" for extent in tile.shape]
        places[axis] = self.rng.choice((index, f"{index} : {index} + 1"))
        return f"{tile.name}[{', '.join(places)}]"

    def _flat(self, tile: Tile, axis: int) -> Tile:
        """A tile without that axis."""
        roles = tuple(role for at, role in enumerate(tile.roles) if at != axis)
        known = [t for t in self.filled("".join(roles), sums=False) if t.dtype == tile.dtype]
        if known and self.rng.random() < 0.5:
            return self.rng.choice(known)
        return self.allocate("".join(roles), tile.dtype)

    def _cut(self) -> tuple[Tile, int, Tile] | None:
        """A tile, one of its axes, and a tile for its slices; without one of several axes, a load."""
        tile = self._tall()
        if tile is None:
            self.load()
            return None
        axis = self.rng.randrange(len(tile.roles))
        return tile, axis, self._flat(tile, axis)

    def _slice(self) -> None:
        """A slice of a tile to a smaller tile, or back."""
        cut = self._cut()
        if cut is None:
            return
        tile, axis, flat = cut
        index = str(self.rng.randrange(tile.shape[axis]))
        if self.rng.random() < 0.5:
            index = f"({self.rng.choice(self.indices)}) % {tile.shape[axis]}"
        operands = [self._sliced(tile, axis, index), flat.name]
        if flat.filled and self.rng.random() < 0.5:
            operands.reverse()
        flat.filled = True
        self.text.add(f"T.copy({', '.join(operands)})")

    def _slices(self) -> None:
        """Each slice of a tile: taken out, worked on, perhaps put back."""
        cut = self._cut()
        if cut is None:
            return
        tile, axis, flat = cut
        index, count = self.module.name("r"), tile.shape[axis]
        loop = self.rng.choice((f"range({count})", f"T.serial({count})", f"T.unroll({count})"))
        with self._repeated(count), self.text.block(f"for {index} in {loop}:"):
            self.text.add(f"T.copy({self._sliced(tile, axis, index)}, {flat.name})")
            flat.filled = True
            self.indices.append(index)
            self._plain(flat)
            if self.rng.random() < 0.4:
                self._some(1)
            if self.rng.random() < 0.6:
                self.text.add(f"T.copy({flat.name}, {self._sliced(tile, axis, index)})")

    def _slice_of_tensor(self) -> None:
        """A tile from a tensor that has one more axis."""
        tile = self.allocate(self.rng.choice(("mn", "hn", "hmn", "n")))
        axes = [self.axes[role] for role in tile.roles]
        places = [f"{a.origin} : {a.origin} + {a.extent}" for a in axes]
        dims = [a.size for a in axes]
        if not all(a.index or int(a.size) >= a.extent for a in axes if a.size.isdigit()):
            self.load()
            return
        at, extent = self.rng.randrange(len(axes) + 1), self.rng.choice((1, 2, 3))
        dims.insert(at, str(extent))
        index = f"({self.rng.choice(self.indices)}) % {extent}"
        places.insert(at, self.rng.choice((index, f"{index} : {index} + 1")))
        source = self.source(tuple(dims))
        if source.bound > BOUND or source.dtype != tile.dtype:
            source = self.module.tensor(source.dims, tile.dtype, "read")
        self.text.add(f"T.copy({source.name}[{', '.join(places)}], {tile.name})")
        tile.filled = True

    def _product(self) -> None:
        """A product of one slice of each operand, into a slice or a tile."""
        rng = self.rng
        dtype, result = rng.choice((("float16", "float32"), ("float32", "float32")))
        a, b = (self.loaded(roles, dtype, "shared") for roles in ("hmk", "hkn"))
        height = self.axes["h"].extent
        index = f"({rng.choice(self.indices)}) % {height}"
        left, right = (
            f"{t.name}[{at}, {', '.join(f'0:{e}' for e in t.shape[1:])}]"
            for t, at in ((a, index), (b, f"{height} - 1 - {index}"))
        )
        sums = self.allocate("mn", result, rng.choice(("fragment", "shared")))
        sums.bound = BOUND * BOUND * self.axes["k"].extent
        assert sums.bound < limit_of(result)
        self.text.add(f"T.gemm({left}, {right}, {sums.name}, clear_accum=True)")
        sums.filled = True

    # Loops ---------------------------------------------------------------------------------------

    @contextmanager
    def _doubtful(self, most: int) -> Iterator[None]:
        """A loop that may do nothing: what it alone writes is not known to be written."""
        before = {tile.name: tile.filled for tile in self.tiles}
        with super()._repeated(most):
            yield
        self._forget(before)

    def _counted(self) -> None:
        """A loop from or to what a block knows."""
        index, block = self.module.name("r"), self.rng.choice(("bx", "by", "bz"))
        bounds = self.rng.choice(
            (f"{block} % 3", f"{block} % 2 + 1", f"{block} % 3, 3", f"0, 2 - {block} % 3")
        )
        loop = self.rng.choice(("range", "T.serial"))
        with self._doubtful(3), self.text.block(f"for {index} in {loop}({bounds}):"):
            self.indices.append(index)
            self._some(2)

    def _ended(self) -> None:
        """A loop that ends when a condition of the block says so."""
        limit = f"{self.rng.choice(self.indices)} % 3"
        if self.rng.random() < 0.5:
            name = self.module.name("n")
            self.variables.append(f'{name} = T.alloc_var("int32", init=0)')
            self.text.add(f"{name} = 0")
            with self._doubtful(2), self.text.block(f"while {name} < {limit}:"):
                self.indices.append(name)
                self._some(2)
                self.text.add(f"{name} = {name} + 1")
            return
        index = self.module.name("r")
        with self._doubtful(3), self.text.block(f"for {index} in T.serial(3):"):
            self.indices.append(index)
            if self.rng.random() < 0.5:
                self._some(1)
            with self.text.block(f"if {index} >= {limit}:"):
                self.text.add("break")
            self._some(2)

    def _left_loop(self) -> None:
        """An inner loop of a nest, of trips that differ, or that some iterations leave."""
        target = self._target()
        header, names = self._loop(target)
        leaves = [leaf for leaf in self._leaves(target, names, [target]) if leaf.bound <= BOUND]
        dtype = self.rng.choice(("float32", "int32", "float16", "int64"))
        total, trips = self.module.name("t"), f"{self.rng.choice(names)} % 4"
        form = self.rng.randrange(3)
        loop = ("for q in T.serial(4):", f"for q in T.serial({trips}):", f"while q < {trips}:")[
            form
        ]
        with self.text.block(header):
            self.text.add(f'{total} = T.alloc_var("{dtype}", init=0)')
            if form == 2:
                self.text.add('q = T.alloc_var("int32", init=0)')
            with self.text.block(loop):
                terms = self.terms(leaves, [*names, "q"])
                if form == 0:
                    with self.text.block(f"if q >= {trips}:"):
                        self.text.add("break")
                value, bound = terms.number(dtype, 2)
                self.text.add(f"{total} = {total} + {value}")
                if form == 2:
                    self.text.add("q = q + 1")
            sums = self.terms([Leaf(total, dtype, bound * 4)], names)
            place = f"{target.name}[{', '.join(names)}]"
            self.text.add(f"{place} = {sums.stored(target.dtype, 1, BOUND)}")
        target.filled = True
