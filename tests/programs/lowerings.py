"""Products, sums and dynamic grids on a CPU: where a shortcut is taken, and where it would be wrong."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

M, N, K = 96, 64, 48


@program(
    parameters={"shape": [(5, 40, 7), (1, 64, 1), (16, 33, 20)]},
    tags={"loops"},
    targets=["llvm", "metal", "sm_80"],
)
def nests_with_serial_loops(
    A: float32[shape[0], shape[2]],
    B: float32[shape[2], shape[1]],
    X: float32[6, 40],
    C: float32[shape[0], shape[1]],
    Y: float32[3, 40],
):
    """A product by hand, windows, neighbours, rows, and a triangle."""
    with T.Kernel(1, threads=32):
        total = T.alloc_fragment((shape[0], shape[1]), "float32")
        for i, j in T.Parallel(shape[0], shape[1]):
            total[i, j] = 0
            for k in T.serial(shape[2]):
                total[i, j] += A[i, k] * B[k, j]
            C[i, j] = total[i, j] * 2
        for j in T.Parallel(32):
            Y[0, j] = 1
            for r in T.serial(6):
                Y[0, j] += 100
                for s in T.serial(9):
                    Y[0, j] += X[r, j + s] * (s + 1)
        for i in T.Parallel(40):
            Y[1, i] = 0
        for i in T.Parallel(32):
            for k in T.serial(i // 16, 8):
                T.atomic_add(Y[1, i + k], X[0, i])
        for i in T.Parallel(6):
            Y[2, i] = 0
            for k in T.serial(8):
                Y[2, i] += X[i, k]
            for k in T.serial(i):
                Y[2, i] += X[0, k]


@program(
    tags={"dynamic", "views"},
    sizes=[{"n": n} for n in (0, 1, 64, 65, 300)],
    targets=["llvm", "metal"],
    expects={"llvm": ["main_block_0", "main_block_1"]},
)
def kernels_of_a_dynamic_grid(A: float32[n, 48], C: float32[n, 48], factor: T.float32):
    """One block and several call one function: through views, and a tile too large for the stack."""
    flat = T.view(C, (n * 48,))
    with T.Kernel(T.ceildiv(n, 64), threads=64) as bx:
        tile = T.alloc_shared((64, 48), "float32")
        values = T.view(tile, (64 * 48,))
        T.copy(A[bx * 64, 0], tile)
        for i in T.Parallel(64 * 48):
            values[i] = values[i] * factor
        for i, j in T.Parallel(64, 48):
            if bx * 64 + i < n:
                flat[(bx * 64 + i) * 48 + j] = tile[i, j]
    with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
        for i, j in T.Parallel(32, 48):
            A[bx * 32 + i, j] = C[bx * 32 + i, j] + 1


@program(
    tags={"dynamic", "copy"},
    sizes=[{"n": 50, "stride": 60}, {"n": 33, "stride": 33}],
    targets=["llvm", "metal", "sm_80"],
)
def copy_to_rows_of_a_stride_of_the_call(
    A: float32[4, n], B: T.StridedTensor((4, n), (stride, 1), "float32")
):
    """The stride stands in no expression of the block, only in the tensor's declaration."""
    with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
        s = T.alloc_shared((4, 32), "float32")
        T.copy(A[0, bx * 32], s)
        T.copy(s, B[0, bx * 32])


@T.macro
def _finish(C, i):
    C[i] = 1
    T.thread_return()


@program(
    tags={"exits"},
    parameters={
        "form": ["some", "all of a block", "branches", "serial", "unroll", "never what follows"]
    },
    examples=[{"form": form} for form in ("some", "all of a block", "branches", "serial")]
    + [{"form": "unroll"}, {"form": "never what follows"}],
    inputs={"A": lambda rng, shape: rng.integers(0, 14, shape)},
    fast=["metal"],
)
def threads_that_return(A: int32[64, 6], C: int32[64]):
    """Threads that return skip what follows, in branches and loops."""
    with T.Kernel(2, threads=32) as bx:
        i = bx * 32 + T.get_thread_binding()
        if form == "some":
            if i >= 40:
                T.thread_return()
            own = T.alloc_local((2,), "int32")
            own[0] = A[i, 0]
            if own[0] % 3 == 0:
                C[i] = -1
                T.thread_return()
            elif own[0] % 3 == 1:
                own[0] += 1
            C[i] = own[0]
        elif form == "all of a block":
            if bx >= 1:
                T.thread_return()
            tile = T.alloc_shared((32,), "int32")
            T.copy(A[0:32, 1], tile)
            for j in T.Parallel(32):
                C[bx * 32 + j] = tile[j] * 2
        elif form == "branches":
            if A[i, 0] > 5:
                if A[i, 0] % 2 == 0:
                    if A[i, 0] % 4 == 0:
                        T.thread_return()
                    C[i] += 1
                C[i] += 10
            C[i] += 100
        elif form == "never what follows":
            _finish(C, i)
            C[i] = 2
        else:
            for j in getattr(T, form)(2):
                for k in getattr(T, form)(3):
                    if A[i, j * 3 + k] % 5 == 0:
                        T.thread_return()
                    C[i] += A[i, j * 3 + k]
                C[i] += 100
            C[i] += 1000


@program(
    tags={"exits"},
    parameters={"leave": ["continue", "break"]},
    examples=[{}, {"leave": "break"}],
    fast=["metal"],
)
def loops_of_one_iteration_that_are_left(C: int32[3]):
    """TVM replaces such a loop by its body."""
    with T.Kernel(3, threads=32) as bx:
        if leave == "continue":
            for q in range(1):
                if bx == 1:
                    continue
                C[bx] = q + 5
        else:
            for q in range(bx, bx + 1):
                if bx == 1:
                    break
                C[bx] = q - bx + 5


@program(
    tags={"roles", "pipelined", "gemm"},
    parameters={"uses": ["nothing", "consumer", "end", "before", "view", "writes", "tile"]},
    examples=[
        *({"uses": uses} for uses in ("nothing", "consumer", "end", "before", "view")),
        *({"uses": uses} for uses in ("writes", "tile")),
    ],
    targets=["llvm", "sm_80", "sm_90a"],
    expects=lambda p: {
        "sm_90a": {
            "nothing": [": two roles, computing producer", "own_ptr["],
            "tile": ["w is computed from v, which a copy brings: threads that multiply do that"],
        }.get(p.uses, [": two roles\n    "])
    },
)
def roles_fragment_on_the_way(
    A: float16[64, 256], W: float32[64, 256], V: int8[64, 256], C: float32[64, 64]
):
    """Threads of the producer double weights, unless something else touches their fragment."""
    with T.Kernel(1, threads=128):
        T.annotate_warp_specialize()
        a, w = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        v = T.alloc_shared((64, 64), "int8")
        own, c = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        if uses == "before":
            T.clear(own)
        if uses == "view":
            T.fill(T.reshape(w, (4096,)), 0)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[0, k * 64], a)
            if uses == "tile":
                T.copy(V[0, k * 64], v)
                for i, j in T.Parallel(64, 64):
                    w[i, j] = v[i, j] * 2
            else:
                T.copy(W[0, k * 64], own)
                for i, j in T.Parallel(64, 64):
                    w[i, j] = own[i, j] * 2
            T.gemm(a, w, c, transpose_B=True)
            if uses == "consumer":
                for i, j in T.Parallel(64, 64):
                    c[i, j] += own[i, j]
            if uses == "writes":
                T.copy(own, W[0, k * 64])
        if uses == "end":
            for i, j in T.Parallel(64, 64):
                c[i, j] = c[i, j] * 0 + own[i, j]
        T.copy(c, C)


@program(
    tags={"pipelined"},
    parameters={"by_hand": [False, True]},
    examples=[{}, {"by_hand": True}],
    targets=["llvm", "sm_80"],
    expects={"sm_80": ["wait_group_7();"]},
)
def more_stages_than_copies_can_be_waited_for(A: float32[32, 32], C: float32[32, 32]):
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((32,), "float32")
        if by_hand:
            for k in T.Pipelined(32, order=[0, 1], stage=[0, 12]):
                T.copy(A[k, :], tile)
                T.copy(tile, C[k, :])
        else:
            for k in T.Pipelined(32, num_stages=256):
                T.copy(A[k, :], tile)
                T.copy(tile, C[k, :])


@program(
    tags={"vectors"},
    parameters={
        "moved": [
            ("int8", 16, "uint4"),
            ("float16", 8, "uint4"),
            ("float32", 4, "float4"),
            ("float32", 8, "C"),
        ]
    },
    expects=lambda p: {"metal": [f"*(device {p.moved[2]}*)" if p.moved[2] != "C" else "tile"]},
    targets=["llvm", "metal", "sm_80"],
)
def vectors_of_a_thread(
    A: T.Tensor((2, 64 * moved[1]), moved[0]), C: T.Tensor((2, 64 * moved[1]), moved[0])
):
    """A thread moves vectors of any dtype and of any number of lanes."""
    lanes = moved[1]
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((64 * lanes,), moved[0])
        own = T.alloc_local((lanes,), moved[0])
        thread = T.get_thread_binding()
        for k in T.serial(2):
            for i in T.serial(2):
                for v in T.vectorized(lanes):
                    own[v] = A[k, (i * 32 + thread) * lanes + v]
                for v in T.vectorized(lanes):
                    tile[(i * 32 + thread) * lanes + v] = own[v]
            for i in T.Parallel(64 * lanes):
                C[k, i] = tile[64 * lanes - 1 - i]


@program(
    tags={"blocks that stay", "roles", "pipelined", "gemm", "gather"},
    targets=["llvm", "sm_90a"],
    inputs={"places": lambda rng, shape: rng.integers(-1, 96, shape)},
    expects={"sm_90a": ["rows_held"]},
)
def gathered_rows_of_blocks_that_stay(
    A: float16[96, 128], B: float16[64, 128], places: int32[640], C: float32[640, 64]
):
    """The producer waits for the indices in front of the loop, and holds them."""
    with T.Kernel(5, threads=256) as block:
        T.annotate_persistent()
        rows = T.alloc_shared((128,), "int32")
        a, b = T.alloc_shared((128, 32), "float16"), T.alloc_shared((64, 32), "float16")
        c = T.alloc_fragment((128, 64), "float32")
        T.copy(places[block * 128], rows)
        T.clear(c)
        for k in T.Pipelined(4, num_stages=2):
            T.gather_rows(A, a, rows, k * 32)
            T.copy(B[0, k * 32], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[block * 128, 0])


@program(
    tags={"dynamic"},
    parameters={"extent": [(4, 0), (1, 1), (3, -2), (2, 6), (-1, 20)]},
    sizes=[{"n": 2}, {"n": 5}],
    examples=[{}, {"extent": (3, -2)}, {"extent": (-1, 20)}],
    targets=["llvm", "metal", "sm_80"],
)
def linear_extents(A: int64[extent[0] * n + extent[1]], B: int32[n * 2 + 3]):
    """An extent that is linear in a variable tells what the variable is."""
    with T.Kernel(1, threads=32):
        for i in T.Parallel(extent[0] * n + extent[1]):
            A[i] = n
        for i in T.Parallel(n):
            B[n + i] = n * 7


@program(tags={"threads"})
def operators_on_arrays_of_threads(A: float32[16, 4], C: float32[16, 4]):
    """Each thread does the operators for itself."""
    with T.Kernel(1, threads=16):
        tx = T.get_thread_binding()
        row, total = T.alloc_local((4,), "float32"), T.alloc_local((4,), "float32")
        T.clear(total)
        T.copy(A[tx, 0:4], row)
        T.sync_threads()
        for k in T.serial(4):
            total[k] += row[k] * 3
        T.copy(total, C[tx, 0:4])


@program(
    tags={"copy"},
    inputs={"starts": lambda rng, shape: [5, 90, 0, 68]},
)
def regions_whose_bounds_are_names(
    A: float32[100, 8], starts: int32[4], B: float32[4, 32, 8], C: float32[4, 32, 8]
):
    with T.Kernel(4, threads=32) as bx:
        tile = T.alloc_shared((32, 8), "float32")
        begin = bx * 32
        end = (bx + 1) * 32
        T.copy(A[begin:end, :], tile)
        T.copy(tile, B[bx, :, :])
        first = starts[bx]
        last = first + 32
        T.copy(A[first:last, :], tile)
        T.copy(tile, C[bx, :, :])


@program(
    tags={"dynamic"},
    parameters={"blocks": [1, 2]},
    sizes=[{"n": 40}, {"n": 16}],
    targets=["llvm", "metal", "sm_80"],
)
def loop_that_no_block_runs(A: float32[64 * blocks, n], B: float32[64 * blocks, n]):
    """The loop may reach outside of a tensor; what the block's index is below stays known."""
    with T.Kernel(T.ceildiv(n, 16), blocks) as (bx, by):
        tile = T.alloc_shared((64, 16), "float32")
        T.copy(A[by * 64, bx * 16], tile)
        for k in T.serial(blocks, by + 1):
            T.copy(A[k * 64, bx * 16], tile)
        T.copy(tile, B[by * 64, bx * 16])
