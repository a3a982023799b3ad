"""Facts about a statement where it is visited."""

from __future__ import annotations

import contextlib

import pytest
from tvm.script import tirx as T
from tvm.sym import Analyzer

from tvmtile.ir.scoped_rewriter import ScopedRewriter


class _Provable(ScopedRewriter):
    """Notes whether the index of a store is certainly below 4, for some stores."""

    def __init__(self, asked):
        super().__init__()
        self._asked = asked
        self.found = {}

    def visit_store(self, store):
        name = store.buffer.name
        if name in self._asked:
            self.found[name] = self.analyzer.can_prove(store.indices[0] < 4)
        return store


@pytest.mark.parametrize("asked", ["ABCDE", "A", "B", "C", "D", "E", "ACE", "BD", ""])
def test_the_analyzer_knows_what_is_around_whenever_it_is_asked(monkeypatch, asked):
    """Nothing is bound, which takes TVM longer than the visit of a statement, where nobody asks."""
    bound = []
    bind = Analyzer.bind

    def noted(self, var, value, **options):
        bound.append(var)
        bind(self, var, value, **options)

    monkeypatch.setattr(Analyzer, "bind", noted)

    @T.prim_func
    def main(
        A: T.Buffer((16,)), B: T.Buffer((16,)), C: T.Buffer((16,)), D: T.Buffer((16,)),
        E: T.Buffer((16,)), n: T.int32,
    ):  # fmt: skip
        for i in range(8):
            twice: T.let = i * 2
            A[twice] = T.float32(0)
            if i < 2:
                same: T.let = i + n - n
                B[twice] = T.float32(0)
                C[same] = T.float32(0)
            else:
                E[i - 2] = T.float32(0)
            quarter: T.let = i // 4
            D[quarter] = T.float32(0)

    visitor = _Provable(asked)
    assert visitor.rewrite(main.body).same_as(main.body)
    expected = {"A": False, "B": True, "C": True, "D": True, "E": False}
    assert visitor.found == {name: expected[name] for name in asked}
    assert bool(bound) == bool(asked)


def test_a_condition_is_forgotten_where_a_visit_fails():
    class Fails(_Provable):
        def visit_if(self, branch):
            with contextlib.suppress(ValueError):
                super().visit_if(branch)
            return branch

        def visit_store(self, store):
            if store.buffer.name == "B":
                raise ValueError
            return super().visit_store(store)

    @T.prim_func
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            if i < 4:
                B[i] = T.float32(0)
            A[i] = T.float32(0)

    visitor = Fails("A")
    visitor.rewrite(main.body)
    assert visitor.found == {"A": False}
