"""Names of TileLang's `utils`."""

from __future__ import annotations

import logging

import pytest
import torch

import tvmtile
from tvmtile.frontend.dtypes import DType
from tvmtile.jit.signature import KernelParam
from tvmtile.utils.tensor import TensorSupplyType, get_tensor_supply, map_torch_type


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "uint8", "bool"])
def test_a_tensor_for_a_parameter(dtype):
    param = KernelParam("A", DType(dtype), [3, 4])
    tensor = get_tensor_supply(TensorSupplyType.Auto)(param)
    assert (tuple(tensor.shape), tensor.dtype) == ((3, 4), getattr(torch, dtype))
    assert bool((get_tensor_supply(TensorSupplyType.One)(param) == 1).all())
    assert map_torch_type(dtype) is tensor.dtype
    whole = get_tensor_supply()(param).double()
    assert torch.equal(whole, whole.round())


@pytest.fixture
def log():
    log = logging.getLogger("tvmtile")
    before = log.level
    yield log
    log.setLevel(before)


def test_the_level_of_the_log(log):
    tvmtile.set_log_level("info")
    assert logging.getLogger("tvmtile.autotuner").isEnabledFor(logging.INFO)
    tvmtile.set_log_level(logging.ERROR)
    assert not logging.getLogger("tvmtile.autotuner").isEnabledFor(logging.WARNING)
