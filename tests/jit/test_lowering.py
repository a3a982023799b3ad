"""`tvmtile.lower`: looking at what a program becomes; TileLang's names."""

from __future__ import annotations

import pytest
import tvm
from tvm import ir

import tvmtile
import tvmtile.language as T
from tests.kernels import scaling
from tvmtile.layout.fragment import Fragment
from tvmtile.layout.swizzle import make_swizzled_layout

CUDA = {"kind": "cuda", "arch": "sm_90a"}


double = scaling()


def test_a_program_for_a_gpu_that_is_not_here():
    artifact = tvmtile.lower(double, target=CUDA, enable_device_compile=True)
    assert "__global__" in artifact.kernel_source
    assert len(artifact.params) == 2
    assert isinstance(artifact.device_mod, ir.IRModule)
    assert artifact.rt_mod.imports


def test_the_target_in_force_and_a_module():
    with tvm.target.Target(CUDA):
        assert "__global__" in tvmtile.lower(double).kernel_source
    assert "define" in tvmtile.lower(ir.IRModule({"double": double})).kernel_source


@pytest.mark.parametrize("target", ["c", tvm.target.Target("c")])
def test_tilelangs_target_for_a_cpu_is_this_machine(target):
    assert tvmtile.compile(double, target=target).target.kind.name == "llvm"


def test_names_of_tilelang():
    assert tvmtile.tvm is tvm
    assert Fragment is T.Fragment
    assert make_swizzled_layout(None).kind == "auto"
