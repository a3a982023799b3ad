"""Which test files are likely to find a mistake in a file: those that mirror it or speak of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath


def near(file: str, tests: Mapping[str, str], source: str, most: int = 6) -> list[str]:
    """The test files nearest to a file of the package, the nearest first.

    Parameters
    ----------
    file : str
        Its path in the tree.
    tests : Mapping
        The texts of all test files, by path.
    source : str
        Its text: the names that it defines are looked for.
    most : int
        How many to take.
    """
    path = PurePosixPath(file).with_suffix("")
    if path.name == "__init__":
        path = path.parent
    folder = PurePosixPath("tests", *path.parts[1:-1])
    pass_name = "".join(word.capitalize() for word in path.name.split("_"))
    names = re.findall(r"^(?:def|class) ([a-zA-Z]\w{5,})", source, re.MULTILINE)
    words = [".".join(path.parts), pass_name, *names]

    def score(test: str) -> int:
        there = PurePosixPath(test)
        shared = sum(a == b for a, b in zip(there.parent.parts, folder.parts, strict=False)) - 1
        return (
            8 * (there == folder / f"test_{path.name}.py")
            + 5 * (path.name in there.stem)
            + 5 * (there.parent == folder / path.name)
            + 3 * (path.parent.name in there.stem)
            + 2 * (there.parent == folder)
            + shared * (1 if file.endswith(".py") else 3)
            + min(6, 2 * sum(bool(re.search(rf"\b{re.escape(w)}\b", tests[test])) for w in words))
        )

    ranked = sorted(tests, key=lambda test: (-score(test), len(tests[test]), test))
    return [test for test in ranked if score(test) >= 3][:most]


def test_files(tree: Path) -> dict[str, str]:
    """The test files of a tree, by path in it."""
    files = sorted((tree / "tests").rglob("test_*.py"))
    return {file.relative_to(tree).as_posix(): file.read_text(encoding="utf-8") for file in files}
