"""Profilers: inputs, comparison with a reference, measuring."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.kernels import scaling
from tvmtile.errors import ArgumentError, InvalidOperand
from tvmtile.profiler import TensorSupplyType, do_bench

doubled = tvmtile.jit(scaling, out_idx=[-1])


@pytest.mark.parametrize(
    ("supply", "dtype", "is_right"),
    [
        (TensorSupplyType.Zero, "float32", lambda a: a.eq(0).all()),
        (TensorSupplyType.One, "float32", lambda a: a.eq(1).all()),
        (TensorSupplyType.Integer, "float32", lambda a: set(a.tolist()) == {-2, -1, 0, 1, 2}),
        (TensorSupplyType.Auto, "float32", lambda a: (a.abs() <= 1).all() and (a % 1).any()),
        (TensorSupplyType.Auto, "int8", lambda a: True),
        (TensorSupplyType.Randn, "float32", lambda a: abs(a.mean()) < 0.1 > abs(a.std() - 1)),
        (TensorSupplyType.Normal, "float32", lambda a: abs(a.mean() + 1) < 0.1 > abs(a.std() - 1)),
    ],
)
def test_inputs_hold_what_the_supply_says(supply, dtype, is_right):
    torch.manual_seed(0)
    (a,) = doubled(4096, dtype=dtype).get_profiler(supply).inputs()
    assert (a.shape, a.dtype) == ((4096,), getattr(torch, dtype))
    assert is_right(a)


def test_a_right_kernel_passes_and_a_wrong_reference_fails():
    profiler = doubled(8).get_profiler()
    profiler.assert_allclose(lambda a: a * 2, rtol=0, atol=0, max_mismatched_ratio=0)
    profiler.assert_consistent(2)
    with pytest.raises(AssertionError, match="the kernel and the reference differ in 8 of 8"):
        profiler.assert_allclose(lambda a: a * 2 + 1)
    with pytest.raises(AssertionError, match="returns 1 tensors, the reference 2"):
        profiler.assert_allclose(lambda a: (a, a))


def test_a_check_of_the_users_gets_both_lists_of_results():
    seen = []
    doubled(8).get_profiler().manual_assert_close(
        lambda a: a * 2, manual_check_prog=lambda ours, theirs: seen.append((ours, theirs))
    )
    ((ours, theirs),) = seen
    assert torch.equal(ours[0], theirs[0])


def test_dynamic_extents_need_values():
    profiler = doubled(T.dynamic("m")).get_profiler()
    with pytest.raises(ArgumentError, match="the extent m of A is not known"):
        profiler.inputs()
    (a,) = profiler.inputs({"m": 5})
    assert a.shape == (5,)
    assert profiler.do_bench(warmup=0, rep=0, dynamic_symbolic_constraints={"m": 5}) > 0


def test_do_bench_calls_as_often_as_it_is_told_and_measures_milliseconds():
    calls = []

    def count():
        calls.append(None)

    assert 0 < do_bench(count, _n_warmup=2, _n_repeat=3) < 1000
    assert len(calls) == 6
    low, high = do_bench(count, _n_repeat=5, quantiles=[0, 1])
    assert low <= high
    with pytest.raises(InvalidOperand, match="return_mode='best'"):
        do_bench(count, return_mode="best")


def test_one_call_with_inputs_of_the_profiler():
    kernel = doubled(8)
    (a,), seen = kernel.get_profiler().inputs(), []
    assert kernel.run_once().shape == a.shape
    assert kernel.run_once(lambda *inputs: seen.append(inputs)) is None
    assert [x.shape for x in seen[0]] == [a.shape]


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import numpy as np
import tvmtile, tvmtile.language as T

def scaled(dtype):
    @T.prim_func
    def scaled(A: T.Tensor((8, 16), dtype), B: T.Tensor((8, 16), dtype)):
        with T.Kernel(8, threads=16) as i:
            for j in T.Parallel(16):
                B[i, j] = A[i, j] * 2
    return tvmtile.compile(scaled, out_idx=-1, target="llvm")

profiler = scaled("float32").get_profiler()
(a,) = profiler.inputs()
assert type(a) is np.ndarray and a.dtype == np.float32 and (a != a.round()).any()
profiler.assert_allclose(lambda a: a * 2, rtol=0, atol=0, max_mismatched_ratio=0)
profiler.assert_consistent(2)
assert profiler.do_bench(n_warmup=1, n_repeat=3) > 0
assert profiler.run_once().shape == (8, 16)
try:
    profiler.assert_allclose(lambda a: a * 2 + 1)
except AssertionError as error:
    assert "differ in 128 of 128 elements" in str(error), error
else:
    raise SystemExit("a wrong reference passed")
assert "ms" in repr(scaled("float32").profile())
narrow = scaled("bfloat16").get_profiler(tvmtile.TensorSupplyType.Integer)
(b,) = narrow.inputs()
assert type(b) is tvmtile.tvm.runtime.Tensor and str(b.dtype) == "bfloat16"
narrow.assert_allclose(lambda b: b.numpy() * 2, rtol=0, atol=0)
print("measured")
"""


@pytest.mark.full
def test_a_profiler_needs_no_torch(tmp_path):
    file = tmp_path / "without_torch.py"  # the source of a tile program is read from its file
    file.write_text(WITHOUT_TORCH)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False)
    assert done.stdout == "measured\n", done.stderr
