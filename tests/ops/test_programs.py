"""The tile programs of `tvmtile.ops`: against torch in float64, and what they are lowered to."""

import itertools
import math
import re

import pytest
import torch
import torch.nn.functional as F

import tvmtile
import tvmtile.language as T
from tests.running import runnable
from tvmtile.errors import InvalidValue
from tvmtile.ops import configurations, programs
from tvmtile.ops.configurations import matmul_configuration

H200 = {"kind": "cuda", "arch": "sm_90a"}
EMULATED = [H200, {"kind": "cuda", "arch": "sm_80"}, "metal"]
TOLERANCE = {"float64": 1e-7, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
ACTIVATIONS = {
    None: lambda x: x,
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def random(*shape, dtype="float32"):
    return torch.randn(shape).to(getattr(torch, dtype))


def assert_near(result, expected):
    assert result.shape == expected.shape
    tolerance = TOLERANCE[str(result.dtype).removeprefix("torch.")]
    scale = expected.abs().max().item()
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=tolerance * scale)


def split(swapped, splits=3, **blocks):
    blocks = {"block_M": 16, "block_N": 32, "block_K": 16, **blocks}
    return {"configuration": {"splits": splits, "swapped": swapped, **blocks}}


LINEAR = {"transpose_B": True, "bias": True}
PRODUCTS = [
    ("llvm", "float32", {}),
    ("llvm", "float32", {**LINEAR, "activation": "gelu"}),
    ("llvm", "float16", {"transpose_B": True, "activation": "silu"}),
    ("llvm", "float16", {"bias": True, "activation": "gelu_tanh"}),
    ("llvm", "bfloat16", {**LINEAR, "activation": "relu"}),
    ("llvm", "bfloat16", {"batch": 3, "transpose_A": True, "out_dtype": "float32"}),
    ("llvm", "float32", {**LINEAR, "activation": "relu", **split(0, splits=1)}),
    ("llvm", "float32", {**LINEAR, "activation": "relu", **split(1, splits=1)}),
    ("llvm", "float16", {**LINEAR, "activation": "gelu", **split(0)}),
    ("llvm", "float16", {**LINEAR, "activation": "gelu", **split(1)}),
    ("llvm", "float16", split(0)),
    ("llvm", "float16", split(1)),
    # More parts than K has blocks.
    ("llvm", "float64", {"batch": 2, "transpose_A": True, **split(0, splits=7, block_N=16)}),
    *(
        pytest.param(target, "float16", options, marks=pytest.mark.nightly)
        for target in EMULATED
        for options in (
            {**LINEAR, "activation": "silu"},
            {"transpose_B": True, **split(1, block_M=32, block_N=64, block_K=32, stages=2)},
        )
    ),
]


@pytest.mark.full(but=1)
@pytest.mark.parametrize(("target", "dtype", "options"), PRODUCTS)
def test_matmul_of_every_number_of_rows_batches_and_k(target, dtype, options):
    batch, splits = options.get("batch"), options.get("configuration", {}).get("splits", 1)
    extents = T.dynamic("M"), 72, T.dynamic("K") if batch else 100
    dynamic = {"batch": T.dynamic("batch")} if batch else {}
    program = programs.matmul(*extents, dtype, target=target, **{**options, **dynamic})
    kernel, lead = runnable(program, target), (batch,) if batch else ()
    bias = [random(72, dtype=dtype)] if options.get("bias") else []
    for rows in (1, 37, 300) if target == "llvm" else (70,):
        a, b = random(*lead, rows, 100, dtype=dtype), random(*lead, 100, 72, dtype=dtype)
        expected = ACTIVATIONS[options.get("activation")](a.double() @ b.double() + sum(bias))
        results = []
        for _ in range(5 if splits > 1 else 1):  # the same in every run
            partial = torch.full((splits, *lead, rows, 72), torch.nan, dtype=torch.float64)
            partial = partial.to(torch.float64 if dtype == "float64" else torch.float32)
            results.append(random(*lead, rows, 72, dtype=options.get("out_dtype", dtype)))
            kernel(
                a.mT.contiguous() if options.get("transpose_A") else a,
                b.mT.contiguous() if options.get("transpose_B") else b,
                *bias, results[-1], *((partial,) if splits > 1 else ()),
            )  # fmt: skip
        assert_near(results[0], expected)
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


@pytest.mark.full
def test_a_large_product_goes_by_wgmma_and_tma_for_every_number_of_rows():
    program = programs.matmul(
        T.dynamic("M"), 4096, 4096, "float16", target=H200, **LINEAR, activation="gelu"
    )
    chosen = {c.operator: c.chosen for c in tvmtile.compile(program, target=H200).choices}
    assert (chosen["gemm"], chosen["tma_copy"], chosen["Pipelined"]) == (
        "wgmma",
        "tma",
        "two roles, persistent blocks",
    )


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("target", "dtype", "layout", "causal"),
    [
        ("llvm", "float32", "bhld", True),
        ("llvm", "float32", "blhd", True),
        ("llvm", "float32", "bhld", False),
        ("llvm", "float32", "blhd", False),
        *(
            pytest.param(target, "float16", "blhd", True, marks=pytest.mark.nightly)
            for target in EMULATED
        ),
    ],
)
def test_attention_for_every_length_with_shared_heads(target, dtype, layout, causal):
    batch, queries, keys = T.dynamic("batch, queries, keys")
    dim, value_dim = (32, 16) if target == "llvm" else (40, 20)  # GPUs multiply 48 and 32
    options = {"kv_heads": 2, "value_dim": value_dim, "causal": causal, "scale": 0.3}
    program = programs.attention(
        batch, 4, queries, dim, dtype, target=target, keys=keys, layout=layout, **options
    )
    kernel = runnable(program, target, out_idx=-1)
    lengths = ((1, 1), (65, 65), (30, 150), (150, 30)) if target == "llvm" else ((70, 70),)
    for length, seen in lengths:
        q, k, v = (
            random(2, heads, size, extent, dtype=dtype)
            for heads, size, extent in ((4, length, dim), (2, seen, dim), (2, seen, value_dim))
        )
        expected = F.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), is_causal=causal, scale=0.3, enable_gqa=True
        )
        swapped = layout == "blhd"
        result = kernel(*(x.transpose(1, 2).contiguous() if swapped else x for x in (q, k, v)))
        assert_near(result.transpose(1, 2) if swapped else result, expected)


@pytest.mark.full
@pytest.mark.parametrize("target", EMULATED, ids=str)
@pytest.mark.parametrize("layout", ["bhld", "blhd"])
def test_heads_of_any_length_are_multiplied_by_matrix_units(target, layout):
    """A multiple of 40 elements, as Stable Diffusion has them, is none of 16."""
    for dim, value_dim, dtype in ((40, 40, "float16"), (100, 20, "float32")):
        program = programs.attention(
            1, 2, 64, dim, dtype, target=target, value_dim=value_dim, layout=layout
        )
        kernel = tvmtile.compile(program, target=target, execution_backend="emulator")
        chosen = re.findall(r"gemm of \w+: (\w+)", str(kernel.choices))
        assert len(chosen) == 2
        assert set(chosen) <= {"mma", "wgmma", "simdgroup"}


@pytest.mark.full
@pytest.mark.parametrize(("arch", "dim"), [("sm_89", 192), ("sm_89", 256), ("sm_80", 256)])
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_attention_of_float32_has_shared_memory_for_all_stages(arch, dim, precision):
    target = {"kind": "cuda", "arch": arch}
    program = programs.attention(1, 2, 200, dim, "float32", target=target, precision=precision)
    chosen = str(tvmtile.compile(program, target=target).choices)  # without a warning
    assert chosen.count(": fma" if precision == "ieee" else ": mma") == 2


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
    largest = scores.amax(-1)
    sums = (scores.logsumexp(-1) - largest) * math.log2(math.e)
    lse = torch.stack([largest * math.sqrt(q.shape[-1]), sums], dim=1)
    return output.detach(), lse.detach(), found


@pytest.mark.full
@pytest.mark.parametrize(("causal", "layout"), [(False, "bhld"), (True, "bhld"), (True, "blhd")])
@pytest.mark.parametrize("target", ["llvm", pytest.param(H200, marks=pytest.mark.nightly)])
def test_gradients_of_attention_of_every_length(target, causal, layout):
    blocks = {"block_M": 64, "block_N": 32, "stages": 2, "threads": 128}
    sizes = T.dynamic("batch"), 4, T.dynamic("queries"), 32, "float16"
    options = {"target": target, "keys": T.dynamic("keys"), "kv_heads": 2, "causal": causal}
    options |= {"value_dim": 16, "configuration": blocks, "layout": layout}
    forward = runnable(programs.attention(*sizes, **options, lse=True), target)
    backward = runnable(programs.attention_backward(*sizes, **options), target)
    for length, seen in ((50, 75), (100, 33)) if target == "llvm" else ((50, 75),):
        q, k, v = (
            random(1, heads, size, dim, dtype="float16")
            for heads, size, dim in ((4, length, 32), (2, seen, 32), (2, seen, 16))
        )
        gradient = random(1, 4, length, 16, dtype="float16")
        output, lse, expected = gradients(q, k, v, gradient, causal)
        result, sums = torch.empty(1, 4, length, 16).half(), torch.empty(1, 2, 4, length)
        found = torch.empty_like(q), torch.empty(1, 4, seen, 32), torch.empty(1, 4, seen, 16)
        scratch = torch.full((1, 4, length), torch.nan), torch.full((1, 4, length, 32), torch.nan)
        swap = (lambda x: x.transpose(1, 2).contiguous()) if layout == "blhd" else lambda x: x
        *given, gradient, result = map(swap, (q, k, v, gradient, result))
        found = tuple(map(swap, found))
        forward(*given, result, sums)
        assert_near(swap(result), output)
        torch.testing.assert_close(sums.double(), lse, rtol=1e-3, atol=1e-3)
        backward(*given, result, gradient, sums, *scratch, *found)
        for ours, theirs in zip(found, expected, strict=True):
            assert_near(swap(ours).half(), theirs)


def rows_of(x, weight, bias, epsilon=1e-3):
    """For each program, its inputs, its results, and what its norms keep for their gradients."""
    wide, w, b = x.double(), weight.double(), bias.double()
    root = (wide.square().mean(-1) + epsilon).rsqrt()
    deviation = (wide.var(-1, correction=0) + epsilon).rsqrt()
    shape = wide.shape[1:]
    return {
        programs.softmax: ((x,), wide.softmax(-1), ()),
        programs.rms_norm: ((x, weight), F.rms_norm(wide, shape, w, epsilon), (root,)),
        programs.layer_norm: (
            (x, weight, bias),
            F.layer_norm(wide, shape, w, b, epsilon),
            (wide.mean(-1), deviation),
        ),
    }


@pytest.mark.full(but=3)
@pytest.mark.parametrize("program", [programs.softmax, programs.rms_norm, programs.layer_norm])
@pytest.mark.parametrize(
    ("target", "dtype", "options"),
    [
        ("llvm", "float32", {}),
        ("llvm", "float16", {}),
        # Of rows that a block holds whole, and of those that it visits in parts.
        *(
            (target, "float16", {"configuration": {"block_N": block_N}})
            for target in ("llvm", "metal", H200)
            for block_N in (0, 64)
        ),
        pytest.param(EMULATED[1], "float16", {}, marks=pytest.mark.nightly),
    ],
)
def test_rows_and_what_norms_keep_for_their_gradients(target, dtype, options, program):
    if program is not programs.softmax:
        options = {**options, "epsilon": 1e-3, "statistics": bool(options)}
    kernel = runnable(program(T.dynamic("M"), 130, dtype, target=target, **options), target)
    weight, bias = random(130, dtype=dtype), random(130, dtype=dtype)
    for rows in (1, 37) if target == "llvm" else (5,):
        inputs, expected, kept = rows_of(random(rows, 130, dtype=dtype), weight, bias)[program]
        kept = kept if options.get("statistics") else ()
        result, sums = torch.empty_like(inputs[0]), [torch.empty(rows) for _ in kept]
        kernel(*inputs, result, *sums)
        for ours, theirs in zip((result, *sums), (expected, *kept), strict=True):
            assert_near(ours, theirs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda of: of(kv_heads=3), "attention: 4 heads of q share 3 heads of k and v"),
        (lambda of: of(scale=-1.0), "attention: scale=-1.0"),
        (lambda of: of(layout="lbhd"), "attention: layout='lbhd'"),
        (
            lambda of: programs.attention_backward(1, 4, 16, 64, "float16", target="metal"),
            "nothing is known of float16 with 64 elements a head",
        ),
        (
            lambda of: programs.matmul(1, 1, 1, "float32", target="llvm", activation="swish"),
            r"activation='swish' is not known(.|\n)*'gelu', ",
        ),
    ],
)
def test_what_programs_do_not_take(make, message):
    with pytest.raises(InvalidValue, match=message):
        make(lambda **given: programs.attention(1, 4, 16, 32, "float32", target="llvm", **given))


@pytest.mark.parametrize("device", ["sm_80", "sm_89", "sm_90a", "sm_100a", "metal", "llvm"])
@pytest.mark.full(but=2)
def test_there_are_blocks_for_every_extent(device):
    target = {"kind": "cuda", "arch": device} if device.startswith("sm") else device
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        if (device, dtype) == ("metal", "float64"):
            continue
        for extents in itertools.product((1, 7, 16, 33), (1, 10, 16, 100), (1, 8, 64)):
            assert configurations.matmul_configuration(target, *extents, dtype)
        for queries, keys, dim in itertools.product(
            (1, 16, 100), (1, 8, 40), (8, 40, 96, 192, 256)
        ):
            sizes = target, queries, keys, dim, dtype
            assert configurations.attention_configuration(*sizes, causal=False, heads=4, batch=1)
            assert configurations.attention_configuration(*sizes, causal=True, heads=4, batch=1)
        for extents in itertools.product((1, 5, 1000), (1, 3, 40, 5000, 40000)):
            assert configurations.rows_configuration(target, *extents, dtype)
