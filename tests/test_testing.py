"""Helpers for tests of kernels."""

from __future__ import annotations

import pytest
import torch

from tvmtile.testing import set_random_seed, torch_assert_close


def test_close_tensors_pass_and_a_share_of_others_is_allowed():
    a = torch.arange(1000.0)
    b = a.clone()
    b[7] += 5
    assert torch_assert_close(a, b, max_mismatched_ratio=0.001)
    with pytest.raises(
        AssertionError, match=r"differ in 1 of 1000 .* first at \[7\]: 7.0 and 12.0"
    ):
        torch_assert_close(a, b, max_mismatched_ratio=0)


def test_nan_equals_nan_unless_told_otherwise():
    a = torch.tensor([float("nan"), 1.0])
    assert torch_assert_close(a, a.clone())
    with pytest.raises(AssertionError, match="differ in 1 of 2"):
        torch_assert_close(a, a.clone(), equal_nan=False)


def test_shape_and_dtype_must_be_equal():
    with pytest.raises(AssertionError, match=r"\[3\].*\[4\]"):
        torch_assert_close(torch.zeros(3), torch.zeros(4))
    with pytest.raises(AssertionError, match=r"float32 and float16"):
        torch_assert_close(torch.zeros(3), torch.zeros(3).half())
    assert torch_assert_close(torch.zeros(3), torch.zeros(3).half(), check_dtype=False)


def test_float8_is_compared_by_value():
    a = torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn)
    assert torch_assert_close(a, a.clone())


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
