"""Each pass that a program went through, for people to look at."""

from __future__ import annotations

import difflib
import html
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import ir, tirx
from tvm.target import Target

from tvmtile.jit.cuda import compiling
from tvmtile.jit.signature import name_of


@tvm.instrument.pass_instrument
class _Recorder:
    """Keeps the module after each pass."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, ir.IRModule]] = []

    def run_after_pass(self, mod: ir.IRModule, info: Any) -> None:
        self.steps.append((str(info.name), mod))


def lowering_steps(
    func: tirx.PrimFunc, target: Target, config: Mapping[str, object]
) -> list[tuple[str, ir.IRModule]]:
    """Run the pipeline once more and keep the module after each pass."""
    from tvmtile.jit.build import build, pass_context

    recorder = _Recorder()
    is_cuda = target.kind.name == "cuda"
    with pass_context({}, [recorder]), compiling(target) if is_cuda else nullcontext():
        build(func, target, config)
    return list(recorder.steps)


def module_before(name: str, steps: Sequence[tuple[str, ir.IRModule]]) -> ir.IRModule:
    """The module that a pass was given.

    `steps` are passes that were run, each with the module after it.
    """
    position = [step for step, _ in steps].index(name)
    return steps[position - 1][1]


_COLOURS = {"+": "\x1b[32m", "-": "\x1b[31m", "@": "\x1b[36m"}
_HEADING, _PLAIN = "\x1b[1m", "\x1b[0m"
# A notebook's theme may be dark, so that a background has its colour of text.
_STYLES = {
    "+": "background:#e6ffec;color:#1f2328",
    "-": "background:#ffebe9;color:#1f2328",
    "@": "color:#888",
}
_CONTEXT = 3


@dataclass(frozen=True)
class PassView:
    """A pass and what it changed."""

    name: str
    """The pass."""
    before: str
    after: str
    """The program as TVMScript."""

    @property
    def diff(self) -> list[str]:
        """The lines that it changed, with some around them; none where it changed nothing."""
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), lineterm="", n=_CONTEXT
        )
        return list(lines)[2:]  # without the names of two files


class LoweringView:
    """The passes that a program went through.

    In a notebook it shows itself; printed, it is text without colours. With a `name` it has only passes
    whose name has this in it.
    """

    def __init__(
        self,
        program: tirx.PrimFunc,
        steps: Sequence[tuple[str, ir.IRModule]],
        name: str = "",
    ) -> None:
        first = ir.IRModule({name_of(program): program})
        texts = [mod.script() for mod in (first, *(mod for _, mod in steps))]
        views = map(PassView, (pass_ for pass_, _ in steps), texts, texts[1:])
        self.passes = tuple(view for view in views if name in view.name)

    def __str__(self) -> str:
        return "\n".join(self._lines(is_coloured=False))

    def show(self) -> None:
        """Display it in a notebook, write it elsewhere, with colours to a terminal."""
        notebook = sys.modules.get("IPython")
        shell = notebook.get_ipython() if notebook is not None else None
        if notebook is not None and hasattr(shell, "kernel"):
            notebook.display.display(self)
            return
        sys.stdout.write("\n".join(self._lines(sys.stdout.isatty())) + "\n")

    def _lines(self, is_coloured: bool) -> Iterator[str]:
        for view in self.passes:
            note = "" if view.diff else ": nothing"
            yield f"{_HEADING}{view.name}{_PLAIN}{note}" if is_coloured else f"{view.name}{note}"
            for line in view.diff:
                colour = _COLOURS.get(line[0]) if is_coloured else None
                yield f"  {colour}{line}{_PLAIN}" if colour is not None else f"  {line}"

    def _repr_html_(self) -> str:
        return "\n".join(map(_as_html, self.passes))


def _as_html(view: PassView) -> str:
    if not view.diff:
        return f'<div style="color:#888">{html.escape(view.name)}: nothing</div>'
    lines = "".join(
        f'<span style="display:block;{_STYLES.get(line[0], "")}">{html.escape(line) or " "}</span>'
        for line in view.diff
    )
    changed = sum(line[0] in "+-" for line in view.diff)
    return (
        f"<details><summary>{html.escape(view.name)} ({changed} lines)</summary>"
        f'<pre style="margin:0;font-family:monospace">{lines}</pre></details>'
    )
