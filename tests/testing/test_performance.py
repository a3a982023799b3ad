"""Times of a script's kernels."""

from __future__ import annotations

import pytest

from tvmtile.errors import InvalidValue
from tvmtile.testing import PerfResult, process_func, regression


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
