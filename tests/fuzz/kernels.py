"""A random kernel: its grid, its tiles, and statements on them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from tests.fuzz.collectives import Collectives
from tests.fuzz.nests import Nests
from tests.fuzz.parts import Axis, Module

__all__ = ["KernelMaker"]

_EXTENTS = (8, 16, 16, 32, 32, 24, 64, 5, 33)
_THREADS = (32, 64, 128, 128, 128, 256, 96, 48, 1)


class KernelMaker(Collectives, Nests):
    """Writes one `with T.Kernel(...)` into a module."""

    def __init__(self, module: Module, size: int) -> None:
        super().__init__(module)
        self._size = size
        self._depth = 0
        for tensor in module.tensors:  # what an earlier kernel wrote
            tensor.use = "read" if tensor.use in ("read", "written") else tensor.use

    def make(self) -> None:
        """Choose a grid, and fill it with statements."""
        rng = self.rng
        self.axes = {
            "m": self._axis("m", "by", rng.choice(_EXTENTS)),
            "n": self._axis("n", "bx", rng.choice(_EXTENTS)),
            "k": self._axis("k", "", rng.choice((8, 16, 16, 32))),
            "x": self._small_axis(),
        }
        threads = rng.choice(_THREADS[:-2] if rng.random() < 0.9 else _THREADS)
        m, n = (f"T.ceildiv({a.size}, {a.extent})" for a in (self.axes["m"], self.axes["n"]))
        if rng.random() < 0.12:
            wave = rng.choice((1, 2, 3))
            with self.text.block(f"with T.Kernel({wave}, threads={threads}) as block:"):
                self._body(f"for by, bx in T.Persistent([{m}, {n}], {wave}, block):")
            self._declare_extents()
            return
        with self.text.block(f"with T.Kernel({n}, {m}, threads={threads}) as (bx, by):"):
            if rng.random() < 0.15:
                order = rng.choice(("", ', order="col"'))
                self.text.add(f"T.use_swizzle({rng.choice((1, 2, 4))}{order})")
            self._body("")
        self._declare_extents()

    def _declare_extents(self) -> None:
        """A parameter for each dynamic extent that no other one gives."""
        given = {dim for tensor in self.module.tensors for dim in tensor.dims}
        for axis in self.axes.values():
            if axis.size in self.module.sizes[0] and axis.size not in given:
                self.module.tensor((axis.size,), "int32", "read")

    def _axis(self, role: str, index: str, extent: int) -> Axis:
        rng = self.rng
        most = 3 if extent <= 16 else 2
        blocks = rng.randrange(1, most + 1)
        full = extent * blocks
        size = max(1, full - rng.randrange(0, extent) if rng.random() < 0.5 else full)
        if rng.random() > 0.2:
            return Axis(role, extent, str(size), blocks, index)
        name = self.module.name(role.upper())
        self.module.sizes[0][name] = size
        self.module.sizes[1][name] = rng.randrange(1, full + 1)
        return Axis(role, extent, name, blocks, index)

    def _small_axis(self) -> Axis:
        extent = self.rng.choice((2, 3, 4, 7, 8))
        return Axis("x", extent, str(extent), 1, "")

    def _body(self, loop: str) -> None:
        """Statements, then stores of all that was computed, with the allocations before them.

        A variable belongs to an iteration of the loop: in which order they come is the compiler's.
        """
        start = len(self.text.lines)
        with self.text.block(loop) if loop else nullcontext():
            first = len(self.text.lines)
            for _ in range(self.rng.randrange((self._size + 1) // 2, self._size + 1)):
                self.statement()
            self.store_all()
            indent = "    " * (3 if loop else 2)
            self.text.lines[first:first] = [indent + line for line in self.variables]
        if len(self.text.lines) == start:
            self.text.add("pass")
        self.text.lines[start:start] = ["        " + line for line in self.allocations]

    def statement(self) -> None:
        """One random statement, which may hold others."""
        simple: list[tuple[float, Callable[[], Any]]] = [
            (3, self.load),
            (5, self.elementwise),
            (2, self.copy_tile),
            (1.5, self.reduce),
            (1, self.scan),
            (1.5, self.gemm),
            (0.7, self.transpose),
            (0.7, self.fill),
            (1, self.atomic),
            (1, self.store),
            (0.4, self.overlapping_copy),
            (0.6, self.variable),
            (0.5, self.macro),
        ]
        nested = [(1.8, self._pipelined), (0.8, self._serial), (0.7, self._branch)]
        choices = simple + (nested if self._depth < 2 else [])
        self.rng.choices([c for _, c in choices], [w for w, _ in choices])[0]()

    def _some(self, most: int) -> None:
        self._depth += 1
        for _ in range(self.rng.randrange(1, most + 1)):
            self.statement()
        self._depth -= 1

    def _pipelined(self) -> None:
        axis = self.axes["k"]
        if axis.index:
            self.elementwise()
            return
        index = self.module.name("k")
        stages = self.rng.choice((0, 1, 2, 2, 3))
        loop = f"T.Pipelined(T.ceildiv({axis.size}, {axis.extent}), num_stages={stages})"
        self.axes["k"] = replace(axis, index=index)
        with self._repeated(axis.blocks), self.text.block(f"for {index} in {loop}:"):
            if self.rng.random() < 0.3:
                self.text.add(f"{index}_begin = {index} * {axis.extent}")
                self.indices.append(f"{index}_begin")
            self.indices.append(index)
            self.load(with_loop=True)
            self._some(4)
        self.axes["k"] = axis

    def _serial(self) -> None:
        index, count = self.module.name("r"), self.rng.choice((1, 2, 3))
        loop = self.rng.choice((f"range({count})", f"T.serial({count})", f"T.unroll({count})"))
        if self.rng.random() < 0.2:
            loop = f"T.serial(1, {count + 1})"
        with self._repeated(count), self.text.block(f"for {index} in {loop}:"):
            self.indices.append(index)
            self._some(3)

    @contextmanager
    def _repeated(self, count: int) -> Any:
        """Names that a loop binds are unknown behind it; what it adds up, it adds `count` times."""
        known = list(self.indices)
        self.trips *= count
        yield
        self.trips //= count
        self.indices = known

    def _branch(self) -> None:
        condition = self.terms([], self.indices).index_condition()
        before = {tile.name: tile.filled for tile in self.tiles}
        with self.text.block(f"if {condition}:"):
            self._some(2)
        self._forget(before)
        if self.rng.random() < 0.3:
            with self.text.block("else:"):
                self._some(2)
            self._forget(before)

    def _forget(self, before: dict[str, bool]) -> None:
        """Elements that a branch alone has written are not known to be written."""
        for tile in self.tiles:
            tile.filled = before.get(tile.name, False)
