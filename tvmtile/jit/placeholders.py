"""Tensors without memory: what a host function checks and computes with, in place of an argument.

The host's part of a GPU program looks at the shape, strides, dtype and device of a tensor and hands
its address on; it never reads an element. So it can be given a description of the tensor whose
address is a number that says which argument it stands for.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm_ffi import DLDeviceType

# Arguments are this far apart, so that no two overlap.
_DISTANCE_BITS = 44
_DEVICES = {"metal": DLDeviceType.kDLMetal, "cuda": DLDeviceType.kDLCUDA}


def address_of(index: int) -> int:
    """The address that stands for the argument at a position."""
    return (index + 1) << _DISTANCE_BITS


def argument_at(address: int) -> tuple[int, int]:
    """The argument that an address stands for, and how many bytes after its start the address is."""
    return (address >> _DISTANCE_BITS) - 1, address & ((1 << _DISTANCE_BITS) - 1)


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    """DLPack's DLManagedTensor."""

    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


# What DLPack's consumers still refer to, by address; the deleter takes it out.
_IN_USE: dict[int, Any] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(address: int, in_use: dict[int, Any] = _IN_USE) -> None:
    in_use.pop(address, None)  # at the end of the interpreter, the name of the module is gone


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class _Exporter:
    """An object that exports one DLPack tensor."""

    def __init__(self, managed: _ManagedTensor) -> None:
        self._managed = managed

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._managed.tensor.device_type, self._managed.tensor.device_id

    def __dlpack__(self, **_options: object) -> Any:
        address = ctypes.addressof(self._managed)
        _IN_USE[address] = self._managed
        return _new_capsule(address, b"dltensor", None)


@functools.lru_cache(maxsize=4096)
def placeholder(
    index: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: str,
    kind: str = "metal",
    offset: int = 0,
) -> Any:
    """Describe an argument of a GPU program to its host function.

    It lies on the GPU, `offset` bytes behind `address_of(index)`; its elements must not be accessed.
    """
    element = tvm_ffi.dtype(dtype)
    tensor = _DLTensor(
        address_of(index) + offset,
        int(_DEVICES[kind]),
        0,
        len(shape),
        _DataType(element.type_code, element.bits, element.lanes),
        _int64_array(shape),
        _int64_array(strides),
        0,
    )
    deleter = ctypes.cast(_delete, ctypes.c_void_p)
    return tvm_ffi.from_dlpack(_Exporter(_ManagedTensor(tensor, None, deleter)))


def _int64_array(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)
