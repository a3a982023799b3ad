"""`tvmtile.torch.replace`: what it replaces, that it computes the same, and what it leaves."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tvmtile.torch
from benchmarks.llama import Llama


def small(**extents):
    torch.manual_seed(0)
    return Llama(vocabulary=96, width=64, heads=4, kv_heads=2, hidden=96, layers=1, **extents)


def assert_trains_alike(model, reference, *inputs):
    for each in (model, reference):
        each.zero_grad()
        each(*inputs).square().mean().backward()
    torch.testing.assert_close(model(*inputs), reference(*inputs), rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        if theirs.grad is None:
            assert ours.grad is None
            continue
        tolerance = 1e-4 * theirs.grad.abs().max().item()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=tolerance)


@pytest.mark.nightly
def test_a_model_like_llama_runs_and_trains_by_kernels_until_they_are_taken_back():
    model = small()
    reference, keys = copy.deepcopy(model), list(model.state_dict())
    report = tvmtile.torch.replace(model, torch.randint(96, (2, 24)), at_least=0)
    assert not report.left
    operators = {entry.name: entry.operator for entry in report.replaced}
    assert operators["blocks.0.gate.0"] == "matmul + silu"
    assert operators["blocks.0.attention"] == "attention"
    assert operators["norm"] == "rms_norm"
    assert all(entry.speed > 0 for entry in report.replaced)
    assert "12 of 12 replaced" in str(report)
    for shape in ((2, 24), (3, 17)):
        assert_trains_alike(model, reference, torch.randint(96, shape))
    assert list(model.state_dict()) == keys
    tokens = torch.randint(96, (2, 24))
    assert torch.equal(copy.deepcopy(model)(tokens), model(tokens))
    report.restore()
    assert torch.equal(model(tokens), reference(tokens))


class Mixed(nn.Module):
    """Modules that are replaced beside others that are not."""

    def __init__(self):
        super().__init__()
        self.shared = nn.GELU()
        self.first = nn.Sequential(nn.Linear(16, 16), self.shared)
        self.second = nn.Sequential(nn.Linear(16, 16), self.shared)
        self.norm = OwnRMSNorm(16)
        self.shifted = ShiftedRMSNorm(16)
        self.unused = nn.Linear(16, 16)
        self.layer = nn.LayerNorm(16)

    def forward(self, x):
        x = self.layer(self.second(self.first(x)))
        weights = F.softmax(self.shifted(self.norm(x)), dim=-1)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        x = x[:, None]
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)[:, 0] * weights


class OwnRMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.randn(width)), 1e-5

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, True) + self.variance_epsilon)


class ShiftedRMSNorm(OwnRMSNorm):
    def forward(self, x):
        return super().forward(x) + x


@pytest.mark.full
def test_what_is_something_else_is_left_with_the_reason():
    torch.manual_seed(0)
    model, x = Mixed(), torch.randn(2, 8, 16)
    reference = copy.deepcopy(model)
    report = tvmtile.torch.replace(model, x, at_least=0)
    left = {(entry.name, entry.operator): entry.reason for entry in report.left}
    assert left["unused", "matmul"] == "the sample does not call it"
    assert left["shifted", "rms_norm"].startswith("it differs by ")
    assert left["", "attention"] == "it is given a mask"
    replaced = {(entry.name, entry.operator) for entry in report.replaced}
    assert replaced == {
        *(("first.0", "matmul"), ("second.0", "matmul")),
        *(("norm", "rms_norm"), ("layer", "layer_norm"), ("", "softmax")),
    }
    assert_trains_alike(model, reference, x)
    again = tvmtile.torch.replace(model, x, at_least=0)
    assert {e.reason for e in again.left if e.name == "norm"} == {
        "its forward has been replaced before"
    }
    report.restore()
    assert torch.equal(model(x), reference(x))


class LiteralRMSNorm(OwnRMSNorm):
    def __init__(self, width):
        super().__init__(width)
        del self.variance_epsilon

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, True) + 1e-5)


class LayerNormByHand(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) + 1


class ScaledLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


@pytest.mark.parametrize(
    ("module", "operator", "reason"),
    [
        (
            LiteralRMSNorm(4),
            "rms_norm",
            "it has no number eps, variance_epsilon or epsilon",
        ),
        (
            type("PlainRMSNorm", (nn.Identity,), {})(),
            "rms_norm",
            "it has no `weight` of one axis",
        ),
        (LayerNormByHand(4), "layer_norm", "its class has a forward of its own"),
        (ScaledLinear(4, 4), "matmul", "its class has a forward of its own"),
        (nn.LayerNorm((4, 4)), "layer_norm", "it is over several axes"),
        (nn.RMSNorm((4, 4)), "rms_norm", "it is over several axes"),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, nn.Module) else "",
)
def test_what_looks_like_an_operator_has_a_line(module, operator, reason):
    report = tvmtile.torch.replace(module, torch.ones(4, 4), at_least=0)
    assert [(entry.operator, entry.reason) for entry in report.left] == [(operator, reason)]


class Attention(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.full
def test_later_calls_that_broadcast_are_torchs():
    model, q = Attention(), torch.randn(2, 3, 8, 16)
    (entry,) = tvmtile.torch.replace(model, q, q, q, at_least=0).replaced
    assert entry.operator == "attention"
    for k, v in ((q[:1], q[:1]), (q, q[:, :1]), (q[0], q[0])):
        expected = F.scaled_dot_product_attention(q, k, v)
        torch.testing.assert_close(model(q, k, v), expected, rtol=1e-4, atol=1e-4)


def test_what_is_slower_than_asked_for_is_left():
    model = nn.Sequential(nn.Linear(16, 16))
    report = tvmtile.torch.replace(model, torch.randn(4, 16), at_least=1e9)
    (entry,) = report.left
    assert entry.reason == f"{entry.speed:.2f} of torch's speed, less than 1e+09"
    assert "forward" not in model[0].__dict__
    # By itself, what is kept is no slower.
    for each in tvmtile.torch.replace(model, torch.randn(4, 16)).entries:
        assert bool(each.reason) == (each.speed < 1)


@pytest.mark.parametrize("training", [True, False])
def test_training_is_measured_with_its_backward(training, monkeypatch):
    calls = []
    backward = torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *a, **k: calls.append(1) or backward(*a, **k)
    )
    model = nn.Sequential(nn.Linear(16, 16)).train(training)
    tvmtile.torch.replace(model, torch.randn(4, 16))
    verified = 2
    assert (len(calls) > verified) == training


@pytest.mark.nightly
def test_a_replaced_model_is_compiled_whole():
    model, tokens = small(), torch.randint(96, (2, 24))
    expected = model(tokens)
    tvmtile.torch.replace(model, tokens, at_least=0)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens), expected, rtol=1e-4, atol=1e-4)
    compiled(tokens).sum().backward()
