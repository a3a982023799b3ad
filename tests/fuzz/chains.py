"""Chains of products in pipelined loops: attention, its gradients, and what stands between.

The first product's sums go through a mask, the greatest of each row and exponentials, or a function, to
further products, under policies of their own. Tiles may be views, copies may choose between an element
and zero, and what a loop has summed may be added to a tensor atomically.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.fuzz.parts import BOUND, Axis, Tensor, Tile
from tests.fuzz.pipelined_loops import Loop
from tests.fuzz.pipelines import PipelineMaker

__all__ = ["ChainMaker"]

_POLICIES = ("", "FullRow", "FullRow", "FullRow", "FullCol", "Square")
_LEAST = -64.0


@dataclass
class _Rows:
    """The numbers kept of each row of the scores."""

    greatest: Tile
    before: Tile
    scale: Tile
    sums: Tile
    total: Tile


class ChainMaker(PipelineMaker):
    """Writes one kernel into a module; see `PipelinedLoops`."""

    def _axis(self, role: str, index: str, extent: int) -> Axis:
        axis = super()._axis(role, index, extent)
        if not axis.size.isdigit() and self.rng.random() < 0.5:
            sizes = [sizes[axis.size] for sizes in self.module.sizes]
            step = next(n for n in (64, 16, 8, 1) if all(size % n == 0 for size in sizes))
            self.text.add(f"T.assume({axis.size} % {step} == 0)")
            self.text.add(f"T.assume({axis.size} <= {max(sizes)})")
        return axis

    def allocate(self, roles: str, dtype: str = "", scope: str = "", bound: float = BOUND) -> Tile:
        """A new tile; in shared memory perhaps a view of one that is flat."""
        tile = super().allocate(roles, dtype, scope, bound)
        if tile.scope == "shared" and len(tile.shape) == 2 and self.rng.random() < 0.1:
            flat, (rows, columns) = self.module.name("f"), tile.shape
            self.allocations[-1:] = [
                f'{flat} = T.alloc_shared(({rows * columns},), "{tile.dtype}")',
                f"{tile.name} = T.reshape({flat}, ({rows}, {columns}))",
            ]
        return tile

    def _fill(self, tile: Tile) -> None:
        """Copy, or choose between an element and zero."""
        if len(tile.shape) != 2 or self.rng.random() < 0.85:
            super()._fill(tile)
            return
        axes = [self.axes[role] for role in tile.roles]
        tensor = self.module.tensor(tuple(a.size for a in axes), tile.dtype, "read")
        rows = f"{axes[0].origin} + i + {self.rng.choice((-1, 0, 2))}"
        place = f"{rows}, {axes[1].origin} + j"
        condition = self.rng.choice(
            (
                f"{rows} >= 0 and {rows} < {axes[0].size}",
                f"{rows} < {self.rng.choice((0, 40, 100))}",
                "(i + j) % 3 != 0",
            )
        )
        zero = f'T.cast(0, "{tile.dtype}")'
        self._elements(tile, f"T.if_then_else({condition}, {tensor.name}[{place}], {zero})")

    def _products(self, loop: Loop) -> None:
        self._scored(loop)
        if self.rng.random() < 0.3:
            super()._products(loop)

    def _policy(self) -> str:
        name = self.rng.choice(_POLICIES)
        return f", policy=T.GemmWarpPolicy.{name}" if name else ""

    # A chain -------------------------------------------------------------------------------------

    def _scored(self, loop: Loop) -> None:
        """Scores of rows and keys, and the products that they go to."""
        rng = self.rng
        dtype = rng.choice(("float16", "float16", "bfloat16"))
        queries = self.loaded("mn", dtype, "shared")
        scores = self.allocate("mk", "float32", "fragment")
        keys = rng.choice(("kn", "kn", "nk"))
        loop.wanted.append((keys, dtype))
        options = ", transpose_B=True" if keys == "kn" else ""
        options += f", clear_accum=True{self._policy()}"

        def multiply() -> None:
            scores.bound, scores.filled = BOUND * BOUND * self.axes["n"].extent, True
            name = self._read(loop, keys, dtype).name
            self.text.add(f"T.gemm({queries.name}, {name}, {scores.name}{options})")

        loop.steps.append(multiply)
        if rng.random() < 0.4:
            condition = rng.choice(("i + {0} * 3 >= j", "i + bx > j + {0}", "(i + j) % 5 != by"))
            loop.steps.append(lambda: self._masked(scores, condition))
        rows = self._rows() if rng.random() < 0.6 else None
        function = rng.choice(
            ("T.exp(T.min({}, T.float32(1)))", "{0} / (T.abs({0}) + T.float32(1))")
        )
        loop.steps.append(
            (lambda: self._exponentials(scores, rows))
            if rows
            else (lambda: self._elements(scores, function))
        )
        small = self.allocate("mk", dtype, rng.choice(("fragment", "fragment", "shared")))
        loop.steps.append(lambda: self._narrowed(scores, small))
        for _ in range(rng.choice((1, 1, 2, 2, 3))):
            if small.scope == "shared" and rng.random() < 0.4:
                self._gradient(loop, small, queries)
            else:
                self._weighted(loop, small, rows)

    def _masked(self, scores: Tile, condition: str) -> None:
        condition = condition.format(self.axes["k"].index)
        self._elements(scores, f"T.if_then_else({condition}, {{}}, T.float32({_LEAST}))")

    def _elements(self, tile: Tile, function: str) -> None:
        """Set each element to a function of what it was, `{}`."""
        with self.text.block(f"for i, j in T.Parallel({tile.shape[0]}, {tile.shape[1]}):"):
            element = f"{tile.name}[i, j]"
            self.text.add(f"{element} = {function.format(element)}")

    def _narrowed(self, scores: Tile, small: Tile) -> None:
        self.text.add(f"T.copy({scores.name}, {small.name})")
        scores.bound, small.filled = BOUND, True

    def _rows(self) -> _Rows:
        """The greatest score of each row so far, and the sum of its exponentials."""
        tiles = [self.allocate("m", "float32", "fragment") for _ in range(5)]
        rows = _Rows(*tiles)
        self.text.add(f"T.fill({rows.greatest.name}, {_LEAST})")
        self.text.add(f"T.clear({rows.total.name})")
        rows.greatest.filled = rows.total.filled = True
        rows.greatest.bound = rows.before.bound = BOUND * BOUND * self.axes["n"].extent
        return rows

    def _exponentials(self, scores: Tile, rows: _Rows) -> None:
        """Each row's, relative to the greatest of all rows so far."""
        add, (m, k) = self.text.add, scores.shape
        greatest, scale = rows.greatest.name, rows.scale.name
        add(f"T.copy({greatest}, {rows.before.name})")
        add(f"T.reduce_max({scores.name}, {greatest}, dim=1, clear=False)")
        with self.text.block(f"for i in T.Parallel({m}):"):
            add(f"{scale}[i] = T.exp({rows.before.name}[i] - {greatest}[i])")
        self._elements(scores, f"T.exp({{}} - {greatest}[i])")
        add(f"T.reduce_sum({scores.name}, {rows.sums.name}, dim=1)")
        with self.text.block(f"for i in T.Parallel({m}):"):
            total = rows.total.name
            add(f"{total}[i] = {total}[i] * {scale}[i] + {rows.sums.name}[i]")
        for tile in (rows.before, rows.scale, rows.sums):
            tile.filled = True
        rows.sums.bound = float(k)
        rows.total.bound += k * self.trips

    def _weighted(self, loop: Loop, small: Tile, rows: _Rows | None) -> None:
        """Sums of a tile's rows, weighted by the scores."""
        values, sums = self.rng.choice(("kn", "kn", "nk")), self._sums("float32")
        loop.wanted.append((values, small.dtype))
        options = (", transpose_B=True" if values == "nk" else "") + self._policy()
        scale = rows.scale.name if rows is not None and self.rng.random() < 0.8 else ""

        def multiply() -> None:
            if scale:
                m, n = sums.shape
                with self.text.block(f"for i, j in T.Parallel({m}, {n}):"):
                    self.text.add(f"{sums.name}[i, j] *= {scale}[i]")
            sums.bound += BOUND * BOUND * self.axes["k"].extent * self.trips
            name = self._read(loop, values, small.dtype).name
            self.text.add(f"T.gemm({small.name}, {name}, {sums.name}{options})")

        loop.steps.append(multiply)

    def _gradient(self, loop: Loop, small: Tile, queries: Tile) -> None:
        """The scores' transpose times what the rows have, added to a tensor."""
        product = self.allocate("kn", "float32", "fragment")
        tensor = self._added_to(product)
        options = f", transpose_A=True, clear_accum=True{self._policy()}"

        def multiply() -> None:
            self.text.add(f"T.gemm({small.name}, {queries.name}, {product.name}{options})")
            product.filled, product.bound = True, BOUND * BOUND * self.axes["m"].extent
            self._add(product, tensor)

        loop.steps.append(multiply)

    def _added_to(self, tile: Tile) -> Tensor:
        """A tensor that blocks add their tiles to."""
        return self.module.tensor(self.dims(tile.roles), tile.dtype, "add", 1e9)

    def _add(self, tile: Tile, tensor: Tensor) -> None:
        place = ", ".join(self.axes[role].origin for role in tile.roles)
        self.text.add(f"T.atomic_add({tensor.name}[{place}], {tile.name})")

    def store_all(self) -> None:
        """Store every tile; some of the sums are added to a tensor, too."""
        for tile in [t for t in self.filled("mn", "fragment") if t.dtype == "float32"]:
            if self.rng.random() < 0.3:
                self._add(tile, self._added_to(tile))
        super().store_all()
