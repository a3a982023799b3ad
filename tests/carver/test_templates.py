"""Proposals for computations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm

from tvmtile import carver
from tvmtile.errors import InvalidValue

SM_90A = {"kind": "cuda", "arch": "sm_90a"}
H200 = carver.CUDA(SM_90A)
TEMPLATES = {
    "gemm": carver.MatmulTemplate(4096, 4096, 4096, accum_dtype="float32"),
    "small gemm": carver.MatmulTemplate(64, 512, 128),
    "gemv": carver.GEMVTemplate(4096, 4096),
    "attention": carver.FlashAttentionTemplate(2, 32, 128, 2048, 2048, accum_dtype="float32"),
    "softmax": carver.GeneralReductionTemplate("SR", [8192, 4096], keeps=True),
    "sum": carver.GeneralReductionTemplate("SRS", [64, 1024, 32], "float32"),
    "elementwise": carver.ElementwiseTemplate([8192, 4096]),
    "vector": carver.ElementwiseTemplate([1 << 20], "float32"),
}


@pytest.mark.parametrize("target", [{"kind": "cuda", "arch": "sm_80"}, "metal", "llvm"], ids=str)
@pytest.mark.parametrize("name", TEMPLATES)
def test_proposals_are_possible_and_ordered(name, target):
    device = carver.get_arch(target)
    hints = TEMPLATES[name].with_arch(device).recommend_hints(topk=20)
    assert 0 < len(hints) <= 20
    assert [h.seconds for h in hints] == sorted(h.seconds for h in hints)
    assert len({str(hint.to_dict()) for hint in hints}) == len(hints)
    for hint in hints:
        assert 0 < hint.seconds < math.inf
        assert hint.threads <= 1024
        assert hint.use_async == (hint.pipeline_stage > 1)


def test_a_large_product_gets_large_tiles_of_all_warps():
    for hint in TEMPLATES["gemm"].with_arch(H200).recommend_hints(5):
        m, n = hint.block
        assert m * n >= 128 * 128
        assert m // hint.warp[0] * (n // hint.warp[1]) == hint.threads // 32
        assert hint.pipeline_stage > 1
        assert not isinstance(hint.rasterization_plan, carver.roller.NoRasterization)


def test_a_small_product_gets_enough_blocks():
    (hint,) = carver.MatmulTemplate(256, 2048, 4096).with_arch(H200).recommend_hints(1)
    assert math.prod(-(-n // b) for n, b in zip((256, 2048), hint.block, strict=True)) >= 64


def test_more_proposals_begin_with_the_same_ones():
    template = TEMPLATES["attention"].with_arch(H200)
    assert template.recommend_hints(20)[:5] == template.recommend_hints(5)


def test_devices_are_compared_by_what_they_are():
    assert carver.ElementwiseTemplate([64]).arch == carver.auto_infer_current_arch()
    assert carver.CUDA(SM_90A) == H200 != carver.CUDA({**SM_90A, "arch": "sm_80"})


RNG = np.random.default_rng(0)
FUNCTIONS = {
    "product": (
        carver.MatmulTemplate(3, 4, 5, in_dtype="float32", out_dtype="float32", accum_dtype="float32"),
        [(3, 5), (4, 5)],
        lambda a, b: a @ b.T,
    ),
    "product of others": (
        carver.MatmulTemplate(3, 4, 5, True, False, "float32", "float32", "float32", True),
        [(5, 3), (5, 4), (4,)],
        lambda a, b, bias: a.T @ b + bias,
    ),
    "reduction": (
        carver.GeneralReductionTemplate("SRS", [2, 3, 4], "float32"),
        [(2, 3, 4)],
        lambda a: a.sum(1),
    ),
    "no reduction": (
        carver.GeneralReductionTemplate("SS", [2, 3], "float32"), [(2, 3)], lambda a: a
    ),
    "elementwise": (carver.ElementwiseTemplate([2, 3], "float32"), [(2, 3)], lambda a: a + a),
    "attention": (
        carver.FlashAttentionTemplate(1, 2, 3, 4, 5, False, "float32", "float32", "float32"),
        [(2, 4, 3), (2, 5, 3), (2, 5, 3)],
        lambda q, k, v: q @ k.transpose(0, 2, 1) @ v,
    ),
}  # fmt: skip


@pytest.mark.full(but=3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_equivalent_function_computes_it(name):
    template, shapes, reference = FUNCTIONS[name]
    inputs = [RNG.standard_normal(shape).astype("float32") for shape in shapes]
    expected = reference(*inputs)
    arguments = [tvm.runtime.tensor(a) for a in (*inputs, np.zeros(expected.shape, "float32"))]
    tvm.compile(template.equivalent_function(), target="llvm")["main"](*arguments)
    np.testing.assert_allclose(arguments[-1].numpy(), expected, rtol=1e-5, atol=1e-5)


def test_a_structure_that_is_none():
    with pytest.raises(InvalidValue, match="the structure 'SX' of a reduction of the shape"):
        carver.GeneralReductionTemplate("SX", [2, 3])
