"""Kernels in the eager style as operators of torch.library."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidOperand, InvalidValue

_COUNT = itertools.count()
ROWS = 16


def name_of(what: str) -> str:
    return f"tvmtile_torch_op::{what}_{next(_COUNT)}"


def gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
    x, y, _ = ctx.saved_tensors
    (scale,) = ctx.constants
    return gradient * y * scale, gradient * x * scale, None


@tvmtile.torch_op("tvmtile_torch_op::product", backward=gradients, target="llvm")
def product(X, Y, scale: float = 2.0):
    M, N = T.dynamic("M"), T.const("N")
    X: T.Tensor((M, N), "float32")
    Y: T.Tensor((M, N), "float32")
    Z = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(M, ROWS)) as block:
        for i, j in T.Parallel(ROWS, N):
            Z[block * ROWS + i, j] = X[block * ROWS + i, j] * Y[block * ROWS + i, j] * scale
    return Z


def operands(rows: int = 20, *, requires_grad: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return (
        torch.randn(rows, 8, requires_grad=requires_grad),
        torch.randn(rows, 8, requires_grad=requires_grad),
    )


def test_the_schema_follows_from_the_signature():
    assert str(product._opoverload._schema) == (
        "tvmtile_torch_op::product(Tensor X, Tensor Y, float scale=2.) -> Tensor"
    )
    x, y = operands()
    torch.testing.assert_close(product(x, y), 2 * x * y)
    torch.testing.assert_close(torch.ops.tvmtile_torch_op.product(x, y, scale=3.0), 3 * x * y)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_what_torch_checks_of_operators(requires_grad):
    torch.library.opcheck(product, operands(requires_grad=requires_grad))
    torch.library.opcheck(product, (*operands(requires_grad=requires_grad), 0.5))


def test_a_dynamic_extent_makes_one_graph_and_a_constant_extent_one_each():
    graphs = []

    def backend(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(
        lambda x, y: product(x, y) + 1, fullgraph=True, dynamic=True, backend=backend
    )
    for rows in (20, 33, 7):
        x, y = operands(rows)
        torch.testing.assert_close(compiled(x, y), 2 * x * y + 1)
    assert len(graphs) == 1
    x = torch.randn(5, 12)
    torch.testing.assert_close(compiled(x, x), 2 * x * x + 1)
    assert len(graphs) == 2


def test_gradients_in_a_compiled_graph():
    compiled = torch.compile(
        lambda x, y: product(x, y, 3.0), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    x, y = operands(requires_grad=True)
    weights = torch.randn(20, 8)
    (compiled(x, y) * weights).sum().backward()
    torch.testing.assert_close(x.grad, 3 * y.detach() * weights)
    torch.testing.assert_close(y.grad, 3 * x.detach() * weights)


def test_an_exported_module_runs_with_other_extents():
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.relu(product(x, y))

    rows = torch.export.Dim("rows", min=2, max=100)
    exported = torch.export.export(
        Module(), operands(), dynamic_shapes=({0: rows}, {0: rows}), strict=True
    )
    x, y = operands(33)
    torch.testing.assert_close(exported.module()(x, y), torch.relu(2 * x * y))


def test_vmap():
    x, y = torch.randn(3, 20, 8), torch.randn(20, 8)
    torch.testing.assert_close(torch.vmap(product, in_dims=(0, None))(x, y), 2 * x * y)


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
    total, largest = moments(x, count, 2)
    torch.testing.assert_close(total, x.sum(1))
    torch.testing.assert_close(largest, x.amax(1))
    assert count.item() == 15


def test_what_is_written_has_to_be_declared():
    @tvmtile.torch_op(name_of("increment"), target="llvm")
    def increment(X):
        N = T.const("N")
        X: T.Tensor((N,), "float32")
        with T.Kernel(1):
            for i in T.Parallel(N):
                X[i] = X[i] + 1

    x = torch.zeros(8)
    with pytest.raises(InvalidValue) as caught:
        increment(x)
    assert caught.value.message == "increment writes X, which its operator does not declare"
    assert caught.value.help == "write @tvmtile.torch_op(..., mutates=['X'])"
    assert x.eq(0).all()
    with pytest.raises(InvalidValue, match="mutates=\\['Y'\\] names 'Y', which is no parameter"):
        tvmtile.torch_op(name_of("increment"), mutates=["Y"])(plain)


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
    torch.testing.assert_close(copied(x, "float16", relu=True), x.relu())


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("target", "backend"),
    [("metal", "emulator"), ({"kind": "cuda", "arch": "sm_90a"}, "emulator")],
    ids=["metal", "cuda"],
)
def test_on_emulated_gpus(target, backend):
    @tvmtile.torch_op(name_of("double"), target=target, execution_backend=backend)
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
    torch.testing.assert_close(compiled(x), 2 * x + 1)


def test_what_is_no_kernel_in_the_eager_style():
    @tvmtile.jit
    def lazy(n):
        @T.prim_func
        def main(X: T.Tensor((n,), "float32")):
            with T.Kernel(1):
                X[0] = 1.0

        return main

    with pytest.raises(InvalidOperand) as caught:
        tvmtile.torch_op(name_of("lazy"))(lazy)
    assert caught.value.message == "lazy is no kernel in the eager style"
    assert "kernel.as_torch_op(name)" in caught.value.help


def test_a_constant_that_torch_does_not_take():
    def scaled(X, dtype=T.float32):
        N = T.const("N")
        X: T.Tensor((N,), dtype)
        with T.Kernel(1):
            X[0] = 1.0

    with pytest.raises(InvalidValue, match="torch's operators take numbers and strings"):
        tvmtile.torch_op(name_of("scaled"))(scaled)


def test_a_name_without_a_namespace():
    with pytest.raises(InvalidValue, match="is no name of a torch operator"):
        tvmtile.torch_op("scaled")(plain)


def plain(X):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    Y = T.empty((N,), "float32")
    with T.Kernel(1):
        for i in T.Parallel(N):
            Y[i] = X[i]
    return Y
