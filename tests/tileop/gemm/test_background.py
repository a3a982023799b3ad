"""T.wgmma_gemm, wg_wait and T.wait_wgmma: products that the user waits for."""

import re

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.metal.programs import assert_close, operands
from tvmtile.errors import CudaEmulationError, InvalidOperand

HOPPER = {
    "target": {"kind": "cuda", "arch": "sm_90a"},
    "execution_backend": "emulator",
}
EVERYWHERE = {
    "hopper": HOPPER,
    "sm_80": {**HOPPER, "target": {"kind": "cuda", "arch": "sm_80"}},
    "metal": {"target": "metal", "execution_backend": "emulator"},
    "llvm": {"target": "llvm"},
}


def two_products(behind=0, last=0):
    """C = A @ A and D = A @ B, C while D goes on."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
        D: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            d = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.wgmma_gemm(a, a, c, clear_accum=True)
            T.gemm(a, b, d, clear_accum=True, wg_wait=behind)
            T.copy(c, C)
            T.wait_wgmma(last)
            T.copy(d, D)

    return main


def run(program, **options):
    kernel = tvmtile.compile(program, **options)
    a, b, expected = operands(64, 64, 64)
    c, d = torch.empty(64, 64), torch.empty(64, 64)
    kernel(a, b, c, d)
    assert_close(c, a.double() @ a.double())
    assert_close(d, expected)
    return kernel.get_kernel_source()


@pytest.mark.parametrize("place", EVERYWHERE)
def test_a_product_goes_on_until_it_is_waited_for(place):
    source = run(two_products(behind=1), **EVERYWHERE[place])
    if place == "hopper":
        waits = re.findall(r"wgmma_wait_group_wait_group_sync_aligned_(\d)\(\);", source)
        assert waits == ["1", "0"]
    else:
        assert "wgmma" not in source


@pytest.mark.parametrize(("behind", "last"), [(2, 0), (-1, 0), (1, 1)])
def test_sums_that_are_read_too_early_are_found_in_the_emulator(behind, last):
    with pytest.raises(CudaEmulationError) as caught:
        run(two_products(behind, last), **HOPPER)
    assert caught.value.kind == "register"


@pytest.mark.parametrize("place", EVERYWHERE)
def test_a_pipelined_tile_is_not_copied_to_before_the_user_has_waited_for_its_product(place):
    """A producer could not tell when it is free, and is none."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 256), "float16"),
        B: T.Tensor((256, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[0:64, k * 64 : k * 64 + 64], a)
                T.copy(B[k * 64 : k * 64 + 64, 0:64], b)
                T.wgmma_gemm(a, b, c)
                T.wait_wgmma(0)
            T.copy(c, C)

    kernel = tvmtile.compile(main, **EVERYWHERE[place])
    a, b, expected = operands(64, 64, 256)
    c = torch.empty(64, 64)
    kernel(a, b, c)
    assert_close(c, expected)
    if place == "hopper":
        assert "the gemm of c[64, 64] float32 goes on until" in str(kernel.choices)


@pytest.mark.parametrize("n", [-1, True, 1.0])
@pytest.mark.parametrize("wait", [T.wait_wgmma, T.warpgroup_wait])
def test_a_number_of_products_is_an_integer(wait, n):
    with pytest.raises(InvalidOperand, match=rf"T\.{wait.__name__}: \w+="):

        @T.prim_func
        def main(A: T.Tensor((1,), "float32")):
            with T.Kernel(1):
                wait(n)


@pytest.mark.parametrize("place", EVERYWHERE)
def test_batches_by_their_names_of_cuda(place):
    """A batch that has no products counts: all but the latest one are the first product."""

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.warpgroup_fence_operand(c)
            T.warpgroup_arrive()
            T.wgmma_gemm(a, a, c, clear_accum=True)
            T.warpgroup_commit_batch()
            T.warpgroup_wait(1)
            T.warpgroup_fence_operand(c, num_regs=32)
            T.copy(c, C)

    kernel = tvmtile.compile(main, **EVERYWHERE[place])
    a, c = torch.randn(64, 64).half(), torch.empty(64, 64)
    kernel(a, c)
    assert_close(c, a.double() @ a.double())
    if place == "hopper":
        body = kernel.get_kernel_source().rpartition("__global__")[2]
        steps = re.findall(r"wgmma_(commit|wait)_group", body)
        assert steps == ["commit", "commit", "wait"]
