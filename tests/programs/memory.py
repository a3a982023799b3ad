"""Where tiles and elements lie: in which dtype, beside what, and in how much memory."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

HALF = 4096  # float32 elements: 16 KB, half of what a threadgroup of Metal has


@program(
    tags={"memory"},
    parameters={"with_product": [False, True]},
    examples=[{}, {"with_product": True}],
    counts=lambda p: {
        "metal": f"threadgroup_memory <= {2 * 64 * 72 * 2}"
        if p.with_product
        else f"threadgroup_memory == {64 * 64 * 2}"
    },
    fast=["metal"],
)
def tile_that_moves_as_words(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")):
    """It takes the bytes that it has; what a loop would access that never runs does not count."""
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


@program(tags={"memory"}, counts={"metal": "threadgroup_memory == 12288 * 2"})
def tiles_that_share_memory_that_moves_as_words(
    A: T.Tensor((12288,), "float16"),
    B: T.Tensor((12288,), "float16"),
    C: T.Tensor((12288,), "float16"),
):
    """There is room for all of a tile."""
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


@program(
    tags={"memory"},
    parameters={"kind": ["one after the other", "side by side", "in a loop", "of some threads"]},
    examples=[
        {"kind": kind}
        for kind in ("one after the other", "side by side", "in a loop", "of some threads")
    ],
    targets=["llvm", "metal"],
    fast=["metal"],
)
def tiles_that_share_memory_for_want_of_room(
    A: T.Tensor((4, 6144), "float32"), C: T.Tensor((4, 6144), "float32")
):
    """They wait for each other; what threads can't wait for lies apart."""
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
    tags={"memory"},
    parameters={"dtype": ["float16", "float32"]},
    expects={"metal": ["[[ buffer(1) ]]", "not [[ buffer(2) ]]"]},
)
def tensor_that_moves_as_vectors_and_elements(
    A: T.Tensor((3, 128), dtype), B: T.Tensor((3, 128), dtype)
):
    """It is one argument."""
    with T.Kernel(3, threads=32) as row:
        tile = T.alloc_fragment((128,), dtype)
        for i in T.Parallel(128):
            tile[i] = A[row, 127 - i] + B[row, i]
        T.copy(tile, A[row, 0])


@program(
    tags={"memory"},
    sizes=[{"m": 37, "n": 131}, {"m": 1, "n": 1}],
    expects={
        "sm_90a": ["(int64_t)", "not (int64_t)((int)blockIdx"],
        "metal": ["(long)", "not (long)((int)blockIdx"],
    },
    fast=["metal"],
)
def elements_of_a_tensor_of_any_size(
    A: T.Tensor((m, n), "float32"), B: T.Tensor((m, n), "float32")
):
    """Where they lie is computed in 64 bits, from the row and the column in 32."""
    with T.Kernel(T.ceildiv(n, 64), T.ceildiv(m, 8), threads=128) as (bx, by):
        for i, j in T.Parallel(8, 64):
            B[by * 8 + i, bx * 64 + j] = A[by * 8 + i, bx * 64 + j] * 2


@program(
    tags={"memory"},
    sizes=[{"m": 700}, {"m": 1}],
    expects={"sm_90a": ["(int64_t)"]},
)
def neighbours_in_one_row_of_a_large_tensor(
    A: T.Tensor((m, 3), "float32"), B: T.Tensor((m, 3), "float32")
):
    """Rows of three do not consist of vectors, the tensor as one row does."""
    with T.Kernel(T.ceildiv(m, 256), threads=64) as bx:
        tile = T.alloc_shared((256, 3), "float32")
        T.copy(A[bx * 256, 0], tile)
        T.copy(tile, B[bx * 256, 0])


@program(tags={"memory"}, sizes=[{"m": 300}, {"m": 1}], expects={"sm_90a": ["not int64_t)"]})
def elements_of_one_axis_of_any_extent(A: T.Tensor((m,), "float32")):
    """31 bits hold it."""
    with T.Kernel(T.ceildiv(m, 128), threads=128) as bx:
        for i in T.Parallel(128):
            A[bx * 128 + i] += 1


@program(
    tags={"memory", "gemm"},
    parameters={"loop": ["while", "for"]},
    examples=[{}, {"loop": "for"}],
    targets=["llvm"],
)
def memory_of_loops_that_are_left(
    A: T.Tensor((32, 32), "float16"), C: T.Tensor((4, 32, 32), "float32")
):
    """TVM's pool gets it back: a product packs an operand."""
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
    tags={"memory"},
    inputs={
        "I": lambda rng, shape: rng.integers(-20, 90, shape),
        "S": lambda rng, shape: [1.0, 2.5, 3.0, -4.0],
    },
)
def elements_that_may_lie_outside(
    A: T.Tensor((70,), "float32"),
    I: T.Tensor((100,), "int32"),
    S: T.Tensor((4,), "float32"),
    B: T.Tensor((100,), "float32"),
    C: T.Tensor((100,), "float32"),
    D: T.Tensor((8,), "float32"),
    E: T.Tensor((100,), "float32"),
):
    """By names, by what memory holds, by floats, under a condition of the user's."""
    with T.Kernel(4, threads=32) as bx:
        for i in T.Parallel(32):
            here = bx * 32 + i
            there = here + 3
            B[here] = A[there] + 1
        for i in T.Parallel(32):
            C[bx * 32 + i] = A[I[bx * 32 + i]]
        for i in T.Parallel(32):
            if bx * 32 + i < 100:
                E[bx * 32 + i] = E[bx * 32 + i] * 2
        if bx == 0:
            for k in T.serial(4):
                first = S[k]
                for i in T.Parallel(2):
                    D[2 * k + i] = A[T.cast(first * (i + 64), "int32")]


@program(tags={"memory"}, sizes=[{"m": 45}, {"m": 64}])
def rows_that_may_lie_outside(
    A: T.Tensor((m, 64), "float32"), C: T.Tensor((m,), "float32"), D: T.Tensor((64,), "float32")
):
    """What stands around the innermost loop is done once, whether that has guards or not."""
    with T.Kernel(T.ceildiv(m, 32), threads=32) as bx:
        total = T.alloc_fragment((32,), "float32")
        for i in T.Parallel(32):
            total[i] = C[bx * 32 + i]
        for k in T.serial(64):
            for i in T.Parallel(32):
                total[i] += A[bx * 32 + i, k]
        for i in T.Parallel(32):
            C[bx * 32 + i] = total[i]
        if bx == 0:
            sums = T.alloc_fragment((64,), "float32")
            T.clear(sums)
            for j in T.Parallel(64):
                for row in T.serial(70):
                    sums[j] += A[row, j]
            T.copy(sums, D)


@program(tags={"memory"})
def elements_at_places_of_a_variable(
    A: T.Tensor((8,), "float32"), B: T.Tensor((4,), "float32"), C: T.Tensor((5,), "float32")
):
    """A name keeps the value that it had; a condition holds until it changes."""
    with T.Kernel(1, threads=32):
        v = T.alloc_var("int32", 6)
        start = v
        v = 0
        for i in T.Parallel(4):
            B[i] = A[start + i]
        w = T.alloc_var("int32", 3)
        if w < 4:
            w = w + 4
            for i in T.Parallel(4):
                C[i] = A[w + i]
            if w < 4:
                C[4] = 1
            else:
                C[4] = 2


@program(tags={"memory"}, targets=["llvm", "metal", "sm_80", "gpu"], fast=["metal"])
def elements_of_vectors_one_by_one(
    A: T.Tensor((32, 16), "float32"), C: T.Tensor((32, 16), "float16")
):
    """A thread reads eight neighbours of a tile that is written as vectors."""
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((32, 16), "float32")
        result = T.alloc_fragment((32, 16), "float16")
        T.copy(A, tile)
        for i, j in T.Parallel(32, 16):
            result[i, j] = T.if_then_else(tile[i, j] > 0, T.float32(1), tile[i, j])
        T.copy(result, C)


@program(
    tags={"memory", "gemm"},
    parameters={
        "kind": [
            ("int32", "alloc_fragment"),
            ("float32", "alloc_fragment"),
            ("int32", "alloc_shared"),
            ("float32", "alloc_shared"),
        ]
    },
    examples=[{}, {"kind": ("float32", "alloc_shared")}],
    targets=["llvm", "metal"],
)
def products_of_words(
    A: T.Tensor((32, 64), kind[0]), B: T.Tensor((64, 32), kind[0]), C: T.Tensor((32, 32), kind[0])
):
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((32, 32), kind[0])
        b = T.alloc_shared((32, 32), kind[0])
        c = getattr(T, kind[1])((32, 32), kind[0])
        T.clear(c)
        for k in T.Pipelined(2, num_stages=0):
            T.copy(A[0, k * 32], a)
            T.copy(B[k * 32, 0], b)
            T.gemm(a, b, c)
        T.copy(c, C)


@program(
    tags={"memory"},
    parameters={"dtype": ["float16", "bfloat16"]},
    examples=[{}, {"dtype": "bfloat16"}],
    targets=["sm_80", "gpu"],
    fast=["gpu"],
)
def constants_alone_of_a_dtype(B: T.Tensor((64,), "float32")):
    """CUDA's compiler needs the header all the same."""
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            B[i] = T.cast(getattr(T, dtype)(2) / T.abs(getattr(T, dtype)(4)), "float32")
