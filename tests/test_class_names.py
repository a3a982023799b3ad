"""One word, one meaning: no two classes of the package have one name."""

import ast
from collections import Counter
from pathlib import Path

import tvmtile

SHARED = {"Kernel"}
"""As it is traced, T.Kernel, and compiled, tvmtile.Kernel: users know both names."""


def test_a_name_is_that_of_one_class():
    trees = [ast.parse(path.read_text()) for path in Path(tvmtile.__file__).parent.rglob("*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    names = Counter(node.name for node in classes)
    assert {name for name, count in names.items() if count > 1} == SHARED
