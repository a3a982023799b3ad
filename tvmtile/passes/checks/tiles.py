"""CheckTiles: what a kernel does to its own tiles means the same in every thread."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import DataType, ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import buffer_of, indices_of, nodes_in
from tvmtile.analysis.effects import Effect, MbarrierElement
from tvmtile.analysis.kernel_info import KernelInfo, info_of, let_values
from tvmtile.errors import InvalidOperand, NestingError, OutOfBounds, SourceLocation, warn
from tvmtile.ir.kernels import binds_thread, is_parallel, kernels_of
from tvmtile.ir.operands import constant, describe, ends_of, literal
from tvmtile.ir.operators import fixed_layouts, operator_of, operators_in
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains, has_effect, substitute
from tvmtile.ir.scopes import is_by_elements, is_global, is_local_array
from tvmtile.ir.spans import location_of

_MOST_HELD_WHOLE = 64
"""Elements of a fragment that a thread may well hold all of, in registers."""


@prim_func_pass("CheckTiles")
def CheckTiles(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Refuse elements that a thread does not have, or no tile has, and totals out of their order.

    The program is not changed. What is refused, and warned of, in this order:

    - An element of `T.alloc_local` that a variable of T.Parallel indexes. Every thread has an array of
      its own, and does a few of the iterations: each array would hold a few of the elements.
    - A serial loop over the elements of a fragment that is spread over the threads: every thread would
      come to every element, of which it holds a few. A fragment is spread where a tile operator
      accumulates into it (a matrix instruction fixes which thread holds which element), or where
      T.Parallel visits it, unless it is small. A small fragment, or one that is only copied into, or
      visited by serial loops alone, can be held whole by every thread, and so can one whose layout the
      user fixes.
    - An element of a tile that the first or the last iteration of its loops puts outside it. Tensors
      are guarded; tiles are not, so that such a store would overwrite what lies beside the tile. What
      stands under a condition, or in a loop that may not run, is taken to be right.
    - A reducer that is used out of order. On a GPU each thread has totals of its own from the beginning
      to the end, so that what is read before, or ended twice, is not what the program says. Operators
      name what they do to a reducer themselves (`TileOp.role`), and contribute in iterations that the
      threads share. A tile that is cleared and stored to instead of begun, as in older programs, must
      only be ended, in the loops in which it was cleared.
    - A warning: a tile operator adds to a tile that nothing has written before, or a tile is read that
      nothing writes in the whole kernel. An operator accumulates where it both reads and writes a tile.
      Anything written to the tile earlier in the program, in a branch or a loop too, is taken for its
      initial value, so a program that gives one is never warned about.

    - A wait at an mbarrier at which nothing arrives, and on which no copy completes.

    ```
    T.gemm(A_shared, B_shared, C_local)   # warns: gemm updates C_local[64, 64] float32, ...
    for i in T.serial(64):
        C_local[i, 0] = 0                 # refused: every row of C_local is held by other threads
    row_max = T.alloc_fragment((32,), "float32")
    for i in T.Parallel(64):
        row_max[i] = 0                    # refused: i reaches 63
    ```

    Raises
    ------
    InvalidOperand
        For an element of a thread's own array, for a reducer, and for a wait without an end.
    NestingError
        For a serial loop over a fragment.
    OutOfBounds
        For an element outside of its tile.
    """
    kernels = list(map(info_of, kernels_of(func)))
    for check in _CHECKS:
        for kernel in kernels:
            check(kernel)
    return func


# Which threads have an element -------------------------------------------------------------------


def _check_locals(kernel: KernelInfo) -> None:
    for access in kernel.effects:
        if not is_local_array(access.root):
            continue
        for loop in access.around:
            if is_parallel(loop) and loop.loop_var in kernel.behind(access.indices):
                raise InvalidOperand(
                    f"{loop.loop_var.name!r} of T.Parallel indexes {describe(access.root)}, of "
                    "which every thread has one for itself",
                    help="use T.alloc_fragment for a tile that the threads share",
                    location=access.location,
                )


def _check_fragments(kernel: KernelInfo) -> None:
    accesses = kernel.effects
    spread = {access.root for access in accesses if _spreads(access, kernel)}
    spread -= {buffer for op in operators_in(kernel.launch.body) for buffer in fixed_layouts(op)}
    for access in accesses:
        loop = _serial_index(access, kernel) if access.root in spread else None
        if loop is not None:
            raise NestingError(
                f"the serial loop over {loop.loop_var.name!r} visits elements of the fragment "
                f"{describe(access.root)}, which are spread over the threads of the block",
                help="visit them in T.Parallel, or T.copy the fragment to a shared tile and index that",
                location=access.location,
            )


def _spreads(access: Effect, kernel: KernelInfo) -> bool:
    if not is_by_elements(access.root):
        return False
    op = access.operator
    if op is not None and op.is_tile:
        return access.writes and (access.is_update or op.role == "product")
    extents = [constant(extent) or math.inf for extent in access.root.ty.shape]
    return math.prod(extents) > _MOST_HELD_WHOLE and any(
        is_parallel(loop) and loop.loop_var in kernel.behind(access.indices)
        for loop in access.around
    )


def _serial_index(access: Effect, kernel: KernelInfo) -> tirx.For | None:
    """The serial loop whose variable is in the indices of an element; None in T.Parallel."""
    if any(is_parallel(loop) for loop in access.around):
        return None
    behind = kernel.behind(access.indices)
    used = [loop for loop in access.around if loop.loop_var in behind]
    if any(binds_thread(loop) for loop in used):
        return None  # written by thread index: the user decides who holds what
    return next((loop for loop in used if loop.thread_binding is None), None)


# Bounds ------------------------------------------------------------------------------------------


def _check_bounds(kernel: KernelInfo) -> None:
    """Look at elements of tiles in the first and in the last iteration of the loops around them."""
    names = let_values(kernel.launch.body, wanted=_is_fixed)
    for access in kernel.effects:
        if access.buffer not in kernel.allocated or is_global(access.buffer) or access.is_opaque:
            continue
        if access.is_certain and not access.conditions and all(map(_runs, access.around)):
            known = [x for x in access.around if None not in (constant(x.min), constant(x.extent))]
            first = {loop.loop_var: loop.min for loop in known}
            last = {loop.loop_var: loop.min + loop.extent - 1 for loop in known}
            for axis, index in enumerate(_element(access)):
                _check_index(access, axis, index, names, (first, last))


def _check_index(
    access: Effect,
    axis: int,
    index: ir.Expr,
    names: dict[ir.Var, ir.Expr],
    ends: tuple[dict[ir.Var, Any], ...],
) -> None:
    limit = constant(access.buffer.ty.shape[axis])
    if limit is None or contains(index, tirx.Cast, _narrows):
        return  # its largest value is not that of the last iteration
    for place in dict.fromkeys(ends_of(index)):
        for values in ends:
            reached = constant(substitute(substitute(place, names), values))
            if reached is not None and not 0 <= reached < limit:
                raise OutOfBounds(
                    f"{describe(access.buffer)} has {limit} elements along axis {axis}, and the index "
                    f"`{index}` reaches {reached}",
                    help="allocate the tile as large as the loops over it",
                    location=access.location,
                )


def _element(access: Effect) -> Sequence[ir.Expr]:
    """The indices of an element; a tile operator may name the one with which its tile begins."""
    if access.operator is None:
        return access.indices or ()
    return indices_of(access.operand) if isinstance(access.operand, ir.TensorLoad) else ()


def _runs(loop: tirx.For) -> bool:
    """Tell whether a loop has an iteration."""
    return loop.thread_binding is not None or (constant(loop.extent) or 0) > 0


def _is_fixed(value: ir.Expr) -> bool:
    return ir.is_prim_expr(value) and not contains(value, ir.TensorLoad)


def _narrows(cast: tirx.Cast) -> bool:
    source, target = (DataType(str(each.ty.dtype)) for each in (cast.value, cast))
    return int(target.bits) < int(source.bits)


# Reducers ----------------------------------------------------------------------------------------


@dataclass
class _Total:
    """The state of a reducer so far."""

    is_open: bool = False
    """The reducer is begun and not ended."""
    is_strict: bool = False
    """The reducer was begun by its operator: only operators may touch it until it is ended."""
    has_ended: bool = False
    """The reducer was ended before, and may be an ordinary tile since."""
    loops: tuple[tirx.For, ...] = ()
    """The loops in which it was begun."""
    location: SourceLocation | None = None
    """Where."""


def _check_reducers(kernel: KernelInfo) -> None:
    totals: dict[ir.Var, _Total] = {}
    reducers: dict[ir.Var, None] = {}
    before: Any = None
    for access in kernel.effects:
        total = totals.setdefault(access.root, _Total())
        if not _is_of_reducer(access):
            _ordinary(access, total)
        elif access.operator is not before:  # one that ends in place has it as both operands
            reducers[access.root] = None
            _follow_role(access, total)
        before = access.operator
    for buffer in reducers:
        if totals[buffer].is_open and not totals[buffer].has_ended:
            raise InvalidOperand(
                f"{describe(buffer)} is never finalized",
                help="call T.finalize_reducer after the contributions",
                location=totals[buffer].location,
            )


def _is_of_reducer(access: Effect) -> bool:
    """Tell whether an operator uses the buffer as a reducer; the target of a finalize is none."""
    role = "" if access.operator is None else access.operator.role
    return access.reads or access.is_update if role == "end" else role in ("begin", "contribute")


def _follow_role(access: Effect, total: _Total) -> None:
    assert access.operator is not None
    name, role = access.operator.name, access.operator.role
    if role == "begin":
        if total.is_open and total.is_strict:
            raise _misuse(access, f"double T.{name} of", "finalize it before it begins again")
        total.is_open = total.is_strict = True
        total.has_ended = False
        total.loops, total.location = access.around, access.location
        return
    if not (total.is_open and (total.is_strict or role == "end")):
        raise _misuse(access, f"{name} before T.reducer_init of", "begin the totals before")
    if role == "end":
        if not _same(access.around, total.loops):
            raise _misuse(
                access,
                f"{name} is not in the scope of its T.reducer_init, of",
                "begin and finalize the totals in the same loops",
            )
        total.is_open, total.has_ended = False, True
    elif not any(map(is_parallel, access.around)):
        raise _misuse(
            access, f"{name} outside any T.Parallel, of", "contribute in a loop over T.Parallel(1)"
        )


def _ordinary(access: Effect, total: _Total) -> None:
    if total.is_open and total.is_strict:
        what = "store to" if access.writes else "read of"
        raise _misuse(
            access,
            f"illegal {what} reducer",
            "contribute by T.reducer_update, and read what T.finalize_reducer gives",
        )
    if access.writes and not total.is_open:
        total.is_open, total.is_strict = True, False
        total.loops, total.location = access.around, access.location


def _same(a: tuple[tirx.For, ...], b: tuple[tirx.For, ...]) -> bool:
    return len(a) == len(b) and all(
        x.loop_var.same_as(y.loop_var) for x, y in zip(a, b, strict=True)
    )


def _misuse(access: Effect, problem: str, remedy: str) -> InvalidOperand:
    return InvalidOperand(
        f"{problem} {describe(access.root)}", help=remedy, location=access.location
    )


# Waits -------------------------------------------------------------------------------------------


def _check_waits(kernel: KernelInfo) -> None:
    """Refuse waits at mbarriers of which the kernel says no more: their first phase never ends."""
    operators = [(call, operator_of(call)) for call in nodes_in(kernel.launch.body, ir.Call)]
    calls = [(call, op.effects()) for call, op in operators if op is not None]
    waits = [
        (call, _mbarrier(effects.waits_at), effects)
        for call, effects in calls
        if effects.waits_at is not None
    ]
    if not waits:
        return
    made = [call for call, effects in calls if effects.counts is not None]
    mentions = _mentions(kernel.launch.body)
    for call in (*made, *(call for call, *_ in waits)):
        mentions -= _mentions(call)
    for call, element, effects in waits:
        mbarrier = element.root
        mentioned = sum(n for other, n in mentions.items() if element.may_be(other))
        if mentioned > 1 or mbarrier not in kernel.allocated:  # its allocation names it
            continue
        is_one_of_several = element.number is not None and constant(mbarrier.ty.shape[0]) != 1
        name = f"{mbarrier.name}[{element.number}]" if is_one_of_several else mbarrier.name
        what = name if is_one_of_several else describe(mbarrier)
        problem = f"nothing arrives at the mbarrier {what}, so that a wait never ends"
        remedy = f"T.mbarrier_arrive({name}), or name it as `barrier` of a copy"
        parity = constant(Analyzer().simplify(effects.parity))
        if parity is None:  # each may be that of the phase before the first
            warn(f"{problem}: {remedy}", location_of(call))
        elif parity % 2 == 0:
            raise InvalidOperand(problem, help=remedy, location=location_of(call))


def _mentions(node: Any) -> Counter[MbarrierElement]:
    """The number of times that each buffer is named, and each element of a constant index."""
    elements = Counter(map(_mbarrier, nodes_in(node, ir.TensorLoad)))
    names = Counter(MbarrierElement(var, None) for var in nodes_in(node, ir.Var))
    names.subtract(MbarrierElement(element.root, None) for element in elements.elements())
    return +names + elements


def _mbarrier(load: ir.TensorLoad) -> MbarrierElement:
    return MbarrierElement(buffer_of(load), literal(indices_of(load)[0]))


# Values ------------------------------------------------------------------------------------------


def _check_values(kernel: KernelInfo) -> None:
    """Warn of tiles that are accumulated into, or read, and have no value."""
    accesses = [each for each in kernel.effects if each.root in kernel.allocated]
    written: set[ir.Var] = set()
    for access in accesses:
        if access.writes and access.root not in written:
            if access.is_update:
                _warn_of_accumulation(access)
            written.add(access.root)
    # A call may write the elements that it gets, as reductions over threads do.
    calls = filter(has_effect, nodes_in(kernel.launch.body, ir.Call))
    given = (each for call in calls for each in call.args if isinstance(each, ir.TensorLoad))
    written |= {buffer_of(load) for load in given}
    for access in accesses:
        if access.root not in written:
            written.add(access.root)  # one warning is enough
            warn(
                f"{describe(access.root)} is read, and nothing writes it: copy to it, or write "
                f"T.clear({access.root.name}) before",
                access.location,
            )


def _warn_of_accumulation(access: Effect) -> None:
    op = access.operator
    if op is None or not op.is_tile:
        return
    remedy = f"T.clear({access.root.name}) before it"
    clearing = [name for name in ("clear", "clear_accum") if hasattr(op, name)]
    remedy += "".join(f", or {name}=True" for name in clearing)
    warn(
        f"{op.name} updates {describe(access.root)}, which holds no value yet: write {remedy}",
        access.location,
    )


_CHECKS = (
    _check_locals,
    _check_fragments,
    _check_bounds,
    _check_reducers,
    _check_waits,
    _check_values,
)
