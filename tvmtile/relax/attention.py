"""Attention: `relax.nn.attention`, and products around a softmax."""

from __future__ import annotations

import math
from typing import Any

from tvm import ir, tirx
from tvm.relax.dpl import DFPattern, is_const, is_op, wildcard

from tvmtile.ir.types import Index
from tvmtile.ops import programs
from tvmtile.relax.found import Extents, Found, Left, common_dtype, fixed
from tvmtile.relax.graph import (
    Graph,
    attribute_ints,
    calls_of,
    is_same_shape,
    number,
    product,
    shape_of,
)
from tvmtile.relax.products import swapped

_Q, _K, _V = wildcard(), wildcard(), wildcard()
_ATTENTION = is_op("relax.nn.attention")(_Q, _K, _V)
_X, _OTHER, _NUMBER = wildcard(), wildcard(), is_const()
_MATMUL = is_op("relax.matmul")(_X, _OTHER)
_SCALED = (
    is_op("relax.multiply")(_X, _NUMBER),
    is_op("relax.multiply")(_NUMBER, _X),
    is_op("relax.divide")(_X, _NUMBER),
)
_VIEWS = (
    is_op("relax.reshape")(_X, wildcard()),
    is_op("relax.broadcast_to")(_X, wildcard()),
)
_MASKED = is_op("relax.add")(_X, _OTHER)
_SOFTMAX = is_op("relax.nn.softmax")(_X)

# torch exports a softmax of rows that may be masked as a whole: they become zeros.
_LOWEST, _REPLACED = is_const(), is_const()
_MASKED_OUT = is_op("relax.equal")(_X, _LOWEST)
_SEEN = is_op("relax.max")(is_op("relax.astype")(is_op("relax.logical_not")(_MASKED_OUT)))
_NONE_SEEN = is_op("relax.logical_not")(is_op("relax.astype")(_SEEN))
_ZEROS = is_op("relax.full_like")(_SOFTMAX, _REPLACED)
_SAFE_SOFTMAX = is_op("relax.where")(_NONE_SEEN, _ZEROS, _SOFTMAX)

# And the mask of `is_causal`: 0 where the number of a key is at most that of the query.
_KEYS, _QUERIES = wildcard(), wildcard()
_KEY, _QUERY = is_op("relax.expand_dims")(_KEYS), is_op("relax.expand_dims")(_QUERIES)
_BEFORE = is_op("relax.less_equal")(is_op("relax.subtract")(_KEY, _QUERY), _NUMBER)
_ALL = is_op("relax.full")(wildcard(), _OTHER)
_ZERO, _INFINITE = is_const(), is_const()
_CAUSAL = tuple(
    is_op("relax.where")(condition, _ZERO, _INFINITE)
    for condition in (
        _BEFORE,
        is_op("relax.logical_and")(_BEFORE, _ALL),
        is_op("relax.logical_and")(_ALL, _BEFORE),
    )
)


def find_attention(graph: Graph, root: ir.Expr) -> Found | None:
    """The attention that an operator ends, if it ends one.

    Raises
    ------
    Left
        If no program computes it.
    """
    return _operator(graph, root) or _products(graph, root)


def _operator(graph: Graph, root: Any) -> Found | None:
    if getattr(root.op, "name", "") == "relax.nn.attention_bias":
        raise Left("its scores have a bias")
    found = graph.match(_ATTENTION, root)
    if found is None:
        return None
    q, k, v = (graph.name(found[part]) for part in (_Q, _K, _V))
    if root.attrs.window_size is not None:
        raise Left("it has a window")
    mask = root.attrs.causal_mask
    (batch, queries, heads, _dim), (_, keys, *_) = _shape(q, 4), _shape(k, 4)
    if mask is not None and str(mask) != "TopLeft" and not is_same_shape([queries], [keys]):
        raise Left(f"its mask is {mask}, and there are other keys")
    scale = None if root.attrs.scale is None else float(root.attrs.scale)
    return _found(
        [root], (q, k, v), batch, heads, mask is not None, scale, layout="blhd",
    )  # fmt: skip


def _products(graph: Graph, root: Any) -> Found | None:
    """`softmax(Q @ K.T * scale + mask) @ V`, with matrices of a batch in any number of leading axes."""
    outer = graph.match(_MATMUL, root)
    if outer is None:
        return None
    inside = [root]
    scores = _under_softmax(graph, outer[_X], inside)
    if scores is None:
        return None
    scores, is_causal = _unmasked(graph, scores, inside)
    scores, scale = _unscaled(graph, scores, inside)
    inner = graph.match(_MATMUL, _unarranged(graph, scores, inside))
    if inner is None:
        raise Left("the scores of its softmax are not a product with one factor, and a causal mask")
    inside.append(inner[_MATMUL])
    q, scale_q = _unscaled(graph, inner[_X], [])
    k, scale_k = _unscaled(graph, inner[_OTHER], [])
    k = swapped(graph, k)
    if k is None:
        raise Left("its keys are not transposed by an operator before the product")
    k, scale_below = _unscaled(graph, k, [])
    tensors = [graph.name(_unarranged(graph, part, [])) for part in (q, k, outer[_OTHER])]
    factor = scale * scale_q * scale_k * scale_below
    return _of_products(inside, tensors, is_causal, factor)


def _of_products(inside: list[Any], tensors: list[Any], is_causal: bool, scale: float) -> Found:
    lead, *others = (_shape(tensor)[:-2] for tensor in tensors)
    if not all(is_same_shape(lead, other) for other in others):
        raise Left("its operands are broadcast in their leading axes")
    if not (scale > 0 and math.isfinite(scale)):
        raise Left(f"its scores are multiplied by {scale}")
    batch, heads = product(lead[:1]), lead[1] if len(lead) == 2 else None
    if not isinstance(heads, int):
        batch, heads = product(lead), 1
    return _found(inside, tuple(tensors), batch, heads, is_causal, scale, layout="bhld")


def _found(
    inside: list[ir.Call],
    tensors: tuple[Any, ...],
    batch: ir.Expr,
    heads: Index,
    is_causal: bool,
    scale: float | None,
    layout: str,
) -> Found:
    q, k, v = (_shape(tensor) for tensor in tensors)
    dtype = common_dtype(*tensors)
    length, head = (-2, -3) if layout == "bhld" else (-3, -2)
    dim = fixed("the length of a head", q[-1])
    value_dim = fixed("the length of a head of values", v[-1])
    heads = fixed("the number of heads", heads)
    if layout == "blhd" and k[head] != heads:
        raise Left(f"{heads} heads of queries share {k[head]} of keys")
    if not is_same_shape(k[:-1], v[:-1]):
        raise Left("its keys and values do not go together")
    extents = Extents()
    sizes = extents("batch", batch), heads, extents("queries", q[length]), dim
    options: dict[str, Any] = {
        "keys": extents("keys", k[length]),
        "value_dim": value_dim,
        "causal": is_causal,
        "scale": scale,
        "layout": layout,
    }

    def shape(count: int, length: Index, elements: int) -> tuple[Any, ...]:
        axes = (count, length) if layout == "bhld" else (length, count)
        return (batch, *axes, elements)

    return Found(
        "attention",
        inside,
        [
            (tensors[0], shape(heads, q[length], dim)),
            (tensors[1], shape(heads, k[length], dim)),
            (tensors[2], shape(heads, k[length], value_dim)),
        ],
        shape(heads, q[length], value_dim),
        lambda target: programs.attention(*sizes, dtype, target=target, **options),
    )


def _under_softmax(graph: Graph, weights: ir.Expr, inside: list[Any]) -> Any:
    """The argument of the softmax that an expression is the result of; None of another one."""
    value = _unarranged(graph, weights, inside)
    found = graph.match(_SAFE_SOFTMAX, value)
    if found is not None and _numbers(graph, found, _LOWEST, _REPLACED) != [-math.inf, 0]:
        return None
    found = found or graph.match(_SOFTMAX, value)
    if found is None:
        return None
    softmax = found[_SOFTMAX]
    if attribute_ints([softmax.attrs.axis])[0] not in (-1, len(_shape(softmax)) - 1):
        return None
    inside += calls_of(found, _X)
    return found[_X]


def _unmasked(graph: Graph, scores: ir.Expr, inside: list[Any]) -> tuple[Any, bool]:
    """Scores without a causal mask, and whether there was one."""
    found = graph.match(_MASKED, scores)
    if found is None:
        return scores, False
    if not any(_is_causal(graph, pattern, found[_OTHER], scores) for pattern in _CAUSAL):
        raise Left("what is added to the scores of its softmax is no causal mask")
    inside.append(found[_MASKED])
    return found[_X], True


def _is_causal(graph: Graph, pattern: DFPattern, mask: Any, scores: Any) -> bool:
    found = graph.match(pattern, mask)
    if found is None or not is_same_shape(_shape(found[pattern]), _shape(scores)[-2:]):
        return False
    is_all = _OTHER not in found or number(graph.value(found[_OTHER])) == 1
    return (
        is_all
        and _counts(graph, found[_KEY], axis=-2)
        and _counts(graph, found[_QUERY], axis=-1)
        and _numbers(graph, found, _NUMBER, _ZERO, _INFINITE) == [0, 0, -math.inf]
    )


def _numbers(graph: Graph, found: Any, *parts: DFPattern) -> list[float | None]:
    return [number(graph.value(found[part])) for part in parts]


def _counts(graph: Graph, call: Any, axis: int) -> bool:
    """Tell whether a value is 0, 1, 2 and so on, with an axis of one element beside."""
    numbers = graph.value(call.args[0])
    if getattr(getattr(numbers, "op", None), "name", "") != "relax.arange":
        return False
    start, _, step = (int(n) if isinstance(n, tirx.IntImm) else None for n in numbers.args)
    return attribute_ints(call.attrs.axis) in ([axis], [axis + 2]) and (start, step) == (0, 1)


def _unscaled(graph: Graph, value: Any, inside: list[Any]) -> tuple[Any, float]:
    """A value without the constant that it is multiplied by, and the constant."""
    value = _unarranged(graph, value, inside)
    for pattern in _SCALED:
        found = graph.match(pattern, value)
        factor = None if found is None else number(graph.value(found[_NUMBER]))
        if found is not None and factor:
            inside.append(found[pattern])
            is_division = pattern is _SCALED[-1]
            under = _unarranged(graph, found[_X], inside)
            return under, 1 / factor if is_division else factor
    return value, 1.0


def _unarranged(graph: Graph, value: Any, inside: list[Any]) -> ir.Expr:
    """The value without reshapes and broadcasts that keep its matrices."""
    value = graph.value(value)
    for pattern in _VIEWS:
        found = graph.match(pattern, value)
        if found is not None and _keeps_matrices(value, found[_X]):
            inside.append(value)
            return _unarranged(graph, found[_X], inside)
    return value


def _keeps_matrices(value: Any, under: Any) -> bool:
    some, others = shape_of(value), shape_of(under)
    if min(len(some), len(others)) < 2:
        return False
    is_whole = is_same_shape([product(some)], [product(others)])
    return is_whole and is_same_shape(some[-2:], others[-2:])


def _shape(tensor: ir.Expr, rank: int | None = None) -> tuple[Any, ...]:
    shape = shape_of(tensor)
    if len(shape) < 2 or (rank is not None and len(shape) != rank):
        raise Left("the shape of an operand is not known")
    return shape
