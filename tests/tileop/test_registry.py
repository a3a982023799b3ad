"""How implementations are found, and what is said when none fits or one fails."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from tvm import tirx

import tvmtile
import tvmtile.language as T
from tests.children import WITHOUT_TORCH
from tvmtile.errors import NoLowering, VerifyError
from tvmtile.tileop import registry
from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.registry import Decline, lowering

pytestmark = pytest.mark.usefixtures("own_operators")


@pytest.fixture
def product():
    @T.prim_func
    def product(A: T.Tensor((24, 16), "float16"), B: T.Tensor((16, 8), "float16")):
        with T.Kernel(1, threads=128):
            C = T.alloc_fragment((24, 8), "float32")
            T.gemm(A, B, C, clear_accum=True)  # multiplied here

    return product


def plant(operator, variant, priority, code, **declared):
    lowering(operator, target="llvm", variant=variant, priority=priority, **declared)(code)


def plant_declining(operator, variant, priority, reason):
    def decline(op, context):
        raise Decline(reason)

    plant(operator, variant, priority, decline, fits=decline)


def only_planted(operator):
    registry._LOWERINGS[operator.name, "llvm"] = []


def test_when_all_decline_their_reasons_are_a_table(product):
    only_planted(Gemm)
    plant_declining(Gemm, "rows_of_8", 1, "N has to be a multiple of 16, not 8")
    plant_declining(Gemm, "blocks_of_32", 2, "M has to be a multiple of 32, not 24")
    with pytest.raises(NoLowering) as caught:
        tvmtile.compile(product)
    assert caught.value.message == (
        "gemm: no implementation for llvm fits C[0:24, 0:8] float32, A[0:24, 0:16] float16, "
        "B[0:16, 0:8] float16\n"
        "  blocks_of_32: M has to be a multiple of 32, not 24\n"
        "  rows_of_8: N has to be a multiple of 16, not 8"
    )
    assert caught.value.help == "change what a reason names"
    assert caught.value.location.file == __file__
    assert caught.value.location.text == "T.gemm(A, B, C, clear_accum=True)  # multiplied here"


def test_an_operator_that_the_target_lacks(product):
    only_planted(Gemm)
    with pytest.raises(NoLowering, match="gemm: no implementation for llvm fits") as caught:
        tvmtile.compile(product)
    assert caught.value.help == "the target 'llvm' does not implement gemm"


def fill_with_one(op, context):
    (extent,) = (r.extent for r in op.buffer.region)
    i = tirx.Var("i", "int32")
    store = tirx.BufferStore(op.buffer.source, tirx.const(1, "float32"), [i])
    return tirx.For(i, 0, extent, tirx.ForKind.SERIAL, store)


def filled():
    @T.prim_func
    def fill(A: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            T.fill(A, 2)

    return tvmtile.compile(fill, out_idx=0)()


def test_the_one_of_highest_priority_that_fits_is_taken():
    assert torch.equal(filled(), torch.full((4,), 2.0))
    plant("fill", "one", 90, fill_with_one)
    assert torch.equal(filled(), torch.ones(4))
    plant_declining("fill", "never", 91, "never")
    assert torch.equal(filled(), torch.ones(4))


def test_equal_priorities_are_refused():
    plant("fill", "first", 50, fill_with_one)
    with pytest.raises(
        ValueError, match="'first' and 'second' of fill on llvm have the same priority"
    ):
        plant("fill", "second", 50, fill_with_one)


def test_one_that_fails_is_a_defect_with_the_kernels_line(product):
    plant(Gemm, "broken", 90, lambda op, context: op.no_such_attribute)
    with pytest.raises(VerifyError) as caught:
        tvmtile.compile(product)
    pattern = (
        r"gemm: the implementation 'broken' failed: AttributeError: 'Gemm' object has no attribute "
        rf"'no_such_attribute' \({re.escape(__file__)}:\d+\)"
    )
    assert re.fullmatch(pattern, caught.value.message)
    assert caught.value.location.text == "T.gemm(A, B, C, clear_accum=True)  # multiplied here"


@pytest.mark.full
def test_lowerings_are_imported_where_a_program_is_lowered(tmp_path):
    script = """
import sys
import tvmtile
import tvmtile.language as T

@T.prim_func
def main(A: T.Tensor((32, 32), "float32")):
    with T.Kernel(1, threads=32):
        a = T.alloc_fragment((32, 32), "float32")
        T.copy(A, a)
        T.gemm(a, a, a)

assert "tvmtile.tileop.gemm.cpu" not in sys.modules

from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.registry import Decline, lowering, registered_lowerings

@lowering(Gemm, target="llvm", variant="mine", priority=1000)
def mine(op, context):
    raise Decline("not today")

assert "tvmtile.tileop.gemm.cpu" in sys.modules
names = [l.variant for l in registered_lowerings() if l.operator == "gemm" and l.target_kind == "llvm"]
assert names[0] == "mine" and len(names) > 1, names
"""
    path = tmp_path / "script.py"
    path.write_text(WITHOUT_TORCH + script)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
