"""SelectImplementation: what is chosen, what a user may ask for, and what is said of it."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch
from tvm import ir, script
from tvm.script import tirx as tirx_script
from tvm.target import Target
from tvm.tirx.layout import Axis
from tvm_ffi import structural_equal

import tvmtile
import tvmtile.language as T
from tvmtile import errors, pipeline
from tvmtile.errors import TileWarning, VerifyError
from tvmtile.passes import InferLayout, LowerTileOp, NormalizeOperands, SelectImplementation
from tvmtile.target import parse

SM_80 = {"kind": "cuda", "arch": "sm_80"}
SM_90 = {"kind": "cuda", "arch": "sm_90a"}
METAL_4 = {"kind": "metal", "keys": ["metal4", "metal", "gpu"]}


@pytest.fixture(autouse=True)
def _warn_again():
    errors._SHOWN_WARNINGS.clear()


def product(impl=None, k=32, dtype="float16", accum="float32", copy=None, threads=128):
    @T.prim_func
    def product(
        A: T.Tensor((32, k), dtype), B: T.Tensor((k, 32), dtype), C: T.Tensor((32, 32), accum)
    ):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((32, k), dtype)
            b = T.alloc_shared((k, 32), dtype)
            kept = T.alloc_shared((32, 32), "float16")
            c = T.alloc_fragment((32, 32), accum)
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True, impl=impl)  # multiplied here
            T.copy(c, kept, impl=copy)
            T.copy(kept, C)

    return product


def after(program, step, target, count=1):
    """A program after a pass has run so many times."""
    mod = ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    for each in pipeline.lowering_passes(Target(parse(target))):
        mod = each(mod)
        count -= each.info.name == step.info.name
        if not count:
            return mod["main"]
    raise AssertionError("the pass does not run as often")


def compiled(program, target):
    backend = "emulator" if target == "metal" else "auto"
    return tvmtile.compile(program, target=target, execution_backend=backend)


def written(func, operator):
    """The implementations that calls of an operator name."""
    pattern = rf'"tvmtile\.{operator}", .*"impl": "(\w+)"|T\.tvmtile\.({operator})\('
    return [impl or None for impl, _ in re.findall(pattern, func.script())]


def test_the_choice_is_in_the_script_and_is_read_back():
    func = after(product(), SelectImplementation, SM_80)
    assert written(func, "gemm") == ["mma"]
    read_back = script.from_source(func.script(), extra_vars={"T": tirx_script, "Axis": Axis})
    assert structural_equal(read_back, func)
    other = after(product(impl="elements"), SelectImplementation, SM_80)
    assert not structural_equal(func, other)


def test_what_depends_on_layouts_is_open_until_they_are_known():
    assert written(after(product(), InferLayout, SM_90), "copy")[2] is None
    assert written(after(product(), SelectImplementation, SM_90, 2), "copy")[2] == "stmatrix"
    assert written(after(product(), SelectImplementation, SM_80, 2), "copy")[2] == "elements"


def test_an_operator_that_is_done_in_one_way_has_nothing_to_choose():
    assert written(after(product(), SelectImplementation, "llvm"), "copy") == [None] * 4


@pytest.mark.parametrize("impl", ["microkernel", "loops"])
def test_the_one_that_is_asked_for_is_used(impl):
    kernel = tvmtile.compile(product(impl), target="llvm", out_idx=-1)
    gemms = [choice for choice in kernel.choices if choice.operator == "gemm"]
    assert [choice.chosen for choice in gemms] == [impl]
    a, b = torch.randn(32, 32).half(), torch.randn(32, 32).half()
    torch.testing.assert_close(
        kernel(a, b), (a.float() @ b.float()).half().float(), rtol=1e-2, atol=1e-2
    )


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", [SM_90, "metal"])
def test_what_is_slow_is_no_warning_where_it_is_asked_for(target):
    source = compiled(product("elements"), target).get_kernel_source()
    assert "mma.sync" not in source
    assert "simdgroup_multiply" not in source


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("dtype", "accum", "target", "reason"),
    [
        ("int32", "int32", SM_80, "no instruction multiplies int32 and int32"),
        ("float8_e4m3fn", "float32", SM_80, "float8_e4m3fn needs sm_89, the target is sm_80"),
        ("int8", "int32", "metal", "the matrices hold float16, bfloat16, float32"),
    ],
)
def test_what_is_slow_is_a_warning_for_every_dtype(dtype, accum, target, reason):
    pattern = f"gemm: c.* is computed element by element, which is slow: .*{reason}"
    with pytest.warns(TileWarning, match=pattern) as caught:
        compiled(product(dtype=dtype, accum=accum), target)
    assert len(caught) == 1


def test_an_operator_whose_fragment_is_staged_gets_another_implementation():
    """A view of a fragment as another dtype sees its elements in memory."""

    @T.prim_func
    def main(A: T.Tensor((16, 64), "float32"), C: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((16, 64), "float32")
            total = T.alloc_fragment((16,), "float32")
            row = T.view(x, (1024,), "int32")
            T.copy(A, x)
            for i in T.Parallel(1024):
                row[i] *= 2
            T.reduce_sum(x, total, dim=1)
            T.copy(total, C)

    assert written(after(main, SelectImplementation, SM_80), "reduce") == ["registers"]
    with pytest.warns(TileWarning, match="is kept in shared memory"):
        assert written(after(main, InferLayout, SM_80), "reduce") == ["memory"]


def test_one_layout_for_all_uses_of_a_fragment_or_another_instruction():
    """On Metal 4 two products share an accumulator out in different ways."""

    def main(second, impl=None):
        @T.prim_func
        def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
            with T.Kernel(1, threads=64):
                a = T.alloc_shared((64, 64), "float16")
                c = T.alloc_fragment((64, 64), "float32")
                T.copy(A, a)
                T.gemm(a, a, c, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
                T.gemm(a, a, c, policy=second, impl=impl)
                T.copy(c, C)

        return main

    rows = after(main(T.GemmWarpPolicy.FullRow), SelectImplementation, METAL_4)
    assert written(rows, "gemm") == ["matmul2d"] * 2
    both = after(main(T.GemmWarpPolicy.FullCol), SelectImplementation, METAL_4)
    assert written(both, "gemm") == ["simdgroup"] * 2
    one = after(main(T.GemmWarpPolicy.FullCol, "matmul2d"), SelectImplementation, METAL_4)
    assert written(one, "gemm") == ["simdgroup", "matmul2d"]


@pytest.mark.full
def test_choices_are_a_table_of_lines_and_reasons():
    kernel = compiled(product(k=24, impl="elements"), SM_80)
    (choice,) = (c for c in kernel.choices if c.operator == "gemm")
    assert choice.location.text.endswith("# multiplied here")
    assert choice.declined == (("mma", "K = 24 is not a multiple of 16"), ("fma", "fits"))
    assert str(choice) == (
        f"{choice.location}: gemm of c: elements\n    not mma: K = 24 is not a multiple of 16\n"
        "    not fma: fits"
    )
    assert str(choice) in str(kernel.choices)
    shown = []  # by a notebook
    kernel.choices._repr_pretty_(SimpleNamespace(text=shown.append), False)
    assert shown == [str(kernel.choices)]


def test_code_is_made_of_what_is_chosen_only():
    @T.prim_func
    def program(C: T.Tensor((32, 32), "float32")):
        with T.Kernel(1, threads=32):
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            T.copy(c, C)

    mod = ir.IRModule({"main": program.with_attr("target", parse(SM_80))})
    with pytest.raises(VerifyError, match="copy: no implementation is chosen") as caught:
        LowerTileOp(NormalizeOperands(mod))
    assert caught.value.help == "run SelectImplementation before this pass"
