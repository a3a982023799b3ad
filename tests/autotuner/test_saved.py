"""A result in a file is the same in another process, and a file from elsewhere runs no code."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch
import tvm
from tvm import tirx

import tvmtile.language as T
from tests.autotuner.kernels import QUICK, tuner
from tests.children import WITHOUT_TORCH
from tvmtile.autotuner import saved
from tvmtile.autotuner.result import AutotuneResult
from tvmtile.errors import InvalidValue
from tvmtile.jit.compiler import Request


@pytest.fixture
def result(in_this_process):
    return tuner({"again": [1, 2]}, ref_prog=lambda A: A * 2).run(**QUICK)


def test_a_saved_result_is_loaded(result, tmp_path):
    path = tmp_path / "new" / "double.tuned"
    result.save_to_disk(path)
    result.save_to_disk(path)  # in place of the older one
    assert list(path.parent.iterdir()) == [path]
    loaded = AutotuneResult.load_from_disk(path)
    x = torch.randn(64)
    for kernel in (loaded.kernel, pickle.loads(pickle.dumps(result.kernel))):
        assert torch.equal(kernel(x), 2 * x)
        assert str(kernel.target) == str(result.kernel.target)
    assert AutotuneResult.load_from_disk(tmp_path / "nothing") is None
    assert loaded.config == loaded.kernel.config == result.config
    assert (loaded.latency, loaded.ref_latency) == (result.latency, result.ref_latency)
    assert loaded.trials == result.trials
    assert loaded.libcode == result.libcode


@pytest.mark.full
def test_another_process_loads_it(result, tmp_path):
    result.save_to_disk(tmp_path / "double.tuned")
    script = (
        f"{WITHOUT_TORCH}import numpy as np\n"
        "from tvmtile.autotuner import AutotuneResult\n"
        "kernel = AutotuneResult.load_from_disk(sys.argv[1]).kernel\n"
        "print(kernel(np.full(64, 21, np.float32)).max())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "double.tuned")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(done.stdout) == 42


class Malice:
    def __reduce__(self):
        return print, ("it ran",)


@pytest.mark.parametrize("content", [b"", b"text", pickle.dumps({}), pickle.dumps(Malice())])
def test_a_file_from_elsewhere(content, tmp_path, capsys):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InvalidValue, match="was not saved by tvmtile"):
        AutotuneResult.load_from_disk(tmp_path / "file")
    assert capsys.readouterr().out == ""


@T.prim_func
def double(A: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(64):
            A[i] = A[i] * 2


@T.prim_func
def with_source(A: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=32):
        T.import_source("static int made = 1 / 0;")
        for i in T.Parallel(64):
            A[i] = A[i] * 2


_WITH_CODE = {
    "pragma_import_llvm": lambda body, key: tirx.AttrStmt(
        tirx.const(0), key, tvm.ir.StringImm("code"), body
    ),
    "pragma_import_c": lambda body, key: tirx.For(
        tirx.Var("i", "int32"), 0, 1, 0, body, annotations={key: "code"}
    ),
}


@pytest.mark.parametrize("name", [*_WITH_CODE, "T.import_source"])
def test_a_program_that_brings_code_is_not_loaded(name, tmp_path, monkeypatch):
    """Constructors would run when it is linked."""
    if name in _WITH_CODE:
        body = _WITH_CODE[name](double.body, name)
        request = Request.of(tirx.PrimFunc(double.params, body, attrs=double.attrs), target="llvm")
    else:
        target = {"kind": "cuda", "arch": "sm_80"}
        request = Request.of(with_source, target=target, execution_backend="emulator")
    monkeypatch.setattr(Request, "artifact", lambda _: pytest.fail("it was compiled"))
    facts = {"versions": saved._versions(), "config": {}, "request": request}
    (tmp_path / "file").write_bytes(pickle.dumps(facts))
    with pytest.raises(InvalidValue) as caught:
        AutotuneResult.load_from_disk(tmp_path / "file")
    assert caught.value.message == (
        f"{tmp_path / 'file'}: the program holds code in another language ({name}), which could run "
        "as it is loaded"
    )
    assert caught.value.help == (
        "compile the kernel from its source with the configuration that was found"
    )


def test_a_result_of_another_version(result, tmp_path, monkeypatch):
    result.save_to_disk(tmp_path / "double.tuned")
    monkeypatch.setattr(saved, "__version__", "0.0.0")
    with pytest.raises(InvalidValue, match=r"was not saved by tvmtile 0\.0\.0") as caught:
        AutotuneResult.load_from_disk(tmp_path / "double.tuned")
    assert "tune again" in caught.value.help
