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
            acc[r][v] += broadcast(A[r, k]) * b[v]  # LLVM contracts this to a fused multiply-add
        C[...] = acc[r][v]
```

Correctness rests on no tile being read after it was partly written: A and B are other buffers than
C. Speed rests on LLVM keeping every accumulator in a register, which it does for a small array on
the stack that is only indexed by constants. So there is one array a row, each below the 1024 bytes
from which TVM moves arrays to its workspace, in the scope `global` (others go to the workspace
too), and no pass may merge them with a tile that is indexed by variables (StorageRewrite might: the
pipeline leaves it out).

Products and sums are in the compute dtype: the accumulator's, but float32 for a float16 or bfloat16
accumulator, which is rounded once, when a block is stored. Operands of another dtype are packed: A
is cast as it lies, since a broadcast does not care about the order, B one panel at a time, so that
a panel stays in the first-level cache, and transposed if it is stored [N, K]. An element that is
packed once serves a whole row or column of the tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import DataType, ir, tirx

from tvmtile.ir.rewriting import for_loop, seq
from tvmtile.target import CpuCapability

__all__ = ["GemmTile", "Matrix", "emit_gemm"]

# Two vectors wide, one broadcast serves two fused multiply-adds, and 32 columns of float32 (16 with
# AVX2) divide every usual tile. On Zen 5, 2 and 4 are equally fast and 1 is a tenth slower.
_VECTORS = 2
# Independent sums that hide the latency of a fused multiply-add: 4 or 5 cycles, two a cycle, and
# some to spare.
_CHAINS = 12


@dataclass(frozen=True)
class Matrix:
    """The last two axes of `buffer`, from `origin` on.

    Attributes
    ----------
    buffer : Var
        A buffer.
    origin : sequence of Expr
        One index for each axis of the buffer.
    """

    buffer: ir.Var
    origin: Sequence[Any]

    @property
    def dtype(self) -> str:
        """Dtype of the elements."""
        return str(self.buffer.ty.dtype)

    def moved(self, rows: Any, columns: Any) -> Matrix:
        """The matrix that begins so many rows and columns further on."""
        *outer, row, column = self.origin
        return Matrix(self.buffer, [*outer, row + rows, column + columns])

    def load(self, row: Any, column: Any, lanes: int = 1, dtype: str | None = None) -> Any:
        """`lanes` neighbours in a row, converted to `dtype`."""
        value = tirx.BufferLoad(self.buffer, self._at(row, column, lanes))
        return _cast(value, dtype or self.dtype, lanes)

    def store(self, row: Any, column: Any, value: Any, lanes: int = 1) -> tirx.Stmt:
        """Store `lanes` neighbours in a row, converted to the matrix's dtype."""
        indices = self._at(row, column, lanes)
        return tirx.BufferStore(self.buffer, _cast(value, self.dtype, lanes), indices)

    def _at(self, row: Any, column: Any, lanes: int) -> list[Any]:
        *outer, first_row, first_column = self.origin
        return [*outer, first_row + row, _ramp(first_column + column, lanes)]


@dataclass(frozen=True)
class GemmTile:
    """One multiplication, `c += a @ b`.

    Attributes
    ----------
    a, b, c : Matrix
        [m, k], [k, n] and [m, n]; [k, m] and [n, k] where transposed.
    m, n, k : int
        Extents.
    transpose_a, transpose_b : bool
        The operand is stored transposed.
    clear : bool
        `c = a @ b` instead.
    """

    a: Matrix
    b: Matrix
    c: Matrix
    m: int
    n: int
    k: int
    transpose_a: bool = False
    transpose_b: bool = False
    clear: bool = False

    @property
    def compute_dtype(self) -> str:
        """The dtype of products and sums."""
        return "float32" if self.c.dtype in ("float16", "bfloat16") else self.c.dtype


def register_block(cpu: CpuCapability, vectors: int, m: int) -> int:
    """How many rows a register block has that is `vectors` registers wide, in a tile of `m` rows.

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


def emit_gemm(tile: GemmTile, cpu: CpuCapability) -> tirx.Stmt:
    """The statement that computes `tile` with the vector registers of `cpu`."""
    a, statements = _packed_a(tile)
    lanes = cpu.lanes(DataType(tile.compute_dtype).bits)
    column = 0
    for count, widths in column_panels(tile.n, lanes, _VECTORS):
        statements.append(_loop("panel", count, _panel_emitter(tile, a, widths, column, cpu)))
        column += count * sum(widths)
    return seq(statements)


def _panel_emitter(
    tile: GemmTile, a: Matrix, widths: tuple[int, ...], column: int, cpu: CpuCapability
) -> Callable[[Any], tirx.Stmt]:
    """What emits a panel, by its number among those that start at `column`: pack B, then all rows."""
    rows = register_block(cpu, len(widths), tile.m)
    full, rest = divmod(tile.m, rows)

    def panel(number: Any) -> tirx.Stmt:
        first = column + number * sum(widths)
        b, statements = _packed_b(tile, first, widths)

        def block(index: Any) -> tirx.Stmt:
            return _register_block(tile, a, b, index * rows, first, rows, widths)

        if full:
            statements.append(_loop("block", full, block))
        if rest:
            statements.append(_register_block(tile, a, b, full * rows, first, rest, widths))
        return seq(statements)

    return panel


def _register_block(
    tile: GemmTile, a: Matrix, b: Matrix, row: Any, column: Any, rows: int, widths: tuple[int, ...]
) -> tirx.Stmt:
    """`rows` rows from `row` on, vectors of `widths` lanes from `column` on; `b` begins there."""
    dtype = tile.compute_dtype
    vectors = [(sum(widths[:v]), lanes) for v, lanes in enumerate(widths)]
    accumulators = [_array((1, sum(widths)), dtype, f"acc{r}") for r in range(rows)]
    block = [(r, offset, lanes) for r in range(rows) for offset, lanes in vectors]

    def initial(r: int, offset: int, lanes: int) -> Any:
        if tile.clear:
            return _broadcast(tirx.const(0, dtype), lanes)
        return tile.c.load(row + r, column + offset, lanes, dtype)

    def step(k: Any) -> tirx.Stmt:
        columns = [tirx.Var(f"b{v}", _vector(dtype, lanes)) for v, lanes in enumerate(widths)]
        body: list[tirx.Stmt] = [
            tirx.Bind(var, b.load(k, offset, lanes))
            for var, (offset, lanes) in zip(columns, vectors, strict=True)
        ]
        for r, acc in enumerate(accumulators):
            x = tirx.Var(f"a{r}", dtype)
            body.append(
                tirx.Bind(x, a.load(k, row + r) if tile.transpose_a else a.load(row + r, k))
            )
            body += [
                acc.store(0, offset, acc.load(0, offset, lanes) + _broadcast(x, lanes) * var, lanes)
                for var, (offset, lanes) in zip(columns, vectors, strict=True)
            ]
        return seq(body)

    return seq(
        [
            *(tirx.AllocBuffer(acc.buffer) for acc in accumulators),
            *(accumulators[r].store(0, o, initial(r, o, lanes), lanes) for r, o, lanes in block),
            _loop("k", tile.k, step),
            *(
                tile.c.store(row + r, column + o, accumulators[r].load(0, o, lanes), lanes)
                for r, o, lanes in block
            ),
        ]
    )


def _packed_a(tile: GemmTile) -> tuple[Matrix, list[tirx.Stmt]]:
    """A in the compute dtype, in the order in which it is stored, and the statements that make it."""
    if tile.a.dtype == tile.compute_dtype:
        return tile.a, []
    shape = (tile.k, tile.m) if tile.transpose_a else (tile.m, tile.k)
    packed = _array(shape, tile.compute_dtype, "a_packed")
    return packed, [tirx.AllocBuffer(packed.buffer), _cast_copy(packed, tile.a, shape)]


def _packed_b(
    tile: GemmTile, first: Any, widths: tuple[int, ...]
) -> tuple[Matrix, list[tirx.Stmt]]:
    """The panel of B from column `first` on, [k, columns] in the compute dtype, and what makes it."""
    source = tile.b.moved(first, 0) if tile.transpose_b else tile.b.moved(0, first)
    if not tile.transpose_b and tile.b.dtype == tile.compute_dtype:
        return source, []
    shape = (tile.k, sum(widths))
    packed = _array(shape, tile.compute_dtype, "b_packed")
    copy = (
        _transposing_copy(packed, source, tile.k, widths)
        if tile.transpose_b
        else _cast_copy(packed, source, shape)
    )
    return packed, [tirx.AllocBuffer(packed.buffer), copy]


def _cast_copy(dst: Matrix, src: Matrix, shape: tuple[int, int]) -> tirx.Stmt:
    """`dst[i, j] = cast(src[i, j])`, which LLVM vectorises by itself."""
    rows, columns = shape
    return _loop("i", rows, lambda i: _loop("j", columns, lambda j: _element(dst, src, i, j, i, j)))


def _element(dst: Matrix, src: Matrix, i: Any, j: Any, source_i: Any, source_j: Any) -> tirx.Stmt:
    return dst.store(i, j, src.load(source_i, source_j, 1, dst.dtype))


def _transposing_copy(dst: Matrix, src: Matrix, k: int, widths: tuple[int, ...]) -> tirx.Stmt:
    """`dst[i, j] = cast(src[j, i])` for `k` rows i: squares of a vector's lanes, then single elements.

    One by one, the elements would cost a tenth (256 x 256) to a third (64 x 64) of the whole gemm.
    """
    body: list[tirx.Stmt] = []
    column = 0
    for lanes in widths:
        squares, rest = divmod(k, lanes)
        if squares:
            body.append(_loop("s", squares, _square_emitter(dst, src, column, lanes)))
        if rest:
            body.append(_remainder(dst, src, k - rest, rest, column, lanes))
        column += lanes
    return seq(body)


def _square_emitter(
    dst: Matrix, src: Matrix, column: int, lanes: int
) -> Callable[[Any], tirx.Stmt]:
    return lambda square: _transposed_square(dst, src, square * lanes, column, lanes)


def _remainder(
    dst: Matrix, src: Matrix, row: int, rows: int, column: int, columns: int
) -> tirx.Stmt:
    def element(i: Any, j: Any) -> tirx.Stmt:
        return _element(dst, src, row + i, column + j, column + j, row + i)

    return _loop("i", rows, lambda i: _loop("j", columns, lambda j: element(i, j)))


def _transposed_square(dst: Matrix, src: Matrix, row: Any, column: int, size: int) -> tirx.Stmt:
    """`dst[row + i, column + j] = src[column + j, row + i]` for a square, a power of two wide.

    Eklundh's method in registers: log2(size) rounds, of which round s exchanges, between rows that
    are s apart, the columns with bit s and those without.
    """
    body: list[tirx.Stmt] = []

    def bind(value: Any) -> ir.Var:
        var = tirx.Var("t", _vector(dst.dtype, size))
        body.append(tirx.Bind(var, value))
        return var

    # A cast from bfloat16 must not stand in a Bind: TVM 0.27's BF16ComputeLegalize overlooks it
    # there, and LLVM converts the bits as if they were an integer. So it goes through an array that
    # is a register.
    loaded = [_array((1, size), dst.dtype, f"row{j}") for j in range(size)]
    for j, register in enumerate(loaded):
        body.append(tirx.AllocBuffer(register.buffer))
        body.append(register.store(0, 0, src.load(column + j, row, size, dst.dtype), size))
    rows = [bind(register.load(0, 0, size)) for register in loaded]
    distance = size // 2
    while distance:
        upper, lower = _exchange(size, distance)
        for i in (i for i in range(size) if not i & distance):
            pair = [rows[i], rows[i + distance]]
            rows[i], rows[i + distance] = (
                bind(tirx.Shuffle(pair, upper)),
                bind(tirx.Shuffle(pair, lower)),
            )
        distance //= 2
    body += [dst.store(row + i, column, rows[i], size) for i in range(size)]
    return seq(body)


def _exchange(size: int, distance: int) -> tuple[list[Any], list[Any]]:
    """Where the columns of two rows come from, as positions in the two rows put together."""
    upper = [size + j - distance if j & distance else j for j in range(size)]
    lower = [size + j if j & distance else j + distance for j in range(size)]
    return [tirx.const(i, "int32") for i in upper], [tirx.const(i, "int32") for i in lower]


def _array(shape: tuple[int, int], dtype: str, name: str) -> Matrix:
    return Matrix(tirx.decl_buffer(shape, dtype, name=name, scope="local"), (0, 0))


def _vector(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def _ramp(base: Any, lanes: int) -> Any:
    return base if lanes == 1 else tirx.Ramp(base, 1, lanes)


def _broadcast(value: Any, lanes: int) -> Any:
    return value if lanes == 1 else tirx.Broadcast(value, lanes)


def _cast(value: Any, dtype: str, lanes: int) -> Any:
    wanted = _vector(dtype, lanes)
    return value if str(value.ty.dtype) == wanted else tirx.Cast(wanted, value)


def _loop(name: str, extent: int, body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
    """A serial loop; one of a single iteration is its body."""
    if extent == 1:
        return body(0)
    var = tirx.Var(name, "int32")
    return for_loop(var, extent, body(var))
