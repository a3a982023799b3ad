"""Options of compilation under TileLang's names."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile import PassConfigKey
from tvmtile.errors import TileWarning


def test_a_key_is_its_text():
    assert PassConfigKey.TL_DISABLE_TMA_LOWER == "tl.disable_tma_lower"
    assert PassConfigKey["TIR_DISABLE_VECTORIZE"].value == "tirx.disable_vectorize"


def test_options_of_tilelang_change_nothing_and_options_of_tvm_reach_it():
    @T.prim_func
    def main(A: T.Tensor((4,), "float32")):
        with T.Kernel(1) as _:
            for i in T.Parallel(4):
                A[i] = A[i] + 1

    options = {
        PassConfigKey.TL_SIMPLIFY_ENABLE_LET_INLINE: True,
        "tl.disable_warp_specialized": True,
        PassConfigKey.TIR_DISABLE_VECTORIZE: True,
    }
    kernel = tvmtile.compile(main, pass_configs=options)
    a = torch.zeros(4)
    kernel(a)
    assert a.tolist() == [1, 1, 1, 1]


def test_options_that_ask_for_what_is_not_done_say_so():
    @T.prim_func
    def main(A: T.Tensor((4,), "float32")):
        with T.Kernel(1) as _:
            A[0] = 1

    with pytest.warns(TileWarning, match="tl.pass_profile has no effect: kernel.lowering holds"):
        tvmtile.compile(main, pass_configs={PassConfigKey.TL_PASS_PROFILE: True})
    with pytest.warns(TileWarning, match="tl.device_compile_flags has no effect"):
        tvmtile.compile(main, compile_flags=["-O3"])
    tvmtile.compile(main, pass_configs={PassConfigKey.TL_PASS_PROFILE: False})
