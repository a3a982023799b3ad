"""Barriers of Metal that order device memory: TVM prints those of threadgroup memory only."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

# A macro, so that a barrier stands in the line of the kernel that waits, not in one function for all.
_BARRIER = """\
#define tvmtile_{group}_barrier() {group}_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup)
"""
_GROUPS = ("threadgroup", "simdgroup")
_DEFINITIONS = {f"tvmtile_{group}_barrier": _BARRIER.format(group=group) for group in _GROUPS}


def definition(name: str) -> str | None:
    """The text of one of the barriers below."""
    return _DEFINITIONS.get(name)


def device_barrier(group: str) -> tirx.Stmt:
    """A barrier of a `threadgroup` or `simdgroup` that orders device memory and threadgroup memory."""
    assert group in _GROUPS
    return tirx.Evaluate(T.call_extern("void", f"tvmtile_{group}_barrier"))
