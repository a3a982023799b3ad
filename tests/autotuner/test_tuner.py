"""Tuning: the quickest right configuration is found, whatever the others do."""

from __future__ import annotations

import logging
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.autotuner import AutoTuner, set_autotune_inputs
from tvmtile.cache import cache_directory
from tvmtile.errors import ArgumentError, InvalidOperand, InvalidValue, TuningFailed

pytestmark = pytest.mark.full  # other processes compile

QUICK = {"warmup": 1, "rep": 3}


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    """Processes that run other tests have theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVMTILE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def no_times(own_cache):
    """Nothing is known from another test."""
    shutil.rmtree(cache_directory() / "tuned", ignore_errors=True)


def doubling(n=64, slow=1):
    """Doubles a vector, in ways that a tuner may meet."""

    def double(way="right", again=slow):
        @T.prim_func
        def double(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
            with T.Kernel(1, threads=32):
                if way == "aborts":
                    T.evaluate(T.call_extern("int32", "abort"))
                if way == "hangs":
                    T.evaluate(T.call_extern("int32", "pause"))
                if way == "refused":
                    T.copy(A[0:3], B[0:4])
                if way == "endless to compile":
                    for j in T.unroll(1000000):
                        B[j % n] = A[(j * j) % n] + T.exp(A[j % n])
                for _ in T.serial(again):
                    for i in T.Parallel(n):
                        B[i] = T.cos(A[i])
                for i in T.Parallel(n):
                    B[i] = A[i] * (3 if way == "wrong" else 2)

        return double

    return double


def tuner(configs, kernel=None, **profile):
    tuner = AutoTuner.from_kernel(kernel=kernel or doubling(), configs=configs)
    return tuner.set_compile_args(out_idx=[-1], target="llvm").set_profile_args(**profile)


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


def test_what_takes_too_long_is_ended():
    with pytest.raises(TuningFailed) as caught:
        tuner({"way": ["hangs", "endless to compile"]}).run(timeout=4, **QUICK)
    assert "  way=hangs: timed out: not done after 4 s" in str(caught.value)
    assert "  way=endless to compile: timed out: not done after 4 s" in str(caught.value)


def test_the_best_is_the_quickest_and_all_are_in_the_table():
    configs = [{"again": 2000}, {"again": 1}, {"way": "refused"}]
    result = tuner(configs, ref_prog=lambda A: A * 2).run(use_pipeline=True, **QUICK)
    assert result.config == {"again": 1}
    assert result.latency == result.kernel.latency == result.trials[1].latency
    assert result.kernel.config == {"again": 1}
    assert result.ref_latency == result.kernel.ref_latency > 0
    assert result.func.script() == result.kernel.prim_func.script()
    assert "define" in result.libcode
    rows = result.table()
    if not isinstance(rows, list):
        rows = rows.to_dict("records")
    assert [row["again"] for row in rows[:2]] == [1, 2000]
    assert rows[0]["latency"] < rows[1]["latency"]
    assert rows[2]["status"] == "not compiled"


def test_the_times_are_kept_on_disk(caplog):
    configs = {"again": [1, 2]}
    first = tuner(configs).run(**QUICK)
    assert not first.is_from_cache
    caplog.set_level(logging.INFO, "tvmtile.autotuner")
    second = tuner(configs).run(**QUICK)
    assert second.is_from_cache
    assert not caplog.records  # nothing was measured
    assert [str(trial) for trial in second.trials] == [str(trial) for trial in first.trials]
    assert second.config == first.config == second.kernel.config
    x = torch.randn(64)
    assert torch.equal(second.kernel(x), 2 * x)


def test_where_nothing_can_be_used_the_error_says_why():
    with pytest.raises(TuningFailed, match="double: no configuration can be used") as caught:
        tuner([{"way": "refused"}] * 12).run(**QUICK)
    assert "  way=refused: not compiled: ShapeMismatch: copy: A[0:3] float32" in str(caught.value)
    assert "  and 2 more" in str(caught.value)


def test_a_slow_one_is_stopped_early():
    configs = [{"again": 1}, {"again": 3000}]
    result = tuner(configs).run(warmup=1, rep=300, early_stop=True, early_stop_factor=5.0)
    slow = result.trials[1]
    assert (slow.status, result.config) == ("stopped early", {"again": 1})
    assert slow.latency > 5 * result.latency
    with pytest.raises(InvalidValue, match="early_stop_factor=0.5"):
        tuner(configs).run(early_stop=True, early_stop_factor=0.5)


def test_options_of_passes_may_differ():
    configs = [
        {"again": 1, "pass_configs": {"tirx.disable_vectorize": flag}} for flag in (True, False)
    ]
    result = tuner(configs).run(**QUICK)
    assert [trial.status for trial in result.trials] == ["ok", "ok"]
    other = AutoTuner.from_kernel(doubling(), configs[:1]).set_compile_args(-1, "llvm").run(**QUICK)
    assert "<4 x float>" not in other.kernel.get_kernel_source()
    assert "x float>" in tuner(configs[1:]).run(**QUICK).kernel.get_kernel_source()


def test_an_executor_compiles():
    submitted = []

    class Noting(ThreadPoolExecutor):
        def submit(self, function, *args):
            submitted.append(function.__name__)
            return super().submit(function, *args)

    with Noting(1) as executor:
        result = tuner({"again": [1, 2]}).run(executor=executor, **QUICK)
        assert submitted == ["compile_in_child"] * 2
        executor.submit(print)  # it is open still
    assert [trial.status for trial in result.trials] == ["ok", "ok"]


def test_an_executor_that_loses_a_task():
    class Losing(ThreadPoolExecutor):
        def submit(self, function, *args):
            return super().submit(self.lose if args[0].func.params[0].name == "A" else function)

        def lose(self):
            raise ConnectionError("the worker is gone")

    with Losing(1) as executor, pytest.raises(TuningFailed, match="ConnectionError: the worker is"):
        tuner({"again": [1]}).run(executor=executor, **QUICK)


def test_the_caller_may_compile_with_code_of_his_own():
    """Another process does not have it: an instrument, a lowering."""
    import tvm

    seen = []

    @tvm.instrument.pass_instrument
    class Seeing:
        def run_before_pass(self, mod, info):
            seen.append(str(info.name))

    with tvm.transform.PassContext(instruments=[Seeing()]):
        result = tuner({"again": [1, 2]}).run(**QUICK)
    assert [trial.status for trial in result.trials] == ["ok", "ok"]
    assert seen.count("tvmtile.Legalize") == 3  # two, and the best one again: nothing is kept


def adding(n=64):
    def add(block=32):
        @T.prim_func
        def add(A: T.Tensor((n,), "float32"), s: T.float32):
            with T.Kernel(T.ceildiv(n, block), threads=32) as bx:
                for i in T.Parallel(block):
                    A[bx * block + i] += s

        return add

    return add


def test_inputs_are_given_and_stay_as_they_are():
    a = torch.zeros(64)
    tuned = AutoTuner.from_kernel(adding(), {"block": [32, 64]}).set_compile_args(target="llvm")
    with set_autotune_inputs(a, 1.0):
        result = tuned.run(**QUICK)
    assert [trial.status for trial in result.trials] == ["ok", "ok"]
    assert not a.any()
    result.kernel(a, 2.0)
    assert torch.equal(a, torch.full((64,), 2.0))


def test_inputs_that_can_not_be_made_up_are_asked_for():
    tuned = AutoTuner.from_kernel(adding(), {"block": [32]}).set_compile_args(target="llvm")
    with pytest.raises(ArgumentError, match="s is a scalar") as caught:
        tuned.run(**QUICK)
    assert "`with set_autotune_inputs(...)` around the call" in str(caught.value)


def test_each_configuration_gets_the_inputs_as_they_were():
    """One that writes its inputs does not spoil them for the next one's check."""

    def increment(add=1):
        @T.prim_func
        def increment(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(64):
                    B[i] = A[i] * 2
                    A[i] += add

        return increment

    result = tuner({"add": [1, 2]}, increment, ref_prog=lambda A: A * 2).run(**QUICK)
    assert [trial.status for trial in result.trials] == ["ok", "ok"]


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


def test_a_function_that_makes_no_kernel_is_an_error():
    with pytest.raises(TuningFailed, match="returned a int, not a kernel"):
        AutoTuner.from_kernel(lambda x: x, {"x": [1]}).run()


def test_without_a_cache_the_best_is_compiled_again(monkeypatch):
    monkeypatch.setenv("TVMTILE_DISABLE_CACHE", "1")
    first, second = (tuner({"again": [1]}).run(**QUICK) for _ in range(2))
    assert not first.is_from_cache
    assert not second.is_from_cache
    assert torch.equal(second.kernel(torch.ones(64)), torch.full((64,), 2.0))


def test_only_a_jit_kernel_is_decorated():
    with pytest.raises(InvalidOperand, match="is for @tvmtile.jit kernels, not for a function"):
        tvmtile.autotune(configs=[{}])(lambda: None)


def test_the_times_are_drawn():
    pytest.importorskip("matplotlib")
    result = tuner([{"again": 1}, {"again": 2}, {"way": "refused"}], ref_prog=lambda A: A * 2)
    axes = result.run(**QUICK).plot()
    configurations, reference = axes.get_lines()
    assert len(configurations.get_xdata()) == 2
    assert list(configurations.get_ydata()) == sorted(configurations.get_ydata())
    assert len(reference.get_ydata()) == 2


def test_what_other_compilers_made_is_not_measured(monkeypatch):
    from tvmtile.autotuner import compilation

    ours = compilation.versions()
    monkeypatch.setattr(compilation, "versions", lambda: (ours[0], "edited", *ours[2:]))
    with pytest.raises(TuningFailed, match="compiled it has another source of tvmtile"):
        tuner({"again": [1]}).run(**QUICK)


MADE = []


def test_where_the_times_are_known_no_inputs_are_made():
    def supply(params):
        MADE.append(len(params))
        return [torch.ones(64)]

    assert not tuner({"again": [1]}, supply_prog=supply).run(**QUICK).is_from_cache
    assert MADE == [1]
    assert tuner({"again": [1]}, supply_prog=supply).run(**QUICK).is_from_cache
    assert MADE == [1]
