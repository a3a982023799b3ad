"""OrderIterations: loops say which tensors their iterations store to one after the other."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var, mapped, nodes_in
from tvmtile.analysis.effects import Effect, effects_of
from tvmtile.analysis.kernel_info import KernelInfo, info_of
from tvmtile.ir.annotations import BLOCKS_ANNOTATION, ORDER_OF_STORES
from tvmtile.ir.kernels import is_parallel, with_kernels
from tvmtile.ir.operands import origin_of
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import replace_loop
from tvmtile.ir.scopes import is_global, is_private

_ORDERED = (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)


@prim_func_pass("OrderIterations")
def OrderIterations(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write down in loops the tensors to which their iterations store in their order.

    A later iteration may write elements that an earlier one wrote, by other threads: what it writes
    stays. Here all serial loops are the user's. Later there are those that operators and `T.Parallel`
    become, among whose iterations there is no order; InsertBarriers must tell them apart.

    That of a `while` is written down in the kernel's loop. Iterations that do the work of blocks store
    apart from each other. Where values in memory that threads share decide which elements are stored,
    as in a scatter, the user keeps the iterations apart, or orders them: a barrier an iteration would
    slow down all that do store apart. So does who stores elements by the index of a thread.
    """
    return with_kernels(func, _with_order)


def _with_order(kernel: tirx.For) -> tirx.For:
    info = info_of(kernel)

    def stores_in(stmt: tirx.Stmt) -> list[tuple[str, Effect]]:
        """The stores to tensors whose places are known, with the tensors' names."""
        return [
            (info.root(access.buffer).name, access)
            for access in effects_of(stmt)
            if access.writes
            and is_global(access.root)
            and not _is_looked_up(access, info)
            and not (info.names_threads and _is_by_thread(access))
        ]

    stored: dict[ir.Var, dict[str, None]] = {}  # by the variables of loops
    for repeated in nodes_in(kernel, tirx.While):
        for name, _ in stores_in(repeated):
            stored.setdefault(kernel.loop_var, {})[name] = None
    for name, access in stores_in(kernel):
        for loop in access.around:
            if is_parallel(loop):
                break
            if _has_order(loop):
                stored.setdefault(loop.loop_var, {})[name] = None

    def annotated(loop: tirx.For) -> tirx.For:
        if loop.loop_var not in stored:
            return loop
        order = {ORDER_OF_STORES: list(stored[loop.loop_var])}
        return replace_loop(loop, annotations={**loop.annotations, **order})

    return mapped(kernel, (tirx.For, annotated)) if stored else kernel


def _has_order(loop: tirx.For) -> bool:
    """Tell whether the iterations of a loop are run one after the other, by a block."""
    is_ordered = loop.thread_binding is None and loop.kind in _ORDERED
    return is_ordered and BLOCKS_ANNOTATION not in loop.annotations


def _is_by_thread(access: Effect) -> bool:
    """Tell whether each thread does an access for itself, where threads are named."""
    return access.operator is None and not any(map(is_parallel, access.around))


def _is_looked_up(access: Effect, info: KernelInfo) -> bool:
    """Tell whether memory that threads share says which elements are written."""
    places = access.indices if access.operator is None else origin_of(access.operand)
    return any(is_buffer_var(var) and not is_private(var) for var in info.behind(places))
