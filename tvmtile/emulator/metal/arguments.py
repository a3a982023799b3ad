"""Arguments of a launch, bound to parameters: arrays, scalars, and TVM's structs of scalars."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmtile.emulator.machine.launching import HostMemory
from tvmtile.emulator.metal.signature import MslParameter, MslSignature, StructField
from tvmtile.errors import ArgumentError

# Metal's scalar types as numpy has them; bfloat16 it has not.
_SCALARS = {
    "bool": "bool",
    "char": "int8",
    "uchar": "uint8",
    "short": "int16",
    "ushort": "uint16",
    "int": "int32",
    "uint": "uint32",
    "long": "int64",
    "ulong": "uint64",
    "int8_t": "int8",
    "uint8_t": "uint8",
    "int16_t": "int16",
    "uint16_t": "uint16",
    "int32_t": "int32",
    "uint32_t": "uint32",
    "int64_t": "int64",
    "uint64_t": "uint64",
    "atomic_int": "int32",
    "atomic_uint": "uint32",
    "atomic_float": "float32",
    "half": "float16",
    "bfloat": "bfloat16",
    "float": "float32",
}
_ITEM_BYTES = {"bfloat16": 2}
# Formats that a kernel may take as integers, and decode itself.
_BITS_OF = {"float8": ("uint8", "int8"), "bfloat16": ("uint16", "int16")}
# TVM's runtime gives each scalar 8 bytes.
_TVM_SLOT = 8


def element_bytes_of(parameter: MslParameter) -> int:
    """The size of an element of what the parameter points to; 1 if its type is not known."""
    name = parameter.declared.removeprefix("packed_").removeprefix("metal::")
    lanes = 1
    if name not in _SCALARS and name[-1:] in "234":
        name, lanes = name[:-1], int(name[-1])
        if lanes == 3 and not parameter.declared.startswith("packed_"):
            lanes = 4
    if name not in _SCALARS:
        return 1
    return lanes * _item_bytes(_SCALARS[name])


def _item_bytes(dtype: str) -> int:
    return _ITEM_BYTES.get(dtype) or np.dtype(dtype).itemsize


def bind(signature: MslSignature, values: Sequence[Any]) -> list[HostMemory]:
    """Find the memory of each buffer of a kernel.

    The values come in the order of the buffers' indices: numpy arrays and torch tensors (contiguous, on
    the CPU), numbers for `constant T&`, bytes or numpy records for structs. Where the last buffer is
    TVM's struct of scalars, its fields stand one by one at the end, or its bytes do.

    Raises
    ------
    ArgumentError
        If there are too many or too few values, or one does not fit its parameter.
    """
    buffers = signature.buffers
    fields = None if _ends_with_bytes(values) else signature.argument_struct
    expected = len(buffers) if fields is None else len(buffers) - 1 + len(fields)
    if len(values) != expected:
        named = [p.name for p in (buffers if fields is None else buffers[:-1])]
        named += [field.name for field in fields or ()]
        raise ArgumentError(
            f"kernel {signature.name!r} takes {expected} arguments ({', '.join(named)}), "
            f"got {len(values)}"
        )
    if fields is None:
        return [_bind_one(signature, p, value) for p, value in zip(buffers, values, strict=True)]
    arrays = len(buffers) - 1
    bound = [
        _bind_one(signature, p, value)
        for p, value in zip(buffers[:-1], values[:arrays], strict=True)
    ]
    return [*bound, _memory_of_bytes(_tvm_struct(signature, fields, values[arrays:]))]


def _ends_with_bytes(values: Sequence[Any]) -> bool:
    return bool(values) and isinstance(values[-1], bytes | bytearray)


def _bind_one(signature: MslSignature, parameter: MslParameter, value: Any) -> HostMemory:
    if isinstance(value, bytes | bytearray):
        return _memory_of_bytes(bytes(value))
    if isinstance(value, bool | int | float | np.number | np.bool_):
        return _memory_of_bytes(_scalar(signature, parameter.name, parameter.declared, value))
    if isinstance(value, np.void):
        return _memory_of_bytes(value.tobytes())
    if hasattr(value, "data_ptr"):
        return _torch_memory(signature, parameter, value)
    if isinstance(value, np.ndarray):
        return _numpy_memory(signature, parameter, value)
    raise ArgumentError(
        f"kernel {signature.name!r}, argument {parameter.name!r}: expected an array, a number or "
        f"bytes, got {type(value).__name__}"
    )


def _tvm_struct(
    signature: MslSignature, fields: Sequence[StructField], values: Sequence[Any]
) -> bytes:
    packed = (
        _scalar(signature, field.name, field.type, value).ljust(_TVM_SLOT, b"\0")
        for field, value in zip(fields, values, strict=True)
    )
    return b"".join(packed)


def _scalar(signature: MslSignature, name: str, declared: str, value: Any) -> bytes:
    dtype = _SCALARS.get(declared)
    if dtype is None or dtype == "bfloat16":
        raise ArgumentError(
            f"kernel {signature.name!r}, argument {name!r}: a number can't become {declared!r}",
            help="pass the bytes, or a numpy record",
        )
    if not np.issubdtype(dtype, np.floating) and int(value) != value:
        raise ArgumentError(
            f"kernel {signature.name!r}, argument {name!r}: {value} is no {declared}"
        )
    try:
        return np.array([value], dtype).tobytes()
    except OverflowError as error:
        raise ArgumentError(
            f"kernel {signature.name!r}, argument {name!r}: {value} does not fit {declared}"
        ) from error


def _memory_of_bytes(data: bytes) -> HostMemory:
    # Aligned as Metal aligns what setBytes copies.
    padded = (ctypes.c_uint64 * (len(data) // 8 + 2))()
    address = (ctypes.addressof(padded) + 15) // 16 * 16
    ctypes.memmove(address, data, len(data))
    return HostMemory(address, len(data), padded)


def _numpy_memory(
    signature: MslSignature, parameter: MslParameter, array: np.ndarray
) -> HostMemory:
    _check_dtype(signature, parameter, str(array.dtype))
    if not array.flags.c_contiguous:
        raise _not_contiguous(signature, parameter)
    if not array.flags.writeable and not parameter.is_const:
        raise ArgumentError(
            f"kernel {signature.name!r}, argument {parameter.name!r}: the array is read-only"
        )
    return HostMemory(array.ctypes.data, array.nbytes, array)


def _torch_memory(signature: MslSignature, parameter: MslParameter, tensor: Any) -> HostMemory:
    _check_dtype(signature, parameter, str(tensor.dtype).removeprefix("torch."))
    if tensor.device.type != "cpu":
        raise ArgumentError(
            f"kernel {signature.name!r}, argument {parameter.name!r}: the tensor is on "
            f"{tensor.device}; the emulator runs on the CPU"
        )
    if not tensor.is_contiguous():
        raise _not_contiguous(signature, parameter)
    return HostMemory(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor)


def _not_contiguous(signature: MslSignature, parameter: MslParameter) -> ArgumentError:
    return ArgumentError(
        f"kernel {signature.name!r}, argument {parameter.name!r}: the array is not contiguous",
        help="a Metal buffer has no strides: pass a contiguous copy",
    )


def _check_dtype(signature: MslSignature, parameter: MslParameter, dtype: str) -> None:
    """Refuse numbers of another format; a vector or a struct may be laid over anything."""
    expected = _SCALARS.get(parameter.declared)
    if expected is None or expected == dtype:
        return
    both_integers = not ("float" in expected or "float" in dtype)
    if both_integers and _item_bytes(expected) == _item_bytes(dtype):
        return
    if expected in _BITS_OF.get(dtype.partition("_")[0], ()):
        return
    raise ArgumentError(
        f"kernel {signature.name!r}, argument {parameter.name!r}: expected {expected} for "
        f"`{parameter.type}`, got {dtype}"
    )
