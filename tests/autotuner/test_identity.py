"""Texts that say what a value is: the same in every process, another for another value."""

from __future__ import annotations

import functools
import json
import math
import threading
from enum import Enum

import numpy as np
import pytest
import torch
from tvm import tirx

import tvmtile.language as T
from tvmtile.autotuner.saved import Unidentified, identity


class Policy(Enum):
    ROW = 1
    COLUMN = 2


def scaled(factor):
    return lambda x: x * factor


def with_default(factor):
    def function(x, by=factor):
        return x * by

    return function


TENSORS = [torch.ones(2, 3), torch.ones(3, 2), torch.ones(3, 2).T, torch.ones(2, 3).half()]
ARRAYS = [np.ones((4,)), np.ones((8,))[::2]]
CODE = [scaled(2), scaled(3), lambda x: x + 1, lambda x: x + 2, lambda x: lambda y: x + y + 1]
BOUND = [with_default(2), with_default(3), *(functools.partial(math.pow, n) for n in (2, 3))]
VALUES = [
    *(None, True, 1, 1.0, "1", [1], [[1]], [1, 2], {"a": 1}, {"b": 1}, Policy.ROW, Policy.COLUMN),
    *(T.float16, "float32", tirx.Var("m", "int32"), tirx.Var("n", "int32"), math.sin, math.cos),
    *(len, torch.relu, *TENSORS, *ARRAYS, *CODE, *BOUND),
]


def test_each_value_has_its_own_text():
    texts = [json.dumps(identity(value)) for value in VALUES]
    assert len(set(texts)) == len(VALUES)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2, 3), torch.ones(2, 3)),
        (scaled(2), scaled(2)),
        ((1, 2), [1, 2]),
        (with_default(T.float32), with_default(T.float32)),
    ],
)
def test_what_is_alike_has_one_text(one, other):
    assert identity(one) == identity(other)


@pytest.mark.parametrize("value", [threading.Lock(), object(), [object()], scaled(object())])
def test_what_nobody_can_tell_has_none(value):
    with pytest.raises(Unidentified):
        identity(value)


def test_a_text_names_no_address():
    assert "0x" not in json.dumps(identity(scaled(lambda x: x)))
