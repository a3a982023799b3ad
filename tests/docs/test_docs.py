"""The generated parts of the documentation are those of today."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest
from tvm.target import codegen

import tvmtile.language as T
from tvmtile import transform
from tvmtile.compat.ignored import IGNORED

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

spec = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)


@pytest.mark.skipif(
    "x86_64" not in {str(name) for name in codegen.llvm_get_targets()},
    reason="TVM's LLVM does not know the page's target",
)
@pytest.mark.nightly
def test_the_page_through_the_passes_has_every_program_of_its_kernels():
    page = build.on_page_markdown(build.PAGE.read_text(), None)
    programs = re.findall(r"<!-- generated: (\w+) -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert len(programs) == 10
    assert [name for name, shown in programs if "```" not in shown] == []
    assert page.count("#### What TVM gets") == 6


def test_each_table_of_the_benchmarks_has_a_place_on_one_page():
    pages = "".join(page.read_text() for page in build.WITH_TABLES)
    tables = build.benchmark_tables()
    with_table = build.filled(pages, dict.fromkeys(tables, "| case | ratio |\n"))
    assert with_table.count("| case | ratio |") == len(tables)
    without = build.filled(with_table, dict.fromkeys(tables, "| other |"))
    assert without.count("| case | ratio |") == 0


def test_the_summary_of_the_readme_covers_the_benchmarks_cases():
    lines = build.benchmark_tables()["ratios"].splitlines()[2:]
    assert len(lines) == len(build.README_KINDS)
    assert all(int(line.split(" | ")[1]) > 0 for line in lines)
    made = build._ratios(
        [("mxfp4 a", "cuBLAS, f16 60 (2.02), copy 4 (0.5)"), ("int4", "cuBLAS, f16 6 (1.1)")]
    )
    assert "| 2 | cuBLAS, f16 1.10 to 2.02 |" in made


@pytest.mark.parametrize("page", build.WITH_TABLES, ids=lambda page: page.name)
def test_a_page_shows_the_figures_of_the_benchmarks(page):
    text = page.read_text()
    assert build.filled(text, build.benchmark_tables()) == text, "make docs"
    assert build.on_page_markdown(text, None) == text  # the site shows it as it is


def test_the_reference_has_every_name_of_the_language():
    reference = build.language_reference()
    own = [
        name
        for name, value in vars(T).items()
        if not name.startswith("_")
        and inspect.isfunction(value)
        and value.__module__.startswith("tvmtile.")
    ]
    assert len(own) > 80
    headings = re.findall(r'(?:heading: "|^### `)T\.(\w+)', reference, flags=re.MULTILINE)
    assert [name for name in own if name not in headings] == []
    assert len(headings) == len(set(headings))


def test_what_stands_in_the_reference_by_its_first_line_has_one():
    lines = build.language_reference().splitlines()
    undocumented = [
        line
        for line, text in zip(lines, lines[2:], strict=False)
        if line[:4] == "### " and not text
    ]
    assert undocumented == []


def test_the_reference_has_every_pass():
    page = build.on_page_markdown("<!-- passes -->", None)
    shown = re.findall(r"^::: tvmtile\.passes\..*?(\w+)$", page, re.MULTILINE)
    assert len(shown) == len(set(shown))
    public = importlib.import_module("tvmtile.passes").__all__
    assert set(shown) == {*public, *build.pass_docstrings()}
    assert "::: tvmtile.passes.gpu.insert_barriers.InsertBarriers\n" in page
    assert page.index("## Check: ") < page.index("## Launch: ") < page.index("FlattenBuffers")


def test_the_glossary_has_terms_in_their_order_and_forty_at_most():
    page = build.on_page_markdown("<!-- glossary -->", None)
    terms = re.findall(r"^\| ([a-z].*?) \| .*\. \|$", page, re.MULTILINE)
    assert 30 < len(terms) <= 40
    assert terms == sorted(terms)
    assert len(page.splitlines()) == len(terms) + 2


SAID_TO_BE_ABSENT = {"from_tilelang": ["alloc_tmem", "ptx_mma", "ws_op"]}


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_the_names_that_pages_give_are_in_the_language(page):
    names = set(re.findall(r"`T\.(\w+)", page.read_text()))
    absent = [name for name in sorted(names) if not hasattr(T, name)]
    assert absent == SAID_TO_BE_ABSENT.get(page.stem, [])


ACT = [
    "tl.disable_tma_lower",
    "tl.disable_warp_specialized",
    "tl.enable_fast_math",
    "tl.disable_thread_storage_sync",
]


def test_each_option_that_changes_nothing_has_a_row():
    page = (DOCS / "from_tilelang.md").read_text()
    section = page.partition("## Options that change nothing")[2].partition("## ")[0]
    rows = re.findall(r"^\| .* \| (.*) \|$", section, re.MULTILINE)
    assert sorted(rows[2:]) == sorted({reason for *_, reason in IGNORED})


def test_each_option_of_tilelang_has_a_row():
    page = (DOCS / "from_tilelang.md").read_text()
    rows = dict(re.findall(r"^\| `(tl\.\w+)` \| (.*) \|$", page, re.MULTILINE))
    reasons = transform._WITHOUT_EFFECT | transform._CANNOT_BE_OFF
    options = [str(key.value) for key in transform.PassConfigKey if key.value.startswith("tl.")]
    assert sorted(rows) == sorted(options)
    for name in options:
        known = name in (*ACT, *transform.ALWAYS_SO)
        assert known or reasons[name] in rows[name]
