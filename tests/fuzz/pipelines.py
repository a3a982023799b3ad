"""A random kernel around pipelined loops: what is copied ahead, and all that may stand beside it.

Most of these loops can be split between a producer and consumers (SchedulePipelines), and ask for it;
where a copy converts, threads of the producer do. The others are pipelined by the ordinary passes: a
tile is computed from others, or used behind its loop, an iteration computes where the next one copies
from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from tests.fuzz.parts import Axis
from tests.fuzz.pipelined_loops import PLACES, Loop, PipelinedLoops

__all__ = ["ExitMaker", "PipelineMaker"]

_WARPGROUPS = (128, 128, 128, 256, 256, 384)
_THREADS = (*_WARPGROUPS, 64, 64, 96, 32)


class PipelineMaker(PipelinedLoops):
    """Writes one kernel into a module; see `PipelinedLoops`."""

    def make(self) -> None:
        """Choose a grid, and fill it with loops."""
        rng = self.rng
        self.axes = {
            "m": self._axis("m", "by", rng.choice((64, 64, 64, 128, 32))),
            "n": self._axis("n", "bx", rng.choice((16, 32, 64, 64, 24))),
            "k": self._axis("k", "", rng.choice((16, 16, 32, 64))),
            "x": Axis("x", 8, "8", 1, ""),
        }
        m, n = (f"T.ceildiv({a.size}, {a.extent})" for a in (self.axes["m"], self.axes["n"]))
        threads = rng.choice(_WARPGROUPS if self._splits else _THREADS)
        if rng.random() < 0.12:
            wave = rng.choice((1, 2, 3))
            with self.text.block(f"with T.Kernel({wave}, threads={threads}) as block:"):
                self._body(f"for by, bx in T.Persistent([{m}, {n}], {wave}, block):")
        else:
            with self.text.block(f"with T.Kernel({n}, {m}, threads={threads}) as (bx, by):"):
                self._body("")
        given = {dim for tensor in self.module.tensors for dim in tensor.dims}
        for name in self.module.sizes[0]:
            if name not in given:
                self.module.tensor((name,), "int32", "read")

    def _axis(self, role: str, index: str, extent: int) -> Axis:
        """Rows begin at multiples of 16 bytes as a rule: then tensor maps describe the tensor."""
        rng = self.rng
        blocks = rng.choice((1, 2)) if index else rng.randrange(1, 6)
        full, step = extent * blocks, 16 if self._splits or rng.random() < 0.6 else 1
        size = full - step * rng.randrange(extent // step) if rng.random() < 0.4 else full
        if rng.random() > (0.15 if role == "m" or not self._splits else 0.0):
            return Axis(role, extent, str(size), blocks, index)
        name = self.module.name(role.upper())
        for sizes, value in zip(self.module.sizes, (size, full), strict=True):
            sizes[name] = value
        return Axis(role, extent, name, blocks, index)

    def _body(self, around: str) -> None:
        start = len(self.text.lines)
        if self._splits or self.rng.random() < 0.5:
            self.text.add("T.annotate_warp_specialize()")
        with self.text.block(around) if around else nullcontext():
            first = len(self.text.lines)
            self._before()
            with self._outer():
                loop = self._pipelined(None)
                if self.rng.random() < 0.3:
                    self._behind()
                if self.rng.random() < 0.35:
                    self._pipelined(loop if self.rng.random() < 0.5 else None)
            self._behind()
            self.store_all()
            indent = "    " * (3 if around else 2)
            self.text.lines[first:first] = [indent + line for line in self.variables]
        self.text.lines[start:start] = ["        " + line for line in self.allocations]

    # Around a loop -------------------------------------------------------------------------------

    def _before(self) -> None:
        """Fragments that the loop finds, a tile of indices, a tile that stays."""
        for _ in range(self.rng.randrange(3)):
            self.rng.choice((self._initial, self.fill, self.load))()
        if self.rng.random() < 0.3:
            tensor = self.module.tensor((str(PLACES),), "int32", "read")
            self._places = self.allocate("x", "int32", "shared")
            self.text.add(f"T.copy({tensor.name}, {self._places.name})")
            self._places.filled = True

    def _initial(self) -> None:
        """A fragment that is computed."""
        tile = self.allocate(self.rng.choice(("mn", "mn", "m", "n")), "float32", "fragment")
        self._plain(tile)
        tile.filled = True

    @contextmanager
    def _outer(self) -> Iterator[None]:
        """A serial loop, a branch, or nothing."""
        kind = self.rng.random()
        if kind < 0.25:
            index, count = self.module.name("r"), self.rng.choice((1, 2, 3))
            with self._repeated(count), self.text.block(f"for {index} in T.serial({count}):"):
                self.indices.append(index)
                yield
        elif kind < 0.35:
            condition = self.terms([], self.indices).index_condition()
            with self._in_doubt(), self.text.block(f"if {condition}:"):
                yield
        else:
            yield

    def _behind(self) -> None:
        steps: list[Callable[[], Any]] = [self._elementwise, self._elementwise, self.reduce]
        steps += [self.copy_tile, self.store, self.transpose]
        for _ in range(self.rng.randrange(self._size // 2 + 1)):
            self.rng.choice(steps)()

    def store_all(self) -> None:
        """Store every tile."""
        for tile in self.filled():
            self.stored(tile)


class ExitMaker(PipelineMaker):
    """Writes one kernel whose pipelined loops stand in a loop that `break` or `continue` leaves."""

    _plan: Loop | None = None

    @contextmanager
    def _outer(self) -> Iterator[None]:
        """A loop that some blocks leave early; what it adds up begins in front of it."""
        self._plan = self._planned()
        index, count = self.module.name("r"), self.rng.choice((1, 2, 3, 4))
        counts_itself = self.rng.random() < 0.3
        header = f"for {index} in {self.rng.choice(('range', 'T.serial'))}({count}):"
        if counts_itself:
            self.variables.append(f'{index} = T.alloc_var("int32", init=0)')
            self.text.add(f"{index} = 0")
            header = f"while {index} < {count}:"
        with self._repeated(count), self._in_doubt(), self.text.block(header):
            self.indices.append(index)
            if counts_itself:
                self.text.add(f"{index} = {index} + 1")
            self._leave()
            yield
            self._leave()

    def _pipelined(self, former: Loop | None) -> Loop:
        loop = super()._pipelined(former or self._plan)
        self._plan = None
        self._leave()
        return loop

    def _leave(self) -> None:
        """The region in which a condition of the block holds, if there is one."""
        if self.rng.random() < 0.5:
            condition = self.terms([], self.indices).index_condition()
            with self.text.block(f"if {condition}:"):
                self.text.add(self.rng.choice(("break", "continue")))
