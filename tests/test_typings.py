"""The types that `typings/` tells the type checker of TVM's nodes are TVM's."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

TYPINGS = Path(__file__).resolve().parent.parent / "typings"


def classes():
    for module in ("tvm.ir", "tvm.tirx"):
        stub = ast.parse((TYPINGS / module.replace(".", "/") / "__init__.pyi").read_text())
        for node in stub.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield pytest.param(module, node, id=f"{module}.{node.name}")


@pytest.mark.parametrize(("module", "node"), list(classes()))
def test_tvm_has_the_class_with_its_fields(module, node):
    actual = getattr(importlib.import_module(module), node.name)
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and node.name != "Node":
            assert hasattr(actual, member.target.id), f"{node.name}.{member.target.id}"
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            arguments = [argument.arg for argument in member.args.args]
            assert (
                list(inspect.signature(actual.__init__).parameters)[: len(arguments)] == arguments
            )


# Each line is a mistake that a type checker must find.
MISTAKES = """\
from tvm import ir, tirx

def wrong(loop: tirx.For, store: tirx.BufferStore, branch: tirx.IfThenElse) -> tirx.Stmt:
    tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.extent)
    tirx.BufferStore(store.buffer, loop.body, store.indices)
    tirx.SeqStmt([branch.then_case, branch.else_case])
    tirx.IfThenElse(loop, branch.then_case, None)
    ir.IRModule().functions[loop.body]
    store.value.args
    return loop.extent
"""


def test_a_statement_for_an_expression_is_found(tmp_path):
    api = pytest.importorskip("mypy.api")
    (tmp_path / "wrong.py").write_text(MISTAKES)
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nstrict = true\nmypy_path = {TYPINGS}\n")
    options = ["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", str(tmp_path / "cache")]
    output, _, _ = api.run([*options, str(tmp_path / "wrong.py")])
    found = {int(line.split(":")[-3]) for line in output.splitlines() if ": error:" in line}
    assert found == set(range(4, MISTAKES.count("\n") + 1)), output
