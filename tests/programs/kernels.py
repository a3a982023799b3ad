"""Kernels of kinds that users write, and the rest of the language in small."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program


@program(tags={"rows"}, fast=["metal"])
def rotary_embedding_of_neighbouring_pairs(
    X: T.Tensor((40, 64), "float16"),
    cos: T.Tensor((40, 32), "float32"),
    sin: T.Tensor((40, 32), "float32"),
    Y: T.Tensor((40, 64), "float16"),
):
    with T.Kernel(T.ceildiv(40, 16), threads=128) as bx:
        x, y = T.alloc_fragment((16, 64), "float32"), T.alloc_fragment((16, 64), "float32")
        T.copy(X[bx * 16, 0], x)
        for i, j in T.Parallel(16, 32):
            c, s = cos[bx * 16 + i, j], sin[bx * 16 + i, j]
            y[i, 2 * j] = x[i, 2 * j] * c - x[i, 2 * j + 1] * s
            y[i, 2 * j + 1] = x[i, 2 * j] * s + x[i, 2 * j + 1] * c
        T.copy(y, Y[bx * 16, 0])


@program(tags={"reduce"}, fast=["metal"])
def matrix_times_vector(
    A: T.Tensor((70, 300), "float16"), x: T.Tensor((300,), "float16"), y: T.Tensor((70,), "float32")
):
    with T.Kernel(T.ceildiv(70, 8), threads=64) as bx:
        a, x_local = T.alloc_fragment((8, 64), "float16"), T.alloc_fragment((64,), "float16")
        products, sums = T.alloc_fragment((8, 64), "float32"), T.alloc_fragment((8,), "float32")
        T.clear(products)
        for k in T.serial(T.ceildiv(300, 64)):
            T.copy(A[bx * 8, k * 64], a)
            T.copy(x[k * 64], x_local)
            for i, j in T.Parallel(8, 64):
                products[i, j] += T.cast(a[i, j], "float32") * x_local[j]
        T.reduce_sum(products, sums, dim=1)
        T.copy(sums, y[bx * 8])


@program(
    tags={"reduce"},
    inputs={"A": lambda rng, shape: rng.permutation(320).reshape(shape)},
    fast=["metal"],
)
def largest_elements_one_after_the_other(
    A: T.Tensor((5, 64), "float32"),
    values: T.Tensor((5, 3), "float32"),
    places: T.Tensor((5, 3), "int32"),
):
    with T.Kernel(1, threads=128):
        x, place = T.alloc_fragment((5, 64), "float32"), T.alloc_fragment((5, 64), "int32")
        largest, where = T.alloc_fragment((5,), "float32"), T.alloc_fragment((5,), "int32")
        T.copy(A, x)
        for rank in T.serial(3):
            T.fill(place, -1)
            T.reduce_max(x, largest, dim=1)
            for i, j in T.Parallel(5, 64):
                place[i, j] = T.if_then_else(x[i, j] == largest[i], j, place[i, j])
            T.reduce_max(place, where, dim=1)
            for i, j in T.Parallel(5, 64):
                x[i, j] = T.if_then_else(x[i, j] == largest[i], -1e4, x[i, j])
            for i in T.Parallel(5):
                values[i, rank] = largest[i]
                places[i, rank] = where[i]


@program(
    tags={"gemm"},
    inputs={"rows": lambda rng, shape: rng.permutation(40)[:24]},
    fast=["metal", "sm_80"],
)
def rows_that_a_table_names_are_gathered_and_scattered(
    X: T.Tensor((40, 64), "float16"),
    rows: T.Tensor((24,), "int32"),
    W: T.Tensor((64, 32), "float16"),
    C: T.Tensor((40, 32), "float32"),
):
    with T.Kernel(1, threads=64):
        gathered = T.alloc_shared((24, 64), "float16")
        c = T.alloc_fragment((24, 32), "float32")
        for i, j in T.Parallel(24, 64):
            gathered[i, j] = X[rows[i], j]
        T.clear(c)
        T.gemm(gathered, W, c)
        for i, j in T.Parallel(24, 32):
            C[rows[i], j] = c[i, j]


@program(tags={"loop"}, fast=["metal", "sm_80"])
def stencil_that_is_applied_twice(
    X: T.Tensor((34, 66), "float32"), C: T.Tensor((32, 64), "float32")
):
    with T.Kernel(1, threads=128):
        grid, new = T.alloc_shared((34, 66), "float32"), T.alloc_fragment((32, 64), "float32")
        T.copy(X, grid)
        for _ in T.serial(2):
            for i, j in T.Parallel(32, 64):
                across = grid[i + 1, j] + grid[i + 1, j + 2]
                new[i, j] = (grid[i, j + 1] + grid[i + 2, j + 1] + across) / 4
            for i, j in T.Parallel(32, 64):
                grid[i + 1, j + 1] = new[i, j]
        T.copy(new, C)


@program(
    tags={"branch"},
    inputs={"count": lambda rng, shape: 1},
    fast=["metal", "sm_80"],
)
def branch_that_all_threads_take_alike(
    A: T.Tensor((64, 32), "float32"), C: T.Tensor((64, 32), "float32"), count: T.int32
):
    """Barriers inside of it are for the blocks that take it."""
    with T.Kernel(2, threads=64) as bx:
        shared, x = T.alloc_shared((32, 32), "float32"), T.alloc_fragment((32, 32), "float32")
        sums = T.alloc_fragment((32,), "float32")
        T.copy(A[bx * 32, 0], x)
        if bx < count:
            T.copy(x, shared)
            for i, j in T.Parallel(32, 32):
                x[i, j] += shared[31 - i, j]
            T.reduce_sum(x, sums, dim=1)
            for i, j in T.Parallel(32, 32):
                x[i, j] -= sums[i]
        T.copy(x, C[bx * 32, 0])


@program(
    tags={"branch"},
    inputs={"lengths": lambda rng, shape: [0, 1, 31, 33, 64]},
    fast=["metal"],
)
def length_that_is_a_value_of_another_tensor(
    A: T.Tensor((5, 64), "float32"),
    lengths: T.Tensor((5,), "int32"),
    C: T.Tensor((5, 64), "float32"),
):
    """Rows end where `lengths` says; what lies behind keeps its value."""
    with T.Kernel(5, threads=32) as bx:
        for j in T.Parallel(64):
            if j < lengths[bx]:
                C[bx, j] = A[bx, j] * 2


@program(
    tags={"copy"},
    parameters={
        "dtype": [
            "int8",
            "float16",
            "bfloat16",
            "bool",
            "int16",
            "int64",
            "uint16",
            "uint32",
            "uint64",
            "uint8",
        ]
    },
    inputs={"A": lambda rng, shape: rng.integers(0, 2 if dtype == "bool" else 100, shape)},
    examples=[{}, {"dtype": "float16"}],
    expects=lambda p: {"metal": ["uint4"]} if p.dtype in ("int8", "float16") else {},
    drawn=4,
    fast=["metal"],
)
def tiles_of_a_dtype(
    A: T.Tensor((40, 64), dtype), C: T.Tensor((40, 64), dtype), D: T.Tensor((40, 64), "float32")
):
    """Copied through shared memory and registers, compared and converted; the rows are ragged."""
    with T.Kernel(T.ceildiv(40, 16), threads=64) as bx:
        shared, own = T.alloc_shared((16, 64), dtype), T.alloc_fragment((16, 64), dtype)
        T.copy(A[bx * 16, 0], shared)
        T.copy(shared, own)
        for i, j in T.Parallel(16, 64):
            zero = own[i, j] == T.cast(0, dtype)
            own[i, j] = T.if_then_else(zero, T.cast(1, dtype), own[i, j])
        T.copy(own, C[bx * 16, 0])
        T.copy(shared, D[bx * 16, 0])


@program(tags={"view"}, fast=["metal", "sm_80"])
def views_of_shared_and_global_memory(
    A: T.Tensor((64,), "float32"), C: T.Tensor((8, 8), "float32"), bits: T.Tensor((64,), "int32")
):
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((64,), "float32")
        T.copy(A, tile)
        T.copy(T.reshape(tile, (8, 8)), C)
        T.copy(T.view(tile, (64,), "int32"), bits)
        rows = T.view(A, (4, 16))
        for i, j in T.Parallel(4, 16):
            C[i * 2 + j // 8, j % 8] += rows[i, j]


@program(tags={"persistent"}, fast=["metal"])
def persistent_blocks_and_scalars(
    A: T.Tensor((7, 64), "float32"), C: T.Tensor((7, 64), "float32"), n: T.int32, alpha: T.float32
):
    with T.Kernel(3, threads=32) as block:
        for (i,) in T.Persistent([7], 3, block):
            for j in T.Parallel(64):
                C[i, j] = A[i, j] * alpha + n


@program(tags={"loop", "reduce"}, sizes=[{"n": 100}, {"n": 1}], fast=["metal", "sm_80"])
def two_kernels_of_an_extent_known_at_run_time(
    A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32"), C: T.Tensor((1,), "float32")
):
    with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
        for i in T.Parallel(32):
            B[bx * 32 + i] = A[bx * 32 + i] * 2
    with T.Kernel(1, threads=64):
        tile, total = T.alloc_fragment((128,), "float32"), T.alloc_fragment((1,), "float32")
        T.copy(B[0:128], tile)
        T.reduce_sum(tile, total, dim=0)
        T.copy(total, C)


@program(
    tags={"atomic"},
    parameters={"dtype": ["int32", "uint32", "float32"]},
    inputs={"keys": lambda rng, shape: rng.integers(0, 7, shape)},
    fast=["metal", "sm_80"],
)
def histogram(keys: T.Tensor((300,), "int32"), counts: T.Tensor((7,), dtype)):
    with T.Kernel(3, threads=32) as bx:
        for i in T.Parallel(100):
            T.atomic_add(counts[keys[bx * 100 + i]], T.cast(1, dtype))


# A block of sm_89 has less memory.
@program(tags={"copy"}, targets=["llvm", "sm_80", "sm_90a", "gpu"], fast=["sm_80"])
def tiles_that_share_memory(
    A: T.Tensor((128, 256), "float32"),
    B: T.Tensor((128, 256), "float32"),
    C: T.Tensor((128, 256), "float32"),
):
    """Two tiles of 128 KiB, more than a block may have at once."""
    with T.Kernel(1, threads=256):
        first, second = T.alloc_shared((128, 256), "float32"), T.alloc_shared((128, 256), "float32")
        total = T.alloc_fragment((128, 256), "float32")
        T.copy(A, first)
        for i, j in T.Parallel(128, 256):
            total[i, j] = first[127 - i, j]
        T.copy(B, second)
        for i, j in T.Parallel(128, 256):
            total[i, j] += second[127 - i, j]
        T.copy(total, C)


@program(tags={"copy"}, fast=["sm_80"])
def transposed_block_by_block(A: T.Tensor((64, 256), "float32"), C: T.Tensor((256, 64), "float32")):
    """Through one tile, in a loop."""
    with T.Kernel(2, threads=128) as bx:
        tile = T.alloc_shared((32, 32), "float32")
        for step in T.serial(8):
            T.copy(A[bx * 32, step * 32], tile)
            for i, j in T.Parallel(32, 32):
                C[step * 32 + i, bx * 32 + j] = tile[j, i]


@program(
    tags={"reduce"},
    parameters={"dtype": ["int8", "int32", "int16"]},
    inputs={"X": lambda rng, shape: rng.integers(-100, 100, shape)},
    targets=["llvm", "metal", "sm_80", "sm_90a", "gpu"],
    fast=["sm_90a"],
)
def extremes_of_negated_integers(
    X: T.Tensor((3, 64), dtype), Y: T.Tensor((4, 64), dtype), Z: T.Tensor((64,), dtype)
):
    """ptxas before CUDA 13.4 loses the sign of `b` in `min(min(a, -b), c)`, on sm_90 and sm_100."""
    with T.Kernel(1, threads=64):
        tile, least = T.alloc_fragment((3, 64), dtype), T.alloc_fragment((64,), dtype)
        for i, j in T.Parallel(3, 64):
            tile[i, j] = -X[i, j]
        T.reduce_min(tile, least, dim=0)
        T.copy(least, Z)
        for j in T.Parallel(64):
            Y[0, j] = T.min(T.min(X[0, j], -X[1, j]), X[2, j])
            Y[1, j] = T.max(T.max(-X[0, j], -X[1, j]), -X[2, j])
            Y[2, j] = T.max(T.max(X[0, j], X[1, j] * -1), X[2, j])
            Y[3, j] = T.max(T.max(X[0, j], -T.abs(X[1, j])), X[2, j])


@program(
    tags={"loop"},
    parameters={"order": ["row", "column"], "grid": [(7, 5), (8, 8), (1, 3)]},
    targets=["llvm", "metal", "sm_80", "gpu"],
    fast=["sm_80"],
)
def blocks_in_any_order(C: T.Tensor(grid, "int32")):
    """Every block has work of its own."""
    with T.Kernel(grid[1], grid[0], threads=32) as (bx, by):
        T.use_swizzle(3, order=order)
        for i in T.Parallel(1):
            T.atomic_add(C[by, bx + i], by * grid[1] + bx + 1)
