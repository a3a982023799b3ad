"""Every example is right, on sizes that no tile divides, and prints what it promises."""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

import tvmtile
from tvmtile.errors import TileWarning

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHARED = {"common", "printing"}

# Sizes with a rest in every axis, which the emulators take too, then sizes of 1 or of one tile.
SIZES = {
    "batched_gemm": ["--batch 2 --m 70 --n 131 --k 33", "--batch 1 --m 1 --n 1 --k 1"],
    "block_sparse_gemm": ["--m 130 --n 70 --k 130", "--m 1 --n 1 --k 1 --percent 0"],
    "decode_attention": [
        "--batch 1 --groups 2 --heads 3 --length 70 --splits 2",
        "--batch 2 --groups 2 --heads 3 --length 130 --splits 1",
        "--batch 2 --groups 1 --heads 5 --length 70 --splits 3",
    ],
    "dequant_gemm_fp4": ["--m 33 --n 70 --k 160", "--format nvfp4 --m 1 --n 1 --k 16"],
    "dequant_gemm_int4": ["--m 33 --n 130 --k 128", "--m 1 --n 1 --k 64"],
    "dynamic_gemm": ["--m 130 --n 65 --k 70", "--m 2 --n 1 --k 1"],
    "elementwise": ["--m 17 --n 1030", "--m 1 --n 1"],
    "embedding": ["--count 70 --vocabulary 50 --width 130", "--count 1 --vocabulary 1 --width 1"],
    "flash_attention": [
        "--batch 1 --heads 2 --length 70 --dim 64",
        "--batch 2 --heads 2 --length 130 --dim 128",
        "--batch 1 --heads 1 --length 1 --dim 64",
    ],
    "flash_attention_backward": [
        "--batch 1 --heads 1 --length 40 --dim 32",
        "--batch 2 --heads 2 --length 130 --dim 64",
        "--batch 1 --heads 1 --length 1 --dim 64",
    ],
    "gemm": ["--m 130 --n 33 --k 65", "--m 1 --n 1 --k 1"],
    "gemm_epilogue": ["--activation gelu --m 70 --n 65 --k 65", "--m 1 --n 1 --k 1"],
    "gemm_few_rows": ["--m 17 --n 70 --k 130", "--m 1 --n 1 --k 1"],
    "gemm_fp8": [
        "--scales block --m 20 --n 40 --k 150",
        "--scales tensor --m 70 --n 130 --k 150",
        "--scales row --m 1 --n 1 --k 1",
    ],
    "gemm_splitk": ["--m 70 --n 65 --k 150 --splits 3", "--m 1 --n 1 --k 64 --splits 2"],
    "grouped_gemm": [
        "--groups 3 --largest 130 --n 130 --k 20",
        "--groups 1 --largest 1 --n 1 --k 1",
    ],
    "grouped_gemm_fp8": [
        "--groups 3 --largest 70 --n 70 --k 150",
        "--groups 1 --largest 1 --n 1 --k 1",
    ],
    "kv_compaction": ["--entries 70 --width 300", "--entries 1 --width 1"],
    "layer_norm": ["--m 6 --n 131", "--m 1 --n 2"],
    "moe_gemm": ["--m 100 --n 130 --k 70 --experts 3", "--m 1 --n 1 --k 1 --experts 1 --top 1"],
    "paged_attention": [
        "--batch 2 --groups 2 --heads 3 --page 16 --longest 9",
        "--batch 1 --groups 1 --heads 1 --page 1 --longest 1",
    ],
    "quantize": [
        "--format nvfp4 --m 33 --n 48",
        "--format tensor --m 33 --n 130",
        "--format row --m 33 --n 130",
        "--format block --m 33 --n 256",
        "--format mxfp8 --m 33 --n 160",
    ],
    "rms_norm": ["--m 6 --n 131", "--m 1 --n 1"],
    "softmax": ["--m 6 --n 131", "--m 1 --n 1"],
}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    """Import an example as Python runs a script: with its directory on the path."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in SHARED:
        monkeypatch.delitem(sys.modules, name, raising=False)

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in SHARED:
        sys.modules.pop(name, None)


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} - SHARED == set(SIZES)


def _sizes():
    """In the tier fast the first of each example, but of those that LLVM takes seconds for."""
    for name, runs in SIZES.items():
        for sizes in runs:
            is_full = sizes != runs[0] or name in ("flash_attention_backward", "grouped_gemm_fp8")
            yield pytest.param(name, sizes, marks=[pytest.mark.full] if is_full else [])


@pytest.mark.parametrize(("name", "sizes"), list(_sizes()))
def test_example_agrees_with_its_float64_reference(name, sizes, load, capsys):
    torch.manual_seed(0)
    load(name).main(["--check", "--target", "llvm", *sizes.split()])
    assert_checked(capsys.readouterr().out)


def assert_checked(out):
    """An example has compared its result, within an error or bit for bit."""
    assert "relative error" in out or "equal bit for bit" in out


emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="the emulator needs a C++ compiler",
)


@pytest.mark.full
@emulated
@pytest.mark.parametrize("name", SIZES)
def test_example_on_metal_agrees_with_its_float64_reference(name, load, capsys):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "this machine has no Apple GPU", TileWarning)
        load(name).main(["--check", "--target", "metal", *SIZES[name][0].split()])
    assert_checked(capsys.readouterr().out)


OF_NARROW_FLOATS_AND_ROWS = (
    *("dequant_gemm_fp4", "dequant_gemm_int4", "embedding", "gemm_fp8", "grouped_gemm_fp8"),
    *("kv_compaction", "moe_gemm", "paged_attention", "quantize"),
)
FOR_HOPPER = (
    *("block_sparse_gemm", "decode_attention", "flash_attention_backward", "gemm_epilogue"),
    "gemm_few_rows",
)


@pytest.mark.full
@emulated
@pytest.mark.parametrize(
    ("name", "arch"),
    [(name, "sm_80") for name in OF_NARROW_FLOATS_AND_ROWS]
    + [(name, "sm_90a") for name in FOR_HOPPER],
)
def test_example_in_cudas_emulator_agrees_with_its_reference(name, arch, load, capsys, monkeypatch):
    torch.manual_seed(0)
    emulated = functools.partial(tvmtile.compile, execution_backend="emulator")
    monkeypatch.setattr("tvmtile.compile", emulated)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # tensors stay with the emulator
    target = json.dumps({"kind": "cuda", "arch": arch})
    load(name).main(["--check", "--target", target, *SIZES[name][0].split()])
    assert_checked(capsys.readouterr().out)


def test_sizes_that_are_not_given_are_those_of_an_emulator(load, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    parse = load("common").parse
    for target, size in (("llvm", 4096), ("metal", 128)):
        args = parse("An example.", ["--target", target, "--m", "7"], m=4096, n=4096)
        assert (args.m, args.n) == (7, size)


def test_example_measures_itself_beside_torch(load, capsys):
    load("elementwise").main(["--m", "8", "--n", "64"])
    assert "times its speed" in capsys.readouterr().out


@pytest.mark.full
def test_gemm_prints_the_kernel_its_lowering_its_error_and_its_speed(load, capsys):
    load("gemm").main(["--m", "64", "--n", "64", "--k", "64"])
    out = capsys.readouterr().out
    parts = ["T.gemm(A_shared, B_shared, C_local)", "T.tvmtile.gemm(", "for block in T.parallel(1)"]
    parts += ["relative error", "torch.mm"]
    positions = [out.index(part) for part in parts]
    assert positions == sorted(positions)
    assert len(out.splitlines()) < 110


def test_check_stops_at_a_wrong_result(load):
    check = load("common").check
    exact = torch.ones(4, 4, dtype=torch.float64)
    check(exact.float() * (1 + 1e-6), exact)
    for wrong in (exact.float() * (1 + 1e-4), exact.float() * float("nan")):
        with pytest.raises(SystemExit, match="the result is wrong"):
            check(wrong, exact)
    with pytest.raises(AssertionError):
        check(exact.float()[0], exact)


def test_an_exact_check_stops_at_a_wrong_bit(load):
    check_equal = load("common").check_equal
    zeros = torch.zeros(4)
    check_equal(zeros, torch.zeros(4))
    with pytest.raises(SystemExit, match="the result is wrong"):
        check_equal(zeros, -zeros)


def test_abbreviation_counts_repetitions_and_keeps_the_rest(load):
    abbreviated = load("printing").abbreviated
    program = "start\n  a0 = 0\n  b0 = x + 1\n  a1 = 8\n  b1 = x + 22\nend\nend"
    assert abbreviated(program) == (
        "start\n  a0 = 0\n  b0 = x + 1\n  # ... and 1 more\nend\n# ... and 1 more"
    )
    assert abbreviated("a = b\nb = c\nfor i in c:") == "a = b\nb = c\nfor i in c:"
