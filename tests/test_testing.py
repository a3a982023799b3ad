"""Helpers for tests of kernels."""

from __future__ import annotations

import pytest
import torch

from tvmtile.errors import InvalidValue
from tvmtile.testing import (
    PerfResult,
    process_func,
    regression,
    set_random_seed,
    torch_assert_close,
)

A = torch.arange(1000.0)
B = torch.where(A == 7, 12.0, A)
NAN = torch.tensor([float("nan"), 1.0])
ZEROS = torch.zeros(3)
FLOAT8 = torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        (A, B, {"max_mismatched_ratio": 0.001}, None),
        (
            A,
            B,
            {"max_mismatched_ratio": 0},
            r"differ in 1 of 1000 .* first at \[7\]: 7.0 and 12.0",
        ),
        (NAN, NAN.clone(), {}, None),
        (NAN, NAN.clone(), {"equal_nan": False}, "differ in 1 of 2"),
        (ZEROS, torch.zeros(4), {}, r"\[3\].*\[4\]"),
        (ZEROS, ZEROS.half(), {}, "float32 and float16"),
        (ZEROS, ZEROS.half(), {"check_dtype": False}, None),
        (FLOAT8, FLOAT8.clone(), {}, None),
    ],
)
def test_tensors_are_compared(a, b, options, message):
    if message is None:
        assert torch_assert_close(a, b, **options)
    else:
        with pytest.raises(AssertionError, match=message):
            torch_assert_close(a, b, **options)


def test_the_seed_fixes_random_tensors():
    set_random_seed(3)
    a = torch.randn(4)
    set_random_seed(3)
    assert torch.equal(a, torch.randn(4))


@pytest.mark.parametrize("mode", ["ge", "gt", "eq", "le", "lt"])
def test_tests_for_some_gpus_are_skipped_elsewhere(mode, monkeypatch):
    from tvmtile import testing

    capabilities = [(8, 0), (9, 0), (10, 0)]
    fits = {"ge": [0, 1, 1], "gt": [0, 0, 1], "eq": [0, 1, 0], "le": [1, 1, 0], "lt": [1, 0, 0]}
    mark = getattr(testing, f"requires_cuda_compute_version_{mode}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, expected in zip(capabilities, fits[mode], strict=True):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda c=capability: c)
        assert mark(9, 0).args == (not expected,)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert mark(9).args == (True,)


def measured(ms, module="regression_gemm"):
    def function(times=1):
        return ms * times

    function.__module__ = module
    return function


def test_the_functions_of_a_script_are_called_in_order(capsys):
    scope = {
        "regression": regression,
        "regression_b": lambda: process_func(measured(2.0), times=3),
        "regression_a": lambda: process_func(measured(0.5), "regression_small"),
        "regression_limit": 3,
        "other": lambda: process_func(measured(1.0)),
    }
    exec("found = regression()", scope)
    assert scope["found"] == [PerfResult("small", 0.5, "a"), PerfResult("gemm", 6.0, "b")]
    captured = capsys.readouterr()
    assert captured.out == "small: 0.5\ngemm: 6.0\n"
    assert captured.err == "a\nb\n"
    exec("found = regression(['other'], verbose=False)", scope)
    assert scope["found"] == [PerfResult("gemm", 1.0, "other")]
    assert capsys.readouterr().err == ""


def test_a_time_that_was_too_short_is_measured_again():
    times = iter([0.0, -1.0, 0.25])
    scope = {"regression": regression, "regression_x": lambda: process_func(lambda: next(times))}
    exec("(found,) = regression(verbose=False)", scope)
    assert scope["found"].latency == 0.25


def test_no_time_is_an_error():
    with pytest.raises(InvalidValue, match="gemm returned a time of 0.0") as caught:
        process_func(measured(0.0))
    assert "return a positive number" in str(caught.value)
