"""How targets are understood."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tvm.target import Target

import tvmtile
from tvmtile.errors import UnknownTarget
from tvmtile.target import gpu, host_target, resolve, target_kinds

METAL4 = {"kind": "metal", "keys": ["metal4", "metal", "gpu"]}


@pytest.mark.parametrize(
    ("written", "has_matmul2d"),
    [
        ("metal", False),
        ("mps", False),
        ({"kind": "metal"}, False),
        (Target("metal"), False),
        ("metal4", True),
        (METAL4, True),
        (Target(METAL4, host="llvm"), True),
    ],
    ids=str,
)
def test_apple_gpus_and_their_host_which_is_this_machine(written, has_matmul2d):
    target = resolve(written)
    assert target.kind.name == "metal"
    if isinstance(written, str):
        assert int(target.attrs["thread_warp_size"]) == 32
        assert int(target.attrs["max_num_threads"]) == 1024
    assert gpu(target).has_matmul2d is has_matmul2d
    assert gpu(target).shared_memory == 32 * 1024
    if getattr(written, "host", None) is None:
        assert str(target.host) == str(host_target())


def test_a_host_and_attributes_that_are_given_stay():
    target = resolve(Target({"kind": "metal", "max_num_threads": 512}, host="llvm"))
    assert int(target.attrs["max_num_threads"]) == 512
    assert "mcpu" not in target.host.attrs


@pytest.mark.parametrize("name", [None, "cpu", "llvm", "auto"])
def test_the_names_of_this_machine(name):
    assert resolve(name) == host_target()
    assert target_kinds() == ("llvm", "metal", "cuda")


@pytest.mark.parametrize("written", ["cuda", {"kind": "cuda"}], ids=str)
def test_cuda_without_an_architecture_is_this_machines_gpu(written, monkeypatch, capfd):
    monkeypatch.setattr("tvmtile.target.has_gpu", lambda: False)
    with pytest.raises(UnknownTarget) as caught:
        resolve(written)
    assert "no NVIDIA GPU is found here" in caught.value.message
    assert 'target="sm_90a" compiles for one that is elsewhere' in caught.value.help
    assert 'execution_backend="emulator"' in caught.value.help
    assert "sm_80" in caught.value.help
    assert capfd.readouterr().err == ""  # TVM would warn of an architecture of its own choice


def test_what_tvm_makes_of_cuda_without_a_gpu_is_said_to_be_that(monkeypatch):
    monkeypatch.setattr("tvmtile.target.capabilities.has_gpu", lambda: False)
    with pytest.raises(UnknownTarget, match="no NVIDIA GPU is found here"):
        gpu(Target({"kind": "cuda", "arch": "sm_50"}))


@pytest.mark.parametrize(
    "written",
    ["sm_90a", {"kind": "cuda", "arch": "sm_90a"}, '{"kind": "cuda", "arch": "sm_90a"}'],
    ids=str,
)
def test_an_architecture_needs_no_gpu(written):
    target = resolve(written)
    assert str(target.attrs["arch"]) == "sm_90a"
    assert gpu(target).shared_memory == 227 * 1024


@pytest.mark.parametrize(
    ("target", "level"),
    [
        ({"kind": "llvm", "mcpu": "znver4"}, 2),
        ({"kind": "llvm", "mcpu": "znver4", "opt-level": 3}, 3),
        ({"kind": "llvm", "mcpu": "haswell"}, None),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}, None),
    ],
)
def test_llvm_is_asked_for_the_level_that_it_is_right_at(target, level):
    resolved = resolve(target)
    assert resolved.attrs.get("opt-level") == level
    assert resolve(resolved).attrs.get("opt-level") == level


@pytest.mark.parametrize(
    ("target", "dtype", "reason"),
    [
        ({"kind": "cuda", "arch": "sm_80"}, "float16", None),
        ({"kind": "cuda", "arch": "sm_90a"}, "float8_e5m2", None),
        (
            {"kind": "cuda", "arch": "sm_86"},
            "float8_e5m2",
            "float8_e5m2 needs sm_89, the target is sm_86",
        ),
        (
            {"kind": "cuda", "arch": "sm_90a"},
            "int64",
            "CUDA sm_90a has no mma.sync of int64",
        ),
        ("metal", "float16", "Metal has no mma.sync of float16"),
    ],
    ids=str,
)
def test_why_warps_do_not_multiply_factors_of_a_dtype(target, dtype, reason):
    assert gpu(resolve(target)).why_no_factors(dtype) == reason


@pytest.mark.parametrize("layer", ["analysis", "codegen", "ir", "layout", "passes", "tileop"])
def test_no_layer_of_the_compiler_asks_for_the_number_of_an_architecture(layer):
    sources = (Path(tvmtile.__file__).parent / layer).rglob("*.py")
    number = re.compile(r"compute_capability|attrs(\.get\(|\[)\"arch\"")
    assert [path.name for path in sources if number.search(path.read_text())] == []


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("sm90a", "sm_90a"),
        ("SM_90A", "sm_90a"),
        ("cuda -arch=sm_90a", "sm_90a"),
        ({"kind": "cuda", "arch": "sm90"}, "sm_90"),
        ({"kind": "cuda", "arch": "sm100a"}, "sm_100a"),
        ({"kind": "cude"}, "cuda"),
        ("CUDA", "cuda"),
        ("cuda:0", "cuda"),
        ("Metal", "metal"),
        ("metal3", "metal"),
        ("gpu", None),
    ],
)
def test_the_nearest_target(written, meant):
    with pytest.raises(UnknownTarget) as caught:
        resolve(written)
    found = re.match(r"did you mean '(.*?)'\?", caught.value.help)
    assert (found and found[1]) == meant
