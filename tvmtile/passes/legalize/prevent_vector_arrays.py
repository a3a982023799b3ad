"""PreventVectorArrays: arrays that are read by elements are not declared as vectors, for Metal.

The generator declares an array that is written as vectors of four as an array of vectors, where
elements that are read one by one lie at known places in them: at `8 * x + c`, say. It then insists that
the stride divides the width of a vector, 8 does not divide 4, and gives up. An index whose stride it
can't see keeps the array one of elements.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import buffer_of, indices_of, mapped, nodes_in
from tvmtile.analysis.aliases import Aliases
from tvmtile.codegen.device import device_pass
from tvmtile.ir.kernels import with_body


@device_pass("PreventVectorArrays")
def PreventVectorArrays(func: tirx.PrimFunc, kind: str) -> tirx.PrimFunc:
    """Hide such strides in kernels for Metal."""
    if kind != "metal":
        return func
    root = Aliases(func.body).root
    lanes = _vector_lanes(func.body, root)
    analyzer = Analyzer()

    def read(load: ir.TensorLoad) -> ir.Expr:
        width = lanes.get(root(buffer_of(load)))
        last = indices_of(load)[-1]
        if width is None or isinstance(last, tirx.Ramp):
            return load
        stride = int(analyzer.modular_set(last).coeff)
        if stride <= width or stride % width:
            return load
        hidden = tirx.bitwise_or(last, tirx.const(0, str(last.ty.dtype)))
        return tirx.BufferLoad(buffer_of(load), [*indices_of(load)[:-1], hidden])

    return with_body(func, mapped(func.body, (ir.TensorLoad, read)))


def _vector_lanes(body: tirx.Stmt, root: Callable[[ir.Var], ir.Var]) -> dict[ir.Var, int]:
    """The widest vectors that each array is accessed as."""
    lanes: dict[ir.Var, int] = {}
    for access in nodes_in(body, (tirx.BufferStore, ir.TensorLoad)):
        indices = indices_of(access)
        if len(indices) and isinstance(indices[-1], tirx.Ramp):
            array = root(buffer_of(access))
            lanes[array] = max(lanes.get(array, 0), int(indices[-1].lanes))
    return lanes
