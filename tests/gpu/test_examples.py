"""Every example on an NVIDIA GPU, against its float64 reference."""

from __future__ import annotations

import json

import pytest
import torch

from tests.examples.test_examples import (
    SIZES,
    assert_checked,
    load,  # noqa: F401 - a fixture
)
from tests.gpu.machine import ARCHITECTURES, HAS_GPU


@pytest.mark.full
@pytest.mark.parametrize("name", SIZES)
def test_example_agrees_with_its_float64_reference(name, load, capsys):  # noqa: F811
    torch.manual_seed(0)
    target = "cuda" if HAS_GPU else json.dumps({"kind": "cuda", "arch": ARCHITECTURES[0]})
    load(name).main(["--check", "--target", target, *SIZES[name][0].split()])
    assert_checked(capsys.readouterr().out)
