"""The tile programs of `tvmtile.ops`: against float64, and what they are lowered to."""

import math

import pytest
import torch
import torch.nn.functional as F

import tvmtile
import tvmtile.language as T
from tests.metal.programs import runnable
from tvmtile.errors import InvalidValue
from tvmtile.ops import programs
from tvmtile.ops.configurations import matmul_configuration

H200 = {"kind": "cuda", "arch": "sm_90a"}
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
ACTIVATIONS = {
    None: lambda x: x,
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def compiled(program, target="llvm"):
    return runnable(program, target, out_idx=-1)


def random(*shape, dtype="float32"):
    return torch.randn(shape).to(getattr(torch, dtype))


def assert_near(result, expected):
    assert result.shape == expected.shape
    tolerance = TOLERANCE[str(result.dtype).removeprefix("torch.")]
    scale = expected.abs().max().item()
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=tolerance * scale)


@pytest.mark.full
@pytest.mark.parametrize(
    ("dtype", "transpose_B", "bias", "activation"),
    [
        ("float32", False, False, None),
        ("float32", True, True, "gelu"),
        ("float16", True, False, "silu"),
        ("float16", False, True, "gelu_tanh"),
        ("bfloat16", True, True, "relu"),
    ],
)
def test_matmul_is_one_kernel_for_every_number_of_rows(dtype, transpose_B, bias, activation):
    program = programs.matmul(
        T.dynamic("M"), 72, 40, dtype,
        target="llvm", transpose_B=transpose_B, bias=bias, activation=activation,
    )  # fmt: skip
    kernel = compiled(program)
    b = random(40, 72, dtype=dtype)
    added = [random(72, dtype=dtype)] if bias else []
    for rows in (1, 33, 300):
        a = random(rows, 40, dtype=dtype)
        expected = a.double() @ b.double() + (added[0].double() if bias else 0)
        result = kernel(a, b.T.contiguous() if transpose_B else b, *added)
        assert_near(result, ACTIVATIONS[activation](expected))


@pytest.mark.full
def test_matmul_of_batches_with_a_transposed_and_another_dtype_of_the_result():
    batch, K = T.dynamic("batch, K")
    program = programs.matmul(
        20, 30, K, "bfloat16",
        target="llvm", batch=batch, transpose_A=True, out_dtype="float32",
    )  # fmt: skip
    a, b = random(3, 50, 20, dtype="bfloat16"), random(3, 50, 30, dtype="bfloat16")
    result = compiled(program)(a, b)
    assert result.dtype == torch.float32
    assert_near(result, a.double().mT @ b.double())


@pytest.mark.full
@pytest.mark.parametrize("swapped", [0, 1])
@pytest.mark.parametrize(
    ("transpose_B", "bias", "activation"), [(True, True, "gelu"), (False, False, None)]
)
def test_matmul_with_k_in_parts_is_the_same_in_every_run(swapped, transpose_B, bias, activation):
    program = programs.matmul(
        T.dynamic("M"), 72, 100, "float16",
        target="llvm", transpose_B=transpose_B, bias=bias, activation=activation,
        configuration={"splits": 3, "swapped": swapped, "block_M": 16, "block_N": 32, "block_K": 16},
    )  # fmt: skip
    kernel = tvmtile.compile(program, target="llvm")
    b, added = random(100, 72, dtype="float16"), [random(72, dtype="float16")] if bias else []
    for rows in (1, 37):
        a = random(rows, 100, dtype="float16")
        results = [torch.empty(rows, 72).half() for _ in range(5)]
        for result in results:
            partial = torch.full((3, rows, 72), torch.nan)
            kernel(a, b.T.contiguous() if transpose_B else b, *added, result, partial)
        expected = a.double() @ b.double() + (added[0].double() if bias else 0)
        assert_near(results[0], ACTIVATIONS[activation](expected))
        assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize(
    ("shape", "batch", "splits"),
    [
        ((256, 2048, 8192), None, 4),  # 32 tiles of 128 x 128 for 132 multiprocessors
        ((256, 2048, 8192), 2, 2),
        ((256, 4096, 4096), None, 2),
        ((512, 4096, 4096), None, 1),
        ((16, 1024, 4096), None, 8),
        ((16, 1024, 2048), None, 4),  # parts of 512 at least
        ((256, 2048, 1024), None, 1),
    ],
)
def test_k_is_split_where_all_blocks_run_at_once(shape, batch, splits):
    chosen = matmul_configuration(H200, *shape, "bfloat16", batch, may_split=True)
    assert chosen["splits"] == splits
    assert matmul_configuration(H200, *shape, "bfloat16", batch)["splits"] == 1


def test_matmul_of_batches_with_more_parts_than_k_has_blocks():
    program = programs.matmul(
        20, 30, 40, "float64", target="llvm", batch=2, transpose_A=True,
        configuration={"splits": 4, "block_M": 16, "block_N": 16, "block_K": 16},
    )  # fmt: skip
    a, b = torch.randn(2, 40, 20).double(), torch.randn(2, 40, 30).double()
    result, partial = (
        torch.empty(2, 20, 30).double(),
        torch.full((4, 2, 20, 30), torch.nan).double(),
    )
    tvmtile.compile(program, target="llvm")(a, b, result, partial)
    torch.testing.assert_close(result, a.mT @ b)


@pytest.mark.full
@pytest.mark.parametrize("swapped", [0, 1])
def test_a_block_of_swapped_operands_computes_the_transposed_tile(swapped):
    program = programs.matmul(
        33, 72, 100, "float32", target="llvm", transpose_B=True, bias=True, activation="relu",
        configuration={"swapped": swapped, "block_M": 16, "block_N": 32, "block_K": 16},
    )  # fmt: skip
    a, b, bias = random(33, 100), random(72, 100), random(72)
    expected = F.relu(F.linear(a.double(), b.double(), bias.double()))
    assert_near(compiled(program)(a, b, bias), expected)


@pytest.mark.full
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layout", ["bhld", "blhd"])
def test_attention_for_every_length_with_shared_heads(layout, causal):
    batch, queries, keys = T.dynamic("batch, queries, keys")
    program = programs.attention(
        batch, 4, queries, 32, "float32",
        target="llvm", keys=keys, kv_heads=2, value_dim=16, causal=causal, scale=0.3, layout=layout,
    )  # fmt: skip
    kernel = compiled(program)
    for length, seen in ((1, 1), (65, 65), (30, 150), (150, 30)):
        q, k, v = random(2, 4, length, 32), random(2, 2, seen, 32), random(2, 2, seen, 16)
        expected = F.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), is_causal=causal, scale=0.3, enable_gqa=True
        )
        swapped = layout == "blhd"
        given = [x.transpose(1, 2).contiguous() if swapped else x for x in (q, k, v)]
        result = kernel(*given)
        assert_near(result.transpose(1, 2) if swapped else result, expected)


def gradients(q, k, v, gradient, causal):
    """Of attention, in float64, those of k and v for each head of q; with the result and its sums."""
    group = q.shape[1] // k.shape[1]
    leaves = [q, *(x.repeat_interleave(group, dim=1) for x in (k, v))]
    leaves = [x.double().requires_grad_() for x in leaves]
    scores = leaves[0] @ leaves[1].mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).bool().tril(), -torch.inf)
    output = scores.softmax(-1) @ leaves[2]
    found = torch.autograd.grad(output, leaves, gradient.double())
    lse = scores.logsumexp(-1) * math.log2(math.e)
    return output.detach(), lse.detach(), found


@pytest.mark.full
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "target", ["llvm", pytest.param({"kind": "cuda", "arch": "sm_90a"}, marks=pytest.mark.nightly)]
)
def test_gradients_of_attention_of_every_length(target, causal):
    blocks = {"block_M": 64, "block_N": 32, "stages": 2, "threads": 128}
    sizes = T.dynamic("batch"), 4, T.dynamic("queries"), 32, "float16"
    options = {"target": target, "keys": T.dynamic("keys"), "kv_heads": 2, "causal": causal}
    forward, backward = (
        runnable(make(*sizes, **options, value_dim=16, configuration=blocks, **more), target)
        for make, more in ((programs.attention, {"lse": True}), (programs.attention_backward, {}))
    )
    for length, seen in ((50, 75), (100, 33)) if target == "llvm" else ((50, 75),):
        q, k, v = (
            random(1, heads, size, dim, dtype="float16")
            for heads, size, dim in ((4, length, 32), (2, seen, 32), (2, seen, 16))
        )
        gradient = random(1, 4, length, 16, dtype="float16")
        output, lse, expected = gradients(q, k, v, gradient, causal)
        result, sums = torch.empty(1, 4, length, 16).half(), torch.empty(1, 4, length)
        forward(q, k, v, result, sums)
        assert_near(result, output)
        torch.testing.assert_close(sums.double(), lse, rtol=1e-3, atol=1e-3)
        found = torch.empty_like(q), torch.empty(1, 4, seen, 32), torch.empty(1, 4, seen, 16)
        scratch = torch.full_like(sums, torch.nan), torch.full((1, 4, length, 32), torch.nan)
        backward(q, k, v, result, gradient, sums, *scratch, *found)
        for ours, theirs in zip(found, expected, strict=True):
            assert_near(ours.half(), theirs)


def test_gradients_of_attention_where_no_blocks_are_known():
    with pytest.raises(InvalidValue, match="nothing is known of float16 with 64 elements a head"):
        programs.attention_backward(1, 4, 16, 64, "float16", target="metal")


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows(dtype):
    M = T.dynamic("M")
    options = {"target": "llvm"}
    softmax = compiled(programs.softmax(M, 130, dtype, **options))
    rms_norm = compiled(programs.rms_norm(M, 130, dtype, epsilon=1e-3, **options))
    layer_norm = compiled(programs.layer_norm(M, 130, dtype, epsilon=1e-3, **options))
    weight, bias = random(130, dtype=dtype), random(130, dtype=dtype)
    for rows in (1, 37):
        x = random(rows, 130, dtype=dtype)
        wide, w, b = x.double(), weight.double(), bias.double()
        assert_near(softmax(x), wide.softmax(-1))
        assert_near(rms_norm(x, weight), F.rms_norm(wide, (130,), w, 1e-3))
        assert_near(layer_norm(x, weight, bias), F.layer_norm(wide, (130,), w, b, 1e-3))


@pytest.mark.full
@pytest.mark.parametrize("target", ["llvm", "metal", H200])
@pytest.mark.parametrize("block_N", [0, 64])
def test_what_norms_keep_for_their_gradients(target, block_N):
    """Of rows that a block holds whole, and of those that it visits in parts."""
    N, dtype = 130, "float16"
    options = {"target": target, "epsilon": 1e-3, "statistics": True}
    blocks = {"configuration": {"block_N": block_N}}
    rms_norm, layer_norm = (
        runnable(program(5, N, dtype, **options, **blocks), target)
        for program in (programs.rms_norm, programs.layer_norm)
    )
    x, weight, bias = (random(*shape, dtype=dtype) for shape in ((5, N), (N,), (N,)))
    y, mean, factor = torch.empty_like(x), torch.empty(5), torch.empty(5)
    wide = x.double()
    rms_norm(x, weight, y, factor)
    assert_near(y, F.rms_norm(wide, (N,), weight.double(), 1e-3))
    assert_near(factor, (wide.square().mean(-1) + 1e-3).rsqrt())
    layer_norm(x, weight, bias, y, mean, factor)
    assert_near(y, F.layer_norm(wide, (N,), weight.double(), bias.double(), 1e-3))
    assert_near(mean, wide.mean(-1))
    assert_near(factor, (wide.var(-1, correction=0) + 1e-3).rsqrt())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kv_heads": 3}, "attention: 4 heads of q share 3 heads of k and v"),
        ({"scale": -1.0}, "attention: scale=-1.0"),
        ({"layout": "lbhd"}, "attention: layout='lbhd'"),
    ],
)
def test_attention_says_what_it_does_not_take(arguments, message):
    with pytest.raises(InvalidValue, match=message):
        programs.attention(1, 4, 16, 32, "float32", target="llvm", **arguments)


def test_an_unknown_activation_is_an_error_that_lists_the_known_ones():
    with pytest.raises(InvalidValue, match=r"activation='swish' is not known(.|\n)*'gelu', "):
        programs.matmul(16, 16, 16, "float32", target="llvm", activation="swish")


@pytest.mark.full
def test_a_large_product_goes_by_wgmma_and_tma_for_every_number_of_rows():
    program = programs.matmul(
        T.dynamic("M"), 4096, 4096, "float16",
        target=H200, transpose_B=True, bias=True, activation="gelu",
    )  # fmt: skip
    chosen = {c.operator: c.chosen for c in tvmtile.compile(program, target=H200).choices}
    assert (chosen["gemm"], chosen["tma_copy"], chosen["Pipelined"]) == (
        "wgmma",
        "tma",
        "two roles, persistent blocks",
    )


@pytest.mark.nightly
@pytest.mark.parametrize("target", [H200, {"kind": "cuda", "arch": "sm_80"}, "metal"])
def test_programs_on_the_emulators(target):
    matmul = programs.matmul(
        T.dynamic("M"),
        72,
        40,
        "float16",
        target=target,
        transpose_B=True,
        bias=True,
        activation="silu",
    )
    a, b, bias = random(70, 40, dtype="float16"), random(72, 40, dtype="float16"), random(72).half()
    expected = F.silu(F.linear(a.double(), b.double(), bias.double()))
    assert_near(compiled(matmul, target)(a, b, bias), expected)
    split = programs.matmul(
        T.dynamic("M"), 72, 200, "float16", target=target, transpose_B=True,
        configuration={
            "block_M": 32, "block_N": 64, "block_K": 32, "stages": 2, "splits": 3, "swapped": 1
        },
    )  # fmt: skip
    a, b = random(20, 200, dtype="float16"), random(72, 200, dtype="float16")
    result, partial = torch.empty(20, 72).half(), torch.full((3, 20, 72), torch.nan)
    tvmtile.compile(split, target=target, execution_backend="emulator")(a, b, result, partial)
    assert_near(result, a.double() @ b.double().T)
    attention = programs.attention(
        1, 2, T.dynamic("L"), 32, "float16", target=target, kv_heads=1, causal=True, layout="blhd"
    )
    q, k, v = (random(1, 70, heads, 32, dtype="float16") for heads in (2, 1, 1))
    expected = F.scaled_dot_product_attention(
        *(x.double().transpose(1, 2) for x in (q, k, v)), is_causal=True, enable_gqa=True
    )
    assert_near(compiled(attention, target)(q, k, v).transpose(1, 2), expected)
    x, weight = random(5, 100, dtype="float16"), random(100, dtype="float16")
    for options in ({}, {"configuration": {"block_N": 48}}):
        norm = programs.layer_norm(5, 100, "float16", target=target, **options)
        result = compiled(norm, target)(x, weight, weight)
        expected = F.layer_norm(x.double(), (100,), weight.double(), weight.double())
        assert_near(result, expected)
