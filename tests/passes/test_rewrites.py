"""Programs before and after a pass: `<folder>/<pass>.tvmscript`, as `tests/README.md` says."""

from __future__ import annotations

import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import tvm
from tvm import ir
from tvm.script import tirx as T
from tvm.tirx.layout import Axis
from tvm_ffi import structural_equal

from tests.passes.rewrites import rewrites
from tvmtile import errors, passes
from tvmtile.codegen.kept_maps import kept_maps
from tvmtile.errors import TileWarning
from tvmtile.pipeline import CHECKS
from tvmtile.tvm_pipeline import tvm_pipeline

assert tvm_pipeline  # whose import makes all passes known
HERE = Path(__file__).resolve().parent
NAMES = {"T": T, "I": tvm.script.ir, "Axis": Axis, "kept_maps": kept_maps}
PASSES = {
    f"{module.split('.')[2]}/{re.sub('(?<!^)(?=[A-Z])', '_', name).lower()}": value
    for module in sorted(sys.modules)
    if re.match(r"tvmtile\.passes\.\w+", module)
    for name, value in vars(sys.modules[module]).items()
    if isinstance(value, ir.transform.Pass) and value.info.name == f"tvmtile.{name}"
}
CASES = [case for file in sorted(HERE.glob("*/*.tvmscript")) for case in rewrites(file)]


def parsed(source, target):
    """The module that a program is, for a target, if there is one."""
    mod = tvm.script.from_source(source, extra_vars=NAMES)
    mod = mod if isinstance(mod, ir.IRModule) else ir.IRModule({"main": mod})
    if target:
        kind, _, cpu = target.partition(" ")
        option = {"mcpu" if kind == "llvm" else "arch": cpu} if cpu else {}
        target = tvm.target.Target({"kind": kind} | option)
        mod = ir.IRModule(
            {name: f.with_attr("target", target) for name, f in mod.functions.items()}
        )
    return mod


def printed(mod, **options):
    """A program as TVM prints it, with strings in the place of its metadata."""
    mod = ir.IRModule({name: f.without_attr("target") for name, f in mod.functions.items()})
    is_function = [gv.name_hint for gv in mod.functions] == ["main"]
    metadata, _, text = (
        (mod["main"] if is_function else mod).script(show_meta=True, **options).partition("# from")
    )
    strings = eval(metadata.partition("=")[2].strip() or "{}", {"tvm": tvm}).get("ir.StringImm", ())
    for number, string in enumerate(strings):
        text = text.replace(f'metadata["ir.StringImm"][{number}]', json.dumps(string.value))
    return text[text.index("@") :].rstrip() + "\n"


def mended(text):
    """The text of a program that TVM prints as if it were of another type."""
    text = text.replace("T.attr(0,", "T.attr(T.int32(0),")
    return text.replace(", unroll=False)", ', annotations={"disable_unroll": 1})')


def reads_back(text, case, made):
    """Tell whether a text is the program that a pass has made."""
    try:
        return structural_equal(made, parsed(text, case.option("target")))
    except Exception:  # noqa: BLE001 - what is no program is written anew
        return False


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_pass_makes_of_a_program_what_its_file_says(case, request, monkeypatch):
    warned = case.option("warns")
    expected = pytest.warns(TileWarning, match=re.escape(warned)) if warned else nullcontext()
    monkeypatch.setattr(errors, "_SHOWN_WARNINGS", {})
    given = parsed(case.before, case.option("target"))
    with expected:
        made = PASSES[f"{case.file.parent.name}/{case.file.stem}"](given)
    if request.config.getoption("--update-golden") and not reads_back(case.after, case, made):
        texts = [printed(made, syntax_sugar=sugar) for sugar in (True, False)]
        texts += [mended(text) for text in texts]
        case = case.written(next((x for x in texts if reads_back(x, case, made)), texts[0]))
    tvm.ir.assert_structural_equal(made, parsed(case.after, case.option("target")))


def test_every_rewrite_has_an_example_that_the_docs_show():
    exported = {name for name in passes.__all__ if not name.startswith("Check")}
    names = {case: step.info.name.partition(".")[2] for case, step in PASSES.items()}
    shown = {f"{case.file.parent.name}/{case.file.stem}" for case in CASES if case.changes}
    assert [x for x, name in names.items() if name in exported and x not in shown] == []


def test_passes_leave_functions_without_a_kernel_alone():
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
    steps = {x.info.name: x for x in vars(passes).values() if isinstance(x, ir.transform.Pass)}
    assert len(steps) > 65
    changed = [
        name for name, step in steps.items() if not step(module)["scheduled"].same_as(scheduled)
    ]
    assert changed == []


def test_every_check_is_run():
    checks = {x.info.name for name, x in vars(passes).items() if name.startswith("Check")}
    assert {check.info.name for check in CHECKS} == checks
