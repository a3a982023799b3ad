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

from tests.language import stub

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


@pytest.mark.nightly
def test_a_statement_for_an_expression_is_found(tmp_path):
    api = pytest.importorskip("mypy.api")
    (tmp_path / "wrong.py").write_text(MISTAKES)
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nstrict = true\nmypy_path = {TYPINGS}\n")
    options = ["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", str(tmp_path / "cache")]
    output, _, _ = api.run([*options, str(tmp_path / "wrong.py")])
    found = {int(line.split(":")[-3]) for line in output.splitlines() if ": error:" in line}
    assert found == set(range(4, MISTAKES.count("\n") + 1)), output


# A checker objects to each line from the fourth on.
WRONG = """\
import tvmtile
import tvmtile.language as T

tvmtile.compile(None, out_idx={})
T.alloc_shared((64, 64), 16)
T.alloc_var(1.0)
T.Tensor((64,), dtype=32)
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    """A directory with the examples and the programs of the README, as a user's project."""
    directory = tmp_path_factory.mktemp("user")
    for example in (ROOT / "examples").glob("*.py"):
        shutil.copy(example, directory)
    programs = Sybil([PythonCodeBlockParser()]).parse(ROOT / "README.md").examples()
    (directory / "readme.py").write_text("\n".join(program.parsed for program in programs))
    (directory / "wrong.py").write_text(WRONG)
    (directory / "revealed.py").write_text(REVEALED)
    return directory


# What TVM's own annotations refuse, which says `Target` where it takes a string.
OF_TVM = re.compile(r"\btvm\.|\bR\.")
# An eager kernel says in its body what a parameter is; to a checker, a call is no type.
EAGER = re.compile(r"^\s+\w+: T\.\w+\(.*\)$|^def \w+\(")
EAGER_RULES = ("reportInvalidTypeForm", "reportRedeclaration")


@pytest.fixture(scope="module")
def mypy(user, pytestconfig):
    """mypy's output for a user's files, by file and line."""
    pytest.importorskip("mypy")
    # What it finds of our own files it keeps, and looks at those again that change.
    kept = pytestconfig.rootpath / ".pytest_cache" / "mypy"
    (user / "mypy.ini").write_text(
        f"[mypy]\nmypy_path = {ROOT}\nfollow_imports = silent\nignore_missing_imports = true\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", str(kept)]
    files = sorted(path.name for path in user.glob("*.py"))
    done = subprocess.run([*command, *files], cwd=user, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    found: dict[tuple[str, int], str] = {}
    for line in done.stdout.splitlines():
        if line.count(":") > 1:  # not the summary; notes follow an error
            file, number, text = line.split(":", 2)
            found.setdefault((file, int(number)), text.strip())
    return found


@pytest.fixture(scope="module")
def pyright(user):
    """pyright's report of a user's files, by file and line, as it is run in an editor."""
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
    return {
        (Path(e["file"]).name, e["range"]["start"]["line"] + 1): (
            f"{e['severity']}: {e['message']} ({e.get('rule')})"
        )
        for e in found
        if e["severity"] in ("error", "information")
    }


@pytest.mark.nightly
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_nothing_is_found_in_a_users_files(checker, user, request):
    found = request.getfixturevalue(checker)
    ours = {
        place: text
        for place, text in found.items()
        if text.startswith("error")
        and place[0] != "revealed.py"
        and not _is_known(text, (user / place[0]).read_text().splitlines()[place[1] - 1])
    }
    wrong = {("wrong.py", number) for number in range(4, WRONG.count("\n") + 1)}
    assert set(ours) == wrong, ours


def _is_known(text, line):
    return bool(OF_TVM.search(line) or (any(map(text.count, EAGER_RULES)) and EAGER.search(line)))


@pytest.mark.nightly
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_what_is_known_of_calls(checker, request):
    found = request.getfixturevalue(checker)
    for number, line in enumerate(REVEALED.splitlines(), 1):
        _, is_stated, stated = line.partition("  # ")
        # Names without their modules.
        said = re.sub(r"\w+\.(?=\w)", "", found.get(("revealed.py", number), ""))
        if not is_stated:
            assert not said, f"{line}: {said}"
        elif stated.partition(": ")[0] in (checker, stated):
            assert stated.rpartition(": ")[2] in said, f"{line}: {said}"


def test_the_stub_names_what_a_checker_does_not_find():
    assert stub.PATH.read_text() == stub.text(), "python tests/language/stub.py writes it"


# What a checker says of each expression; `pyright` or `mypy` alone where they differ.
REVEALED = """\
# pyright: reportInvalidTypeForm=false, reportRedeclaration=false
# mypy: disable-error-code="valid-type, no-redef"
import numpy as np
import torch
from typing_extensions import reveal_type

import tvmtile
import tvmtile.language as T
from tvmtile import ops, relax
from tvmtile.torch import replace


@tvmtile.jit
def eager(X, scale: float = 1.0):
    N = T.const("N")
    X: T.Tensor((N,), T.float32)
    Y = T.empty((N,), T.float32)
    with T.Kernel(1):
        tile = T.alloc_fragment((N,), T.float32)
        for i in T.Parallel(N):
            tile[i] = T.exp(X[i] * scale)
            Y[i] = tile[i]
    return Y


@tvmtile.autotune(configs=[{"threads": 32}])
@tvmtile.jit(out_idx=-1)
def lazy(N: int, threads: int = 32):
    @T.prim_func
    def main(X: T.Tensor((N,), T.float32), Y: T.Tensor((N,), T.float32)):
        with T.Kernel(1, threads=threads):
            T.copy(X, Y)

    return main


x = torch.ones(4)
program = lazy.jit_impl.func(4)
kernel: tvmtile.Kernel = tvmtile.compile(program, out_idx=-1)
reveal_type(eager)  # JitFunction[
reveal_type(eager(x, scale=2.0))  # pyright: Tensor
reveal_type(eager(np.ones(4), 2.0))  # pyright: ndarray[
reveal_type(eager(x))  # mypy: Any
reveal_type(eager.compile(x))  # Kernel[
reveal_type(lazy)  # TunedFunction[
reveal_type(lazy(4))  # Kernel[One]
reveal_type(lazy(4)(x))  # Tensor
reveal_type(lazy(N=4)(np.ones(4)))  # ndarray[
reveal_type(tvmtile.compile(program, 1)(x))  # Tensor
reveal_type(tvmtile.compile(program))  # Kernel[Any]
reveal_type(tvmtile.compile(program, [0, 1]))  # Kernel[Any]
reveal_type(tvmtile.par_compile([program])[0])  # Kernel[
reveal_type(tvmtile.compile(program).get_kernel_source())  # str
reveal_type(kernel.as_torch_op("a::b"))  # CustomOpDef
reveal_type(tvmtile.torch_op(lambda X: X))  # CustomOpDef
reveal_type(ops.matmul(x, x.T, activation="relu"))  # Tensor
reveal_type(ops.attention(x, x, x))  # Tensor
reveal_type(ops.softmax(x) + ops.rms_norm(x) + ops.layer_norm(x))  # Tensor
reveal_type(replace(torch.nn.Linear(4, 4), x))  # Report
reveal_type(relax.UseTileKernels("llvm").choices)  # list[Choice]
lazy("4")  # pyright: error
tvmtile.jit(out_id=-1)  # error
tvmtile.compile(program, target=3)  # pyright: error
T.flaot32  # error
"""
