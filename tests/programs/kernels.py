"""Kernels of kinds that users write, and the rest of the language in small."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program
from tests.programs.text import Name

ROWS = {
    "block": [4, 8, 1, 16, 3, 2],
    "threads": [64, 128, 256, 96, 32],
    "N": [100, 256, 1000, 64, 257, 7],
}


@program(fast=["metal"])
def rotary_embedding_of_neighbouring_pairs(
    X: float16[40, 64], cos: float32[40, 32], sin: float32[40, 32], Y: float16[40, 64]
):
    with T.Kernel(T.ceildiv(40, 16), threads=128) as bx:
        x, y = T.alloc_fragment((16, 64), "float32"), T.alloc_fragment((16, 64), "float32")
        T.copy(X[bx * 16, 0], x)
        for i, j in T.Parallel(16, 32):
            c, s = cos[bx * 16 + i, j], sin[bx * 16 + i, j]
            y[i, 2 * j] = x[i, 2 * j] * c - x[i, 2 * j + 1] * s
            y[i, 2 * j + 1] = x[i, 2 * j] * s + x[i, 2 * j + 1] * c
        T.copy(y, Y[bx * 16, 0])


@program(fast=["metal", "sm_80"])
def stencil_that_is_applied_twice(X: float32[34, 66], C: float32[32, 64]):
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


@program(inputs={"count": 1}, fast=["metal", "sm_80"])
def branch_that_all_threads_take_alike(A: float32[64, 32], C: float32[64, 32], count: T.int32):
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
def tiles_of_a_dtype(A: dtype[40, 64], C: dtype[40, 64], D: float32[40, 64]):
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


# A block of sm_89 has less memory.
@program(targets=["llvm", "sm_80", "sm_90a", "gpu"], fast=["sm_80"])
def tiles_that_share_memory(A: float32[128, 256], B: float32[128, 256], C: float32[128, 256]):
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


@program(fast=["sm_80"])
def transposed_block_by_block(A: float32[64, 256], C: float32[256, 64]):
    """Through one tile, in a loop."""
    with T.Kernel(2, threads=128) as bx:
        tile = T.alloc_shared((32, 32), "float32")
        for step in T.serial(8):
            T.copy(A[bx * 32, step * 32], tile)
            for i, j in T.Parallel(32, 32):
                C[step * 32 + i, bx * 32 + j] = tile[j, i]


@program(
    parameters={"dtype": ["int8", "int32", "int16"]},
    inputs={"X": lambda rng, shape: rng.integers(-40, 40, shape)},
    targets=["llvm", "metal", "sm_80", "sm_90a", "gpu"],
    fast=["sm_90a"],
)
def extremes_of_negated_integers(X: dtype[3, 64], Y: dtype[15, 64], Z: dtype[64]):
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
            Y[4, j] = T.max(T.abs(X[0, j]), X[1, j])
            Y[5, j] = T.min(T.min(X[0, j], X[1, j] // -1), X[2, j])
            chosen = T.if_then_else(X[0, j] > -X[1, j], X[0, j], -X[1, j])
            Y[6, j] = T.if_then_else(chosen > X[2, j], chosen, X[2, j])
            larger = T.Select(X[0, j] > -X[1, j], X[0, j], -X[1, j])
            Y[7, j] = T.Select(larger > X[2, j], larger, X[2, j])
            Y[8, j] = T.max(T.max(X[0, j], ~X[1, j] + T.cast(1, dtype)), X[2, j])
            Y[9, j] = T.max(T.max(X[0, j], ~(X[1, j] - T.cast(1, dtype))), X[2, j])
            Y[10, j] = T.max(T.max(X[0, j], (X[2, j] - X[1, j]) - X[2, j]), X[2, j])
            Y[11, j] = T.max(T.max(X[0, j], X[2, j] - (X[1, j] + X[2, j])), X[2, j])
            Y[12, j] = T.max(
                T.max(X[0, j], (X[1, j] ^ T.cast(-1, dtype)) + T.cast(1, dtype)), X[2, j]
            )
            most, first = T.alloc_var(dtype), T.alloc_var(dtype)
            most, first = X[0, j], X[0, j]
            for k in range(3):
                most = T.max(T.max(most, T.cast(k, dtype) - X[1, j]), X[2, j])
                first = T.min(T.min(first, X[1, j] * T.cast(k - 1, dtype)), X[2, j])
            Y[13, j] = most
            Y[14, j] = first


@program(
    parameters={"dtype": ["int32", "int64", "int8"]},
    inputs={
        "X": lambda rng, shape: np.where(
            rng.integers(0, 2, shape), np.iinfo(dtype).min, np.iinfo(dtype).max - 1
        ),
        "Y": lambda rng, shape: rng.choice([-1, 1, -3, np.iinfo(dtype).max], shape),
    },
    fast=["metal"],
)
def remainders_of_the_ends(X: dtype[64], Y: dtype[64], C: dtype[64], D: dtype[64], E: dtype[64]):
    """Remainders by -1 are 0, and rounding down does not overflow where nothing is to round."""
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            C[i] = X[i] % Y[i]
            D[i] = T.truncmod(X[i], Y[i])
            E[i] = X[i] // (Y[i] & 1)


@program(
    parameters={"dtype": ["int16", "int8"]},
    examples="dtype",
    inputs="extreme",
    targets=["llvm", "metal", "sm_80", "gpu"],
)
def widened_negatives(X: dtype[16, 32], Y: int32[8, 16, 32]):
    """ptxas before CUDA 13.4 has 32768 for the negative of the least int16, which is that itself."""
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(16, 32):
            Y[0, i, j] = T.cast(-X[i, j], "int32")
            Y[1, i, j] = T.cast(T.abs(X[i, j]), "int32")
            Y[2, i, j] = T.cast(X[i, j] * T.cast(-1, dtype), "int32")
            Y[3, i, j] = T.cast(T.abs(X[i, j]) % T.cast(3, dtype), "int32")
            Y[4, i, j] = T.cast((-X[i, j]) >> 3, "int32")
            Y[5, i, j] = T.if_then_else(-X[i, j] < 3, 1, 0)
            Y[6, i, j] = T.cast(~X[i, j] + T.cast(1, dtype), "int32")
            Y[7, i, j] = T.cast((X[0, j] - X[i, j]) - X[0, j], "int32")


@program(
    parameters={"of": ["float16", "bfloat16"], "dtype": ["int16", "int8"]},
    examples=[{"of": of, "dtype": d} for of in ("float16", "bfloat16") for d in ("int16", "int8")],
    inputs={"X": lambda rng, shape: rng.uniform(-120, 120, shape)},
    targets=["llvm", "metal", "sm_90a", "gpu"],
)
def widened_integers_of_narrow_floats(X: of[8, 32], Y: int32[2, 8, 32]):
    """ptxas loses the sign of an integer of 16 bits that it makes of a float of 16 bits."""
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(8, 32):
            held = T.alloc_var(dtype, init=T.cast(X[i, j], dtype))
            Y[0, i, j] = T.cast(held, "int32")
            Y[1, i, j] = T.cast(T.cast(-X[i, j], dtype), "int32") * 3


@program(
    parameters={"dtype": ["int32", "int64"]},
    examples="dtype",
    inputs={
        "X": lambda rng, shape: rng.choice([-(2**31), -(2**31) + 40, -1, 7, 2**31 - 1], shape),
        "Y": lambda rng, shape: rng.integers(-5, 6, shape),
    },
    targets=["llvm", "metal", "sm_80", "gpu"],
    fast=["sm_80"],
)
def orders_of_sums(X: int32[8, 32], Y: int32[8, 32], B: T.Tensor((4, 8, 32), "bool")):
    """A term that TVM moves to the other side of a comparison does not fit there."""
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(8, 32):
            x, y = T.cast(X[i, j], dtype), T.cast(Y[i, j], dtype)
            B[0, i, j] = 392 - y > x
            B[1, i, j] = y - 7 < x
            B[2, i, j] = x <= y + 9
            B[3, i, j] = 3 * y - 20 >= x


@program(targets=["llvm", "metal", "sm_80", "gpu"])
def magnitudes_that_cancel(A: int8[64], B: int8[64]):
    """The difference is a constant once its name is replaced: it is negative, and becomes a uint32."""
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            held = (T.cast(A[i], "int32") - 2) - (3 + T.cast(A[i], "int32"))
            B[i] = T.cast(T.abs(T.clamp(held, -4, 4)) % 7, "int8")


@program(
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


@program(
    parameters={
        "M": [10, 33, 5, Name("M")],
        **ROWS,
        "dtype": ["float16", "float32", "bfloat16"],
    },
    examples=[{}, {"M": 5, "N": 1000, "block": 1, "threads": 128}, {"M": Name("M"), "N": 96}],
    sizes=lambda p: [{"M": 11}, {"M": 1}, {"M": 8}] if isinstance(p.M, str) else [{}, {}],
    where=lambda p: p.block * p.N <= 32 * p.threads,
    drawn=8,
    fast=["metal", "sm_80"],
)
def softmax(A: dtype[M, N], C: dtype[M, N]):
    with T.Kernel(T.ceildiv(M, block), threads=threads) as bx:
        x = T.alloc_fragment((block, N), "float32")
        row_max, row_sum = (
            T.alloc_fragment((block,), "float32"),
            T.alloc_fragment((block,), "float32"),
        )
        T.copy(A[bx * block, 0], x)
        T.reduce_max(x, row_max, dim=1)
        for i, j in T.Parallel(block, N):
            x[i, j] = T.exp(x[i, j] - row_max[i])
        T.reduce_sum(x, row_sum, dim=1)
        for i, j in T.Parallel(block, N):
            x[i, j] /= row_sum[i]
        T.copy(x, C[bx * block, 0])


@program(
    tags={"pipelined"},
    parameters={
        "M": [33, 32, 1],
        "N": [40, 64, 7],
        "K": [96, 64, 32],
        "dtype": ["bfloat16", "float16", "float32"],
        "stages": [2, 0, 3],
        "in_registers": [True, False],
    },
    inputs={"W": lambda rng, shape: rng.integers(0, 256, shape)},
    drawn=4,
    fast=["metal", "sm_80"],
)
def quantized_gemm_of_4_bits(
    A: dtype[M, K], W: uint8[N, K // 2], scales: dtype[N, K // 32], C: dtype[M, N]
):
    """C = A @ W.T, a weight (nibble - 8) * scale; decoded in shared memory or in fragments."""
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
        a = T.alloc_shared((32, 32), dtype)
        w_packed = T.alloc_shared((32, 16), "uint8")
        w = T.alloc_shared((32, 32), dtype)
        packed = T.alloc_fragment((32, 16), "uint8")
        decoded = T.alloc_fragment((32, 32), dtype)
        sums = T.alloc_fragment((32, 32), "float32")
        T.clear(sums)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=stages):
            T.copy(A[by * 32, k * 32], a)
            T.copy(W[bx * 32, k * 16], w_packed)
            if in_registers:
                T.copy(w_packed, packed)
                for i, j in T.Parallel(32, 32):
                    nibble = (packed[i, j // 2] >> (j % 2 * 4)) & 0xF
                    decoded[i, j] = (T.cast(nibble, dtype) - 8) * scales[bx * 32 + i, k]
                T.copy(decoded, w)
            else:
                for i, j in T.Parallel(32, 32):
                    nibble = (w_packed[i, j // 2] >> (j % 2 * 4)) & 0xF
                    w[i, j] = (T.cast(nibble, dtype) - 8) * scales[bx * 32 + i, k]
            T.gemm(a, w, sums, transpose_B=True)
        T.copy(sums, C[by * 32, bx * 32])


@program(
    parameters={
        "M": [9, 17],
        **ROWS,
    },
    where=lambda p: p.block * p.N <= 32 * p.threads,
    drawn=4,
    fast=["metal"],
)
def layer_norm(A: float16[M, N], weight: float32[N], bias: float32[N], C: float16[M, N]):
    with T.Kernel(T.ceildiv(M, block), threads=threads) as bx:
        x, square = T.alloc_fragment((block, N), "float32"), T.alloc_fragment((block, N), "float32")
        mean, variance = (
            T.alloc_fragment((block,), "float32"),
            T.alloc_fragment((block,), "float32"),
        )
        T.copy(A[bx * block, 0], x)
        T.reduce_sum(x, mean, dim=1)
        for i in T.Parallel(block):
            mean[i] /= N
        for i, j in T.Parallel(block, N):
            square[i, j] = (x[i, j] - mean[i]) * (x[i, j] - mean[i])
        T.reduce_sum(square, variance, dim=1)
        for i in T.Parallel(block):
            variance[i] = T.rsqrt(variance[i] / N + 1e-5)
        for i, j in T.Parallel(block, N):
            x[i, j] = (x[i, j] - mean[i]) * variance[i] * weight[j] + bias[j]
        T.copy(x, C[bx * block, 0])
