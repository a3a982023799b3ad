"""Softmax and norms of a tensor's last axis."""

from __future__ import annotations

from typing import Any

from tvm import ir
from tvm.relax.dpl import is_const, is_op, wildcard

from tvmtile.ops import programs
from tvmtile.relax.found import Extents, Found, Left, common_dtype, fixed
from tvmtile.relax.graph import Graph, attribute_ints, number, product, shape_of

_X, _WEIGHT, _BIAS = wildcard(), wildcard(), wildcard()
_SOFTMAX = is_op("relax.nn.softmax")(_X)
_LAYER_NORM = is_op("relax.nn.layer_norm")(_X, _WEIGHT, _BIAS)
_RMS_NORM = is_op("relax.nn.rms_norm")(_X, _WEIGHT)

# What torch's rms_norm is exported as.
_TWO, _EPSILON = is_const(), is_const()
_POWER = is_op("relax.power")(_X, _TWO)
_MEAN = is_op("relax.mean")(_POWER)
_ROOT = is_op("relax.rsqrt")(is_op("relax.add")(_MEAN, _EPSILON))
_SCALED = is_op("relax.multiply")(_X, _ROOT)
_RMS_PARTS = is_op("relax.multiply")(_SCALED, _WEIGHT)


def find_rows(graph: Graph, root: ir.Call) -> Found | None:
    """The softmax or the norm that an operator ends, if it ends one.

    Raises
    ------
    Left
        If no program computes it.
    """
    for find in (_softmax, _layer_norm, _rms_norm, _rms_parts):
        found = find(graph, root)
        if found is not None:
            return found
    return None


def _softmax(graph: Graph, root: ir.Call) -> Found | None:
    found = graph.match(_SOFTMAX, root)
    if found is None:
        return None
    x = graph.name(found[_X])
    _check_axes([root.attrs.axis], x)
    return _found("softmax", [root], [x], programs.softmax)


def _layer_norm(graph: Graph, root: ir.Call) -> Found | None:
    found = graph.match(_LAYER_NORM, root)
    if found is None:
        return None
    tensors = [graph.name(found[part]) for part in (_X, _WEIGHT, _BIAS)]
    _check_axes(root.attrs.axes, tensors[0])
    if not (root.attrs.center and root.attrs.scale):
        raise Left("it has no weight or no bias")
    epsilon = float(root.attrs.epsilon)
    return _found("layer_norm", [root], tensors, programs.layer_norm, epsilon=epsilon)


def _rms_norm(graph: Graph, root: ir.Call) -> Found | None:
    found = graph.match(_RMS_NORM, root)
    if found is None:
        return None
    tensors = [graph.name(found[part]) for part in (_X, _WEIGHT)]
    _check_axes(root.attrs.axes, tensors[0])
    epsilon = float(root.attrs.epsilon)
    return _found("rms_norm", [root], tensors, programs.rms_norm, epsilon=epsilon)


def _rms_parts(graph: Graph, root: ir.Expr) -> Found | None:
    found = graph.match(_RMS_PARTS, root)
    if found is None or number(found[_TWO]) != 2 or len(shape_of(found[_WEIGHT])) != 1:
        return None
    mean = found[_MEAN]
    x = graph.name(found[_X])
    epsilon = number(found[_EPSILON])
    if mean.attrs.axis is None or not mean.attrs.keepdims or epsilon is None:
        return None
    _check_axes(mean.attrs.axis, x)
    inside = [found[part] for part in (_POWER, _MEAN, _ROOT, _SCALED, _RMS_PARTS)]
    inside.append(graph.value(found[_ROOT].args[0]))
    tensors = [x, graph.name(found[_WEIGHT])]
    return _found("rms_norm", inside, tensors, programs.rms_norm, epsilon=epsilon)


def _check_axes(axes: Any, x: Any) -> None:
    rank = len(shape_of(x))
    if attribute_ints(axes) not in ([-1], [rank - 1]):
        raise Left(f"its axes are {attribute_ints(axes)}; kernels take the last one")


def _found(
    name: str, inside: list[Any], tensors: list[Any], program: Any, **options: float
) -> Found:
    x, *others = tensors
    shape = shape_of(x)
    if not shape:
        raise Left("the shape of its operand is not known")
    dtype, N = common_dtype(*tensors), fixed("the length of its rows", shape[-1])
    M = product(shape[:-1])
    rows = Extents()("M", M)
    return Found(
        name,
        inside,
        [(x, (M, N)), *((other, (N,)) for other in others)],
        (M, N),
        lambda target: program(rows, N, dtype, target=target, **options),
    )
