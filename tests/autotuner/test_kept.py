"""The name of a tuning: another one for whatever may change which configuration is best."""

from __future__ import annotations

import itertools

import torch

from tests.kernels import scaling
from tvmtile.autotuner.configurations import ProfileArgs
from tvmtile.autotuner.result import Trial
from tvmtile.autotuner.saved import keep, kept, key_of_tuning
from tvmtile.jit.compiler import Request
from tvmtile.profiler import TensorSupplyType


def key(program=None, configs=({"a": 1},), values=(1,), calls=(1, 3), options=None, **profile):
    request = Request.of(program or scaling(), -1, "llvm", pass_configs=options)
    profile = ProfileArgs(**profile)
    return key_of_tuning(request, configs, list(values), profile, list(calls))


OTHERS = {
    "program": {"program": scaling(factor=3)},
    "shape": {"program": scaling(128)},
    "options": {"options": {"tirx.disable_vectorize": True}},
    "configurations": {"configs": ({"a": 1}, {"a": 2})},
    "values of configurations": {"configs": ({"a": 2},)},
    "a scalar": {"values": [2]},
    "a tensor": {"values": [torch.ones(64)]},
    "another dtype": {"values": [torch.ones(64).half()]},
    "strides": {"values": [torch.ones(128)[::2]]},
    "what inputs hold": {"supply_type": TensorSupplyType.One},
    "a reference": {"ref_prog": lambda A: A * 2},
    "another reference": {"ref_prog": lambda A: A * 3},
    "a tolerance": {"rtol": 0.5},
    "calls": {"calls": [1, 4]},
}


def test_each_has_its_own_name(monkeypatch):
    keys = {"none": key(), **{name: key(**other) for name, other in OTHERS.items()}}
    monkeypatch.setenv("TVM_NUM_THREADS", "1000")
    keys["a CPU of other threads"] = key()
    for one, other in itertools.combinations(keys, 2):
        assert keys[one] != keys[other], (one, other)


def test_the_same_has_the_same_name():
    assert key() == key(program=scaling())
    assert key(ref_prog=lambda A: A) == key(ref_prog=lambda A: A)
    assert key(values=[torch.ones(4)]) == key(values=[torch.zeros(4)])


def test_what_nobody_can_tell_has_no_name(monkeypatch):
    assert key(configs=({"a": object()},)) is None
    assert key(supply_prog=object()) is None
    monkeypatch.setenv("TVMTILE_DISABLE_CACHE", "1")
    assert key() is None


def test_what_is_kept_comes_back(monkeypatch, tmp_path):
    monkeypatch.setenv("TVMTILE_CACHE_DIR", str(tmp_path))
    trials = [
        Trial(0, {"a": 1}, "ok", 1.25),
        Trial(1, {"a": 2}, "died", None, "its process was ended by SIGSEGV"),
        Trial(2, {"a": 3}, "stopped early", 7.0),
    ]
    configs = [trial.config for trial in trials]
    assert kept("f" * 64, configs) is None
    keep("f" * 64, trials, 2.5)
    assert kept("f" * 64, configs) == (trials, 2.5)
