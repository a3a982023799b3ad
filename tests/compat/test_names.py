"""Names of TileLang: each is here, or `tvmtile.compat.absent` says what to write instead."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import tvm_ffi
from packaging.requirements import Requirement
from tvm_ffi import structural_equal

import tvmtile
import tvmtile.language as T
from tvmtile import errors
from tvmtile.compat import MOVED, PATHS, absent
from tvmtile.env import env
from tvmtile.errors import InvalidOperand, MissingDependency, TileWarning
from tvmtile.jit import resources

HERE = Path(__file__).parent
NAMES = (HERE / "names.txt").read_text()


@T.prim_func
def double(A: T.Tensor((64,), T.float32)):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            A[i] = A[i] * 2


def owners():
    return {"T": T, "Kernel": tvmtile.compile(double, target="llvm"), "tvmtile": tvmtile}


def without_answer(text):
    """The names of a list that are neither here nor in the table."""
    text = re.sub(r"\n  ", " ", text)
    return [
        f"{owner}.{name}"
        for owner, holder in owners().items()
        for name in re.search(rf"^{owner}: (.*)$", text, re.MULTILINE)[1].split()
        if name not in dir(holder) and absent.instead_of(owner, name) is None
    ]


def test_each_name_of_tilelang_is_here_or_has_a_reason():
    assert len(NAMES.split()) > 800
    assert without_answer(NAMES) == []
    assert without_answer(NAMES.replace("T: ", "T: never_heard_of ")) == ["T.never_heard_of"]


@pytest.mark.parametrize("owner", ["T", "Kernel", "tvmtile"])
def test_no_name_that_is_here_has_a_reason(owner):
    assert [name for name in dir(owners()[owner]) if absent.instead_of(owner, name)] == []


@pytest.mark.nightly
def test_the_newest_tilelang_has_no_name_without_an_answer(tmp_path):
    def install(*requirements):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        command += ["--target", str(tmp_path), *requirements]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    if install("tilelang").returncode:
        pytest.skip("there is no wheel of TileLang to be had")
    (found,) = importlib.metadata.distributions(name="tilelang", path=[str(tmp_path)])
    wanted = [Requirement(each) for each in found.requires]
    done = install(*(f"{r.name}{r.specifier}" for r in wanted if is_installed_for(r)))
    assert done.returncode == 0, done.stderr
    printed = subprocess.run(
        [sys.executable, str(HERE / "print_names.py")],
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert printed.returncode == 0, printed.stderr
    assert without_answer(printed.stdout) == []


def is_installed_for(requirement):
    """Tell whether a requirement is for this machine; torch is large, and ours will do."""
    marker = requirement.marker
    return requirement.name != "torch" and (marker is None or marker.evaluate({"extra": ""}))


# --- what is here


def test_an_absent_name_says_what_to_write():
    with pytest.raises(AttributeError) as caught:
        _ = T.alloc_tmem
    assert str(caught.value) == (
        "module 'tvmtile.language' has no attribute 'alloc_tmem': tensor memory is not part of the "
        "language yet; T.gemm runs there by mma.sync"
    )
    with pytest.raises(
        AttributeError, match=r"'Kernel' object has no attribute 'torch_function': a k"
    ):
        _ = tvmtile.compile(double, target="llvm").torch_function
    with pytest.raises(AttributeError, match=r"^module 'tvmtile.language' has no attribute 'x'$"):
        _ = T.x
    with pytest.raises(AttributeError, match=r"'CUDA_HOME': NVRTC compiles"):
        _ = tvmtile.env.CUDA_HOME


@pytest.mark.parametrize(
    ("module", "name", "is_same"),
    [
        ("cuda.language", "copy", T.copy),
        ("engine", "lower", tvmtile.lower),
        ("engine.lower", "lower", tvmtile.lower),
        ("engine.param", "KernelParam", tvmtile.jit.KernelParam),
        ("profiler.bench", "do_bench", tvmtile.profiler.do_bench),
        ("jit", "JITImpl", tvmtile.jit.JitFunction),
        ("contrib.cc", "get_cc", None),
        ("transform", "PassContext", None),
        ("utils.tensor", "torch_assert_close", tvmtile.testing.torch_assert_close),
        ("tools", "plot_layout", tvmtile.plot_layout),
        ("tileop.base", "GemmWarpPolicy", T.GemmWarpPolicy),
        ("language.dtypes", "dtype", T.dtype),
    ],
)
def test_modules(module, name, is_same):
    found = getattr(importlib.import_module(f"tvmtile.{module}"), name)
    assert callable(found)
    assert is_same is None or found is is_same


@pytest.mark.parametrize("path", PATHS)
def test_a_module_of_tilelang_is_found_by_each_way_to_import_it(path):
    parent, _, name = f"tvmtile.{path}".rpartition(".")
    by_name, by_parent = {}, {}
    exec(f"from tvmtile.{path} import *", by_name)
    exec(f"import tvmtile.{path} as module\nfrom {parent} import {name}", by_parent)
    assert by_parent["module"] is by_parent[name]
    module = sys.modules[f"tvmtile.{path}"]
    assert set(getattr(module, "__all__", ())) <= by_name.keys()
    assert by_name.keys() - {"__builtins__"} <= set(dir(module))
    with pytest.raises(
        AttributeError, match=f"^module 'tvmtile.{path}' has no attribute 'never_heard_of'$"
    ):
        _ = module.never_heard_of


@pytest.mark.parametrize(("before", "now"), MOVED.items())
def test_names_of_the_version_before_say_where_they_went(before, now, monkeypatch):
    monkeypatch.setattr(errors, "_SHOWN_WARNINGS", {})
    module, _, name = f"tvmtile.{before}".rpartition(".")
    if before.islower():  # a module: any public name of it is asked for by the old path
        module, name = f"tvmtile.{before}", public_name(importlib.import_module(f"tvmtile.{now}"))
        now_is = getattr(importlib.import_module(f"tvmtile.{now}"), name)
    else:
        now_is = getattr(importlib.import_module(module), now.rpartition(".")[2])
    found = {}
    with pytest.warns(TileWarning, match=f"tvmtile.{before} is tvmtile.{now} now"):
        exec(f"from {module} import {name}", found)
    assert found[name] is now_is


def public_name(module):
    return next(
        n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__
    )


def test_the_dialect_of_cuda_is_the_language():
    from tvmtile.cuda import language

    assert language is T


def test_clusters_of_blocks():
    with_sizes = []

    @T.prim_func
    def main(A: T.Tensor((6, 4, 3), T.int32)):
        with T.Kernel(6, 4, threads=32, cluster_dims=(2, 4)) as (bx, by):
            x, y = T.get_cluster_ids()
            A[bx, by, 0] = x
            A[bx, by, 1] = y
            A[bx, by, 2] = T.get_cluster_id(2)
            with_sizes.append((T.get_cluster_dims(), T.get_cluster_size(), T.get_cluster_extents()))

    a = torch.empty(6, 4, 3, dtype=torch.int32)
    with pytest.warns(TileWarning, match="cluster"):
        tvmtile.compile(main, target="llvm")(a)
    assert a.tolist() == [[[bx // 2, 0, 0] for _ in range(4)] for bx in range(6)]
    assert with_sizes == [([2, 4, 1], 8, [3, 1, 1])]


def test_a_tensor_from_an_address():
    @T.prim_func
    def main(addresses: T.Tensor((2,), T.ptr), B: T.Tensor((4,), T.float32)):
        with T.Kernel(1, threads=32):
            A = T.make_tensor_from_addr(addresses[1], (4,), T.float32)
            for i in T.Parallel(4):
                B[i] = A[i]

    a, b = torch.rand(2, 4), torch.zeros(4)
    tvmtile.compile(main, target="llvm")(torch.tensor([each.data_ptr() for each in a]), b)
    assert torch.equal(a[1], b)


def test_values():
    x, y = T.float32(), T.float32()
    assert structural_equal(T.fmul(x, y), T.ieee_mul(x, y, "rn"))
    assert T.get_tvm_dtype("half") == "float16"
    assert T.is_float4("float4_e2m1fn")
    assert not T.is_float4(T.float8_e4m3fn)
    assert T.bfloat16x64.lanes == 64


def test_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("TVMTILE_CACHE_DIR", "elsewhere")
    monkeypatch.setenv("TVMTILE_TARGET", "llvm")
    env.TILELANG_CACHE_DIR = tmp_path
    assert tvmtile.env.TILELANG_CACHE_DIR == str(tmp_path)
    assert tvmtile.env.TILELANG_DEFAULT_TARGET == "llvm"
    with pytest.warns(TileWarning, match="env.TILELANG_PRINT_ON_COMPILATION has no effect"):
        env.TILELANG_PRINT_ON_COMPILATION = "1"


def test_the_source_is_changed_before_it_is_compiled():
    name = "tvm_callback_cuda_postproc"
    try:
        tvmtile.register_cuda_postproc(lambda source, target: f"// {target.kind}\n{source}")
        kernel = tvmtile.compile(double, target="sm_80")
    finally:
        tvm_ffi.registry.remove_global_func(name)
    assert "// cuda\n" in kernel.get_kernel_source()
    assert "// cuda\n" not in tvmtile.compile(double, target="sm_80").get_kernel_source()


def test_sources_ptx_and_resources(tmp_path, capsys, monkeypatch):
    kernel = tvmtile.compile(double, target="sm_90a")
    kernel.export_sources(kernel_path=tmp_path / "a" / "kernel.cu", host_path=tmp_path / "host.ll")
    assert (tmp_path / "a" / "kernel.cu").read_text() == kernel.kernel_source
    assert (tmp_path / "host.ll").read_text() == kernel.host_source
    kernel.show_ptx()
    kernel.export_ptx(tmp_path / "kernel.ptx")
    assert (tmp_path / "kernel.ptx").read_text() + "\n" == capsys.readouterr().out
    assert re.search(r"\.target sm_90a\n(.*\n)*\.visible \.entry double_kernel\(", kernel.ptx)
    (used,) = kernel.resources()
    assert kernel.resource_usage == {"double_kernel": used}
    assert (kernel.n_regs, kernel.n_spills, kernel.n_max_threads) == (used.registers, 0, 64)
    monkeypatch.setattr(resources, "_found", lambda: None)
    with pytest.raises(MissingDependency) as caught:
        kernel.show_sass()
    assert caught.value.message == (
        "disassembling a CUDA kernel needs nvdisasm, which is not installed"
    )
    monkeypatch.setattr(resources, "_found", lambda: "echo")
    kernel.export_sass(tmp_path / "kernel.sass")
    assert (tmp_path / "kernel.sass").read_text().endswith("kernel.cubin\n")


@pytest.mark.parametrize("ask", ["ptx", "sass", "n_regs"])
def test_what_only_cuda_has(ask):
    with pytest.raises(InvalidOperand, match="is for CUDA kernels; this one is for 'llvm'"):
        getattr(tvmtile.compile(double, target="llvm"), ask)


def test_what_the_autotuner_chose():
    kernel = tvmtile.compile(double, target="llvm")
    with pytest.raises(InvalidOperand, match="double was not tuned"):
        kernel.get_tuner_result()
    kernel.latency, kernel.config = 0.5, {"block": 64}
    assert kernel.get_tuner_result() == {
        "latency": 0.5,
        "config": {"block": 64},
        "ref_latency": None,
    }
