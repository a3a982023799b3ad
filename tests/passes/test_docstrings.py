"""The programs in the passes' docstrings are what the passes do."""

import inspect
import itertools
import re

import pytest
import tvm
from tvm import ir
from tvm.script import tirx as T
from tvm.tirx.layout import Axis
from tvm_ffi import structural_equal

from tvmtile import passes
from tvmtile.codegen.kept_maps import kept_maps
from tvmtile.pipeline import CHECKS

PASSES = {
    name: value for name, value in vars(passes).items() if isinstance(value, ir.transform.Pass)
}
CHECK_PASSES = {name: value for name, value in PASSES.items() if name.startswith("Check")}
REWRITES = {name: value for name, value in PASSES.items() if name not in CHECK_PASSES}


def text(name, heading):
    """What is in the fenced block under a heading of a pass's docstring."""
    section = re.search(
        rf"^{heading}\n-+\n```\n(.*?)^```",
        inspect.cleandoc(PASSES[name].__doc__),
        re.MULTILINE | re.DOTALL,
    )
    assert section is not None, f"{name}: there is no program under {heading!r}"
    return section[1]


def program(name, heading):
    """The function there; indented lines stand for those of the first program that are no less so."""
    lines = text(name, heading)
    indent = re.match(" *", lines)[0]
    first = text(name, "Before").splitlines(keepends=True)
    kept = itertools.takewhile(lambda line: not (indent and line.startswith(indent)), first)
    source = "".join(kept) + lines if indent else lines
    names = {"T": T, "Axis": Axis, "kept_maps": kept_maps}
    return tvm.script.from_source(source, extra_vars=names)


@pytest.mark.parametrize("name", REWRITES)
def test_a_pass_does_what_its_docstring_shows(name):
    before, after = (ir.IRModule({"main": program(name, part)}) for part in ("Before", "After"))
    assert not structural_equal(before, after), "the example shows no change"
    tvm.ir.assert_structural_equal(PASSES[name](before), after)


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_leaves_functions_without_a_kernel_alone(name):
    @T.prim_func
    def scheduled(A: T.Buffer((40,), "float32"), C: T.Buffer((32,), "float16")):
        T.func_attr({"target": T.target("llvm"), "global_symbol": "scheduled"})
        own = T.alloc_buffer((32,), "float32", scope="local")
        for i in T.unroll(32):
            if A[i + 8] > T.float32(0):
                break
            own[i] = T.exp(A[i + 8])
        for i in T.parallel(32):
            C[i] = T.Cast("float16", own[i])

    module = ir.IRModule({"scheduled": scheduled})
    tvm.ir.assert_structural_equal(PASSES[name](module), module)
    assert PASSES[name](module)["scheduled"].same_as(module["scheduled"])


def test_every_check_is_run():
    assert {check.info.name for check in CHECKS} == {
        check.info.name for check in CHECK_PASSES.values()
    }
