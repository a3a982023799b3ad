"""Torch's demands on an operator, kept by kernels: versions, gradients, signs, traces."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as fw
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import tvmtile
import tvmtile.language as T
from tvmtile.errors import ArgumentError, is_internal
from tvmtile.jit.torch_calls import TorchCalls

NO_GRADIENT = "product: a kernel has no gradient of its own"
NO_TRANSFORM = "product: vmap, grad and other transforms of torch.func can't look into a kernel"


@T.prim_func
def product(
    A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32"), C: T.Tensor((8,), "float32")
):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(8):
            C[i] = A[i] * B[i]


BACKENDS = {
    "llvm": {"target": "llvm"},
    "metal": {"target": "metal", "execution_backend": "emulator"},
    "cuda": {"target": {"kind": "cuda", "arch": "sm_90a"}, "execution_backend": "emulator"},
}


@pytest.fixture(scope="module", params=BACKENDS)
def kernel(request):
    """All tensors are given."""
    return tvmtile.compile(product, **BACKENDS[request.param])


@pytest.fixture(scope="module", params=BACKENDS)
def function(request):
    """The result is allocated."""
    return tvmtile.compile(product, out_idx=-1, **BACKENDS[request.param])


@pytest.fixture
def a():
    return torch.randn(8)


b = a


def on_the_cpu(**options):
    return tvmtile.compile(product, target="llvm", **options)


@pytest.fixture(params=["in place", "result"])
def call(request):
    """A function of two tensors that calls a kernel in either way."""
    if request.param == "result":
        return on_the_cpu(out_idx=-1)
    kernel = on_the_cpu()

    def call(a, b):
        c = torch.empty(8)
        kernel(a, b, c)
        return c

    return call


def test_what_is_written_counts_as_modified(kernel, a, b):
    c = torch.zeros(8)
    kernel(a, b, c)
    assert (a._version, b._version, c._version) == (0, 0, 1)
    result = torch.ones(8, requires_grad=True) * c  # keeps c for the backward
    kernel(a, b, c)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_a_result_computed_from_a_parameter_has_no_gradient(function, a, b):
    result = function(torch.nn.Parameter(a), b)  # the line of the call
    torch.testing.assert_close(result, a * b)
    with pytest.raises(ArgumentError) as caught:
        (result + 1).sum().backward()
    assert caught.value.message == NO_GRADIENT
    assert caught.value.help == (
        "call it under torch.no_grad(), or in the forward of a torch.autograd.Function whose backward "
        "says what the gradient is"
    )
    assert caught.value.location.text.endswith("# the line of the call")


@pytest.mark.parametrize("size", [8, 16])
def test_nor_has_what_is_written_in_place_whose_history_does_not_grow(kernel, a, b, size):
    weight, base = torch.nn.Parameter(a), torch.zeros(size)
    c = base if size == 8 else base[8:]
    kernel(weight, b, c)
    history = base.grad_fn
    torch.testing.assert_close(c, a * b)
    with pytest.raises(ArgumentError, match=NO_GRADIENT):
        base.sum().backward()
    with torch.no_grad():
        kernel(weight, b, base[-8:])
    assert base.grad_fn is history
    if size == 8:
        for _ in range(3):
            kernel(weight, b, c)
        assert c.grad_fn is history
        assert c._version == 6  # torch counts the first one, which also gave it a history, twice


def test_a_gradient_that_is_written_by_hand(function, a, b):
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return function(a, b)

        @staticmethod
        def backward(ctx, gradient):
            a, b = ctx.saved_tensors
            gradient = gradient.contiguous()
            return function(gradient, b), function(gradient, a)

    weight = torch.nn.Parameter(a)
    Product.apply(weight, b).sum().backward()
    torch.testing.assert_close(weight.grad, b)


def test_parameters_without_gradients(function, kernel, a, b):
    weight = torch.nn.Parameter(a.clone())
    with torch.no_grad():
        result = function(weight, b)
        kernel(a, b, weight)  # as an optimizer does
    assert result.grad_fn is None
    torch.testing.assert_close(weight.detach(), a * b)
    with torch.inference_mode():
        torch.testing.assert_close(function(a + 1, b), (a + 1) * b)


def test_what_was_plain_without_gradients_is_not_with_them(kernel, a, b):
    weight, c, memory = torch.nn.Parameter(torch.zeros(8)), torch.zeros(8), np.empty(8, np.float32)
    with torch.no_grad():
        for _ in range(2):
            kernel(a, b, weight)
            kernel(weight, b, c)
            kernel(weight, b, memory)
    assert np.array_equal(memory, c)
    for written in (weight, torch.nn.Parameter(torch.zeros(16))[:8]):
        before = written.detach().clone()
        with pytest.raises(ArgumentError) as caught:
            kernel(a, b, written)
        assert caught.value.message == (
            "product writes a tensor that requires a gradient and is a leaf of the graph"
        )
        assert torch.equal(written, before)
    kernel(weight, b, c)
    with pytest.raises(ArgumentError, match=NO_GRADIENT):
        c.sum().backward()


@pytest.mark.full
def test_a_tensor_that_stands_for_the_negative_of_its_memory(kernel, function, a, b):
    assert torch.complex(b, a).conj().imag.is_neg()
    negative = torch._neg_view(a)
    torch.testing.assert_close(function(negative, b), -a * b)
    c = torch.zeros(8)
    kernel(negative, b, torch._neg_view(c))
    torch.testing.assert_close(c, a * b)
    c = np.zeros(8, np.float32)
    kernel(negative, b.numpy(), c)
    np.testing.assert_allclose(c, (-a * b).numpy())


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_the_negative_of_memory_of_any_width(dtype):
    @T.prim_func
    def doubled(A: T.Tensor((8,), dtype), C: T.Tensor((8,), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                C[i] = A[i] + A[i]

    numbers = torch.arange(8, dtype=getattr(torch, dtype))
    result = torch.zeros_like(numbers)
    tvmtile.compile(doubled, target="llvm")(torch._neg_view(numbers), result)
    torch.testing.assert_close(result, -2 * numbers)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_what_has_no_memory_of_its_own_or_another_layout_of_it(kernel, function, a, b):
    complex_numbers = torch.complex(a, b).conj()
    for refused, message, remedy in (
        (a.to_sparse(), "it got a sparse tensor", "x.to_dense()"),
        (a.reshape(2, 4).to_sparse_csr(), "it got a sparse tensor", "x.to_dense()"),
        (complex_numbers, "it got complex64", "x.to(torch.float32)"),
        (a.to("meta"), "is a tensor without memory", "@tvmtile.torch_op over the kernel"),
    ):
        for call in (function, lambda *args: kernel(*args, torch.empty(8))):
            with pytest.raises(ArgumentError) as caught:
                call(refused, b)
            assert message in caught.value.message
            assert remedy in caught.value.help
    torch.testing.assert_close(function(complex_numbers.imag.contiguous(), b), -b * b)


def traced_by_fx(mode):
    return lambda function, a, b: make_fx(function, tracing_mode=mode)(a, b)


def exported(function, a, b):
    class Module(torch.nn.Module):
        def forward(self, a, b):
            return function(a, b)

    return torch.export.export(Module(), (a, b), strict=False).module()


@pytest.mark.parametrize(
    "trace",
    [
        *map(traced_by_fx, ["real", "fake", "symbolic"]),
        lambda function, a, b: torch.jit.trace(function, (a, b)),
        exported,
        pytest.param(
            lambda function, a, b: torch.compile(function, backend="eager"), marks=pytest.mark.full
        ),
    ],
)
def test_a_graph_has_the_kernel(call, a, b, trace):
    graph = trace(lambda a, b: call(a, b) + 1, a, b)
    if hasattr(graph, "code"):
        assert "ops.tvmtile.product_" in graph.code
    torch.testing.assert_close(graph(b, b), b * b + 1)
    torch._dynamo.reset()


def test_fake_tensors_give_fake_results(function):
    mode = FakeTensorMode()
    fake = mode.from_tensor(torch.zeros(8))
    result = function(fake, fake)
    assert type(result) is type(fake)
    assert result.shape == (8,)
    with mode:
        assert function(torch.empty(8), torch.empty(8)).shape == (8,)


def doubles(a):
    """A function in the eager style."""

    @tvmtile.jit
    def double(A):
        N = T.const("N")
        A: T.Tensor((N,), "float32")
        B = T.empty((N,), "float32")
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N):
                B[i] = A[i] * 2
        return B

    return double


def doubles_lazily(a):
    @tvmtile.jit(target="llvm")
    def double(n):
        return doubles(a).get_tir(N=n)

    return lambda a: double(len(a))(a)


def doubles_by_a_kernel(a):
    return doubles(a).compile(a)


def doubles_into(a):
    """By a kernel that is given its result, and has run before."""
    kernel = doubles(a).compile(a)

    def double(a):
        result = torch.empty_like(a)
        kernel(a, result)
        return result

    double(a)
    return double


@pytest.mark.full
@pytest.mark.parametrize("make", [doubles, doubles_lazily, doubles_by_a_kernel, doubles_into])
def test_nothing_of_a_call_is_traced_in_compiled_code(make, monkeypatch, a):
    """Dynamo warns of what it can't trace, and of functions that it compiles again and again."""
    monkeypatch.delenv("TVMTILE_TARGET")  # the target follows the tensors
    monkeypatch.setattr(torch._dynamo.utils, "warn_once", pytest.fail)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):
            double = make(a)

            def caller(a, double=double):
                return double(a) + 1

            caller.__code__ = caller.__code__.replace()  # its own: else Dynamo compiles it again
            result = torch.compile(caller, backend="eager")(a)
            torch.testing.assert_close(result, a * 2 + 1)
    torch._dynamo.reset()


@pytest.mark.full
def test_one_graph_of_compiled_code_needs_an_operator(function, a, b):
    compiled = torch.compile(lambda a, b: function(a, b) + 1, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="@tvmtile.torch_op over the kernel"):
        compiled(a, b)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, a, b: torch.vmap(f)(a.expand(3, 8), b.expand(3, 8)),
        lambda f, a, b: torch.func.grad(lambda a: f(a, b).sum())(a),
        lambda f, a, b: torch.func.functionalize(f)(a, b),
    ],
    ids=["vmap", "grad", "functionalize"],
)
def test_transforms_of_functions_say_what_to_do(call, a, b, transform):
    with pytest.raises(ArgumentError) as caught:
        transform(call, a, b)
    assert caught.value.message == NO_TRANSFORM
    assert "torch.autograd.Function" in caught.value.help


def test_a_tangent_is_not_lost(function, a, b):
    with fw.dual_level():
        torch.testing.assert_close(function(a, b), a * b)
        with pytest.raises(ArgumentError, match=NO_GRADIENT):
            function(fw.make_dual(a, b), b)
    with pytest.raises(ArgumentError, match=NO_GRADIENT):
        torch.func.jvp(function, (a, b), (b, a))


@pytest.mark.parametrize("make", [torch.Tensor.clone, torch.nn.Parameter], ids=["plain", "weight"])
def test_a_call_with_plain_tensors_enters_one_function_of_ours(a, b, make):
    """The function is that written out for the kernel."""
    kernel, arguments, entered = on_the_cpu(), (a, make(b), torch.empty(8)), []
    with torch.no_grad():
        kernel(*arguments)
        sys.setprofile(lambda frame, event, _: event == "call" and entered.append(frame.f_code))
        try:
            kernel(*arguments)
        finally:
            sys.setprofile(None)
    assert len([code for code in entered if is_internal(code.co_filename)]) == 1, entered
    assert arguments[2].equal(a * b)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("calls", [1, 12])
def test_tensors_that_differ_from_those_of_the_calls_before_are_looked_at(a, b, place, calls):
    """Each kind of tensors between plain ones, more often than there are guards made for them."""
    kernel = on_the_cpu()

    def computed(change):
        given = [a.clone(), b.clone(), torch.zeros(8)]
        given[place] = change(given[place])
        kernel(*given)
        return given[2]

    for _ in range(calls):
        assert computed(torch.Tensor.clone).equal(a * b)
        assert computed(torch._neg_view).equal(a * b if place == 2 else -a * b)
        with torch.no_grad():
            assert computed(torch.Tensor.requires_grad_).equal(a * b)
        with torch.inference_mode():
            assert computed(torch.Tensor.clone).equal(a * b)
        assert computed(torch.zeros(2, 8)[0].copy_).equal(a * b)
        if place == 2:
            with pytest.raises(ArgumentError, match="is a leaf of the graph"):
                computed(torch.nn.Parameter)
            continue
        result = computed(torch.nn.Parameter)
        assert result.equal(a * b)
        with pytest.raises(ArgumentError, match=NO_GRADIENT):
            result.sum().backward()
    square = torch.zeros(8)
    kernel(a, a, square)
    assert square.equal(a * a)
    kernel(square, b, square)
    assert square.equal(a * a * b)
    assert square._version == 2


def test_keywords_after_the_first_calls(a, b):
    """As in the first one, which chooses how a kernel is called."""
    kernel, c = on_the_cpu(), torch.zeros(8)
    for _ in range(2):
        kernel(a, C=c.zero_(), B=b)
        assert c.equal(a * b)
        for given, named in (((a, b), {}), ((a, b, c, c), {}), ((a, b, c), {"D": c})):
            with pytest.raises(ArgumentError, match="takes 3 arguments|unexpected keyword .* 'D'"):
                kernel(*given, **named)
    assert isinstance(kernel, tvmtile.Kernel)
    assert str(type(kernel)) == str(tvmtile.Kernel)
    assert kernel.__call__.__doc__ == tvmtile.Kernel.__call__.__doc__


def test_a_launch_without_arguments():
    launched = []

    @T.prim_func
    def nothing():
        with T.Kernel(1):
            pass

    executable = tvmtile.compile(nothing, target="llvm").executable
    executable.launch = lambda: launched.append(True)
    calls = TorchCalls(executable)
    calls.function()
    assert calls.method(None) is None
    assert launched == [True, True]
