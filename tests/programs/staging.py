"""Tiles of shared memory that a target need not have: Metal's simdgroups read matrices from memory."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

STAGED = {
    ("Square", None): (True, True),
    ("FullRow", None): (False, True),
    ("FullCol", None): (True, False),
    ("Square", True): (False, False),
    ("FullRow", False): (True, True),
}


def _tiles(**staged):
    """What the source has of tiles, by their names."""
    texts = {name: f"threadgroup half {name}[" for name in staged}
    return {"metal": [text if staged[name] else f"not {text}" for name, text in texts.items()]}


@program(
    tags={"staging", "gemm"},
    parameters={
        "policy": ["Square", "FullRow", "FullCol"],
        "direct": [None, True, False],
        "extents": [(64, 64, 64), (40, 72, 56)],
    },
    examples=[
        {},
        {"policy": "FullRow"},
        {"policy": "FullCol"},
        {"direct": True, "extents": (40, 72, 56)},
        {"policy": "FullRow", "direct": False},
        {"policy": "FullRow", "extents": (40, 72, 56)},
    ],
    where=lambda p: (p.policy, p.direct) in STAGED,
    expects=lambda p: _tiles(
        A_shared=STAGED[p.policy, p.direct][0], B_shared=STAGED[p.policy, p.direct][1]
    ),
    fast=["metal"],
)
def staging_where_several_simdgroups_read_a_tile(
    A: T.Tensor((extents[0], extents[2]), "float16"),
    B: T.Tensor((extents[2], extents[1]), "float16"),
    C: T.Tensor((extents[0], extents[1]), "float32"),
):
    m, n, k = extents
    with T.Kernel(T.ceildiv(n, 32), T.ceildiv(m, 32), threads=128) as (bx, by):
        A_shared, B_shared = (
            T.alloc_shared((32, 32), "float16"),
            T.alloc_shared((32, 32), "float16"),
        )
        C_local = T.alloc_fragment((32, 32), "float32")
        T.clear(C_local)
        for step in T.Pipelined(T.ceildiv(k, 32), num_stages=0):
            if direct is None:
                T.copy(A[by * 32, step * 32], A_shared)
                T.copy(B[step * 32, bx * 32], B_shared)
            else:
                T.copy(A[by * 32, step * 32], A_shared, annotations={"direct": direct})
                T.copy(B[step * 32, bx * 32], B_shared, annotations={"direct": direct})
            T.gemm(A_shared, B_shared, C_local, policy=getattr(T.GemmWarpPolicy, policy))
        T.copy(C_local, C[by * 32, bx * 32])


@program(
    tags={"staging", "gemm"},
    parameters={"form": ["read in an inner loop", "written by the kernel", "written by a name"]},
    examples=[{}, {"form": "written by the kernel"}, {"form": "written by a name"}],
    expects=_tiles(tile=True),
)
def staging_of_tiles_that_are_needed(
    A: T.Tensor((32, 32), "float16"),
    B: T.Tensor((32, 32), "float16"),
    C: T.Tensor((32, 32), "float16"),
):
    before = T.reshape(A, (1, 32, 32))
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((32, 32), "float16")
        other = T.alloc_shared((32, 32), "float16")
        C_local = T.alloc_fragment((32, 32), "float32")
        T.clear(C_local)
        T.copy(B, other)
        if form == "read in an inner loop":
            T.copy(A, tile, annotations={"direct": True})
            for turn in T.serial(2):
                T.gemm(tile, tile, C_local, policy=T.GemmWarpPolicy.FullRow)
            T.copy(C_local, C)
        elif form == "written by the kernel":
            T.copy(A, tile)
            T.gemm(tile, other, C_local, policy=T.GemmWarpPolicy.FullRow)
            T.copy(C_local, A)
        else:
            T.copy(before[0, 0:32, 0:32], tile)
            for i, j in T.Parallel(32, 32):
                A[i, j] = 0
            T.gemm(tile, other, C_local, policy=T.GemmWarpPolicy.FullRow)
            T.copy(C_local, C)


@program(tags={"staging", "gemm"})
def staging_of_rows_that_are_no_neighbouring_axis(
    A: T.Tensor((2, 32, 3, 32), "float16"),
    B: T.Tensor((32, 32), "float16"),
    C: T.Tensor((32, 32), "float32"),
):
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((32, 32), "float16")
        C_local = T.alloc_fragment((32, 32), "float32")
        T.copy(A[1, 0:32, 2, :], tile)
        T.clear(C_local)
        T.gemm(tile, B, C_local)
        T.copy(C_local, C)


@program(
    tags={"staging", "gemm", "pipelined"},
    parameters={"by_hand": [False, True]},
    examples=[{}, {"by_hand": True}],
    expects=lambda p: _tiles(A_shared=p.by_hand, B_shared=p.by_hand),
)
def staging_in_a_loop_with_stages(
    A: T.Tensor((32, 64), "float16"),
    B: T.Tensor((64, 32), "float16"),
    C: T.Tensor((32, 32), "float32"),
):
    """A loop without copies has nothing to pipeline; one with stages by hand keeps its statements."""
    with T.Kernel(1, threads=32):
        A_shared, B_shared = (
            T.alloc_shared((32, 32), "float16"),
            T.alloc_shared((32, 32), "float16"),
        )
        c = T.alloc_fragment((32, 32), "float32")
        T.clear(c)
        if by_hand:
            for k in T.Pipelined(2, order=[0, 1, 2], stage=[0, 0, 1]):
                T.copy(A[0, k * 32], A_shared)
                T.copy(B[k * 32, 0], B_shared)
                T.gemm(A_shared, B_shared, c)
        else:
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[0, k * 32], A_shared)
                T.copy(B[k * 32, 0], B_shared)
                T.gemm(A_shared, B_shared, c)
        T.copy(c, C)
