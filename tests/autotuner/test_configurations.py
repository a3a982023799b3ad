"""Forms in which configurations may be written."""

from __future__ import annotations

import inspect

import pytest

from tvmtile.autotuner.configurations import expanded
from tvmtile.errors import InvalidOperand, InvalidValue

NAMES = inspect.signature(lambda M, block, threads: None).parameters
WANTED = [{"block": 1, "threads": 3}, {"block": 2, "threads": 3}]


@pytest.mark.parametrize(
    "configs",
    [
        WANTED,
        iter(WANTED),
        {"block": [1, 2], "threads": [3]},
        lambda M: [{"block": size, "threads": 3} for size in range(1, M + 1)],
        lambda M: {"block": range(1, M + 1), "threads": (3,)},
    ],
    ids=["list", "iterator", "dict", "function", "function of a dict"],
)
def test_ways_to_write_them(configs):
    assert expanded(configs, NAMES, (2,), {}) == WANTED


def test_a_function_is_given_what_it_takes():
    def configs(M, **others):
        return [{"block": M + others["threads"]}]

    assert expanded(lambda M: [{"block": M}], NAMES, (), {"M": 2, "block": 3}) == [{"block": 2}]
    assert expanded(configs, NAMES, (), {"M": 2, "threads": 3}) == [{"block": 5}]


def test_options_of_passes_are_no_parameter():
    config = {"block": 1, "pass_configs": {"tirx.disable_vectorize": True}}
    assert expanded([config], NAMES, (), {}) == [config]


def test_any_name_is_a_parameter_of_a_kernel_that_takes_any():
    names = inspect.signature(lambda M, **others: None).parameters
    assert expanded([{"bolck": 2}], names, (), {}) == [{"bolck": 2}]


@pytest.mark.parametrize(
    ("configs", "error", "message"),
    [
        (
            [{"block": 1}, {"bolck": 2}],
            InvalidValue,
            "has 'bolck', which is no parameter(.|\n)*did you mean 'block'.*are M, block, threads",
        ),
        ([], InvalidValue, "there are no configurations to tune"),
        (7, InvalidOperand, "configs is a int"),
        ([7], InvalidOperand, "configs is a list"),
        ("best", InvalidOperand, "configs is a str"),
    ],
)
def test_what_is_no_configuration(configs, error, message):
    with pytest.raises(error, match=message):
        expanded(configs, NAMES, (), {})
