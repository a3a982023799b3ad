"""The types that `typings/` tells the type checker of TVM's nodes are TVM's."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT = Path(__file__).resolve().parent.parent
TYPINGS = ROOT / "typings"


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


@pytest.fixture
def user(tmp_path):
    """A directory with the examples and the programs of the README, as a user's project."""
    for example in (ROOT / "examples").glob("*.py"):
        shutil.copy(example, tmp_path)
    programs = Sybil([PythonCodeBlockParser()]).parse(ROOT / "README.md").examples()
    (tmp_path / "readme.py").write_text("\n".join(program.parsed for program in programs))
    (tmp_path / "wrong.py").write_text("import tvmtile\ntvmtile.compile(None, out_idx={})\n")
    return tmp_path


# What TVM's own annotations refuse, which says `Target` where it takes a string.
OF_TVM = re.compile(r"\btvm\.|\bR\.")
# An eager kernel says in its body what a parameter is; to a checker, a call is no type.
EAGER = re.compile(r"^\s+\w+: T\.\w+\(.*\)$|^def \w+\(")
EAGER_RULES = ("reportInvalidTypeForm", "reportRedeclaration")


def test_mypy_finds_nothing_in_a_users_files(user):
    pytest.importorskip("mypy")
    (user / "mypy.ini").write_text(
        f"[mypy]\nmypy_path = {ROOT}\nfollow_imports = silent\nignore_missing_imports = true\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache"]
    files = sorted(path.name for path in user.glob("*.py"))
    done = subprocess.run([*command, *files], cwd=user, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    lines = (user / "readme.py").read_text().splitlines()
    ours = [
        error
        for error in errors
        if not (error.startswith("readme") and OF_TVM.search(lines[int(error.split(":")[1]) - 1]))
    ]
    assert {error.partition(":")[0] for error in ours} == {"wrong.py"}, done.stdout + done.stderr


def test_pyright_finds_nothing_in_a_users_files(user):
    if importlib.util.find_spec("basedpyright") is None:
        pytest.skip("basedpyright is not installed")
    settings = {
        "include": ["*.py"],
        "typeCheckingMode": "standard",
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.10",
    }
    (user / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=user,
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    ours = [error for error in found if error["severity"] == "error" and not _is_known(error)]
    assert {Path(error["file"]).name for error in ours} == {"wrong.py"}, ours


def _is_known(error):
    line = Path(error["file"]).read_text().splitlines()[error["range"]["start"]["line"]]
    return bool(OF_TVM.search(line) or (error["rule"] in EAGER_RULES and EAGER.search(line)))
