"""Kernels of kinds that TileLang's users write, on Metal."""

from __future__ import annotations

import torch

import tvmtile.language as T
from tests.metal.programs import assert_close, operands, random


def test_rotary_embedding_of_neighbouring_pairs(compiled):
    S, D = 40, 64

    @T.prim_func
    def main(
        X: T.Tensor((S, D), "float16"),
        cos: T.Tensor((S, D // 2), "float32"),
        sin: T.Tensor((S, D // 2), "float32"),
        Y: T.Tensor((S, D), "float16"),
    ):
        with T.Kernel(T.ceildiv(S, 16), threads=128) as bx:
            x = T.alloc_fragment((16, D), "float32")
            y = T.alloc_fragment((16, D), "float32")
            T.copy(X[bx * 16, 0], x)
            for i, j in T.Parallel(16, D // 2):
                c, s = cos[bx * 16 + i, j], sin[bx * 16 + i, j]
                y[i, 2 * j] = x[i, 2 * j] * c - x[i, 2 * j + 1] * s
                y[i, 2 * j + 1] = x[i, 2 * j] * s + x[i, 2 * j + 1] * c
            T.copy(y, Y[bx * 16, 0])

    x, cos, sin = random(S, D, dtype="float16"), random(S, D // 2), random(S, D // 2)
    y = torch.empty_like(x)
    compiled(main)(x, cos, sin, y)
    even, odd = x.double()[:, ::2], x.double()[:, 1::2]
    assert_close(y, torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(1))


def test_gated_linear_unit_of_two_products(compiled):
    M, N, K = 48, 32, 64

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        gate: T.Tensor((N, K), "float16"),
        up: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
            A_shared = T.alloc_shared((32, 32), "float16")
            gate_shared = T.alloc_shared((32, 32), "float16")
            up_shared = T.alloc_shared((32, 32), "float16")
            gates = T.alloc_fragment((32, 32), "float32")
            ups = T.alloc_fragment((32, 32), "float32")
            T.clear(gates)
            T.clear(ups)
            for k in T.Pipelined(K // 32, num_stages=2):
                T.copy(A[by * 32, k * 32], A_shared)
                T.copy(gate[bx * 32, k * 32], gate_shared)
                T.copy(up[bx * 32, k * 32], up_shared)
                T.gemm(A_shared, gate_shared, gates, transpose_B=True)
                T.gemm(A_shared, up_shared, ups, transpose_B=True)
            for i, j in T.Parallel(32, 32):
                ups[i, j] *= gates[i, j] / (1 + T.exp(-gates[i, j]))
            T.copy(ups, C[by * 32, bx * 32])

    a, gate, up = (random(rows, K, dtype="float16") for rows in (M, N, N))
    c = torch.empty(M, N, dtype=torch.float16)
    compiled(main)(a, gate, up, c)
    gates, ups = (a.double() @ weight.double().T for weight in (gate, up))
    assert_close(c, ups * torch.nn.functional.silu(gates))


def test_matrix_times_vector(compiled):
    M, N = 70, 300

    @T.prim_func
    def main(
        A: T.Tensor((M, N), "float16"), x: T.Tensor((N,), "float16"), y: T.Tensor((M,), "float32")
    ):
        with T.Kernel(T.ceildiv(M, 8), threads=64) as bx:
            A_local = T.alloc_fragment((8, 64), "float16")
            x_local = T.alloc_fragment((64,), "float16")
            products = T.alloc_fragment((8, 64), "float32")
            sums = T.alloc_fragment((8,), "float32")
            T.clear(products)
            for k in T.serial(T.ceildiv(N, 64)):
                T.copy(A[bx * 8, k * 64], A_local)
                T.copy(x[k * 64], x_local)
                for i, j in T.Parallel(8, 64):
                    products[i, j] += T.cast(A_local[i, j], "float32") * x_local[j]
            T.reduce_sum(products, sums, dim=1)
            T.copy(sums, y[bx * 8])

    a, x, y = random(M, N, dtype="float16"), random(N, dtype="float16"), torch.empty(M)
    compiled(main)(a, x, y)
    assert_close(y, a.double() @ x.double())


def test_products_of_blocks_with_scales_of_their_own(compiled):
    M, N, K, block_K = 32, 32, 128, 32

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        scales: T.Tensor((M, K // block_K), "float32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=64):
            A_shared = T.alloc_shared((M, block_K), "float16")
            B_shared = T.alloc_shared((block_K, N), "float16")
            scale = T.alloc_shared((M,), "float32")
            part = T.alloc_fragment((M, N), "float32")
            total = T.alloc_fragment((M, N), "float32")
            T.clear(part)
            T.clear(total)
            for k in T.Pipelined(K // block_K, num_stages=2):
                T.copy(A[0, k * block_K], A_shared)
                T.copy(B[k * block_K, 0], B_shared)
                for i in T.Parallel(M):
                    scale[i] = scales[i, k]
                T.gemm(A_shared, B_shared, part)
                for i, j in T.Parallel(M, N):
                    total[i, j] += part[i, j] * scale[i]
                T.clear(part)
            T.copy(total, C)

    a, b, _ = operands(M, N, K)
    scales, c = random(M, K // block_K), torch.empty(M, N)
    compiled(main)(a, b, scales, c)
    assert_close(c, (a.double() * scales.double().repeat_interleave(block_K, 1)) @ b.double())


def test_largest_elements_one_after_the_other(compiled):
    M, N, count = 5, 64, 3

    @T.prim_func
    def main(
        A: T.Tensor((M, N), "float32"),
        values: T.Tensor((M, count), "float32"),
        places: T.Tensor((M, count), "int32"),
    ):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((M, N), "float32")
            place = T.alloc_fragment((M, N), "int32")
            largest = T.alloc_fragment((M,), "float32")
            where = T.alloc_fragment((M,), "int32")
            T.copy(A, x)
            for rank in T.serial(count):
                T.fill(place, -1)
                T.reduce_max(x, largest, dim=1)
                for i, j in T.Parallel(M, N):
                    place[i, j] = T.if_then_else(x[i, j] == largest[i], j, place[i, j])
                T.reduce_max(place, where, dim=1)
                for i, j in T.Parallel(M, N):
                    x[i, j] = T.if_then_else(x[i, j] == largest[i], -1e4, x[i, j])
                for i in T.Parallel(M):
                    values[i, rank] = largest[i]
                    places[i, rank] = where[i]

    a = random(M, N)
    values, places = torch.empty(M, count), torch.empty(M, count, dtype=torch.int32)
    compiled(main)(a, values, places)
    expected = a.topk(count, 1)
    assert torch.equal(values, expected.values)
    assert torch.equal(places.long(), expected.indices)


def test_linear_attention_with_a_state_in_registers(compiled):
    S, D, chunk = 64, 32, 16

    @T.prim_func
    def main(
        Q: T.Tensor((S, D), "float16"),
        K: T.Tensor((S, D), "float16"),
        V: T.Tensor((S, D), "float16"),
        Output: T.Tensor((S, D), "float32"),
    ):
        with T.Kernel(1, threads=128):
            q = T.alloc_shared((chunk, D), "float16")
            k = T.alloc_shared((chunk, D), "float16")
            v = T.alloc_shared((chunk, D), "float16")
            scores = T.alloc_fragment((chunk, chunk), "float32")
            scores_shared = T.alloc_shared((chunk, chunk), "float16")
            state = T.alloc_fragment((D, D), "float32")
            state_shared = T.alloc_shared((D, D), "float16")
            output = T.alloc_fragment((chunk, D), "float32")
            T.clear(state)
            for step in T.Pipelined(S // chunk, num_stages=1):
                for i, j in T.Parallel(chunk, D):
                    q[i, j] = Q[step * chunk + i, j]
                    k[i, j] = K[step * chunk + i, j]
                    v[i, j] = V[step * chunk + i, j]
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(chunk, chunk):
                    scores[i, j] = T.if_then_else(i >= j, scores[i, j], 0)
                T.copy(scores, scores_shared)
                T.copy(state, state_shared)
                T.gemm(scores_shared, v, output, clear_accum=True)
                T.gemm(q, state_shared, output)
                T.gemm(k, v, state, transpose_A=True)
                T.copy(output, Output[step * chunk, 0])

    q, k, v = (random(S, D, dtype="float16") / 4 for _ in range(3))
    output = torch.empty(S, D)
    compiled(main)(q, k, v, output)
    assert_close(output, (q.double() @ k.double().T).tril() @ v.double(), "float16")


def test_rows_that_a_table_names_are_gathered_and_scattered(compiled):
    @T.prim_func
    def main(
        X: T.Tensor((40, 64), "float16"),
        rows: T.Tensor((24,), "int32"),
        W: T.Tensor((64, 32), "float16"),
        C: T.Tensor((40, 32), "float32"),
    ):
        with T.Kernel(1, threads=64):
            gathered = T.alloc_shared((24, 64), "float16")
            C_local = T.alloc_fragment((24, 32), "float32")
            for i, j in T.Parallel(24, 64):
                gathered[i, j] = X[rows[i], j]
            T.clear(C_local)
            T.gemm(gathered, W, C_local)
            for i, j in T.Parallel(24, 32):
                C[rows[i], j] = C_local[i, j]

    x, w = random(40, 64, dtype="float16"), random(64, 32, dtype="float16")
    rows, c = torch.randperm(40)[:24].int(), torch.zeros(40, 32)
    compiled(main)(x, rows, w, c)
    expected = torch.zeros(40, 32, dtype=torch.float64)
    expected[rows.long()] = x[rows.long()].double() @ w.double()
    assert_close(c, expected)


def test_a_stencil_that_is_applied_twice(compiled):
    @T.prim_func
    def main(X: T.Tensor((34, 66), "float32"), C: T.Tensor((32, 64), "float32")):
        with T.Kernel(1, threads=128):
            grid = T.alloc_shared((34, 66), "float32")
            new = T.alloc_fragment((32, 64), "float32")
            T.copy(X, grid)
            for _ in T.serial(2):
                for i, j in T.Parallel(32, 64):
                    across = grid[i + 1, j] + grid[i + 1, j + 2]
                    new[i, j] = (grid[i, j + 1] + grid[i + 2, j + 1] + across) / 4
                for i, j in T.Parallel(32, 64):
                    grid[i + 1, j + 1] = new[i, j]
            T.copy(new, C)

    x, c = random(34, 66), torch.empty(32, 64)
    compiled(main)(x, c)
    grid = x.double()
    for _ in range(2):
        across = grid[1:-1, :-2] + grid[1:-1, 2:]
        grid[1:-1, 1:-1] = (grid[:-2, 1:-1] + grid[2:, 1:-1] + across) / 4
    assert_close(c, grid[1:-1, 1:-1])


def test_a_branch_that_all_threads_take_alike(compiled):
    """Barriers inside of it are for the blocks that take it."""

    @T.prim_func
    def main(A: T.Tensor((64, 32), "float32"), C: T.Tensor((64, 32), "float32"), count: T.int32):
        with T.Kernel(2, threads=64) as bx:
            shared = T.alloc_shared((32, 32), "float32")
            x = T.alloc_fragment((32, 32), "float32")
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

    a, c = random(64, 32), torch.empty(64, 32)
    compiled(main)(a, c, 1)
    first, second = a.double().split(32)
    first = first + first.flip(0)
    assert_close(c, torch.cat([first - first.sum(1, keepdim=True), second]))
