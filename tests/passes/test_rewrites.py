"""Programs before and after a pass: `<phase>/<pass>/<case>.tvmscript`, as `tests/README.md` says."""

from __future__ import annotations

import itertools
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

from tvmtile import errors, passes
from tvmtile.codegen.kept_maps import kept_maps
from tvmtile.errors import TileWarning
from tvmtile.pipeline import CHECKS

HERE = Path(__file__).resolve().parent
NAMES = {"T": T, "I": tvm.script.ir, "Axis": Axis, "kept_maps": kept_maps}
PASSES = {
    f"{module.split('.')[2]}/{re.sub('(?<!^)(?=[A-Z])', '_', name).lower()}": value
    for module in sorted(sys.modules)
    if re.match(r"tvmtile\.passes\.\w+\.", module)
    for name, value in vars(sys.modules[module]).items()
    if isinstance(value, ir.transform.Pass) and value.info.name == f"tvmtile.{name}"
}
FILES = {path.relative_to(HERE).with_suffix(""): path for path in HERE.glob("*/*/*.tvmscript")}


def parsed(source, header):
    """The module that a program is, for the target in the header, if there is one."""
    mod = tvm.script.from_source(source, extra_vars=NAMES)
    mod = mod if isinstance(mod, ir.IRModule) else ir.IRModule({"main": mod})
    if named := re.search(r"^# target: (\w+) ?(\w*)$", header, re.MULTILINE):
        kind, cpu = named.groups()
        option = {"mcpu" if kind == "llvm" else "arch": cpu} if cpu else {}
        target = tvm.target.Target({"kind": kind} | option)
        mod = ir.IRModule(
            {name: f.with_attr("target", target) for name, f in mod.functions.items()}
        )
    return mod


def completed(after, before):
    """The program: in front of indented lines are those of the first program up to such an indent."""
    indent = re.match(" *", after)[0]
    lines = before.splitlines(keepends=True) if indent else []
    return "".join(itertools.takewhile(lambda line: not line.startswith(indent), lines)) + after


def printed(mod, before, **options):
    """A program as a file shows it: without the first lines of `before`, if it begins with them."""
    mod = ir.IRModule({name: f.without_attr("target") for name, f in mod.functions.items()})
    is_function = [gv.name_hint for gv in mod.functions] == ["main"]
    metadata, _, text = (
        (mod["main"] if is_function else mod).script(show_meta=True, **options).partition("# from")
    )
    strings = eval(metadata.partition("=")[2].strip() or "{}", {"tvm": tvm}).get("ir.StringImm", ())
    for number, string in enumerate(strings):
        text = text.replace(f'metadata["ir.StringImm"][{number}]', json.dumps(string.value))
    lines = text[text.index("@") :].rstrip().splitlines(keepends=True)
    whole = "".join(lines) + "\n"
    shorter = ("".join(lines[start:]) + "\n" for start in range(len(lines) - 1, 0, -1))
    return next((x for x in shorter if x[0] == " " and completed(x, before) == whole), whole)


def mended(text):
    """What TVM prints as if it were of another type."""
    text = text.replace("T.attr(0,", "T.attr(T.int32(0),")
    return text.replace(", unroll=False)", ', annotations={"disable_unroll": 1})')


def reads_back(after, before, header, made):
    """Whether what stands behind `# after` is the program that a pass has made."""
    try:
        return structural_equal(made, parsed(completed(after, before), header))
    except Exception:  # noqa: BLE001 - what is no program is written anew
        return False


@pytest.mark.parametrize("case", sorted(FILES), ids=str)
def test_a_pass_makes_of_a_program_what_its_file_says(case, request, monkeypatch):
    header, before, after = re.fullmatch(
        r"(# [A-Z`].*?\n)# before\n(.*?)(?:# unchanged\n|# after\n(.*))",
        FILES[case].read_text(),
        re.DOTALL,
    ).groups()
    warned = re.search(r"^# warns: (.*)$", header, re.MULTILINE)
    expected = pytest.warns(TileWarning, match=re.escape(warned[1])) if warned else nullcontext()
    monkeypatch.setattr(errors, "_SHOWN_WARNINGS", {})
    given = parsed(before, header)
    with expected:
        made = PASSES[str(case.parent)](given)
    if after is None:
        tvm.ir.assert_structural_equal(made, given)
        return
    assert not structural_equal(made, given), "the pass changes nothing"
    if request.config.getoption("--update-golden"):
        if not reads_back(after, before, header, made):
            texts = [printed(made, before, syntax_sugar=sugar) for sugar in (True, False)]
            texts += [mended(text) for text in texts]
            after = next((x for x in texts if reads_back(x, before, header, made)), texts[0])
            FILES[case].write_text(f"{header}# before\n{before}# after\n{after}")
    tvm.ir.assert_structural_equal(made, parsed(completed(after, before), header))


def test_every_rewrite_has_an_example_that_the_docs_show():
    exported = {name for name in passes.__all__ if not name.startswith("Check")}
    names = {case: step.info.name.partition(".")[2] for case, step in PASSES.items()}
    shown = {str(case.parent) for case in FILES if case.name == "example"}
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
    assert len(steps) > 90
    changed = [
        name for name, step in steps.items() if not step(module)["scheduled"].same_as(scheduled)
    ]
    assert changed == []


def test_every_check_is_run():
    checks = {x.info.name for name, x in vars(passes).items() if name.startswith("Check")}
    assert {check.info.name for check in CHECKS} == checks
