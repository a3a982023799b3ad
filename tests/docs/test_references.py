"""Names in pages, docstrings and comments exist: files, modules, names like those of passes."""

from __future__ import annotations

import ast
import io
import pkgutil
import re
import subprocess
import tokenize
from collections.abc import Callable
from pathlib import Path

import pytest
from tvm import ir, relax, tirx

from tvmtile import passes
from tvmtile.ir.operators import all_operators

ROOT = Path(__file__).resolve().parents[2]
LISTED = subprocess.run(
    ["git", "ls-files", "-co", "--exclude-standard"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
).stdout.splitlines()
FILES = [Path(name) for name in LISTED if (ROOT / name).is_file()]
PATHS = {f"/{part}" for file in FILES for part in (file, *file.parents)}
PAGES = [
    file
    for file in FILES
    if file.name in ("README.md", "CONTRIBUTING.md", "decisions.md")
    or (file.suffix == ".md" and file.parts[0] == "docs")
]
SOURCES = [file for file in FILES if file.suffix == ".py"]
TREES = {file: ast.parse((ROOT / file).read_text()) for file in SOURCES}

OTHERS_FILES = re.compile(r"mlx/|steel/|relax/op_|cuda\w*\.h$|tilelang\.|failures/")
EXAMPLES = {"matmul.py", "the_file.py", "fast.json", "fuzz.json", "NAMES.json", "RESULTS.json"}
OTHERS_NAMES = {
    *("AffinityMode", "ThreadGroup", "GetArgConvertCode", "OpPatternKind", "StructuralMutator"),
    *("TensorCore", "TensorFloat", "ThreadSanitizer", "ThreadSync", "TorchScript", "MetaSchedule"),
    *("DataLoader", "RayExecutor", "FlashAttention", "DeepSeek", "KernelBench", "TileOps"),
}
ATTRIBUTES = {
    *("check_indices", "verify", "may_share", "no_tensor_maps", "most_stages", "one_role"),
    *("show_value", "show_tile"),
}
"""Names of TVM's that begin with `tvmtile.`, beside operators and passes."""

pytestmark = pytest.mark.skipif(not FILES, reason="not a clone of the repository")


def prose(file: Path) -> str:
    """The text of a file for people: a page without its programs, or docstrings and comments."""
    text = (ROOT / file).read_text()
    if file.suffix == ".md":
        return re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    docstrings = [
        node.value.value
        for node in ast.walk(TREES[file])
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join([*docstrings, *comments])


SAID = {file: prose(file) for file in (*PAGES, *SOURCES)}


def absent(pattern: str, exists: Callable[[str], bool]) -> list[str]:
    return [
        f"{file}: {found}"
        for file, text in SAID.items()
        for found in re.findall(pattern, text)
        if not exists(found)
    ]


def in_the_repository(path: str) -> bool:
    """Tell whether there is such a path below some folder; braces hold several names."""
    several = re.fullmatch(r"(.*)\{(.*)\}(.*)", path)
    if several is not None:
        before, names, behind = several.groups()
        return all(in_the_repository(f"{before}{name}{behind}") for name in names.split(","))
    return any(known.endswith("/" + path.strip("/").removeprefix("../")) for known in PATHS)


def test_files_that_are_named_exist():
    def exists(path: str) -> bool:
        is_others = OTHERS_FILES.match(path) is not None or Path(path).name in EXAMPLES
        return is_others or in_the_repository(path)

    pattern = r"(?<![\w/.<>{},-])[\w{},./-]*[\w}]\.(?:py|md|tvmscript|json|cc|h)\b(?![\w(])"
    assert absent(pattern, exists) == []


def test_folders_that_are_named_exist():
    assert absent(r"(?<=`)(?!failures)[\w./-]+/(?=`)", in_the_repository) == []


def test_modules_that_are_named_exist():
    known = {*all_operators(), *passes.__all__, *ATTRIBUTES, "flip"}

    def exists(path: str) -> bool:
        if path.split(".")[1] in known:
            return True
        try:
            pkgutil.resolve_name(path)
        except (AttributeError, ImportError):
            return False
        return True

    assert absent(r"(?<![\w./-])tvmtile(?:\.[a-zA-Z]\w+)+", exists) == []


def test_names_that_are_named_exist():
    known = OTHERS_NAMES.union(*map(vars, (ir, tirx, tirx.transform, relax.transform)))
    for tree in TREES.values():
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                    known.add(name)
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.arg(arg=name):
                    known.add(name)
                case ast.Constant(value=str() as name):
                    known.add(name)
    assert absent(r"\b[A-Z][a-z0-9]{2,}(?:[A-Z][a-z0-9]{2,})+\b", known.__contains__) == []


def test_names_that_are_said_to_be_in_a_file_are_there():
    said = [
        (name, path)
        for text in SAID.values()
        for name, path in re.findall(r"`(\w+)`[^`\n]{0,12} (?:in|of)\s+`([\w/]+\.py)`", text)
    ]
    assert said
    for name, path in said:
        homes = [file for file in SOURCES if f"/{file}".endswith(f"/{path}")]
        assert any(re.search(rf"\b{name}\b", (ROOT / home).read_text()) for home in homes), name
