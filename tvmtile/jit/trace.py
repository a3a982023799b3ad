"""What every pass did to a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import tvm
from tvm import ir, tirx
from tvm.target import Target

from tvmtile.jit.cuda.compilation import compiling


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
