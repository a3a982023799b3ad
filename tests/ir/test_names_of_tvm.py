"""What another release of TVM may call otherwise is read in one module."""

from __future__ import annotations

import ast
from pathlib import Path

import tvmtile

ROOT = Path(tvmtile.__file__).parent
OF_OTHERS = {
    "carver", "cache", "emulator", "jit", "layout/index_map.py", "ops", "ir/options.py",
    "passes/target/lower_cuda_functions.py", "tileop/cluster.py", "tileop/cp_async.py",
    "tileop/gemm/dots.py",
}  # fmt: skip
"""Where `.source` is an attribute of something of ours: a text, or the first operand of a copy."""


def test_the_buffer_of_a_load_or_a_region_is_asked_for_by_buffer_of():
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name == "_tvm.py" or any(name.startswith(other) for other in OF_OTHERS):
            continue
        tree = ast.parse(path.read_text())
        found += [
            f"{name}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr == "source"
        ]
    assert found == []
