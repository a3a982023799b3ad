"""Clusters: launched together on Hopper, said to be none elsewhere."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.running import runnable
from tvmtile.errors import TileWarning

SM90 = {"kind": "cuda", "arch": "sm_90a"}


def numbered(cluster_dims, blocks=(8, 2)):
    @T.prim_func
    def kernel(A: T.Tensor((2, 8, 32), "int32")):
        with T.ClusterKernel(*blocks, threads=32, cluster_dims=cluster_dims) as (bx, by):
            for i in T.Parallel(32):
                A[by, bx, i] = by * 8 + bx

    return kernel


def check(kernel):
    a = torch.zeros(2, 8, 32, dtype=torch.int32)
    kernel(a)
    assert torch.equal(a, torch.arange(16, dtype=torch.int32).reshape(2, 8, 1).expand(2, 8, 32))


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("dims", "tags"), [(2, ["x"]), ((2, 2), ["x", "y"]), ([1, 2, 1], ["y"]), (1, [])]
)
def test_a_cluster_is_a_parameter_of_the_launch(dims, tags):
    kernel = tvmtile.compile(numbered(dims), target=SM90, execution_backend="emulator")
    check(kernel)
    (interface,) = kernel.adapter.kernels.values()
    assert [f"clusterCtaIdx.{axis}" in interface.tags for axis in "xyz"] == [
        axis in tags for axis in "xyz"
    ]


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    ("target", "name"),
    [("llvm", "a CPU"), ("metal", "Metal"), ({"kind": "cuda", "arch": "sm_80"}, "CUDA sm_80")],
)
def test_other_targets_say_that_they_have_none(target, name):
    with pytest.warns(TileWarning, match=f"cluster_dims has no effect: {name} has no clusters"):
        kernel = runnable(numbered(2), target)
    check(kernel)
