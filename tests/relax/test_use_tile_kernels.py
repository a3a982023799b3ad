"""UseTileKernels puts tile kernels in the place of operators of Relax, and leaves the others alone."""

from __future__ import annotations

import logging

import pytest
import torch
import tvm
import tvm_ffi
from torch import nn
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.target import Target
from tvm.tirx.script import builder as T

import tvmtile
from tvmtile.errors import InvalidValue, UnknownTarget
from tvmtile.relax import UseTileKernels

SM90A = {"kind": "cuda", "arch": "sm_90a"}


@I.ir_module
class Patterns:
    @R.function
    def products(
        x: R.Tensor(("n", 6, 32), "float32"),
        w: R.Tensor((16, 32), "float32"),
        v: R.Tensor((32, 16), "float32"),
        b: R.Tensor((16,), "float32"),
    ):
        n = T.int64()
        with R.dataflow():
            plain = R.matmul(x, v)
            weight = R.permute_dims(w)
            biased = R.add(b, R.matmul(x, weight))
            rows = R.matmul(R.reshape(x, (n * 6, 32)), weight)
            shaped = R.nn.gelu(R.reshape(R.add(rows, b), (n, 6, 16)))
            y = R.matmul(x, v)
            s = R.multiply(R.sigmoid(y), y)
            x16 = R.astype(x, "float16")
            half = R.astype(R.nn.relu(R.matmul(x16, R.astype(v, "float16"))), "float32")
            batched = R.matmul(x, R.permute_dims(x, axes=[0, 2, 1]))
            gram = R.matmul(R.permute_dims(w), w)
            R.output(plain, biased, shaped, s, half, batched, gram)
        return (plain, biased, shaped, s, half, batched, gram)

    @R.function
    def rows(
        x: R.Tensor(("n", 6, 32), "float32"),
        w: R.Tensor((32,), "float32"),
        b: R.Tensor((32,), "float32"),
    ):
        with R.dataflow():
            s = R.nn.softmax(x, axis=2)
            l = R.nn.layer_norm(x, w, b, axes=[-1], epsilon=1e-3)
            m = R.nn.rms_norm(x, w, axes=[-1], epsilon=1e-3)
            R.output(s, l, m)
        return (s, l, m)

    @R.function
    def attention(
        q: R.Tensor(("n", 6, 4, 16), "float32"),
        k: R.Tensor(("n", 9, 4, 16), "float32"),
        v: R.Tensor(("n", 9, 4, 8), "float32"),
        p: R.Tensor(("n", 3, 6, 16), "float32"),
    ):
        with R.dataflow():
            a = R.nn.attention(q, k, v, scale=T.float32(0.5), causal_mask="TopLeft")
            scores = R.matmul(p, R.permute_dims(p, axes=[0, 1, 3, 2]))
            scores = R.divide(scores, R.const(2.0, "float32"))
            b = R.matmul(R.nn.softmax(scores, axis=-1), p)
            R.output(a, b)
        return (a, b)


def chosen(module, target="llvm"):
    """The module with kernels, and what the report says, as `function: operator`."""
    use = UseTileKernels(target)
    rewritten = use(module)
    return rewritten, [f"{c.function}: {c.operator}" for c in use.choices if c.kernel]


def call(module, name, *tensors):
    machine = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
    results = machine[name](*map(tvm.runtime.from_dlpack, tensors))
    is_tensor = isinstance(results, tvm.runtime.Tensor)
    return [torch.from_dlpack(result) for result in ([results] if is_tensor else results)]


def operators(module):
    """The operators of Relax that are left in a module."""
    found = set()

    def note(expr):
        if isinstance(expr, tvm.ir.Call) and isinstance(expr.op, tvm.ir.Op):
            found.add(str(expr.op.name))

    for func in module.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, note)
    return found


def tensors_of(func, n):
    """Random tensors for a function's parameters."""
    shapes = (param.ty.shape.values for param in func.params)
    return [
        torch.randn([int(e) if isinstance(e, tvm.tirx.IntImm) else n for e in s]) for s in shapes
    ]


FOUND = {
    "products": "matmul; matmul, bias; matmul, bias, gelu; matmul, silu; matmul, relu; matmul; matmul",
    "rows": "softmax; layer_norm; rms_norm",
    "attention": "attention; attention",
}
ARRANGING = {"relax.call_tir", "relax.reshape", "relax.permute_dims", "relax.astype"}


def test_each_pattern_is_found():
    rewritten, found = chosen(Patterns)
    assert found == [
        f"{name}: {operator}" for name in FOUND for operator in FOUND[name].split("; ")
    ]
    assert operators(rewritten) <= ARRANGING
    assert "relax.matmul" in operators(Patterns)


@pytest.mark.full
@pytest.mark.parametrize("name", list(FOUND))
def test_numbers_on_a_cpu(name):
    torch.manual_seed(0)
    module = tvm.IRModule({name: Patterns[name]})
    tensors = tensors_of(Patterns[name], 3)
    results = call(chosen(module)[0], name, *tensors)
    expected = call(module, name, *tensors)
    for number, pair in enumerate(zip(results, expected, strict=True)):
        # Between the operators of the fifth product, TVM rounds to float16.
        tolerance = 3e-2 if (name, number) == ("products", 4) else 1e-4
        torch.testing.assert_close(*pair, rtol=tolerance, atol=tolerance)


@I.ir_module
class Others:
    @R.function
    def main(
        x: R.Tensor((2, 8, 32), "float32"),
        w: R.Tensor((32, 32), "float32"),
        i: R.Tensor((8, 8), "int8"),
        v: R.Tensor((32,), "float32"),
        c: R.Tensor((8, "m"), "float32"),
    ):
        with R.dataflow():
            whole = R.matmul(i, i, out_dtype="int32")
            vector = R.matmul(x, v)
            unknown = R.nn.softmax(c, axis=-1)
            across = R.nn.softmax(x, axis=1)
            y = R.matmul(x, w)
            twice = R.add(R.nn.relu(y), y)
            residual = R.add(R.matmul(x, w), x)
            R.output(whole, vector, unknown, across, twice, residual)
        return (whole, vector, unknown, across, twice, residual)

    @R.function
    def masks(
        q: R.Tensor((2, 6, 4, 16), "float32"),
        k: R.Tensor((2, 9, 4, 16), "float32"),
        bias: R.Tensor((2, 4, 6, 9), "float32"),
        p: R.Tensor((3, 6, 16), "float32"),
        mask: R.Tensor((6, 6), "float32"),
        few: R.Tensor((2, 9, 2, 16), "float32"),
    ):
        with R.dataflow():
            a = R.nn.attention(q, k, k, causal_mask="BottomRight")
            d = R.nn.attention(q, few, few)
            b = R.nn.attention(q, k, k, bias=bias)
            s = R.add(R.matmul(p, R.permute_dims(p, axes=[0, 2, 1])), mask)
            c = R.matmul(R.nn.softmax(s, axis=-1), p)
            R.output(a, b, c, d)
        return (a, b, c, d)

    @R.function
    def plain(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        with R.dataflow():
            y = R.add(x, x)
            R.output(y)
        return y


LEFT = """\
main: matmul left as it was: its tensors are of int8; kernels take float16, bfloat16, float32
main: matmul left as it was: an operand is no matrix, or has an unknown shape
main: nn.softmax left as it was: the length of its rows is m, which only a call knows
main: nn.softmax left as it was: its axes are [1]; kernels take the last one
main: matmul by matmul
main: matmul by matmul
masks: nn.attention left as it was: its mask is BottomRight, and there are other keys
masks: nn.attention left as it was: 4 heads of queries share 2 of keys
masks: nn.attention_bias left as it was: its scores have a bias
masks: matmul by matmul1
masks: softmax by softmax
masks: matmul by matmul2
"""


def test_what_is_left_alone(caplog):
    with caplog.at_level(logging.INFO, "tvmtile.relax"):
        use = UseTileKernels("llvm")
        rewritten = use(Others)
    assert "".join(f"{choice}\n" for choice in use.choices) == LEFT
    # What is used beside its epilogue, and what is added to a product that is no row, stays outside.
    kept = {"relax.matmul", "relax.nn.softmax", "relax.nn.relu", "relax.add"}
    assert kept <= operators(rewritten)
    assert [record.message for record in caplog.records] == [str(choice) for choice in use.choices]
    tvm.ir.assert_structural_equal(rewritten["plain"], Others["plain"])


def test_a_target_is_needed():
    with pytest.raises(InvalidValue, match="UseTileKernels: for which target") as caught:
        UseTileKernels()
    assert "`with target:`" in caught.value.help
    with Target("llvm"):
        assert UseTileKernels().target.kind.name == "llvm"
    with pytest.raises(UnknownTarget):
        UseTileKernels("vulkan")


# Models of torch ------------------------------------------------------------------------------------


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 48), nn.Linear(48, 16)

    def forward(self, x):
        return self.second(nn.functional.gelu(self.first(x)))


class Block(nn.Module):
    """A layer of a transformer: attention and an MLP, each behind a norm."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.RMSNorm(dim)])
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        batch, length, dim = x.shape
        heads = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, dim))
        return x + self.down(nn.functional.silu(self.up(self.norms[1](x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 32)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(32, 40, bias=False)

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)))


OF_A_BLOCK = [
    *("layer_norm", "matmul", "attention", "matmul, bias"),
    *("rms_norm", "matmul, bias, silu", "matmul, bias"),
]
MODELS = {
    "mlp": (MLP, lambda n: torch.randn(n, 32), ["matmul, bias, gelu", "matmul, bias"]),
    "block": (Block, lambda n: torch.randn(n, 8, 32), OF_A_BLOCK),
    "transformer": (
        Transformer,
        lambda n: torch.randint(0, 40, (n, 8)),
        [*OF_A_BLOCK, *OF_A_BLOCK, "matmul"],
    ),
}


@pytest.fixture(scope="module")
def model(request):
    """A model, its module of Relax for any batch, inputs, and what is found in it."""
    torch.manual_seed(0)
    make, inputs, found = MODELS[request.param]
    model = make().eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(model, (inputs(2),), dynamic_shapes=({0: batch},))
    module = from_exported_program(program, unwrap_unit_return_tuple=True)
    return model, module, inputs(5), found


def models(*nightly):
    marks = {name: pytest.mark.nightly if name in nightly else () for name in MODELS}
    cases = [pytest.param(name, marks=mark) for name, mark in marks.items()]
    return pytest.mark.parametrize("model", cases, indirect=True)


@pytest.mark.full
@models("transformer")
def test_a_model_of_torch_on_a_cpu(model):
    model, module, inputs, expected = model
    rewritten, found = chosen(module)
    assert found == [f"main: {operator}" for operator in expected]
    (result,) = call(rewritten, "main", inputs)
    torch.testing.assert_close(result, model(inputs), rtol=1e-4, atol=1e-4)


@relax.expr_functor.mutator
class Emulated(relax.PyExprMutator):
    """Has the programs of a module run by an emulator, from a machine of the CPU."""

    def __init__(self, module, target):
        super().__init__(module)
        self.module, self.target = module, target

    def visit_call_(self, call):
        if getattr(call.op, "name", "") != "relax.call_tir":
            return super().visit_call_(call)
        name = f"tests.relax.{self.target}.{call.args[0].name_hint}"
        program = self.module[call.args[0]].with_attr("global_symbol", "main")
        kernel = tvmtile.compile(program, target=self.target, execution_backend="emulator")

        def run(*tensors):
            kernel(*map(torch.from_dlpack, tensors))

        tvm_ffi.register_global_func(name, run, override=True)
        arguments = self.visit_expr(call.args[1])
        return relax.call_dps_packed(name, arguments, call.ty)


def emulated(module, target):
    """The module, its programs run by an emulator."""
    rewriter = Emulated(module, target)
    for name, func in module.functions.items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(name, rewriter.visit_expr(func))
    return relax.transform.DeadCodeElimination(["main"])(rewriter.builder_.get())


@pytest.mark.full
@pytest.mark.parametrize("target", [SM90A, "metal"], ids=["sm_90a", "metal"])
@models("block", "transformer")
def test_a_model_of_torch_on_the_emulators(model, target):
    model, module, inputs, _ = model
    rewritten, _ = chosen(module, target)
    (result,) = call(emulated(rewritten, target), "main", inputs)
    # Products of float32 are of TF32 where there are tensor cores.
    torch.testing.assert_close(result, model(inputs), rtol=2e-2, atol=2e-2)
    tvm.compile(rewritten, Target(target))
