"""Pipelined loops: what runs ahead of its iteration and what stays, and tiles of all kinds."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

STAGES = [2, 3, 0, 4]
TAGS = {"pipelined", "stages"}


@program(
    tags=TAGS,
    parameters={"stages": [3, 2, 4]},
    inputs={"counts": lambda rng, shape: [0, 1, 2, 5]},
)
def stages_bound_that_the_loop_changes(
    A: T.Tensor((8, 32), "float32"),
    counts: T.Tensor((4,), "int32"),
    C: T.Tensor((4, 32), "float32"),
):
    """It is read once, before the loop."""
    with T.Kernel(4, threads=32) as bx:
        tile = T.alloc_shared((32,), "float32")
        total = T.alloc_fragment((32,), "float32")
        T.clear(total)
        limit = counts[bx]
        for k in T.Pipelined(limit, num_stages=stages):
            T.copy(A[k, :], tile)
            for i in T.Parallel(32):
                total[i] += tile[i] * (k + 1)
            if k == 1:
                counts[bx] = 8
        T.copy(total, C[bx, :])


@program(
    tags={*TAGS, "attention"},
    parameters={"stages": STAGES, "causal": [False, True]},
    examples=[{}, {"causal": True, "stages": 3}],
)
def stages_attention(
    Q: T.Tensor((24, 16), "float32"),
    K: T.Tensor((40, 16), "float32"),
    V: T.Tensor((40, 16), "float32"),
    O: T.Tensor((24, 16), "float32"),
):
    with T.Kernel(T.ceildiv(24, 16), threads=32) as bx:
        q = T.alloc_shared((16, 16), "float32")
        k, v = T.alloc_shared((16, 16), "float32"), T.alloc_shared((16, 16), "float32")
        scores = T.alloc_fragment((16, 16), "float32")
        out = T.alloc_fragment((16, 16), "float32")
        best, before = T.alloc_fragment((16,), "float32"), T.alloc_fragment((16,), "float32")
        here, total = T.alloc_fragment((16,), "float32"), T.alloc_fragment((16,), "float32")
        T.copy(Q[bx * 16, 0], q)
        T.clear(out)
        T.clear(total)
        T.fill(best, -1e30)
        for step in T.Pipelined(T.min(bx + 1, 3) if causal else 3, num_stages=stages):
            T.copy(K[step * 16, 0], k)
            T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(16, 16):
                if causal:
                    seen = (bx * 16 + i >= step * 16 + j) and (step * 16 + j < 40)
                    scores[i, j] = T.if_then_else(seen, scores[i, j], -1e30)
                else:
                    seen = step * 16 + j < 40
                    scores[i, j] = T.if_then_else(seen, scores[i, j], -1e30)
            T.copy(best, before)
            T.reduce_max(scores, best, dim=1, clear=False)
            for i, j in T.Parallel(16, 16):
                scores[i, j] = T.exp(scores[i, j] - best[i])
            T.reduce_sum(scores, here, dim=1)
            for i in T.Parallel(16):
                total[i] = total[i] * T.exp(before[i] - best[i]) + here[i]
            for i, j in T.Parallel(16, 16):
                out[i, j] *= T.exp(before[i] - best[i])
            T.copy(V[step * 16, 0], v)
            T.gemm(scores, v, out)
        for i, j in T.Parallel(16, 16):
            out[i, j] /= total[i]
        T.copy(out, O[bx * 16, 0])


@program(tags={*TAGS, "gemm"}, parameters={"stages": STAGES})
def stages_conversion_by_the_consumer(
    A: T.Tensor((16, 64), "float32"),
    B: T.Tensor((16, 32), "uint8"),
    C: T.Tensor((16, 16), "float32"),
):
    with T.Kernel(1, threads=32):
        a, b = T.alloc_shared((16, 16), "float32"), T.alloc_shared((16, 16), "float32")
        packed = T.alloc_shared((16, 8), "uint8")
        own = T.alloc_fragment((16, 8), "uint8")
        total = T.alloc_fragment((16, 16), "float32")
        T.clear(total)
        for k in T.Pipelined(4, num_stages=stages):
            T.copy(A[0, k * 16], a)
            T.copy(B[0, k * 8], packed)
            T.copy(packed, own)
            for i, j in T.Parallel(16, 16):
                bits = T.cast(own[i, j // 2], "int32") >> (j % 2 * 4) & 15
                b[i, j] = T.cast(bits, "float32")
            T.gemm(a, b, total, transpose_B=True)
        T.copy(total, C)


@program(tags=TAGS, parameters={"stages": STAGES})
def stages_name_read_from_what_the_loop_writes(
    A: T.Tensor((6, 32), "float32"), C: T.Tensor((6, 32), "float32")
):
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((32,), "float32")
        for k in T.Pipelined(6, num_stages=stages):
            T.copy(A[k, :], tile)
            first = tile[0]
            for i in T.Parallel(32):
                C[k, i] = tile[i] - first


@program(tags=TAGS, parameters={"stages": STAGES})
def stages_views_and_vectors(A: T.Tensor((5, 64), "int32"), C: T.Tensor((5, 64), "uint32")):
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((64,), "int32")
        square = T.reshape(tile, (8, 8))
        bits = T.view(tile, (8, 8), "uint32")
        for k in T.Pipelined(5, num_stages=stages):
            T.copy(A[k, :], tile)
            for i in T.Parallel(8):
                for v in T.vectorized(8):
                    square[i, v] = square[i, v] + 1
            for i, j in T.Parallel(8, 8):
                C[k, i * 8 + j] = bits[j, i]


@program(tags=TAGS, parameters={"stages": STAGES})
def stages_axes_of_operators(
    A: T.Tensor((5, 8, 16), "float32"), C: T.Tensor((5, 16, 8), "float32")
):
    """They count from the tile's own, and take one of its versions."""
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((8, 16), "float32")
        sums = T.alloc_fragment((8,), "float32")
        turned = T.alloc_fragment((16, 8), "float32")
        totals = T.alloc_fragment((8, 16), "float32")
        for k in T.Pipelined(5, num_stages=stages):
            T.copy(A[k, :, :], tile)
            T.reduce_sum(tile, sums, dim=1)
            T.cumsum(tile, totals, dim=1)
            T.transpose(tile, turned)
            for i, j in T.Parallel(16, 8):
                C[k, i, j] = turned[i, j] + totals[j, i] - sums[j]


@program(tags=TAGS, parameters={"stages": STAGES})
def stages_tiles_and_variables_of_the_loop(
    A: T.Tensor((5, 32), "float32"), C: T.Tensor((5, 32), "float32")
):
    with T.Kernel(1, threads=32):
        for k in T.Pipelined(5, num_stages=stages):
            tile = T.alloc_shared((32,), "float32")
            factor = T.alloc_var("float32", 2)
            T.copy(A[k, :], tile)
            factor += k
            for i in T.Parallel(32):
                C[k, i] = tile[i] * factor


@program(
    tags=TAGS,
    parameters={"stages": STAGES},
    inputs={"B": lambda rng, shape: rng.integers(0, 16, shape)},
)
def stages_values_of_atomics(
    A: T.Tensor((4, 16), "int32"), B: T.Tensor((4, 16), "int32"), C: T.Tensor((4, 16), "int32")
):
    with T.Kernel(1, threads=32):
        values, places = T.alloc_shared((16,), "int32"), T.alloc_shared((16,), "int32")
        sums = T.alloc_shared((16,), "int32")
        steps = T.alloc_var("int32", 0)
        T.clear(sums)
        for k in T.Pipelined(4, num_stages=stages):
            T.copy(A[k, :], values)
            T.copy(B[k, :], places)
            for i in T.Parallel(16):
                T.atomic_add(sums[places[i]], values[i])
            while steps < k * 3:
                steps += 1
            for i in T.Parallel(16):
                C[k, i] = sums[i] + steps


@program(tags=TAGS, parameters={"stages": STAGES})
def stages_two_copies_and_two_consumers(
    A: T.Tensor((6, 32), "float32"),
    B: T.Tensor((6, 32), "float32"),
    C: T.Tensor((6, 32), "float32"),
):
    with T.Kernel(1, threads=32):
        a, b = T.alloc_shared((32,), "float32"), T.alloc_shared((32,), "float32")
        for k in T.Pipelined(6, num_stages=stages):
            T.copy(A[k, :], a)
            for i in T.Parallel(32):
                C[k, i] = a[i]
            for i in T.Parallel(32):
                b[i] = B[k, i] * 2
            for i in T.Parallel(32):
                C[k, i] += b[i]


@program(
    tags=TAGS,
    parameters={
        "form": [
            "an alternative",
            "into a fragment",
            "written by the loop",
            "kept from an iteration before",
            "copied in part",
            "left",
            "a consumer first",
            "a copy in its stage first",
            "a name of another stage",
        ],
        "stages": [2, 3],
    },
    examples=[
        {"form": form}
        for form in (
            *("an alternative", "into a fragment", "written by the loop"),
            *("kept from an iteration before", "copied in part", "left"),
            *("a consumer first", "a copy in its stage first", "a name of another stage"),
        )
    ],
)
def stages_that_may_not_run_ahead(A: T.Tensor((7, 32), "float32"), C: T.Tensor((7, 32), "float32")):
    """Loops of one tile each, most of which run as they are written."""
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((32,), "float32")
        own = T.alloc_fragment((32,), "float32")
        T.fill(tile, 9)
        if form == "an alternative":
            for k in T.Pipelined(6, num_stages=stages):
                if k % 2 == 0:
                    T.copy(A[k, :], tile)
                else:
                    T.fill(tile, 3)
                T.copy(tile, C[k, :])
        elif form == "into a fragment":
            for k in T.Pipelined(6, num_stages=stages):
                T.copy(A[k, :], own)
                T.copy(own, C[k, :])
        elif form == "written by the loop":
            for k in T.Pipelined(6, num_stages=stages):
                T.copy(A[k, :], tile)
                for i in T.Parallel(32):
                    A[k + 1, i] = A[k + 1, i] * 0.5 + tile[i] * 0.5
        elif form == "kept from an iteration before":
            for k in T.Pipelined(6, num_stages=stages):
                if k % 3 == 1:
                    T.copy(A[k, :], tile)
                T.copy(tile, C[k, :])
        elif form == "copied in part":
            for k in T.Pipelined(6, num_stages=stages):
                T.copy(A[k, 0:16], tile[0:16])
                T.copy(tile, C[k, :])
                T.fill(tile, k)
        elif form == "left":
            for k in T.Pipelined(6, num_stages=stages):
                T.copy(A[k, :], tile)
                if k == 4:
                    break
                T.copy(tile, C[k, :])
        elif form == "a name of another stage":
            for k in T.Pipelined(6, order=[0, 1, 2], stage=[0, 0, 1]):
                T.copy(A[k, :], tile)
                first = tile[0]
                for i in T.Parallel(32):
                    C[k, i] = tile[i] - first
        else:
            for k in T.Pipelined(
                6,
                order=[0, 1] if form == "a consumer first" else [1, 0],
                stage=[1, 0] if form == "a consumer first" else [0, 0],
            ):
                T.copy(A[k, :], tile)
                for i in T.Parallel(32):
                    C[k, i] = tile[i] * (k + 1)


@program(
    tags=TAGS,
    inputs={"A": lambda rng, shape: rng.integers(0, 8, shape)},
    parameters={"stages": [2, 3]},
)
def stages_row_that_depends_on_a_consumer(
    A: T.Tensor((8, 8), "int32"), C: T.Tensor((6, 8), "int32")
):
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((8,), "int32")
        T.clear(tile)
        for k in T.Pipelined(6, num_stages=stages):
            row = tile[0]
            T.copy(A[row, :], tile)
            T.copy(tile, C[k, :])


@program(
    tags=TAGS,
    parameters={"later": [0, 1, 2], "condition": [False, True]},
    inputs={"trips": lambda rng, shape: [0, 5]},
    examples=[{"later": 1}, {"later": 2}, {"later": 0, "condition": True}],
)
def stages_tile_that_is_read_or_filled_after_the_loop(
    A: T.Tensor((6, 32), "float32"), trips: T.Tensor((2,), "int32"), C: T.Tensor((2, 32), "float32")
):
    """A later loop fills it again, pipelined or not; or it is read, and not all iterations fill it."""
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((32,), "float32")
        total = T.alloc_fragment((32,), "float32")
        T.clear(total)
        n = trips[1]
        for k in T.Pipelined(n, num_stages=2):
            if condition:
                if k % 3 == 1:
                    T.copy(A[k, :], tile)
                    for i in T.Parallel(32):
                        total[i] += tile[i]
            else:
                T.copy(A[k, :], tile)
                for i in T.Parallel(32):
                    total[i] += tile[i]
        if later == 0:
            T.copy(tile, C[1, :])
        else:
            for k in T.Pipelined(3, num_stages=later):
                T.copy(A[k, :], tile)
                for i in T.Parallel(32):
                    total[i] += tile[i] * 2
        T.copy(total, C[0, :])


@program(tags=TAGS, parameters={"stages": [2, 3]})
def stages_one_of_two_copies_that_can_t_run_ahead(
    A: T.Tensor((6, 32), "float32"), B: T.Tensor((7, 32), "float32")
):
    with T.Kernel(1, threads=32):
        a, b = T.alloc_shared((32,), "float32"), T.alloc_shared((32,), "float32")
        for k in T.Pipelined(6, num_stages=stages):
            T.copy(A[k, :], a)
            T.copy(B[k, :], b)
            for i in T.Parallel(32):
                B[k + 1, i] = (B[k + 1, i] + a[i] - b[i]) * 0.25


@program(
    tags=TAGS,
    parameters={"block": [4096, 8192]},
    examples=[{}, {"block": 8192}],
    targets=["llvm", "metal"],
    expects=lambda p: {"metal": ["threadgroup float4 tile[2048]"]},
    fast=["metal"],
)
def stages_as_many_as_a_block_has_memory_for(
    A: T.Tensor((4 * block,), "float32"), C: T.Tensor((4 * block,), "float32")
):
    """Of 16 KB two on Metal, of 32 KB one, whatever is asked for."""
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((block,), "float32")
        for k in T.Pipelined(4, num_stages=4):
            T.copy(A[k * block], tile)
            T.copy(tile, C[k * block])


@program(tags=TAGS, parameters={"stages": STAGES})
def stages_columns_of_an_image(
    A: T.Tensor((1, 6, 6, 8), "float32"), C: T.Tensor((9, 16, 8), "float32")
):
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((16, 8), "float32")
        for k in T.Pipelined(9, num_stages=stages):
            T.im2col(A, tile, 0, k, 3, 1, 1, 0)
            T.copy(tile, C[k, :, :])
