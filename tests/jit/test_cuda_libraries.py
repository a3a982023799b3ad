"""CUDA's libraries beside those of an older CUDA, which a torch that is built for it loads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.children import WITHOUT_TORCH
from tvmtile.errors import CudaCompileError
from tvmtile.jit import cuda

COMPILER = shutil.which("g++") or shutil.which("clang++")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the newest is not looked for"),
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
]


def run_beside(library, directory, program):
    """The output of a program in a process that has loaded an empty library of this name."""
    place = directory / library
    command = [COMPILER, "-shared", "-fPIC", "-x", "c++", os.devnull, f"-Wl,-soname,{library}"]
    subprocess.run([*command, "-o", place], check=True)
    before = f"import ctypes; ctypes.CDLL({str(place)!r}, ctypes.RTLD_GLOBAL)\n"
    environment = {**os.environ, "TVMTILE_CACHE_DIR": str(directory)}
    child = [sys.executable, "-c", WITHOUT_TORCH + before + program]
    done = subprocess.run(child, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


COMPILE = """
from tvmtile.jit.cuda import compile_source
print(compile_source('extern "C" __global__ void f() {}', "sm_80").cubin[:4])
"""

START = """
import ctypes, os
from tvmtile.cuda_runtime import has_gpu
has_gpu()
ctypes.CDLL("libcudart.so.13", mode=os.RTLD_NOLOAD)
print("loaded")
"""


@pytest.mark.full
def test_nvrtc_beside_that_of_an_older_torch(tmp_path):
    assert run_beside("libnvrtc.so.12", tmp_path, COMPILE) == [repr(b"\x7fELF")]


@pytest.mark.full
def test_tvms_runtime_beside_that_of_an_older_torch(tmp_path):
    assert run_beside("libcudart.so.12", tmp_path, START) == ["loaded"]


@pytest.mark.parametrize(("version", "helped"), [((12, 6), True), ((13, 0), False)])
def test_an_nvrtc_that_fails_says_how_old_it_is(version, helped):
    library = SimpleNamespace(
        nvrtcResult=SimpleNamespace(NVRTC_SUCCESS=0),
        nvrtcVersion=lambda: (0, *version),
        nvrtcGetErrorString=lambda status: (0, b"NVRTC_ERROR_INVALID_OPTION"),
    )
    with pytest.raises(CudaCompileError) as caught:
        cuda._checked(library, (5,))
    number = ".".join(map(str, version))
    assert caught.value.message == f"NVRTC {number} failed: NVRTC_ERROR_INVALID_OPTION"
    assert ("nvidia-cuda-nvrtc" in (caught.value.help or "")) == helped
