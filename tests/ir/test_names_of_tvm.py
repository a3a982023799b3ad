"""Names that another release of TVM may not have are read in one module."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tvmtile

ROOT = Path(tvmtile.__file__).parent
OF_OTHERS = {
    "source": (
        "carver", "cache", "emulator", "jit", "layout/index_map.py", "ops", "ir/options.py",
        "passes/target/lower_cuda_functions.py", "tileop/cluster.py", "tileop/cp_async.py",
        "tileop/gemm/dots.py",
    ),
    "region": ("frontend/constructs.py", "frontend/tracer.py"),
}  # fmt: skip
"""Where a name of a field of TVM's is an attribute of something of ours: a text, a branch."""


@pytest.mark.parametrize("name", OF_OTHERS)
def test_the_fields_of_an_access_are_read_in_one_module(name):
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if file.startswith(("_tvm.py", *OF_OTHERS[name])):
            continue
        found += [
            f"{file}:{node.lineno}"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute) and node.attr == name
        ]
    assert found == []


NUMBERS = [
    "gemm-llvm", "gemm-metal", "gemm_by_wgmma-sm_90a",
    "attention-llvm", "attention-metal", "attention_by_wgmma-sm_90a",
]  # fmt: skip


@pytest.mark.full
def test_that_module_is_all_that_a_tvm_with_other_names_changes():
    """The plugin says which names; mypy refuses the old ones, which `typings/` lacks."""
    tests = [f"tests/test_numbers.py::test_numbers[{name}]" for name in NUMBERS]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.ir.another_tvm", *tests]
    done = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(NUMBERS)} passed" in done.stdout
