"""Pointers in a wrong address space are found in the source, before anything is compiled."""

import pytest

from tvmtile.emulator.lexer import tokenize
from tvmtile.emulator.metal.address_spaces import check_address_spaces
from tvmtile.errors import MetalEmulationError

KERNEL = """
#include <metal_stdlib>
using namespace metal;
kernel void k(device half* A [[buffer(0)]], const device float* B [[ buffer(1) ]],
              constant int& n [[buffer(2)]], threadgroup float* given [[threadgroup(0)]],
              uint i [[thread_position_in_grid]]) {{
  threadgroup half S[64], R[4][8];
  thread half4 L[2];
  {}
}}
"""
LINE = 9


def error_of(statement):
    with pytest.raises(MetalEmulationError) as caught:
        check_address_spaces(tokenize(KERNEL.format(statement)))
    return caught.value


@pytest.mark.parametrize(
    ("statement", "buffer", "space"),
    [
        ("half4 v = *(device half4*)(S + i * 4);", "S", "threadgroup"),
        ("half4 v = *(threadgroup half4*)(A + i * 4);", "A", "device"),
        ("*(device half4*)(&(S[i])) = L[0];", "S", "threadgroup"),
        ("*(device half*)(&R[1][2]) = 0;", "R", "threadgroup"),
        ("*(device half*)(R[1]) = 0;", "R", "threadgroup"),
        ("*(threadgroup const half4*)(L + 1);", "L", "thread"),
        ("*(device float4*)B + 1; *(threadgroup float4*)(i + B);", "B", "device"),
        ("*(device uint*)((threadgroup char*)S + 4);", "S", "threadgroup"),
        ("*(device int*)&n;", "n", "constant"),
        ("*(device float*)given;", "given", "threadgroup"),
        ("*reinterpret_cast<device uint4*>(S);", "S", "threadgroup"),
        ("*static_cast<threadgroup half*>(&A[i]);", "A", "device"),
        ("device half* p = S;", "S", "threadgroup"),
        ("threadgroup const half* p = &A[2];", "A", "device"),
        ("for (device half* p = S + 1;;) {}", "S", "threadgroup"),
        ("device half* p = A; { threadgroup half* q = p; }", "p", "device"),
    ],
)
def test_pointer_to_another_address_space(statement, buffer, space):
    error = error_of(statement)
    assert (error.kind, error.kernel, error.buffer) == ("address_space", "k", buffer)
    assert error.line == LINE
    assert f"made from {buffer!r}, which is in {space} memory" in str(error)
    assert f"write `{space}` in the pointer's type" in str(error)


@pytest.mark.parametrize("statement", ["*(half4*)(S);", "*(float4*)&B[i];", "*(half4 *)(A + 4);"])
def test_pointer_without_an_address_space(statement):
    error = error_of(statement)
    assert error.kind == "address_space"
    assert "a cast to a pointer without an address space" in str(error)


@pytest.mark.parametrize(
    "statement",
    [
        "*(device half4*)(A + i * 4) = *(threadgroup half4*)(S + i);",
        "device half* p = A + 3; threadgroup half* q = &S[2];",
        "*(device uint*)((device char*)A + 4);",
        "threadgroup half* q = R[2] + 1; const threadgroup half* r = q;",
        # What is loaded from memory is a value, wherever it came from.
        "float x = (float)(S[i]) * (half)(A[0]); thread float* p = &x;",
        "thread half* p = (thread half*)L; p[0] = A[i];",
        "{ threadgroup float A[4]; *(threadgroup float4*)A; } *(device half4*)A;",
        "int j = (int)n * (int)(B[0]); device const float* b = B + n * j;",
        "device half* p = n > 0 ? A : A + 1;",
    ],
)
def test_pointers_that_are_right(statement):
    check_address_spaces(tokenize(KERNEL.replace("{}", statement).replace("{{", "{")))


def test_variables_belong_to_their_function():
    source = """
    float first(threadgroup float* p) { return *(threadgroup float*)p; }
    float second(device float* p) { return *(device float*)p; }
    kernel void k(device float* p [[buffer(0)]]) { *(device float*)p = 1; }
    """
    check_address_spaces(tokenize(source))
