"""Kernels as operators of torch.library."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import ArgumentError, InvalidValue

_COUNT = itertools.count()
BLOCK = 16


def name_of(what: str) -> str:
    return f"tvmtile_tests::{what}_{next(_COUNT)}"


def matmul_program() -> Any:
    rows = T.dynamic("rows")

    @T.prim_func
    def matmul(
        A: T.Tensor((rows, 32), "float32"),
        B: T.Tensor((32, 48), "float32"),
        C: T.Tensor((rows, 48), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, BLOCK)) as block:
            a = T.alloc_shared((BLOCK, 32), "float32")
            b = T.alloc_shared((32, 48), "float32")
            c = T.alloc_fragment((BLOCK, 48), "float32")
            T.copy(A[block * BLOCK, 0], a)
            T.copy(B, b)
            T.clear(c)
            T.gemm(a, b, c)
            T.copy(c, C[block * BLOCK, 0])

    return matmul


def gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b, _ = ctx.saved_tensors
    return gradient @ b.T, a.T @ gradient


@pytest.fixture(scope="module")
def matmul() -> Any:
    kernel = tvmtile.compile(matmul_program(), out_idx=-1, target="llvm")
    return kernel.as_torch_op(name_of("matmul"), backward=gradients)


def operands(rows: int = 20, *, requires_grad: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return (
        torch.randn(rows, 32, requires_grad=requires_grad),
        torch.randn(32, 48, requires_grad=requires_grad),
    )


def close(result: Any, expected: Any) -> None:
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_the_schema_follows_from_the_program(matmul):
    assert str(matmul._opoverload._schema).endswith("(Tensor A, Tensor B) -> Tensor")
    a, b = operands()
    close(matmul(a, b), a @ b)


@pytest.mark.full
def test_what_torch_checks_of_operators(matmul):
    torch.library.opcheck(matmul, operands())
    torch.library.opcheck(matmul, operands(requires_grad=True))


def test_gradients(matmul):
    a, b = operands(requires_grad=True)
    weights = torch.randn(20, 48)
    (matmul(a, b) * weights).sum().backward()
    close(a.grad, weights @ b.detach().T)
    close(b.grad, a.detach().T @ weights)


def test_without_a_backward_a_gradient_is_an_error():
    kernel = tvmtile.compile(matmul_program(), out_idx=-1, target="llvm")
    operator = kernel.as_torch_op(name_of("matmul"))
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        operator(*operands(requires_grad=True)).sum().backward()


class Layer(torch.nn.Module):
    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.operator = operator
        self.weight = torch.nn.Parameter(operands()[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.operator(x * 2, self.weight))


def test_compiled_as_one_graph_forward_and_backward(matmul):
    layer, (x, _) = Layer(matmul), operands()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (20, 33):
        x = operands(rows)[0].requires_grad_()
        other = x.detach().clone().requires_grad_()
        result, expected = compiled(x), torch.relu(other * 2 @ layer.weight)
        close(result, expected)
        layer.weight.grad = None
        result.sum().backward()
        found = layer.weight.grad
        layer.weight.grad = None
        expected.sum().backward()
        close(x.grad, other.grad)
        close(found, layer.weight.grad)


@pytest.mark.nightly  # it builds a C++ program
def test_compiled_by_inductor(matmul):
    layer, (x, _) = Layer(matmul), operands()
    with torch.no_grad():
        close(torch.compile(layer, fullgraph=True)(x), torch.relu(x * 2 @ layer.weight))


def exported(matmul: Any) -> tuple[Layer, Any]:
    layer = Layer(matmul)
    rows = torch.export.Dim("rows", min=2, max=256)
    return layer, torch.export.export(layer, (operands()[0],), dynamic_shapes=({0: rows},))


def test_exported_with_a_dynamic_extent(matmul):
    layer, program = exported(matmul)
    x, _ = operands(37)
    close(program.module()(x), torch.relu(x * 2 @ layer.weight))


@pytest.mark.nightly  # it builds a C++ program
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch's own
def test_a_package_of_aotinductor(matmul, tmp_path):
    layer, program = exported(matmul)
    path = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "layer.pt2")
    )
    x, _ = operands(37)
    close(torch._inductor.aoti_load_package(path)(x), torch.relu(x * 2 @ layer.weight))


def test_vmap_calls_one_after_the_other(matmul):
    batches, (_, b) = torch.randn(20, 3, 32), operands()
    result = torch.vmap(matmul, in_dims=(1, None))(batches, b)
    close(result, torch.einsum("rbk,kn->brn", batches, b))


def test_vmap_writes_each_element():
    operator = tvmtile.compile(scale, target="llvm").as_torch_op(name_of("scale"))
    x = torch.randn(64, 3)
    expected = x * 2 + 3
    torch.vmap(lambda each: operator(each, 2.0, 3), in_dims=1, out_dims=None)(x)
    close(x, expected)


@T.prim_func
def scale(X: T.Tensor((64,), "float32"), factor: T.float32, shift: T.int32):
    with T.Kernel(1):
        for i in T.Parallel(64):
            X[i] = X[i] * factor + T.cast(shift, "float32")


def test_written_arguments_are_declared():
    operator = tvmtile.compile(scale, target="llvm").as_torch_op(name_of("scale"))
    schema = str(operator._opoverload._schema)
    assert schema.endswith("(Tensor(a0!) X, float factor, SymInt shift) -> ()")
    torch.library.opcheck(operator, (torch.randn(64), 2.0, 3))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def model(x: torch.Tensor) -> torch.Tensor:
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


def test_a_trace_sees_what_does_not_fit(matmul):
    wrong = torch.empty(20, 32, dtype=torch.float16, device="meta")
    with pytest.raises(ArgumentError, match="A is of dtype torch.float32 and has 2 dimensions"):
        matmul(wrong, torch.empty(32, 48, device="meta"))


def test_a_name_without_a_namespace():
    kernel = tvmtile.compile(scale, target="llvm")
    with pytest.raises(InvalidValue, match="'scale' is no name of a torch operator") as caught:
        kernel.as_torch_op("scale")
    assert '"my_library::matmul"' in str(caught.value)
