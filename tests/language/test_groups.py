"""Groups of threads: what tile operators mean in a branch that lets in some of a block's warps."""

from __future__ import annotations

import linecache

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidValue, LayoutConflict, NestingError

TARGETS = {
    "llvm": {"target": "llvm"},
    "cuda": {"target": {"kind": "cuda", "arch": "sm_80"}, "execution_backend": "emulator"},
    "metal": {"target": "metal", "execution_backend": "emulator"},
}


@pytest.fixture(params=list(TARGETS))
def compiled(request):
    """Compile a program for a target that this machine can run."""
    return lambda program: tvmtile.compile(program, **TARGETS[request.param])


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def is_here(error):
    location = error.value.location
    return "# here" in linecache.getline(location.file, location.line)


# Work without barriers -----------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [(0, 128, 256), (32, 128, 192), (0, 96, 128)])
def test_two_groups_do_different_things(compiled, threads):
    first, end, count = threads

    @T.prim_func
    def program(
        A: T.Tensor((64, 48), "float32"),
        B: T.Tensor((64, 48), "float32"),
        C: T.Tensor((64, 48), "float32"),
    ):
        with T.Kernel(1, threads=count):
            tx = T.get_thread_binding()
            x = T.alloc_fragment((64, 48), "float32")
            y = T.alloc_fragment((48,), "float32")
            if T.And(tx >= first, tx < end):
                T.copy(A, x)
                for i, j in T.Parallel(64, 48):
                    x[i, j] = x[i, j] * 2
                T.copy(x, B)
            elif tx >= end:
                for i in T.serial(64):
                    T.copy(A[i, :], y)
                    for j in T.Parallel(48):
                        C[i, j] = y[j] + i
                C[0, 0] = 7

    a, b, c = torch.randn(64, 48), torch.zeros(64, 48), torch.zeros(64, 48)
    compiled(program)(a, b, c)
    expected = a + torch.arange(64.0)[:, None]
    expected[0, 0] = 7
    torch.testing.assert_close(b, a * 2, rtol=0, atol=0)
    torch.testing.assert_close(c, expected, rtol=0, atol=0)


def test_atomics_and_sizes_known_at_run_time(compiled):
    @T.prim_func
    def program(A: T.Tensor((T.dynamic("n"),), "int32"), C: T.Tensor((2,), "int32")):
        n = A.shape[0]
        with T.Kernel(1, threads=128):
            if T.get_warp_idx() == 2:
                for i in T.Parallel(n):
                    T.atomic_add(C[0], A[i])
            elif T.get_warp_idx() == 1:
                for i in T.Parallel(n):
                    if A[i] > 3:
                        T.atomic_add(C[1], 1)

    a, c = torch.randint(0, 9, (77,), dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    compiled(program)(a, c)
    assert c.tolist() == [int(a.sum()), int((a > 3).sum())]


def test_sums_within_a_warp(compiled):
    @T.prim_func
    def program(A: T.Tensor((16, 64), "float32"), C: T.Tensor((2, 16), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_fragment((16, 64), "float32")
            total = T.alloc_fragment((16,), "float32")
            other = T.alloc_fragment((16, 64), "float32")
            most = T.alloc_fragment((16,), "float32")
            if T.get_thread_binding() < 32:
                T.copy(A, tile)
                T.reduce_sum(tile, total, dim=1)
                T.copy(total, C[0, :])
            else:
                T.copy(A, other)
                T.reduce_max(other, most, dim=1)
                T.copy(most, C[1, :])

    a, c = torch.randint(-9, 9, (16, 64)).float(), torch.zeros(2, 16)
    compiled(program)(a, c)
    torch.testing.assert_close(c, torch.stack([a.sum(1), a.amax(1)]), rtol=0, atol=0)


# Errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cuda", "metal"])
def test_a_fragment_that_two_groups_use(kind):
    @T.prim_func
    def program(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=256):
            x = T.alloc_fragment((64,), "float32")
            with T.ws(0):
                T.copy(A, x)
            with T.ws(1):
                T.copy(x, C)  # here

    with pytest.raises(
        LayoutConflict, match=r"x\[64\] float32 is used by threads 128 to 255"
    ) as error:
        tvmtile.compile(program, **TARGETS[kind])
    assert is_here(error)
    assert "of the block, and by threads 0 to 127 at" in str(error.value)
    assert "allocate one for each group of threads" in str(error.value)


def test_warpgroups_that_a_block_does_not_have():
    for numbers in [(2,), (), (-1,), (0, 5)]:
        with pytest.raises(InvalidValue, match="a block of 256 threads has 2 warpgroups of 128"):

            @T.prim_func
            def program(A: T.Tensor((64,), "float32")):
                with T.Kernel(1, threads=256):
                    with T.ws(*numbers):
                        T.clear(A)


def test_warpgroups_outside_of_a_kernel():
    with pytest.raises(NestingError, match=r"T\.ws stands outside T\.Kernel"):

        @T.prim_func
        def program(A: T.Tensor((64,), "float32")):
            with T.ws(0):
                A[0] = 1
