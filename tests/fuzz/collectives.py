"""Random statements of a whole block: copies, reductions, scans, products, transpositions."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from tests.fuzz.parts import BOUND, Axis, Module, Tensor, Tile
from tests.fuzz.terms import FLOATS, Leaf, Terms, limit_of

__all__ = ["Collectives", "Kernel"]

_DTYPES = ("float32",) * 6 + ("float16",) * 5 + ("bfloat16",) * 3 + ("int32",) * 4
_DTYPES += ("int8", "int8", "uint8", "int16", "int64", "float8_e4m3fn", "float8_e5m2")
_SHAPES = ("mn", "mn", "mn", "mk", "mk", "kn", "kn", "nk", "km", "m", "n", "mx", "xn", "k")


class Kernel:
    """The state of a kernel that is being written.

    Attributes
    ----------
    axes : dict of str to Axis
        By their roles.
    tiles : list of Tile
        All that are allocated.
    indices : list of str
        Integers that all threads agree on: block indices, loop variables.
    scalars : list of Leaf
        Numbers that all threads agree on.
    stores : dict of tuple of str to list of Tensor
        What tiles of the same roles were stored to.
    trips : int
        How often the statement at hand runs.
    """

    grid: tuple[str, ...] = ("n", "m")
    """The roles of the axes along which blocks share the work."""
    shapes: tuple[str, ...] = _SHAPES
    """The roles of a new tile, of which one is chosen."""

    def __init__(self, module: Module) -> None:
        self.module, self.rng, self.text = module, module.rng, module.text
        self.axes: dict[str, Axis] = {}
        self.tiles: list[Tile] = []
        self.allocations: list[str] = []
        self.variables: list[str] = []
        self.stores: dict[tuple[str, ...], list[Tensor]] = {}
        self.indices: list[str] = ["bx", "by"]
        self.scalars: list[Leaf] = []
        self.trips = 1

    @staticmethod
    def chance(rng: Random, share: float) -> bool:
        """True in a share of cases."""
        return rng.random() < share

    def terms(self, leaves: list[Leaf], indices: list[str]) -> Terms:
        """Expressions of leaves and indices."""
        return Terms(self.rng, leaves + self.scalars, indices)

    def allocate(self, roles: str, dtype: str = "", scope: str = "", bound: float = BOUND) -> Tile:
        """A new tile."""
        dtype = dtype or self.rng.choice(_DTYPES)
        scope = scope or self.rng.choice(("shared", "shared", "fragment"))
        shape = tuple(self.axes[role].extent for role in roles)
        tile = Tile(self.module.name(scope[0]), dtype, scope, tuple(roles), shape, bound)
        extents = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        self.allocations.append(f'{tile.name} = T.alloc_{scope}(({extents}), "{dtype}")')
        self.tiles.append(tile)
        return tile

    def filled(self, roles: str = "", scope: str = "", sums: bool = True) -> list[Tile]:
        """Tiles that may be read."""
        return [
            tile
            for tile in self.tiles
            if tile.filled
            and (not roles or tile.roles == tuple(roles))
            and (not scope or tile.scope == scope)
            and (sums or not tile.is_sum)
        ]

    def dims(self, roles: Iterable[str]) -> tuple[str, ...]:
        """The extents of a tensor whose axes have these roles."""
        return tuple(self.axes[role].size for role in roles)

    def source(self, dims: tuple[str, ...]) -> Tensor:
        """A tensor with these extents that the kernel only reads."""
        known = [t for t in self.module.tensors if t.dims == dims and t.use == "read"]
        if known and self.rng.random() < 0.5:
            return self.rng.choice(known)
        return self.module.tensor(dims, self.rng.choice(_DTYPES), "read")

    def place(
        self, roles: tuple[str, ...], dtypes: list[str], bound: float
    ) -> tuple[Tensor, list[str]]:
        """A tensor in which each block has a tile of its own, and the tile's origin.

        It is a new one, or one that tiles like this were stored to before: the last store counts.
        """
        missing = [self.axes[role] for role in self.grid if role not in roles]
        own = [self.axes[role] for role in roles]
        origins = [a.index for a in missing] + [a.origin for a in own]
        known = [t for t in self.stores.get(roles, []) if t.dtype in dtypes]
        if known and self.rng.random() < 0.15:
            tensor = self.rng.choice(known)
            tensor.bound = max(tensor.bound, bound)
            return tensor, origins
        dims = tuple([str(a.blocks) for a in missing] + [a.size for a in own])
        tensor = self.module.tensor(dims, self.rng.choice(dtypes), "written", bound)
        self.stores.setdefault(roles, []).append(tensor)
        return tensor, origins


class Collectives(Kernel):
    """Writes statements that stand outside of `T.Parallel`."""

    # Copies --------------------------------------------------------------------------------------

    def load(self, with_loop: bool = False) -> Tile:
        """Copy a tile from a tensor."""
        shapes = [s for s in self.shapes if "k" in s] if with_loop else self.shapes
        return self.loaded(self.rng.choice(shapes), scope="shared" if with_loop else "")

    def loaded(self, roles: str, dtype: str = "", scope: str = "") -> Tile:
        """A tile that is copied from a tensor: a known one of those roles and that dtype, or new."""
        known = [
            t
            for t in self.tiles
            if t.roles == tuple(roles)
            and not t.is_sum
            and dtype in ("", t.dtype)
            and scope in ("", t.scope)
        ]
        tile = self.rng.choice(known) if known and self.rng.random() < 0.4 else None
        tile = tile or self.allocate(roles, dtype, scope)
        source = self.source(self.dims(roles))
        if source.bound > BOUND or not _converts(source.dtype, tile.dtype):
            source = self.module.tensor(source.dims, tile.dtype, "read")
        self.text.add(f"T.copy({self._outside(source, tile)}, {self._inside(tile)})")
        tile.filled = True
        return tile

    def _outside(self, tensor: Tensor, tile: Tile, shift: bool = True) -> str:
        """The tile's place in a tensor that is read."""
        axes = [self.axes[role] for role in tile.roles]
        origins = [a.origin for a in axes]
        if shift and self.rng.random() < 0.12:
            moved = self.rng.randrange(len(origins))
            if axes[moved].index:  # a constant that lies outside is an error
                origins[moved] += f" + {self.rng.choice((-3, -1, 1, 2, 5))}"
        if self.rng.random() < 0.6 or not all(map(_may_fit, axes)):
            return f"{tensor.name}[{', '.join(origins)}]"
        spans = [f"{low} : {low} + {a.extent}" for low, a in zip(origins, axes, strict=True)]
        return f"{tensor.name}[{', '.join(spans)}]"

    def _inside(self, tile: Tile) -> str:
        return tile.name if self.rng.random() < 0.7 else f"{tile.name}[{_whole(tile)}]"

    def copy_tile(self) -> None:
        """Copy a tile to another one, or a part of it to a part of another."""
        sources = self.filled(sums=False)
        if not sources:
            self.load()
            return
        source = self.rng.choice(sources)
        known = [t for t in self.filled("".join(source.roles), sums=False) if t is not source]
        if known and self.rng.random() < 0.5:
            target = self.rng.choice(known)
        else:
            target = self.allocate("".join(source.roles))
        if not _converts(source.dtype, target.dtype):
            target = self.allocate("".join(source.roles), source.dtype)
        if target.filled and source.shape[0] > 2 and self.rng.random() < 0.4:
            first, other = self._part(source), self._part(target)
            rows = min(first[1], other[1])
            self.text.add(
                f"T.copy({_rows(source, first[0], rows)}, {_rows(target, other[0], rows)})"
            )
            return
        self.text.add(f"T.copy({self._inside(source)}, {self._inside(target)})")
        target.filled = True

    def _part(self, tile: Tile) -> tuple[int, int]:
        """Some rows: the first, and how many."""
        first = self.rng.randrange(tile.shape[0])
        return first, self.rng.randrange(1, tile.shape[0] - first + 1)

    def overlapping_copy(self) -> None:
        """Copy rows of a tile over others of it: the source is read before the target is written."""
        tiles = [t for t in self.filled(sums=False) if t.shape[0] > 3]
        if not tiles:
            self.load()
            return
        tile = self.rng.choice(tiles)
        rows = self.rng.randrange(1, tile.shape[0])
        starts = [self.rng.randrange(tile.shape[0] - rows + 1) for _ in range(2)]
        self.text.add(f"T.copy({_rows(tile, starts[0], rows)}, {_rows(tile, starts[1], rows)})")

    def store(self) -> None:
        """Copy a tile to a tensor."""
        tiles = self.filled()
        if tiles:
            self.stored(self.rng.choice(tiles))
        else:
            self.load()

    def stored(self, tile: Tile) -> None:
        """Copy a tile to the block's own place in a tensor."""
        wider = [d for d in ("float32", "float16", "int32") if _fits(tile, d)]
        tensor, origins = self.place(tile.roles, [tile.dtype, tile.dtype, *wider], tile.bound)
        self.text.add(f"T.copy({self._inside(tile)}, {tensor.name}[{', '.join(origins)}])")

    def store_all(self) -> None:
        """Store every tile, so that nothing is computed for nothing."""
        for tile in self.filled():
            if self.rng.random() < 0.9:
                self.stored(tile)

    def fill(self) -> None:
        """One value in every element."""
        tile = self.allocate(self.rng.choice(self.shapes))
        if self.rng.random() < 0.4:
            self.text.add(f"T.clear({tile.name})")
        else:
            self.text.add(f"T.fill({tile.name}, {self.rng.choice((0, 1, 3, 2))})")
        tile.filled = True

    # Operators -----------------------------------------------------------------------------------

    def transpose(self) -> None:
        """Exchange the last two axes."""
        sources = [t for t in self.filled(sums=False) if len(t.roles) >= 2]
        if not sources:
            self.load()
            return
        source = self.rng.choice(sources)
        dtype = source.dtype if self.rng.random() < 0.7 else "float32"
        *others, rows, columns = source.roles
        target = self.allocate("".join((*others, columns, rows)), dtype)
        self.text.add(f"T.transpose({source.name}, {target.name})")
        target.filled = True

    def reduce(self) -> None:
        """Combine the elements along an axis."""
        sources = [
            t for t in self.filled(sums=False) if len(t.roles) >= 2 and t.dtype[:6] != "float8"
        ]
        if not sources:
            self.load()
            return
        source = self.rng.choice(sources)
        axis = self.rng.randrange(len(source.roles))
        kinds = ["max", "min", "absmax"]
        kinds += ["sum", "abssum"] if source.dtype in (*FLOATS, "int32") else []
        kinds += [] if "float" in source.dtype else ["bitand", "bitor", "bitxor"]
        kind = self.rng.choice(kinds)
        if kind == "absmax" and source.dtype == "uint8":
            kind = "max"
        bound = source.bound * source.shape[axis] if "sum" in kind else 2 * BOUND
        is_sum = "sum" in kind or "bit" in kind
        target, clear = self._result(source, axis, bound if is_sum else BOUND)
        dim = axis if self.rng.random() < 0.5 else axis - len(source.roles)
        option = "" if clear else ", clear=False"
        self.text.add(f"T.reduce_{kind}({source.name}, {target.name}, dim={dim}{option})")
        target.filled = True

    def _result(self, source: Tile, axis: int, bound: float) -> tuple[Tile, bool]:
        """The place of a reduction's result, and whether it replaces what is there."""
        roles = "".join(role for at, role in enumerate(source.roles) if at != axis)
        known = [
            t for t in self.filled(roles) if t.dtype == source.dtype and t.is_sum == (bound > BOUND)
        ]
        if known and self.rng.random() < 0.5:
            target = self.rng.choice(known)
            grown = target.bound + bound * self.trips
            if bound <= BOUND:
                return target, self.rng.random() < 0.5
            if grown < limit_of(target.dtype):
                target.bound = grown
                return target, self.rng.random() < 0.5
        dtype = source.dtype if self.rng.random() < 0.8 else _wider(source.dtype)
        return self.allocate(roles, dtype, bound=bound), True

    def scan(self) -> None:
        """Running totals."""
        sources = [t for t in self.filled(sums=False) if t.dtype in (*FLOATS, "int32")]
        if not sources:
            self.load()
            return
        source = self.rng.choice(sources)
        axis = self.rng.randrange(len(source.shape))
        reverse = ", reverse=True" if self.rng.random() < 0.4 else ""
        if self.rng.random() < 0.3:
            target = source if self.rng.random() < 0.5 else self._like(source, source.dtype, BOUND)
            name = "T.cummax"
        else:
            bound = source.bound * source.shape[axis]
            target, name = (
                self._like(source, self.rng.choice((source.dtype, "float32")), bound),
                "T.cumsum",
            )
        target.filled = True
        second = "" if target is source else f", {target.name}"
        self.text.add(f"{name}({source.name}{second}, dim={axis}{reverse})")

    def _like(self, tile: Tile, dtype: str, bound: float) -> Tile:
        return self.allocate("".join(tile.roles), dtype, bound=bound)

    def gemm(self) -> None:
        """Multiply two tiles."""
        kinds = (("float16", "float32"), ("bfloat16", "float32"), ("float32", "float32"))
        kinds += (("float16", "float32"), ("float16", "float16"), ("int8", "int32"))
        dtype, result = self.rng.choice(kinds)
        left, right = self.rng.choice(("mk", "mk", "km")), self.rng.choice(("kn", "kn", "nk"))
        a, b = (self._operand(roles, dtype) for roles in (left, right))
        bound = BOUND * BOUND * self.axes["k"].extent
        known = [t for t in self.filled("mn") if t.is_sum and t.dtype == result]
        known = [t for t in known if t.bound + bound * self.trips < limit_of(result)]
        clear = ""
        if known and self.rng.random() < 0.7:
            target = self.rng.choice(known)
        else:
            target = self.allocate("mn", result, self.rng.choice(("fragment",) * 5 + ("shared",)))
            target.bound, clear = bound * self.trips, ", clear_accum=True"
            if target.bound >= limit_of(result):
                target.dtype = result
        if not clear:
            target.bound += bound * self.trips
        options = ", transpose_A=True" if left == "km" else ""
        options += ", transpose_B=True" if right == "nk" else ""
        if self.rng.random() < 0.2:
            policy = self.rng.choice(("Square", "FullRow", "FullCol"))
            options += f", policy=T.GemmWarpPolicy.{policy}"
        target.filled = True
        self.text.add(f"T.gemm({a.name}, {b.name}, {target.name}{options}{clear})")

    def _operand(self, roles: str, dtype: str) -> Tile:
        known = [t for t in self.filled(roles, sums=False) if t.dtype == dtype]
        if known and self.rng.random() < 0.7:
            return self.rng.choice(known)
        scope = "shared" if self.rng.random() < 0.9 else "fragment"
        return self.loaded(roles, dtype, scope)


def _may_fit(axis: Axis) -> bool:
    """A region that certainly reaches outside of a tensor is an error."""
    return bool(axis.index) or (axis.size.isdigit() and int(axis.size) >= axis.extent)


def _whole(tile: Tile) -> str:
    return ", ".join(f"0:{e}" for e in tile.shape)


def _rows(tile: Tile, first: int, count: int) -> str:
    rest = "".join(f", 0:{e}" for e in tile.shape[1:])
    return f"{tile.name}[{first}:{first + count}{rest}]"


def _converts(source: str, target: str) -> bool:
    """An element of an ordinary tile has a place in another dtype."""
    return target != "uint8" or source == "uint8"


def _fits(tile: Tile, dtype: str) -> bool:
    """Every element of a tile has a place in a dtype."""
    if dtype == tile.dtype:
        return True
    return _converts(tile.dtype, dtype) and tile.bound < limit_of(dtype)


def _wider(dtype: str) -> str:
    return "float32" if dtype in FLOATS else "int32"
