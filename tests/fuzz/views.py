"""Random kernels whose tiles and tensors have several names, and what is done between their uses.

A pass that asks who uses a buffer must see the uses by each of its names. What most of them look for
comes often: tiles that are cleared, added to by a loop's products and copied out once; tensors that are
read, by one name or the other, before they are overwritten, and behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.fuzz.kernels import KernelMaker
from tests.fuzz.parts import BOUND, Axis, Module, Tensor, Tile
from tests.fuzz.terms import Leaf, limit_of

__all__ = ["ViewMaker"]

_BITS = {"float32": ("int32", -(2**31), 2**31 - 1), "float16": ("int16", -(2**15), 2**15 - 1)}


class OtherName(Tile):
    """A tile by another name, of the same shape."""

    def __init__(self, name: str, of: Tile) -> None:
        self.of = of
        super().__init__(name, of.dtype, of.scope, of.roles, of.shape, of.bound, of.filled)

    @property
    def bound(self) -> float:  # type: ignore[override]
        return self.of.bound

    @bound.setter
    def bound(self, bound: float) -> None:
        self.of.bound = bound

    @property
    def filled(self) -> bool:  # type: ignore[override]
        return self.of.filled

    @filled.setter
    def filled(self, filled: bool) -> None:
        self.of.filled = filled


class ViewMaker(KernelMaker):
    """Writes one `with T.Kernel(...)`, and views in front of it, into a module."""

    def __init__(self, module: Module, size: int) -> None:
        super().__init__(module, size)
        self._in_front: list[str] = []
        self._has_whole_tiles = self._begins_with_sums = False
        self._named: set[str] = set()  # tensors that were used by their own names
        self._views: dict[str, str] = {}  # by what they show: a view is declared once

    def make(self) -> None:
        self._has_whole_tiles = self.rng.random() < 0.6
        start = len(self.text.lines)
        super().make()
        self.text.lines[start:start] = ["    " + line for line in self._in_front]

    def _body(self, loop: str) -> None:
        """Sums that are kept where they go stand outside of loops and branches: they may come first."""
        self._begins_with_sums = self.rng.random() < 0.5
        super()._body(loop)

    def statement(self) -> None:
        """A statement about names, or an ordinary one."""
        if self._begins_with_sums:
            self._begins_with_sums = False
            self._sums()
            return
        kinds: list[tuple[float, Callable[[], Any]]] = [
            (1.0, super().statement),
            (0.35, self._other_name),
            (0.35, self._through_a_view),
            (0.2, self._by_bits),
            (0.25, self._stored_and_read),
            (0.5, self._sums),
        ]
        if self._depth > 1:
            kinds.pop()
        self.rng.choices([k for _, k in kinds], [w for w, _ in kinds])[0]()

    def _axis(self, role: str, index: str, extent: int) -> Axis:
        """As often as not tensors of whole tiles, in which sums are kept where they go."""
        if not self._has_whole_tiles:
            return super()._axis(role, index, extent)
        blocks, wide = self.rng.randrange(1, 3), self.rng.choice((16, 16, 32))
        return Axis(role, wide, str(wide * blocks), blocks, index)

    def _leaves(self, target: Tile, names: list[str], written: list[Tile]) -> list[Leaf]:
        """Elements written by one name in an iteration: no other one reads them by another."""
        roots = [_root(tile) for tile in written]
        all_names = [tile for tile in self.tiles if any(_root(tile) is root for root in roots)]
        return super()._leaves(target, names, all_names)

    # Names ---------------------------------------------------------------------------------------

    def _view(self, of: str, shape: tuple[Any, ...], dtype: str = "", *, inside: bool) -> str:
        """A view of a tile or a tensor, declared in the kernel or in front of it."""
        extents = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        made = f"T.view({of}, ({extents}), {dtype!r})" if dtype else f"T.reshape({of}, ({extents}))"
        made = made.replace("'", '"')
        if made not in self._views or self.rng.random() < 0.2:
            name = self._views[made] = self.module.name("w")
            (self.allocations if inside else self._in_front).append(f"{name} = {made}")
        return self._views[made]

    def _other_name(self) -> None:
        """Another name for all later statements."""
        tiles = [tile for tile in self.tiles if not isinstance(tile, OtherName)]
        if not tiles:
            self.load()
            return
        tile = self.rng.choice(tiles)
        name = self.module.name("w")
        extents = ", ".join(map(str, tile.shape)) + ("," if len(tile.shape) == 1 else "")
        self.allocations.append(f"{name} = T.reshape({tile.name}, ({extents}))")
        self.tiles.append(OtherName(name, tile))

    def _through_a_view(self) -> None:
        """Elements of a tile changed, or set from another one's, under another shape."""
        tiles = self.filled(sums=False)
        if not tiles:
            self.load()
            return
        target = self.rng.choice(tiles)
        shape = self._shape(target)
        names = ["q"] if len(shape) == 1 else ["q", "p"]
        index = ", ".join(names)
        view = self._view(target.name, shape, inside=True)
        leaves = [Leaf(f"{view}[{index}]", target.dtype, BOUND, target.dtype != "uint8")]
        others = [t for t in tiles if _size(t) == _size(target) and _root(t) is not _root(target)]
        if others:
            other = self.rng.choice(others)
            name = self._view(other.name, shape, inside=True)
            leaves.append(Leaf(f"{name}[{index}]", other.dtype, BOUND, other.dtype != "uint8"))
        terms = self.terms(leaves, [*names, *self.indices])
        with self.text.block(
            f"for {', '.join(names)} in T.Parallel({', '.join(map(str, shape))}):"
        ):
            self.text.add(f"{view}[{index}] = {terms.stored(target.dtype, 2, BOUND)}")

    def _shape(self, tile: Tile) -> tuple[int, ...]:
        size = _size(tile)
        rows = [r for r in (2, 3, 4, 5, 8, 11, 16, 32) if size % r == 0 and size > r]
        if not rows or self.rng.random() < 0.5:
            return (size,)
        chosen = self.rng.choice(rows)
        return (chosen, size // chosen)

    def _by_bits(self) -> None:
        """The sign of each element of a tile, changed by its bit: of numbers that are exact."""
        dtype = self.rng.choice(list(_BITS))
        bits, sign, others = _BITS[dtype]
        tile = self.loaded(self.rng.choice(("mn", "m", "mk")), dtype)
        source = self.module.tensor(self.dims(tile.roles), dtype, "read")
        self.text.add(f"T.copy({self._outside_of(source, tile)}, {tile.name})")
        shape = self._shape(tile)
        names = ", ".join(["q", "p"][: len(shape)])
        view = self._view(tile.name, shape, bits, inside=True)
        change = self.rng.choice((f"^ T.{bits}({sign})", f"& T.{bits}({others})"))
        with self.text.block(f"for {names} in T.Parallel({', '.join(map(str, shape))}):"):
            self.text.add(f"{view}[{names}] = {view}[{names}] {change}")

    def _outside_of(self, tensor: Tensor, tile: Tile) -> str:
        return f"{tensor.name}[{', '.join(self.axes[role].origin for role in tile.roles)}]"

    # Tensors -------------------------------------------------------------------------------------

    def _place(self, tensor: Tensor, origins: list[str], tile: Tile) -> str:
        """The place of a tile in a tensor, by its name or by that of a view."""
        kind = self.rng.randrange(4)
        dims, where = list(tensor.dims), list(origins)
        if kind < 2 and (kind or tensor.name not in self._named):
            # Its own name and a view's: often each once.
            self._named.add(tensor.name)
            return f"{tensor.name}[{', '.join(origins)}]"
        first = len(dims) - len(tile.roles)
        rows = self.axes[tile.roles[0]]
        if self.rng.random() < 0.5 and rows.size == str(rows.blocks * rows.extent):
            dims[first : first + 1] = [str(rows.blocks), str(rows.extent)]
            where[first : first + 1] = [rows.index or "0", "0"]
        else:
            dims.insert(0, "1")
            where.insert(0, "0")
        view = self._view(tensor.name, tuple(dims), inside=self.rng.random() < 0.4)
        return f"{view}[{', '.join(where)}]"

    def _own_tensor(self, tile: Tile) -> tuple[Tensor, list[str]]:
        """A new tensor in which each block has such a tile of its own, and the tile's origin."""
        kept, self.stores = self.stores, {}
        try:
            return self.place(tile.roles, [tile.dtype], tile.bound)
        finally:
            self.stores = kept

    def _stored_and_read(self) -> None:
        """The block's part of a tensor: its old value, a new one, and that read again."""
        tiles = self.filled(sums=False)
        if not tiles:
            self.load()
            return
        tile = self.rng.choice(tiles)
        tensor, origins = self._own_tensor(tile)
        steps = self.rng.choice(("old new", "new again", "old new again", "old", "new new again"))
        for step in steps.split():
            if step == "new":
                self.text.add(f"T.copy({tile.name}, {self._place(tensor, origins, tile)})")
                continue
            self._read_back(tensor, origins, tile)

    def _read_back(self, tensor: Tensor, origins: list[str], tile: Tile) -> None:
        """A new tile of what is in a tensor at the place of another tile."""
        read = self.allocate("".join(tile.roles), tile.dtype, bound=max(BOUND, tensor.bound))
        self.text.add(f"T.copy({self._place(tensor, origins, tile)}, {read.name})")
        read.filled = True

    # Products ------------------------------------------------------------------------------------

    def _sums(self) -> None:
        """Sums that a loop adds up between a clear and a copy to a tensor, by any of their names."""
        rng, axis = self.rng, self.axes["k"]
        if axis.index:
            self.elementwise()
            return
        dtype, result = rng.choice(
            (("float32", "float32"), ("float16", "float32"), ("int8", "int32"))
        )
        sums = self.allocate("mn", result, rng.choice(("fragment", "fragment", "shared")))
        is_plain = rng.random() < 0.5  # nothing else uses the sums
        has_view = not is_plain and rng.random() < 0.5
        flat = self._view(sums.name, (_size(sums),), inside=True) if has_view else ""
        sums.bound = BOUND * BOUND * axis.extent * (axis.blocks + 3) + 4
        assert sums.bound < limit_of(result)
        tensor, origins = self._own_tensor(sums)
        before = "" if is_plain else rng.choice(("", "read", "read", "changed", "part"))
        reads_old = rng.choice(
            (None, None, 0, 1)
        )  # what is there, before the products or behind them
        self.text.add(f"T.clear({rng.choice((sums.name, flat or sums.name))})")
        sums.filled = True
        if reads_old == 0:
            self._read_back(tensor, origins, sums)
        if before == "read":
            read = self.allocate("mn", result, "shared")
            if flat:
                other = self._view(read.name, (_size(read),), inside=True)
                self.text.add(f"T.copy({flat}, {other})")
            else:
                self.text.add(f"T.copy({sums.name}, {read.name})")
            read.filled = True
        elif before == "changed":
            with self.text.block(
                f"for q in T.Parallel({_size(sums)}):" if flat else "if bx % 2 == 0:"
            ):
                self.text.add(f"{flat}[q] = {flat}[q] + 2" if flat else f"T.fill({sums.name}, 1)")
        elif before == "part":
            rows = rng.randrange(1, sums.shape[0] + 1)
            self.text.add(f"T.fill({sums.name}[0:{rows}, 0:{sums.shape[1]}], 3)")
        self._products(sums, dtype, axis)
        if reads_old == 1:
            self._read_back(tensor, origins, sums)
        if rng.random() < 0.25 and flat:
            with self.text.block(f"for q in T.Parallel({_size(sums)}):"):
                self.text.add(f"{flat}[q] = {flat}[q] + 1")
        self.text.add(f"T.copy({sums.name}, {self._place(tensor, origins, sums)})")
        if rng.random() < 0.3:
            self._read_back(tensor, origins, sums)
        if is_plain:
            self.tiles = [tile for tile in self.tiles if tile is not sums]

    def _products(self, sums: Tile, dtype: str, axis: Axis) -> None:
        """A loop of products, of tiles that it copies or that are there."""
        rng = self.rng
        a, b = (self.allocate(roles, dtype, "shared") for roles in ("mk", "kn"))
        sources = [self.module.tensor(self.dims(tile.roles), dtype, "read") for tile in (a, b)]
        product = f"T.gemm({a.name}, {b.name}, {sums.name})"
        if rng.random() < 0.4:
            self._copy_operands((a, b), sources)
            with self.text.block(f"for _ in range({rng.choice((1, 2, 3))}):"):
                self.text.add(product)
        else:
            self._copying_loop((a, b), sources, product, axis)
        if rng.random() < 0.3:
            a.filled = b.filled = True  # others may use what was copied last
        else:
            self.tiles = [tile for tile in self.tiles if tile is not a and tile is not b]

    def _copying_loop(
        self, tiles: tuple[Tile, Tile], sources: list[Tensor], product: str, axis: Axis
    ) -> None:
        rng = self.rng
        index = self.module.name("k")
        steps = f"T.ceildiv({axis.size}, {axis.extent})"
        pipelined = f"T.Pipelined({steps}, num_stages={rng.choice((0, 1, 2, 3))})"
        self.axes["k"] = replace(axis, index=index)
        with self.text.block(f"for {index} in {rng.choice((pipelined, f'T.serial({steps})'))}:"):
            self._copy_operands(tiles, sources)
            if rng.random() < 0.15:
                flat = self._view(tiles[1].name, (_size(tiles[1]),), inside=True)
                with self.text.block(f"for q in T.Parallel({_size(tiles[1])}):"):
                    self.text.add(f"{flat}[q] = T.max({flat}[q], 0)")
            self.text.add(product)
        self.axes["k"] = axis

    def _copy_operands(self, tiles: tuple[Tile, Tile], sources: list[Tensor]) -> None:
        for tile, source in zip(tiles, sources, strict=True):
            self.text.add(f"T.copy({self._outside_of(source, tile)}, {tile.name})")


def _size(tile: Tile) -> int:
    size = 1
    for extent in tile.shape:
        size *= extent
    return size


def _root(tile: Tile) -> Tile:
    return tile.of if isinstance(tile, OtherName) else tile
