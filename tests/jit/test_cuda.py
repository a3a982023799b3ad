"""CUDA kernels on a machine that may have no GPU: compiling them, looking at them, calling them."""

from __future__ import annotations

import re
import struct
import sys

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.running import gemm
from tvmtile import cuda_runtime
from tvmtile.cuda_runtime import has_gpu, include_directories
from tvmtile.errors import CudaCompileError, MissingDependency
from tvmtile.jit.cuda import compile_source, headers_in_memory
from tvmtile.jit.resources import KernelResources, resources_of_log

SM_80 = {"kind": "cuda", "arch": "sm_80"}


def two_kernels():
    """One whose shared memory is asked for at the launch, then one that declares it."""

    @T.prim_func
    def main(A: T.Tensor((64, 512), "float32"), B: T.Tensor((64, 512), "float32")):
        with T.Kernel(1, threads=128) as _:
            large = T.alloc_shared((64, 512), "float32")
            T.copy(A, large)
            for i, j in T.Parallel(64, 512):
                B[i, j] = large[63 - i, 511 - j]
        with T.Kernel(1, threads=64) as _:
            small = T.alloc_shared((512,), "float32")
            T.copy(B[0, 0:512], small)
            for j in T.Parallel(512):
                B[1, j] = small[511 - j]

    return main


@pytest.fixture
def no_toolkit(monkeypatch):
    """Neither variables nor an nvcc lead to a toolkit, as where only wheels are installed."""
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(cuda_runtime.shutil, "which", lambda name: None)
    include_directories.cache_clear()
    yield
    include_directories.cache_clear()


def test_the_wheels_of_the_extra_have_all_headers(no_toolkit):
    directories = include_directories()
    assert all("nvidia" in directory.parts for directory in directories)
    for name in ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "mma.h", "crt/mma.h", "nv/target"):
        assert any((directory / name).is_file() for directory in directories), name


def test_a_toolkit_that_is_named_is_taken(no_toolkit, monkeypatch, tmp_path):
    for name in ("cuda_fp16.h", "cccl/nv/target"):
        header = tmp_path / "include" / name
        header.parent.mkdir(parents=True, exist_ok=True)
        header.touch()
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    assert include_directories() == (tmp_path / "include", tmp_path / "include" / "cccl")


def test_no_headers_at_all(no_toolkit, monkeypatch):
    monkeypatch.setattr(cuda_runtime, "_roots", lambda: iter(()))
    with pytest.raises(MissingDependency, match="headers, which are not installed") as caught:
        include_directories()
    assert 'pip install "cuda-bindings<14,>=13" "nvidia-cuda-cccl<14,>=13" ' in caught.value.help


HEADERS = ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuda_fp6.h", "cuda_fp4.h", "mma.h")


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    ("header", "light"), [*((header, True) for header in HEADERS), ("cuda_fp8.h", False)]
)
def test_headers_compile_beside_the_light_and_the_full_library(header, light):
    library = "cuda/std/type_traits" if light else "cuda/std/array"
    source = f"""
        #include <cuda/std/cstdint>
        #include <{library}>
        #include <{header}>
        extern "C" __global__ void f(float *x) {{ x[0] = INFINITY; }}
    """
    assert bool(headers_in_memory(source)) is light
    assert compile_source(source, "sm_100a").cubin.startswith(b"\x7fELF")


TYPES = (
    "bool", "char", "signed char", "short", "int", "long", "long long", "unsigned char",
    "unsigned short", "unsigned int", "unsigned long", "unsigned long long", "float", "double",
    "const int", "volatile unsigned", "const volatile float", "float *", "half",
)  # fmt: skip
TRAITS = ("is_integral", "is_signed", "is_unsigned", "is_floating_point")


@pytest.mark.full
@pytest.mark.parametrize("library", ["cuda/std/type_traits", "cuda/std/array"])
def test_the_light_headers_say_what_the_full_ones_say(library):
    # Compiled against both, so that one table is checked against CUDA's own headers too.
    integers = {name for name in TYPES if "float" not in name and name not in ("double", "half")}
    floats = {"float", "double", "const volatile float"}
    expected = {
        "is_integral": integers,
        "is_floating_point": floats,
        "is_unsigned": {n for n in integers if "unsigned" in n} | {"bool"},
        "is_signed": {n for n in integers if "unsigned" not in n} - {"bool"} | floats,
    }
    checks = [
        f"static_assert(cuda::std::{trait}<{name}>::value == {str(name in expected[trait]).lower()});"
        for trait in TRAITS
        for name in TYPES
    ]
    widths = [
        f"static_assert(sizeof(cuda::std::{sign}int{bits}_t) == {bits // 8});"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    ]
    rest = """
        static_assert(cuda::std::is_same_v<int, int> && !cuda::std::is_same_v<int, long>);
        static_assert(cuda::std::is_same_v<cuda::std::enable_if<true, int>::type, int>);
        static_assert(cuda::std::is_same_v<cuda::std::conditional<false, int, half>::type, half>);
        static_assert(cuda::std::is_same_v<cuda::std::int64_t, long long>);
    """
    source = "\n".join(
        ["#include <cuda_fp16.h>", "#include <cuda/std/cstdint>", f"#include <{library}>",
         *checks, *widths, rest, 'extern "C" __global__ void f() {}']
    )  # fmt: skip
    assert compile_source(source.replace("float *", "float*"), "sm_80").cubin


@pytest.mark.parametrize(
    ("body", "architecture", "message"),
    [
        ("x[0] = y;", "sm_80", 'identifier "y" is undefined'),
        ("x[0] = 1;", "sm_12345", r"NVRTC 1\d.\d+ failed"),
    ],
)
def test_what_nvrtc_refuses_is_shown(body, architecture, message):
    with pytest.raises(CudaCompileError, match=message):
        compile_source(f'extern "C" __global__ void f(int *x) {{ {body} }}', architecture)


def test_what_a_log_says():
    log = """
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
ptxas         .     48 bytes stack frame, 44 bytes spill stores, 52 bytes spill loads
ptxas info    : Used 255 registers, used 3 barriers, 48 bytes cumulative stack size, 16384 bytes smem
ptxas info    : Function properties for helper
ptxas         .     8 bytes stack frame, 0 bytes spill stores, 4 bytes spill loads
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, 380 bytes cmem[0]
"""
    first, second = resources_of_log(log).values()
    assert first == KernelResources("first", 255, 44, 56, 56, 16384, 0, 3)
    assert first.spills == 100
    assert second == KernelResources("second", registers=8)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("program", [two_kernels(), gemm(128, 128, 128, stages=2)])
def test_resources_of_each_kernel_are_those_of_the_elf_file(program):
    kernel = tvmtile.compile(program, target=SM_80)
    found = kernel.resources()
    said = {r.name: (r.registers, r.static_shared) for r in found}
    assert said == elf_resources(kernel.cubin)
    if len(found) == 2:
        shared = [(r.name, r.dynamic_shared, r.static_shared, r.shared) for r in found]
        large, small = 64 * 512 * 4, 512 * 4
        assert shared == [("main_kernel", large, 0, large), ("main_kernel_1", 0, small, small)]


def elf_resources(cubin: bytes) -> dict[str, tuple[int, int]]:
    """Registers and declared shared memory of each kernel, from the section headers of a cubin.

    The upper byte of `sh_info` of .text.NAME holds the registers; .nv.shared.NAME is as large as the
    kernel's shared memory.
    """
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + size * i) for i in range(count)]
    strings = sections[names][4]

    def name(section):
        start = strings + section[0]
        return cubin[start : cubin.index(b"\0", start)].decode()

    by_name = {name(section): section for section in sections}
    return {
        text.removeprefix(".text."): (
            section[7] >> 24,
            by_name[shared][5] if (shared := ".nv.shared." + text[6:]) in by_name else 0,
        )
        for text, section in by_name.items()
        if text.startswith(".text.")
    }


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.* registers of each thread")
def test_registers_that_do_not_suffice_are_spilled():
    program = gemm(256, 256, 64, block=(256, 256, 32), threads=128)  # 512 totals in 255 registers
    (used,) = tvmtile.compile(program, target=SM_80).resources()
    assert used.spill_stores > 0
    assert used.spill_loads > 0
    assert used.stack > 0


def test_a_call_without_a_gpu_says_so(monkeypatch):
    monkeypatch.setattr("tvmtile.jit.backends.has_gpu", lambda: False)
    kernel = tvmtile.compile(gemm(64, 64, 64), target=SM_80)
    a = torch.zeros(64, 64, dtype=torch.float16)
    with pytest.raises(MissingDependency) as caught:
        kernel(a, a, torch.zeros(64, 64))
    assert caught.value.message.startswith("main was compiled for sm_80; there is no NVIDIA GPU")
    assert caught.value.help.startswith(
        'execution_backend="emulator" runs it here; kernel.get_kernel_'
    )


def test_passes_can_be_looked_at_without_a_toolkit(no_toolkit):
    kernel = tvmtile.compile(gemm(64, 64, 64), target=SM_80)
    names = [name for name, _ in kernel.lowering]
    assert "tvmtile.InsertBarriers" in names
    assert re.search(r"mma\.sync\.aligned\.m16n8k16", kernel.get_kernel_source())


@pytest.mark.skipif(has_gpu(), reason="TVM compiles at once where there is a GPU")
def test_nothing_is_compiled_before_it_is_asked_for_and_what_it_lacks_reported_there(monkeypatch):
    kernel = tvmtile.compile(two_kernels(), target=SM_80)
    assert kernel.artifact.binary is None
    with monkeypatch.context() as patch:
        for name in [name for name in sys.modules if name.split(".")[0] == "cuda"]:
            patch.setitem(sys.modules, name, None)
        with pytest.raises(MissingDependency) as caught:
            _ = kernel.cubin
    assert caught.value.location.file == __file__
    assert kernel.cubin is kernel.cubin


def test_a_program_without_work_for_the_gpu_has_no_device_code():
    @T.prim_func
    def nothing(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            pass

    kernel = tvmtile.compile(nothing, target={"kind": "cuda", "arch": "sm_90a"})
    assert kernel.get_kernel_source() == ""
    assert isinstance(kernel.cubin, bytes)
