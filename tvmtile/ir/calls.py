"""Calls of TVM's operators: which one a call is of, and what it may do."""

from __future__ import annotations

from typing import Any, TypeGuard

from tvm import ir

from tvmtile._tvm import OPAQUE, is_node
from tvmtile.ir.nodes import cached_per_node

_EXTERN = ("tirx.call_extern", "tirx.call_pure_extern")


def op_name(node: object) -> str:
    """The name of the operator that a node calls; empty where it calls none."""
    op: Any = node.op if is_node(node, ir.Call) else None
    return _name(op) if type(op) is ir.Op else ""


def effect_of(call: ir.Call) -> int:
    """A call's effect by TVM's `CallEffectKind`; an unknown function may do anything."""
    op: Any = call.op
    return _effect(op) if type(op) is ir.Op else OPAQUE


@cached_per_node
def _name(op: ir.Op) -> str:
    return str(op.name)


@cached_per_node
def _effect(op: ir.Op) -> int:
    return int(op.get_attr("TCallEffectKind"))


def is_if_then_else(value: object) -> TypeGuard[ir.Call]:
    """Tell whether an expression is one of two values, of which only that one is computed."""
    return op_name(value) == "prim.if_then_else"


def takes_address(node: object) -> TypeGuard[ir.Call]:
    """Tell whether an expression is the address of an element."""
    return op_name(node) == "tirx.address_of"


def is_extern_call(node: object) -> TypeGuard[ir.Call]:
    """Tell whether a call is that of a function, by name, that is in no module of TVM's."""
    return op_name(node) in _EXTERN
