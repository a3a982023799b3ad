"""Indices that are divided, counted down, taken off again: places of tiles and tensors."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program


@program(
    inputs={"n": 5, "rows": lambda rng, shape: rng.integers(0, 12, shape)},
    expects={"sm_80": ["not & 15) * 17"]},
    fast=["metal", "sm_80"],
)
def indices_divided(
    A: int32[16, 32], rows: int32[32], B: int32[4, 64], C: int32[4, 64], D: int32[3, 32], n: T.int32
):
    """A variable and what lies beside it, also by names and beside what no loop changes."""
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((16, 16), "int32")
        T.copy(A[0:16, 0:16], tile)
        for i in T.Parallel(64):
            B[0, i] = tile[i % 16, (i + 2) % 16]
            B[1, i] = tile[i // 4, (i + 2) // 8]
            B[2, i] = tile[(i % 4 + 1) % 4, i % 4]
            B[3, i] = A[i % 16, (i + n) % 16]
        for i in T.serial(64):
            down = 63 - i
            row = down // 4
            beside = i + 2
            C[0, i] = A[0, down // 4]
            C[1, i] = A[row, 1]
            C[2, i] = A[i % 16, beside % 16]
            C[3, i] = A[row, down % 4]
        for i in T.serial(32):
            place = rows[i]
            D[0, i] = A[(18 - place) // 2, (35 - i) // 2]
            D[1, i] = A[place ^ 3, (35 - i) // 2]
            D[2, i] = A[place // 3, (i % 8 + 1) % 8 + i % 4]


@program(fast=["metal", "sm_80"])
def indices_counted_down(A: int32[6], B: int32[6, 160], C: int32[64]):
    with T.Kernel(1, threads=32):
        own = T.alloc_local((6,), "int32")
        for i in T.serial(6):
            own[i] = A[i]
        for i in T.serial(160):
            B[0, i] = own[(159 - i) // 32]
            B[1, i] = A[(158 - i) % 5]
            B[2, i] = A[(159 - i) * 2 // 64]
            B[3, i] = A[(i * -2 + 318) // 64]
            if i < 64:
                C[i] = (
                    A[(7 - i // 4 % 8) // 2] * 100
                    + A[(31 - i % 32) % 6] * 10
                    + A[((i - 63) * -2) // 32]
                )
            B[(163 - i) // 160 + 4, (159 - i) % 160] = i
        for i in T.Parallel(160):
            B[3, i] = B[3, i] * 10 + A[(159 - i) // 32]


@program(inputs={"n": 3}, targets=["llvm", "metal", "sm_80", "gpu"])
def indices_beside_constants(A: int32[4, 16], B: int32[7, 16], n: T.int32):
    """The index that is hidden is one that a loop changes, and by an expression that TVM sees."""
    with T.Kernel(1, threads=32) as bx:
        tile = T.alloc_shared((4, 16), "int32")
        T.copy(A, tile)
        for k in T.serial(1):
            for i in T.serial(16):
                narrow = T.cast(T.cast(i, "int8"), "int32")
                parity = narrow % 2
                down = (15 - i) // 4
                B[0, i] = A[k % 2, 15 - (13 - i) % 16]
                B[1, i] = A[n % 4, (15 - i) // 4]
                B[2, i] = A[n ^ 1, (15 - i) // 4]
                B[3, i] = A[narrow % 2, (15 - i) // 4]
                B[4, i] = A[parity, down]
                B[5, i] = A[bx % 2, (15 - i) // 4]
        for i in T.Parallel(16):
            B[6, i] = tile[n % 4, (15 - i) // 4] + tile[bx ^ 1, (13 - i) % 16]


@program(inputs={"n": 4}, targets=["llvm", "metal", "sm_80", "gpu"], fast=["metal"])
def counts_of_narrow_dtypes(
    A: float32[2, 8, 16], B: float32[2, 16, 7], C: float32[8, 7], D: int32[16], n: T.uint8
):
    """Narrow dtypes hold neither the number of all threads nor that of all iterations."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((2, 8, 16), "float32"), T.alloc_shared((2, 16, 7), "float32")
        c = T.alloc_shared((8, 7), "float32")
        T.copy(A, a)
        for k in T.serial(1, n):
            T.copy(B, b)
            for h, i, j in T.Parallel(2, 8, 16):
                a[h, i, j] = T.min(a[h, i, j] * 2, 8)
            T.gemm(a[k % 2, 0:8, 0:16], b[1 - k % 2, 0:16, 0:7], c, clear_accum=True)
        T.copy(c, C)
        for i in T.Parallel(16):
            D[i] = T.cast(T.cast(i + i, "int8"), "int32")


@program(parameters={"only": [0, 1]}, examples="only", targets=["llvm", "metal", "sm_80", "gpu"])
def indices_of_the_one_iteration_that_is_left(A: int32[2, 16, 24], B: int32[24]):
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((2, 16, 24), "int32")
        T.copy(A, tile)
        for k in T.serial(9):
            if k >= only and k < only + 1:
                for i in T.Parallel(24):
                    B[i] = tile[k % 2, i % 16, (i + (1 if only == 0 else k)) % 24]


@program(targets=["llvm", "metal", "sm_80", "gpu"], fast=["metal"])
def indices_whose_terms_are_taken_off(
    A: int32[256], B: int32[6, 16, 8], C: int32[3, 8, 8], D: int32[3, 512]
):
    """The terms left are divided as written, also in guards, conditions and places outside."""
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((256,), "int32")
        square = T.view(tile, (32, 8), "int32")
        T.copy(A, tile)
        for i in T.serial(16):
            for j in T.serial(8):
                row = i - j
                B[0, i, j] = A[row + j]
                B[1, i, j] = tile[((i - i) + j // 4 * 3) + (i % 8 + j * 3) // 3]
                B[2, i, j] = tile[((i + (i - i % 8)) - i * 2) + 7]
                B[3, i, j] = A[((j % 3) + (i // 2)) - (i - (i + j))]
                B[4, i, j] = A[(i - i + j) // 4]
        for i, j in T.Parallel(16, 8):
            B[5, i + j - j, j] = tile[i // 4 - i // 4 + i % 3 + j]
        for i in T.serial(7, -1, -1):
            for j in T.serial(8):
                C[0, i, j] = square[i - (i - i // 3), j]
                C[1, i, j] = square[i // 2 - (i // 2 - (i + 1) % 4), j]
                C[2, i, j] = square[j, (i + j) // 3 + j - j]
        for q in T.Parallel(512):
            x = q // 4 + (q + q - q) - q // 4
            D[0, q] = A[q // 4 + q - q // 4]
            D[1, q] = A[x]
            if q // 4 + q < q // 4 + 200:
                D[2, q] = x


@program(targets=["llvm", "metal", "sm_80", "gpu"], fast=["metal"])
def indices_that_wrap(A: int32[3, 128], B: float32[128]):
    """Indices wrap in narrow integers, whether their values are known or not."""
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((512,), "float32")
        tx = T.get_thread_binding()
        for i in T.serial(4):
            tile[tx * 4 + i] = tx * 4 + i
        for i in T.unroll(2):
            A[i, tx] = T.int32(T.uint8(i * 400)) - T.int32(T.int8(i * 400))
        A[2, tx] = T.int32(T.int8(tx * 3))
        B[tx] = tile[T.int32(T.uint8(tx * 4))]


@program(
    tags={"pipelined"},
    parameters={"stages": [0, 2, 3]},
    examples="stages",
    expects={"sm_80": ["not for (int k"]},
    targets=["llvm", "metal", "sm_80", "gpu"],
    fast=["metal", "sm_80"],
)
def loop_of_one_iteration_with_a_start_of_its_own(A: float32[128, 128], C: float32[128, 128]):
    """Each block visits the tile on its diagonal in a loop, with a mask on its variable."""
    with T.Kernel(4, threads=64) as bx:
        tile = T.alloc_shared((32, 32), "float32")
        first = bx * 32 // 32
        for k in T.Pipelined(first, T.ceildiv((bx + 1) * 32, 32), num_stages=stages):
            T.copy(A[bx * 32, k * 32], tile)
            for i, j in T.Parallel(32, 32):
                tile[i, j] = T.if_then_else(bx * 32 + i >= k * 32 + j, tile[i, j], 0)
            T.copy(tile, C[bx * 32, k * 32])


@program(tags={"pipelined"}, targets=["llvm", "metal", "sm_90a", "gpu"], fast=["sm_90a"])
def loop_of_no_iterations_over_a_swizzled_tile(
    A: float16[64, 128], B: float16[16, 64], C: float32[128, 64], D: float16[128, 64]
):
    """TVM divided by zero where it flattened the places of elements that lie anywhere."""
    with T.Kernel(1, 1, threads=32) as (bx, by):
        a = T.alloc_shared((16, 128), "float16")
        b = T.alloc_shared((16, 64), "float16")
        c = T.alloc_fragment((128, 64), "float32")
        T.clear(c)
        T.copy(B, b)
        for k in T.Pipelined(2, 2 + by, num_stages=2):
            T.copy(A[k * 16, 0], a)
            for i, j in T.Parallel(128, 64):
                D[i, j] = a[(j * 5) % 16, (j + 2) % 128]
            T.gemm(a, b, c, transpose_A=True)
        T.copy(c, C)


@program(targets=["llvm", "metal", "sm_80", "gpu"], fast=["metal"])
def places_that_are_named(
    A: int32[16, 32], B: float16[16, 32], C: int32[2, 16, 32], D: float16[16, 32]
):
    """A vector that is stored at a place which its lanes do not share."""
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((16, 32), "int32")
        halves = T.alloc_shared((16, 32), "float16")
        rows = T.alloc_shared((16,), "int32")
        for i in T.Parallel(16):
            rows[i] = 15 - i
        for i, j in T.Parallel(16, 32):
            x = T.if_then_else(j % 2 == 0, i, 15 - i)
            tile[x, j] = A[i, j] + x
        for i, j in T.Parallel(16, 32):
            y = T.Select(j < 6, rows[i], i)
            halves[y, j] = B[i, j] * T.cast(y, "float16")
        T.copy(tile, C[0, 0, 0])
        for i, j in T.Parallel(16, 32):
            z = T.if_then_else(i < 8, 7 - i, i)
            tile[z, j] = tile[z, j] + A[i, j]
        T.copy(tile, C[1, 0, 0])
        T.copy(halves, D)


@T.macro
def _tile(A, B, C, by, bx):
    a = T.alloc_shared((32, 32), "float16")
    b = T.alloc_shared((32, 32), "float16")
    c = T.alloc_fragment((32, 32), "float32")
    T.clear(c)
    for k in T.Pipelined(2, num_stages=2):
        T.copy(A[by * 32, k * 32], a)
        T.copy(B[k * 32, bx * 32], b)
        T.gemm(a, b, c)
    T.copy(c, C[by * 32, bx * 32])


ORDERS = ["swizzle", "persistent", "by hand"]


@program(
    parameters={"order": ORDERS},
    examples="order",
    sizes=[{"m": 1, "n": 32}, {"m": 65, "n": 100}, {"m": 160, "n": 100}],
    targets=["llvm", "metal", "sm_90a", "gpu"],
)
def product_whose_tiles_come_in_an_order(A: float16[m, 64], B: float16[64, n], C: float16[m, n]):
    """Places are quotients of numbers of the call, which are computed once."""
    if order == "persistent":
        with T.Kernel(3, threads=64) as pid:
            for by, bx in T.Persistent([T.ceildiv(m, 32), T.ceildiv(n, 32)], 3, pid):
                _tile(A, B, C, by, bx)
    elif order == "by hand":
        with T.Kernel(T.ceildiv(m, 32) * T.ceildiv(n, 32), threads=64) as pid:
            y = pid // T.ceildiv(n, 32)
            x = pid % T.ceildiv(n, 32)
            _tile(A, B, C, y, x)
    else:
        with T.Kernel(T.ceildiv(n, 32), T.ceildiv(m, 32), threads=64) as (x, y):
            T.use_swizzle(2)
            _tile(A, B, C, y, x)


@program(
    inputs={"S": [1.0, 2.0, 4.0, -8.0]},
    expects={"sm_90a": ["blockIdx.x) - 2)"]},
    targets=["llvm", "metal", "sm_90a", "gpu"],
    fast=["metal"],
)
def names_of_choices_and_quotients(S: float32[4], A: float32[4, 8], C: int32[32, 8], E: float32[8]):
    """A float times what has a range; choices between names of choices; a value with names in it."""
    with T.Kernel(4, threads=32) as bx:
        x = T.alloc_fragment((8, 8), "int32")
        last = T.if_then_else(bx < 2, bx, bx - 2)
        is_last = T.if_then_else(last == 1, 1, 0)
        for i, j in T.Parallel(8, 8):
            allowed = T.if_then_else(is_last == 1, T.if_then_else(i // 2 == j // 2, 3, 4), last)
            x[i, j] = T.if_then_else(allowed > 2, allowed * 2, allowed - 1)
        T.copy(x, C[bx * 8, 0])
        first = S[bx]
        for i in T.Parallel(8):
            product = first * (i + 1)
            quotient = T.if_then_else(i < 4, 1.0, 2.0) / first
            A[bx, i] = product + quotient
        if bx == 0:
            for i in T.Parallel(8):
                power = T.exp(T.min(T.float32(3), T.float32(2)))
                E[i] = T.if_then_else(T.cast(power, "int32") > 1, power, power * 2)


@program()
def names_that_are_keywords_of_metal(
    device: float32[40], constant: float32[40], operator: T.float32
):
    with T.Kernel(1, threads=32) as thread:
        new = T.alloc_fragment((40,), "float32")
        threadgroup = T.alloc_shared((40,), "float32")
        T.copy(device, threadgroup)
        for half in T.Parallel(40):
            this = threadgroup[39 - half] * 2
            new[half] = this + operator
        T.copy(new, constant)


@program(inputs={"uint2": lambda rng, shape: np.arange(64)}, fast=["metal"])
def names_that_types_and_functions_of_metal_have(
    uint2: int8[64], select: int8[64], sqrt: float32[64], exp: T.float32
):
    """Variables have names that would mean types and functions in the generated source."""
    with T.Kernel(1, threads=32) as max:
        uint4 = T.alloc_shared((64,), "int8")
        float2 = T.alloc_fragment((64,), "int8")
        T.copy(uint2, uint4)
        for as_type in T.Parallel(64):
            min = T.cast(uint4[as_type], "int32") + max
            float2[as_type] = T.cast(T.min(min, 100), "int8") // T.int8(3)
            sqrt[as_type] = T.exp(exp)
        T.copy(float2, select)


@program(inputs={"A": lambda rng, shape: rng.integers(-16, 17, shape) / 4}, targets=["llvm"])
def indices_that_wrap_where_a_strided_one_does(A: float32[5, 32], B: float32[5, 32]):
    """LLVM 22 read a whole group of strided elements, and so on behind the row, with AVX-512."""
    with T.Kernel(1, threads=32):
        a = T.alloc_shared((5, 32), "float32")
        T.copy(A, a)
        for i, j in T.Parallel(5, 32):
            B[i, j] = T.if_then_else(
                a[(i + 1) % 5, (j * 3) % 32] <= 3, a[i, j], a[i, (j * 3 + 1) % 32]
            )


@program(
    inputs={
        "A": lambda rng, shape: rng.integers(-4, 5, shape),
        "B": lambda rng, shape: rng.integers(0, 8, shape),
    },
    targets=["llvm"],
)
def indices_whose_remainder_is_not_lost(A: float32[64, 48], B: uint8[34, 64], C: int32[34, 64]):
    """LLVM 22 read behind the row at its third level, for CPUs with AVX-512."""
    with T.Kernel(2, 1, threads=32) as (bx, by):
        tile = T.alloc_shared((32, 16), "int8")
        sums = T.alloc_fragment((64, 32), "int8")
        for k in T.Pipelined(3, num_stages=2):
            T.copy(A[bx, k], tile)
        for i, j in T.Parallel(64, 32):
            sums[i, j] = T.cast(
                T.cast(B[i, bx], "int32") + T.cast(tile[i % 32, j * 5 % 16], "int32"), "int8"
            )
        T.copy(sums, C[by, bx * 32])


@program(sizes=[{"m": 5}, {"m": 64}, {"m": 1}], fast=["metal"])
def rows_from_the_last_one_on(A: float32[m, 64], C: float32[m, 64]):
    with T.Kernel(m, threads=64) as bx:
        for i in T.Parallel(64):
            C[bx, i] = A[m - 1 - bx, i]


@program(targets=["llvm", "metal", "sm_80", "gpu"], fast=["metal"])
def indices_that_a_condition_keeps_inside(A: int32[6], B: int32[3, 6]):
    """The second operand of `and` and `or` is evaluated where the first one does not decide."""
    with T.Kernel(1, threads=32):
        own = T.alloc_local((6,), "int32")
        for k in T.serial(6):
            own[k] = A[k]
        for k in T.unroll(6):
            B[0, k] = T.if_then_else(k < 5, own[k + 1], -1)
            B[1, k] = 0
            if k != 0 and own[k - 1] > 0:
                B[1, k] = own[k]
            B[2, k] = 0
            if k == 5 or own[k + 1] > own[k]:
                B[2, k] = 1
