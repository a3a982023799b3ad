"""The key of a compiled program: what decides its machine code, and nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from tvm import ir

import tvmtile.language as T
from tests.jit.test_artifacts import Watcher, names_of, own_cache, scale  # noqa: F401
from tvmtile._tvm import nodes_in
from tvmtile.jit import key as toolchain


@pytest.fixture
def base():
    with tvm.transform.PassContext():  # without the instrument of the tests
        yield names_of(scale())


CHANGES = {
    "a number": lambda: names_of(scale(3.0)),
    "the sign of zero": lambda: (names_of(scale(0.0)), names_of(scale(-0.0))),
    "an extent": lambda: names_of(scale(n=128)),
    "a dtype": lambda: names_of(scale(dtype="float16")),
    "the name": lambda: names_of(scale(name="other")),
    "an attribute": lambda: names_of(scale().with_attr("tirx.noalias", True)),
    "the target": lambda: names_of(scale(), {"kind": "llvm", "mcpu": "znver2"}),
    "the GPU": lambda: names_of(scale(), {"kind": "cuda", "arch": "sm_90a"}),
    "the host": lambda: names_of(
        scale(), {"kind": "cuda", "arch": "sm_90a", "host": {"kind": "llvm", "mcpu": "znver2"}}
    ),
    "who runs it": lambda: (names_of(scale(), "metal", "emulator"), names_of(scale(), "llvm")),
    "an option": lambda: names_of(scale(), options={"tvmtile.verify": True}),
}


def test_programs_with_each_operation_of_expressions_have_a_key(base):
    """Operations of TVM's that are named `prim.` too."""

    @T.prim_func
    def program(A: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32):
            A[0] = T.if_then_else(A[1] > 0, T.log2(A[2]), T.ceil(A[3]))

    operations = {str(node.op.name) for node in nodes_in(program.body, ir.Call)}
    assert operations >= {"prim.if_then_else", "prim.log2", "prim.ceil"}
    assert base is not None
    assert names_of(program) is not None


@pytest.mark.parametrize("change", CHANGES)
def test_what_decides_the_code_is_in_the_key(base, change):
    changed = CHANGES[change]()
    one, other = changed if type(changed) is tuple else (changed, base)
    assert None not in (one, other)
    assert names_of(scale()) == base  # two traces of a program have one key
    assert one.code != other.code
    assert one.with_lines != other.with_lines


def test_the_pass_context_is_in_the_key(base):
    contexts = [
        {"config": {"tirx.disable_vectorize": True}},
        {"config": {"tirx.disable_vectorize": False}},
        {"opt_level": 3},
        {"disabled_pass": ["tirx.UnrollLoop"]},
        {"required_pass": ["tirx.UnrollLoop"]},
    ]
    keys = {base.code}
    for options in contexts:
        with tvm.transform.PassContext(**options):
            keys.add(names_of(scale()).code)
    assert len(keys) == len(contexts) + 1


def test_variables_of_the_environment_are_in_the_key(base, monkeypatch):
    keys = {base.code}
    for name in ("TVM_CUDA_PTXAS_REG_LEVEL", "TVM_CUDA_NVRTC_EXTRA_OPTS", "TVM_ANY_NEW_ONE"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "7")
            keys.add(names_of(scale()).code)
    assert len(keys) == 4
    monkeypatch.setenv("TVM_NUM_THREADS", "7")
    assert names_of(scale()) == base


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    "compiler", ["tvm.__version__", "tvm_ffi.__version__", "the code", "a library"]
)
def test_the_compilers_are_in_the_key(base, compiler, monkeypatch, tmp_path):
    if compiler == "the code":  # tests/jit/test_sources.py says of what
        monkeypatch.setattr(toolchain, "code_of", lambda kind: f"another pass for {kind}")
    elif compiler == "a library":
        (tmp_path / "libtvm.so").write_bytes(b"another one")
        monkeypatch.setattr(toolchain, "_LIBRARIES", (tmp_path,))
    else:
        monkeypatch.setattr(compiler, "0.0.0")
    toolchain.toolchain.cache_clear()
    try:
        assert names_of(scale()).code != base.code
    finally:
        toolchain.toolchain.cache_clear()


def test_a_library_is_known_by_its_contents(tmp_path):
    """In a second environment it has another path; dates are those that an installer gives it."""
    files = [tmp_path / name / "libtvm.so" for name in ("first", "second")]
    for file in files:
        file.parent.mkdir()
        file.write_bytes(b"the compiler")
        os.utime(file, (0, 0))
    first, second = (toolchain.contents_of([file]) for file in files)
    assert first == second
    files[1].write_bytes(b"the compiles")
    os.utime(files[1], (0, 0))
    assert toolchain.contents_of([files[1]]) != second


def test_what_has_no_build_id_is_read_once(tmp_path, monkeypatch):
    (tmp_path / "header.h").write_text("int x;")
    first = toolchain.contents_of([tmp_path / "header.h"])
    monkeypatch.setattr(Path, "read_bytes", None)
    assert toolchain.contents_of([tmp_path / "header.h"]) == first


@pytest.mark.skipif(not shutil.which("readelf"), reason="needs readelf")
def test_a_library_of_tvm_is_known_by_its_build_id():
    for path in (path for directory in toolchain._LIBRARIES for path in directory.glob("*.so")):
        notes = subprocess.run(["readelf", "-n", path], capture_output=True, text=True, check=True)
        assert toolchain._build_id(path).hex() in notes.stdout


@contextlib.contextmanager
def registered(name):
    tvm_ffi.register_global_func(name, lambda source, _target=None: source)
    try:
        yield
    finally:
        tvm_ffi.registry.remove_global_func(name)


def test_what_a_user_does_to_the_compilation_has_no_key(base, monkeypatch):
    with tvm.transform.PassContext(instruments=[Watcher()]):
        assert names_of(scale()) is None
    with registered("tvm_callback_cuda_postproc"):
        assert names_of(scale()) is None
    with monkeypatch.context() as patch:
        patch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
        assert names_of(scale()) is None

    def lowering():
        """Of another package."""

    lowering.__module__ = "theirs"
    with monkeypatch.context() as patch:
        patch.setattr("tvmtile.jit.key._implementations", lambda: iter([lowering]))
        assert names_of(scale()) is None
    assert names_of(scale()) == base
