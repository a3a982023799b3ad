"""The documentation is true: its programs run, its printed programs are those of today."""

from __future__ import annotations

import importlib.util
import inspect
import re
import runpy
from pathlib import Path

import pytest
from tvm.target import codegen

import tvmtile.language as T

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

spec = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)


@pytest.fixture(scope="module")
def reference() -> str:
    return build.reference()


def fences(text: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page, each as (language, text)."""
    return re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def test_the_programs_of_the_language_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = fences((DOCS / "language.md").read_text())
    names: dict[str, object] = {}
    shown = 0
    for (language, code), (following, text) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language != "python":
            continue
        # Each has a file of its own: a kernel is traced from its source.
        file = tmp_path / f"block_{len(list(tmp_path.iterdir()))}" / "kernel.py"
        file.parent.mkdir()
        file.write_text(code)
        if following != "text":
            names.update(runpy.run_path(str(file), init_globals=names))
            continue
        with pytest.raises(Exception) as raised:  # noqa: PT011 - the text is compared in full
            runpy.run_path(str(file), init_globals=names)
        message = f"{raised.type.__name__}: {raised.value}".replace(f"{file.parent}/", "")
        assert message.splitlines() == text.splitlines()
        shown += 1
    assert shown == 1


@pytest.mark.skipif(
    "x86_64" not in {str(name) for name in codegen.llvm_get_targets()},
    reason="TVM's LLVM does not know the page's target",
)
def test_the_page_shows_what_the_passes_do_today(request):
    page = build.PAGE.read_text()
    made = build.passes_page(page)
    if request.config.getoption("--update-golden"):
        build.PAGE.write_text(made)
    assert build.PAGE.read_text() == made, "docs/through_the_passes.md is old: make docs"
    assert len(re.findall(r"<!-- generated: \w+ -->", page)) == 10


def test_the_tables_of_the_benchmark_have_a_place_in_the_readme():
    readme = build.README.read_text()
    with_table = build.filled(readme, dict.fromkeys(build.BENCHMARKS, "| case | ratio |\n"))
    assert with_table.count("| case | ratio |") == len(build.BENCHMARKS)
    without = build.filled(with_table, dict.fromkeys(build.BENCHMARKS, "| other |"))
    assert without.count("| case | ratio |") == 0


def test_the_readme_shows_the_figures_of_the_benchmarks():
    readme = build.README.read_text()
    assert build.filled(readme, build.benchmark_tables()) == readme, "make docs"


def test_the_reference_has_every_name_of_the_language(reference):
    own = [
        name
        for name, value in vars(T).items()
        if not name.startswith("_")
        and inspect.isfunction(value)
        and value.__module__.startswith("tvmtile.")
    ]
    assert len(own) > 80
    assert [name for name in own if f"`T.{name}" not in reference] == []


def test_every_entry_of_the_reference_says_something(reference):
    empty = re.findall(r"^###+ (.*)\n+(?=#|\Z)", reference, flags=re.MULTILINE)
    assert empty == []


def test_a_docstring_becomes_markdown():
    docstring = (
        "Add.\n\nParameters\n----------\na : int\n    First.\nb\n    Second,\n    in two lines.\n\n"
        "Examples\n--------\n>>> add(1, 2)\n3\n"
    )
    assert build.markdown(docstring) == [
        "Add.",
        "",
        "**Parameters**",
        "",
        "- `a` (int)  ",
        "  First.",
        "- `b`  ",
        "  Second,",
        "  in two lines.",
        "",
        "**Examples**",
        "",
        "```python",
        ">>> add(1, 2)",
        "3",
        "```",
    ]


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/cuda.md",
        "docs/tuning.md",
        "docs/language.md",
        "docs/through_the_passes.md",
    ],
)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    targets = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    missing = [link for link in targets if not (ROOT / page).parent.joinpath(link).exists()]
    assert missing == []
    assert targets or page != "README.md"
