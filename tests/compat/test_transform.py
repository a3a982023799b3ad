"""Options of compilation under TileLang's names."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
import tvm

import tvmtile
import tvmtile.language as T
from tvmtile import PassConfigKey
from tvmtile.errors import InvalidValue, TileWarning
from tvmtile.transform import ALWAYS_SO, EFFECTS, PassContext, warn_without_effect


@T.prim_func
def program(A: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            A[i] = T.exp(A[i])


def test_options_of_tilelang_change_nothing_and_options_of_tvm_reach_it():
    assert PassConfigKey.TL_DISABLE_TMA_LOWER == "tl.disable_tma_lower"
    assert PassConfigKey["TIR_DISABLE_VECTORIZE"].value == "tirx.disable_vectorize"
    options = {
        PassConfigKey.TL_SIMPLIFY_ENABLE_LET_INLINE: True,
        "tl.disable_warp_specialized": True,
        PassConfigKey.TIR_DISABLE_VECTORIZE: True,
    }
    a = torch.zeros(64)
    tvmtile.compile(program, pass_configs=options)(a)
    assert a.tolist() == [1] * 64


def test_options_that_ask_for_what_is_not_done_say_so():
    with pytest.warns(
        TileWarning, match="tl.pass_profile=True has no effect: kernel.lowering holds"
    ):
        tvmtile.compile(program, pass_configs={PassConfigKey.TL_PASS_PROFILE: True})
    with pytest.warns(TileWarning, match="tl.device_compile_flags=.* has no effect"):
        tvmtile.compile(program, compile_flags=["-O3"])
    tvmtile.compile(program, pass_configs={PassConfigKey.TL_PASS_PROFILE: False})


ACT = {key for keys in EFFECTS.values() for key in keys}
OF_TVM = tuple(tvm.transform.PassContext.list_configs())


@pytest.mark.parametrize("key", [key.value for key in PassConfigKey if key.value not in OF_TVM])
def test_each_option_of_tilelang_acts_or_is_so_anyway_or_says_that_it_has_no_effect(key):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_without_effect({key: True})
        warn_without_effect({key: False})
    if key in ACT or key in ALWAYS_SO:
        assert not caught
    else:
        assert len(caught) == 1
        assert str(caught[0].message).startswith(f"the option {key}=")


def test_options_of_tvm_take_tilelangs_too():
    def calls():
        kernel = tvmtile.compile(program, target={"kind": "cuda", "arch": "sm_80"})
        return re.findall(r"\b_*expf\(", kernel.get_kernel_source())

    options = {PassConfigKey.TL_ENABLE_FAST_MATH: True, "tirx.disable_vectorize": True}
    with PassContext(opt_level=3, config=options):
        assert dict(tvm.transform.PassContext.current().config) == {"tirx.disable_vectorize": True}
        assert calls() == ["__expf("]
        with PassContext():
            assert calls() == ["expf("]
        assert calls() == ["__expf("]
    assert calls() == ["expf("]
    with pytest.raises(InvalidValue, match="did you mean 'tl.enable_fast_math'"):
        PassContext(config={"tl.enable_fastmath": True})
    with (
        PassContext(config={"tl.disable_wgmma": True}),
        pytest.warns(TileWarning, match="tl.disable_wgmma=True has no effect"),
    ):
        tvmtile.compile(program, target="llvm")
