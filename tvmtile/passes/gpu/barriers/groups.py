"""The groups of threads of a kernel, and the statements of each."""

from __future__ import annotations

from tvm import tirx
from tvm.sym import Analyzer

from tvmtile._tvm import Mutator, mutated
from tvmtile.errors import NestingError, SourceLocation
from tvmtile.ir.annotations import APART, ARRIVE_COUNT, ARRIVES_ONLY, BARRIER_ID
from tvmtile.ir.barriers import UNNAMED_BARRIER, arrivals, attributes_of, is_barrier, scope_of, sync
from tvmtile.ir.kernels import Launch, statements_of
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import seq, statements_in
from tvmtile.ir.spans import first_location
from tvmtile.ir.threads import WARP_SIZE, WARPGROUP, Group, Regions, group_of_region


def groups_in(body: tirx.Stmt) -> list[Group]:
    """The groups that regions belong to, the largest first."""
    found = map(group_of_region, statements_in(body, tirx.AttrStmt))
    groups = dict.fromkeys(group for group in found if group is not None)
    return sorted(groups, key=lambda group: (-group.count, group.first))


def case_of(branch: tirx.IfThenElse, group: Group | None) -> int | None:
    """The case, 0 or 1, that all threads of a group take, by regions; None where they part.

    The block, None, parts at every branch that has a region.
    """
    cases = statements_of(branch)
    for number, case in enumerate(cases):
        owner = group_of_region(case)
        if owner is None or group is None:
            continue
        if group in owner:
            return number
        if not owner.overlaps(group):
            return 1 - number
    return None


def seen_by(body: tirx.Stmt, group: Group | None) -> tirx.Stmt:
    """The part of a body that a group does: of branches whose cases are regions, its own."""
    if group is None:
        return body

    def visit(branch: tirx.IfThenElse, mutator: Mutator) -> tirx.Stmt:
        taken = case_of(branch, group)
        if taken is None:
            return mutator.default_mutate(branch)
        cases = statements_of(branch)
        return mutator.mutate(cases[taken]) if taken < len(cases) else seq([])

    return mutated(body, (tirx.IfThenElse, visit))


def waits_apart(barrier: tirx.Evaluate) -> bool:
    """Tell whether each warpgroup of those that come to a barrier waits for itself alone."""
    return APART in attributes_of(barrier)


def hands_over(body: tirx.Stmt, group: Group) -> bool:
    """Tell whether threads of a group come to barriers, in a region, that others come to as well.

    Of a barrier with a number that is known, those come in whose regions it stands.
    """
    regions = Regions()
    active: dict[object, set[Group]] = {}
    awaited: list[tuple[object, int | None]] = []

    def note(node: tirx.Evaluate, mutator: Mutator) -> tirx.Stmt:
        if is_barrier(node):
            given = attributes_of(node).get(BARRIER_ID)
            number = None if given is None else constant(given)
            active.setdefault(number, set()).add(regions.group or group)
            awaited.append((number, arrivals(node)))
        return mutator.default_mutate(node)

    mutated(body, (tirx.AttrStmt, regions.visit), (tirx.Evaluate, note))

    def count(number: object) -> int:
        inside = active[number]
        return sum(
            each.count for each in inside if not any(each != o and each in o for o in inside)
        )

    return any(
        threads is None or threads > (group.count if number is None else count(number))
        for number, threads in awaited
    )


class NamedBarriers:
    """Hands out the barriers of a block that some of its threads wait at.

    There are `count`, the first that of the whole block; those that the user names in `body` are taken.
    The launch is for barriers of the block's warpgroups.
    """

    def __init__(self, body: tirx.Stmt, count: int, launch: Launch | None = None) -> None:
        self._count = count
        self._launch = launch
        self._numbers: dict[Group, int] = {}
        self._first_numbers: dict[Group, int | None] = {}
        taken = _taken(body, count)
        self._free = [number for number in range(1, count) if number not in taken]

    def wait(self, group: Group, location: SourceLocation | None = None) -> tirx.Stmt:
        """A statement at which all threads of a group wait for each other.

        Raises
        ------
        NestingError
            If there is no barrier left, or the target has none for some threads.
        """
        if group.count <= WARP_SIZE:
            return sync("warp")
        if not self._count:
            raise self._refused(group, location)
        attrs = {BARRIER_ID: self._number_of(group, location), ARRIVE_COUNT: group.count}
        return sync("shared", attrs)

    def _number_of(self, group: Group, location: SourceLocation | None) -> int:
        if group not in self._numbers:
            if not self._free:
                raise self._refused(group, location)
            self._numbers[group] = self._free.pop(0)
        return self._numbers[group]

    def instead_of(self, barrier: tirx.Evaluate, group: Group | None) -> tirx.Stmt:
        """A barrier of the user's, in a region of a group or of the block, as the target has it."""
        attrs = attributes_of(barrier)
        if APART in attrs:
            return self._apart(barrier, group)
        if ARRIVES_ONLY in attrs and not self._count:
            raise self._refused(group, first_location(barrier))
        if group is None or ARRIVE_COUNT not in attrs or (self._count and BARRIER_ID in attrs):
            return barrier
        if arrivals(barrier) == group.count and ARRIVES_ONLY not in attrs:
            return self.wait(group, first_location(barrier))
        if not self._count:
            raise self._refused(group, first_location(barrier))
        return barrier

    def _apart(self, barrier: tirx.Evaluate, group: Group | None) -> tirx.Stmt:
        """A barrier for each warpgroup, or for all of them where there are not so many left."""
        assert self._launch is not None, "it is given where such barriers may stand"
        owner = group or Group.of_block(self._launch)
        count = owner.count // WARPGROUP
        if owner not in self._first_numbers:
            free = self._free[:count]
            follow = len(free) == count and free[-1] - free[0] == count - 1
            self._first_numbers[owner] = free[0] if count > 1 and follow else None
            del self._free[: count if self._first_numbers[owner] else 0]
        first = self._first_numbers[owner]
        if first is None:
            location = first_location(barrier)
            return sync() if group is None else self.wait(group, location)
        warpgroup = tirx.floordiv(owner.index_of(self._launch.thread_index), WARPGROUP)
        number = tirx.const(first, "int32") + tirx.floormod(warpgroup, count)
        return sync("shared", {**attributes_of(barrier), BARRIER_ID: number})

    def _refused(self, group: Group | None, location: SourceLocation | None) -> NestingError:
        message = f"{group or 'threads'} of the block have to wait for each other here"
        if self._count:
            message += f", and all {self._count} barriers of a block are taken"
            help = "let fewer groups exchange elements, or give fewer barriers numbers by hand"
        else:
            message += ", and the target has no barrier for some of a block's threads"
            help = (
                f"let {WARP_SIZE} threads do this, which wait as one simdgroup, or all of the block"
            )
        return NestingError(message, help=help, location=location)


def with_own_barriers(body: tirx.Stmt, named: NamedBarriers) -> tirx.Stmt:
    """A body in which barriers of the user's are for the threads of the region that they stand in.

    Raises
    ------
    NestingError
        If the target has no barrier for these threads.
    """
    regions = Regions()

    def visit(node: tirx.Evaluate, _: Mutator) -> tirx.Stmt:
        if not is_barrier(node) or scope_of(node) != "shared":
            return node
        return named.instead_of(node, regions.group)

    return mutated(body, (tirx.AttrStmt, regions.visit), (tirx.Evaluate, visit))


def _taken(body: tirx.Stmt, count: int) -> set[int]:
    """The barriers that the user may name: of `1 + k % 2` the first and the second."""
    taken: set[int] = set()
    analyzer = Analyzer()
    for node in filter(is_barrier, statements_in(body, tirx.Evaluate)):
        attrs = attributes_of(node)
        if BARRIER_ID in attrs:
            number = attrs[BARRIER_ID]
            named = tirx.const(number, "int32") if isinstance(number, int) else number
            bounds = analyzer.const_int_bound(named)
            first, last = int(bounds.min_value), int(bounds.max_value)
            taken.update(range(max(0, first), min(count, last + 1)))
        elif ARRIVE_COUNT in attrs and APART not in attrs:
            taken.add(UNNAMED_BARRIER)
    return taken
