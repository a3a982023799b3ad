"""Arguments of a launch, bound to parameters: arrays, and numbers and structures by value."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmtile.emulator.cuda.signature import CudaParameter, CudaSignature
from tvmtile.emulator.cuda.tensor_map import EncodedMap
from tvmtile.emulator.machine.launching import Argument, HostMemory
from tvmtile.errors import ArgumentError

# CUDA's numbers as numpy has them.
_SCALARS = {
    "bool": "bool",
    "char": "int8",
    "signed char": "int8",
    "unsigned char": "uint8",
    "uchar": "uint8",
    "int8_t": "int8",
    "uint8_t": "uint8",
    "short": "int16",
    "unsigned short": "uint16",
    "ushort": "uint16",
    "int16_t": "int16",
    "uint16_t": "uint16",
    "int": "int32",
    "unsigned int": "uint32",
    "unsigned": "uint32",
    "uint": "uint32",
    "int32_t": "int32",
    "uint32_t": "uint32",
    "long long": "int64",
    "unsigned long long": "uint64",
    "int64_t": "int64",
    "uint64_t": "uint64",
    "half": "float16",
    "__half": "float16",
    "float": "float32",
    "double": "float64",
}
_BYTES = {"nv_bfloat16": 2, "__nv_bfloat16": 2, "half2": 4, "__half2": 4}
_ALIGNMENT = 64


def bind(signature: CudaSignature, values: Sequence[Any]) -> list[Argument]:
    """Find the memory of each parameter of a kernel.

    The values are numpy arrays and torch tensors (contiguous, on the CPU) for pointers, numbers, and
    bytes for structures and for numbers that numpy does not have.

    Raises
    ------
    ArgumentError
        If there are too many or too few values, or one does not fit its parameter.
    """
    if len(values) != len(signature.parameters):
        names = ", ".join(p.name for p in signature.parameters)
        raise ArgumentError(
            f"kernel {signature.name!r} takes {len(signature.parameters)} arguments ({names}), "
            f"got {len(values)}"
        )
    bound = [
        Argument(p.name, _memory(signature, p, value), _element_bytes(p), not _writes(p))
        for p, value in zip(signature.parameters, values, strict=True)
    ]
    # What tensor maps are of is memory of the launch too.
    mapped = zip(signature.parameters, values, strict=True)
    return bound + [
        Argument(p.name, _array(signature, p, value.array), value.array.itemsize, is_const=False)
        for p, value in mapped
        if isinstance(value, EncodedMap) and value.array is not None
    ]


def _writes(parameter: CudaParameter) -> bool:
    return parameter.is_pointer and not parameter.is_const


def _element_bytes(parameter: CudaParameter) -> int:
    dtype = _SCALARS.get(parameter.type)
    return np.dtype(dtype).itemsize if dtype else _BYTES.get(parameter.type, 1)


def _memory(signature: CudaSignature, parameter: CudaParameter, value: Any) -> HostMemory:
    if parameter.is_pointer:
        return _array(signature, parameter, value)
    if isinstance(value, EncodedMap):
        return _by_value(value.encoded)
    if isinstance(value, bytes | bytearray):
        return _by_value(bytes(value))
    dtype = _SCALARS.get(parameter.type)
    if dtype is None or not isinstance(value, bool | int | float | np.number | np.bool_):
        raise _misfit(signature, parameter, f"expected bytes for `{parameter.type}`", value)
    if not np.issubdtype(dtype, np.floating) and int(value) != value:
        raise _misfit(signature, parameter, f"expected a number of {dtype}", value)
    try:
        return _by_value(np.array([value], dtype).tobytes())
    except OverflowError as error:
        raise _misfit(signature, parameter, f"expected a number of {dtype}", value) from error


def _array(signature: CudaSignature, parameter: CudaParameter, value: Any) -> HostMemory:
    if isinstance(value, np.ndarray):
        contiguous, memory = value.flags.c_contiguous, (value.ctypes.data, value.nbytes)
    elif hasattr(value, "data_ptr") and value.device.type == "cpu":
        contiguous = value.is_contiguous()
        memory = (value.data_ptr(), value.numel() * value.element_size())
    else:
        raise _misfit(signature, parameter, "expected an array on the CPU", value)
    if not contiguous:
        raise _misfit(signature, parameter, "expected an array without gaps", value)
    return HostMemory(*memory, value)


def _by_value(data: bytes) -> HostMemory:
    padded = (ctypes.c_char * (len(data) + _ALIGNMENT))()
    address = -(-ctypes.addressof(padded) // _ALIGNMENT) * _ALIGNMENT
    ctypes.memmove(address, data, len(data))
    return HostMemory(address, len(data), padded)


def _misfit(
    signature: CudaSignature, parameter: CudaParameter, expected: str, value: Any
) -> ArgumentError:
    given = repr(value) if isinstance(value, int | float) else type(value).__name__
    return ArgumentError(
        f"kernel {signature.name!r}, argument {parameter.name!r}: {expected}, got {given}"
    )
