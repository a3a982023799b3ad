"""Places of tiles and elements: in which dtype, beside what, and in how much memory."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

SHARING = ["one after the other", "side by side", "in a loop", "of some threads"]
HALF = 4096  # float32 elements: 16 KB, half of what a threadgroup of Metal has


@program(
    parameters={"with_product": [False, True]},
    examples="with_product",
    counts=lambda p: {
        "metal": f"threadgroup_memory <= {2 * 64 * 72 * 2}"
        if p.with_product
        else f"threadgroup_memory == {64 * 64 * 2}"
    },
    fast=["metal"],
)
def tile_that_moves_as_words(A: float16[64, 64], C: float16[64, 64]):
    """A tile takes the bytes it has; accesses of a loop that never runs do not count."""
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((64, 64), "float16")
        T.copy(A, tile)
        if with_product:
            other = T.alloc_shared((64, 64), "float16")
            sums = T.alloc_fragment((64, 64), "float32")
            T.clear(sums)
            for k in T.serial(2, 2):
                T.copy(A, other)
                T.gemm(tile, other, sums)
        T.copy(tile, C)


@program(counts={"metal": "threadgroup_memory == 12288 * 2"})
def tiles_that_share_memory_that_moves_as_words(
    A: float16[12288], B: float16[12288], C: float16[12288]
):
    """The memory that tiles share has room for all of one."""
    with T.Kernel(1, threads=128):
        x, y = T.alloc_shared((12288,), "float16"), T.alloc_shared((12288,), "float16")
        for i in T.Parallel(12288):
            x[12287 - i] = A[i]
        for i in T.Parallel(12288):
            C[i] = x[i * 5 % 12288]
        for i in T.Parallel(12288):
            y[12287 - i] = B[i]
        for i in T.Parallel(12288):
            C[i] += y[i * 5 % 12288]


@program(parameters={"kind": SHARING}, examples="kind", targets=["llvm", "metal"], fast=["metal"])
def tiles_that_share_memory_for_want_of_room(A: float32[4, 6144], C: float32[4, 6144]):
    """Tiles wait for each other; what threads can't wait for lies apart."""
    with T.Kernel(1, threads=128):
        if kind == "one after the other":
            first = T.alloc_shared((HALF,), "float32")
            second = T.alloc_shared((HALF,), "float32")
            third = T.alloc_shared((HALF,), "float32")
            T.copy(A[0, 0:HALF], first)
            T.copy(A[1, 0:HALF], second)
            for i in T.Parallel(HALF):
                C[0, i] = first[HALF - 1 - i] + second[i]
            T.copy(A[2, 0:HALF], third)
            for i in T.Parallel(HALF):
                C[2, i] = third[HALF - 1 - i]
                C[1, i] = second[HALF - 1 - i]
        elif kind == "side by side":
            first = T.alloc_shared((HALF,), "float32")
            second = T.alloc_shared((HALF,), "float32")
            both = T.alloc_shared((2 * HALF,), "float32")
            total = T.alloc_fragment((2, HALF), "float32")
            T.copy(A[0, 0:HALF], first)
            T.copy(A[1, 0:HALF], second)
            for i, j in T.Parallel(2, HALF):
                total[i, j] = first[HALF - 1 - j] - second[HALF - 1 - j] * (i * 2)
            for i, j in T.Parallel(2, HALF):
                both[i * HALF + j] = total[i, j]
            for i, j in T.Parallel(2, HALF):
                C[i, j] = both[2 * HALF - 1 - i * HALF - j]
        elif kind == "in a loop":  # each is written anew in each iteration
            keys = T.alloc_shared((6144,), "float32")
            values = T.alloc_shared((6144,), "float32")
            for k in T.serial(2):
                T.copy(A[2 * k, :], keys)
                for i in T.Parallel(6144):
                    C[2 * k, i] = keys[6143 - i]
                T.copy(A[2 * k + 1, :], values)
                for i in T.Parallel(6144):
                    C[2 * k + 1, i] = values[6143 - i]
        else:  # half of the threads use two more, and don't wait in between
            first = T.alloc_shared((HALF,), "float32")
            second = T.alloc_shared((48, 64), "float32")
            third = T.alloc_shared((48, 64), "float32")
            T.copy(A[0, 0:HALF], first)
            for i in T.Parallel(HALF):
                C[0, i] = first[HALF - 1 - i]
            for i in T.Parallel(64):
                second[0, i] = A[1, i]
                C[1, i] = second[0, i]
                third[0, 63 - i] = A[1, 64 + i]
                C[1, i] = C[1, i] - third[0, 63 - i]


@program(
    parameters={"dtype": ["float16", "float32"]},
    expects={"metal": ["[[ buffer(1) ]]", "not [[ buffer(2) ]]"]},
)
def tensor_that_moves_as_vectors_and_elements(A: dtype[3, 128], B: dtype[3, 128]):
    """A tensor is one argument, however it moves."""
    with T.Kernel(3, threads=32) as row:
        tile = T.alloc_fragment((128,), dtype)
        for i in T.Parallel(128):
            tile[i] = A[row, 127 - i] + B[row, i]
        T.copy(tile, A[row, 0])


@program(
    sizes=[{"m": 37, "n": 131}, {"m": 1, "n": 1}],
    expects={
        "sm_90a": ["(int64_t)", "not (int64_t)((int)blockIdx"],
        "metal": ["(long)", "not (long)((int)blockIdx"],
    },
    fast=["metal"],
)
def elements_of_a_tensor_of_any_size(A: float32[m, n], B: float32[m, n]):
    """Addresses are computed in 64 bits, from the row and the column in 32."""
    with T.Kernel(T.ceildiv(n, 64), T.ceildiv(m, 8), threads=128) as (bx, by):
        for i, j in T.Parallel(8, 64):
            B[by * 8 + i, bx * 64 + j] = A[by * 8 + i, bx * 64 + j] * 2


@program(sizes=[{"m": 700}, {"m": 1}], expects={"sm_90a": ["(int64_t)"]})
def neighbours_in_one_row_of_a_large_tensor(A: float32[m, 3], B: float32[m, 3]):
    """Rows of three do not consist of vectors, the tensor as one row does."""
    with T.Kernel(T.ceildiv(m, 256), threads=64) as bx:
        tile = T.alloc_shared((256, 3), "float32")
        T.copy(A[bx * 256, 0], tile)
        T.copy(tile, B[bx * 256, 0])


@program(sizes=[{"m": 300}, {"m": 1}], expects={"sm_90a": ["not int64_t)"]})
def elements_of_one_axis_of_any_extent(A: float32[m]):
    """The extent fits in 31 bits."""
    with T.Kernel(T.ceildiv(m, 128), threads=128) as bx:
        for i in T.Parallel(128):
            A[bx * 128 + i] += 1


@program(parameters={"loop": ["while", "for"]}, examples="loop", targets=["llvm"])
def memory_of_loops_that_are_left(A: float16[32, 32], C: float32[4, 32, 32]):
    """TVM's pool gets the memory back in which a product packs an operand."""
    with T.Kernel(4, threads=64) as bx:
        a = T.alloc_shared((32, 32), "float16")
        c = T.alloc_fragment((32, 32), "float32")
        T.clear(c)
        if loop == "while":
            n = T.alloc_var("int32", init=0)
            while n < bx:
                T.copy(A, a)
                T.gemm(a, a, c)
                n = n + 1
        else:
            for n in T.serial(4):
                if n >= bx:
                    break
                T.copy(A, a)
                T.gemm(a, a, c)
                if n + 1 >= bx:
                    break
        T.copy(c, C[bx, 0, 0])


@program(
    parameters={"dtype": ["float16", "bfloat16"]},
    examples="dtype",
    targets=["sm_80", "gpu"],
    fast=["gpu"],
)
def constants_alone_of_a_dtype(B: float32[64]):
    """CUDA's compiler needs the header all the same."""
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            B[i] = T.cast(getattr(T, dtype)(2) / T.abs(getattr(T, dtype)(4)), "float32")


@program(
    inputs={"places": lambda rng, shape: rng.integers(-20, 90, shape), "S": [1.0, 2.5, 3.0, -4.0]},
    sizes=[{"m": 45}, {"m": 64}],
    fast=["metal"],
)
def elements_under_guards(
    A: float32[70],
    places: int32[100],
    S: float32[4],
    R: float32[m, 64],
    V: float32[32, 16],
    B: float32[3, 100],
    C: float32[m],
    D: float32[8],
    E: float32[64],
    F: float32[9],
    G: float16[32, 16],
):
    # By names, by what memory holds, by floats, under a condition of the user's.
    with T.Kernel(4, threads=32) as bx:
        for i in T.Parallel(32):
            here = bx * 32 + i
            there = here + 3
            B[0, here] = A[there] + 1
        for i in T.Parallel(32):
            B[1, bx * 32 + i] = A[places[bx * 32 + i]]
        for i in T.Parallel(32):
            if bx * 32 + i < 100:
                B[2, bx * 32 + i] = B[2, bx * 32 + i] * 2
        if bx == 0:
            for k in T.serial(4):
                first = S[k]
                for i in T.Parallel(2):
                    D[2 * k + i] = A[T.cast(first * (i + 64), "int32")]
    # What stands around the innermost loop is done once, whether that has guards or not.
    with T.Kernel(T.ceildiv(m, 32), threads=32) as bx:
        total, sums = T.alloc_fragment((32,), "float32"), T.alloc_fragment((64,), "float32")
        for i in T.Parallel(32):
            total[i] = C[bx * 32 + i]
        for k in T.serial(64):
            for i in T.Parallel(32):
                total[i] += R[bx * 32 + i, k]
        for i in T.Parallel(32):
            C[bx * 32 + i] = total[i]
        if bx == 0:
            T.clear(sums)
            for j in T.Parallel(64):
                for row in T.serial(70):
                    sums[j] += R[row, j]
            T.copy(sums, E)
    # A name keeps the value that a variable had; a condition holds until it changes.
    with T.Kernel(1, threads=32):
        v = T.alloc_var("int32", 68)
        start = v
        v = 0
        for i in T.Parallel(4):
            F[i] = A[start + i]
        w = T.alloc_var("int32", 63)
        if w < 64:
            w = w + 4
            for i in T.Parallel(4):
                F[4 + i] = A[w + i]
            if w < 64:
                F[8] = 1
            else:
                F[8] = 2
    # A thread reads eight neighbours of a tile that is written as vectors.
    with T.Kernel(1, threads=64):
        tile, result = T.alloc_shared((32, 16), "float32"), T.alloc_fragment((32, 16), "float16")
        T.copy(V, tile)
        for i, j in T.Parallel(32, 16):
            result[i, j] = T.if_then_else(tile[i, j] > 0, T.float32(1), tile[i, j])
        T.copy(result, G)
