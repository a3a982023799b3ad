"""What may be written for configurations."""

from __future__ import annotations

import pytest

from tvmtile.autotuner.configurations import expanded
from tvmtile.errors import InvalidOperand, InvalidValue

NAMES = ("M", "block", "threads")
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


def test_a_name_that_is_no_parameter_is_an_error():
    with pytest.raises(InvalidValue, match="has 'bolck', which is no parameter") as caught:
        expanded([{"block": 1}, {"bolck": 2}], NAMES, (), {})
    assert "did you mean 'block'? Its parameters are M, block, threads" in str(caught.value)


def test_none_is_an_error():
    with pytest.raises(InvalidValue, match="there are no configurations to tune"):
        expanded([], NAMES, (), {})


@pytest.mark.parametrize("configs", [7, [7], "best"])
def test_something_else_is_an_error(configs):
    with pytest.raises(InvalidOperand, match=f"configs is a {type(configs).__name__}"):
        expanded(configs, NAMES, (), {})
