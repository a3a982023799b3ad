"""Random kernels at the lower edge: extents of 0, nothing to loop over, tensors and tiles without axes.

Beside them stand what must not be reached, extents and bounds of every integer dtype, and products
and reductions along axes without elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tests.fuzz.parts import BOUND, Axis
from tests.fuzz.shapes import ShapeMaker
from tests.fuzz.terms import Leaf

__all__ = ["DegenerateMaker"]

_COUNTS = ("int64", "int64", "uint8", "int16", "uint32", "int32")
_LOOPS = (
    "range({})",
    "T.serial({})",
    "T.serial(1, {})",
    "T.unroll({})",
    "T.Pipelined({}, num_stages=2)",
)


class DegenerateMaker(ShapeMaker):
    """Writes one `with T.Kernel(...)` into a module."""

    def make(self) -> None:
        self.module.dynamic = self.rng.choice(("int32", "int64"))
        super().make()

    def _axis(self, role: str, index: str, extent: int) -> Axis:
        """An axis along which a tensor may have no elements, in each call or in one."""
        axis = super()._axis(role, index, extent)
        if self.rng.random() < (0.9, 0.2)[axis.size.isdigit()]:
            return axis if axis.size.isdigit() else self._sometimes_empty(axis)
        return replace(axis, size="0") if role == "k" or self.rng.random() < 0.2 else axis

    def _sometimes_empty(self, axis: Axis) -> Axis:
        self.rng.choice(self.module.sizes)[axis.size] = 0
        return axis

    def statement(self) -> None:
        """A statement about nothing, or an ordinary one."""
        own: list[tuple[float, Callable[[], Any]]] = [
            (1.0, super().statement),
            (0.3, self._empty_tile),
            (0.3, self._unreached),
            (0.2, self._without_axes),
            (0.2, self._sum_of_nothing),
        ]
        if self._depth < 2:
            own.append((0.3, self._counted_by_scalar))
        self.rng.choices([s for _, s in own], [w for w, _ in own])[0]()

    @contextmanager
    def _repeated(self, count: int) -> Iterator[None]:
        """A loop: any of them may do nothing."""
        with self._doubtful(count):
            yield

    # Nothing -------------------------------------------------------------------------------------

    def _new(self, shape: str, dtype: str, scope: str = "") -> str:
        scope = scope or self.rng.choice(("shared", "fragment"))
        name = self.module.name("e")
        self.allocations.append(f'{name} = T.alloc_{scope}({shape}, "{dtype}")')
        return name

    def _empty_tile(self) -> None:
        """Write work with a tile that has no elements."""
        rng = self.rng
        dtype = rng.choice(("float32", "float16", "int32"))
        tile = self._new("(8, 0)", dtype)
        source = self.module.tensor(("8", "0"), dtype, "read").name
        result = self.module.tensor(("8", "0"), dtype, "written").name
        forms = (
            f"T.clear({tile})",
            f"T.fill({tile}, 3)",
            f"T.copy({source}, {tile})",
            f"T.copy({source}[0, 0], {tile})",
            f"T.copy({tile}, {result})",
            f"T.copy({tile}, {self._new('(8, 0)', dtype)})",
            f"T.cumsum({tile}, dim={rng.choice((0, 1))})",
            f"T.reduce_max({tile}, {self._new('(0,)', dtype)}, dim=0)",
            f"T.transpose({tile}, {self._new('(0, 8)', dtype)})",
            f"for i, j in T.Parallel(8, 0):\n    {tile}[i, j] = {source}[i, j] + {tile}[i, j]",
            f"for i in T.serial(0):\n    {tile}[0, i] = {tile}[i, 5]",
        )
        for form in rng.sample(forms, 3):
            for line in form.split("\n"):
                self.text.add(line)

    def _sum_of_nothing(self) -> None:
        """A product or a reduction along an axis without elements."""
        rng = self.rng
        tile = self.allocate("mn", "float32", rng.choice(("shared", "fragment")))
        m, n = tile.shape
        if not tile.filled:
            self.text.add(f"T.fill({tile.name}, {rng.randrange(4)})")
        clear = rng.choice((True, False))
        if rng.random() < 0.5:
            a, b = (self._new(shape, "float16", "shared") for shape in (f"({m}, 0)", f"(0, {n})"))
            self.text.add(f"T.gemm({a}, {b}, {tile.name}, clear_accum={clear})")
        else:
            empty = self._new(f"({m}, 0, {n})", "float32")
            kind = rng.choice(("sum", "abssum", "absmax"))
            self.text.add(f"T.reduce_{kind}({empty}, {tile.name}, dim=1, clear={clear})")
        tile.filled = True

    def _unreached(self) -> None:
        """Elements that there are not, under a condition that does not hold when this is built."""
        target = self._target()
        header, names = self._loop(target)
        dtype = self.rng.choice(("float32", "int32"))
        tensor = self.module.tensor((self.rng.choice(("0", "2")),), dtype, "read").name
        index = self.rng.choice(("2", "7", names[0]))
        condition = self.rng.choice(("False", "1 > 2", "0 == 1"))
        terms = self._terms(target, names)
        number, bound = terms.number(dtype, 1)
        chosen = f"T.if_then_else({condition}, {tensor}[{index}], {number})"
        with self.text.block(header):
            value = self.terms([Leaf(chosen, dtype, bound)], names).stored(target.dtype, 0, BOUND)
            self.text.add(f"{target.name}[{', '.join(names)}] = {value}")
        target.filled = True

    def _without_axes(self) -> None:
        """An element that has no index: of a tensor, or of a tile."""
        rng = self.rng
        dtype = rng.choice(("float32", "int32", "float16"))
        tensor = self.module.tensor((), dtype, "read").name
        form = rng.randrange(4)
        if form == 0:
            self.scalars.append(Leaf(f"{tensor}[()]", dtype, BOUND))
            return
        tile = self._new(rng.choice(("()", "(1,)")), dtype)
        self.text.add(f"T.copy({tensor}, {tile})")
        if form == 1:
            other = self._new("()", dtype)
            self.text.add(f"T.copy({tile}, {other})")
            self.text.add(f"T.fill({other}, {rng.randrange(5)})")
        elif form == 2:
            total = self.module.tensor((), "int32", "add", 1e6).name
            self.text.add(f"T.atomic_add({total}[()], {rng.randrange(5)})")
        else:
            flags = self.module.tensor((), "int32", "written").name
            self.text.add(f"{flags}[()] = {rng.randrange(5)}")

    def _counted_by_scalar(self) -> None:
        """A loop whose bound is a number of the call, of any integer dtype, that may be 0 or less."""
        name, index = self.module.name("c"), self.module.name("r")
        self.module.scalars[name] = self.rng.choice(_COUNTS)
        loop = self.rng.choice(_LOOPS).format(name)
        with self._doubtful(8), self.text.block(f"for {index} in {loop}:"):
            self.indices.append(index)
            self._some(2)
