"""Which test files are likely to find a mistake in a file: those that mirror it or speak of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath


class Near:
    """Looks for them in a tree.

    Parameters
    ----------
    tests, sources : Mapping
        The texts of all test files, and of the package, by path.
    """

    def __init__(self, tests: Mapping[str, str], sources: Mapping[str, str]) -> None:
        self.tests = tests
        self._sources = sources
        self._words = {test: set(re.findall(r"\w+", text)) for test, text in tests.items()}

    def files(self, file: str, most: int = 6) -> list[str]:
        """The test files nearest to a file of the package, the nearest first."""
        path = _module_of(file)
        dotted = ".".join(path.parts)
        users = [other for other, text in self._sources.items() if f"{dotted} import" in text]
        of_users = [mirror for user in users for mirror in _mirrors(_module_of(user))]
        own, of_folder = _mirrors(path)
        names = _NAMES.findall(self._sources.get(file, ""))
        names.append("".join(word.capitalize() for word in path.name.split("_")))
        reach = 1 if file.endswith(".py") else 3  # what is not Python no test imports

        def score(test: str) -> int:
            there = PurePosixPath(test)
            pairs = zip(there.parent.parts, own.parent.parts, strict=False)
            mentions = len(self._words[test].intersection(names)) + (dotted in self.tests[test])
            return (
                12 * (there == own)
                + 8 * (there == of_folder)
                + 8 * (there.parent == own.with_name(path.name))
                + 4 * (path.name in there.stem)
                + 5 * min(2, of_users.count(there))
                + 2 * (there.parent == own.parent)
                + reach * (sum(a == b for a, b in pairs) - 1)
                + 2 * min(3, mentions)
            )

        ranked = sorted(self.tests, key=lambda test: (-score(test), len(self.tests[test]), test))
        return [test for test in ranked if score(test) >= _LEAST][:most]


_NAMES = re.compile(r"^(?:def|class) ([a-zA-Z]\w{5,})", re.MULTILINE)
_LEAST = 3


def _module_of(file: str) -> PurePosixPath:
    path = PurePosixPath(file).with_suffix("")
    return path.parent if path.name == "__init__" else path


def _mirrors(module: PurePosixPath) -> tuple[PurePosixPath, PurePosixPath]:
    """The test file of a module, and that of its folder."""
    folder = PurePosixPath("tests", *module.parts[1:-1])
    return folder / f"test_{module.name}.py", folder.with_name(f"test_{folder.name}.py")


def texts_of(tree: Path, pattern: str) -> dict[str, str]:
    """The texts of files of a tree, by path in it."""
    files = sorted(tree.glob(pattern))
    return {file.relative_to(tree).as_posix(): file.read_text(encoding="utf-8") for file in files}
