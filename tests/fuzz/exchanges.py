"""Work of a block's threads together: shuffles, votes, shared counts, trees, tile operators."""

from __future__ import annotations

from tests.fuzz.by_thread import ByThread, Shared
from tests.fuzz.parts import BOUND
from tests.fuzz.terms import Leaf, Terms

__all__ = ["Exchanges"]

_UPDATED = 1e9


class Exchanges(ByThread):
    """Writes statements to which all threads come."""

    def _shuffle(self) -> None:
        """Write an exchange with another thread of the warp, or a reduction over the warp."""
        rng = self.rng
        dtype = rng.choice(("float32", "int32"))
        value, bound = self._terms().number(dtype, 1)
        name = self.module.name("w")
        if self._count % 32 == 0 and rng.random() < 0.4:
            kind = rng.choice(("sum", "max", "min"))
            text = f"T.warp_reduce_{kind}({value})"
            bound *= 32 if kind == "sum" else 1
        else:
            width = rng.choice((32, 32, 16, 8, 4)) if self._count % 32 == 0 else 4
            width = width if self._count % width == 0 else 1
            by = rng.choice([n for n in (1, 2, 3, 8, 16) if n < width] or [0])
            kind = rng.choice(("up", "down", "xor", "sync"))
            text = f"T.shfl_{kind}({value}, {by}{'' if width == 32 else f', {width}'})"
        self.text.add(f"{name} = {text}")
        self._names.append(Leaf(name, dtype, bound))

    def _vote(self) -> None:
        name, condition = self.module.name("c"), self._by_thread()
        kinds = ["syncthreads_count", "syncthreads_and", "syncthreads_or"]
        kinds += ["any_sync", "all_sync"] if self._count % 32 == 0 else []
        kind = self.rng.choice(kinds)
        self.text.add(f"{name} = T.{kind}({condition})")
        self._names.append(Leaf(name, "int32", self._count))
        if kind.startswith("syncthreads"):
            for tile in self._shared:
                tile.use = ""

    def _cell(self) -> None:
        """An element that one thread sets, or all alike, and all read."""
        name, dtype = self.module.name("s"), self.rng.choice(("float32", "int32"))
        self.allocations.append(f'{name} = T.alloc_shared((1,), "{dtype}")')
        if self.rng.random() < 0.5:
            value = self._value(dtype)
            with self.text.block(f"if tx == {self.rng.randrange(self._count)}:"):
                self.text.add(f"{name}[0] = {value}")
        else:
            value = Terms(self.rng, [], self._uniform).stored(dtype, 2, BOUND)
            self.text.add(f"{name}[0] = {value}")
        self._barrier(tile := Shared(name, dtype, "0"))
        self._names.append(Leaf(kept := self.module.name("n"), dtype, BOUND))
        self.text.add(f"{kept} = {name}[0]")
        self._barrier(tile)  # a loop may come back

    def _atomic(self) -> None:
        """An update of a tensor that all blocks share; where all have the same, each thread does it."""
        kind = self.rng.choice(("add", "add", "max", "min"))
        dtype, bins = self.rng.choice(("float32", "int32", "int32")), self.rng.choice((1, 5, 16))
        tensor = self.module.tensor((str(bins),), dtype, kind, _UPDATED)
        place = self.rng.choice((f"tx % {bins}", f"{self._input('int32')} % {bins}", "0"))
        value = self._value(dtype) if self.rng.random() < 0.8 else "1"
        self.text.add(f"T.atomic_{kind}({tensor.name}[{place}], {value})")

    def _bins(self) -> None:
        """Updates of a shared tile."""
        rng = self.rng
        name, dtype = self.module.name("s"), rng.choice(("float32", "int32"))
        bins = min(rng.choice((1, 4, 8)), self._count)
        self.allocations.append(f'{name} = T.alloc_shared(({bins},), "{dtype}")')
        tile = Shared(name, dtype, "{}")
        if rng.random() < 0.5:
            self.text.add(f"T.clear({name})")
        else:
            with self.text.block(f"if tx < {bins}:"):
                self.text.add(f"{name}[tx] = {rng.randrange(3)}")
        self._barrier(tile)
        place = rng.choice((f"tx % {bins}", f"{self._input('int32')} % {bins}"))
        update = f"T.atomic_add({name}[{place}], {self._value(dtype)})"
        if rng.random() < 0.5:
            with self.text.block(f"if {self._by_thread()}:"):
                self.text.add(update)
        else:
            self.text.add(update)
        self._barrier(tile)
        kept = self.module.name("n")
        self.text.add(f"{kept} = {name}[(tx + 1) % {bins}]")
        self._names.append(Leaf(kept, dtype, BOUND * (self._count + 1)))
        self._barrier(tile)

    def _tree(self) -> None:
        """A reduction by halves."""
        rng, count = self.rng, self._count
        if count & (count - 1):
            return
        name, dtype = self.module.name("s"), rng.choice(("float32", "int32"))
        self.allocations.append(f'{name} = T.alloc_shared(({count},), "{dtype}")')
        self.text.add(f"{name}[tx] = {self._value(dtype)}")
        tile, index = Shared(name, dtype, "{}"), self.module.name("h")
        self._barrier(tile)
        with self.text.block(f"for {index} in T.serial({count.bit_length() - 1}):"):
            half = f"({count // 2} >> {index})"
            with self.text.block(f"if tx < {half}:"):
                self.text.add(f"{name}[tx] = {name}[tx] + {name}[tx + {half}]")
            self.text.add("T.sync_threads()")
        kept = self.module.name("n")
        self.text.add(f"{kept} = {name}[0]")
        self._names.append(Leaf(kept, dtype, BOUND * count))
        self._barrier(tile)

    def _operator(self) -> None:
        """Work that the block shares, on a tile of the threads; the compiler orders it."""
        tiles = [t for t in self._shared if not t.is_global and t.rows == 1]
        if not tiles:
            return
        rng, tile = self.rng, self.rng.choice(tiles)
        tile.use, count = "", self._count
        form = rng.randrange(4)
        if form == 0:
            self.text.add(f"T.copy({self._tensor_of(tile.dtype).name}[bx, 0:{count}], {tile.name})")
            return
        if form == 1:
            leaves = [Leaf(f"{tile.name}[i]", tile.dtype, BOUND)]
            value = Terms(rng, leaves, ["i", *self._uniform]).stored(tile.dtype, 2, BOUND)
            with self.text.block(f"for i in T.Parallel({count}):"):
                self.text.add(f"{tile.name}[i] = {value}")
            return
        name, dtype = self.module.name("f"), tile.dtype
        self.allocations.append(f'{name} = T.alloc_fragment(({count},), "{dtype}")')
        self.text.add(f"T.copy({tile.name}, {name})")
        value = Terms(rng, [Leaf(f"{name}[i]", dtype, BOUND)], ["i"]).stored(dtype, 2, BOUND)
        with self.text.block(f"for i in T.Parallel({count}):"):
            self.text.add(f"{name}[i] = {value}")
        if form == 2:
            self.text.add(f"T.copy({name}, {tile.name})")
            return
        total = self.module.name("s")
        self.allocations.append(f'{total} = T.alloc_shared((1,), "{dtype}")')
        self.text.add(f"T.reduce_max({name}, {total}, dim=0)")
        kept = self.module.name("n")
        self.text.add(f"{kept} = {total}[0]")
        self._names.append(Leaf(kept, dtype, BOUND))

    def _group(self) -> None:
        """Work that some warps share, on what all threads have written."""
        rng, count = self.rng, self._count
        tiles = [t for t in self._shared if not t.is_global and t.rows == 1]
        if count % 32 or count < 64 or not tiles:
            return
        first = 32 * rng.randrange(1, count // 32)
        tile = rng.choice(tiles)
        self._may(tile, "read")
        result = self.module.tensor((str(self._blocks), str(count)), tile.dtype, "written").name
        with self.text.block(f"if tx {rng.choice(('<', '>='))} {first}:"):
            form = rng.randrange(3)
            if form == 0:
                self.text.add(f"T.copy({tile.name}, {result}[bx, 0:{count}])")
                return
            name = self.module.name("t")
            if form == 1 and tile.dtype != "float16":
                self.allocations.append(f'{name} = T.alloc_reducer((1,), "{tile.dtype}")')
                self.text.add(f"T.reducer_init({name}, {rng.randrange(3)})")
                with self.text.block(f"for i in T.Parallel({count}):"):
                    self.text.add(f"T.reducer_update({name}[0], {tile.name}[i])")
                self.text.add(f"T.finalize_reducer({name})")
                with self.text.block(f"for i in T.Parallel({count}):"):
                    self.text.add(f"{result}[bx, i] = {name}[0]")
                return
            leaves = [Leaf(f"{tile.name}[{count - 1} - i]", tile.dtype, BOUND)]
            value = Terms(rng, leaves, ["i", *self._uniform]).stored(tile.dtype, 2, BOUND)
            with self.text.block(f"for i in T.Parallel({count}):"):
                self.text.add(f"{result}[bx, i] = {value}")
