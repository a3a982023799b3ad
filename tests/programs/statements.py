"""The meaning of statements: branches, loops and how they are left, stores that meet, indices."""

from __future__ import annotations

import math

import tvmtile.language as T
from tests.programs import program

LEFT = ["repeated", "in branches", "a serial loop", "T.unroll", "T.vectorized"]


@program(parameters={"form": LEFT, "threads": [32, 64, 128]}, examples="form", fast=["metal"])
def iterations_that_are_left(X: int32[64], Y: int32[64]):
    with T.Kernel(1, threads=threads):
        if form == "repeated":
            for _ in T.serial(3):
                for i in T.Parallel(64):
                    if X[i] > 0:
                        continue
                    Y[i] += 1
        for i in T.Parallel(64):
            if form == "in branches":
                if X[i] > 0:
                    if X[i] % 2 == 0:
                        if X[i] % 4 == 0:
                            continue
                        Y[i] += 1
                    else:
                        continue
                    Y[i] += 10
            elif form == "a serial loop":
                for k in T.serial(4):
                    if X[i] > 0 and k % 2 == 0:
                        continue
                    Y[i] += 1
            elif form != "repeated":
                for k in T.unroll(4) if form == "T.unroll" else T.vectorized(4):
                    if X[i] > 0:
                        if k > 1:
                            break
                    elif k == 0:
                        continue
                    Y[i] += 1
            Y[i] += 100


@program(parameters={"N": [0, 2], "count": ["uint8", "int64"]}, fast=["metal"])
def extents_of_0_and_no_axes(
    A: float32[N, 4],
    S: int32[N],
    X: float32[64],
    factor: T.Tensor((), "float32"),
    Y: float32[64],
    Z: float32[N, 4],
    total: T.Tensor((), "float32"),
    counts: T.Tensor((2,), count),
    R: float32[7],
):
    """A tile without elements, a loop without iterations; what no condition lets in is no access."""
    with T.Kernel(1, threads=64) as bx:
        rows, columns = T.alloc_shared((N, 4), "float32"), T.alloc_fragment((4,), "float32")
        scale, one = T.alloc_shared((), "float32"), T.alloc_fragment((), "float32")
        T.copy(A, rows)
        T.copy(rows, Z)
        T.reduce_sum(rows, columns, dim=0)
        T.copy(factor, scale)
        T.copy(scale, one)
        for i in T.Parallel(64):
            Y[i] = T.if_then_else(N > 2, S[2], X[i] * factor[()]) + T.if_then_else(i < N, S[i], 0)
        for i in T.serial(N):
            rows[1, 0] = S[i]
        for i in T.Parallel(4):
            R[i] = columns[i]
        R[4] = 0
        for n in T.serial(counts[0] % 4):
            R[4] += n
        for i, j in T.Persistent([N, 3], 1, bx):
            R[6] = 1
        R[5] = scale[()]
        T.copy(one, total)
    with T.Kernel(T.ceildiv(N, 2), threads=32) as bx:
        tile = T.alloc_shared((2, 4), "float32")
        T.copy(A[bx * 2, 0], tile)
        A[1, 3] = tile[0, 0] + A[0, 0]


@program(inputs={"N": [11, 6, 7, 0, 3, -2, 100], "X": [3, 0, 4, -1, 5, 5]}, fast=["metal"])
def branches_and_loops(N: int32[7], X: int32[6], C: int32[7, 32]):
    """A block decides when it runs what it does, and in which iterations."""
    with T.Kernel(7) as bx:
        n = N[bx]
        T.fill(C[bx, :], -1)
        if n > 10:
            C[bx, 0] = 1
        elif n > 5 and n != 7:
            C[bx, 0] = 2
        elif n == 7 or not n > 0:
            C[bx, 0] = 3
        else:
            C[bx, 0] = 4
        if n:
            C[bx, 1] = 1
        flag = n > 2 and n < 9
        C[bx, 2] = T.if_then_else(flag, 1, 0)
        C[bx, 3] = 10 if n > 2 else 20
        C[bx, 4] = n if 0 < n < 7 else -n
        for i in range(5, 7):
            C[bx, i] = i * 10
        for i in range(7, 12, 3):
            C[bx, i] = i
        for i in range(15, 12, -1):
            C[bx, i] = 20 - i
        for i in range(5, 5):
            C[bx, i] = 99
        for i in range(6):
            if X[i] == 0:
                continue
            if X[i] < 0:
                break
            C[bx, 16 + i] = X[i]
        for i in range(8):
            if i < 6 and X[i] > 0:
                C[bx, 22 + i] = X[i]
        step, total = T.alloc_var("int32", 0), T.alloc_var("int32", 0)
        while step < n:
            step += 1
            if step == 2:
                continue
            if step > 5:
                break
            x = step * 2
            x -= 5
            total += x
        x = step
        C[bx, 30] = total
        C[bx, 31] = x


@program(
    inputs={
        "P": [0, 5, 7, 1 << 30, 4, 3, 1 << 29, 1],
        "V": lambda rng, shape: rng.integers(0, 14, shape),
        "places": lambda rng, shape: [-1, 0, 7, 8, -8, 2**31 - 200, -(2**31) + 100, 3] * 8,
        "ends": lambda rng, shape: [2**31 - 1, -(2**31), 7, 8] * 16,
    },
    fast=["metal", "sm_90a"],
)
def statements(
    A: float32[3, 16],
    X: float32[64],
    P: int32[8],
    V: int32[4, 128],
    places: int32[64],
    ends: int32[64],
    B: float32[3],
    N: int32[6, 4, 10],
    Y: float32[5, 64],
    D: float32[4, 8, 8],
    R: int32[2, 8],
    F: int32[8],
    S: int32[3, 8],
    O: float32[3, 64],
):
    # A fragment in parallel and serial loops.
    with T.Kernel(3, threads=64) as bx:
        f = T.alloc_fragment((16,), "float32")
        T.clear(f)
        for k in T.serial(3):
            for i in T.Parallel(16):
                f[i] += A[bx, i] * k
        most, total = T.alloc_local((1,), "float32"), T.alloc_local((1,), "float32")
        most[0] = f[0]
        for c in range(1, 16):
            most[0] = T.max(most[0], f[c])
        total[0] = 0
        for c in range(16):
            total[0] += T.abs(f[c] - most[0])
        B[bx] = total[0]
    # Parallel loops in each other are one nest.
    with T.Kernel(1, threads=64):
        for i in T.Parallel(6):
            for j in T.Parallel(4):
                for k in T.Parallel(10):
                    N[i, j, k] = i * 100 + j * 10 + k
    # Copies within a buffer: all is read before something is written.
    with T.Kernel(1, threads=64):
        shared, own = T.alloc_shared((64,), "float32"), T.alloc_fragment((64,), "float32")
        T.copy(X, shared)
        T.copy(X, own)
        T.copy(shared[0:32], shared[16:48])
        T.copy(shared, Y[0, :])
        T.copy(own[16:48], own[0:32])
        T.copy(own, Y[1, :])
        for k in range(3):
            T.copy(shared[k : k + 32], shared[k + 1 : k + 33])
        T.copy(shared, Y[2, :])
        rows = T.view(shared, (16, 4), "float32")
        others = T.view(shared, (16, 4), "float32")
        T.copy(rows[0:8, :], others[4:12, :])
        T.copy(shared, Y[3, :])
        T.copy(Y[3, 0:32], Y[3, 5:37])
    # Iterations of vectors that depend on each other run in order.
    with T.Kernel(1, threads=32):
        summed = T.alloc_local((1,), "float32")
        for r in range(8):
            summed[0] = 0
            for k in T.vectorized(4):
                summed[0] += X[r * 4 + k]
            D[0, r, 0] = summed[0]
        for r in T.Parallel(8):
            private = T.alloc_var("float32", init=0)
            for k in T.vectorized(4):
                private += X[r * 4 + k]
            D[3, r, 0] = private
            for k in T.vectorized(4):
                place = k + 1
                D[1, r, place] = D[1, r, k] + X[r * 4 + k]
            for k in T.vectorized(4):
                D[2, r, k] = X[r * 4 + k]
                D[2, r, k + 4] = D[2, r, k] + 1
                D[2, r, k + 2] += 1
    # Right sides of `and` and `or` are read where the left one leaves it open.
    with T.Kernel(1, threads=32):
        s = T.alloc_shared((8,), "float32")
        T.copy(X[0:8], s)
        for i in T.Parallel(8):
            R[0, i] = 0
            R[1, i] = 0
            if P[i] < 8 and s[P[i]] > 0:
                R[0, i] = 1
            if P[i] >= 8 or s[P[i]] > 0:
                R[1, i] = 1
    # Stores of several iterations and blocks: the last statement and iteration around wins.
    with T.Kernel(2, threads=64) as bx:
        found, known = T.alloc_shared((8,), "int32"), T.alloc_fragment((8,), "int32")
        T.fill(found, -1)
        T.fill(known, -1)
        for k in T.serial(4):
            for i in T.Parallel(128):
                if V[k, i] < 8:
                    found[V[k, i]] = k
                    known[V[k, i]] = 2 * k
                    S[2, V[k, i]] = V[k, i] + 1
        for i in T.Parallel(128):
            if V[0, i] < 4:
                found[V[0, i]] = -2
            if V[bx, i] < 8:
                F[V[bx, i]] = 1
        if bx == 0:
            T.copy(found, S[0, 0])
            T.copy(known, S[1, 0])
    # Negative indices do not count from the end: they are outside, too.
    with T.Kernel(1, threads=64):
        square = T.view(X, (8, 8))
        for i in T.Parallel(64):
            O[0, i] = square[places[i], 1]
            O[2, i] = square[ends[i], 1]
        for i in T.Parallel(64):
            if i % 16 < 12:
                O[1, places[i] + i * 2 - 32] = i
        for k in T.serial(2):
            O[1, places[k] - 20] = 1


@program(
    parameters={"threads": [None, 32, 256]},
    examples=[{}, {"threads": 256}],
    inputs={"Y": lambda rng, shape: np.zeros(shape)},
    fast=["metal"],
)
def statements_once_a_block(X: int32[8], Y: int32[24]):
    """Statements that name no thread are done once a block."""
    with T.Kernel(4, threads=threads) as bx:
        Y[bx] += 1
        T.atomic_add(Y[4], 1)
        for i in T.serial(8):
            T.atomic_add(Y[5], X[i])
        total = T.alloc_fragment((1,), "int32")
        total[0] = 0
        for i in T.Parallel(8):
            total[0] += X[i]
        T.atomic_add(Y[6], total[0])
        before = T.alloc_var("int32")
        before = T.atomic_add(Y[7], 1, return_prev=True)
        Y[8 + before] = 7
        place = T.atomic_add(Y[12], 1, return_prev=True)
        Y[16 + place] = 9
        Y[20 + bx] = T.min(T.atomic_max(Y[13], 3, return_prev=True), 0) + 5


@program(
    parameters={"dtype": ["float32", "float16", "bfloat16", "float64"]},
    examples="dtype",
    inputs={"X": [math.nan, 1, -1, 0, -0.0, math.inf, -math.inf, 5] * 8},
    targets=lambda p: ["llvm", "sm_80", "gpu", *([] if p.dtype == "float64" else ["metal"])],
    fast=["metal", "sm_80"],
)
def conditions_of_numbers_that_are_none(X: dtype[64], Y: int32[10, 64]):
    """Floats are not ordered, as TVM's simplifier and its folding of constants take them to be."""
    with T.Kernel(1, threads=32):
        for i in T.Parallel(64):
            value = X[i]
            if value > 0:
                Y[0, i] = 1
            elif value <= 0:
                Y[0, i] = 2
            else:
                Y[0, i] = 3
            if not X[i] > 0:
                Y[1, i] = 1
            if X[i] > 0:
                pass
            else:
                Y[2, i] = 1
            if value != value:
                Y[3, i] = 1
            if X[i] == X[i]:
                Y[4, i] = 1
            if not (value > 0 or value < 0):
                Y[5, i] = 1
            Y[6, i] = T.if_then_else(T.Not(X[i] > X[0]), 1, 0)
            Y[7, i] = T.if_then_else(X[i] != X[i], 2, 0) + T.if_then_else(X[i] != X[1], 4, 0)
            Y[8, i] = T.if_then_else(T.cast(T.int32(3), "bool"), 1, 2)
            Y[8, i] += T.cast(T.cast(X[i], "bool"), "int32")
            Y[9, i] = T.cast(T.reinterpret(T.int32(0), "float32") + X[7], "int32")


@program(
    parameters={"count": [1 << 17]},
    inputs={"X": lambda rng, shape: np.arange(shape[0]) % 4, "Y": [1]},
    targets=["llvm", "metal", "gpu"],
    expects={"metal": ["for (int", "not (X_ptr + 8192"]},
    fast=["metal"],
)
def element_that_very_many_iterations_add_to(X: float32[count], Y: float32[1]):
    """The registers of a thread are no reason to write out thousands of iterations."""
    with T.Kernel(1, threads=32):
        total = T.alloc_fragment((1,), "float32")
        T.clear(total)
        for i in T.Parallel(count):
            total[0] += X[i]
        T.atomic_add(Y[0], total[0])
