"""Products of matrices, tile by tile: one text, a space of parameters for each way."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import METAL4, program
from tests.programs.text import Name

FLAGS = [False, True]
POLICIES = ["Square", "FullRow", "FullCol"]
HALF, BRAIN, SINGLE, DOUBLE = "float16", "bfloat16", "float32", "float64"
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
# Of A, of B, of the sums, of C.
PLAIN, SINGLES, BRAINS = (HALF, HALF, SINGLE, SINGLE), (SINGLE,) * 4, (BRAIN, BRAIN, SINGLE, BRAIN)
NARROWED = (HALF, HALF, SINGLE, HALF)
FLOATS = [
    *(PLAIN, NARROWED, (HALF,) * 4, (HALF, HALF, HALF, SINGLE), (HALF, HALF, SINGLE, BRAIN)),
    *(BRAINS, (BRAIN, BRAIN, SINGLE, SINGLE), SINGLES, (SINGLE, SINGLE, SINGLE, HALF)),
]
BYTES = [
    *((dtype, dtype, "int32", "int32") for dtype in ("int8", "uint8")),
    *((dtype, dtype, SINGLE, SINGLE) for dtype in (E4M3, E5M2)),
]
MIXED = [  # no matrix unit multiplies most of them
    *((HALF, SINGLE, SINGLE), (HALF, BRAIN, SINGLE), (HALF, HALF, BRAIN), (BRAIN, HALF, SINGLE)),
    *(("int8", "int8", "int32"), ("uint8", "int8", SINGLE), (SINGLE, BRAIN, SINGLE)),
    ("int32", "int32", "int32"),
]
DYNAMIC = (Name("M"), Name("N"), Name("K"))
PLAIN_GEMM = {
    "dtypes": PLAIN,
    "transpose_A": False,
    "transpose_B": False,
    "block": (32, 32, 32),
    "extents": (64, 64, 64),
    "policy": "Square",
    "precision": "tf32",
    "threads": 128,
    "stages": 0,
    "steps": None,  # as many as K needs
    "order": None,  # of statements and their stages, by hand
    "begin": (),  # statements
    "direct": None,
    "waits": False,
    "epilogue": None,
    "staged": False,
    "roles": None,
    "tensor_copies": True,
}
TURNED = {"transpose_A": FLAGS, "transpose_B": FLAGS}
EPILOGUES = [
    Name("T.if_then_else(sums[i, j] > 5, sums[i, j], 0)"),
    Name("T.max(sums[i, j], 0)"),
    Name("T.if_then_else(sums[i, j] > 0, sums[i, j], sums[i, j] * 0.125)"),
    Name("sums[i, j] * sums[i, j]"),
    Name("T.min(T.max(sums[i, j], -3), 4)"),
    Name("1 / (1 + T.exp(-T.clamp(sums[i, j], -30, 30)))"),
    Name("0.5 * sums[i, j] - 2"),
    Name("T.float32(3)"),
]
STAYS = Name("T.annotate_persistent()")  # blocks that stay
ROWS_OF_THE_CALL = (Name("M"), 64, 640)
OF_THE_CALL = {"extents": ROWS_OF_THE_CALL, "block": (128, 64, 64), "stages": 2, "begin": (STAYS,)}
SHARED = Name("T.annotate_min_blocks_per_sm(2)")
ASSUMED = Name("T.assume(n % 8 == 0)")
IN_ROWS, IN_COLUMNS = (
    Name("T.use_swizzle(2, order='row')"),
    Name("T.use_swizzle(3, order='column')"),
)
IN_STRIPS = Name("T.use_swizzle(2, order='strip')")


def _space(**given):
    """Lists of values; the other parameters are those of a plain product."""
    return {name: given.get(name, [value]) for name, value in PLAIN_GEMM.items()}


def _whole(p):
    """Metal's simdgroups can share the accumulator, and the stages fit into its memory."""
    m, n, k = p.block
    simdgroups = p.threads // 32
    rows = [r for r in range(1, simdgroups + 1) if not simdgroups % r]
    shared = any(not m // 8 % r and not n // 8 % (simdgroups // r) for r in rows)
    size = 4 if p.dtypes[0] == SINGLE else 2
    memory = (m * k + k * n) * size * max(1, p.stages)
    return shared and memory <= 30 * 1024 and m * n <= 64 * p.threads


def _mma(p):
    """The instruction of a product; none where the block has no whole ones along K."""
    of_a, _, sums, _ = p.dtypes
    shapes = {HALF: "m16n8k16", BRAIN: "m16n8k16", SINGLE: "m16n8k8", DOUBLE: "m8n8k4"}
    shape = shapes.get(of_a, "m16n8k32" if p.block[2] % 32 == 0 else "m16n8k16")
    if p.block[2] % int(shape.partition("k")[2]):
        return ""
    short = {HALF: "f16", BRAIN: "bf16", SINGLE: "f32", DOUBLE: "f64", E4M3: "e4m3", E5M2: "e5m2"}
    short |= {"int8": "s8", "uint8": "u8", "int32": "s32"}
    sums = SINGLE if sums == HALF else sums  # narrower ones are rounded behind it
    operand = "tf32" if of_a == SINGLE else short[of_a]
    return f"{shape}.row.col.{short[sums]}.{operand}.{operand}.{short[sums]}"


def _multiplies(p):
    """The number of products of 16x16 and 16x32 that the tiles are."""
    tiles = [-(-extent // step) for extent, step in zip(p.extents, p.block, strict=True)]
    m, n, k = (count * step for count, step in zip(tiles, p.block, strict=True))
    return m * n * k // (16 * 32 * 16)


def _wgmma(p):
    """Whole warpgroups of 64 rows and of columns that B's panels have; bytes lie along K."""
    _, n, k = p.block
    per_panel = 8 if p.transpose_B else 32
    groups, rows, columns = p.threads // 128, p.block[0] // 64, n // per_panel
    size = {SINGLE: 4, HALF: 2, BRAIN: 2}.get(p.dtypes[0], 1)
    fits = (p.block[0] + n) * k * size * max(1, p.stages) <= 160 * 1024
    shared = {
        "FullRow": rows % groups == 0,
        "FullCol": columns % groups == 0,
        "Square": rows * columns % groups == 0 and rows % groups == 0,
    }[p.policy]
    run_along_k = size == 2 or (p.transpose_B and not p.transpose_A)
    return fits and shared and run_along_k and k * size % 32 == 0 and n % per_panel == 0


def _staged(p):
    """Tiles that several of Metal's simdgroups read."""
    of_none = p.direct is True or (p.threads == 32 and p.order is None)
    of_a = not of_none and (p.policy != "FullRow" or p.direct is False)
    of_b = not of_none and p.policy != "FullCol"
    kept = ("" if of_a else "not ", "" if of_b else "not ")
    return {"metal": [f"{kept[0]}threadgroup half a[", f"{kept[1]}threadgroup half b["]}


@program(
    name="gemm_of_any_extents",
    parameters=_space(
        **TURNED,
        dtypes=[PLAIN, SINGLES, BRAINS],
        block=[(32, 32, 16), (64, 64, 32)],
        extents=[DYNAMIC, (Name("M"), 40, 48), (Name("M"), 64, 128)],
        stages=[2, 0, 3],
    ),
    examples=[{}, {"block": (64, 64, 32), "extents": (Name("M"), 40, 48), "stages": 3}],
    sizes=[{"M": 1, "N": 1, "K": 1}, {"M": 33, "N": 31, "K": 50}, {"M": 100, "N": 8, "K": 3}],
    fast=["metal", "sm_90a"],
)
@program(
    name="gemm_by_mma",
    parameters=_space(
        **TURNED,
        dtypes=[*FLOATS, *BYTES, (DOUBLE,) * 4],
        block=[
            (64, 64, 32), (32, 32, 64), (16, 16, 32), (16, 24, 32), (32, 8, 16), (64, 128, 32),
            (64, 64, 48),
        ],
        extents=[(100, 72, 88), (64, 64, 128), (128, 128, 64)],
        policy=POLICIES,
        threads=[128, 32, 64, 96, 256],
        stages=[3, 0, 2],
        roles=[False],
    ),
    examples=[
        {},
        {"dtypes": BYTES[0], "transpose_B": True, "extents": (64, 64, 144), "block": (64, 64, 48)},
        {"dtypes": (DOUBLE,) * 4, "block": (32, 32, 64)},
        {"threads": 96, "block": (16, 16, 32), "stages": 2},  # more warps than there is work for
        {"threads": 256, "block": (32, 8, 16), "stages": 2},
    ],
    where=lambda p: p.block[0] * p.block[1] <= 64 * p.threads,
    targets=lambda p: [
        *("llvm", "sm_89", "sm_100a"),
        *([] if p.dtypes[0] in (E4M3, E5M2) else ["sm_80", "gpu"]),
        *(["metal"] if p.dtypes[0] == HALF else []),
    ],
    drawn=24,
    expects=lambda p: {
        arch: [f"mma.sync.aligned.{_mma(p)}"] for arch in ("sm_80", "sm_89") if _mma(p)
    },
    fast=["sm_80"],
)  # fmt: skip
@program(
    name="gemm_by_wgmma",
    parameters=_space(
        dtypes=[NARROWED, BRAINS, SINGLES, *BYTES],
        transpose_A=FLAGS,
        transpose_B=[True, False],
        block=[
            (64, 64, 64), (64, 64, 32), (64, 64, 128), (128, 128, 32), (64, 256, 32),
            (128, 192, 32), (256, 64, 64), (64, 8, 32), (64, 24, 32), (64, 96, 32), (64, 288, 32),
        ],
        extents=[(100, 72, 88), (128, 128, 128), (64, 256, 64)],
        policy=POLICIES,
        threads=[128, 256, 512],
        stages=[2, 0, 1, 3, 4],
        roles=[None, False],
        tensor_copies=[True, False],
    ),
    examples=[
        {},
        {"transpose_A": True, "transpose_B": False, "stages": 4},
        {"dtypes": BYTES[0], "stages": 3},
        {"dtypes": BYTES[2], "block": (64, 64, 128)},
        {"dtypes": SINGLES, "block": (64, 64, 32)},
        {"block": (128, 128, 32), "threads": 256, "policy": "FullCol", "transpose_A": True},
        {"block": (64, 96, 32), "transpose_B": False, "roles": False},
        {"block": (64, 264, 32), "roles": False, "stages": 0},
    ],
    where=_wgmma,
    drawn=24,
    # Hopper keeps few bits of sums of float8: docs/emulator.md.
    targets=lambda p: ["llvm", "sm_90a", *([] if p.dtypes[0] in (E4M3, E5M2) else ["gpu"])],
    expects={"sm_90a": ["wgmma.mma_async", "not mma.sync"]},
    fast=["sm_90a"],
)  # fmt: skip
@program(
    name="gemm_by_fma",  # of float32 in full, and of tiles that no tensor core takes
    parameters=_space(
        **TURNED,
        dtypes=[SINGLES, PLAIN, NARROWED, (SINGLE, SINGLE, SINGLE, HALF), BRAINS, BYTES[0]],
        block=[(64, 64, 24), (32, 40, 8), (128, 16, 24), (64, 128, 40), (16, 128, 8)],
        extents=[(100, 72, 88), (64, 64, 48)],
        policy=POLICIES,
        precision=["ieee"],
        threads=[128, 32, 64, 256],
        stages=[2, 0, 3],
    ),
    examples=[
        {},
        {"dtypes": BRAINS, "policy": "FullRow", "block": (64, 128, 40), "transpose_B": True},
    ],
    where=lambda p: p.block[0] * p.block[1] <= 64 * p.threads,
    targets=["llvm", "sm_80", "sm_90a", "gpu"],
    expects={arch: ["gemm of sums: fma"] for arch in ("sm_80", "sm_90a")},
    fast=["sm_80"],
)
@program(
    name="gemm_that_a_pipeline_waits_for",  # a producer could not tell when a tile is free
    tags={"pipelined"},
    parameters=_space(block=[(64, 64, 64)], extents=[(64, 64, 256)], stages=[2], waits=[True]),
    fast=["sm_90a"],
)
@program(
    name="gemm_by_matmul2d",
    parameters=_space(
        **TURNED,
        dtypes=[PLAIN, (BRAIN, BRAIN, SINGLE, SINGLE)],
        block=[(64, 64, 32), (32, 64, 16), (64, 128, 32)],
        extents=[(64, 64, 32), (70, 56, 88), (64, 64, 64)],
        policy=POLICIES,
        threads=[128, 32, 64],
        stages=[0, 1, 2, 3],
    ),
    examples=[
        {},
        {"transpose_A": True, "transpose_B": True, "extents": (70, 56, 88), "block": (32, 64, 16)},
    ],
    where=lambda p: p.block[0] * p.block[1] <= 64 * p.threads,
    targets=[METAL4],
    drawn=8,
    expects=lambda p: {METAL4: [f"tvmtile_matmul2d_{'nt'[p.transpose_A]}{'nt'[p.transpose_B]}("]},
    counts=lambda p: {METAL4: f"tensor_multiplies == {_multiplies(p)} and matrix_multiplies == 0"},
    fast=[METAL4],
)
@program(
    name="gemm_without_matmul2d",
    parameters=_space(block=[(64, 64, 24)], extents=[(48, 64, 48)]),
    examples=[
        {},
        {"dtypes": SINGLES, "block": (64, 64, 32)},
        {"dtypes": (HALF, HALF, HALF, SINGLE), "block": (64, 64, 32)},
        {"block": (24, 64, 32)},
        {"block": (64, 16, 32), "threads": 32},
        {"block": (16, 32, 16), "threads": 64},
    ],
    targets=[METAL4],
    expects={METAL4: ["not matmul2d"]},
    counts={METAL4: "matrix_multiplies > 0"},
)
@program(
    name="gemm_with_an_epilogue",
    parameters=_space(
        dtypes=[PLAIN, NARROWED],
        block=[(64, 64, 32)],
        extents=[(70, 41, 40)],
        epilogue=EPILOGUES,
        stages=[0, 3],
    ),
    drawn=8,
    targets=["llvm", "metal", "sm_80", "sm_90a", "gpu"],
    fast=["metal", "sm_80"],
)
@program(
    name="gemm_stored_through_a_tile",  # on Hopper by `stmatrix`, into memory of none before it
    parameters=_space(
        dtypes=[NARROWED, (HALF, HALF, SINGLE, BRAIN), PLAIN],
        block=[(64, 128, 16), (128, 64, 48), (32, 96, 64), (64, 16, 16), (64, 64, 32)],
        extents=[(64, 128, 96), (128, 96, 48)],
        stages=[0, 2],
        staged=[True],
        roles=[False],
        tensor_copies=[True],
    ),
    examples=[{}, {"block": (64, 64, 32), "stages": 2}],
    drawn=4,
    targets=["llvm", "metal", "sm_80", "sm_90a", "gpu"],
    expects=lambda p: {
        "sm_90a": ["not stmatrix" if p.dtypes[3] == SINGLE else "stmatrix"],
        "sm_80": ["not stmatrix"],
    },
    fast=["sm_90a"],
)
@program(
    name="gemm_whose_tiles_simdgroups_share",  # or don't: Metal's read matrices from memory
    parameters=_space(
        policy=POLICIES, direct=[None, True, False], extents=[(64, 64, 64), (40, 72, 56)]
    ),
    examples=[
        {},
        {"policy": "FullRow"},
        {"policy": "FullCol"},
        {"direct": True, "extents": (40, 72, 56)},
        {"policy": "FullRow", "direct": False},
        {"policy": "FullRow", "extents": (40, 72, 56)},
        {"extents": (32, 32, 64), "threads": 32, "stages": 2},  # no copies are left to pipeline
        {"extents": (32, 32, 64), "threads": 32, "order": [0, 1, 2]},
    ],
    where=lambda p: p.direct is None or p.policy == ("Square" if p.direct else "FullRow"),
    expects=_staged,
    fast=["metal"],
)
@program(
    name="gemm_of_two_dtypes",
    parameters=_space(
        dtypes=[(*dtypes, dtypes[2]) for dtypes in MIXED],
        block=[(16, 16, 16)],
        extents=[(33, 20, 40)],
        threads=[64],
        stages=[2, 0],
    ),
    examples="dtypes",
    fast=["metal"],
)
@program(
    name="gemm_of_assumed_extents",
    tags={"pipelined"},
    parameters=_space(
        dtypes=[NARROWED],
        block=[(64, 64, 32), (128, 128, 32)],
        extents=[(Name("m"), Name("n"), 64)],
        threads=[128, 256],
        stages=[2],
        begin=[(ASSUMED,), (STAYS, ASSUMED), ()],
    ),
    examples=[
        {},
        {"block": (128, 128, 32), "threads": 256, "begin": (STAYS, ASSUMED)},
        {"begin": ()},
    ],
    where=lambda p: p.threads == 2 * p.block[0],
    sizes=lambda p: [
        *({"m": 64, "n": 64}, {"m": 77, "n": 136}, {"m": 130, "n": 72}),
        {"m": 1, "n": 8 if p.begin else 7},
    ],
    expects=lambda p: {
        "sm_90a": [
            *(["two roles, persistent blocks"] if STAYS in p.begin else []),
            *(
                ["cp_async_bulk_tensor", "tma_copy of b: tma", "copy of C: tma_store"]
                if p.begin
                else ["not cp_async_bulk_tensor", "T.assume(n % 8 == 0) says that they do"]
            ),
        ],
        "sm_80": ["not ] = B_ptr[" if p.begin else "] = B_ptr["],
        "metal": ["not ] = B_ptr[" if p.begin else "] = B_ptr["],
    },
    fast=["metal", "sm_90a"],
)
@program(
    name="gemm_by_blocks_that_stay",  # the rings of both roles go on, whatever stages divide
    tags={"blocks that stay"}, parameters=_space(
        dtypes=[NARROWED, BRAINS, PLAIN, (HALF, HALF, SINGLE, BRAIN)],
        block=[(128, 64, 32), (64, 128, 32), (128, 128, 32), (192, 64, 32)],
        extents=[
            (384, 256, 96), (256, 256, 160), (200, 136, 72), (129, 264, 40), (640, 192, 32),
            (640, 8, 64),
        ],
        threads=[256, 128, 384],
        stages=[3, 1, 2, 4],
        begin=[
            *((STAYS, IN_ROWS), (STAYS, SHARED, IN_ROWS), (STAYS, IN_STRIPS), (STAYS,)),
            *((STAYS, IN_COLUMNS), (STAYS, SHARED)),
        ],
    ),
    examples=[
        {},
        {"extents": (129, 264, 40)},
        {"extents": (200, 136, 72), "stages": 1},
        {"extents": (640, 192, 32), "begin": (STAYS, IN_STRIPS)},
        {"extents": (640, 192, 32), "begin": (STAYS, IN_COLUMNS)},
        {"extents": (256, 256, 160), "stages": 4, "dtypes": PLAIN},
        {"extents": (256, 256, 1), "steps": 0},
        {"block": (64, 128, 32), "threads": 128, "begin": (STAYS,)},
        {"block": (192, 64, 32), "threads": 384},
        {"block": (192, 64, 32), "threads": 384, "begin": (STAYS, SHARED, IN_ROWS)},
        {"begin": (STAYS, SHARED, IN_ROWS), "dtypes": BRAINS},
        *({**OF_THE_CALL, "steps": steps} for steps in (None, Name("T.min(by + 1, 10)"))),
    ],
    # A strip has two columns of blocks.
    where=lambda p: p.block[0] % (p.threads // 2) == 0
    and (p.extents[1] > 8 or IN_STRIPS not in p.begin),
    # As many blocks as there are tiles, where these are fewer.
    sizes=lambda p: [{"M": n} for n in (1, 128, 300, 1000)] if p.block[2] == 64 else ({}, {}),
    targets=["llvm", "sm_80", "sm_90a", "gpu"],
)  # fmt: skip
@program(
    parameters=_space(
        **TURNED,
        dtypes=[*FLOATS, ("int8", "int8", "int32", "int32"), ("uint8", "int8", SINGLE, SINGLE)],
        block=[
            (32, 64, 32), (16, 16, 16), (64, 32, 16), (48, 24, 8), (96, 64, 32), (64, 64, 64),
        ],
        extents=[(101, 67, 70), (64, 64, 96), (40, 33, 45), (1, 129, 65), (97, 64, 128)],
        policy=POLICIES,
        threads=[128, 32, 64, 96, 256, 512],
        stages=[2, 0, 1, 3],
    ),
    where=_whole,
    drawn=24,
    targets=["llvm", "metal", "sm_80", "gpu"],
    expects=lambda p: {"metal": ["simdgroup_multiply_accumulate"]} if p.dtypes in FLOATS else {},
    fast=["metal"],
)  # fmt: skip
def gemm(
    A: T.Tensor((extents[2], extents[0]) if transpose_A else (extents[0], extents[2]), dtypes[0]),
    B: T.Tensor((extents[1], extents[2]) if transpose_B else (extents[2], extents[1]), dtypes[1]),
    C: dtypes[3][extents[0], extents[1]],
):
    """Tiles of C, step by step along K; over the edges, where the blocks don't divide the extents."""
    bm, bn, bk = block
    M, N, K = extents
    told = None if direct is None else {"direct": direct}
    with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=threads) as (bx, by):
        if roles is not None:
            T.annotate_warp_specialize(roles)
        for statement in begin:
            statement
        a = T.alloc_shared((bk, bm) if transpose_A else (bm, bk), dtypes[0])
        b = T.alloc_shared((bn, bk) if transpose_B else (bk, bn), dtypes[1])
        sums = T.alloc_fragment((bm, bn), dtypes[2])
        T.clear(sums)
        for k in T.Pipelined(
            T.ceildiv(K, bk) if steps is None else steps,
            num_stages=stages,
            order=order,
            stage=None if order is None else [0, 0, 1],
        ):
            if transpose_A:
                T.copy(A[k * bk, by * bm], a, annotations=told)
            else:
                T.copy(A[by * bm, k * bk], a, annotations=told)
            if transpose_B:
                T.copy(B[bx * bn, k * bk], b, annotations=told)
            else:
                T.copy(B[k * bk, bx * bn], b, annotations=told)
            if waits:
                T.wgmma_gemm(a, b, sums)
                T.wait_wgmma(0)
            else:
                T.gemm(
                    a,
                    b,
                    sums,
                    transpose_A,
                    transpose_B,
                    getattr(T.GemmWarpPolicy, policy),
                    precision=precision,
                )
        if epilogue is not None:
            for i, j in T.Parallel(bm, bn):
                sums[i, j] = epilogue
        if staged:
            c = T.alloc_shared((bm, bn), dtypes[3])
            T.copy(sums, c)
            T.copy(c, C[by * bm, bx * bn])
        else:
            T.copy(sums, C[by * bm, bx * bn], disable_tma=not tensor_copies)
