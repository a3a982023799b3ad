"""The structures of `include/machine/launch.h`, as ctypes."""

from __future__ import annotations

import ctypes
import enum

OPERATIONS = 16
"""What threads may meet at: a block's barrier, a warp's, and what a front end numbers after them."""
CLUSTER = OPERATIONS - 1
"""The barrier of a cluster among them."""


class Failure(enum.IntEnum):
    """Why a launch ended early."""

    NONE = 0
    RACE = 1
    OUT_OF_BOUNDS = 2
    UNINITIALIZED = 3
    DIVERGENCE = 4
    MISALIGNED = 5
    SHARED_MEMORY = 6
    NOT_UNIFORM = 7
    INVALID_LANE = 8
    READ_ONLY = 9
    RESOURCES = 10
    DIVISION = 11
    STACK = 12
    ENDLESS = 13
    DEADLOCK = 14
    TRAP = 15
    UNSUPPORTED = 16
    FENCE = 17
    REGISTER = 18
    PROTOCOL = 19
    OVERFLOW = 20
    SHIFT = 21


class MemoryAccess(enum.IntEnum):
    """What was done to memory."""

    READ = 0
    WRITE = 1
    ATOMIC_READ = 2
    ATOMIC_WRITE = 3


class BufferArgument(ctypes.Structure):
    """A buffer of the host that the kernel gets a copy of."""

    _fields_ = (
        ("host", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("element_bytes", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("writable", ctypes.c_int32),
        ("tracked", ctypes.c_int32),
    )


class Binding(ctypes.Structure):
    """What a parameter of the kernel points to."""

    _fields_ = (
        ("buffer", ctypes.c_int32),
        ("offset", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("element_bytes", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
    )


class LaunchRecord(ctypes.Structure):
    """A launch: the kernel, its arguments and the grid."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("buffers", ctypes.POINTER(BufferArgument)),
        ("bindings", ctypes.POINTER(Binding)),
        ("buffer_count", ctypes.c_uint32),
        ("binding_count", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("shared_memory_limit", ctypes.c_uint32),
        ("agents", ctypes.c_uint32),
        ("returned_threads_pass", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("seconds", ctypes.c_double),
        ("counts_conflicts", ctypes.c_int32),
        ("short_sums", ctypes.c_int32),
        ("waits_for_all", ctypes.c_int32),
        ("least_blocks", ctypes.c_uint32),
    )


class RunReport(ctypes.Structure):
    """What was found wrong, where and by which threads."""

    _fields_ = (
        ("failure", ctypes.c_int32),
        ("access", ctypes.c_int32),
        ("other_access", ctypes.c_int32),
        ("space", ctypes.c_int32),
        ("thread", ctypes.c_int32),
        ("agent", ctypes.c_int32),
        ("other_thread", ctypes.c_int32),
        ("other_agent", ctypes.c_int32),
        ("block", ctypes.c_uint32 * 3),
        ("other_block", ctypes.c_uint32 * 3),
        ("line", ctypes.c_int32),
        ("other_line", ctypes.c_int32),
        ("instruction", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("size", ctypes.c_uint64),
        ("buffer_bytes", ctypes.c_uint64),
        ("element_bytes", ctypes.c_uint64),
        ("buffer", ctypes.c_char * 64),
        ("operation", ctypes.c_char * 128),
        ("other_operation", ctypes.c_char * 128),
    )


class Statistics(ctypes.Structure):
    """What a launch did."""

    _fields_ = (
        ("operations", ctypes.c_uint64 * OPERATIONS),
        ("global_bytes_read", ctypes.c_uint64),
        ("global_bytes_written", ctypes.c_uint64),
        ("shared_bytes_read", ctypes.c_uint64),
        ("shared_bytes_written", ctypes.c_uint64),
        ("global_reads", ctypes.c_uint64),
        ("global_writes", ctypes.c_uint64),
        ("shared_reads", ctypes.c_uint64),
        ("shared_writes", ctypes.c_uint64),
        ("bank_moves", ctypes.c_uint64),
        ("bank_conflicts", ctypes.c_uint64),
        ("shared_memory", ctypes.c_uint64),
    )

    @property
    def traffic(self) -> tuple[int, ...]:
        """The numbers behind those of operations, in their order."""
        return tuple(getattr(self, name) for name, _ in self._fields_[1:])
