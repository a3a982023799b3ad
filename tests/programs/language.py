"""The meaning of names, words and numbers of the language that other programs do not show."""

from __future__ import annotations

import numpy as np

import tvmtile.language as T
from tests.programs import program


@program(
    tags={"statements"},
    parameters={"dtype": ["int32", "float32", "uint64", "int64", "int8", "float16"]},
    examples=[{}, {"dtype": "uint64"}, {"dtype": "float16"}],
    inputs={
        "A": lambda rng, shape: [0, 3, 0, 1, 2, 0, 0, 7],
        "N": lambda rng, shape: [0, 3, 0, -1, 2, 1, 1000, 2**20],
    },
    fast=["metal"],
)
def numbers_as_conditions(A: dtype[8], N: int32[8], R: int32[5, 8]):
    """Numbers are true where they are not 0."""
    with T.Kernel(1):
        for i in T.serial(8):
            if A[i]:
                R[0, i] = 1
            elif A[(i + 1) % 8]:
                R[0, i] = 2
            else:
                R[0, i] = 3
            R[1, i] = 1 if A[i] else 2
            if A[i] and A[(i + 1) % 8]:
                R[1, i] += 10
            if A[i] or A[(i + 1) % 8]:
                R[1, i] += 100
            if not A[i]:
                R[1, i] += 1000
            left = T.alloc_var("int32", T.min(T.max(N[i], 0), 5))
            while left:
                left -= 1
                R[2, i] += 2
            n = T.alloc_var("int32", init=N[i])
            count = T.alloc_var("int32", init=0)
            while n > 1 and count < 30:
                n = n // 2
                count += 1
            R[3, i] = count


@program(
    tags={"threads"},
    parameters={
        "function": ["shfl_xor", "shfl_up", "shfl_down", "shfl_sync"],
        "threads": [64, 48, 128, 256],
        "width": [4, 32, 8, 16],
        "dtype": ["float32", "int64", "uint64", "float16", "bfloat16", "bool"],
    },
    examples=[
        {},
        {"function": "shfl_up", "dtype": "int64"},
        {"function": "shfl_down", "dtype": "uint64"},
        {"function": "shfl_sync", "dtype": "float16"},
        {"function": "shfl_down", "dtype": "bfloat16", "threads": 48},
        {"function": "shfl_up", "dtype": "bool"},
        {"dtype": "bfloat16"},
    ],
    where=lambda p: p.threads % 32 == 0,
    targets=lambda p: ["llvm", *([] if p.threads == 48 else ["metal", "sm_80", "sm_90a", "gpu"])],
    fast=["metal"],
)
def threads_that_shuffle(A: dtype[threads], V: int32[threads], C: dtype[3, threads]):
    """Beyond the group is the lane's own value; each shuffle has those before."""
    with T.Kernel(1, threads=threads):
        tx = T.get_thread_binding()
        C[0, tx] = getattr(T, function)(A[tx], 2, width)
        C[1, tx] = getattr(T, function)(A[tx], 3)
        if function == "shfl_sync":
            C[2, tx] = T.shfl_sync(A[tx], tx % 8 + 1, 16)
        elif function == "shfl_xor":
            own = T.alloc_local((1,), "int32")
            own[0] = V[tx]
            for i in T.serial(4):
                own[0] += T.shfl_xor(T.shfl_xor(own[0], 1 << i), (1 << i) ^ 1)
            V[tx] = own[0]


NO_FLOAT64 = ["llvm", "sm_80", "gpu"]


@program(
    tags={"threads"},
    parameters={
        "kind": ["min", "sum", "max", "bitand", "bitor"],
        "dtype": ["float32", "int32", "float16", "int8", "int64", "uint32", "float64"],
    },
    examples=[{}, {"dtype": "int8", "kind": "sum"}, {"dtype": "uint32", "kind": "bitor"}]
    + [{"dtype": "int64", "kind": "bitand"}, {"dtype": "float64", "kind": "max"}],
    where=lambda p: "int" in p.dtype or p.kind not in ("bitand", "bitor"),
    targets=lambda p: [*NO_FLOAT64, *([] if p.dtype == "float64" else ["metal"])],
)
def threads_that_reduce(A: dtype[64], C: dtype[64]):
    """A warp reduces whose threads lie along two axes."""
    with T.Kernel(1, threads=(8, 8)):
        thread = T.get_thread_binding(0) + 8 * T.get_thread_binding(1)
        C[thread] = getattr(T, "warp_reduce_" + kind)(A[thread])


@program(
    tags={"threads"},
    parameters={"kind": ["the block", "places", "votes", "matches"]},
    examples="kind",
    fast=["metal"],
)
def threads_that_vote(A: float32[64], N: int32[64], D: int64[5, 64]):
    """Threads vote in a warp and in the block, and know their places there."""
    with T.Kernel(1, threads=(8, 8)):
        thread = T.get_thread_binding(0) + 8 * T.get_thread_binding(1)
        if kind == "the block":
            D[0, thread] = T.syncthreads_count(N[thread] > 3)
            D[1, thread] = T.syncthreads_and(N[thread] > -8)
            D[2, thread] = T.syncthreads_or(N[thread] == 63)
        elif kind == "places":
            D[0, thread] = T.get_lane_idx()
            D[1, thread] = T.get_warp_idx()
            D[2, thread] = T.get_warp_group_idx()
            D[3, thread] = T.get_warp_idx_sync(16)
            D[4, thread] = T.cast(T.shuffle_elect(64), "int64")
        elif kind == "votes":
            D[0, thread] = T.any_sync(N[thread] == 7)
            D[1, thread] = T.all_sync(N[thread] < 7)
            D[2, thread] = T.cast(T.ballot(N[thread]), "int64")
        else:
            D[0, thread] = T.cast(T.match_any_sync(N[thread]), "int64")
            D[1, thread] = T.cast(T.match_all_sync(thread // 32), "int64")
            D[2, thread] = T.cast(T.match_all_sync(A[thread]), "int64")
            D[3, thread] = T.cast(T.match_all_sync(T.cast(thread, "float32"), 0xFFFF), "int64")


@program(
    tags={"threads"},
    parameters={"kind": ["branches", "loops"], "threads": [32, 64, 96, 48]},
    examples=[{}, {"kind": "loops", "threads": 64}, {"threads": 48}, {"threads": 64}],
    where=lambda p: p.threads % 32 == 0,
    inputs={"N": lambda rng, shape: rng.integers(0, 5, shape)},
    targets=lambda p: ["llvm", *([] if p.threads == 48 else ["metal", "sm_80", "sm_90a", "gpu"])],
)
def threads_that_come_together(N: int32[threads], A: int64[4, threads]):
    """The mask names those that come to a statement at once, whatever the others do meanwhile."""
    with T.Kernel(1, threads=threads):
        tx = T.get_thread_binding()
        if kind == "loops":
            for k in T.serial(3):
                if k < N[tx]:
                    A[k, tx] = T.cast(T.activemask(), "int64")
        elif N[tx] > 2:
            A[0, tx] = T.cast(T.activemask(), "int64")
            if tx % 2 == 0:
                A[1, tx] = T.cast(T.activemask(), "int64")
            else:
                here = T.activemask()
                A[1, tx] = T.cast(here, "int64")
        else:
            A[0, tx] = T.cast(T.activemask(), "int64")
        A[3, tx] = T.cast(T.activemask(), "int64")


@program(tags={"threads"}, targets=["llvm", "sm_80", "gpu"])
def threads_that_shuffle_without_the_others(A: float32[64], C: float32[64]):
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        if tx % 32 < 16:
            crossed = T.shfl_xor(A[tx], 5, mask=0xFFFF)
            following = T.shfl_down(A[tx], 1, 8, mask=0xFFFF)
            C[tx] = crossed + 4 * following + 16 * T.shfl_sync(A[tx], 3, mask=0xFFFF)


@program(
    tags={"pipelined", "atomic"},
    parameters={"stages": [2, 0, 3]},
    examples="stages",
    inputs={"C": lambda rng, shape: np.ones(shape)},
)
def steps_between_a_copy_that_runs_ahead_and_its_use(
    A: float32[40, 23], B: float32[8, 40], C: float32[40, 98], D: float32[40, 98]
):
    """An elementwise step on another tile before it, and an atomic behind it; ragged columns."""
    with T.Kernel(T.ceildiv(98, 33), threads=32) as bx:
        T.use_swizzle(2, order="col")
        tile = T.alloc_shared((40, 8), "float32")
        turned = T.alloc_shared((8, 40), "float32")
        kept = T.alloc_fragment((40, 33), "float32")
        T.fill(kept, 2)
        T.fill(turned, 0)
        for k in T.Pipelined(T.ceildiv(23, 8), num_stages=stages):
            T.copy(A[0, k * 8], tile)
            for i, j in T.Parallel(40, 33):
                kept[i, j] = T.max(T.min((kept[i, j] - 3) * kept[i, j], 4), -4)
            for i, j in T.Parallel(8, 40):
                turned[i, j] += tile[j, i]
            for i, j in T.Parallel(40, 33):
                T.atomic_min(C[i, bx * 33 + j], kept[i, j])
        T.copy(kept, D[0, bx * 33])
        if bx == 0:
            T.copy(turned, B)


@program(tags={"numbers"}, parameters={"dtype": ["float16", "bfloat16"]}, examples="dtype")
def choice_of_a_remainder_in_a_fragment(A: float32[32, 16], C: dtype[32, 16]):
    with T.Kernel(1, threads=64):
        s = T.alloc_shared((32, 16), "float32")
        f = T.alloc_fragment((32, 16), dtype)
        T.copy(A, s)
        for i, j in T.Parallel(32, 16):
            f[i, j] = T.if_then_else(s[i, j] > 0, T.cast((i * 5 + 1) % 7, "float32"), s[i, j])
        T.copy(f, C)


@program(tags={"threads"}, fast=["metal"])
def barriers_whose_number_is_computed(A: int32[4, 64]):
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        tile = T.alloc_shared((64,), "int32")
        tile[tx] = tx
        for k in T.serial(4):
            T.sync_threads(k + 1, 64)
            A[k, tx] = tile[(tx + 17) % 64]
            T.sync_threads(k % 2 + 5, 64)
            tile[tx] = A[k, tx] * 3 % 101


@program(tags={"numbers"}, parameters={"dtype": ["float8_e4m3fn", "float8_e5m2"]}, examples="dtype")
def extrema_of_narrow_floats_in_vectors(A: dtype[32, 4], B: dtype[32, 4], C: dtype[4, 32, 4]):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(32):
            for v in T.vectorized(4):
                C[0, i, v] = T.min(A[i, v], B[i, v])
            for v in T.vectorized(4):
                C[1, i, v] = T.max(A[i, v], B[i, v])
            for v in T.vectorized(4):
                C[2, i, v] = T.clamp(A[i, v], T.cast(-1, dtype), T.cast(2, dtype))
            for j in T.serial(4):
                C[3, i, j] = T.max(T.min(A[i, j], B[i, j]), T.cast(0, dtype))


@program(tags={"threads"}, parameters={"threads": [48, 1, 2]}, examples="threads")
def few_threads(A: float32[8, 24], C: float32[24]):
    with T.Kernel(1, threads=threads):
        tile = T.alloc_shared((8, 24), "float32")
        own = T.alloc_fragment((8, 24), "float32")
        sums = T.alloc_fragment((24,), "float32")
        T.copy(A, tile)
        T.copy(tile, own)
        for i, j in T.Parallel(8, 24):
            own[i, j] = own[i, j] * 2 + tile[7 - i, j]
        T.reduce_sum(own, sums, dim=0)
        T.copy(sums, C)


@program(
    tags={"memory"},
    sizes=[{"n": n} for n in (64, 4096, 1, 100_000, 7)],
    targets=["llvm"],
)
def shared_tile_of_an_extent_that_each_call_gives(A: float32[n], C: float32[n]):
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((n,), "float32")
        T.copy(A, tile)
        for i in T.Parallel(n):
            C[i] = tile[n - 1 - i] * 2


@program(
    tags={"threads"},
    inputs={"X": lambda rng, shape: rng.permutation(64)},
    targets=["llvm", "metal", "sm_80", "sm_90a", "gpu"],
)
def bitonic_sort_by_threads(X: float32[64]):
    """Threads whose numbers differ in one bit, which loops name, exchange their elements."""
    with T.Kernel(1, threads=64):
        s = T.alloc_shared((64,), "float32")
        t = T.get_thread_binding(0)
        s[t] = X[t]
        T.sync_threads()
        for k in T.serial(6):
            for j in T.serial(k + 1):
                other = t ^ (1 << (k - j))
                if other > t:
                    if (s[t] > s[other]) == ((t & (2 << k)) == 0):
                        kept = s[t]
                        s[t] = s[other]
                        s[other] = kept
                T.sync_threads()
        X[t] = s[t]
