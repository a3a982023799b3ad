"""T.wgmma_gemm, wg_wait and T.wait_wgmma: products that the user waits for."""

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.fuzz.run import loaded
from tests.programs import catalogue
from tests.running import assert_close, operands
from tvmtile.errors import CudaEmulationError, InvalidOperand

HOPPER = {
    "target": {"kind": "cuda", "arch": "sm_90a"},
    "execution_backend": "emulator",
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


@pytest.mark.full
@pytest.mark.parametrize(("behind", "last"), [(2, 0), (-1, 0), (1, 1)])
def test_sums_that_are_read_too_early_are_found_in_the_emulator(behind, last):
    with pytest.raises(CudaEmulationError) as caught:
        run(two_products(behind, last), **HOPPER)
    assert caught.value.kind == "register"


def test_a_loop_has_no_producer_whose_products_the_user_waits_for(tmp_path):
    program = loaded(catalogue()["gemm_that_a_pipeline_waits_for"].case(), tmp_path).main
    choices = str(tvmtile.compile(program, **HOPPER).choices)
    assert "the gemm of sums[64, 64] float32 goes on until" in choices


@pytest.mark.parametrize("n", [-1, True, 1.0])
@pytest.mark.parametrize("wait", [T.wait_wgmma, T.warpgroup_wait])
def test_a_number_of_products_is_an_integer(wait, n):
    with pytest.raises(InvalidOperand, match=rf"T\.{wait.__name__}: \w+="):

        @T.prim_func
        def main(A: T.Tensor((1,), "float32")):
            with T.Kernel(1):
                wait(n)
