"""The Metal source of a kernel, as TVM's flows and ours get it."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi
from tvm import ir
from tvm.script import tirx as P

import tvmtile.language as T
from tvmtile.codegen import metal
from tvmtile.target import resolve

CALLBACK = "tvm_callback_metal_compile"


def program(dtype):
    scalar = getattr(T, dtype)

    @T.prim_func
    def main(value: scalar, A: T.Tensor((32,), dtype)):
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                A[tx] = value

    return main


def tvm_source(dtype):
    module = tvm.tirx.build(program(dtype), target=resolve("metal"), pipeline="tvmtile")
    return str(module.imports[0].inspect_source("metal"))


@pytest.mark.parametrize("dtype", ["float16", "int32", "int8"])
def test_scalars_are_read_by_no_union(dtype):
    """TVM reads one of less than 32 bits as a member that it does not declare."""
    source = tvm_source(dtype)
    assert "union __TVMArgUnion" in source
    assert "__TVMArgUnion" not in metal.complete(source)


def test_arrays_that_are_accessed_as_vectors_are_aligned():
    source = """
  thread half x[4];
  thread half y[4];
  thread float xs[4];
  *(device uint2*)(((device uint*)A) + 0) = *(thread uint2*)(((thread uint*)x) + 0);
  *(device float4*)(B) = *(thread float4*)(xs + 0);
"""
    aligned = metal.complete(source)
    assert "alignas(16) thread half x[4];" in aligned
    assert "alignas(16) thread float xs[4];" in aligned
    assert "  thread half y[4];" in aligned


def test_arrays_of_a_threadgroup_are_aligned():
    source = "  threadgroup half x[4];\n  threadgroup uint4 y[4];\n  threadgroup half* z = x;\n"
    assert metal.complete(source) == "alignas(16) " + source.strip() + "\n"


def test_a_number_of_64_bits_is_a_long():
    source = "x = (ulong)18446744073709551615ULL + (long)(-9223372036854775807LL - 1LL);\n"
    expected = "x = (ulong)18446744073709551615UL + (long)(-9223372036854775807L - 1L);\n"
    assert metal.complete(source) == expected


def test_what_tvm_builds_of_tile_programs_is_complete():
    @T.prim_func
    def tile(value: T.float16, A: T.Tensor((32,), "float16")):
        with T.Kernel(1, threads=32):
            T.fill(A, value)

    @P.prim_func
    def plain(value: P.float16, A: P.Buffer((32,), "float16")):
        for _bx in P.thread_binding(1, thread="blockIdx.x"):
            for tx in P.thread_binding(32, thread="threadIdx.x"):
                A[tx] = value

    tvm.tirx.build(tile, target="metal", pipeline="tvmtile")
    complete = tvm.get_global_func(CALLBACK)
    built = {}

    def record(source, target):
        text, format_ = complete(source, target)
        built[text.partition("kernel void ")[2].partition("(")[0]] = text
        return text, format_

    tvm_ffi.register_global_func(CALLBACK, record, override=True)
    try:
        programs = {"tile": tile, "plain": plain}
        module = {name: func.with_attr("global_symbol", name) for name, func in programs.items()}
        tvm.tirx.build(ir.IRModule(module), target="metal", pipeline="tvmtile")
    finally:
        tvm_ffi.register_global_func(CALLBACK, complete, override=True)
    assert ["__TVMArgUnion" in built[name] for name in ("tile_kernel", "plain_kernel")] == [
        False,
        True,
    ]
    limit = "[[max_total_threads_per_threadgroup(32)]] kernel void"
    assert (limit in built["tile_kernel"], limit in built["plain_kernel"]) == (True, False)


def test_a_callback_of_somebody_else_is_left_in_place():
    ours = tvm.get_global_func(CALLBACK, allow_missing=True)
    called = []

    def theirs(source, target):
        called.append(target)
        return source, "metal"

    tvm_ffi.register_global_func(CALLBACK, theirs, override=True)
    try:
        tvm_source("float16")
        assert called
    finally:
        tvm_ffi.remove_global_func(CALLBACK)
        if ours is not None:
            tvm_ffi.register_global_func(CALLBACK, ours)
