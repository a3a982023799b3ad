"""An oracle that finds races: the text of a kernel runs once for each thread, and stops at barriers.

A generator of Python is a thread. Each byte of memory remembers which threads have touched it by which
statement, and which threads have waited for them since.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections import defaultdict
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from tvm import DataType

WARP = 32
_LOOPS = r'( +)for tx in T.thread_binding\((\d+), thread="threadIdx.x"\):\n((?:\1 .*\n?)+)'
_BARRIER = re.compile(
    r'T\.tvm_storage_sync\("(\w+)".*|T\.call_extern\("void", "tvmtile_(\w+)_barrier"\)'
)
_ATOMIC = r"(T\.tvmtile\.atomic\(\w+)(?=\[)"


class RaceFound(Exception):
    """Two threads met at an element."""


@dataclass
class Memory:
    """A tensor or a tile, or a view of one, as a thread sees it."""

    run: Run
    thread: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    start: int = 0
    values: Any = None
    how: str = "load"

    @property
    def data(self):
        return self

    @property
    def atomic(self):
        return replace(self, how="atomic")

    def __getitem__(self, at):
        self._touch(at, self.how)
        return 0.0 if self.values is None else int(self.values[at])

    def __setitem__(self, at, _):
        statement = sys._getframe(1).f_lineno
        self.run.stores[statement, self.thread] += 1
        self._touch(at, (statement, self.run.stores[statement, self.thread]))

    def _touch(self, at, how):
        """Stores of one statement do not meet each other, nor do loads, nor atomic updates."""
        if self.name in self.run.ignored:
            return
        *outer, last = at if isinstance(at, tuple) else (at,)
        size = DataType(self.dtype).bits // 8
        for column in range(last.start, last.stop) if isinstance(last, slice) else (last,):
            element = 0
            for index, extent in zip((*outer, column), self.shape, strict=True):
                element = element * extent + int(index)
            for byte in range(self.start + element * size, self.start + (element + 1) * size):
                uses = self.run.uses[self.name, byte]
                for (other, other_how), seen in uses.items():
                    if other_how != how and not seen >> self.thread & 1:
                        raise RaceFound(f"{self.name}{at}: threads {other} and {self.thread}")
                uses[self.thread, how] = 1 << self.thread


@dataclass
class Run:
    """A kernel of one block that has run, with some values of its parameters.

    Parameters
    ----------
    func : PrimFunc
        Its statements are stores, loops, branches and barriers.
    values : dict
        Of its parameters, by name.
    ignored : str
        Tensors without an order.
    missed : int, optional
        The barrier that is left out.
    """

    func: Any
    values: dict[str, Any] = field(default_factory=dict)
    ignored: str = ""
    missed: int | None = None

    def __post_init__(self):
        text = self.func.script(syntax_sugar=False)
        _, count, body = re.search(_LOOPS, text).groups()
        body = re.sub(_ATOMIC, r"\1.atomic", body)
        self.barriers = 0
        body = textwrap.indent(textwrap.dedent(_BARRIER.sub(self._stop, body)), "    ")
        self._code = compile(f"def kernel():\n{body}\n    yield 'end'", "kernel", "exec")
        self._tensors = re.findall(r"(\w+): T.Buffer\(\((.*?)\), \"(\w+)\"", text)
        self._is_for_metal = '"kind": "metal"' in text
        self.uses = defaultdict(dict)
        self.stores = defaultdict(int)
        with np.errstate(over="ignore"):
            self._run({number: self._thread(number) for number in range(int(count))})

    def _stop(self, barrier):
        self.barriers += 1
        kind = f"device {barrier[2]}" if barrier[2] else barrier[1]
        return "pass" if self.barriers - 1 == self.missed else f"yield '{kind}'"

    def _thread(self, number):
        """The generator that is a thread, and stops at barriers."""

        def shared(shape, dtype="float32"):
            return Memory(self, number, f"tile {sys._getframe(1).f_lineno}", shape, dtype)

        def view(shape, dtype="float32", data=None, scope=""):
            return replace(data, shape=shape, dtype=dtype)

        T = SimpleNamespace(
            **{name: getattr(np, name) for name in ("uint8", "uint32", "float16", "float32")},
            alloc_shared=shared, alloc_local=np.zeros, decl_buffer=view, min=min, max=max,
            tvmtile=SimpleNamespace(atomic=lambda *_: None),
            Cast=lambda dtype, x: np.array(x).astype(dtype)[()], type_annotation=str,
            ptr_byte_offset=lambda data, n, _: replace(data, start=data.start + n),
            Ramp=lambda first, _, n: slice(first, first + n), Broadcast=lambda x, _: x,
            bitwise_xor=lambda x, y: x ^ y, shift_right=lambda x, y: x >> y,
            shift_left=lambda x, y: x << y, if_then_else=lambda c, x, y: x if c else y,
        )  # fmt: skip
        names = {"T": T, "tx": number, "bx": 0, **self.values}
        for name, shape, dtype in self._tensors:
            extents = tuple(int(extent) for extent in shape.split(",") if extent.strip())
            value = self.values.get(name)
            names[name] = Memory(self, number, name, extents, dtype, values=value)
        exec(self._code, names)
        return names["kernel"]()

    def _run(self, threads):
        at = {number: next(thread) for number, thread in threads.items()}
        while set(at.values()) != {"end"}:
            # Warps that wait for themselves alone go on; the others stay at their barrier.
            warps = {n // WARP for n, stop in at.items() if stop in ("warp", "device simdgroup")}
            assert warps or len(set(at.values())) == 1, "not all threads come to a barrier"
            for warp in warps or [None]:
                waiting = [n for n in at if warp in (None, n // WARP)]
                (stop,) = {at[n] for n in waiting}
                self._order(sum(1 << n for n in waiting), "device" in stop)
                at.update({n: next(threads[n]) for n in waiting})

    def _order(self, waiting, orders_device):
        """A thread that waits with one that has seen a use has seen it, too."""
        for (name, _), uses in self.uses.items():
            if orders_device or not self._is_for_metal or name.startswith("tile"):
                uses.update({use: seen | waiting for use, seen in uses.items() if seen & waiting})
