"""`python -m tvmtile`."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import tvmtile
from tests.kernels import scaling
from tvmtile.__main__ import main
from tvmtile.cache import current_store
from tvmtile.errors import ArgumentError, InvalidValue
from tvmtile.jit.key import toolchain


@pytest.fixture
def cache(tmp_path, monkeypatch, sources_of_now):
    toolchain("llvm")  # what the compilers are is kept elsewhere
    monkeypatch.setenv("TVMTILE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("tvmtile.jit.artifact.current_store", current_store)
    return tmp_path


def test_the_cache(cache, capsys):
    tvmtile.compile(scaling(name="double"), target="llvm")
    main(["cache", "path"])
    assert capsys.readouterr().out == f"{cache}\n"
    main(["cache"])
    entry, total = capsys.readouterr().out.splitlines()
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d +\d+\.\d KB  kernels  double +\{.*llvm", entry)
    assert re.fullmatch(rf"1 entries, \d\.\d MB in {cache}", total)
    main(["cache", "clear"])
    main(["cache", "list"])
    assert capsys.readouterr().out == f"0 entries, 0.0 MB in {cache}\n"
    with pytest.raises(SystemExit):
        main(["cache", "burn"])
    assert "invalid choice: 'burn'" in capsys.readouterr().err


KERNELS = """
import tvmtile.language as T
from beside import FACTOR


def make_scale(dtype):
    @T.prim_func
    def scale(A: T.Tensor((64,), dtype)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                A[i] = A[i] * FACTOR

    return scale


scale = make_scale("float32")
wide = make_scale("float64")
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "beside.py").write_text("FACTOR = 3")
    file = tmp_path / "kernels.py"
    file.write_text(KERNELS)
    return str(file)


@pytest.mark.full
def test_a_file_is_checked_for_targets(file, capsys):
    main(["check", file, "--target", "llvm", "--target", "sm_80"])
    done = [f"{name} {target}: ok" for name in ("scale", "wide") for target in ("llvm", "sm_80")]
    assert capsys.readouterr().out.splitlines() == done
    with pytest.raises(SystemExit) as caught:
        main(["check", file, "--target", "metal"])
    assert caught.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "scale metal: ok"
    assert lines[1].startswith("wide metal: UnsupportedDtype: ")


def test_the_code_of_a_kernel(file, capsys):
    main(["source", f"{file}:scale", "--target", '{"kind": "cuda", "arch": "sm_90a"}'])
    assert capsys.readouterr().out.count("scale_kernel(") >= 1
    main(["source", f"{file}:scale"])
    assert "define" in capsys.readouterr().out


def test_a_kernel_is_lowered(file, capsys):
    main(["lower", f"{file}:scale", "--target", "sm_80", "--after", "LowerTilePrograms"])
    lowered = capsys.readouterr().out
    assert 'T.launch_thread("threadIdx.x", 64)' in lowered or '"threadIdx.x"' in lowered
    assert lowered.count("def scale") == 1
    main(["lower", f"{file}:scale", "--diff", "--after", "tvmtile.NormalizeOperands"])
    assert capsys.readouterr().out.startswith("tvmtile.NormalizeOperands")
    with pytest.raises(InvalidValue, match="there is no pass 'Magic'"):
        main(["lower", file, "--after", "Magic"])


def test_a_kernel_is_profiled(file, capsys):
    main(["profile", f"{file}:scale"])
    first, *lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"scale on .* \(limits of a typical one\): \d\S* ms", first)
    assert lines[0].startswith("  bandwidth    512 B, at least ")
    main(["profile", f"{file}:scale", "--target", "sm_90a"])
    assert re.search(
        r"\n  scale_kernel: 64 threads, \d+ registers, 0 bytes", capsys.readouterr().out
    )
    main(["profile", f"{file}:scale", "--target", "sm_90a", "--emulate"])
    assert "bank conflicts" in capsys.readouterr().out


def test_a_profile_of_a_dynamic_shape(tmp_path, capsys):
    file = tmp_path / "kernels.py"
    file.write_text(DYNAMIC)
    main(["profile", str(file), "--extent", "n=1000"])
    assert "bandwidth    8 kB" in capsys.readouterr().out
    with pytest.raises(ArgumentError, match="the extent n of A is not known"):
        main(["profile", str(file)])


DYNAMIC = """
import tvmtile.language as T

n = T.dynamic("n")


@T.prim_func
def double(A: T.Tensor((n,), "float32")):
    with T.Kernel(T.ceildiv(n, 64), threads=64) as bx:
        for i in T.Parallel(64):
            A[bx * 64 + i] *= 2
"""


def test_a_file_without_the_kernel(file):
    with pytest.raises(InvalidValue, match=r"kernels.py has no tile program scael") as caught:
        main(["source", f"{file}:scael"])
    assert "it has scale, wide" in str(caught.value)


@pytest.mark.full
def test_an_eager_kernel_has_no_shapes(tmp_path):
    file = tmp_path / "eager.py"
    file.write_text(EAGER)
    shell = [sys.executable, "-m", "tvmtile", "source", str(file)]
    run = subprocess.run([*shell], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    message, help = run.stderr.splitlines()  # no traceback
    assert message == f"InvalidValue: {file} has no tile program"
    assert help.startswith("  help: twice has no shapes before it is called: name a program of it")
    assert "`program = twice.get_tir(...)`" in help
    file.write_text(EAGER + "program = twice.get_tir(N=100)\n")
    run = subprocess.run([*shell, "--target", "metal"], capture_output=True, text=True, check=True)
    assert "kernel void" in run.stdout


EAGER = """
import tvmtile, tvmtile.language as T

@tvmtile.jit
def twice(X):
    N = T.const("N")
    X: T.Tensor((N,), T.float32)
    Y = T.empty((N,), T.float32)
    with T.Kernel(T.ceildiv(N, 64)) as bx:
        for i in T.Parallel(64):
            Y[bx * 64 + i] = 2 * X[bx * 64 + i]
    return Y
"""


def test_what_is_installed(capsys):
    main(["info"])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("targets llvm (this machine), metal, ") for line in lines)
    assert any(line.startswith("apache-tvm 0.27") for line in lines)
    (gemm,) = (line for line in lines if line.split()[:1] == ["gemm"])
    assert "cuda/mma" in gemm
    assert "metal/simdgroup" in gemm


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidValue) as caught:
        main(["check", str(tmp_path / "nope.py")])
    assert caught.value.message == f"there is no file {tmp_path / 'nope.py'}"
    assert caught.value.help == "give a path, or path.py:name of a kernel"


@pytest.mark.parametrize("written", ["n", "n=many"])
def test_an_extent_that_is_no_number(written, capsys):
    with pytest.raises(SystemExit):
        main(["profile", "kernels.py", "--extent", written])
    assert f"{written!r} is no NAME=VALUE of an integer" in capsys.readouterr().err
