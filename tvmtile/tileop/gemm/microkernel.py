"""The CPU's matrix multiplication of one tile: register blocks of vectors, as ordinary TIR.

Algorithm. The accumulator is cut into register blocks of `rows` x `vectors` vector registers. The
accumulators of a block are loaded (or zeroed) once, the whole of K runs over them, and they are stored
once:

```
for panel in serial(N / (vectors * lanes)):
    pack B[:, panel] -> b_panel                     # only if B can't be read as vectors
    for block in serial(M / rows):
        acc[r][v] = C[...]                          # rows * vectors registers
        for k in serial(K):
            b[v] = B[k, ...]                        # `vectors` vector loads
            acc[r][v] += splat(A[r, k]) * b[v]  # LLVM contracts this to a fused multiply-add
        C[...] = acc[r][v]
```

Correctness rests on no tile being read after it was partly written: A and B are other buffers than
C. Speed rests on LLVM keeping every accumulator in a register, which it does for a small array on
the stack that is only indexed by constants. So there is one array a row, each below the 1024 bytes
from which TVM moves arrays to its workspace, in the scope `global` (others go to the workspace
too), and no pass may merge them with a tile that is indexed by variables (StorageRewrite might: the
pipeline leaves it out).

`Products` is how a step along K multiplies; a CPU's dot products (`tvmtile.tileop.gemm.dots`) take
several elements of K at once.

Products and sums are in the compute dtype: the accumulator's, but float32 for a float16 or bfloat16
accumulator, which is rounded once, when a block is stored. Operands of another dtype are packed: A
is cast as it lies, since a broadcast does not care about the order, B one panel at a time, so that
a panel stays in the first-level cache, and transposed if it is stored [N, K]. An element that is
packed once serves a whole row or column of the tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import DataType, ir, tirx

from tvmtile.ir.rewriting import seq
from tvmtile.ir.types import Index
from tvmtile.target import CpuCapability
from tvmtile.tileop.gemm.packing import ElementSource, Matrix, array, cast_copy, transposing_copy
from tvmtile.tileop.vectors import loop, splat, vector_dtype


# A broadcast serves as many fused multiply-adds as a block has vectors. Where 32 registers hold four
# and rows enough, dot products of bytes are a twentieth faster on Zen 5 than with two, with which
# one is a tenth slower; 64 columns of float32 (16 with AVX2) divide every usual tile.
def _vectors(cpu: CpuCapability) -> int:
    return 4 if cpu.vector_registers >= 32 else 2


# Independent sums that hide the latency of a fused multiply-add: 4 or 5 cycles, two a cycle, and
# some to spare.
_CHAINS = 12


@dataclass(frozen=True)
class GemmTile:
    """One multiplication, `c += a @ b`."""

    a: Matrix
    b: Matrix
    c: Matrix
    """[m, k], [k, n] and [m, n]; [k, m] and [n, k] where transposed."""
    m: int
    n: int
    k: int
    """Extents."""
    transpose_a: bool = False
    transpose_b: bool = False
    """The operand is stored transposed."""
    clear: bool = False
    """`c = a @ b` instead."""

    @property
    def compute_dtype(self) -> str:
        """The dtype of products and sums."""
        return "float32" if self.c.dtype in ("float16", "bfloat16") else self.c.dtype


def register_block(cpu: CpuCapability, vectors: int, m: int) -> int:
    """The rows of a register block, `vectors` registers wide, in a tile of `m` rows.

    `rows * vectors` accumulators, `vectors` registers of B and one broadcast of A must fit the register
    file. Of what fits, the largest divisor of `m` if it keeps the multipliers busy (one kernel and no
    remainder), else a cut into nearly equal blocks, the last one smaller.
    """
    limit = min(m, max(1, (cpu.vector_registers - vectors - 1) // vectors))
    divisor = max(rows for rows in range(1, limit + 1) if m % rows == 0)
    if divisor == limit or divisor * vectors >= _CHAINS:
        return divisor
    blocks = -(-m // limit)
    return -(-m // blocks)


def column_panels(n: int, lanes: int, vectors: int) -> list[tuple[int, tuple[int, ...]]]:
    """Cut `n` columns into panels: how many there are of a kind, and the lanes of each vector of one.

    Full panels first, then at most one of the vectors that are left, ever narrower.

    Examples
    --------
    >>> column_panels(75, 16, 2)
    [(2, (16, 16)), (1, (8, 2, 1))]
    """
    full, rest = divmod(n, lanes * vectors)
    tail = [lanes] * (rest // lanes)
    rest %= lanes
    tail += [1 << bit for bit in reversed(range(rest.bit_length())) if rest >> bit & 1]
    panels = [(full, (lanes,) * vectors)] if full else []
    return panels + ([(1, tuple(tail))] if tail else [])


@dataclass(frozen=True)
class Products:
    """Steps along K: here products in the compute dtype, one a lane, which are added."""

    tile: GemmTile

    @property
    def dtype(self) -> str:
        """The dtype that a step multiplies."""
        return self.tile.compute_dtype

    @property
    def dtype_of_a(self) -> str:
        """The dtype that a step takes of a row of A."""
        return self.dtype

    @property
    def steps(self) -> int:
        """The number of steps."""
        return self.tile.k

    def packed_a(self) -> tuple[ElementSource, list[tirx.Stmt]]:
        """A in `dtype`, [m, steps], [steps, m] where transposed, and the statements that make it."""
        tile = self.tile
        if tile.a.dtype == self.dtype:
            return tile.a, []
        shape = (tile.k, tile.m) if tile.transpose_a else (tile.m, tile.k)
        packed = array(shape, self.dtype, "a_packed")
        return packed, [tirx.AllocBuffer(packed.buffer), cast_copy(packed, tile.a, shape)]

    def packed_b(
        self, first: Index, widths: tuple[int, ...]
    ) -> tuple[ElementSource, list[tirx.Stmt]]:
        """The panel of B from column `first` on, [steps, columns] in `dtype`, and what makes it."""
        tile = self.tile
        source = tile.b.moved(first, 0) if tile.transpose_b else tile.b.moved(0, first)
        if not tile.transpose_b and tile.b.dtype == self.dtype:
            return source, []
        shape = (tile.k, sum(widths))
        packed = array(shape, self.dtype, "b_packed")
        copy = (
            transposing_copy(packed, source, tile.k, widths)
            if tile.transpose_b
            else cast_copy(packed, source, shape)
        )
        return packed, [tirx.AllocBuffer(packed.buffer), copy]

    def start(self, row: Index, column: Index, lanes: int) -> ir.Expr:
        """The first sums of `lanes` elements of C."""
        if self.tile.clear:
            return splat(tirx.const(0, self.tile.compute_dtype), lanes)
        return self.tile.c.load(row, column, lanes, self.tile.compute_dtype)

    def add(self, sums: ir.Expr, a: ir.Expr, b: ir.Expr, lanes: int) -> ir.Expr:
        """The sums and the products of an element of A and `lanes` elements of B."""
        return sums + splat(a, lanes) * b


def emit_gemm(tile: GemmTile, cpu: CpuCapability, products: Products | None = None) -> tirx.Stmt:
    """The statement that computes `tile` with the vector registers of `cpu`."""
    products = products or Products(tile)
    a, statements = products.packed_a()
    lanes = cpu.lanes(DataType(tile.compute_dtype).bits)
    column = 0
    for count, widths in column_panels(tile.n, lanes, _vectors(cpu)):
        panel = _panel_emitter(products, a, widths, column, cpu)
        statements.append(loop("panel", count, panel))
        column += count * sum(widths)
    return seq(statements)


def _panel_emitter(
    products: Products, a: ElementSource, widths: tuple[int, ...], column: int, cpu: CpuCapability
) -> Callable[[ir.Var], tirx.Stmt]:
    """An emitter of panels, by their number from `column` on: pack B, then all rows."""
    rows = register_block(cpu, len(widths), products.tile.m)
    full, rest = divmod(products.tile.m, rows)

    def panel(number: Index) -> tirx.Stmt:
        first = column + number * sum(widths)
        b, statements = products.packed_b(first, widths)

        def block(index: ir.Expr) -> tirx.Stmt:
            return _register_block(products, a, b, index * rows, first, rows, widths)

        if full:
            statements.append(loop("block", full, block))
        if rest:
            statements.append(_register_block(products, a, b, full * rows, first, rest, widths))
        return seq(statements)

    return panel


def _register_block(
    products: Products,
    a: ElementSource,
    b: ElementSource,
    row: Index,
    column: Index,
    rows: int,
    widths: tuple[int, ...],
) -> tirx.Stmt:
    """`rows` rows from `row` on, vectors of `widths` lanes from `column` on; `b` begins there."""
    tile, dtype = products.tile, products.dtype
    vectors = [(sum(widths[:v]), lanes) for v, lanes in enumerate(widths)]
    sums = [array((1, sum(widths)), tile.compute_dtype, f"acc{r}") for r in range(rows)]
    block = [(r, offset, lanes) for r in range(rows) for offset, lanes in vectors]

    def step(k: ir.Expr) -> tirx.Stmt:
        columns = [tirx.Var(f"b{v}", vector_dtype(dtype, lanes)) for v, lanes in enumerate(widths)]
        body: list[tirx.Stmt] = [
            tirx.Bind(var, b.load(k, offset, lanes))
            for var, (offset, lanes) in zip(columns, vectors, strict=True)
        ]
        for r, acc in enumerate(sums):
            x = tirx.Var(f"a{r}", products.dtype_of_a)
            body.append(
                tirx.Bind(x, a.load(k, row + r) if tile.transpose_a else a.load(row + r, k))
            )
            body += [
                acc.store(0, o, products.add(acc.load(0, o, lanes), x, var, lanes), lanes)
                for var, (o, lanes) in zip(columns, vectors, strict=True)
            ]
        return seq(body)

    return seq(
        [
            *(tirx.AllocBuffer(acc.buffer) for acc in sums),
            *(
                sums[r].store(0, o, products.start(row + r, column + o, lanes), lanes)
                for r, o, lanes in block
            ),
            loop("k", products.steps, step),
            *(
                tile.c.store(row + r, column + o, sums[r].load(0, o, lanes), lanes)
                for r, o, lanes in block
            ),
        ]
    )
