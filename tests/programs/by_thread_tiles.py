"""Code by thread index and tile operators: what threads do alone, together, or each for itself."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program


@program(fast=["metal"])
def threads_beside_tile_operators(A: float32[40, 32], C: float32[40, 32]):
    with T.Kernel(2, threads=32) as bx:
        tx = T.get_thread_binding()
        shared = T.alloc_shared((24, 32), "float32")
        fragment = T.alloc_fragment((24, 32), "float32")
        T.copy(A[bx * 24, 0], shared)
        for i in T.serial(24):
            shared[i, tx] += tx
        T.copy(shared, fragment)
        for i, j in T.Parallel(24, 32):
            fragment[i, j] *= 2
        T.copy(fragment, shared)
        for i in T.serial(24):
            if bx * 24 + i < 40:
                C[bx * 24 + i, tx] = shared[23 - i, 31 - tx]


@program(fast=["metal"])
def threads_of_a_branch_that_share_work(
    P: float32[4], X: float32[4, 64], C: float32[64], D: float32[64]
):
    """The work takes what they all know; an element of a fragment grows once, beside work of each."""
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        factors = T.alloc_shared((4,), "float32")
        T.copy(P, factors)
        if tx >= 32:
            sums = T.alloc_fragment((64,), "float32")
            T.clear(sums)
            for k in T.serial(4):
                factor = factors[k]
                row = 3 - k
                for i in T.Parallel(64):
                    sums[i] += factor * X[row, i]
            T.copy(sums, C)
        if tx < 32:
            total = T.alloc_fragment((1,), "float32")
            total[0] = 1
            for k in T.serial(3):
                total[0] += P[k]
                D[tx] += k
            total[0] = total[0] * 2
            for i in T.Parallel(32):
                D[32 + i] = total[0]


@program(
    parameters={
        "form": [
            "sums of the warps",
            "a sum of each",
            "filled together",
            "filled in T.Parallel",
            "another branch",
            "other trips",
            "copied from a row",
            "copied to an element",
            "its own element",
            "another name",
            "across a barrier",
            "a group's",
        ],
    },
    examples="form",
    fast=["metal", "sm_80"],
)
def threads_that_store_to_a_fragment_by_themselves(A: float32[64, 4], C: float32[64]):
    """Each thread has a fragment for itself where it stores by its number outside T.Parallel."""
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        own = T.alloc_fragment((64 if form == "its own element" else 4,), "float32")
        if form == "sums of the warps":
            own[0] = 0
            for j in T.serial(4):
                own[0] += A[tx, j]
            total = T.warp_reduce_sum(own[0])
            if tx % 32 == 0:
                C[tx // 32] = total
        elif form == "a sum of each":
            total = T.alloc_fragment((1,), "float32")
            for j in T.serial(4):
                own[j] = A[tx, j]
            T.reduce_sum(own, total)
            C[tx] = total[0]
        elif form == "filled together":
            T.fill(own, 1)
            own[2] += A[tx, 2]
            C[tx] = own[1] + own[2]
        elif form == "filled in T.Parallel":
            for j in T.Parallel(4):
                own[j] = A[j, 1]
            own[2] += A[tx, 2]
            C[tx] = own[1] + own[2]
        elif form == "another branch":
            own[3] = 1
            if tx > 5:
                own[3] = 2
            C[tx] = own[3]
        elif form == "other trips":
            own[0] = 0
            for j in T.serial(tx % 4):
                own[0] += A[0, j]
            C[tx] = own[0]
        elif form == "copied from a row":
            T.copy(A[tx, 0:4], own)
            C[tx] = own[0] - own[3]
        elif form == "copied to an element":
            twice = T.alloc_fragment((1,), "float32")
            twice[0] = A[tx, 1] * 2
            T.copy(twice, C[tx : tx + 1])
        elif form == "its own element":
            own[tx] = A[tx, 1]
            own[tx] += A[tx, 2]
            C[tx] = own[tx]
        elif form == "another name":
            square = T.reshape(own, (2, 2))
            square[1, 0] = A[tx, 1]
            C[tx] = own[2]
        elif form == "across a barrier":
            shared = T.alloc_shared((64,), "float32")
            own[0] = A[tx, 0]
            shared[tx] = own[0]
            T.sync_threads()
            own[1] = shared[63 - tx]
            C[tx] = own[0] + own[1]
        else:
            if tx >= 32:
                own[0] = A[tx, 0]
                C[tx] = own[0]
                both = T.alloc_fragment((1,), "float32")
                both[0] = A[3, 0]
                for j in T.Parallel(32):
                    C[j] = both[0]


@program(
    parameters={
        "form": [
            "rows",
            "numbers",
            "a sum of each row",
            "scans",
            "atomics",
            "an atomic of one",
            "a number of its own",
            "the row of a variable",
            "an atomic of a group",
        ],
    },
    examples="form",
    fast=["metal", "sm_80"],
)
def threads_that_do_operators_by_themselves(
    A: float32[64, 4], C: float32[64], D: float32[4], E: float32[1]
):
    """An operator whose operands depend on the thread is not shared out: each thread does all of it."""
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        tile = T.alloc_shared((64, 4), "float32")
        T.copy(A, tile)
        C[tx] = A[tx, 0]
        if form == "rows":
            T.copy(A[tx, 0:4], tile[63 - tx, 0:4])
            C[tx] = tile[tx, 1] + tile[tx, 3]
        elif form == "numbers":
            T.fill(tile[tx, 0:4], A[tx, 2])
            C[tx] = tile[tx, 1] + tile[tx, 3]
        elif form == "a sum of each row":
            sums = T.alloc_shared((64, 1), "float32")
            T.reduce_sum(tile[tx : tx + 1, 0:4], sums[tx : tx + 1, 0:1], dim=1)
            C[tx] = sums[tx, 0]
        elif form == "scans":
            T.cumsum(tile[tx : tx + 1, 0:4], dim=1)
            C[tx] = tile[tx, 3]
        elif form == "atomics":
            T.atomic_add(D, tile[tx, 0:4])
        elif form == "an atomic of one":
            if tx == 5:
                T.atomic_add(D, A[tx, 0:4])
        elif form == "a number of its own":
            T.atomic_add(E, A[tx, 1])
        elif form == "the row of a variable":
            row = T.alloc_var("int32")
            row = tx % 2
            T.atomic_add(D, A[row, 0:4])
        else:
            warp = tx // 32
            if tx < 32:
                T.atomic_add(D, A[warp * 8, 0:4])


@program(
    parameters={"form": ["of a group", "of others", "in a loop", "one after another", "in both"]},
    examples="form",
    fast=["metal", "sm_80"],
)
def threads_that_store_alike(A: float32[64, 4], C: float32[64], D: float32[4]):
    """One of the threads that come to a store of the same by all of them does it."""
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        tile = T.alloc_shared((4,), "float32")
        T.copy(D, tile)
        C[tx] = A[tx, 0]
        if form == "of a group":
            if tx >= 32:
                D[0] += 1
        elif form == "of others":
            if tx > 40:
                D[0] += 1
                tile[1] += 2
            D[1] = tile[1]
        elif form == "in a loop":
            for j in T.serial(4):
                C[tx] += A[tx, j]
                D[0] += 1
        elif form == "one after another":
            for j in T.serial(2):
                C[tx] += A[tx, j]
                D[1] = D[0] + 1
                D[0] = D[1]
        else:
            if tx >= 8:
                C[tx] = 1
                if tx < 50:
                    D[0] += 1
                else:
                    D[1] += 2
            if tx > 70:
                D[3] += 1


@program(parameters={"low": [0, 32, 64]}, examples=[{"low": 32}, {}, {"low": 64}])
def threads_that_come_to_a_tile_operator(A: float32[8], C: float32[8]):
    with T.Kernel(1, threads=64):
        warp = T.get_thread_binding() - low
        if warp >= 0:
            T.copy(A, C)
