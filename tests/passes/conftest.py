"""What tests of passes share: compiling for the CPU with the pipelining passes and without."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tvm
from tvm import ir
from tvm.target import Target

from tvmtile import errors, pipeline
from tvmtile.errors import TileWarning
from tvmtile.passes.tile.bind_extents import BindExtents
from tvmtile.passes.tile.inject_pipeline import InjectPipeline
from tvmtile.passes.tile.legalize import Legalize
from tvmtile.passes.tile.lower_exits import LowerExits
from tvmtile.passes.tile.plan_pipeline import PlanPipeline


def planned(program):
    """A tile program after PlanPipeline."""
    mod = ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    for step in (BindExtents, Legalize, LowerExits, PlanPipeline):
        mod = step(mod)
    return mod


def pipelined(program):
    """A tile program after InjectPipeline."""
    return InjectPipeline(planned(program))


def text(program):
    """The pipelined program as TVMScript."""
    return pipelined(program).script()


def build(program, *, stages=True):
    """The program compiled for the CPU, with its loops pipelined or not."""
    mod = ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    passes = list(pipeline.lowering_passes(Target("llvm")))
    if stages:
        after = next(i for i, step in enumerate(passes) if step.info.name == Legalize.info.name)
        passes[after + 1 : after + 1] = [PlanPipeline, InjectPipeline]
    for step in passes:
        mod = step(mod)
    return tvm.compile(mod, target="llvm")["main"]


def run(program, *arrays, stages=True):
    """Run a program on copies of numpy arrays and integers; returns what the arrays are then."""
    arguments = [tvm.runtime.tensor(x) if isinstance(x, np.ndarray) else x for x in arrays]
    build(program, stages=stages)(*arguments)
    return [x.numpy() for x in arguments if not isinstance(x, int)]


def check(program, *arrays):
    """The result of a program is the same with and without pipelines; returns it."""
    plain = run(program, *arrays, stages=False)
    result = run(program, *arrays)
    for a, b in zip(result, plain, strict=True):
        np.testing.assert_array_equal(a, b)
    return result


def check_unpipelined(program, reason, *arrays):
    """The loops of a program run as they are written, and a warning gives the reason."""
    errors._SHOWN_WARNINGS.clear()
    with pytest.warns(TileWarning, match=reason):
        mod = planned(program)
    assert "num_stages" not in mod.script()
    assert "tvmtile.stage" not in mod.script()
    errors._SHOWN_WARNINGS.clear()
    with pytest.warns(TileWarning, match=reason):
        return check(program, *arrays)


@pytest.fixture
def pipelines():
    """Functions that plan, rewrite, run and compare programs with pipelined loops."""
    functions = (planned, pipelined, text, build, run, check, check_unpipelined)
    return SimpleNamespace(**{function.__name__: function for function in functions})
