"""The work of compiling: how often passes visit programs and ask what is known of expressions.

Seconds depend on the machine; these numbers do not.
"""

from __future__ import annotations

from collections import Counter

import pytest
import tvm
from tvm.sym import Analyzer

import tvmtile
from benchmarks.gpu_programs import PROGRAMS
from tvmtile import _tvm

GEMMS = {
    "tile by tile": (4096, 4096, 4096, "float16", "nn", 128, 128, 32, 3, 128, 8),
    "persistent": (8192, 8192, 8192, "float16", "nn", 256, 128, 64, 4, 256, 8),
}


@pytest.fixture
def work(monkeypatch):
    """The visits and questions from here on."""
    counted = Counter()

    def count(owner, name, what):
        function = getattr(owner, name)

        def counting(*args, **options):
            counted[what] += 1
            return function(*args, **options)

        monkeypatch.setattr(owner, name, counting)

    for name in ("_structural_walk", "_structural_map", "_structural_mutate"):
        count(_tvm, name, "visits")
    for name in ("simplify", "can_prove", "can_prove_equal", "const_int_bound", "bind"):
        count(Analyzer, name, "questions")
    return counted


@pytest.mark.full
@pytest.mark.parametrize(
    ("gemm", "visits", "questions"), [("tile by tile", 5350, 1430), ("persistent", 5550, 1600)]
)
def test_a_gemm_takes_about_the_work_that_it_took(work, gemm, visits, questions):
    """A tenth more than when this was written; a pass that compares all pairs takes several times it.

    Visits vary by a few per cent with what was compiled before in the process.

    Whoever adds a pass may raise them, by what it has to do.
    """
    program = PROGRAMS["gemm"](*GEMMS[gemm])
    with tvm.transform.PassContext(instruments=[]):  # the verifier's is no work of a user's
        tvmtile.compile(program, target={"kind": "cuda", "arch": "sm_90a"})
    assert visits / 2 < work["visits"] <= visits
    assert questions / 2 < work["questions"] <= questions
