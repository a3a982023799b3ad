"""Binding arguments, launching, compiling: what a user of the emulator meets."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import tvm
from tvm.script import tirx as T

from tvmtile.cache import directory
from tvmtile.emulator.machine import compiler, toolchain
from tvmtile.emulator.metal import compile_msl
from tvmtile.emulator.metal import module as msl_module
from tvmtile.errors import ArgumentError, MissingDependency

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
SCALE = (
    HEADER
    + """
kernel void scale(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                  constant float& factor [[buffer(2)]], constant int& n [[buffer(3)]],
                  uint i [[thread_position_in_grid]]) {
  if (int(i) < n) out[i] = in[i] * factor;
}
kernel void shift(device float* a [[buffer(0)]], device float* b [[buffer(1)]],
                  uint i [[thread_index_in_threadgroup]]) {
  float x = a[i];
  threadgroup_barrier(mem_flags::mem_device);
  b[i] = x;
}
"""
)


@pytest.fixture(scope="module")
def scale():
    return compile_msl(SCALE).kernel("scale")


def test_numpy_and_torch_are_written_in_place(scale):
    a = np.arange(40, dtype=np.float32)
    out = np.full(40, -1, np.float32)
    scale(a, out, 0.5, 33, grid=2, threads=32)
    np.testing.assert_array_equal(out, np.where(np.arange(40) < 33, a / 2, -1))
    tensor = torch.full((40,), -1.0)
    scale(torch.from_numpy(a), tensor, np.float32(3), np.int64(40), grid=2, threads=32)
    torch.testing.assert_close(tensor, 3 * torch.from_numpy(a))


def test_views_of_one_array_are_one_memory():
    a = np.arange(65, dtype=np.float32)
    compile_msl(SCALE).kernel("shift")(a[:64], a[1:], grid=1, threads=64)
    np.testing.assert_array_equal(a, [0, *range(64)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(4, np.float32),), "takes 4 arguments (in, out, factor, n), got 1"),
        ((np.zeros(4), np.zeros(4, np.float32), 1.0, 4), "'in': expected float32"),
        ((np.zeros(4, np.float32), np.zeros((4, 2), np.float32)[:, 0], 1.0, 4), "not contiguous"),
        ((np.zeros(4, np.float32), "four", 1.0, 4), "got str"),
        ((np.zeros(4, np.float32), np.zeros(4, np.float32), 1.0, 4.5), "4.5 is no int"),
        ((np.zeros(4, np.float32), np.zeros(4, np.float32), 1.0, 2**40), "does not fit int"),
    ],
)
def test_arguments_that_do_not_fit(scale, arguments, message):
    with pytest.raises(ArgumentError) as caught:
        scale(*arguments, grid=1, threads=4)
    assert message in str(caught.value)


def test_read_only_array_can_be_read_and_not_written(scale):
    fixed, out = np.ones(4, np.float32), np.zeros(4, np.float32)
    fixed.flags.writeable = False
    scale(fixed, out, 2, 4, grid=1, threads=4)
    assert (out == 2).all()
    with pytest.raises(ArgumentError, match="read-only"):
        scale(out, fixed, 2, 4, grid=1, threads=4)


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ({"grid": 0, "threads": 4}, "grid: expected one to three positive numbers"),
        ({"grid": (1, 1, 1, 1), "threads": 4}, "grid: expected one to three"),
        ({"grid": 1, "threads": (32, 33)}, "a threadgroup has 1024 at most"),
        ({"grid": 1, "threads": 4, "threadgroup_memory": {0: 64}}, "for the indices []"),
    ],
)
def test_launches_that_metal_refuses(scale, launch, message):
    out = np.zeros(4, np.float32)
    with pytest.raises(ArgumentError) as caught:
        scale(out, out.copy(), 1, 4, **launch)
    assert message in str(caught.value)


def test_kernel_that_is_not_there():
    with pytest.raises(ArgumentError, match=r"no kernel 'add'.*which has scale, shift"):
        compile_msl(SCALE).kernel("add")


@pytest.fixture
def fresh_toolchain():
    compiler.find_compiler.cache_clear()
    yield
    compiler.find_compiler.cache_clear()


@pytest.mark.usefixtures("fresh_toolchain")
def test_machine_without_a_compiler_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(MissingDependency, match="C\\+\\+ compiler") as caught:
        compile_msl(HEADER + "kernel void never_compiled_before() {}", cache=False)
    assert "CXX" in str(caught.value)


@pytest.mark.usefixtures("fresh_toolchain")
def test_cxx_names_the_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "c++ -pipe")
    assert compiler.find_compiler() == ("c++", "-pipe")


def test_compiled_modules_are_kept(monkeypatch, tmp_path):
    source = HEADER + "kernel void kept(device int* a [[buffer(0)]]) { a[0] = 7; }"
    compile_msl(SCALE)  # the runtime is there
    monkeypatch.setenv("TVMTILE_CACHE_DIR", str(tmp_path))
    first = compile_msl(source, cache=False)
    (kept,) = tmp_path.glob("emulator/*/kernel.so")
    monkeypatch.setattr(toolchain, "run", lambda *_, **__: pytest.fail("compiled again"))
    again = compile_msl(source)
    assert again.library.read_bytes() == first.library.read_bytes() == kept.read_bytes()
    out = np.zeros(1, np.int32)
    again.kernel("kept")(out, grid=1, threads=1)
    assert out[0] == 7


def test_who_begins_at_the_same_time_waits_for_what_is_being_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("TVMTILE_CACHE_DIR", str(tmp_path))
    compiled = []

    def compile_into(directory):
        compiled.append(directory)
        time.sleep(0.2)
        (directory / "object.o").write_bytes(b"1")

    def prepared(_):
        return toolchain._prepared(msl_module._FRONT_END, "once", ("-once",), compile_into)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(prepared, range(2))
    assert len(compiled) == 1
    assert (first / "object.o").read_bytes() == (second / "object.o").read_bytes() == b"1"


def test_the_runtime_is_compiled_once_for_all_processes(monkeypatch):
    directory._of_processes.clear()  # as in a process that begins
    used = toolchain._runtime(msl_module._FRONT_END)
    directory._of_processes.clear()
    monkeypatch.setattr(toolchain, "run", lambda *_, **__: pytest.fail("compiled again"))
    fresh = toolchain._runtime(msl_module._FRONT_END)
    assert fresh != used
    assert {p.name: p.read_bytes() for p in fresh.iterdir()} == {
        p.name: p.read_bytes() for p in used.iterdir()
    }


def test_a_fork_while_another_thread_emulates():
    source = HEADER + "kernel void kept(device int* a [[buffer(0)]]) { a[0] = 7; }"
    kernel, out = compile_msl(source).kernel("kept"), np.zeros(1, np.int32)
    with toolchain.LOCK:  # as the other thread does
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            kernel(out, grid=1, threads=1)
            os._exit(0 if out[0] == 7 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not toolchain.LOCK.locked()


def test_without_the_cache_modules_last_as_long_as_the_process(monkeypatch, tmp_path):
    compile_msl(SCALE)
    monkeypatch.setenv("TVMTILE_DISABLE_CACHE", "1")
    monkeypatch.setenv("TVMTILE_CACHE_DIR", str(tmp_path / "cache"))
    source = HEADER + "kernel void fleeting(device int* a [[buffer(0)]]) { a[0] = 9; }"
    assert compile_msl(source).library.is_file()
    assert not (tmp_path / "cache").exists()


def test_constants_of_the_program_are_made_before_any_launch():
    source = (
        HEADER
        + """
    constant float4 table[2] = {float4(1, 2, 3, 4), float4(5.0)};
    kernel void pick(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
      out[i] = table[i % 2].y;
    }
    """
    )
    out = np.zeros(4, np.float32)
    compile_msl(source).kernel("pick")(out, grid=1, threads=4)
    assert out.tolist() == [2, 5, 2, 5]


def test_scalars_in_the_struct_that_tvm_makes():
    @T.prim_func
    def axpy(a: T.handle, b: T.handle, n: T.int32, alpha: T.float32):
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        for i in T.thread_binding((n + 63) // 64, "blockIdx.x"):
            for j in T.thread_binding(64, "threadIdx.x"):
                if i * 64 + j < n:
                    B[i * 64 + j] = A[i * 64 + j] * alpha + T.exp(A[i * 64 + j])

    built = tvm.tirx.build(axpy, target="metal").imports[0].inspect_source("metal")
    module = compile_msl(built)
    kernel = module.kernel(*module.kernel_names)
    n, alpha = 150, 2.5
    values = {"n": n, "alpha": alpha}
    x, out = np.linspace(-2, 2, n, dtype=np.float32), np.zeros(n, np.float32)
    scalars = [values[field.name] for field in kernel.signature.argument_struct]
    kernel(x, out, *scalars, grid=3, threads=64)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(out, wide * alpha + np.exp(wide), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "declared",
    [
        "[[max_total_threads_per_threadgroup(32)]] kernel void",
        "[[kernel, max_total_threads_per_threadgroup(32)]] void",
        "[[kernel]] [[max_total_threads_per_threadgroup(32)]] void",
    ],
)
def test_a_kernel_says_how_many_threads_it_takes(declared):
    source = f"""{HEADER}kernel void first(device int* out) {{}}
    {declared} k(device int* out, uint i [[thread_position_in_grid]]) {{ out[i] = i; }}"""
    out = np.zeros(64, np.int32)
    kernel = compile_msl(source).kernel("k")
    kernel(out, grid=2, threads=(16, 2))
    assert compile_msl(source).kernel_names == ("first", "k")
    with pytest.raises(ArgumentError, match="64 threads: kernel 'k' has .*threadgroup.32"):
        kernel(out, grid=1, threads=64)
