"""`@tvmtile.autotune`: what a call tunes, and what it does not tune again."""

from __future__ import annotations

import functools
import logging

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.autotuner.kernels import QUICK
from tvmtile.autotuner import AutoTuner, set_autotune_inputs

pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.fixture
def measured(caplog):
    """The number of configurations measured since this was asked last."""
    caplog.set_level(logging.INFO, "tvmtile.autotuner")

    def count():
        lines = len(caplog.records)
        caplog.clear()
        return lines

    return count


@tvmtile.autotune(configs={"block": [16, 32]}, do_not_specialize=["n"], **QUICK)
@tvmtile.jit(out_idx=-1)
def scale(n, factor, block=None):
    @T.prim_func
    def scale(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block), threads=32) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] * factor

    return scale


def test_a_lazy_kernel_is_tuned_once_for_its_values(measured):
    kernel = scale(64, 2.0)
    assert measured() == 2
    assert kernel.config in ({"block": 16}, {"block": 32})
    assert kernel.latency > 0
    assert torch.equal(kernel(torch.ones(64)), torch.full((64,), 2.0))
    assert scale(64, 2.0) is kernel
    assert scale(64, factor=2.0) is kernel
    assert measured() == 0
    assert scale(64, 3.0).config is not None
    assert measured() == 2
    assert len(scale.result(64, 2.0).trials) == 2
    assert scale.compile(64, 2.0) is kernel
    assert scale.__name__ == "scale"
    assert isinstance(scale.jit_impl, tvmtile.jit.JitFunction)


def test_other_values_of_some_parameters_are_compiled_but_not_tuned(measured):
    chosen = scale(64, 2.0).config
    measured()
    kernel = scale(128, 2.0)
    assert measured() == 0
    assert torch.equal(kernel(torch.ones(128)), torch.full((128,), 2.0))
    assert f"bx * {chosen['block']}" in kernel.prim_func.script()


def test_a_value_of_a_tuned_parameter_that_is_not_specialised_is_replaced(measured):
    """TileOps' kernels have no default for it, and begin with one of their own."""
    seeded = tvmtile.autotune(configs={"block": [16, 32]}, do_not_specialize=["block"], **QUICK)(
        scale.jit_impl
    )
    kernel = seeded(64, 5.0, block=8)
    assert measured() == 2
    assert kernel.config in ({"block": 16}, {"block": 32})
    assert f"bx * {kernel.config['block']}" in kernel.prim_func.script()
    other = seeded(64, 5.0, block=4)
    assert measured() == 0
    assert other.config == kernel.config
    assert torch.equal(other(torch.ones(64)), torch.full((64,), 5.0))


def test_a_call_that_gives_a_tuned_parameter_is_not_tuned(measured):
    for kernel in (scale(64, 2.0, block=8), scale(64, 2.0, 8)):
        assert measured() == 0
        assert kernel.config is None
        assert torch.equal(kernel(torch.ones(64)), torch.full((64,), 2.0))
        assert "bx * 8" in kernel.prim_func.script()


def test_a_kernel_that_takes_any_names_is_tuned():
    def kernel(n, **sizes):
        return scale.jit_impl.func(n, 2.0, **sizes)

    tuned = tvmtile.autotune(configs={"block": [16, 32]}, **QUICK)(tvmtile.jit(out_idx=-1)(kernel))
    assert tuned(64).config in ({"block": 16}, {"block": 32})
    assert tuned(64, block=8).config is None
    tuner = AutoTuner.from_kernel(functools.partial(kernel, 64), {"block": [32]})
    assert tuner.set_compile_args(out_idx=-1).run(**QUICK).config == {"block": 32}


def configs(A, factor):
    return [{"block": size} for size in (16, 32) if size <= A.shape[0]]


@tvmtile.autotune(configs=configs, ref_prog=lambda A: A * 2, **QUICK)
@tvmtile.jit
def eager_scale(A, factor, block=None):
    n = T.const("n")
    A: T.Tensor((n,), "float32")
    B = T.empty((n,), "float32")
    with T.Kernel(T.ceildiv(n, block), threads=32) as bx:
        for i in T.Parallel(block):
            B[bx * block + i] = A[bx * block + i] * factor
    return B


def test_an_eager_kernel_is_tuned_on_its_tensors(measured):
    a = torch.randn(64)
    assert torch.equal(eager_scale(a, 2.0), a * 2)
    assert measured() == 2
    assert torch.equal(eager_scale(a + 1, 2.0), (a + 1) * 2)
    assert measured() == 0
    assert torch.equal(eager_scale(torch.ones(16), 2.0), torch.full((16,), 2.0))
    assert measured() == 1  # the function saw the tensor
    assert torch.equal(eager_scale(a, 2.0, block=8), a * 2)
    assert measured() == 0
    assert eager_scale.result(a, 2.0).ref_latency > 0


@pytest.mark.full
def test_an_eager_kernel_is_compiled_for_constants(measured):
    @tvmtile.autotune(configs={"block": [16, 32]}, **QUICK)
    @tvmtile.jit
    def double(A, block=None):
        n = T.const("n")
        A: T.Tensor((n,), "float32")
        B = T.empty((n,), "float32")
        with T.Kernel(T.ceildiv(n, block), threads=32) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] * 2
        return B

    a = torch.randn(64)
    with set_autotune_inputs([a]):
        kernel = double.compile(n=64)
    assert measured() == 2
    assert torch.equal(kernel(a), 2 * a)
    assert double(a, __return_kernel=True).config == kernel.config


@pytest.mark.full
def test_a_dynamic_extent_is_tuned_with_given_inputs(measured):
    a = torch.randn(50)
    with set_autotune_inputs(a):
        kernel = scale(T.symbolic("m"), 4.0)
    assert measured() == 2
    assert torch.equal(kernel(a), 4 * a)
