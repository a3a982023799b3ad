"""Random code by thread index: variables of each thread, tiles by which threads exchange, atomics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.fuzz.by_thread import DTYPES
from tests.fuzz.exchanges import Exchanges
from tests.fuzz.parts import BOUND, Axis
from tests.fuzz.terms import Leaf

__all__ = ["ThreadMaker"]

_THREADS = ((32,), (64,), (64,), (128,), (128,), (96,), (48,), (5,), (16, 4), (32, 2), (4, 4, 2))


class ThreadMaker(Exchanges):
    """Writes one `with T.Kernel(...)` into a module."""

    def make(self) -> None:
        """Choose the threads, declare what each has, and fill the kernel with statements."""
        rng, text = self.rng, self.text
        shape = rng.choice(_THREADS)
        self._count = math.prod(shape)
        self._shuffles = rng.random() < 0.1  # GPUs refuse it where a warp is partial
        self._blocks = rng.choice((1, 2, 3))
        self.axes = {
            "b": Axis("b", 1, str(self._blocks), self._blocks, "bx"),
            "t": Axis("t", self._count, str(self._count), 1, ""),
        }
        self.indices = ["tx", "bx"]
        given = shape[0] if len(shape) == 1 else shape
        with text.block(f"with T.Kernel({self._blocks}, threads={given}) as bx:"):
            axes = [f"T.get_thread_binding({axis})" for axis in range(len(shape))]
            strides = [math.prod(shape[:axis]) for axis in range(len(shape))]
            places = [f"{a} * {s}" for a, s in zip(axes[1:], strides[1:], strict=True)]
            text.add("tx = " + " + ".join([axes[0], *places]))
            start = len(text.lines)
            self._numbers.append(Leaf(self._input("int32"), "int32", BOUND))
            for _ in range(rng.randrange(1, 4)):
                self._declare()
            for _ in range(rng.randrange(1, 3)):
                self._tile()
            for _ in range(rng.randrange((self._size + 1) // 2, self._size + 1)):
                self._statement()
            self._results()
            text.lines[start:start] = ["        " + line for line in self.allocations]

    # Statements ----------------------------------------------------------------------------------

    def _statement(self) -> None:
        own: list[tuple[float, Callable[[], Any]]] = [
            (3, self._assign),
            (3, self._store),
            (2, self._name),
            (1, self._atomic),
        ]
        if self._is_uniform:
            own += [(0.6, self._vote), (0.7, self._cell), (0.6, self._bins), (0.5, self._tree)]
            own += [(1, self._operator), (0.7, self._group)]
            own += [(2, self._shuffle)] if self._count % 32 == 0 or self._shuffles else []
        own += [(0.4, self._array)]
        if self._depth < 3:
            own += [(2, self._branch), (1.5, self._loop)]
        self.rng.choices([s for _, s in own], [w for w, _ in own])[0]()

    @contextmanager
    def _nested(self, header: str, uniform: bool, *indices: str) -> Iterator[None]:
        """A body, to which all threads come or some; its names are unknown behind it."""
        outer = self._is_uniform, list(self._names), list(self.indices), list(self._uniform)
        self._depth += 1
        self._is_uniform &= uniform
        self.indices += indices
        self._uniform += indices if uniform else ()
        with self.text.block(header):
            yield
        self._depth -= 1
        self._is_uniform, self._names, self.indices, self._uniform = outer

    def _some(self, most: int) -> None:
        for _ in range(self.rng.randrange(1, most + 1)):
            self._statement()

    def _assign(self) -> None:
        """A variable or an element of the thread's array."""
        target = self.rng.choice(self._numbers[1:])
        value = self._value(target.dtype)
        if target.dtype == "int32" and self.rng.random() < 0.2:
            self.text.add(f"{target.text} ^= {value}")  # of small numbers, a small one
        else:
            self.text.add(f"{target.text} = {value}")

    def _store(self) -> None:
        """An element that is the thread's own."""
        tile = self.rng.choice(self._shared)
        owner = self._owner(tile)
        if not self._may(tile, owner):
            self._assign()
            return
        place = tile.own.format(owner, r=self._row(tile))
        # Its value may read other elements of this tile only behind a barrier.
        held, self._shared = self._shared, [t for t in self._shared if t is not tile]
        value = self._value(tile.dtype)
        self._shared = held
        self._may(tile, owner)  # a barrier may have come in between
        if self.rng.random() < 0.2 and tile.dtype != "float16" and not tile.is_global:
            value = f"T.max(T.min({tile.name}[{place}] + {value}, 8), -8)"
        self.text.add(f"{tile.name}[{place}] = {value}")

    def _name(self) -> None:
        """A name for a value, which keeps it."""
        name, dtype = self.module.name("n"), self.rng.choice(DTYPES[:5])
        value, bound = self._terms().number(dtype, 2)
        self.text.add(f"{name} = {value}")
        self._names.append(Leaf(name, dtype, bound))

    def _array(self) -> None:
        """An operator that each thread does by itself."""
        name, dtype = self.module.name("l"), self.rng.choice(("float32", "int32"))
        extent = self.rng.choice((1, 2, 4))
        self.allocations.append(f'{name} = T.alloc_local(({extent},), "{dtype}")')
        first = f"tx % {self._count - extent + 1}"
        tensor = self._tensor_of(dtype).name
        self.text.add(f"T.copy({tensor}[bx, {first} : {first} + {extent}], {name})")
        if self.rng.random() < 0.5:
            total = self.module.name("r")
            self.allocations.append(f'{total} = T.alloc_local((1,), "{dtype}")')
            self.text.add(f"T.reduce_{self.rng.choice(('sum', 'max'))}({name}, {total})")
            self._names.append(Leaf(f"{total}[0]", dtype, BOUND * extent))
        else:
            self._names.append(Leaf(f"{name}[{self.rng.randrange(extent)}]", dtype, BOUND))

    def _branch(self) -> None:
        uniform = self.rng.random() < 0.3
        condition = self._of_block() if uniform else self._by_thread()
        if not uniform and self.rng.random() < 0.15:
            condition = self._terms().condition(1)
        before = [tile.use for tile in self._shared]
        with self._nested(f"if {condition}:", uniform):
            self._some(3)
        if uniform:
            after = [tile.use for tile in self._shared]
            for tile, was, is_now in zip(self._shared, before, after, strict=True):
                tile.use = was if was == is_now else "either"
        if self.rng.random() < 0.4:
            with self._nested("else:", uniform):
                self._some(2)
            for tile, is_now in zip(self._shared, after if uniform else (), strict=False):
                tile.use = tile.use if tile.use == is_now else "either"

    def _loop(self) -> None:
        """A loop of all threads, whose iterations have a barrier between them, or of each."""
        rng, index = self.rng, self.module.name("q")
        uniform = self._is_uniform and rng.random() < 0.5
        if uniform:
            for tile in self._shared:
                if tile.use:
                    self._barrier(tile)
        trips = rng.choice(("2", "3", "bx % 3" if uniform else f"{self._input('int32')} % 4", "4"))
        trips = trips if uniform else rng.choice((trips, "tx % 4", "tx % 3 + 1"))
        form = rng.choice(("serial", "serial", "serial", "unroll", "while"))
        if form == "unroll" and not trips.isdigit():
            form = "serial"
        header = f"for {index} in T.{form}({trips}):"
        if form == "while":
            self.allocations.append(f'{index} = T.alloc_var("int32", init=0)')
            self.text.add(f"{index} = 0")
            header = f"while {index} < {trips}:"
        with self._nested(header, uniform, index):
            if form == "serial" and rng.random() < 0.25:
                condition = self._of_block() if uniform else self._by_thread()
                with self.text.block(f"if {condition}:"):
                    self.text.add("break" if uniform else rng.choice(("break", "continue")))
            self._some(3)
            if uniform:
                for tile in self._shared:
                    if tile.use:
                        self._barrier(tile)
            if form == "while":
                self.text.add(f"{index} = {index} + 1")

    # The end -------------------------------------------------------------------------------------

    def _results(self) -> None:
        """Store all variables, names and tiles; some threads may have ended before."""
        held = [*self._numbers[1:], *self._names]
        dims = (str(self._blocks), str(self._count))
        for tile in self._shared:
            if not tile.is_global:
                use = self.rng.choice((self._owner(tile), "read"))
                self._may(tile, use)
                for row in range(tile.rows):
                    index = f"{self._count - 1} - tx" if use == "read" else use
                    place = tile.own.format(index, r=row)
                    held.append(Leaf(f"{tile.name}[{place}]", tile.dtype, BOUND))
        if self.rng.random() < 0.25:
            with self.text.block(f"if {self._by_thread()}:"):
                self.text.add("T.thread_return()")
        for leaf in held:
            result = self.module.tensor(dims, leaf.dtype, "written", leaf.bound)
            self.text.add(f"{result.name}[bx, tx] = {leaf.text}")
