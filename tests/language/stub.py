"""The stub of what `tvmtile.language` gets by statements that a type checker can't follow.

`python tests/language/stub.py` writes it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import tvmtile.language as T
from tvmtile.frontend.dtypes import DType

PATH = Path(T.__file__).with_name("scripted.pyi")

HEAD = '''\
"""What TVMScript and a loop over dtypes make of `T` when it is imported; written by a test."""

from typing import Any

# A dtype is a string, casts a value when it is called, and annotates a parameter.

'''


def text() -> str:
    """The stub, as it should be."""
    values = {name: value for name, value in vars(T).items() if _is_part_of_it(name, value)}
    return HEAD + "".join(
        _declared(name, values[name]) for name in sorted(values.keys() - _followed())
    )


def _is_part_of_it(name: str, value: object) -> bool:
    is_ours = inspect.ismodule(value) and value.__name__.startswith("tvmtile.")
    return not (name.startswith("_") or is_ours or name == "Any")


def _followed() -> set[str]:
    """The names that a type checker finds by itself."""
    found = {"prim_func", "macro"}
    for node in ast.parse(Path(T.__file__).read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module != "tvm.script.tirx":
            names = [alias.asname or alias.name for alias in node.names]
            if names == ["*"]:
                names = importlib.import_module(str(node.module)).__all__
            found.update(names)
    return found


def _declared(name: str, value: object) -> str:
    if isinstance(value, DType) or inspect.isclass(value) or not callable(value):
        return f"{name}: Any\n"
    return f"def {name}({_parameters(value)}) -> Any: ...\n"


def _parameters(function: object) -> str:
    try:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "*args: Any, **kwargs: Any"
    parts: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not any(p[0] == "*" for p in parts):
            parts.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else " = ..."
        parts.append(f"{stars}{parameter.name}: Any{default}")
    return ", ".join(parts)


if __name__ == "__main__":
    PATH.write_text(text())
