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
