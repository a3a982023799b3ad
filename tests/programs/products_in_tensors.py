"""Products whose sums a CPU keeps where they go, and those that begin sums that were cleared."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program
from tests.programs.lowerings import K, M, N

FORMS = ["whole tiles", "further apart", "another dtype", "halved", "doubled", "ragged"]


@program(
    tags={"gemm"},
    parameters={
        "dtypes": [("float32", "float32"), ("int8", "int32"), ("bfloat16", "float32")],
        "form": FORMS,
    },
    examples=[
        *({"form": form} for form in FORMS if form != "another dtype"),
        {"dtypes": ("int8", "int32")},
        {"dtypes": ("bfloat16", "float32"), "form": "another dtype"},
    ],
    where=lambda p: p.dtypes[0] == "bfloat16" or p.form != "another dtype",
    targets=["llvm"],
    expects=lambda p: {"llvm": ["not %sums" if p.form in FORMS[:2] else "%sums"]},
)
def product_that_a_tensor_takes(
    A: T.Tensor((M, K), dtypes[0]),
    B: T.Tensor((K, N + 8 * (form == "ragged")), dtypes[0]),
    C: T.Tensor(
        (M, N + 8 * (form == "ragged")), dtypes[0] if form == "another dtype" else dtypes[1]
    ),
):
    """Sums are kept where they go, unless they change on the way, or are not a block's own."""
    with T.Kernel(3 if form == "ragged" else 2, 2 if form == "further apart" else 3) as (bx, by):
        row = by * (64 if form == "further apart" else 32)
        column = bx * 32
        sums = T.alloc_fragment((32, 32), dtypes[1])
        a, b = T.alloc_shared((32, 16), dtypes[0]), T.alloc_shared((16, 32), dtypes[0])
        T.clear(sums)
        for k in T.Pipelined(K // 16):
            T.copy(A[row, k * 16], a)
            T.copy(B[k * 16, column], b)
            T.gemm(a, b, sums)
        if form == "halved":
            for i, j in T.Parallel(32, 32):
                sums[i, j] = sums[i, j] * 0.5
        T.copy(sums, C[row, column])
        if form == "doubled":
            C[row, column] = C[row, column] * 2


@program(
    tags={"gemm", "views"},
    parameters={"of": ["tensor", "tile"], "outside": [True, False]},
    examples=[{}, {"of": "tile"}, {"outside": False}],
    targets=["llvm", "metal", "sm_80"],
)
def product_whose_tensor_or_tile_has_another_name(
    A: float32[32, 32], B: float32[32, 32], O: float32[1024], C: float32[32, 32]
):
    """Old values, or sums, are read by that name in front of the last copy."""
    if of == "tensor" and outside:
        flat = T.reshape(C, (1024,))
    with T.Kernel(1, threads=64):
        sums = T.alloc_fragment((32, 32), "float32")
        if of == "tile":
            flat = T.reshape(sums, (1024,))
        elif not outside:
            flat = T.reshape(C, (1024,))
        T.clear(sums)
        T.gemm(A, B, sums)
        T.copy(flat, O)
        if of == "tile":
            T.fill(flat, 1)
        T.copy(sums, C)


@program(tags={"gemm"}, targets=["llvm"], expects={"llvm": ["%left", "not %sums"]})
def product_of_a_tile_that_is_used_otherwise(
    A: float32[32, 32],
    B: float32[32, 32],
    copied: float32[1, 32, 32],
    summed: float32[1, 32],
    C: float32[1, 32, 32],
):
    with T.Kernel(1):
        left = T.alloc_shared((32, 32), "float32")
        sums = T.alloc_fragment((32, 32), "float32")
        totals = T.alloc_fragment((32,), "float32")
        T.copy(A, left)
        T.gemm(left, B, sums, clear_accum=True)
        T.gemm(left, B, sums)
        T.reduce_sum(left, totals, dim=0)
        T.copy(left, copied[0, 0:32, 0:32])
        T.copy(totals, summed[0, 0:32])
        T.copy(sums, C[0, 0:32, 0:32])


@program(
    tags={"gemm"},
    parameters={"cleared": ["in each step", "before", "and copied"], "last": [0, 1]},
    inputs={"stops": lambda rng, shape: [0, last]},
    examples=[{"last": 1}, {"cleared": "and copied", "last": 1}, {"cleared": "before"}],
)
def product_in_a_loop_that_is_left(
    A: float32[32, 64], B: float32[64, 32], stops: int32[2], C: float32[32, 32]
):
    """The loop is left with cleared sums, or with sums that are written nowhere."""
    with T.Kernel(1, threads=64):
        sums = T.alloc_fragment((32, 32), "float32")
        T.clear(sums)
        for step in T.serial(2):
            if cleared != "before":
                T.clear(sums)
            if cleared != "and copied":
                if stops[step] > 0:
                    break
            T.gemm(A[0:32, step * 32 : step * 32 + 32], B[step * 32 : step * 32 + 32, 0:32], sums)
            if cleared == "and copied":
                if stops[step] > 0:
                    break
                T.copy(sums, C)
        if cleared != "and copied":
            T.copy(sums, C)


@program(
    tags={"gemm"},
    parameters={
        "steps": [4, 1, 2, 0],
        "value": [0, 1, -0.0],
        "between": ["nothing", "an element", "copied", "filled", "a view"],
        "first": ["clear", "view"],
        "scope": ["shared", "fragment"],
    },
    examples=[
        {},
        {"steps": 0},
        {"value": 1},
        {"between": "an element"},
        {"between": "copied", "first": "view"},
        {"between": "filled"},
        {"between": "a view"},
    ],
    targets=["llvm", "metal", "sm_80"],
)
def product_that_begins_its_sums(
    A: float32[32, 64], B: float32[64, 32], O: float32[1024], C: float16[32, 32]
):
    """The first product of a loop does a clear, but for what others do with the sums before it."""
    with T.Kernel(1, threads=64):
        sums = getattr(T, "alloc_" + scope)((32, 32), "float32")
        T.fill(sums, 5)
        if first == "view":
            flat = T.reshape(sums, (1024,))
            T.clear(sums)
            T.copy(flat, O)
        else:
            T.fill(sums, value)
        if between == "an element":
            for i, j in T.Parallel(32, 32):
                if i == 3 and j == 4:
                    sums[i, j] += 1
        elif between == "copied":
            again = T.reshape(sums, (1024,))
            T.copy(again, O)
        elif between == "filled":
            again = T.reshape(sums, (1024,))
            T.fill(again, 3)
        elif between == "a view":
            rows = T.view(sums, (16, 64))
            for i, j in T.Parallel(16, 64):
                O[i * 64 + j] = rows[i, j]
        for k in T.serial(steps):
            T.gemm(A[0:32, k * 16 : k * 16 + 16], B[k * 16 : k * 16 + 16, 0:32], sums)
        T.copy(sums, C)
