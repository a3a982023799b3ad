"""Kernels' questions about the compute capability, and the target they get."""

from __future__ import annotations

import pytest
from tvm.target import Target

from tvmtile.contrib import nvcc
from tvmtile.errors import InvalidValue
from tvmtile.utils.target import determine_target


def cuda(arch):
    return Target({"kind": "cuda", "arch": arch})


@pytest.mark.parametrize(
    ("arch", "version"),
    [("sm_80", "8.0"), ("sm_89", "8.9"), ("sm_90a", "9.0"), ("sm_100a", "10.0")],
)
def test_the_compute_capability_of_a_target(arch, version):
    assert nvcc.get_target_compute_version(cuda(arch)) == version
    with cuda(arch):
        assert nvcc.get_target_compute_version() == version


def test_what_is_no_nvidia_gpu_has_none():
    assert nvcc.get_target_compute_version("llvm") == "0.0"
    assert nvcc.get_target_compute_version("metal") == "0.0"
    assert not nvcc.have_tma("llvm")


def test_instructions_follow_from_it():
    assert nvcc.have_tma(cuda("sm_90a"))
    assert not nvcc.have_tma(cuda("sm_89"))
    assert nvcc.is_hopper(cuda("sm_90a"))
    assert not nvcc.is_hopper(cuda("sm_100a"))
    assert nvcc.have_fp8("8.9")
    assert not nvcc.have_fp8("8.6")
    assert nvcc.have_bf16("8.0")


def test_a_version_is_two_numbers():
    assert nvcc.parse_compute_version("12.0") == (12, 0)
    with pytest.raises(InvalidValue, match="'sm_90' is no compute capability"):
        nvcc.parse_compute_version("sm_90")


def test_a_target_is_determined_as_for_kernels_without_one(monkeypatch):
    monkeypatch.setenv("TVMTILE_TARGET", "metal")
    assert determine_target() == "metal"
    assert determine_target(return_object=True).kind.name == "metal"
    assert determine_target("llvm") == "llvm"
