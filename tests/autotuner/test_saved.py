"""A result in a file is the same in another process, and a file from elsewhere runs no code."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.children import WITHOUT_TORCH
from tvmtile.autotuner import AutoTuner
from tvmtile.autotuner.result import AutotuneResult
from tvmtile.errors import InvalidValue

pytestmark = pytest.mark.full  # other processes compile


def double(block):
    @T.prim_func
    def double(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(64 // block, threads=32) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] * 2

    return double


@pytest.fixture(scope="module")
def result():
    tuner = AutoTuner.from_kernel(double, {"block": [16, 32]})
    tuner.set_compile_args(out_idx=-1, target="llvm")
    return tuner.set_profile_args(ref_prog=lambda A: A * 2).run(warmup=1, rep=2)


def test_a_saved_result_is_loaded(result, tmp_path):
    path = tmp_path / "new" / "double.tuned"
    result.save_to_disk(path)
    result.save_to_disk(path)  # in place of the older one
    assert list(path.parent.iterdir()) == [path]
    loaded = AutotuneResult.load_from_disk(path)
    x = torch.randn(64)
    assert torch.equal(loaded.kernel(x), 2 * x)
    assert loaded.config == loaded.kernel.config == result.config
    assert (loaded.latency, loaded.ref_latency) == (result.latency, result.ref_latency)
    assert loaded.trials == result.trials
    assert loaded.libcode == result.libcode


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


def test_a_tuned_kernel_can_be_pickled(result):
    kernel = pickle.loads(pickle.dumps(result.kernel))
    x = torch.randn(64)
    assert torch.equal(kernel(x), 2 * x)
    assert str(kernel.target) == str(result.kernel.target)


def test_what_there_is_not(tmp_path):
    assert AutotuneResult.load_from_disk(tmp_path / "nothing") is None


class Malice:
    def __reduce__(self):
        return print, ("it ran",)


@pytest.mark.parametrize("content", [b"", b"text", pickle.dumps({}), pickle.dumps(Malice())])
def test_a_file_from_elsewhere(content, tmp_path, capsys):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InvalidValue, match="was not saved by tvmtile"):
        AutotuneResult.load_from_disk(tmp_path / "file")
    assert capsys.readouterr().out == ""


def test_a_result_of_another_version(result, tmp_path, monkeypatch):
    result.save_to_disk(tmp_path / "double.tuned")
    monkeypatch.setattr(tvmtile, "__version__", "0.0.0")
    with pytest.raises(InvalidValue, match=r"was not saved by tvmtile 0\.0\.0") as caught:
        AutotuneResult.load_from_disk(tmp_path / "double.tuned")
    assert "tune again" in caught.value.help
