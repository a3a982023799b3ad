"""The floats of 8 bits that a machine has, under the names of TileLang's module."""

from __future__ import annotations

from typing import Any

from tvmtile.errors import InvalidValue
from tvmtile.frontend.dtypes import DType

_TYPES = {"e4m3": DType("float8_e4m3fn"), "e5m2": DType("float8_e5m2")}


def determine_fp8_type(fp8_format: str = "e4m3") -> DType:
    """The dtype of a format: NVIDIA's, which all targets here have.

    Parameters
    ----------
    fp8_format : {"e4m3", "e5m2"}
        Bits of exponent and mantissa.
    """
    if fp8_format not in _TYPES:
        raise InvalidValue(
            f"there is no float of 8 bits {fp8_format!r}", help=f"give one of {', '.join(_TYPES)}"
        )
    return _TYPES[fp8_format]


def determine_torch_fp8_type(fp8_format: str = "e4m3") -> Any:
    """The torch dtype of a format; see `determine_fp8_type`."""
    return determine_fp8_type(fp8_format).as_torch()
