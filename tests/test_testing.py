"""Helpers for tests of kernels."""

from __future__ import annotations

import pytest
import torch

from tvmtile.testing import set_random_seed, torch_assert_close

A = torch.arange(1000.0)
B = torch.where(A == 7, 12.0, A)
NAN = torch.tensor([float("nan"), 1.0])
ZEROS = torch.zeros(3)
FLOAT8 = torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        (A, B, {"max_mismatched_ratio": 0.001}, None),
        (
            A,
            B,
            {"max_mismatched_ratio": 0},
            r"differ in 1 of 1000 .* first at \[7\]: 7.0 and 12.0",
        ),
        (NAN, NAN.clone(), {}, None),
        (NAN, NAN.clone(), {"equal_nan": False}, "differ in 1 of 2"),
        (ZEROS, torch.zeros(4), {}, r"\[3\].*\[4\]"),
        (ZEROS, ZEROS.half(), {}, "float32 and float16"),
        (ZEROS, ZEROS.half(), {"check_dtype": False}, None),
        (FLOAT8, FLOAT8.clone(), {}, None),
    ],
)
def test_tensors_are_compared(a, b, options, message):
    if message is None:
        assert torch_assert_close(a, b, **options)
    else:
        with pytest.raises(AssertionError, match=message):
            torch_assert_close(a, b, **options)


def test_the_seed_fixes_random_tensors():
    set_random_seed(3)
    a = torch.randn(4)
    set_random_seed(3)
    assert torch.equal(a, torch.randn(4))


@pytest.mark.parametrize("mode", ["ge", "gt", "eq", "le", "lt"])
def test_tests_for_some_gpus_are_skipped_elsewhere(mode, monkeypatch):
    from tvmtile import testing

    capabilities = [(8, 0), (9, 0), (10, 0)]
    fits = {"ge": [0, 1, 1], "gt": [0, 0, 1], "eq": [0, 1, 0], "le": [1, 1, 0], "lt": [1, 0, 0]}
    mark = getattr(testing, f"requires_cuda_compute_version_{mode}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, expected in zip(capabilities, fits[mode], strict=True):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda c=capability: c)
        assert mark(9, 0).args == (not expected,)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert mark(9).args == (True,)
