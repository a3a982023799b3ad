"""From a function to configurations: what it computes, and what its parameters are."""

from __future__ import annotations

import inspect

import pytest

import tvmtile.language as T
from tests.programs.text import Name
from tests.running import gemm
from tvmtile import carver
from tvmtile.carver.proposals import template_of
from tvmtile.errors import InvalidValue
from tvmtile.ops import programs

H200 = carver.CUDA({"kind": "cuda", "arch": "sm_90a"})


def matmul(block_M, block_N, block_K, num_stages=2, threads=128, enable_rasterization=False):
    return gemm(
        *(512, 1024, 256),
        block=(block_M, block_N, block_K),
        stages=num_stages,
        threads=threads,
        begin=(Name(f"T.use_swizzle(10, enable={enable_rasterization})"),),
    )


def attention(block_M, block_N, threads=128):
    blocks = {"block_M": block_M, "block_N": block_N, "threads": threads, "stages": 1}
    options = {"target": "metal", "layout": "blhd", "configuration": blocks}
    return programs.attention(2, 4, 512, 64, "float16", **options)


def softmax(block, threads=128):
    @T.prim_func
    def softmax(X: T.Tensor((64, 16, 512), "float16"), Y: T.Tensor((64, 16, 512), "float16")):
        with T.Kernel(64 // block, 16, threads=threads) as (bx, h):
            x = T.alloc_fragment((block, 512), "float32")
            total = T.alloc_fragment((block,), "float32")
            T.copy(X[bx * block : (bx + 1) * block, h, :], x)
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(block, 512):
                x[i, j] = x[i, j] / total[i]
            T.copy(x, Y[bx * block : (bx + 1) * block, h, :])

    return softmax


def row_sums(block_M, block_N):
    @T.prim_func
    def row_sums(X: T.Tensor((128, 512), "float32"), Y: T.Tensor((128,), "float32")):
        with T.Kernel(128 // block_M, threads=128) as bx:
            x = T.alloc_fragment((block_M, block_N), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            T.clear(total)
            for k in T.serial(512 // block_N):
                T.copy(X[bx * block_M, k * block_N], x)
                T.reduce_sum(x, total, dim=1, clear=False)
            T.copy(total, Y[bx * block_M])

    return row_sums


def add(BLOCK):
    @T.prim_func
    def add(
        A: T.Tensor((8, 256), "float32"),
        B: T.Tensor((8, 256), "float32"),
        C: T.Tensor((8, 256), "float32"),
    ):
        with T.Kernel(256 // BLOCK, 8, threads=32) as (bx, by):
            for i in T.Parallel(BLOCK):
                C[by, bx * BLOCK + i] = A[by, bx * BLOCK + i] + B[by, bx * BLOCK + i]

    return add


COMPUTED = {
    matmul: carver.MatmulTemplate(512, 1024, 256, False, False, "float16", "float32", "float32"),
    attention: carver.FlashAttentionTemplate(1, 8, 64, 512, 512, accum_dtype="float32"),
    softmax: carver.GeneralReductionTemplate("SR", [1024, 512], "float16", True),
    row_sums: carver.GeneralReductionTemplate("SR", [128, 512], "float32", False),
    add: carver.ElementwiseTemplate([8, 256], "float32", 3),
}
NAMES = {function: list(inspect.signature(function).parameters) for function in COMPUTED}


@pytest.mark.parametrize("function", COMPUTED, ids=lambda f: f.__name__)
def test_a_program_is_taken_for_what_it_computes(function):
    template = template_of(function(**carver.tunable(NAMES[function])))
    assert template == COMPUTED[function]


@pytest.mark.full(but=4)
@pytest.mark.parametrize("function", COMPUTED, ids=lambda f: f.__name__)
def test_proposals_are_configurations_that_a_function_takes(function):
    configs = carver.proposals(lambda c: function(**c), NAMES[function], H200)
    assert 0 < len(configs) <= 20
    assert len({str(config) for config in configs}) == len(configs)
    for config in configs:
        assert list(config) == NAMES[function]
        function(**config)


def test_neither_what_the_caller_gives_nor_what_a_cpu_lacks_is_proposed():
    configs = carver.proposals(lambda c: matmul(block_K=32, **c), ["block_M", "block_N"], H200)
    assert all(list(config) == ["block_M", "block_N"] for config in configs)
    configs = carver.proposals(lambda c: matmul(**c), NAMES[matmul], carver.CPU())
    assert {config["num_stages"] for config in configs} == {0}
    assert len(configs) == 20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("block_M", 64), ("BM", 64), ("blk_n", 64), ("tile_K", 32), ("BLOCK_SIZE", 64)),
        *(("num_stages", 2), ("stages", 2), ("thread_num", 128), ("n_threads", 128)),
        *(("enable_rasteration", False), ("use_swizzle", False), ("M", None), ("dtype", None)),
    ],
)
def test_parameters_are_known_by_their_names(name, value):
    assert carver.tunable([name]) == ({} if value is None else {name: value})


def double(block):
    n = T.symbolic("n")

    @T.prim_func
    def double(A: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block), threads=32) as bx:
            for i in T.Parallel(block):
                A[bx * block + i] *= 2

    return double


@pytest.mark.parametrize(
    ("function", "name", "message"),
    [
        (
            add,
            "alpha",
            "configs='auto' finds nothing to choose(.|\n)*knows parameters by names like block_M",
        ),
        (double, "block", "extents of A are not known before the kernel runs"),
    ],
)
def test_nothing_to_choose_and_extents_that_are_not_known_are_errors(function, name, message):
    with pytest.raises(InvalidValue, match=message):
        carver.proposals(lambda c: function(**c), [name], H200)
