"""Copies by tensor maps: tiles to shared memory and back, sums to tensors, parts that are added."""

from __future__ import annotations

from functools import partial

import tvmtile.language as T
from tests.programs import program

LOADS = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
STORES = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"

by_hand = partial(program, targets=["sm_90a", "sm_100a", "gpu"])
hopper = partial(program, targets=["llvm", "sm_90a", "gpu"])


@by_hand(
    parameters={
        "dtype": ["float16", "bfloat16", "float32", "float64", "int8", "int32", "float8_e4m3fn"],
        "shape": [(50, 80, 32, 32), (100, 320, 64, 320), (64, 128, 16, 128), (70, 40, 32, 16)],
    },
    examples=[
        *({"dtype": dtype} for dtype in ("float16", "float32", "float64", "int8", "float8_e4m3fn")),
        {"shape": (100, 320, 64, 320)},  # rows longer than a box lie in panels
    ],
    where=lambda p: p.shape[3] <= 32 or p.dtype == "float16",
    expects={"sm_90a": [LOADS]},
    fast=["sm_90a"],
)
def bulk_load_by_hand(A: dtype[shape[0], shape[1]], C: dtype[shape[0], shape[1]]):
    """Ragged tiles; all threads arrive at an mbarrier and wait."""
    rows, columns = shape[2], shape[3]
    with T.Kernel(T.ceildiv(shape[1], columns), T.ceildiv(shape[0], rows), threads=128) as (x, y):
        t = T.alloc_shared((rows, columns), dtype)
        arrived = T.alloc_barrier(128)
        T.tma_copy(A[y * rows, x * columns], t, barrier=arrived)
        T.mbarrier_arrive(arrived)
        T.mbarrier_wait_parity(arrived, 0)
        T.copy(t, C[y * rows, x * columns])


@by_hand(fast=["sm_90a"])
def bulk_load_of_boxes_of_other_axes(
    A: float16[2, 3, 24, 4, 64],
    B: float32[8, 8, 32],
    D: float16[2, 3, 24, 4, 64],
    E: float32[8, 8, 32],
):
    """Axes that the tile does not have, and a box of three."""
    with T.Kernel(3, 12, 2, threads=128) as (x, y, z):
        t = T.alloc_shared((8, 64), "float16")
        u = T.alloc_shared((2, 8, 32), "float32")
        arrived = T.alloc_barrier(128)
        T.tma_copy(A[z, y // 4, x * 8 : x * 8 + 8, y % 4, :], t, barrier=arrived)
        T.mbarrier_arrive(arrived)
        T.mbarrier_wait_parity(arrived, 0)
        T.copy(t, D[z, y // 4, x * 8 : x * 8 + 8, y % 4, :])
        if x + z == 0:
            if y < 4:
                T.tma_copy(B[y * 2, 0, 0], u, barrier=arrived)
                T.mbarrier_arrive(arrived)
                T.mbarrier_wait_parity(arrived, 1)
                T.copy(u, E[y * 2, 0, 0])


@by_hand(sizes=[{"n": 100}, {"n": 32}, {"n": 1}, {"n": 0}])
def bulk_load_of_rows_counted_at_run_time(A: float16[n, 64], C: float16[n, 64]):
    with T.Kernel(T.ceildiv(n, 32), threads=128) as x:
        t = T.alloc_shared((32, 64), "float16")
        arrived = T.alloc_barrier(128)
        T.tma_copy(A[x * 32, 0], t, barrier=arrived)
        T.mbarrier_arrive(arrived)
        T.mbarrier_wait_parity(arrived, 0)
        T.copy(t, C[x * 32, 0])


@by_hand(
    tags={"pipelined"},
    parameters={
        "stages": [3, 1, 2, 4],
        "repeated": [1, 3],
        "guarded": [False, True],
        "roles": [False, True],
    },
    examples=[
        {"stages": 4, "repeated": 3},
        {},
        {"stages": 1, "repeated": 3},
        {"guarded": True, "stages": 2},
    ],
    inputs={"S": [1, 0, 1, 0, 0]},
    expects=lambda p: {
        "sm_90a": [
            LOADS,
            "wgmma.mma_async",
            *([] if p.roles else ["not setmaxnreg"]),
            *(["not % 3)"] if p.repeated > 1 else []),  # iterations count themselves
        ]
    },
    # A barrier for each iteration, and a copy of A and for each panel of B.
    counts=lambda p: {
        "sm_90a": "block_barriers == 2 * (1 + 5) and bulk_copies == 2 * 5 * 4 and async_copies == 0"
        if (p.stages, p.repeated, p.guarded, p.roles) == (3, 1, False, False)
        else "True"
    },
    fast=["sm_90a"],
)
def bulk_loads_of_a_product(
    A: float16[100, 160], B: float16[160, 88], S: int32[5], C: float32[100, 88]
):
    """Repeated loops, and iterations that a condition skips; three panels of B side by side."""
    with T.Kernel(2, threads=128) as by:
        T.annotate_warp_specialize(roles)
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 96), "float16")
        c = T.alloc_fragment((64, 96), "float32")
        T.clear(c)
        for _ in T.serial(repeated):
            for k in T.Pipelined(5, num_stages=stages):
                if not guarded or S[k] > 0:
                    T.copy(A[by * 64, k * 32], a, impl="tma")
                    T.copy(B[k * 32, 0], b, impl="tma")
                    T.gemm(a, b, c)
        T.copy(c, C[by * 64, 0], impl="elements")


@by_hand(
    tags={"pipelined"},
    inputs={"S": lambda rng, shape: rng.integers(0, 2, shape)},
    expects={"sm_90a": ["mbarrier", "not k_done"]},
    fast=["sm_90a"],
)
def bulk_loads_of_a_loop_in_a_branch(A: float32[128, 64], S: int32[4], C: float32[4, 64]):
    """A loop in a branch runs once at most, so nothing counts the iterations that are done."""
    with T.Kernel(4, threads=128) as bx:
        T.annotate_warp_specialize(False)
        a = T.alloc_shared((32, 64), "float32")
        total = T.alloc_fragment((64,), "float32")
        T.clear(total)
        if S[bx] > 0:
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[k * 32, 0], a, impl="tma")
                T.reduce_sum(a, total, dim=0, clear=False)
        T.copy(total, C[bx, :])


@by_hand(
    parameters={"times": [3, 1], "fills": [False, True]},
    examples=[{}, {"times": 1}, {"times": 1, "fills": True}],
    expects=lambda p: {
        "sm_90a": [("" if p.fills or p.times > 1 else "not ") + "fence.proxy.async"]
    },
)
def bulk_load_by_itself(A: float16[64, 64], C: float16[64, 64]):
    with T.Kernel(1, threads=128):
        t = T.alloc_shared((64, 64), "float16")
        if fills:
            T.clear(t)
        for _ in T.serial(times):
            T.copy(A, t, impl="tma")
            T.copy(t, C, impl="elements")


@by_hand(
    parameters={
        "dtype": ["float16", "float32", "int32"],
        "explicit": [True, False],
        "steps": [1, 3],
        "shape": [(150, 80, 32, 32), (100, 320, 64, 320)],
    },
    examples=[
        {"steps": 3},
        {"dtype": "float32", "explicit": False, "steps": 3},
        {"dtype": "int32"},
        {"shape": (100, 320, 64, 320)},
    ],
    where=lambda p: p.shape[3] <= 32 or (p.dtype == "float16" and p.steps == 1),
    expects={"sm_90a": [STORES, "fence.proxy.async.shared::cta"]},
    fast=["sm_90a"],
)
def bulk_stores(A: dtype[M, N], C: dtype[M, N]):
    """Ragged tiles that are written in shared memory, one after the other."""
    M, N, rows, columns = shape
    with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows * steps), threads=128) as (x, y):
        t = T.alloc_shared((rows, columns), dtype)
        for k in T.serial(steps):
            row = (y * steps + k) * rows
            for i, j in T.Parallel(rows, columns):
                t[i, j] = A[row + i, x * columns + j] * 2
            if explicit:
                T.tma_copy(t, C[row, x * columns])
                T.tma_store_wait()
            else:
                T.copy(t, C[row, x * columns], impl="tma")


@by_hand(
    expects={"sm_90a": ["cp.async.bulk.wait_group 0;"]},  # the tensor is written, too
    fast=["sm_90a"],
)
def bulk_stores_of_which_two_are_under_way(A: float16[6, 32, 64], C: float16[6, 32, 64]):
    with T.Kernel(1, threads=128):
        t = T.alloc_shared((2, 32, 64), "float16")
        for k in T.serial(6):
            T.tma_store_wait(1)
            T.copy(A[k, 0, 0], t[k % 2, 0:32, 0:64])
            T.tma_copy(t[k % 2, 0:32, 0:64], C[k, 0, 0])
        T.tma_store_wait(0, read=False)


@program(
    tags={"pipelined"},
    parameters={
        "out": ["float16", "float32", "bfloat16"],
        "block": [
            (64, 64, 128), (128, 128, 256), (128, 256, 256), (256, 64, 256), (192, 64, 384),
            (64, 8, 128), (64, 16, 128), (64, 24, 128), (64, 40, 128), (64, 96, 128), (64, 192, 128),
        ],
        "tiles": [(1, 1), (2, 2)],
        "rest": [(0, 0), (28, 8), (63, 0)],
        "roles": [False, True],
    },
    examples=[
        {"out": "bfloat16", "tiles": (2, 2), "rest": (28, 8)},
        {"block": (128, 128, 256), "roles": True, "out": "float32"},
        {"block": (128, 256, 256), "roles": True},
        {"block": (256, 64, 256), "rest": (63, 0), "out": "float32"},
        {"block": (192, 64, 384), "roles": True, "tiles": (2, 2)},
        {"block": (64, 8, 128)},
        {"block": (64, 16, 128), "out": "float32"},
        {"block": (64, 24, 128)},
        {"block": (64, 40, 128), "out": "float32"},
        {"block": (64, 96, 128)},
        {"block": (64, 192, 128), "out": "float32", "rest": (28, 8)},
    ],
    where=lambda p: p.block[1] > 8 or p.rest[1] == 0,
    expects={"sm_90a": [STORES]},
    fast=["sm_90a"],
)  # fmt: skip
def bulk_stores_of_sums(A: float16[M, 48], B: float16[48, N], C: out[M, N]):
    """Warpgroups share sums; pieces are as wide as a swizzle may be, down to rows of 16 bytes."""
    rows, columns, threads = block
    M, N = rows * tiles[0] - rest[0], columns * tiles[1] - rest[1]
    with T.Kernel(tiles[1], tiles[0], threads=threads) as (bx, by):
        T.annotate_warp_specialize(roles)
        a = T.alloc_shared((rows, 32), "float16")
        b = T.alloc_shared((32, columns), "float16")
        c = T.alloc_fragment((rows, columns), "float32")
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[by * rows, k * 32], a)
            T.copy(B[k * 32, bx * columns], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * rows, bx * columns])


@hopper(
    parameters={
        "dtypes": [
            ("float16", "float32", "float16"),
            ("float16", "float32", "float32"),
            ("int8", "int32", "int32"),
        ],
        "shape": [(64, 288), (64, 272), (128, 24), (192, 8), (64, 96)],
    },
    examples=[
        {},
        {"shape": (64, 272), "dtypes": ("float16", "float32", "float32")},
        {"shape": (128, 24)},
        {"shape": (192, 8), "dtypes": ("float16", "float32", "float32")},
        {"dtypes": ("int8", "int32", "int32"), "shape": (64, 96)},
    ],
    where=lambda p: p.dtypes[0] != "int8" or p.shape == (64, 96),
    expects={"sm_90a": ["cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group"]},
)
def bulk_stores_of_one_instruction(
    A: dtypes[0][shape[0], 32], B: dtypes[0][shape[1], 32], C: dtypes[2][shape[0], 3, shape[1]]
):
    """Neighbours in registers, of which `stmatrix` takes four, may be far apart in the tile."""
    with T.Kernel(3, threads=128) as head:
        a = T.alloc_shared((shape[0], 32), dtypes[0])
        b = T.alloc_shared((shape[1], 32), dtypes[0])
        c = T.alloc_fragment((shape[0], shape[1]), dtypes[1])
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, c, transpose_B=True, clear_accum=True)
        T.copy(c, C[0 : shape[0], head, 0 : shape[1]])


@hopper(
    parameters={"step": [64, 0, 128]},
    examples="step",
    expects={"sm_90a": [STORES]},
    fast=["sm_90a"],
)
def bulk_stores_that_a_loop_moves(
    A: float16[128, 32], B: float16[64, 32], C: float16[128 + 2 * step, 64]
):
    """A store to where a warpgroup stored in the iteration before leaves the last value."""
    with T.Kernel(1, threads=256):
        a = T.alloc_shared((128, 32), "float16")
        b = T.alloc_shared((64, 32), "float16")
        c = T.alloc_fragment((128, 64), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, c, transpose_B=True, clear_accum=True)
        for n in T.serial(3):
            for i, j in T.Parallel(128, 64):
                c[i, j] += 1
            T.copy(c, C[n * step, 0])


@hopper(
    tags={"pipelined"},
    parameters={"blocks": [1, 4, 2], "threads": [128, 256], "columns": [88, 152]},
    examples=[{}, {"blocks": 2, "threads": 256, "columns": 152}],
    where=lambda p: p.threads == 128 or p.blocks == 2,
    expects={"sm_90a": [STORES, "C_staged", "not C_staged_1"]},
)
def bulk_stores_of_parts_of_a_tile(
    A: float16[3 * rows + 40, 64], B: float16[64, columns], C: float16[3 * rows + 40, columns]
):
    """Parts of a tile, and those of the next one, go through the same slots in turn."""
    rows = threads // 2
    with T.Kernel(blocks, threads=threads) as block:
        for by, bx in T.Persistent([2, T.ceildiv(columns, 64)], blocks, block):
            a = T.alloc_shared((3 * rows, 32), "float16")
            b = T.alloc_shared((32, 64), "float16")
            first = T.alloc_fragment((rows, 64), "float32")
            second = T.alloc_fragment((rows, 64), "float32")
            third = T.alloc_fragment((rows, 64), "float32")
            for part in (first, second, third):
                T.clear(part)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[by * 3 * rows, k * 32], a)
                T.copy(B[k * 32, bx * 64], b)
                for part, row in ((first, 0), (second, rows), (third, 2 * rows)):
                    T.gemm(a[row : row + rows, :], b, part)
            for part, row in ((first, 0), (second, rows), (third, 2 * rows)):
                T.copy(part, C[by * 3 * rows + row, bx * 64])


@hopper(
    parameters={
        "shape": [(64, 64, 128), (100, 72, 64), (128, 128, 64), (128, 96, 64)],
        "block": [(64, 64, 128), (64, 128, 256), (128, 96, 256)],
    },
    examples=[
        {},
        {"shape": (100, 72, 64)},  # edges that the tensor map leaves out
        {"shape": (128, 128, 64), "block": (64, 128, 256)},  # two warpgroups share columns
        {"shape": (128, 96, 64), "block": (128, 96, 256)},
    ],
    expects={"sm_90a": [".add.tile.bulk_group"]},
    fast=["sm_90a"],
)
def bulk_additions_of_parts_of_a_product(
    A: float16[shape[0], shape[2]], B: float16[shape[2], shape[1]], C: float32[shape[0], shape[1]]
):
    """Blocks of the third axis add their part; each walks over two tiles."""
    rows, columns, threads = block
    with T.Kernel(
        T.ceildiv(shape[1], columns), T.ceildiv(shape[0], rows), shape[2] // 64, threads=threads
    ) as (bx, by, bz):
        a = T.alloc_shared((rows, 32), "float16")
        b = T.alloc_shared((32, columns), "float16")
        c = T.alloc_fragment((rows, columns), "float32")
        for k in T.serial(2):
            T.copy(A[by * rows, (bz * 2 + k) * 32], a)
            T.copy(B[(bz * 2 + k) * 32, bx * columns], b)
            T.gemm(a, b, c, clear_accum=True)
            T.atomic_add(C[by * rows, bx * columns], c)


@hopper(
    parameters={"then": ["fragment", "ones", "read"]},
    examples="then",
    expects=lambda p: {
        "sm_90a": [("" if p.then == "fragment" else "not ") + ".add.tile.bulk_group"]
    },
)
def bulk_additions_and_other_uses_of_the_tensor(A: float32[64, 64], C: float32[64, 64]):
    """Additions go on with the kernel: what is read behind them would be of before or after."""
    with T.Kernel(1, threads=128):
        a = T.alloc_fragment((64, 64), "float32")
        T.copy(A, a)
        T.atomic_add(C[0, 0], a)
        if then == "fragment":
            T.atomic_add(C[0, 0], a)
        if then == "ones":
            T.atomic_add(C[0:64, 0:64], T.float32(1))
        if then == "read":
            T.copy(C, a)
            T.copy(a, A)


@hopper(
    parameters={"assumes": [True, False], "row": [0, -64, -15, 56, 64]},
    examples=[{"row": 56}, *({"row": row, "assumes": False} for row in (-15, -64, 0, 64))],
    where=lambda p: p.row >= 0 or not p.assumes,
    inputs={"at": lambda rng, shape: row},
    expects=lambda p: {"sm_90a": [("" if p.assumes else "not ") + "cp_async_bulk"]},
)
def bulk_stores_in_front_of_a_tensor(O: float32[64, 64], P: float32[64, 64], at: T.int32):
    """An H200 takes them for illegal: threads store where a tile may begin in front."""
    with T.Kernel(1, threads=128):
        zeros = T.alloc_shared((64, 16), "float16")
        sums = T.alloc_fragment((64, 64), "float32")
        ones = T.alloc_fragment((16, 64), "float32")
        T.fill(zeros, 0)
        T.fill(sums, 1)
        T.fill(ones, 1)
        T.gemm(zeros, zeros, sums, transpose_B=True)
        if assumes:
            T.assume(at >= 0)
        T.atomic_add(O[at, 0], ones)
        T.copy(sums, P[at, 0])


@hopper(
    sizes=[{"m": 64, "n": 64}, {"m": 300, "n": 132}, {"m": 40, "n": 4}],
    expects={"sm_90a": ["cp_async_bulk_tensor"]},
)
def bulk_stores_of_persistent_blocks(A: bfloat16[m, 32], O: float32[m, n]):
    """Tiles of persistent blocks begin inside a tensor, also where its sizes are not known."""
    with T.Kernel(3, threads=128) as block:
        T.assume(n % 4 == 0)
        tile = T.alloc_shared((64, 32), "bfloat16")
        sums = T.alloc_fragment((64, 64), "float32")
        for i, j in T.Persistent([T.ceildiv(m, 64), T.ceildiv(n, 64)], 3, block):
            T.copy(A[i * 64, 0], tile)
            T.clear(sums)
            T.gemm(tile, tile, sums, transpose_B=True)
            T.copy(sums, O[i * 64, j * 64])


@program(
    parameters={
        "dtypes": [("float32", "float32"), ("float16", "float16"), ("float32", "float16")],
        "extents": [(40, 72), (64, 64)],
        "staged": [False, True],
    },
    examples=[
        {},
        {"dtypes": ("float16", "float16")},
        {"dtypes": ("float32", "float16")},
        {"staged": True},
    ],
    expects=lambda p: {
        "metal": [("" if p.dtypes[0] == p.dtypes[1] else "not ") + "simdgroup_store"]
    },
    fast=["metal"],
)
def stores_of_accumulators(
    A: float16[extents[0], 32], B: float16[32, extents[1]], C: T.Tensor(extents, dtypes[1])
):
    """Accumulators are stored as whole matrices if not converted, at edges by elements."""
    with T.Kernel(T.ceildiv(extents[1], 32), T.ceildiv(extents[0], 32), threads=128) as (bx, by):
        a = T.alloc_shared((32, 32), "float16")
        b = T.alloc_shared((32, 32), "float16")
        c = T.alloc_fragment((32, 32), dtypes[0])
        T.copy(A[by * 32, 0], a)
        T.copy(B[0, bx * 32], b)
        T.clear(c)
        T.gemm(a, b, c)
        if staged:
            s = T.alloc_shared((32, 32), dtypes[0])
            T.copy(c, s)
            T.copy(s, C[by * 32, bx * 32])
        else:
            T.copy(c, C[by * 32, bx * 32])


@program(
    parameters={"columns": [8, 24, 32], "threads": [128, 64], "dtype": ["float16", "bfloat16"]},
    examples=[{}, {"columns": 24}, {"columns": 32, "threads": 64, "dtype": "bfloat16"}],
    counts={"metal": "threadgroup_barriers == 1"},
)
def stores_of_operands(
    A: dtype[64, 16],
    B: dtype[16, columns],
    C: float32[64, columns],
    D: dtype[columns, 16],
    E: dtype[16, columns],
):
    """One of the warps that hold a matrix stores it, and a barrier can follow."""
    with T.Kernel(1, threads=threads):
        a = T.alloc_shared((64, 16), dtype)
        b = T.alloc_fragment((16, columns), dtype)
        c = T.alloc_fragment((64, columns), "float32")
        staged = T.alloc_shared((16, columns), dtype)
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, c, clear_accum=True)
        T.copy(b, staged)
        for i, j in T.Parallel(columns, 16):
            D[i, j] = staged[j, i]
        T.copy(c, C)
        T.copy(b, E)
