"""Views for people of what each pass changed."""

from __future__ import annotations

import re
import sys
import types

import pytest

import tvmtile
import tvmtile.language as T
from tvmtile.jit.lowering_view import LoweringView


@T.prim_func
def double(A: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            A[i] = A[i] + A[i]


@pytest.fixture(scope="module")
def kernel():
    return tvmtile.compile(double, target="llvm")


def test_text_has_each_pass_and_its_changes(kernel):
    text = str(LoweringView(double, kernel.lowering))
    headings = [line for line in text.splitlines() if not line.startswith("  ")]
    assert [line.partition(":")[0] for line in headings] == [name for name, _ in kernel.lowering]
    assert any(line.endswith(": nothing") for line in headings)
    assert re.search(r"^  -.*T.parallel\(64\)", text, re.MULTILINE)
    assert re.search(r"^  \+.*for i in range\(64\)", text, re.MULTILINE)
    assert "@@ -0,0" not in text  # the first pass is compared with the program
    assert "\x1b[" not in text


def test_a_terminal_gets_colours_and_a_file_none(kernel, monkeypatch, capsys):
    kernel.show_lowering()
    assert "\x1b[" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    kernel.show_lowering("tvmtile.")
    shown = capsys.readouterr().out
    assert "\x1b[32m+" in shown
    assert "\x1b[31m-" in shown
    names = re.findall(r"\x1b\[1m(.*?)\x1b\[0m", shown)
    assert "tvmtile.NormalizeOperands" in names
    assert all("tvmtile." in name for name in names)


def test_a_notebook_gets_what_it_can_fold(kernel, monkeypatch):
    displayed = []
    notebook = types.SimpleNamespace(
        get_ipython=lambda: types.SimpleNamespace(kernel=object()),
        display=types.SimpleNamespace(display=displayed.append),
    )
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    kernel.show_lowering("tvmtile.")
    (view,) = displayed
    page = view._repr_html_()
    assert page.count("<details>") == page.count("</details>") > 1
    assert "tvmtile.NormalizeOperands: nothing</div>" in page
    assert re.search(r"<summary>tvmtile\.LowerParallelOnCpu \(\d+ lines\)</summary>", page)
    assert "T.Buffer((64,), &quot;float32&quot;)" in page
    coloured = re.findall(r'style="([^"]*background[^"]*)"', page)
    assert coloured
    assert all(re.search("(^|;)color:", style) for style in coloured)  # themes may be dark
    assert "font-family:monospace" in page


def test_kernels_and_functions_say_what_they_are(kernel):
    assert repr(kernel) == "<Kernel double(A: float32[64]) for llvm>"
    cuda = tvmtile.compile(double, out_idx=0, target={"kind": "cuda", "arch": "sm_80"})
    assert repr(cuda) == "<Kernel double(A: float32[64]), results [0] for sm_80>"

    @tvmtile.jit
    def factory(n, block=32):
        return double

    assert repr(factory).endswith("factory(n, block=32), auto, 0 compiled>")
    tuned = tvmtile.autotune(configs={"block": [1]})(factory)
    assert repr(tuned).endswith("0 compiled>, 0 tuned>")
