"""The floats of 8 bits that there are."""

from __future__ import annotations

import pytest
import torch

import tvmtile.language as T
from tvmtile.errors import InvalidValue
from tvmtile.language.fp8 import determine_fp8_type, determine_torch_fp8_type


def test_formats():
    assert determine_fp8_type() == T.float8_e4m3fn
    assert determine_fp8_type("e5m2") == T.float8_e5m2
    assert determine_torch_fp8_type() is torch.float8_e4m3fn
    assert determine_torch_fp8_type("e5m2") is torch.float8_e5m2
    with pytest.raises(InvalidValue, match="there is no float of 8 bits 'e3m4'"):
        determine_fp8_type("e3m4")
