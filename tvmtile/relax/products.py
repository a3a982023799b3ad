"""`relax.matmul` with what is done to its result: bias, activation, cast."""

from __future__ import annotations

from typing import Any

from tvm import ir
from tvm.relax.dpl import is_op, wildcard

from tvmtile.ops import programs
from tvmtile.relax.found import DTYPES, Extents, Found, Left, common_dtype, fixed
from tvmtile.relax.graph import Graph, attribute_ints, calls_of, is_same_shape, product, shape_of

_X, _OTHER = wildcard(), wildcard()
_MATMUL = is_op("relax.matmul")(_X, _OTHER)
_CAST = is_op("relax.astype")(_X)
_RESHAPE = is_op("relax.reshape")(_X, wildcard())
_BROADCAST = is_op("relax.broadcast_to")(_X, wildcard())
_PERMUTE = is_op("relax.permute_dims")(_X)
_BIAS = (is_op("relax.add")(_X, _OTHER), is_op("relax.add")(_OTHER, _X))
_SIGMOID = is_op("relax.sigmoid")(_X)
_ACTIVATIONS = {
    "relu": (is_op("relax.nn.relu")(_X),),
    "silu": (
        is_op("relax.nn.silu")(_X),
        is_op("relax.multiply")(_X, _SIGMOID),
        is_op("relax.multiply")(_SIGMOID, _X),
    ),
    "gelu": (is_op("relax.nn.gelu")(_X),),
    "gelu_tanh": (is_op("relax.nn.gelu_tanh")(_X),),
}


class _Epilogue:
    """The operators behind a product, from the last to the first."""

    def __init__(self, graph: Graph, root: ir.Expr) -> None:
        self._graph = graph
        self.inside: list[Any] = []
        self.names: list[str] = []
        self.bias: Any = None
        self.activation: str | None = None
        value = self._cast(root)
        value = self._activated(value)
        value = self._biased(value)
        self.product = graph.match(_MATMUL, value)
        if self.product is not None:
            self.inside.append(self.product[_MATMUL])

    def _under(self, pattern: Any, value: ir.Expr) -> Any:
        """The operand of an operator, through reshapes that keep the rows of a product."""
        found = self._graph.match(pattern, value)
        if found is None:
            return None
        self.inside += calls_of(found, _X)
        return self._through_reshapes(found[_X])

    def _through_reshapes(self, value: Any) -> Any:
        found = self._graph.match(_RESHAPE, value)
        while found is not None and _keeps_rows(found[_RESHAPE], found[_X]):
            self.inside.append(found[_RESHAPE])
            value = found[_X]
            found = self._graph.match(_RESHAPE, value)
        return value

    def _cast(self, root: ir.Expr) -> ir.Expr:
        if str(root.ty.dtype) not in DTYPES:
            return root
        value = self._under(_CAST, root)
        return root if value is None else value

    def _activated(self, value: ir.Expr) -> ir.Expr:
        for name, patterns in _ACTIVATIONS.items():
            for pattern in patterns:
                under = self._under(pattern, value)
                if under is not None:
                    self.activation = name
                    return under
        return value

    def _biased(self, value: ir.Expr) -> ir.Expr:
        for pattern in _BIAS:
            found = self._graph.match(pattern, value)
            if found is not None and _is_row(found[_OTHER], value):
                self.bias = self._graph.name(found[_OTHER])
                self.inside.append(found[pattern])
                return self._through_reshapes(found[_X])
        return value


def find_product(graph: Graph, root: ir.Expr) -> Found | None:
    """The product that an operator ends, if it ends one.

    Raises
    ------
    Left
        If no program computes it.
    """
    epilogue = _Epilogue(graph, root)
    if epilogue.product is None:
        return None
    core = epilogue.product[_MATMUL]
    a, b = (_Operand(graph, arg) for arg in core.args)
    parts = ["matmul", None if epilogue.bias is None else "bias", epilogue.activation]
    return _found(", ".join(filter(None, parts)), root, epilogue, a, b)


def _found(name: str, root: Any, epilogue: _Epilogue, a: _Operand, b: _Operand) -> Found:
    bias = [] if epilogue.bias is None else [epilogue.bias]
    dtype = common_dtype(a.tensor, b.tensor, *bias)
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise Left("an operand is no matrix, or has an unknown shape")
    is_shared = len(b.shape) == 2
    if is_shared and len(a.shape) > 2:
        a.keep_order()
    if not is_shared and not is_same_shape(a.shape[:-2], b.shape[:-2]):
        raise Left("its operands are broadcast in their leading axes")
    (M, K), N = a.matrix, fixed("the number of its columns", b.matrix[1])
    extents = Extents()
    lead = () if is_shared else (product(a.shape[:-2]),)
    M = product((*a.shape[:-2], M)) if is_shared else M
    options: dict[str, Any] = {
        "batch": extents("batch", lead[0]) if lead else None,
        "transpose_A": a.is_transposed,
        "transpose_B": b.is_transposed,
        "bias": bool(bias),
        "activation": epilogue.activation,
        "out_dtype": str(root.ty.dtype),
    }
    sizes = extents("M", M), N, extents("K", K)
    return Found(
        name,
        epilogue.inside,
        [
            (a.tensor, (*lead, *_stored(a, M, K))),
            (b.tensor, (*lead, *_stored(b, K, N))),
            *((row, (N,)) for row in bias),
        ],
        (*lead, M, N),
        lambda target: programs.matmul(*sizes, dtype, target=target, **options),
    )


class _Operand:
    """An operand of a product, looked at through what only arranges it."""

    def __init__(self, graph: Graph, arg: Any) -> None:
        self._given = graph.name(arg)
        value = graph.value(arg)
        found = graph.match(_BROADCAST, value)
        while found is not None and _is_shared(found[_X], value):
            value = found[_X]
            found = graph.match(_BROADCAST, value)
        self.tensor = graph.name(value)
        self.shape = shape_of(self.tensor)
        self.is_transposed = False
        under = swapped(graph, value)
        if under is not None:
            self._plain, self.tensor, self.is_transposed = self.tensor, graph.name(under), True

    @property
    def matrix(self) -> tuple[Any, Any]:
        """Rows and columns in the product."""
        return self.shape[-2], self.shape[-1]

    def keep_order(self) -> None:
        """Take the tensor as it is transposed by another operator."""
        if self.is_transposed:
            self.tensor, self.is_transposed = self._plain, False


def swapped(graph: Graph, value: ir.Expr) -> Any:
    """The value of which one has the transposed matrices; None of others."""
    found = graph.match(_PERMUTE, value)
    rank = len(shape_of(value))
    if found is None or rank < 2:
        return None
    axes = found[_PERMUTE].attrs.axes
    order = list(range(rank))[::-1] if axes is None else attribute_ints(axes)
    return found[_X] if order == [*range(rank - 2), rank - 1, rank - 2] else None


def _stored(operand: _Operand, rows: Any, columns: Any) -> tuple[Any, Any]:
    return (columns, rows) if operand.is_transposed else (rows, columns)


def _keeps_rows(value: Any, under: Any) -> bool:
    row = shape_of(value)[-1:]
    return bool(row) and is_same_shape(row, shape_of(under)[-1:])


def _is_row(bias: Any, value: Any) -> bool:
    """Tell whether a tensor is one row for all of a value's."""
    *lead, row = shape_of(bias) or (0,)
    return all(extent == 1 for extent in lead) and is_same_shape([row], shape_of(value)[-1:])


def _is_shared(under: Any, value: Any) -> bool:
    """Tell whether a broadcast repeats nothing, or a matrix for all of a batch."""
    matrix, shape = shape_of(under), shape_of(value)
    return is_same_shape(matrix, shape) or (len(matrix) == 2 and is_same_shape(matrix, shape[-2:]))
