"""The Metal source of a kernel: TVM's text, with what TVM leaves out."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.target import Target

from tvmtile._tvm import codegen_build
from tvmtile.codegen.metal import with_functions
from tvmtile.ir.kernels import launched_with

_CALLBACK = "tvm_callback_metal_compile"  # TVM calls it with the source of each kernel

_SCALARS = "char|uchar|half|bfloat|short|ushort|int|uint|float|long|ulong"

_UNION = "union __TVMArgUnion {\n int v_int[2];\n};\n"

_CAST = re.compile(r"\(thread \w+\s*\*\)\(*(?!thread\b)(\w+)")
_ARRAY = re.compile(
    rf"^( *)(thread \w+ (\w+)\[\d+\];|threadgroup (?:{_SCALARS}) \w+\[\d+\];)", re.MULTILINE
)
_MOST_THREADS = "max_total_threads_per_threadgroup"
_KERNEL = re.compile(r"\bkernel void (\w+)\(")
_LONG_LONG = re.compile(r"\b(\d+)(U?)LL\b")
UNROLL_NEXT = "tvmtile_unroll_next"
"""A call of this name becomes a pragma for the loop behind it."""


def complete(source: str, threads: int | None = None) -> str:
    """Make what TVM's generator printed for one kernel a text that compiles by itself.

    With the number of its threads, Apple's compiler leaves registers for as many.
    """
    if threads is not None and _MOST_THREADS not in source:
        source = _KERNEL.sub(rf"[[{_MOST_THREADS}({threads})]] \g<0>", source)
    source = source.replace(UNROLL_NEXT + "();", '_Pragma("clang loop unroll(full)")')
    # Metal has no long long; its long has 64 bits.
    source = _LONG_LONG.sub(r"\1\2L", _aligned(with_functions(source)))
    return source.replace(_UNION, "").strip() + "\n"  # no kernel has a scalar that is read by it


def _aligned(source: str) -> str:
    """Align arrays that are accessed as vectors too, and all that the threads of a block share.

    An array of half has the alignment of a half, so a move of four by one `uint2` would be undefined,
    and an atomic operation on the word around one of its elements might reach out of it.
    """
    viewed = set(_CAST.findall(source))

    def align(array: re.Match[str]) -> str:
        indent, declaration, name = array.groups()
        aligned = name is None or name in viewed
        return f"{indent}alignas(16) {declaration}" if aligned else array.group()

    return _ARRAY.sub(align, source)


def complete_what_tvm_builds(kernels: Iterable[tirx.PrimFunc]) -> None:
    """Have TVM's own Metal module of this thread's next build made of complete sources.

    The kernels are those of a module that was split. TVM hands over the kernels of others too. A
    callback that somebody registered before, to compile kernels ahead of time, is left in place.
    """
    threads = {str(f.attrs["global_symbol"]): launched_with(f, "threadIdx") for f in kernels}
    _EXPECTED.threads = _expected() | threads
    if _expected() and tvm.get_global_func(_CALLBACK, allow_missing=True) is None:
        tvm_ffi.register_global_func(_CALLBACK, _complete_if_ours)


_EXPECTED = threading.local()


def _expected() -> dict[str, int | None]:
    return getattr(_EXPECTED, "threads", {})


def _complete_if_ours(source: str, target: Target) -> tuple[str, str]:
    """What TVM calls with each kernel's source."""
    del target
    (name,) = _KERNEL.findall(source)
    if name not in _expected():
        return source, "metal"
    return complete(source, _expected().pop(name)), "metal"


def kernel_source(name: str, kernel: tirx.PrimFunc, target: Target) -> str:
    """The Metal source of a kernel, which compiles by itself."""
    module = codegen_build(ir.IRModule({name: kernel}), target)
    return complete(str(module.inspect_source("metal")), launched_with(kernel, "threadIdx"))
