"""CheckLoops: loops are left where they can be, and `T.Parallel` has iterations without an order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import Mutator, buffer_of, mutated, nodes_in
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.conflicts.expressions import bits
from tvmtile.analysis.effects import Effect
from tvmtile.analysis.kernel_info import KernelInfo, info_of, let_values
from tvmtile.analysis.nests import AccessedElements, Nest, elements_in, elements_of, sample
from tvmtile.errors import DataRace, NestingError
from tvmtile.ir.kernels import (
    binds_thread,
    is_continue,
    is_kernel,
    is_loop_exit,
    is_parallel,
)
from tvmtile.ir.operands import constant, describe
from tvmtile.ir.operators import operators_in
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains, defined_in, substitute
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.scopes import is_private
from tvmtile.ir.spans import location_of
from tvmtile.ir.types import is_integer


@prim_func_pass("CheckLoops")
def CheckLoops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Refuse exits of loops that can't be left, and iterations of `T.Parallel` that exchange elements.

    No iteration of `T.Parallel` comes after the one that breaks; `continue` ends its iteration.

    The iterations are shared out to the threads and have no order. So it is a race where one of them
    reads an element of a shared tile or of a tensor that another one writes, or where two of them
    write different values. Iterations may add to an element of a fragment: they run one after the
    other in the thread that holds it. But none reads an element of a fragment that it does not write
    and another one does, and none reads what another one has left in a `T.alloc_var`, of which every
    thread has one. What has several names is compared by its places in memory.

    Only what is certain is refused: two iterations are found that touch one element, whatever the
    arguments of the kernel are. Atomics order what they do. The program is not changed.

    ```
    for i in T.Parallel(64):
        s[i] = s[63 - i]           # refused: iteration 0 reads what iteration 63 writes
        if s[i] > 0:
            break                  # refused: other threads are at other iterations
    ```

    Raises
    ------
    NestingError
        For `break` in `T.Parallel`, and for `break` or `continue` outside of a loop.
    DataRace
        For such iterations.
    """
    _check_exits(func.body)
    _Nests(Aliases(func.body)).rewrite(func.body)
    return func


# Exits -------------------------------------------------------------------------------------------


def _check_exits(body: tirx.Stmt) -> None:
    loops: list[Any] = [None]

    def visit(loop: tirx.Stmt, mutator: Mutator) -> tirx.Stmt:
        is_bound = isinstance(loop, tirx.For) and loop.thread_binding is not None
        loops.append(None if is_bound else loop)
        mutator.default_mutate(loop)
        loops.pop()
        return loop

    def check(node: tirx.Evaluate, _: Mutator) -> tirx.Stmt:
        if not is_loop_exit(node):
            return node
        keyword = "continue" if is_continue(node) else "break"
        if loops[-1] is None:
            raise NestingError(
                f"`{keyword}` stands outside of a loop",
                help="T.thread_return() ends the thread",
                location=location_of(node.value),
            )
        if is_parallel(loops[-1]) and keyword == "break":
            raise NestingError(
                "`break` stands in T.Parallel, whose iterations have no order",
                help="write `continue`, which ends the iteration, or a loop with T.serial",
                location=location_of(node.value),
            )
        return node

    mutated(body, ((tirx.For, tirx.While), visit), (tirx.Evaluate, check))


# Nests -------------------------------------------------------------------------------------------


class _Nests(ScopedRewriter):
    """Visits the nests that are certainly run."""

    def __init__(self, names: Aliases) -> None:
        super().__init__()
        self._aliases = names  # views may be declared in front of the kernel
        self._fixed: dict[ir.Var, int] = {}
        self._names: dict[ir.Var, Any] = {}
        self._kernel: KernelInfo | None = None

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        if is_kernel(loop):
            self._kernel = info_of(loop)
            self._names = let_values(loop, wanted=is_integer)
        if not is_parallel(loop):
            low, extent = constant(loop.min), constant(loop.extent)
            if low is not None and extent is not None and not binds_thread(loop):
                self._fixed[loop.loop_var] = low
            return super().visit_for(loop)
        if self._kernel is not None:
            self._check(Nest(loop), self._kernel)
        return loop

    def visit_if(self, branch: tirx.IfThenElse) -> tirx.Stmt:
        """The arguments that lead to a branch outside of nests are not known."""
        return branch

    def _check(self, nest: Nest, kernel: KernelInfo) -> None:
        loops, body = nest.loops, nest.body
        iterations = sample(loops)
        if iterations is None or len(iterations[loops[0].loop_var]) < 2 or _leaves(body):
            return
        bound = defined_in(body)

        def is_uniform(var: ir.Var) -> bool:
            return var not in bound and not kernel.variance.depends(var)

        root, start = self._aliases.root, self._aliases.start
        accesses = [
            each.changed(root=root(each.buffer), start=start(each.buffer))
            for each in elements_in(body, self._names)
        ]
        not_shared = set(map(root, _own_or_ordered(body)))
        for buffer in dict.fromkeys(a.root for a in accesses if a.value is not None):
            if buffer in not_shared:
                continue
            own = [access for access in accesses if access.root.same_as(buffer)]
            if is_private(buffer):
                if kernel.launch.num_threads > 1 and not kernel.variance.depends(buffer):
                    _check_private(own)
            elif not _are_apart(own, loops):
                found = [elements_of(each, iterations, self._fixed, is_uniform) for each in own]
                _check_elements([e for e in found if e is not None], loops)


def _leaves(body: tirx.Stmt) -> bool:
    return contains(body, tirx.Evaluate, is_loop_exit)


def _own_or_ordered(body: tirx.Stmt) -> set[ir.Var]:
    """The buffers that an iteration allocates, and those that operators on elements work on."""
    own = {buffer_of(node) for node in nodes_in(body, tirx.AllocBuffer)}
    return own | {buffer_of(each) for op in operators_in(body) for each in op.writes()}


def _are_apart(accesses: list[Effect], loops: list[tirx.For]) -> bool:
    """Tell whether all indices are the same, and those of different iterations are different."""
    first, *others = accesses
    if not all(
        other.buffer.same_as(first.buffer)
        and tvm_ffi.structural_equal(list(first.indices), list(other.indices))
        for other in others
    ):
        return False
    return all(any(index.same_as(loop.loop_var) for index in first.indices) for loop in loops)


# Rules -------------------------------------------------------------------------------------------


def _check_private(accesses: list[Effect]) -> None:
    first = accesses[0]
    is_load = first.value is None and first.operator is None
    if is_load and first.is_certain and not first.conditions:
        raise DataRace(
            f"an iteration of T.Parallel reads what another one has left in {describe(first.root)}, "
            "of which every thread has one for itself",
            help="sum into a T.alloc_fragment or a T.alloc_reducer, or loop with T.serial",
            location=first.location,
        )


def _is_of_threads(buffer: ir.Var) -> bool:
    """Tell whether threads hold the elements: of a fragment, or of a reducer."""
    return str(buffer.ty.storage_scope).startswith("local")


def _check_elements(found: list[AccessedElements], loops: list[tirx.For]) -> None:
    written = [elements for elements in found if elements.access.value is not None]
    for writing in written:
        for other in found:
            if other.access.value is None:
                _check_read(other, writing, written, loops)
            elif not _is_of_threads(writing.access.root):
                _check_written_twice(other, writing, loops)


def _check_read(
    read: AccessedElements,
    writing: AccessedElements,
    written: list[AccessedElements],
    loops: list[tirx.For],
) -> None:
    readers, writers = _shared_points(read, writing)
    if _is_of_threads(read.access.root):
        # A thread adds to an element of a fragment that it holds in one iteration after the other.
        exchanged = ~_written_too(read, written)[readers]
        readers, writers = readers[exchanged], writers[exchanged]
    if len(readers):
        p, q = int(readers[0]), int(writers[0])
        raise _race(
            read.access,
            f"{_iteration(loops, writing, q)} writes {_element(writing, q)}, which "
            f"{_iteration(loops, read, p)} reads",
            "read in a T.Parallel of its own, into a fragment; sum with T.atomic_add, "
            "T.alloc_reducer or T.reduce_sum",
        )


def _written_too(read: AccessedElements, written: list[AccessedElements]) -> np.ndarray:
    """The points at which an iteration writes the element that it reads, as far as is known."""
    result = np.zeros(len(read.places), dtype=bool)
    for own in written:
        places = _places(read, own)
        if places is None:
            return ~result
        iterations = (e.iterations[_points(e, p)] for e, p in zip((read, own), places, strict=True))
        mine, others = _numbered(*map(np.column_stack, zip(iterations, places, strict=True)))
        result |= np.isin(mine, others).reshape(len(result), -1).any(axis=1)
    return result


def _check_written_twice(
    first: AccessedElements, second: AccessedElements, loops: list[tirx.For]
) -> None:
    for p, q in zip(
        *(points[:_MOST_COMPARED] for points in _shared_points(first, second)), strict=True
    ):
        if not tvm_ffi.structural_equal(_value_at(first, p), _value_at(second, q)):
            raise _race(
                first.access,
                f"{_iteration(loops, first, p)} and {_iteration(loops, second, q)} write different "
                f"values to {_element(first, p)}",
                "let one iteration write it, under a condition, or use an atomic",
            )


_MOST_COMPARED = 16


def _shared_points(a: AccessedElements, b: AccessedElements) -> tuple[Any, Any]:
    """Points of two accesses at which different iterations touch one element."""
    places = _places(a, b)
    if places is None:
        return np.arange(0), np.arange(0)
    mine, others = _numbered(*places)
    point_a, point_b = _points(a, places[0]), _points(b, places[1])
    iteration_a, iteration_b = a.iterations[point_a], b.iterations[point_b]
    points, partners = [], []
    for order in (np.argsort(iteration_b, kind="stable"), np.argsort(-iteration_b, kind="stable")):
        # The first and the last iteration that touches each element: one of them is another one.
        elements, where = np.unique(others[order], return_index=True)
        at = np.minimum(np.searchsorted(elements, mine), len(elements) - 1)
        partner = order[where[at]]
        found = np.flatnonzero((elements[at] == mine) & (iteration_b[partner] != iteration_a))
        points.append(point_a[found])
        partners.append(point_b[partner[found]])
    return np.concatenate(points), np.concatenate(partners)


def _places(a: AccessedElements, b: AccessedElements) -> tuple[Any, Any] | None:
    """The elements of two accesses, in rows that are equal where they are the same; None: unknown.

    By one name, a row for each point has the indices; by two, each has a place in memory.
    """
    if a.access.buffer.same_as(b.access.buffer):
        same_terms = tvm_ffi.structural_equal(list(a.terms), list(b.terms))
        return (a.places, b.places) if same_terms else None
    if not a.access.is_comparable(b.access):
        return None
    pair = (a.access, b.access)
    unit = math.gcd(*(bits(each.buffer) for each in pair), *(each.bits_before for each in pair))
    mine, others = a.in_memory(unit), b.in_memory(unit)
    if mine is None or others is None:
        return None
    distance = constant(Analyzer().simplify(mine[1] - others[1]))
    return None if distance is None else (mine[0] + distance, others[0])


def _points(elements: AccessedElements, places: np.ndarray) -> np.ndarray:
    """The point that each place belongs to."""
    count = len(elements.places)
    return np.repeat(np.arange(count), len(places) // count)


def _numbered(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A number for each row of two arrays, the same one for rows that are equal."""
    _, keys = np.unique(np.concatenate([a, b]), axis=0, return_inverse=True)
    return keys.ravel()[: len(a)], keys.ravel()[len(a) :]


def _value_at(elements: AccessedElements, point: Any) -> ir.Expr:
    numbers = {
        var: tirx.const(int(values[point]), str(var.ty.dtype))
        for var, values in elements.values.items()
    }
    return Analyzer().simplify(substitute(elements.access.value, numbers))


# Messages ----------------------------------------------------------------------------------------


def _iteration(loops: list[tirx.For], elements: AccessedElements, point: Any) -> str:
    variables = (loop.loop_var for loop in loops)
    values = ", ".join(f"{var.name}={int(elements.values[var][point])}" for var in variables)
    return f"iteration {values}"


def _element(elements: AccessedElements, point: Any) -> str:
    place = zip(elements.places[point], elements.terms, strict=True)
    indices = (str(int(n)) if term is None else f"{term} + {int(n)}" for n, term in place)
    return f"{elements.access.buffer.name}[{', '.join(indices)}]"


def _race(access: Effect, what: str, help: str) -> DataRace:
    return DataRace(
        f"{describe(access.root)}: the iterations of T.Parallel have no order, and {what}",
        help=help,
        location=access.location,
    )
