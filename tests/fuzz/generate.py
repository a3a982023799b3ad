"""Random tile programs.

A program is right by construction: no element is read before it is written, no two blocks and no two
iterations of a `T.Parallel` touch an element that one of them writes, and numbers stay within their
dtypes. (The interpreter checks it; what it refuses is a mistake here.) So a program that a target
refuses, or that gives other numbers than the interpreter, shows a limit or a defect of the compiler.

A seed gives the same program and the same inputs on every machine. The size is the greatest number of
statements of a kernel, those in loops and the last stores not counted.
"""

from __future__ import annotations

from random import Random

from tests.fuzz.chains import ChainMaker
from tests.fuzz.degenerate import DegenerateMaker
from tests.fuzz.indices import IndexMaker
from tests.fuzz.kernels import KernelMaker
from tests.fuzz.numbers import NumberMaker
from tests.fuzz.parts import Module
from tests.fuzz.pipelines import ExitMaker, PipelineMaker
from tests.fuzz.program import Program
from tests.fuzz.reducers import ReducerMaker
from tests.fuzz.shapes import ShapeMaker
from tests.fuzz.threads import ThreadMaker
from tests.fuzz.views import ViewMaker

__all__ = [
    "SPECIAL",
    "generate",
    "generate_chained",
    "generate_degenerate",
    "generate_exited",
    "generate_extreme",
    "generate_indexed",
    "generate_pipelined",
    "generate_reduced",
    "generate_shaped",
    "generate_threaded",
    "generate_viewed",
]


def generate(seed: int, size: int = 10) -> Program:
    """The program of a seed and a size."""
    return _of_kernels(KernelMaker, seed, size)


def generate_pipelined(seed: int, size: int = 6) -> Program:
    """The program of a seed that has pipelined loops, which may be split between two roles.

    Half of its size is the greatest number of statements beside the copies and products of a loop, and
    of those behind it.
    """
    return _of_loops(PipelineMaker, seed, size)


def generate_chained(seed: int, size: int = 3) -> Program:
    """The program of a seed whose pipelined loops have chains of products, as attention has."""
    return _of_loops(ChainMaker, seed, size)


def generate_exited(seed: int, size: int = 6) -> Program:
    """The program of a seed whose pipelined loops stand in a loop that some blocks leave early."""
    return _of_loops(ExitMaker, seed, size)


def generate_viewed(seed: int, size: int = 6) -> Program:
    """The program of a seed whose tiles and tensors have several names."""
    return _of_kernels(ViewMaker, seed, size)


def generate_indexed(seed: int, size: int = 6) -> Program:
    """The program of a seed whose indices are computed: counted down, divided, clamped, looked up."""
    return _of_kernels(IndexMaker, seed, size)


def generate_shaped(seed: int, size: int = 6) -> Program:
    """The program of a seed whose tiles have up to four axes, and whose loops are left early.

    Parameters
    ----------
    seed : int
        Of the program and of its inputs.
    size : int
        The greatest number of statements of a kernel, those in loops and the last stores not counted.
    """
    return _of_kernels(ShapeMaker, seed, size)


def generate_degenerate(seed: int, size: int = 6) -> Program:
    """The program of a seed that has extents of 0, or no axes, and what is never reached."""
    return _of_kernels(DegenerateMaker, seed, size)


def generate_threaded(seed: int, size: int = 8) -> Program:
    """The program of a seed whose statements name the thread that does them."""
    return _of_loops(ThreadMaker, seed, size)


def generate_reduced(seed: int, size: int = 4) -> Program:
    """The program of a seed that has reducers, and other totals that loops carry."""
    return _of_kernels(ReducerMaker, seed, size)


def generate_extreme(seed: int, size: int = 10) -> Program:
    """The program of a seed with NaN, infinities, ends of ranges, conversions, wrapping integers.

    Parameters
    ----------
    seed : int
        Of the program and of its inputs.
    size : int
        How many statements are tried: those without a meaning are left out.
    """
    return NumberMaker(seed, size).make()


def _of_kernels(maker: type[KernelMaker], seed: int, size: int) -> Program:
    """One kernel, or two that follow each other."""
    rng = Random(seed)
    module = Module(rng)
    for _ in range(2 if rng.random() < 0.15 else 1):
        maker(module, size).make()
    return Program(module.source(seed), seed)


def _of_loops(maker: type[PipelineMaker] | type[ThreadMaker], seed: int, size: int) -> Program:
    """One kernel."""
    module = Module(Random(seed))
    maker(module, size).make()
    return Program(module.source(seed), seed)


SPECIAL = {
    "pipelines": generate_pipelined,
    "chains": generate_chained,
    "exits": generate_exited,
    "views": generate_viewed,
    "indices": generate_indexed,
    "shapes": generate_shaped,
    "extremes": generate_extreme,
    "degenerate": generate_degenerate,
    "threads": generate_threaded,
    "reducers": generate_reduced,
}
"""Makers of programs of one kind, by what the programs are full of."""
