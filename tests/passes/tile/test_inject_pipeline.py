"""InjectPipeline: the numbers are those of loops that are not pipelined."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

import tvmtile.language as T

RNG = np.random.default_rng(0)


def floats(*shape, dtype="float32"):
    return RNG.integers(-4, 5, shape).astype(dtype)


def gemm(trips, num_stages, *, order=None, stage=None):
    M, N, K = 40, 24, 16

    @T.prim_func
    def program(
        A: T.Tensor((M, max(trips, 1) * K), "float16"),
        B: T.Tensor((max(trips, 1) * K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 32), threads=64) as (bx, by):
            A_shared = T.alloc_shared((32, K), "float16")
            B_shared = T.alloc_shared((K, 16), "float16")
            C_local = T.alloc_fragment((32, 16), "float32")
            T.clear(C_local)
            for k in T.Pipelined(trips, num_stages=num_stages, order=order, stage=stage):
                T.copy(A[by * 32, k * K], A_shared)
                T.copy(B[k * K, bx * 16], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * 32, bx * 16])

    return program


@pytest.mark.parametrize("num_stages", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("trips", [0, 1, 2, 3, 7])
def test_gemm(pipelines, trips, num_stages):
    depth = max(trips, 1) * 16
    a, b = floats(40, depth, dtype="float16"), floats(depth, 24, dtype="float16")
    result = pipelines.run(gemm(trips, num_stages), a, b, np.full((40, 24), np.nan, "float32"))
    expected = a.astype(float) @ b if trips else np.zeros((40, 24))
    np.testing.assert_array_equal(result[2], expected)


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_dynamic_trip_counts_and_starts(pipelines, num_stages):
    N = T.dynamic("n")

    @T.prim_func
    def program(
        A: T.Tensor((N, 32), "float32"),
        C: T.Tensor((3, 32), "float32"),
        start: T.int32,
        stop: T.int32,
    ):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            total = T.alloc_fragment((32,), "float32")
            T.clear(total)
            for k in T.Pipelined(start, stop, num_stages=num_stages):
                T.copy(A[k, :], tile)
                for i in T.Parallel(32):
                    total[i] = total[i] * 2 + tile[i]
            T.copy(total, C[0, :])

    built = pipelines.build(program)
    a = floats(9, 32)
    for start, stop in [(0, 0), (0, 1), (0, 2), (0, 9), (3, 5), (4, 9), (8, 9), (5, 3)]:
        expected = np.zeros(32)
        for k in range(start, stop):
            expected = expected * 2 + a[k]
        c = tvm.runtime.tensor(np.zeros((3, 32), "float32"))
        built(tvm.runtime.tensor(a), c, start, stop)
        np.testing.assert_array_equal(c.numpy()[0], expected)


def test_a_bound_that_is_read_from_memory_is_read_once(pipelines):
    @T.prim_func
    def program(
        A: T.Tensor((8, 32), "float32"), N: T.Tensor((4,), "int32"), C: T.Tensor((4, 32), "float32")
    ):
        with T.Kernel(4, threads=32) as bx:
            tile = T.alloc_shared((32,), "float32")
            total = T.alloc_fragment((32,), "float32")
            T.clear(total)
            for k in T.Pipelined(N[bx], num_stages=3):
                T.copy(A[k, :], tile)
                for i in T.Parallel(32):
                    total[i] += tile[i] * (k + 1)
                if k == 1:
                    N[bx] = 8
            T.copy(total, C[bx, :])

    a, counts = floats(8, 32), np.array([0, 1, 2, 5], "int32")
    assert "count: T.let[T.int32] = N[bx]" in pipelines.text(program)
    _, _, c = pipelines.check(program, a, counts, np.zeros((4, 32), "float32"))
    for row, count in enumerate(counts):
        expected = (a[:count] * np.arange(1, count + 1)[:, None]).sum(0)
        np.testing.assert_array_equal(c[row], expected)


def attention(num_stages, *, causal=False):
    D, rows, S, block = 16, 24, 40, 16

    @T.prim_func
    def program(
        Q: T.Tensor((rows, D), "float32"),
        K: T.Tensor((S, D), "float32"),
        V: T.Tensor((S, D), "float32"),
        O: T.Tensor((rows, D), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, 16), threads=32) as bx:
            Q_s = T.alloc_shared((16, D), "float32")
            K_s = T.alloc_shared((block, D), "float32")
            V_s = T.alloc_shared((block, D), "float32")
            scores = T.alloc_fragment((16, block), "float32")
            out = T.alloc_fragment((16, D), "float32")
            best = T.alloc_fragment((16,), "float32")
            before = T.alloc_fragment((16,), "float32")
            scale = T.alloc_fragment((16,), "float32")
            here = T.alloc_fragment((16,), "float32")
            total = T.alloc_fragment((16,), "float32")
            T.copy(Q[bx * 16, 0], Q_s)
            T.clear(out)
            T.clear(total)
            T.fill(best, -T.infinity("float32"))
            trips = T.ceildiv(S, block) if not causal else T.min(T.ceildiv((bx + 1) * 16, block), 3)
            for k in T.Pipelined(trips, num_stages=num_stages):
                T.copy(K[k * block, 0], K_s)
                for i, j in T.Parallel(16, block):
                    inside = k * block + j < S
                    if causal:
                        inside = T.And(inside, bx * 16 + i >= k * block + j)
                    scores[i, j] = T.if_then_else(inside, 0, -T.infinity("float32"))
                T.gemm(Q_s, K_s, scores, transpose_B=True)
                T.copy(best, before)
                T.reduce_max(scores, best, dim=1, clear=False)
                for i in T.Parallel(16):
                    scale[i] = T.exp(before[i] - best[i])
                for i, j in T.Parallel(16, block):
                    scores[i, j] = T.exp(scores[i, j] - best[i])
                T.reduce_sum(scores, here, dim=1)
                for i in T.Parallel(16):
                    total[i] = total[i] * scale[i] + here[i]
                for i, j in T.Parallel(16, D):
                    out[i, j] *= scale[i]
                T.copy(V[k * block, 0], V_s)
                T.gemm(scores, V_s, out)
            for i, j in T.Parallel(16, D):
                out[i, j] /= total[i]
            T.copy(out, O[bx * 16, 0])

    return program


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_stages", [0, 1, 2, 3, 4])
def test_attention(pipelines, num_stages, causal):
    q, k, v = RNG.standard_normal((24, 16)), RNG.standard_normal((40, 16)), floats(40, 16)
    scores = q.astype("float32").astype(float) @ k.astype("float32").astype(float).T
    if causal:
        scores = np.where(np.arange(24)[:, None] >= np.arange(40), scores, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    expected = weights / weights.sum(1, keepdims=True) @ v
    arrays = q.astype("float32"), k.astype("float32"), v, np.zeros((24, 16), "float32")
    result = pipelines.run(attention(num_stages, causal=causal), *arrays)
    np.testing.assert_allclose(result[3], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_stages", [2, 3])
def test_dequantised_gemm_keeps_its_conversion_with_the_consumer(pipelines, num_stages):
    @T.prim_func
    def program(
        A: T.Tensor((16, 64), "float32"),
        B: T.Tensor((16, 32), "uint8"),
        C: T.Tensor((16, 16), "float32"),
    ):
        with T.Kernel(1, threads=32):
            A_s = T.alloc_shared((16, 16), "float32")
            packed = T.alloc_shared((16, 8), "uint8")
            packed_local = T.alloc_fragment((16, 8), "uint8")
            B_s = T.alloc_shared((16, 16), "float32")
            total = T.alloc_fragment((16, 16), "float32")
            T.clear(total)
            for k in T.Pipelined(4, num_stages=num_stages):
                T.copy(A[0, k * 16], A_s)
                T.copy(B[0, k * 8], packed)
                T.copy(packed, packed_local)
                for i, j in T.Parallel(16, 16):
                    B_s[i, j] = T.Cast(
                        "float32", (packed_local[i, j // 2] >> ((j % 2) * 4).astype("uint8")) & 15
                    )
                T.gemm(A_s, B_s, total, transpose_B=True)
            T.copy(total, C)

    a, b = floats(16, 64), RNG.integers(0, 256, (16, 32)).astype("uint8")
    text = pipelines.text(program)
    assert f"packed = T.alloc_buffer(({num_stages}, 16, 8)" in text
    assert "B_s = T.alloc_buffer((16, 16)" in text
    values = np.stack([b & 15, b >> 4], -1).reshape(16, 64)
    result = pipelines.check(program, a, b, np.zeros((16, 16), "float32"))
    np.testing.assert_array_equal(result[2], a.astype(float) @ values.T)


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_blocks_that_a_mask_leaves_out(pipelines, num_stages):
    @T.prim_func
    def program(
        A: T.Tensor((16, 112), "float32"),
        B: T.Tensor((112, 16), "float32"),
        mask: T.Tensor((7,), "int32"),
        C: T.Tensor((16, 16), "float32"),
    ):
        with T.Kernel(1, threads=32):
            A_s = T.alloc_shared((16, 16), "float32")
            B_s = T.alloc_shared((16, 16), "float32")
            total = T.alloc_fragment((16, 16), "float32")
            T.clear(total)
            for k in T.Pipelined(7, num_stages=num_stages):
                if mask[k] != 0:
                    at = k * 16
                    T.copy(A[0, at], A_s)
                    T.copy(B[at, 0], B_s)
                    T.gemm(A_s, B_s, total)
            T.copy(total, C)

    a, b = floats(16, 112), floats(112, 16)
    text = pipelines.text(program)
    assert text.count("if mask[k + ") == 1, "the copies of an iteration stand in one branch"
    for bits in ([1, 0, 1, 1, 0, 0, 1], [0] * 7, [1] * 7, [0, 0, 0, 0, 0, 0, 1]):
        mask = np.array(bits, "int32")
        result = pipelines.check(program, a, b, mask, np.zeros((16, 16), "float32"))
        np.testing.assert_array_equal(result[3], (a * np.repeat(mask, 16)) @ b)


def test_loops_in_persistent_and_serial_loops(pipelines):
    @T.prim_func
    def program(A: T.Tensor((6, 5, 32), "float32"), C: T.Tensor((6, 32), "float32")):
        with T.Kernel(2, threads=32) as bx:
            tile = T.alloc_shared((32,), "float32")
            total = T.alloc_fragment((32,), "float32")
            for r, c in T.Persistent([3, 2], 2, bx):
                T.clear(total)
                for half in T.serial(2):
                    for k in T.Pipelined(half * 2, 2 + half * 3, num_stages=3):
                        T.copy(A[r * 2 + c, k, :], tile)
                        for i in T.Parallel(32):
                            total[i] = total[i] * 2 + tile[i]
                T.copy(total, C[r * 2 + c, :])

    a = floats(6, 5, 32)
    _, c = pipelines.check(program, a, np.zeros((6, 32), "float32"))
    np.testing.assert_array_equal(c, (a * 2.0 ** np.arange(4, -1, -1)[:, None]).sum(1))


def test_a_pipelined_loop_in_a_pipelined_loop(pipelines):
    @T.prim_func
    def program(
        A: T.Tensor((4, 32), "float32"),
        B: T.Tensor((4, 3, 32), "float32"),
        C: T.Tensor((32,), "float32"),
    ):
        with T.Kernel(1, threads=32):
            outer = T.alloc_shared((32,), "float32")
            inner = T.alloc_shared((32,), "float32")
            total = T.alloc_fragment((32,), "float32")
            T.clear(total)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[k, :], outer)
                for j in T.Pipelined(3, num_stages=3):
                    T.copy(B[k, j, :], inner)
                    for i in T.Parallel(32):
                        total[i] = total[i] * 2 + outer[i] * inner[i]
            T.copy(total, C)

    a, b = floats(4, 32), floats(4, 3, 32)
    text = pipelines.text(program)
    assert "outer = T.alloc_buffer((2, 32)" in text
    assert "inner = T.alloc_buffer((3, 32)" in text
    expected = np.zeros(32)
    for k, j in np.ndindex(4, 3):
        expected = expected * 2 + a[k] * b[k, j]
    result = pipelines.check(program, a, b, np.zeros(32, "float32"))
    np.testing.assert_array_equal(result[2], expected)


def test_loops_with_different_numbers_of_stages_share_a_tile(pipelines):
    @T.prim_func
    def program(
        A: T.Tensor((5, 32), "float32"),
        B: T.Tensor((4, 32), "float32"),
        C: T.Tensor((32,), "float32"),
    ):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            total = T.alloc_fragment((32,), "float32")
            T.copy(A[0, :], tile)
            T.copy(tile, total)
            for k in T.Pipelined(1, 5, num_stages=2):
                T.copy(A[k, :], tile)
                for i in T.Parallel(32):
                    total[i] = total[i] * 2 + tile[i]
            for k in T.Pipelined(4, num_stages=3):
                T.copy(B[k, :], tile)
                for i in T.Parallel(32):
                    total[i] = total[i] * 3 + tile[i]
            T.copy(total, tile)
            T.copy(tile, C)

    a, b = floats(5, 32), floats(4, 32)
    assert "tile = T.alloc_buffer((3, 32)" in pipelines.text(program)
    expected = a[0].astype(float)
    for factor, rows in ((2, a[1:]), (3, b)):
        for row in rows:
            expected = expected * factor + row
    result = pipelines.check(program, a, b, np.zeros(32, "float32"))
    np.testing.assert_array_equal(result[2], expected)


@pytest.mark.parametrize("trips", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_the_last_tile_is_read_after_the_loop(pipelines, trips, num_stages, is_dynamic):
    @T.prim_func
    def program(A: T.Tensor((6, 32), "float32"), C: T.Tensor((2, 32), "float32"), n: T.int32):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            total = T.alloc_fragment((32,), "float32")
            T.clear(total)
            T.copy(A[5, :], tile)
            for k in T.Pipelined(n if is_dynamic else trips, num_stages=num_stages):
                T.copy(A[k, :], tile)
                for i in T.Parallel(32):
                    total[i] = total[i] * 2 + tile[i]
            T.copy(tile, C[0, :])
            T.copy(total, C[1, :])

    a = floats(6, 32)
    result = pipelines.check(program, a, np.zeros((2, 32), "float32"), trips)
    np.testing.assert_array_equal(result[1][0], a[trips - 1] if trips else a[5])


@pytest.mark.parametrize("num_stages", [2, 3])
def test_a_consumer_writes_back_into_a_pipelined_tile(pipelines, num_stages):
    @T.prim_func
    def program(A: T.Tensor((5, 32), "float32"), C: T.Tensor((5, 32), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            for k in T.Pipelined(5, num_stages=num_stages):
                T.copy(A[k, :], tile)
                for i in T.Parallel(32):
                    tile[i] = tile[i] * 2 + 1
                T.copy(tile, C[k, :])

    a = floats(5, 32)
    result = pipelines.check(program, a, np.zeros((5, 32), "float32"))
    assert f"tile = T.alloc_buffer(({num_stages}, 32)" in pipelines.text(program)
    np.testing.assert_array_equal(result[1], a * 2 + 1)


@pytest.mark.parametrize(
    ("order", "stage", "versions"),
    [
        ([0, 1, 2], [0, 0, 1], 2),
        ([0, 1, 2], [0, 0, 2], 3),
        ([1, 2, 0], [0, 0, 2], 2),
        ([1, 2, 0], [0, 0, 1], 1),
        ([0, 1, 2], [1, 1, 2], 2),
        ([2, 0, 1], [0, 1, 3], 3),
    ],
)
@pytest.mark.parametrize("trips", [0, 1, 3, 7])
def test_stages_and_order_by_hand(pipelines, order, stage, versions, trips):
    program = gemm(trips, 0, order=order, stage=stage)
    depth = max(trips, 1) * 16
    a, b = floats(40, depth, dtype="float16"), floats(depth, 24, dtype="float16")
    text = pipelines.text(program)
    assert f"A_shared = T.alloc_buffer(({versions}, 32, 16)" in text or versions == 1
    result = pipelines.run(program, a, b, np.zeros((40, 24), "float32"))
    expected = a.astype(float) @ b if trips else np.zeros((40, 24))
    np.testing.assert_array_equal(result[2], expected)


def test_names_are_bound_again_for_the_iteration_that_needs_them(pipelines):
    @T.prim_func
    def program(
        A: T.Tensor((8, 32), "float32"),
        rows: T.Tensor((6,), "int32"),
        C: T.Tensor((8, 32), "float32"),
    ):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            for k in T.Pipelined(6, num_stages=3):
                row = rows[k]
                other = row + 1
                T.copy(A[row, :], tile)
                for i in T.Parallel(32):
                    C[other, i] = tile[i] + row

    a, rows = floats(8, 32), np.array([3, 0, 6, 2, 5, 1], "int32")
    text = pipelines.text(program)
    assert "= rows[k + 2]" in text
    assert "= rows[k]" in text
    result = pipelines.check(program, a, rows, np.zeros((8, 32), "float32"))
    np.testing.assert_array_equal(result[2][rows + 1], a[rows] + rows[:, None])


def test_a_name_read_from_what_the_loop_writes_stays_with_the_consumer(pipelines):
    @T.prim_func
    def program(A: T.Tensor((6, 32), "float32"), C: T.Tensor((6, 32), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            for k in T.Pipelined(6, num_stages=2):
                T.copy(A[k, :], tile)
                first = tile[0]
                for i in T.Parallel(32):
                    C[k, i] = tile[i] - first

    a = floats(6, 32)
    result = pipelines.check(program, a, np.zeros((6, 32), "float32"))
    np.testing.assert_array_equal(result[1], a - a[:, :1])


def test_views_and_vectors_of_a_pipelined_tile(pipelines):
    @T.prim_func
    def program(A: T.Tensor((5, 64), "float32"), C: T.Tensor((5, 64), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((64,), "float32")
            square = T.reshape(tile, (8, 8))
            bits = T.view(tile, (8, 8), "int32")
            for k in T.Pipelined(5, num_stages=3):
                T.copy(A[k, :], tile)
                for i in T.Parallel(8):
                    for v in T.vectorized(8):
                        square[i, v] = square[i, v] + 1
                for i, j in T.Parallel(8, 8):
                    C[k, i * 8 + j] = T.reinterpret(bits[j, i], "float32")

    a = floats(5, 64)
    assert "(3, 8, 8)" in pipelines.text(program).replace("view(3, 8, 8)", "(3, 8, 8)")
    result = pipelines.check(program, a, np.zeros((5, 64), "float32"))
    expected = (a + 1).reshape(5, 8, 8).swapaxes(1, 2).reshape(5, 64)
    np.testing.assert_array_equal(result[1], expected)


def test_operators_count_axes_of_a_pipelined_tile_from_its_own(pipelines):
    @T.prim_func
    def program(A: T.Tensor((5, 8, 16), "float32"), C: T.Tensor((5, 8, 16), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((8, 16), "float32")
            sums = T.alloc_fragment((8,), "float32")
            for k in T.Pipelined(5, num_stages=2):
                T.copy(A[k, :, :], tile)
                T.reduce_sum(tile, sums, dim=1)
                T.cumsum(tile, dim=1)
                for i, j in T.Parallel(8, 16):
                    C[k, i, j] = tile[i, j] - sums[i]

    a = floats(5, 8, 16)
    result = pipelines.check(program, a, np.zeros((5, 8, 16), "float32"))
    np.testing.assert_array_equal(result[1], a.cumsum(2) - a.sum(2, keepdims=True))


def test_tiles_and_variables_allocated_in_the_loop(pipelines):
    @T.prim_func
    def program(A: T.Tensor((5, 32), "float32"), C: T.Tensor((5, 32), "float32")):
        with T.Kernel(1, threads=32):
            for k in T.Pipelined(5, num_stages=2):
                tile = T.alloc_shared((32,), "float32")
                factor = T.alloc_var("float32", 2)
                T.copy(A[k, :], tile)
                factor += k
                for i in T.Parallel(32):
                    C[k, i] = tile[i] * factor

    a = floats(5, 32)
    assert "tile = T.alloc_buffer((2, 32)" in pipelines.text(program)
    result = pipelines.check(program, a, np.zeros((5, 32), "float32"))
    np.testing.assert_array_equal(result[1], a * (np.arange(5)[:, None] + 2))


def test_a_tile_that_is_copied_in_parts_and_padded_by_a_fill(pipelines):
    @T.prim_func
    def program(A: T.Tensor((5, 20), "float32"), C: T.Tensor((5, 32), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            for k in T.Pipelined(5, num_stages=3):
                T.fill(tile, 7)
                T.copy(A[k, 0:8], tile[0:8])
                T.copy(A[k, 8:20], tile[8:20])
                T.copy(tile, C[k, :])

    a = floats(5, 20)
    assert "tile = T.alloc_buffer((3, 32)" in pipelines.text(program)
    result = pipelines.check(program, a, np.zeros((5, 32), "float32"))
    np.testing.assert_array_equal(result[1], np.pad(a, ((0, 0), (0, 12)), constant_values=7))


def test_columns_of_an_image_run_ahead(pipelines):
    @T.prim_func
    def program(A: T.Tensor((1, 6, 6, 8), "float32"), C: T.Tensor((9, 16, 8), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((16, 8), "float32")
            for k in T.Pipelined(9, num_stages=2):
                T.im2col(A, tile, 0, k, 3, 1, 1, 0)
                T.copy(tile, C[k, :, :])

    a = floats(1, 6, 6, 8)
    assert "tile = T.alloc_buffer((2, 16, 8)" in pipelines.text(program)
    result = pipelines.check(program, a, np.zeros((9, 16, 8), "float32"))
    windows = [a[0, y : y + 4, x : x + 4].reshape(16, 8) for y in range(3) for x in range(3)]
    np.testing.assert_array_equal(result[1], np.stack(windows))


def test_an_operator_on_elements_reads_a_pipelined_tile_in_its_value(pipelines):
    @T.prim_func
    def program(
        A: T.Tensor((4, 16), "int32"), B: T.Tensor((4, 16), "int32"), C: T.Tensor((4, 16), "int32")
    ):
        with T.Kernel(1, threads=32):
            values = T.alloc_shared((16,), "int32")
            places = T.alloc_shared((16,), "int32")
            sums = T.alloc_shared((16,), "int32")
            steps = T.alloc_var("int32", 0)
            T.clear(sums)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[k, :], values)
                T.copy(B[k, :], places)
                for i in T.Parallel(16):
                    T.atomic_add(sums[places[i]], values[i])
                while steps < k * 3:
                    steps += 1
                for i in T.Parallel(16):
                    C[k, i] = sums[i] + steps

    a = RNG.integers(0, 9, (4, 16)).astype("int32")
    places = RNG.integers(0, 16, (4, 16)).astype("int32")
    result = pipelines.check(program, a, places, np.zeros((4, 16), "int32"))
    expected = np.zeros(16, "int32")
    for k in range(4):
        np.add.at(expected, places[k], a[k])
        np.testing.assert_array_equal(result[2][k], expected + 3 * k)


def test_operators_that_ask_for_matrices_take_a_version(pipelines):
    @T.prim_func
    def program(
        A: T.Tensor((4, 8, 16), "float32"),
        C: T.Tensor((4, 16, 8), "float32"),
        D: T.Tensor((4,), "bool"),
    ):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((8, 16), "float32")
            totals = T.alloc_fragment((8, 16), "float32")
            turned = T.alloc_fragment((16, 8), "float32")
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[k, :, :], tile)
                D[k] = T.any_of(tile)
                T.cumsum(tile, totals, dim=1)
                T.transpose(tile, turned)
                for i, j in T.Parallel(16, 8):
                    C[k, i, j] = turned[i, j] + totals[j, i]

    a = floats(4, 8, 16)
    a[2] = 0
    arrays = a, np.zeros((4, 16, 8), "float32"), np.zeros(4, "bool")
    _, c, d = pipelines.check(program, *arrays)
    np.testing.assert_array_equal(c, (a + a.cumsum(2)).swapaxes(1, 2))
    np.testing.assert_array_equal(d, [True, True, False, True])
