"""ShareFragments: sums that threads share out, and code that reads all of them."""

import pytest
import torch

import tvmtile
import tvmtile.language as T

TARGETS = [
    {"target": "llvm"},
    {"target": "metal", "execution_backend": "emulator"},
    {"target": {"kind": "cuda", "arch": "sm_90a"}, "execution_backend": "emulator"},
]


def norm_of_sums(columns):
    """The sums of columns, and the largest of them less their total, block by block."""

    @T.prim_func
    def main(A: T.Tensor((3, 24, columns), "float32"), C: T.Tensor((3,), "float32")):
        with T.Kernel(3, threads=64) as bx:
            sums = T.alloc_fragment((columns,), "float32")
            T.clear(sums)
            for k in T.serial(24):
                for i in T.Parallel(columns):
                    sums[i] += A[bx, k, i]
            for i in T.Parallel(columns):
                sums[i] = sums[i] * 2.0
            largest = T.alloc_local((1,), "float32")
            largest[0] = sums[0]
            total = T.alloc_local((1,), "float32")
            total[0] = sums[0]
            for i in T.serial(1, columns):
                largest[0] = T.max(largest[0], sums[i])
                total[0] += sums[i]
            C[bx] = largest[0] - total[0]

    return main


@pytest.mark.parametrize("options", TARGETS)
@pytest.mark.parametrize("columns", [4, 10, 16])
def test_sums_are_shared_out_and_read_by_all_threads(columns, options):
    kernel = tvmtile.compile(norm_of_sums(columns), **options)
    A, C = torch.randn(3, 24, columns), torch.empty(3)
    kernel(A, C)
    sums = 2 * A.sum(1)
    torch.testing.assert_close(C, sums.max(1).values - sums.sum(1))


@pytest.mark.parametrize(("columns", "of_a_thread"), [(16, 1), (4, 4)])
def test_a_thread_adds_up_its_share_of_more_than_a_few_sums(columns, of_a_thread):
    kernel = tvmtile.compile(norm_of_sums(columns), target={"kind": "cuda", "arch": "sm_90a"})
    assert f"float sums_ptr[{of_a_thread}]" in kernel.get_kernel_source()


def test_what_is_written_again_once_it_is_read_stays_whole():
    @T.prim_func
    def main(A: T.Tensor((32, 16), "float32"), C: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=64):
            sums = T.alloc_fragment((16,), "float32")
            T.clear(sums)
            for k in T.serial(32):
                for i in T.Parallel(16):
                    sums[i] += A[k, i]
                C[k] = sums[0] * sums[15]

    for options in TARGETS:
        kernel = tvmtile.compile(main, **options)
        A, C = torch.randn(32, 16), torch.empty(32)
        kernel(A, C)
        sums = A.cumsum(0)
        torch.testing.assert_close(C, sums[:, 0] * sums[:, 15])
        assert "sums_whole" not in kernel.get_kernel_source()


def test_sums_beside_another_fragment_stay_where_that_one_lies():
    @T.prim_func
    def main(A: T.Tensor((16,), "float32"), C: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=64):
            sums = T.alloc_fragment((16,), "float32")
            terms = T.alloc_fragment((16,), "float32")
            T.clear(sums)
            T.copy(A, terms)
            for _k in T.serial(8):
                for i in T.Parallel(16):
                    sums[i] += terms[i]
            C[0] = sums[0] * sums[15]

    for options in TARGETS:
        kernel = tvmtile.compile(main, **options)
        A, C = torch.randn(16), torch.empty(1)
        kernel(A, C)
        torch.testing.assert_close(C, 64 * A[:1] * A[15:])
        assert "sums_whole" not in kernel.get_kernel_source()
