"""Operators and copies that few programs have: copies by threads, tiles with layouts, narrow floats."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program
from tvmtile import layout as layouts

FLAGS = [False, True]
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
FLOAT8 = (E4M3, E5M2, "float8_e4m3fnuz", "float8_e5m2fnuz")


@program(
    parameters={"dtype": ["float32", "float16", "int8"], "some": [False, True]},
    examples=[{}, {"some": True, "dtype": "float16"}],
    counts={"sm_80": "async_copies == 6 * 64"},
    fast=["sm_80"],
)
def copies_of_threads_in_groups(A: dtype[6, 512], C: dtype[6, 512]):
    """A row is copied while the one before it is read; zeros where a predicate does not hold."""
    each = 4 if dtype == "float32" else 8
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((2, 64 * each), dtype)
        tx = T.get_thread_binding()
        T.ptx_cp_async(
            T.access_ptr(tile[0, tx * each], "w", each),
            T.access_ptr(A[0, tx * each], "r", each),
            each,
        )
        T.ptx_commit_group()
        for k in T.serial(6):
            if k < 5:
                if some:
                    T.ptx_cp_async(
                        T.access_ptr(tile[(k + 1) % 2, tx * each], "w", each),
                        T.access_ptr(A[k + 1, tx * each], "r", each),
                        each,
                        predicate=tx % 3 > 0,
                    )
                else:
                    T.ptx_cp_async(
                        T.access_ptr(tile[(k + 1) % 2, tx * each], "w", each),
                        T.access_ptr(A[k + 1, tx * each], "r", each),
                        each,
                    )
            T.ptx_commit_group()
            T.ptx_wait_group(1)
            T.sync_threads()
            for i in T.serial(each):
                C[k, tx * each + i] = tile[k % 2, 64 * each - 1 - (tx * each + i)]
            T.sync_threads()


@program(
    parameters={"stages": [2, 1, 3], "copied": [True, False]},
    examples=[
        {},
        {"copied": False, "stages": 1},
        {"copied": False},
        {"copied": False, "stages": 3},
    ],
    targets=["sm_90a", "sm_100a", "gpu"],
    expects={"sm_90a": ["mbarrier.try_wait"]},
    counts={"sm_90a": "block_barriers == 1"},  # behind the initialisation
    fast=["sm_90a"],
)
def tiles_that_mbarriers_hand_over(A: float32[6, 256], C: float32[6, 256]):
    """One half of the threads writes tiles, the other one reads them, reversed."""
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((stages, 256), "float32")
        full, empty = T.alloc_barrier([64] * stages), T.alloc_barrier([64] * stages)
        tx = T.get_thread_binding()
        for k in T.serial(6):
            if tx < 64:
                T.barrier_wait(empty[k % stages], k // stages % 2 ^ 1)
                if copied:
                    T.ptx_cp_async(
                        T.access_ptr(tile[k % stages, tx * 4], "w", 4),
                        T.access_ptr(A[k, tx * 4], "r", 4),
                        4,
                    )
                    T.cp_async_barrier_noinc(full[k % stages])
                else:
                    for i in T.serial(4):
                        tile[k % stages, tx * 4 + i] = A[k, tx * 4 + i]
                    T.mbarrier_arrive(full[k % stages])
            else:
                T.mbarrier_wait_parity(full[k % stages], k // stages % 2)
                for i in T.serial(4):
                    C[k, (tx - 64) * 4 + i] = tile[k % stages, (128 - tx) * 4 - 1 - i]
                T.barrier_arrive(empty[k % stages])


@T.macro
def copy_rows(A, Rows, a, k, thread):
    for p in T.serial(64 * (64 // COUNT) // 128):
        piece = p * 128 + thread
        T.ptx_cp_async(
            T.access_ptr(
                a[k % 2, piece // (64 // COUNT), piece % (64 // COUNT) * COUNT + SHIFT], "w", COUNT
            ),
            T.access_ptr(
                A[Rows[piece // (64 // COUNT)], k * 64 + piece % (64 // COUNT) * COUNT], "r", COUNT
            ),
            COUNT,
        )


@program(
    parameters={"COUNT": [8, 4, 2], "SHIFT": [0, 4], "groups": FLAGS},
    examples=[
        *({"COUNT": count, "groups": groups} for count, groups in ((8, 0), (8, 1), (4, 0), (2, 1))),
        {"SHIFT": 4, "COUNT": 4},
    ],
    where=lambda p: p.SHIFT == 0 or (p.COUNT == 4 and not p.groups),
    inputs={"Rows": lambda rng, shape: rng.integers(0, 256, shape)},
    targets=lambda p: [
        *("sm_90a", "gpu"),
        *([] if p.groups else ["llvm", "sm_80"]),
        *([] if p.groups or p.SHIFT else ["metal"]),  # whose memory is smaller
    ],
    expects={"sm_90a": ["wgmma.mma_async", "not mma.sync"]},
)
def gemm_of_rows_that_threads_copy(
    A: float16[256, 200],
    Rows: int32[64],
    B: float16[192, 128],
    C: float32[64, 128],
):
    """A piece of 16 bytes, or a part of one, lies in one place, and its address is no view."""
    with T.Kernel(1, threads=256 if groups else 128):
        a = T.alloc_shared((2, 64, 128 if SHIFT else 64), "float16")
        b = T.alloc_shared((64, 128), "float16")
        c = T.alloc_fragment((64, 128), "float32")
        tx = T.get_thread_binding()
        if groups:
            full, empty = T.alloc_barrier([128] * 2), T.alloc_barrier([128] * 2)
            if tx < 128:
                T.clear(c)
            for k in T.serial(3):
                if tx >= 128:
                    T.barrier_wait(empty[k % 2], k // 2 % 2 ^ 1)
                    copy_rows(A, Rows, a, k, tx - 128)
                    T.cp_async_barrier_noinc(full[k % 2])
                else:
                    T.copy(B[k * 64, 0], b)
                    T.barrier_wait(full[k % 2], k // 2 % 2)
                    T.gemm(a[k % 2, 0:64, 0:64], b, c)
                    T.barrier_arrive(empty[k % 2])
            if tx < 128:
                T.copy(c, C)
        else:
            T.clear(c)
            if SHIFT:
                T.clear(a)
            for k in T.serial(3):
                copy_rows(A, Rows, a, k, tx)
                T.ptx_commit_group()
                T.copy(B[k * 64, 0], b)
                T.ptx_wait_group(0)
                T.sync_threads()
                T.gemm(a[k % 2, 0:64, 0:64], b, c)
            T.copy(c, C)


LAYOUTS = {
    ("full_bank_swizzled",): "wgmma.mma_async",
    ("half_bank_swizzled",): "wgmma.mma_async",
    ("quarter_bank_swizzled",): "wgmma.mma_async",
    ("swizzled",): "wgmma.mma_async",
    # Of exclusive ors by a function: lines of 128 bytes, and pieces of 16 bytes that are exchanged.
    (64, 8, 64): "wgmma.mma_async",
    (32, 4, 64): "wgmma.mma_async",
    (64, 8, 128): "the layout of a is fixed by hand",
    (32, 4, 32): "the layout of a is fixed by hand",
    ("linear",): "the layout of a is fixed by hand",
}


@program(
    name="gemm_of_panels_that_two_groups_read",
    parameters={
        "layout": [("half_bank_swizzled",), ("full_bank_swizzled",)],
        "by_numbers": FLAGS,
        "transpose_A": FLAGS,
        "transpose_B": [False],
        "roles": [None, False],
        "n": [192],
        "threads": [256],
    },
    examples=[{}, {"layout": ("full_bank_swizzled",)}],
    targets=["sm_90a", "gpu"],
    # The second has 96 columns, and begins in the middle of a panel of 128 bytes.
    expects=lambda p: {
        "sm_90a": [
            "wgmma.mma_async" if "half" in p.layout[0] else "the layout of b is fixed by hand",
        ]
    },
)
@program(
    parameters={
        "layout": [*LAYOUTS],
        "by_numbers": FLAGS,
        "transpose_A": FLAGS,
        "transpose_B": FLAGS,
        "roles": [None, False],
        "n": [128],
        "threads": [128],
    },
    examples=[{"layout": layout} for layout in LAYOUTS]
    + [{"by_numbers": True}, {"by_numbers": True, "layout": ("quarter_bank_swizzled",)}],
    where=lambda p: not p.by_numbers or "bank" in str(p.layout[0]),
    targets=["sm_90a", "gpu"],
    expects=lambda p: {"sm_90a": [LAYOUTS[p.layout]]},
    drawn=12,
    fast=["sm_90a"],
)
def gemm_of_tiles_with_layouts(
    A: T.Tensor((192, 64) if transpose_A else (64, 192), "float16"),
    B: T.Tensor((n, 192) if transpose_B else (192, n), "float16"),
    C: float32[64, n],
):
    """Layouts are the hardware's, however they were made, and tensor maps fill them if they can."""
    rows, columns = (n, 64) if transpose_B else (64, n)
    with T.Kernel(1, threads=threads):
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((rows, columns), "float16")
        c = T.alloc_fragment((64, n), "float32")
        for tile, height, width in ((a, 64, 64), (b, rows, columns)):
            if len(layout) == 3:
                T.annotate_layout(
                    {
                        tile: T.Layout(
                            (height, width),
                            lambda i, j: (lambda n: n ^ (n // layout[2] % layout[1] * 8))(
                                j // layout[0] * height * layout[0] + i * layout[0] + j % layout[0]
                            ),
                        )
                    }
                )
            elif by_numbers:
                T.annotate_layout(
                    {tile: getattr(layouts, f"make_{layout[0]}_layout")(height, width, 16)}
                )
            else:
                T.annotate_layout({tile: getattr(layouts, f"make_{layout[0]}_layout")(tile)})
        if roles is not None:
            T.annotate_warp_specialize(roles)
        T.clear(c)
        for k in T.Pipelined(3, num_stages=2):
            if transpose_A:
                T.copy(A[k * 64, 0], a)
            else:
                T.copy(A[0, k * 64], a)
            if transpose_B:
                T.copy(B[0, k * 64], b)
            else:
                T.copy(B[k * 64, 0], b)
            T.gemm(a, b, c, transpose_A, transpose_B, T.GemmWarpPolicy.FullCol)
        T.copy(c, C)


@program(
    parameters={
        # Panels of 128, 64 and 32 bytes, of which each is a copy.
        "tile": [
            ("full_bank_swizzled", 128, 2),
            ("half_bank_swizzled", 32, 1),
            ("half_bank_swizzled", 64, 2),
            ("quarter_bank_swizzled", 16, 1),
            ("linear", 64, 1),
        ],
        "count": [128, 1],
    },
    examples=[
        {},
        {"tile": ("half_bank_swizzled", 32, 1), "count": 1},
        {"tile": ("half_bank_swizzled", 64, 2)},
        {"tile": ("quarter_bank_swizzled", 16, 1), "count": 1},
        {"tile": ("linear", 64, 1), "count": 1},
    ],
    targets=["sm_90a", "sm_100a", "gpu"],
    expects={"sm_90a": ["cp.async.bulk.tensor"]},
    counts=lambda p: {"sm_90a": f"bulk_copies == 2 * 2 * {p.tile[2]}"},
    fast=["sm_90a"],
)
def bulk_copies_of_swizzled_tiles(A: float16[32, tile[1]], C: float16[32, tile[1]]):
    """`count` threads arrive at an mbarrier; the tile is changed before it is stored."""
    with T.Kernel(2, threads=128) as x:
        t = T.alloc_shared((16, tile[1]), "float16")
        T.annotate_layout({t: getattr(layouts, f"make_{tile[0]}_layout")(t)})
        arrived = T.alloc_barrier(count)
        T.tma_copy(A[x * 16, 0], t, barrier=arrived)
        if count == 128:
            T.mbarrier_arrive(arrived)
        elif T.get_thread_binding() == 0:
            T.mbarrier_arrive(arrived)
        T.mbarrier_wait_parity(arrived, 0)
        for i, j in T.Parallel(16, tile[1]):
            t[i, j] = t[i, j] * 2
        T.tma_copy(t, C[x * 16, 0])
        T.tma_store_wait()


@program(
    inputs={"A": lambda rng, shape: np.linspace(-1e5, 1e5, 64)},
    targets=["llvm", "sm_80", "gpu"],
    expects={"sm_80": ["= sinf(", "not __sinf("]},
)
def functions_far_from_zero(A: float32[64], C: float32[3, 64]):
    """Functions are exact, and no approximations, far from zero."""
    with T.Kernel(1, threads=32):
        for row, function in ((0, "sin"), (1, "cos"), (2, "tan")):
            for i in T.Parallel(64):
                C[row, i] = getattr(T, function)(A[i])


FLOATS = ("float32", "float16", "bfloat16", *FLOAT8)


@program(
    parameters={"dtype": [*FLOATS]},
    examples="dtype",
    inputs={"X": lambda rng, shape: np.arange(128) / 8},
    targets=["llvm", "sm_80", "gpu"],
)
def floats_converted_in_turn(X: dtype[128], Y: int32[21, 128]):
    """ptxas makes one wrong instruction of `bfloat16 -> float16 -> int32`."""
    with T.Kernel(1, threads=128):
        for i in T.Parallel(128):
            for row, second in tuple(enumerate(FLOATS)):
                for place, integer in ((0, "int64"), (1, "int32"), (2, "uint8")):
                    Y[3 * row + place, i] = T.cast(T.cast(T.cast(X[i], second), integer), "int32")


@program(
    parameters={"dtype": [E4M3, E5M2, "float16", "bfloat16"]},
    targets=["llvm", "metal", "sm_80", "gpu"],
)
def floats_of_few_bits_computed(A: dtype[64], C: dtype[64]):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(64):
            C[i] = T.max(A[i] * A[i] + A[i], A[63 - i])


@program(
    parameters={
        "dtype": ["float32", "float16", "bfloat16"],
        "extents": [(64, 64), (50, 40), (50, 42)],
    },
    examples=[{}, {"extents": (50, 40), "dtype": "float16"}, {"extents": (50, 42)}],
    inputs={
        "A": lambda rng, shape: rng.integers(-8, 8, shape),
        "C": lambda rng, shape: np.zeros(shape),
    },
    expects=lambda p: {
        "sm_80": [("not " if p.extents[1] % 4 else "") + "x4_global_aligned_relaxed"]
    },
    drawn=6,
    fast=["metal"],
)
def atomic_tiles_by_vectors(A: float32[64, 64], C: T.Tensor(extents, dtype)):
    """Tiles in registers and in shared memory are added by vectors that the edge does not cut."""
    with T.Kernel(3, threads=128):
        own, shared = T.alloc_fragment((64, 64), "float32"), T.alloc_shared((64, 64), "float32")
        T.copy(A, own)
        T.copy(A, shared)
        T.atomic_add(C[0, 0], own)
        T.atomic_add(C[0, 0], shared)
