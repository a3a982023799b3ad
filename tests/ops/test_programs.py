"""The tile programs of `tvmtile.ops`: against float64, and what they are lowered to."""

import pytest
import torch
import torch.nn.functional as F

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidValue
from tvmtile.ops import programs

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
    backend = "auto" if target == "llvm" else "emulator"
    return tvmtile.compile(program, out_idx=-1, target=target, execution_backend=backend)


def random(*shape, dtype="float32"):
    return torch.randn(shape).to(getattr(torch, dtype))


def assert_near(result, expected):
    assert result.shape == expected.shape
    tolerance = TOLERANCE[str(result.dtype).removeprefix("torch.")]
    scale = expected.abs().max().item()
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=tolerance * scale)


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


def test_a_large_product_goes_by_wgmma_and_tma_for_every_number_of_rows():
    program = programs.matmul(
        T.dynamic("M"), 4096, 4096, "float16",
        target=H200, transpose_B=True, bias=True, activation="gelu",
    )  # fmt: skip
    chosen = {c.operator: c.chosen for c in tvmtile.compile(program, target=H200).choices}
    assert (chosen["gemm"], chosen["tma_copy"], chosen["Pipelined"]) == (
        "wgmma",
        "tma",
        "two roles",
    )


@pytest.mark.slow
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
