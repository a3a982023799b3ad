"""Results that are kept for nodes."""

from __future__ import annotations

import gc

from tvm import tirx

from tvmtile.ir import nodes
from tvmtile.ir.nodes import cached_per_node


def test_a_function_runs_once_for_each_node():
    asked = []

    @cached_per_node
    def name(var):
        asked.append(var.name)
        return var.name

    x, y = tirx.Var("x", "int32"), tirx.Var("y", "int32")
    total = x + y
    assert [name(x), name(total.a), name(y), name(x)] == ["x", "x", "y", "x"]
    assert asked == ["x", "y"]


def test_another_node_at_an_address_is_another_one(monkeypatch):
    monkeypatch.setattr(nodes, "_MOST_KEPT", 8)
    name = cached_per_node(lambda var: var.name)
    for number in range(100):
        assert name(tirx.Var(f"v{number}", "int32")) == f"v{number}"
        gc.collect(0)
