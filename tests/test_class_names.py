"""Words of the package: no two classes have one name, and docstrings begin with their subject."""

import ast
import re
from collections import Counter
from pathlib import Path

import tvmtile

SHARED = {"Kernel"}
"""As it is traced, T.Kernel, and compiled, tvmtile.Kernel: users know both names."""


def nodes_in(*folders):
    """The nodes of all files below some folders, each with its file."""
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return [(path, node) for path in files for node in ast.walk(ast.parse(path.read_text()))]


NODES = nodes_in(Path(tvmtile.__file__).parent)
OTHERS = [Path(__file__).parents[1] / name for name in ("tests", "examples", "benchmarks")]
NO_SUBJECT = re.compile("(What|Who|Which|Those|They|Nobody|It)\\b")


def test_a_name_is_that_of_one_class():
    classes = [node for _, node in NODES if isinstance(node, ast.ClassDef)]
    names = Counter(node.name for node in classes)
    assert {name for name, count in names.items() if count > 1} == SHARED


def test_docstrings_begin_with_their_subject():
    docstrings = [
        (path, node.lineno, node.value.value)
        for path, node in [*NODES, *nodes_in(*OTHERS)]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    inverted = [f"{p}:{n}" for p, n, text in docstrings if NO_SUBJECT.match(str(text))]
    assert inverted == []
