"""Tuning: the quickest right configuration is found, whatever the others do."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import tvm

import tvmtile
import tvmtile.language as T
from tests.autotuner.kernels import QUICK, double, tuner
from tvmtile.autotuner import AutoTuner, compilation, set_autotune_inputs
from tvmtile.errors import ArgumentError, InvalidOperand, InvalidValue, TuningFailed

in_children = pytest.mark.full  # they take seconds to start
pytestmark = pytest.mark.usefixtures("no_times")


@pytest.mark.usefixtures("in_this_process")
def test_a_kernel_is_tuned():
    profile = {"ref_prog": lambda A: A * 2}
    result = tuner([{"again": 2000}, {"again": 1}, {"way": "wrong"}], **profile).run(**QUICK)
    assert result.config == {"again": 1}
    assert [trial.status for trial in result.trials] == ["ok", "ok", "wrong result"]
    assert result.trials[0].latency > result.trials[1].latency == result.latency
    x = torch.randn(64)
    assert torch.equal(result.kernel(x), 2 * x)


@in_children
def test_what_can_not_be_used_is_reported_and_left_out(caplog):
    caplog.set_level(logging.INFO, "tvmtile.autotuner")
    ways = ["wrong", "aborts", "refused", "right"]
    result = tuner({"way": ways}, ref_prog=lambda A: A * 2).run(**QUICK)
    assert result.config == {"way": "right"}
    x = torch.randn(64)
    assert torch.equal(result.kernel(x), 2 * x)
    found = {trial.config["way"]: (trial.status, trial.reason) for trial in result.trials}
    assert found["right"] == ("ok", "")
    assert found["wrong"][0] == "wrong result"
    assert found["wrong"][1].startswith("the kernel and the reference differ in 6")
    assert found["aborts"] == ("died", "its process was ended by SIGABRT")
    status, reason = found["refused"]
    assert status == "not compiled"
    assert reason.startswith("ShapeMismatch: copy: A[0:3] float32 and B[0:4] float32")
    lines = {record.getMessage(): record.levelname for record in caplog.records}
    assert len(lines) == len(ways)
    assert lines["2/4 way=aborts: died: its process was ended by SIGABRT"] == "WARNING"
    (measured,) = (line for line, level in lines.items() if level == "INFO")
    assert measured.startswith("4/4 way=right: ")


@in_children
def test_what_takes_too_long_is_ended():
    with pytest.raises(TuningFailed) as caught:
        tuner({"way": ["hangs", "endless to compile"]}).run(timeout=4, **QUICK)
    assert "  way=hangs: timed out: not done after 4 s" in str(caught.value)
    assert "  way=endless to compile: timed out: not done after 4 s" in str(caught.value)


@in_children
def test_the_best_is_the_quickest_and_all_are_in_the_table():
    configs = [{"again": 2000}, {"again": 1}, {"way": "refused"}]
    result = tuner(configs, ref_prog=lambda A: A * 2).run(use_pipeline=True, **QUICK)
    assert result.config == result.kernel.config == {"again": 1}
    assert result.latency == result.kernel.latency == result.trials[1].latency
    assert result.ref_latency == result.kernel.ref_latency > 0
    assert result.func.script() == result.kernel.prim_func.script()
    assert "define" in result.libcode
    rows = result.table()
    if not isinstance(rows, list):
        rows = rows.to_dict("records")
    assert [row["again"] for row in rows[:2]] == [1, 2000]
    assert rows[0]["latency"] < rows[1]["latency"]
    assert rows[2]["status"] == "not compiled"
    pytest.importorskip("matplotlib")
    configurations, reference = result.plot().get_lines()
    assert len(configurations.get_xdata()) == 2
    assert list(configurations.get_ydata()) == sorted(configurations.get_ydata())
    assert len(reference.get_ydata()) == 2


MADE = []


def supply(params):
    MADE.append(len(params))
    return [torch.ones(64)]


@in_children
def test_the_times_are_kept_on_disk(caplog):
    first = tuner({"again": [1, 2]}, supply_prog=supply).run(**QUICK)
    assert not first.is_from_cache
    caplog.set_level(logging.INFO, "tvmtile.autotuner")
    second = tuner({"again": [1, 2]}, supply_prog=supply).run(**QUICK)
    assert second.is_from_cache
    assert not caplog.records  # nothing was measured
    assert MADE == [1]  # nor inputs made
    assert [str(trial) for trial in second.trials] == [str(trial) for trial in first.trials]
    assert second.config == first.config == second.kernel.config
    x = torch.randn(64)
    assert torch.equal(second.kernel(x), 2 * x)


@in_children
def test_without_a_cache_the_best_is_compiled_again(monkeypatch):
    monkeypatch.setenv("TVMTILE_DISABLE_CACHE", "1")
    first, second = (tuner({"again": [1]}).run(**QUICK) for _ in range(2))
    assert not first.is_from_cache
    assert not second.is_from_cache
    assert torch.equal(second.kernel(torch.ones(64)), torch.full((64,), 2.0))


@in_children
def test_where_nothing_can_be_used_the_error_says_why():
    with pytest.raises(TuningFailed, match="double: no configuration can be used") as caught:
        tuner([{"way": "refused"}] * 12).run(**QUICK)
    assert "  way=refused: not compiled: ShapeMismatch: copy: A[0:3] float32" in str(caught.value)
    assert "  and 2 more" in str(caught.value)


@pytest.mark.usefixtures("in_this_process")
def test_a_slow_one_is_stopped_early():
    configs = [{"again": 1}, {"again": 3000}]
    result = tuner(configs).run(warmup=1, rep=300, early_stop=True, early_stop_factor=5.0)
    slow = result.trials[1]
    assert (slow.status, result.config) == ("stopped early", {"again": 1})
    assert slow.latency > 5 * result.latency
    with pytest.raises(InvalidValue, match="early_stop_factor=0.5"):
        tuner(configs).run(early_stop=True, early_stop_factor=0.5)


@in_children
def test_options_of_passes_may_differ():
    configs = [
        {"again": 1, "pass_configs": {"tirx.disable_vectorize": flag}} for flag in (True, False)
    ]
    result = tuner(configs).run(**QUICK)
    assert [trial.status for trial in result.trials] == ["ok", "ok"]
    plain, vectors = (tuner([each]).run(**QUICK).kernel.get_kernel_source() for each in configs)
    assert "<4 x float>" not in plain
    assert "x float>" in vectors


class Executor(ThreadPoolExecutor):
    """Notes what it is given; may lose it."""

    is_losing = False

    def submit(self, function, *args):
        self.submitted = [*getattr(self, "submitted", []), function.__name__]
        return super().submit(self.lose if self.is_losing else function, *args)

    def lose(self, *args):
        raise ConnectionError("the worker is gone")


@in_children
def test_an_executor_compiles_or_loses_a_task():
    with Executor(1) as executor:
        result = tuner({"again": [1, 2]}).run(executor=executor, **QUICK)
        assert executor.submitted == ["compile_in_child"] * 2
        executor.submit(print)  # it is open still
        assert [trial.status for trial in result.trials] == ["ok", "ok"]
        executor.is_losing = True
        with pytest.raises(TuningFailed, match="ConnectionError: the worker is"):
            tuner({"again": [3]}).run(executor=executor, **QUICK)


@tvm.instrument.pass_instrument
class Seeing:
    def __init__(self):
        self.seen = []

    def run_before_pass(self, mod, info):
        self.seen.append(str(info.name))


@in_children
def test_the_caller_may_compile_with_code_of_his_own():
    """Another process does not have it: an instrument, a lowering."""
    seeing = Seeing()
    with tvm.transform.PassContext(instruments=[seeing]):
        result = tuner({"again": [1, 2]}).run(**QUICK)
    assert [trial.status for trial in result.trials] == ["ok", "ok"]
    # Two, and the best again: nothing is kept.
    assert seeing.seen.count("tvmtile.NormalizeOperands") == 3


def adding(block=32):
    @T.prim_func
    def add(A: T.Tensor((64,), "float32"), s: T.float32):
        with T.Kernel(T.ceildiv(64, block), threads=32) as bx:
            for i in T.Parallel(block):
                A[bx * block + i] += s

    return add


@in_children
def test_inputs_are_given_and_stay_as_they_are():
    a = torch.zeros(64)
    tuned = AutoTuner.from_kernel(adding, {"block": [32, 64]}).set_compile_args(target="llvm")
    with set_autotune_inputs(a, 1.0):
        result = tuned.run(**QUICK)
    assert [trial.status for trial in result.trials] == ["ok", "ok"]
    assert not a.any()
    result.kernel(a, 2.0)
    assert torch.equal(a, torch.full((64,), 2.0))
    # One that writes its inputs does not spoil them for the next one's check.
    configs = {"way": ["writes A"], "again": [1, 2]}
    result = tuner(configs, ref_prog=lambda A: A * 2).run(**QUICK)
    assert [trial.status for trial in result.trials] == ["ok", "ok"]


@in_children
def test_a_supplier_sees_the_parameters_and_a_check_of_ones_own_the_results():
    seen = []

    def supply(params):
        seen.append([(p.name, str(p.dtype), p.shape) for p in params])
        return [np.full((64,), 3, "float32")]

    def check(ours, theirs):
        assert [type(x) for x in ours] == [np.ndarray]
        np.testing.assert_array_equal(ours[0], 6)
        assert theirs == ["whatever"]

    profile = {"supply_prog": supply, "ref_prog": lambda A: "whatever", "manual_check_prog": check}
    result = tuner({"way": ["right", "wrong"]}, **profile).run(**QUICK)
    assert seen == [[("A", "float32", [64])]]
    assert [trial.status for trial in result.trials] == ["ok", "wrong result"]
    assert tuner({"way": ["wrong"]}, skip_check=True, **profile).run(**QUICK).latency > 0


def test_what_can_not_be_tuned():
    tuned = AutoTuner.from_kernel(adding, {"block": [32]}).set_compile_args(target="llvm")
    with pytest.raises(ArgumentError, match="s is a scalar") as caught:
        tuned.run(**QUICK)
    assert "`with set_autotune_inputs(...)` around the call" in str(caught.value)
    with pytest.raises(TuningFailed, match="returned a int, not a kernel"):
        AutoTuner.from_kernel(lambda x: x, {"x": [1]}).run()
    with pytest.raises(InvalidOperand, match="is for @tvmtile.jit kernels, not for a function"):
        tvmtile.autotune(configs=[{}])(double)


@in_children
def test_what_other_compilers_made_is_not_measured(monkeypatch):
    ours = compilation.versions()
    monkeypatch.setattr(compilation, "versions", lambda: (ours[0], "edited", *ours[2:]))
    with pytest.raises(TuningFailed, match="compiled it has another source of tvmtile"):
        tuner({"again": [1]}).run(**QUICK)
