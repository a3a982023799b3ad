"""Threads that are looked at where accesses are enumerated."""

import pytest

import tvmtile
import tvmtile.language as T
from tvmtile.analysis.conflicts import enumeration


@pytest.fixture
def counts(monkeypatch):
    """The number of points of each access, by the name of its buffer."""
    found = []
    points_of = enumeration.points_of

    def counted(access, *arguments):
        points = points_of(access, *arguments)
        found.append((access.buffer.name, len(points)))
        return points

    monkeypatch.setattr(enumeration, "points_of", counted)
    return found


@pytest.mark.full
def test_threads_that_conditions_leave_out_are_not_looked_at(counts):
    """One thread of each warpgroup copies 64 x 64 elements that all have stored."""

    @T.prim_func
    def program(
        A: T.Tensor((300 * 128, 256), "float16"),
        B: T.Tensor((256, 128), "float16"),
        C: T.Tensor((300 * 128, 128), "float16"),
    ):
        with T.Kernel(300, threads=256) as bx:
            a, b = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, 128), "float16")
            total = T.alloc_fragment((128, 128), "float32")
            T.clear(total)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[bx * 128, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, total)
            T.copy(total, C[bx * 128, 0])

    kernel = tvmtile.compile(program, target={"kind": "cuda", "arch": "sm_90a"})
    assert "tma_store" in {choice.chosen for choice in kernel.choices}
    staged = [count for name, count in counts if name.endswith("staged")]
    assert 64 * 64 <= max(staged) <= 2 * 64 * 64
