"""Print the test files that a change since main can affect, the nearest first: `make test-changed`.

Nearest are files that were changed, and those whose path mirrors a changed module's. Then they come by
the number of imports between them and a change, imports in functions too.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def changed(base: str) -> list[Path]:
    """Files that differ from where this branch left another, committed or not."""

    def git(*words: str) -> list[str]:
        return subprocess.check_output(["git", *words], cwd=ROOT, text=True).splitlines()

    (start,) = git("merge-base", base, "HEAD")
    names = git("diff", "--name-only", start) + git("ls-files", "--others", "--exclude-standard")
    return [ROOT / name for name in names]


def module(path: Path) -> str:
    names = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield node.module
    for folder in path.parents:  # pytest imports these
        yield module(folder / "conftest.py") if folder.is_relative_to(ROOT) else ""


def beginnings(path: Path) -> Iterator[str]:
    """The modules that a changed file stands for, and the tests that mirror it."""
    relative = path.relative_to(ROOT)
    if relative.parts[0] == "tvmtile" and path.suffix == ".py":
        yield module(path)
        mirrored = ROOT / "tests" / relative.relative_to("tvmtile")
        yield module(mirrored.with_name(f"test_{path.stem}.py"))
        yield module(mirrored.parent.with_name(f"test_{path.parent.name}.py"))
    elif relative.parts[0] == "tests" and path.suffix == ".py":
        yield module(path)
    else:  # a page, an example, a program of a test: the tests of its folder
        below = (
            ROOT / "tests" / relative.relative_to("tests" if relative.parts[0] == "tests" else "")
        )
        folders = (
            f for f in below.parents if f != ROOT / "tests" and f.is_relative_to(ROOT / "tests")
        )
        found = next(filter(None, (sorted(f.rglob("test_*.py")) for f in folders)), [])
        yield from map(module, found)


def nearest_first(files: list[Path]) -> list[Path]:
    graph = grimp.build_graph("tvmtile", cache_dir=None)
    paths = {module(path): path for path in TESTS}
    for name in paths:
        graph.add_module(name)
    for name, path in paths.items():
        for other in set(imported(path)) & graph.modules - {name}:
            graph.add_import(importer=name, imported=other)
    reached = dict.fromkeys(
        name for file in files for name in beginnings(file) if name in graph.modules
    )
    left = list(reached)
    for name in left:  # which grows
        found = sorted(graph.find_modules_that_directly_import(name) - reached.keys())
        reached.update(dict.fromkeys(found))
        left += found
    return [paths[name] for name in left if name in paths and paths[name].name.startswith("test_")]


if __name__ == "__main__":
    for path in nearest_first(changed(sys.argv[1] if len(sys.argv) > 1 else "main")):
        print(path.relative_to(ROOT))
