"""T.atomic_add of a fragment to a tensor by the tensor memory accelerator."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.metal.programs import assert_close
from tvmtile.errors import CudaEmulationError

HOPPER = {"kind": "cuda", "arch": "sm_90a"}
SEEDS = range(2)


def products(M, N, K, *, block=(64, 64, 32), threads=128, dtype="float32", order=None, room=0):
    """Blocks of the third axis add their part of a product to the result; each walks over two tiles."""
    bM, bN, bK = block

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), dtype)
    ):
        with T.Kernel(T.ceildiv(N, bN), T.ceildiv(M, bM), K // (2 * bK), threads=threads) as (
            bx,
            by,
            bz,
        ):
            a = T.alloc_shared((bM, bK), "float16")
            b = T.alloc_shared((bK, bN), "float16")
            c = T.alloc_fragment((bM, bN), "float32")
            if room:
                kept = T.alloc_shared((room,), "uint8")
                T.fill(kept, 0)
            for k in T.serial(2):
                T.copy(A[by * bM, (bz * 2 + k) * bK], a)
                T.copy(B[(bz * 2 + k) * bK, bx * bN], b)
                T.gemm(a, b, c, clear_accum=True)
                T.atomic_add(C[by * bM, bx * bN], c, memory_order=order)

    return main


def way(program, **config):
    """How the addition is done, and why not otherwise."""
    kernel = tvmtile.compile(
        program, target=HOPPER, execution_backend="emulator", pass_configs=config
    )
    choice = next(c for c in kernel.choices if c.operator == "atomic_tile")
    return kernel, choice.chosen, dict(choice.declined)


def inputs(M, N, K):
    generator = torch.Generator().manual_seed(M + N + K)
    return (torch.randn(shape, generator=generator).half() for shape in ((M, K), (K, N)))


@pytest.mark.parametrize(
    ("M", "N", "K", "options"),
    [
        (64, 64, 128, {}),
        (100, 72, 64, {}),  # edges that the tensor map leaves out
        (128, 128, 64, {"block": (64, 128, 32), "threads": 256}),  # two warpgroups share columns
        (128, 96, 64, {"block": (128, 96, 32), "threads": 256}),
    ],
)
def test_parts_of_a_product_are_added(M, N, K, options):
    kernel, chosen, _ = way(products(M, N, K, **options))
    assert chosen == "tma_add"
    assert ".add.tile.bulk_group" in kernel.get_kernel_source()
    a, b = inputs(M, N, K)
    for seed in SEEDS:
        kernel.adapter.seed = seed
        c = torch.ones(M, N)
        kernel(a, b, c)
        assert_close(c, 1 + a.double() @ b.double())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "float16"}, "it is no addition of float32 in any order"),
        ({"order": "release"}, "it is no addition of float32 in any order"),
        ({"room": 208 << 10}, "16384 bytes of shared memory are not left"),
    ],
)
def test_declined(options, reason):
    _, chosen, declined = way(products(64, 64, 64, **options))
    assert (chosen, declined["tma_add"]) == ("elements", reason)


def test_no_tensor_maps_are_wanted():
    _, chosen, declined = way(products(64, 64, 64), **{"tl.disable_tma_lower": True})
    assert (chosen, declined["tma_add"]) == (
        "elements",
        "it is not to use the tensor memory accelerator",
    )


def test_a_tensor_that_no_map_describes():
    _, chosen, declined = way(products(64, 66, 64))
    assert chosen == "elements"
    assert "multiples of 16 bytes" in declined["tma_add"]


def test_a_tensor_that_the_kernel_reads_too():
    """The additions go on with the kernel: what is read behind them would be of before or after."""

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.atomic_add(C[0, 0], a)
            T.copy(C, a)
            T.copy(a, A)

    kernel, chosen, declined = way(main)
    reason = "the kernel uses C[64, 64] float32 elsewhere too"
    assert (chosen, declined["tma_add"]) == ("elements", reason)
    a, c = torch.randn(64, 64), torch.randn(64, 64)
    total = a + c
    kernel(a, c)
    assert torch.equal(c, total)
    assert torch.equal(a, total)


@pytest.mark.parametrize(
    ("then", "chosen"), [("add a fragment", "tma_add"), ("add ones", "elements")]
)
def test_another_addition_to_the_tensor(then, chosen):
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.atomic_add(C[0, 0], a)
            if then == "add ones":
                T.atomic_add(C[0:64, 0:64], T.float32(1))
            else:
                T.atomic_add(C[0, 0], a)

    kernel, way_of_first, _ = way(main)
    assert way_of_first == chosen
    a, c = torch.randn(64, 64), torch.zeros(64, 64)
    kernel(a, c)
    assert torch.equal(c, a + (1 if then == "add ones" else a))


@pytest.mark.parametrize(
    "step",
    [
        "tvm_builtin_ptx_cp_async_bulk_wait_group_async_bulk_wait_group_read_0();",
        "tvm_builtin_ptx_fence_proxy_proxy_async_shared__cta();",
    ],
)
def test_every_step_is_missed(step):
    kernel, _, _ = way(products(64, 64, 128))
    ((symbol, source),) = kernel.adapter.sources.items()
    begin = source.rindex("for (int k")
    at = source.rindex(step, begin, source.rindex("cp_reduce_async_bulk"))
    kernel.adapter.sources[symbol] = source[:at] + source[at + len(step) :]
    with pytest.raises(CudaEmulationError):
        run(kernel, *inputs(64, 64, 128))


def run(kernel, a, b, seeds=4):
    for seed in range(seeds):
        kernel.adapter.seed = seed
        kernel(a, b, torch.zeros(64, 64))
