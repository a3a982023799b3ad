"""Code by thread index: what it has, and what it may do with it between two barriers.

Between two barriers an element of a tile belongs to one thread, or all threads only read the tile; a
statement that needs it otherwise has a barrier before it. Now and then the barrier is left to the
compiler, which finds it where all threads come.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.fuzz.collectives import Kernel
from tests.fuzz.parts import BOUND, Module, Tensor
from tests.fuzz.terms import Leaf, Terms

__all__ = ["DTYPES", "ByThread", "Shared"]

DTYPES = ("float32", "float32", "int32", "int32", "int32", "float16")


@dataclass
class Shared:
    """Memory by which threads exchange: a shared tile, or the block's row of a tensor.

    Attributes
    ----------
    own : str
        With `{}` in the place of a thread's number, the element that is its own.
    rows : int
        Elements of a thread; their number is `{r}` in `own`.
    use : str
        What the threads do with it since the last barrier: "", "read", the number of the thread that
        an element belongs to, or "either" where blocks have done different things.
    """

    name: str
    dtype: str
    own: str
    rows: int = 1
    use: str = ""
    is_global: bool = False


class ByThread(Kernel):
    """The state of code by thread index that is being written."""

    def __init__(self, module: Module, size: int) -> None:
        super().__init__(module)
        self._size = size
        self._depth = 0
        self._is_uniform = True  # all threads come to the statement at hand
        self._uniform = ["bx"]  # indices that all threads agree on
        self._numbers: list[Leaf] = []  # variables, and elements of arrays
        self._names: list[Leaf] = []
        self._shared: list[Shared] = []

    # What there is -------------------------------------------------------------------------------

    def _input(self, dtype: str, place: str = "bx, tx") -> str:
        """An element of a tensor that is only read."""
        return f"{self._tensor_of(dtype).name}[{place}]"

    def _tensor_of(self, dtype: str) -> Tensor:
        dims = (str(self._blocks), str(self._count))
        known = [
            t for t in self.module.tensors if (t.dims, t.dtype, t.use) == (dims, dtype, "read")
        ]
        return known[0] if known else self.module.tensor(dims, dtype, "read")

    def _declare(self) -> None:
        """A variable of each thread, an array, or a fragment that each stores to by itself."""
        name, dtype = self.module.name("v"), self.rng.choice(DTYPES)
        kind = self.rng.choice(("var", "var", "local", "fragment"))
        if kind == "var":
            self.allocations.append(
                f'{name} = T.alloc_var("{dtype}", init={self.rng.randrange(4)})'
            )
            self._numbers.append(Leaf(name, dtype, BOUND))
            return
        extent = self.rng.choice((1, 2, 4))
        self.allocations.append(f'{name} = T.alloc_{kind}(({extent},), "{dtype}")')
        for at in range(extent):
            self.text.add(f"{name}[{at}] = {self._value(dtype, 1)}")
            self._numbers.append(Leaf(f"{name}[{at}]", dtype, BOUND))
        if extent > 1 and kind == "local":
            index = self.rng.choice(("tx", self._input("int32")))
            self._numbers.append(Leaf(f"{name}[{index} % {extent}]", dtype, BOUND))

    def _tile(self) -> None:
        """A new shared tile, or a row of a tensor; each thread writes its elements."""
        rng, dtype = self.rng, self.rng.choice(DTYPES)
        form = rng.randrange(5)
        if form == 4:
            dims = (str(self._blocks), str(self._count))
            tensor = self.module.tensor(dims, dtype, "written")
            self._shared.append(Shared(tensor.name, dtype, "bx, {}", is_global=True))
            return
        rows = rng.choice((2, 3, 4)) if form > 1 else 1
        own = ("{}", "{}", "{r}, {}", "{}, {r}")[form]
        extents = own.format(self._count, r=rows) + ("," if form < 2 else "")
        tile = Shared(self.module.name("s"), dtype, own, rows)
        self.allocations.append(f'{tile.name} = T.alloc_shared(({extents}), "{dtype}")')
        if rng.random() < 0.2:
            self.text.add(f"T.fill({tile.name}, {rng.randrange(4)})")
        else:
            tile.use = "tx"
            for row in range(rows):
                self.text.add(f"{tile.name}[{own.format('tx', r=row)}] = {self._value(dtype, 1)}")
        self._shared.append(tile)

    # Barriers ------------------------------------------------------------------------------------

    def _barrier(self, tile: Shared | None = None) -> None:
        """A barrier; now and then it is left to the compiler, for a shared tile alone."""
        if tile is not None and not tile.is_global and self.rng.random() < 0.35:
            tile.use = ""
            return
        self.text.add("T.sync_threads()")
        for each in self._shared:
            each.use = ""

    def _may(self, tile: Shared, use: str) -> bool:
        """Tell whether a tile can be used so here, where need be behind a barrier."""
        if tile.use not in ("", use):
            if not self._is_uniform:
                return False
            self._barrier(tile)
        tile.use = use
        return True

    def _owner(self, tile: Shared) -> str:
        """Of whom an element of a tile is: the thread's, or that of another one which no other has."""
        if tile.use not in ("", "read", "either") and self.rng.random() < 0.8:
            return tile.use
        last = self._count - 1
        step = self.rng.randrange(1, self._count)
        forms = ["tx", "tx", f"{last} - tx", f"(tx + {step}) % {self._count}"]
        return self.rng.choice([*forms, "tx ^ 1"] if self._count % 2 == 0 else forms)

    def _row(self, tile: Shared) -> str:
        return self.rng.choice((str(self.rng.randrange(tile.rows)), f"tx % {tile.rows}"))

    def _elements(self) -> list[Leaf]:
        """Elements of tiles that the statement at hand may read: the thread's own, or any."""
        leaves = []
        for tile in self.rng.sample(self._shared, min(2, len(self._shared))):
            use = self._owner(tile) if self.rng.random() < 0.4 else "read"
            if tile.use not in ("", use) and (not self._is_uniform or self.rng.random() < 0.5):
                use = tile.use
            if use == "either" or not self._may(tile, use):
                continue
            index = self._anywhere() if use == "read" else use
            place = tile.own.format(index, r=self._row(tile))
            leaves.append(Leaf(f"{tile.name}[{place}]", tile.dtype, BOUND))
        return leaves

    def _anywhere(self) -> str:
        """The number of some thread."""
        count, rng = self._count, self.rng
        looked_up = f"{self._input('int32')} % {count}"
        shift = rng.randrange(count)
        forms = (f"(tx * 3 + {shift}) % {count}", f"{count - 1} - tx", looked_up, str(shift))
        uniform = f"({rng.choice(self._uniform)} + {shift}) % {count}"
        return rng.choice((*forms, uniform))

    # Expressions ---------------------------------------------------------------------------------

    def _terms(self, with_elements: bool = True) -> Terms:
        rng = self.rng
        leaves = [*self._numbers, *self._names]
        leaves += self._elements() if with_elements else []
        leaves.append(Leaf(self._input(dtype := rng.choice(DTYPES)), dtype, BOUND))
        return Terms(rng, leaves, [*self.indices, "tx % 32"])

    def _value(self, dtype: str, depth: int = 2, with_elements: bool = True) -> str:
        return self._terms(with_elements).stored(dtype, depth, BOUND)

    def _by_thread(self) -> str:
        """A condition that is exact, and differs from thread to thread."""
        number = self.rng.randrange(1, self._count + 1)
        forms = (
            f"tx < {number}",
            f"tx >= {number}",
            f"tx % 4 == {number % 4}",
            f"tx == {number - 1}",
        )
        of_data = f"{self._input('int32')} > {self.rng.randrange(-4, 5)}"
        other = Terms(self.rng, [], self.indices).index_condition()
        return self.rng.choice((*forms, of_data, other))

    def _of_block(self) -> str:
        return Terms(self.rng, [], self._uniform).index_condition()
