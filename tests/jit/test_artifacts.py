"""Compiled programs from the cache: the same as compiled ones, and never of another program."""

from __future__ import annotations

import json
import linecache
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import tvm

import tvmtile
import tvmtile.language as T
from tests.children import WITHOUT_TORCH
from tests.kernels import scaling
from tests.running import gemm
from tvmtile import _loading
from tvmtile.cache import Store, current_store, digest
from tvmtile.errors import TileWarning
from tvmtile.jit import artifact as artifacts
from tvmtile.jit.key import key_of
from tvmtile.locks import Lock
from tvmtile.target import resolve

EMULATED = {"target": "metal", "execution_backend": "emulator"}
SM_80 = {"target": {"kind": "cuda", "arch": "sm_80"}}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch, sources_of_now):
    """A cache of the test's own, and a process that has compiled nothing."""
    monkeypatch.setattr(artifacts, "current_store", current_store)
    monkeypatch.setenv("TVMTILE_CACHE_DIR", str(tmp_path / "cache"))
    forget()
    return tmp_path / "cache"


def forget():
    """Forget what a new process does not know."""
    artifacts._made.clear()


def compiled(program, target="llvm", **options):
    """Compile in what is a new process."""
    forget()
    return tvmtile.compile(program, target=target, **options)


@pytest.fixture
def builds(monkeypatch):
    """The names of the programs that were compiled."""
    noted = []
    build = artifacts._build
    monkeypatch.setattr(
        artifacts,
        "_build",
        lambda request: noted.append(str(request.func.attrs["global_symbol"])) or build(request),
    )
    return noted


def scale(factor=2.0, **options):
    return scaling(factor=factor, **options)


def names_of(func, target="llvm", backend="tvm_ffi", options=None):
    return key_of(func, resolve(target), backend, options or {})


def matmul(dtype="float32"):
    return gemm(64, 64, 64, block=(32,) * 3, dtypes=(dtype, "float32", "float32"), stages=2)


def dynamic():
    n = T.dynamic("n")

    @T.prim_func
    def dynamic(A: T.Tensor((n,), "float32"), factor: T.float32, B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
            for i in T.Parallel(32):
                B[bx * 32 + i] = A[bx * 32 + i] * factor

    return dynamic


def entries(kind="kernels"):
    return [path for path, _, _ in current_store().entries() if path.parent.name == kind]


def object_of(kernel, path):
    kernel.module.write_to_file(str(path), "o")
    return path.read_bytes()


@pytest.mark.full(but=2)
@pytest.mark.parametrize("program", [scale, matmul, dynamic])
def test_the_machine_code_is_the_same(program, builds, tmp_path):
    first, second = (compiled(program(), out_idx=-1) for _ in range(2))
    assert len(entries()) == len(builds) == 1
    assert second.artifact is not first.artifact
    assert object_of(second, tmp_path / "second.o") == object_of(first, tmp_path / "first.o")
    assert second.get_kernel_source() == first.get_kernel_source()
    assert second.artifact.written == first.artifact.written


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, EMULATED])
def test_results_are_the_same_bit_for_bit(options, builds):
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    results = [compiled(matmul(), out_idx=-1, **options)(a, b) for _ in range(2)]
    assert torch.equal(*results)
    torch.testing.assert_close(results[0], a @ b)
    x, y = torch.randn(45), torch.zeros(45)
    for kernel in [compiled(dynamic(), **options) for _ in range(2)]:
        kernel(x, 3.0, y.zero_())
        torch.testing.assert_close(y, x * 3)
    assert builds == ["main", "dynamic"]


@pytest.mark.full
def test_a_program_for_a_gpu_that_is_not_here(builds):
    first = compiled(matmul(dtype="float16"), **SM_80)
    (entry,) = entries("cubins") if first.cubin else ()
    assert (entry / "cubin").read_bytes() == first.cubin
    second = compiled(matmul(dtype="float16"), **SM_80)
    assert builds == ["main"]
    for only in (True, False):
        assert second.get_kernel_source(only) == first.get_kernel_source(only)
    assert second.cubin == first.cubin
    assert second.resources() == first.resources()
    assert len(second.module.imports) == 1  # whole, to be exported


def test_machine_code_of_a_source_is_kept(monkeypatch):
    from tvmtile.jit import cuda

    source = 'extern "C" __global__ void __launch_bounds__(32) f(int *x) { x[0] = 3; }'
    first = cuda.compile_source(source, "sm_80")
    (entry,) = entries("cubins")
    assert json.loads((entry / "manifest").read_text().partition("\n")[2])["facts"] == {
        "name": "f",
        "target": "sm_80",
    }
    compiled = cuda._compiled
    monkeypatch.setattr(cuda, "_compiled", None)
    assert cuda.compile_source(source, "sm_80") == first
    monkeypatch.setattr(cuda, "_compiled", compiled)
    monkeypatch.setenv("TVM_CUDA_PTXAS_REG_LEVEL", "5")
    cuda.compile_source(source, "sm_80")
    cuda.compile_source(source, "sm_90a")
    assert len(entries("cubins")) == 3


@pytest.mark.parametrize(
    ("include", "is_kept"),
    [("<cuda_fp16.h>", True), ('"mine.h"', False), ("<mine.h>", False), ("NAME", False)],
)
def test_a_source_that_includes_files_of_the_users(include, is_kept, tmp_path, monkeypatch):
    from tvmtile.jit.cuda import compile_source

    header = tmp_path / "mine.h"
    header.write_text("#define VALUE 1\n")
    options = f"-I{tmp_path} '-DNAME=\"mine.h\"'"
    monkeypatch.setenv("TVM_CUDA_NVRTC_EXTRA_OPTS", options)
    source = f'#include {include}\nextern "C" __global__ void f(int *x) {{ x[0] = 1; }}'
    assert compile_source(source, "sm_80").cubin
    assert bool(entries("cubins")) is is_kept


def test_one_process_compiles_a_program_once(builds):
    first = tvmtile.compile(scale(), target="llvm")
    again = tvmtile.compile(scale(), out_idx=1, target="llvm")
    assert builds == ["scale"]
    assert again.artifact is first.artifact
    assert again.out_idx == (1,)


def test_threads_that_compile_the_same_program(builds):
    kernels = tvmtile.par_compile([scale() for _ in range(8)], num_workers=4, target="llvm")
    assert builds == ["scale"]
    a, b = torch.randn(64), torch.zeros(64)
    for kernel in kernels:
        kernel(a, b)
        torch.testing.assert_close(b, a * 2)


@tvm.instrument.pass_instrument
class Watcher:
    def run_after_pass(self, mod, info):
        pass


@pytest.mark.parametrize("why", ["switched off", "edited compiler", "no key"])
def test_where_nothing_is_kept_everything_is_compiled(why, builds, monkeypatch, own_cache):
    if why == "switched off":
        monkeypatch.setenv("TVMTILE_DISABLE_CACHE", "1")
    if why == "edited compiler":  # since it was started
        monkeypatch.setattr(_loading, "STARTED", 0.0)
    instruments = [Watcher()] if why == "no key" else []
    for _ in range(2):
        with tvm.transform.PassContext(instruments=instruments):
            tvmtile.compile(scale(), target="llvm")
    assert builds == ["scale"] * 2
    assert not list(own_cache.glob("kernels/*"))
    assert why != "switched off" or not own_cache.exists()


def test_switches(monkeypatch):
    monkeypatch.setattr("tvmtile.cache.settings._switched", None)
    assert tvmtile.is_cache_enabled()
    tvmtile.disable_cache()
    assert not tvmtile.is_cache_enabled()
    tvmtile.enable_cache()
    monkeypatch.setenv("TVMTILE_DISABLE_CACHE", "1")
    assert tvmtile.is_cache_enabled()  # what the process says, it means
    monkeypatch.setattr("tvmtile.cache.settings._switched", None)
    for value, enabled in (("1", False), ("TRUE", False), ("0", True), ("", True)):
        monkeypatch.setenv("TVMTILE_DISABLE_CACHE", value)
        assert tvmtile.is_cache_enabled() is enabled


def test_clearing(builds):
    compiled(scale())
    tvmtile.clear_cache()
    assert not entries()
    compiled(scale())
    assert builds == ["scale"] * 2


# --- the user's lines

MOVED = """
import tvmtile.language as T
{blank}
@T.prim_func
def moved(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
    with T.Kernel(2, threads=32) as bx:
        for i in T.Parallel(32):
            {statement}
            B[bx * 32 + i] = A[bx * 32 + i]
"""


def moved(path, blank, statement="pass"):
    """A program that begins some lines further down."""
    path.write_text(MOVED.format(blank="\n" * blank, statement=statement))
    linecache.checkcache(str(path))
    namespace = {"__name__": "moved"}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    return namespace["moved"]


def test_a_program_that_has_only_moved_is_not_compiled_again(builds, tmp_path):
    for name, blank in (("moved.py", 0), ("moved.py", 5), ("elsewhere.py", 3)):
        compiled(moved(tmp_path / name, blank))
    assert builds == ["moved"]


def test_code_that_names_a_line_is_compiled_for_that_line(builds, tmp_path):
    asserts = 'T.device_assert(A[bx * 32 + i] > 0, "positive")'
    for blank in (0, 5, 0):
        func = moved(tmp_path / "asserting.py", blank, asserts)
        source = compiled(func, **SM_80).get_kernel_source()
        lines = (tmp_path / "asserting.py").read_text().splitlines()
        line = next(i for i, text in enumerate(lines, 1) if "device_assert" in text)
        assert f'asserting.py", {line}' in source
    assert builds == ["moved"] * 2


def test_what_was_said_when_it_was_compiled_is_said_again(builds, monkeypatch):
    @T.prim_func
    def unset(A: T.Tensor((32, 32), "float32"), B: T.Tensor((32, 32), "float32")):
        with T.Kernel(1, threads=32):
            b = T.alloc_fragment((32, 32), "float32")
            T.gemm(A, A, b)
            T.copy(b, B)

    said = []
    for _ in range(2):
        monkeypatch.setattr("tvmtile.errors._SHOWN_WARNINGS", {})
        with pytest.warns(TileWarning) as caught:
            compiled(unset)
        said.append([(str(w.message), w.filename, w.lineno) for w in caught])
    assert builds == ["unset"]
    assert said[0] == said[1]
    assert said[0][0][1] == __file__


# --- other processes

CHILD = """
import sys, warnings
import numpy as np
import tvmtile
import tvmtile.language as T
from tvmtile.jit import artifact as artifacts


def gemm(number, n=64):
    @T.prim_func
    def main(
        A: T.Tensor((n, n), "float32"), B: T.Tensor((n, n), "float32"), C: T.Tensor((n, n), "float32")
    ):
        with T.Kernel(2, 2, threads=32) as (bx, by):
            c = T.alloc_fragment((32, 32), "float32")
            for i, j in T.Parallel(32, 32):
                c[i, j] = number
                for k in T.serial(n):
                    c[i, j] += A[by * 32 + i, k] * B[k, bx * 32 + j]
            T.copy(c, C[by * 32, bx * 32])

    return main


warnings.simplefilter("error")
compiled = []
build = artifacts._build
artifacts._build = lambda *args: compiled.append(args) or build(*args)
a = np.random.default_rng(0).random((64, 64), np.float32)
for number in range(int(sys.argv[1])):
    kernel = tvmtile.compile(gemm(number), out_idx=-1, target="llvm")
    np.testing.assert_allclose(kernel(a, a), a @ a + number, rtol=1e-4, atol=1e-4)
passes = [m for m in sys.modules if m.startswith(("tvmtile.passes", "tvmtile.pipeline"))]
print(len(compiled), bool(passes))
"""


def start(tmp_path, count):
    (tmp_path / "child.py").write_text(WITHOUT_TORCH + CHILD)
    command = [sys.executable, tmp_path / "child.py", str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    """The number of programs that a process compiled, and whether it has imported the passes."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    count, passes = out.split()
    return int(count), passes


@pytest.mark.full
@pytest.mark.parametrize("count", [4, pytest.param(50, marks=pytest.mark.nightly)])
def test_two_processes_that_compile_the_same_kernels_at_once(tmp_path, count):
    processes = [start(tmp_path, count) for _ in range(2)]
    made = sum(finish(process)[0] for process in processes)
    assert count <= made <= 2 * count
    assert len(entries()) == count
    assert finish(start(tmp_path, count)) == (0, "False")


def test_a_cache_that_can_not_be_written(tmp_path, monkeypatch, builds):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    monkeypatch.setenv("TVMTILE_CACHE_DIR", str(blocked))
    a, b = torch.randn(64), torch.zeros(64)
    with pytest.warns(TileWarning, match="the cache of tvmtile: .*blocked") as caught:
        kernels = [tvmtile.compile(scale(factor), target="llvm") for factor in (1.0, 2.0)]
    for factor, kernel in zip((1.0, 2.0), kernels, strict=True):
        kernel(a, b)
        torch.testing.assert_close(b, a * factor)
    assert len(caught) == 1


@pytest.mark.parametrize("name", ["manifest", "host.ll"])
def test_a_damaged_entry_is_compiled_again(name, builds):
    compiled(scale())
    (entry,) = entries()
    (entry / name).write_bytes((entry / name).read_bytes().replace(b"e", b"a", 3))
    a, b = torch.randn(64), torch.zeros(64)
    with pytest.warns(TileWarning, match="was damaged"):
        compiled(scale())(a, b)
    torch.testing.assert_close(b, a * 2)
    compiled(scale())
    assert builds == ["scale"] * 2


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_fork_while_another_thread_compiles(builds):
    key = names_of(scale())
    with artifacts._locks.setdefault(key.with_lines, Lock()):
        child = os.fork()
        if child == 0:
            tvmtile.compile(scale(), target="llvm")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def damages(facts, files):
    """Entries that are as they were written, and of no use."""
    yield from ((facts, {**files, name: b""}) for name in files)
    yield from ((facts, {n: d for n, d in files.items() if n != name}) for name in files)
    yield {}, files
    yield [], files
    for name in facts:
        yield {n: v for n, v in facts.items() if n != name}, files
        if facts[name]:
            yield from (({**facts, name: wrong}, files) for wrong in (None, 5))


def test_an_entry_of_no_use_is_made_again_once(builds, monkeypatch):
    kernel, name = compiled(scale(), out_idx=-1), names_of(scale()).code
    monkeypatch.setattr(artifacts, "_build", lambda *_: builds.append("again") or kernel.artifact)
    facts, files = kernel.artifact.saved()
    x, first = torch.ones(64), []
    for said, contents in damages(facts, files):
        tvmtile.clear_cache()
        store = Store(current_store().directory, 1 << 30)
        assert store.put("kernels", name, {}, contents)
        manifest = store.directory / "kernels" / name / "manifest"
        text = json.loads(manifest.read_bytes().partition(b"\n")[2])
        text = json.dumps({**text, "facts": said})
        manifest.write_text(f"{digest(text)}\n{text}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TileWarning)
            for again in (first, []):
                builds.clear()
                assert torch.equal(compiled(scale(), out_idx=-1)(x), 2 * x)
                again += builds
        assert not again, (said, list(contents))
    assert len(first) == 15


def test_a_user_without_a_home_has_no_cache_and_one_warning(monkeypatch, builds):
    monkeypatch.setenv("TVMTILE_CACHE_DIR", "~nobody-of-this-name/cache")
    assert tvmtile.cache.cache_directory() is None
    with pytest.warns(TileWarning) as caught:
        assert [current_store() for _ in range(2)] == [None] * 2
    tvmtile.clear_cache()
    (message,) = [str(each.message) for each in caught]
    assert message == (
        "TVMTILE_CACHE_DIR=~nobody-of-this-name/cache names no directory, so that nothing that is "
        "compiled is kept: TVMTILE_CACHE_DIR says where to keep it, TVMTILE_DISABLE_CACHE=1 that "
        "nothing is to be"
    )


def test_the_users_directory_is_where_caches_are(monkeypatch):
    monkeypatch.delenv("TVMTILE_CACHE_DIR")
    assert tvmtile.cache.cache_directory().name == "tvmtile"
    monkeypatch.setenv("TVMTILE_CACHE_DIR", "~/mine")
    assert tvmtile.cache.cache_directory() == Path.home() / "mine"


def test_the_size_is_a_number(monkeypatch):
    monkeypatch.setenv("TVMTILE_CACHE_SIZE", "2")
    assert current_store().limit == 2 << 20
    monkeypatch.setenv("TVMTILE_CACHE_SIZE", "2GB")
    with pytest.raises(tvmtile.errors.InvalidValue, match="TVMTILE_CACHE_SIZE=2GB"):
        current_store()
