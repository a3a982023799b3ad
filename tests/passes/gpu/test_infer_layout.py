"""InferLayout: which fragments lie in shared memory, and what is said of it."""

from __future__ import annotations

import re
import warnings

import pytest

import tvmtile.language as T
from tests.fuzz.run import loaded
from tests.passes.tile.test_select_implementation import after
from tests.programs import catalogue
from tests.programs.layouts import RESHAPED, STAGED
from tests.programs.products import WAYS
from tvmtile import errors
from tvmtile.passes import InferLayout

TARGETS = {
    "sm_80": {"kind": "cuda", "arch": "sm_80"},  # warps share a product out in several ways
    "sm_90a": {"kind": "cuda", "arch": "sm_90a"},
    "metal": "metal",
}


@pytest.fixture
def warned(tmp_path):
    """A function that gives the warnings of a case on a target."""

    def of(case, target):
        errors._SHOWN_WARNINGS.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            after(loaded(case, tmp_path).main, InferLayout, TARGETS[target])
        return [str(warning.message) for warning in caught]

    return of


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("name", "given", "staged"),
    [
        *(("products_that_meet", {"ways": ways}, []) for ways in WAYS),
        ("products_that_meet", {"meet": "in the same sums"}, []),
        ("products_that_meet", {"meet": "mirrored"}, ["x"]),
        ("axis_that_a_serial_loop_counts", {}, []),
        *(("fragment_in_shared_memory", {"form": form}, [f]) for form, f in STAGED.items()),
        ("fragment_in_shared_memory", {"form": "columns", "is_viewed": True}, ["f"]),
        *(("fragment_under_another_shape", {"form": form}, []) for form in RESHAPED),
    ],
    ids=str,
)
def test_fragments_lie_in_shared_memory_where_no_layout_does(name, given, staged, target, warned):
    texts = warned(catalogue()[name].case(**given), target)
    assert [re.match(r"\w+", text)[0] for text in texts] == staged


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", RESHAPED)
def test_sums_under_another_shape_stay_in_registers(form, target, warned):
    case = catalogue()["fragment_under_another_shape"].case(form=form, is_sum=True)
    in_matrices = target == "metal"  # of simdgroups
    assert [text[0] for text in warned(case, target)] == ["x"] * in_matrices


@pytest.mark.parametrize("is_viewed", [False, True])
@pytest.mark.parametrize("threads", [128, 256])
@pytest.mark.parametrize("dtypes", [("float16", "float32"), ("int8", "int32")])
@pytest.mark.parametrize("policy", ["Square", "FullRow", "FullCol"])
def test_a_product_lies_in_shared_memory_where_the_next_one_needs_other_threads(
    policy, dtypes, threads, is_viewed, warned
):
    program = catalogue()["product_of_a_masked_product"]
    case = program.case(policy=policy, dtypes=dtypes, threads=threads, is_viewed=is_viewed)
    is_staged = dtypes[0] == "int8" or threads == 256  # a view of it stays in registers, too
    assert [text[0] for text in warned(case, "sm_90a")] == ["p"] * is_staged


@pytest.mark.parametrize(
    ("name", "given", "texts"),
    [
        (
            "products_that_meet",
            {"meet": "mirrored"},
            [
                "x[32, 32] float32 is read from a copy in shared memory",
                "x[32, 32] float32 and y[32, 32] float32 lie in different threads",
                "T.gemm(a, b, x, clear_accum=True)",
                "T.gemm(a, b, y)",
            ],
        ),
        (
            "products_of_one_block",
            {"form": "an operand in two layouts"},
            [
                "a[64, 64] float16 is kept in shared memory",
                "a[64, 64] float16 is needed in two layouts",
                "thread:register of the elements from [",
            ],
        ),
    ],
)
def test_a_warning_names_both_uses_of_a_fragment(name, given, texts, warned):
    (warning,) = warned(catalogue()[name].case(**given), "sm_80")
    assert [text for text in texts if text not in warning] == []


def test_products_that_never_meet_stay_as_they_are():
    @T.prim_func
    def main(
        A: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
        D: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            x = T.alloc_fragment((64, 64), "float32")
            y = T.alloc_fragment((64, 64), "float32")
            z = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.gemm(a, a, x, clear_accum=True)
            T.gemm(a, a, y, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
            T.gemm(a, a, z, clear_accum=True, policy=T.GemmWarpPolicy.FullCol)
            for i, j in T.Parallel(64, 64):
                y[i, j] += x[i, j]
            T.copy(y, C)
            T.copy(z, D)

    text = after(main, InferLayout, TARGETS["sm_80"]).script()
    policies = [re.search(r'"policy": (\d)', line) for line in text.splitlines() if "gemm" in line]
    rows, columns = T.GemmWarpPolicy.FullRow, T.GemmWarpPolicy.FullCol
    assert [int(found[1]) for found in policies] == [rows, rows, columns]
