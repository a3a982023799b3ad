"""What would end the process, or never end, is an error at its line."""

import signal

import numpy as np
import pytest

from tvmtile.emulator.metal import compile_msl
from tvmtile.errors import MetalEmulationError

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void divide(device int* a [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  a[i] = 100 / a[i];  // division
}
kernel void remainder(device long* a [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  a[i] = 100 % a[i];  // remainder
}
kernel void divide_vector(device int4* a [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  a[i] = 100 / a[i];  // vector
}
inline int depth(device int* a, int n) {
  return n == 0 ? 0 : a[0] + depth(a, n + a[0]) * 3;  // recursion
}
kernel void recurse(device int* a [[buffer(0)]]) {
  a[0] = depth(a, 1);
}
kernel void large(device int* a [[buffer(0)]], uint i [[thread_position_in_grid]]) {  // stack
  int kept[200000];
  for (int k = 0; k < 200000; ++k) kept[k] = a[k & 1];
  a[i] = kept[a[i] + 1];
}
kernel void spin(device int* a [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  while (a[i] != 7) {  // reads
  }
}
kernel void silent(device int* a [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  uint n = a[i];
  while (n != 0) n = n * 3 + 2;  // registers
  a[i] = n;
}
kernel void meet(device int* a [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  bool go_on = true;
  while (go_on) go_on = simd_any(a[i] != 7);  // meeting
}
kernel void fine(device int* a [[buffer(0)]], uint i [[thread_position_in_grid]]) { a[i] += 1; }
"""
MISTAKES = {
    "divide": ("division", "division"),
    "remainder": ("division", "remainder"),
    "divide_vector": ("division", "vector"),
    "recurse": ("stack", "recursion"),
    "large": ("stack", "stack"),
    "spin": ("endless", "reads"),
    "silent": ("endless", "registers"),
    "meet": ("endless", "meeting"),
}


def run(name, array, **options):
    return compile_msl(SOURCE).kernel(name)(array, grid=1, threads=2, **options)


def values(name):
    if name == "remainder":
        return np.array([5, 0], np.int64)
    return np.array([1, 0] * 4, np.int32)


@pytest.mark.full(but=4)
@pytest.mark.parametrize("name", MISTAKES)
def test_an_error_at_the_line(name):
    kind, comment = MISTAKES[name]
    array = values(name)
    with pytest.raises(MetalEmulationError) as error:
        run(name, array, seconds=0.2)
    assert error.value.kind == kind
    assert f"// {comment}" in SOURCE.splitlines()[error.value.line - 1]
    assert np.array_equal(array, values(name))
    fine = np.zeros(2, np.int32)
    run("fine", fine)
    assert fine.tolist() == [1, 1]


def test_a_loop_of_collectives_has_its_line_whenever_its_time_is_up():
    for _ in range(20):
        with pytest.raises(MetalEmulationError) as error:
            run("meet", values("meet"), seconds=0.01)
        assert error.value.line is not None


def test_the_lowest_integer_by_minus_one():
    array = np.array([-1, -1], np.int32)
    source = SOURCE.replace("100 / a[i];  // division", "INT_MIN / a[i];")
    with pytest.raises(MetalEmulationError, match="or the lowest one by -1"):
        compile_msl(source).kernel("divide")(array, grid=1, threads=2)


def test_handlers_of_others_are_put_back():
    before = signal.getsignal(signal.SIGFPE)
    signal.signal(signal.SIGFPE, signal.SIG_IGN)
    try:
        with pytest.raises(MetalEmulationError):
            run("divide", values("divide"))
        assert signal.getsignal(signal.SIGFPE) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGFPE, before)
