"""Kernels as operators of torch.library: those that are compiled, and functions in the eager style."""

from __future__ import annotations

import copy
import itertools
import pickle
import re

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import ArgumentError, InvalidOperand, InvalidValue

_COUNT = itertools.count()
ROWS = 16
EXTENT = torch.export.Dim("rows", min=2, max=100)


def name_of(what):
    return f"tvmtile_tests::{what}_{next(_COUNT)}"


def gradients(ctx, gradient):
    x, y, _ = ctx.saved_tensors
    (scale,) = ctx.constants
    return gradient * y * scale, gradient * x * scale, None


def kernel_of_product():
    M = T.dynamic("M")

    @T.prim_func
    def product(
        X: T.Tensor((M, 8), "float32"), Y: T.Tensor((M, 8), "float32"), scale: T.float32,
        Z: T.Tensor((M, 8), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(M, ROWS)) as block:
            for i, j in T.Parallel(ROWS, 8):
                Z[block * ROWS + i, j] = X[block * ROWS + i, j] * Y[block * ROWS + i, j] * scale

    return tvmtile.compile(product, out_idx=-1, target="llvm")


@tvmtile.torch_op("tvmtile_torch_op::product", backward=gradients, target="llvm")
def eager_product(X, Y, scale: float = 2.0):
    M, N = T.dynamic("M"), T.const("N")
    X: T.Tensor((M, N), "float32")
    Y: T.Tensor((M, N), "float32")
    Z = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(M, ROWS)) as block:
        for i, j in T.Parallel(ROWS, N):
            Z[block * ROWS + i, j] = X[block * ROWS + i, j] * Y[block * ROWS + i, j] * scale
    return Z


@pytest.fixture(scope="module", params=["a kernel", "an eager function"])
def product(request):
    """An operator of two tensors, `2 * x * y`, that has a gradient."""
    if request.param == "an eager function":
        return eager_product
    return kernel_of_product().as_torch_op(name_of("product"), backward=gradients)


def operands(rows=20, *, requires_grad=False):
    torch.manual_seed(0)
    return [torch.randn(rows, 8, requires_grad=requires_grad) for _ in range(2)]


def close(result, expected):
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


class Module(torch.nn.Module):
    def __init__(self, operator):
        super().__init__()
        self.operator = operator

    def forward(self, x, y):
        return torch.relu(self.operator(x * 2, y, 3.0))


def test_the_schema_follows_from_the_program_or_the_signature(product):
    schema = str(product._opoverload._schema)
    scale = "float scale=2." if product is eager_product else "float scale"
    assert schema.endswith(f"(Tensor X, Tensor Y, {scale}) -> Tensor")
    x, y = operands()
    close(product(x, y, 3.0), 3 * x * y)
    if product is eager_product:
        assert schema.startswith("tvmtile_torch_op::product(")
        close(torch.ops.tvmtile_torch_op.product(x, y), 2 * x * y)


@pytest.mark.full(but=2)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_what_torch_checks_of_operators(product, requires_grad):
    torch.library.opcheck(product, (*operands(requires_grad=requires_grad), 0.5))


def test_graphs_forward_and_backward_one_for_each_constant_extent(product):
    graphs = []

    def backend(graph, example):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, example)

    model = Module(product)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    for rows in (20, 33, 7):
        given = operands(rows, requires_grad=True)
        others = [each.detach().clone().requires_grad_() for each in given]
        weights = torch.randn(rows, 8)
        result, expected = compiled(*given), torch.relu(6 * others[0] * others[1])
        close(result, expected)
        close(
            torch.autograd.grad((result * weights).sum(), given),
            torch.autograd.grad((expected * weights).sum(), others),
        )
    assert len(graphs) == 1
    if product is eager_product:
        x = torch.randn(5, 12)
        close(compiled(x, x), torch.relu(6 * x * x))
        assert len(graphs) == 2
    torch._dynamo.reset()


def test_without_a_backward_a_gradient_is_an_error():
    operator = kernel_of_product().as_torch_op(name_of("product"))
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        operator(*operands(requires_grad=True), 2.0).sum().backward()


def one_gradient(ctx, gradient):
    return gradient


@pytest.mark.parametrize(
    ("backward", "message"),
    [
        (one_gradient, "1 gradient, not 3"),
        (lambda ctx, gradient: (gradient,) * 4, "4 gradients, not 3"),
        (lambda ctx, gradient: [gradient, None, None, None], None),  # more of None are none
    ],
)
def test_a_backward_returns_a_gradient_for_each_parameter(backward, message):
    operator = kernel_of_product().as_torch_op(name := name_of("product"), backward)
    result = operator(*operands(requires_grad=True), 2.0).sum()
    if message is None:
        result.backward()
        return
    with pytest.raises(ArgumentError) as caught:
        result.backward()
    assert caught.value.message == (
        f"{name} has the parameters X, Y, scale, and its backward returned {message}"
    )
    assert caught.value.help == (
        "return one for each parameter, None where there is none, as for a number"
    )
    assert caught.value.location.line == backward.__code__.co_firstlineno


def test_copied_and_pickled_with_a_module(product):
    model = Module(product)
    assert copy.deepcopy(model).operator is copy.copy(product) is product
    data = pickle.dumps(model)
    assert pickle.loads(data).operator is product
    x, y = operands()
    name = product._qualname.encode()
    elsewhere = data.replace(name, name[:-1] + b"z")  # the name is not registered
    if product is eager_product:
        with pytest.raises(pickle.UnpicklingError, match=re.escape(f"{__name__} has no operator")):
            pickle.loads(elsewhere)
    else:
        close(pickle.loads(elsewhere)(x, y), torch.relu(6 * x * y))


def exported(product):
    rows = {0: EXTENT}
    return torch.export.export(
        Module(product), tuple(operands()), dynamic_shapes=(rows, rows), strict=True
    )


def test_exported_with_a_dynamic_extent(product):
    x, y = operands(33)
    close(exported(product).module()(x, y), torch.relu(6 * x * y))


@pytest.mark.nightly  # it builds C++ programs
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch's own
def test_compiled_by_inductor_and_packaged_by_aotinductor(tmp_path):
    product = kernel_of_product().as_torch_op(name_of("product"), backward=gradients)
    x, y = operands(37)
    with torch.no_grad():
        close(torch.compile(Module(product), fullgraph=True)(x, y), torch.relu(6 * x * y))
    path = torch._inductor.aoti_compile_and_package(
        exported(product), package_path=str(tmp_path / "module.pt2")
    )
    close(torch._inductor.aoti_load_package(path)(x, y), torch.relu(6 * x * y))


@T.prim_func
def scale(X: T.Tensor((64,), "float32"), factor: T.float32, shift: T.int32):
    with T.Kernel(1):
        for i in T.Parallel(64):
            X[i] = X[i] * factor + T.cast(shift, "float32")


def test_vmap_calls_one_after_the_other_and_writes_each_element(product):
    x, y = torch.randn(20, 3, 8), torch.randn(20, 8)
    result = torch.vmap(product, in_dims=(1, None, None))(x, y, 2.0)
    close(result, 2 * x.transpose(0, 1) * y)
    operator = tvmtile.compile(scale, target="llvm").as_torch_op(name_of("scale"))
    x = torch.randn(64, 3)
    expected = x * 2 + 3
    torch.vmap(lambda each: operator(each, 2.0, 3), in_dims=1, out_dims=None)(x)
    close(x, expected)


def test_written_arguments_are_declared():
    operator = tvmtile.compile(scale, target="llvm").as_torch_op(name_of("scale"))
    schema = str(operator._opoverload._schema)
    assert schema.endswith("(Tensor(a0!) X, float factor, SymInt shift) -> ()")
    torch.library.opcheck(operator, (torch.randn(64), 2.0, 3))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def model(x):
        y = x + 1
        operator(y, 2.0, 3)
        return y * 2

    x = torch.randn(64)
    close(model(x), ((x + 1) * 2 + 3) * 2)


def test_extents_that_are_computed():
    n = T.dynamic("n")

    @T.prim_func
    def maxima(X: T.Tensor((n,), "float32"), Y: T.Tensor((T.ceildiv(n, 32) + 1,), "float32")):
        with T.Kernel(T.ceildiv(n, 32) + 1) as block:
            tile = T.alloc_fragment((32,), "float32")
            result = T.alloc_fragment((1,), "float32")
            T.copy(X[block * 32], tile)
            T.reduce_max(tile, result)
            Y[block] = result[0]

    operator = tvmtile.compile(maxima, out_idx=-1, target="llvm").as_torch_op(name_of("maxima"))
    torch.library.opcheck(operator, (torch.rand(70),))
    assert operator(torch.rand(70)).shape == (4,)
    assert operator(torch.empty(70, device="meta")).shape == (4,)


def test_a_trace_sees_what_does_not_fit():
    operator = kernel_of_product().as_torch_op(name_of("product"))
    wrong, right = torch.empty(20, 8, dtype=torch.float16), torch.empty(20, 8)
    with pytest.raises(ArgumentError, match="X is of dtype torch.float32 and has 2 dimensions"):
        operator(wrong.to("meta"), right.to("meta"), 2.0)


def test_a_kernel_under_jit_with_several_results_and_one_that_it_writes():
    @tvmtile.torch_op(name_of("moments"), mutates=["count"])
    @tvmtile.jit(target="llvm")
    def moments(X, count, extra: T.int32):
        M, N = T.dynamic("M"), T.const("N")
        X: T.Tensor((M, N), "float32")
        count: T.Tensor((1,), "int32")
        total = T.empty((M,), "float32")
        largest = T.empty((M,), "float32")
        with T.Kernel(M) as row:
            tile = T.alloc_fragment((1, N), "float32")
            result = T.alloc_fragment((1,), "float32")
            T.copy(X[row, 0], tile)
            T.reduce_sum(tile, result, dim=1)
            total[row] = result[0]
            T.reduce_max(tile, result, dim=1)
            largest[row] = result[0]
            T.atomic_add(count[0], 1 + extra)
        return total, largest

    schema = str(moments._opoverload._schema).partition("(")[2]
    assert schema == "Tensor X, Tensor(a1!) count, SymInt extra) -> (Tensor, Tensor)"
    x, count = torch.randn(5, 8), torch.zeros(1, dtype=torch.int32)
    torch.library.opcheck(moments, (x, count, 2))
    count.zero_()
    close(moments(x, count, 2), [x.sum(1), x.amax(1)])
    assert count.item() == 15


@tvmtile.torch_op
def copied(X, dtype: str = "float32", relu: bool = False):
    N = T.const("N")
    X: T.Tensor((N,), dtype)
    Y = T.empty((N,), dtype)
    with T.Kernel(1):
        for i in T.Parallel(N):
            Y[i] = T.max(X[i], T.cast(0, dtype)) if relu else X[i]
    return Y


def test_bare_it_has_the_name_of_its_module():
    name = str(copied._opoverload._schema)
    assert name.endswith('::copied(Tensor X, str dtype="float32", bool relu=False) -> Tensor')
    assert name.startswith(__name__.replace(".", "_"))
    x = torch.tensor([-1.0, 2.0], dtype=torch.float16)
    close(copied(x, "float16", relu=True), x.relu())


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["metal", {"kind": "cuda", "arch": "sm_90a"}], ids=str)
def test_on_emulated_gpus(target):
    @tvmtile.torch_op(name_of("double"), target=target, execution_backend="emulator")
    def double(X):
        M, N = T.dynamic("M"), T.const("N")
        X: T.Tensor((M, N), "float32")
        Y = T.empty((M, N), "float32")
        with T.Kernel(M, threads=32) as row:
            for j in T.Parallel(N):
                Y[row, j] = X[row, j] * 2
        return Y

    x = torch.randn(3, 32)
    compiled = torch.compile(
        lambda x: double(x) + 1, fullgraph=True, dynamic=True, backend="aot_eager"
    )
    close(compiled(x), 2 * x + 1)


def lazy(n):
    @T.prim_func
    def main(X: T.Tensor((n,), "float32")):
        with T.Kernel(1):
            X[0] = 1.0

    return main


def increment(X):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    with T.Kernel(1):
        for i in T.Parallel(N):
            X[i] = X[i] + 1


def of_a_dtype(X, dtype=T.float32):
    X: T.Tensor((4,), dtype)
    with T.Kernel(1):
        X[0] = 1


def test_what_is_written_has_to_be_declared():
    x = torch.zeros(8)
    with pytest.raises(InvalidValue) as caught:
        tvmtile.torch_op(name_of("increment"), target="llvm")(increment)(x)
    assert caught.value.message == "increment writes X, which its operator does not declare"
    assert caught.value.help == "write @tvmtile.torch_op(..., mutates=['X'])"
    assert x.eq(0).all()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: tvmtile.torch_op(name_of("product"), mutates=["W"])(increment),
            InvalidValue,
            r"mutates=\['W'\] names 'W', which is no parameter",
        ),
        (
            lambda: tvmtile.torch_op(name_of("lazy"))(tvmtile.jit(lazy)),
            InvalidOperand,
            r"lazy is no kernel in the eager style(.|\n)*kernel\.as_torch_op\(name\)",
        ),
        (
            lambda: tvmtile.torch_op(name_of("of_a_dtype"))(of_a_dtype),
            InvalidValue,
            "torch's operators take numbers and strings",
        ),
        (
            lambda: tvmtile.torch_op("increment")(increment),
            InvalidValue,
            "'increment' is no name of a torch operator",
        ),
        (
            lambda: kernel_of_product().as_torch_op("product"),
            InvalidValue,
            "'product' is no name of a torch operator(.|\n)*\"my_library::matmul\"",
        ),
    ],
)
def test_what_makes_no_operator(make, error, message):
    with pytest.raises(error, match=message):
        make()
