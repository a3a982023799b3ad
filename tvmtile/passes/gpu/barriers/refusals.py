"""The errors for races that no barrier can prevent."""

from __future__ import annotations

from tvmtile.analysis.conflicts.dependence import Collision
from tvmtile.analysis.effects import Effect
from tvmtile.errors import DataRace, VerifyError, warn
from tvmtile.ir.asynchronous import BULK_STORE, CP_ASYNC, WGMMA
from tvmtile.ir.operands import describe
from tvmtile.ir.spans import location_of
from tvmtile.passes.gpu.barriers.checker import Checker
from tvmtile.passes.gpu.barriers.items import MbarrierStep
from tvmtile.passes.gpu.barriers.races import Race

_ROWS = (
    "; an index that is loaded from memory may be anything: where it stays in a row of the thread's "
    "own, give the tile an axis of rows, s[row, index] for s[row * length + index]"
)


_MEET = (
    "let both groups come to a barrier, T.sync_threads(number, threads) or one of T.alloc_barrier, or "
    "give each a branch of its own, one after the other"
)


def settle(race: Race, checker: Checker) -> None:
    """Refuse a race that no barrier can prevent, but for what mbarriers order.

    Where the author answers for races, warn of it; and where they are none as long as values that are
    loaded from memory stay in a row of the thread's own.

    Raises
    ------
    DataRace, VerifyError
        If nobody answers for it.
    """
    if checker.is_handed_over(race):
        return
    rows = checker.footprints.in_rows(race.earlier, race.later)
    if rows and race.in_flight == Collision.NEVER:
        taken = " and ".join(dict.fromkeys(map(str, rows)))
        warn(
            f"threads are taken to keep to rows of their own in {describe(race.later.root)}: that "
            f"{taken}, of a value loaded from memory, is not checked. T.assume says so, too",
            race.later.location or race.earlier.location,
        )
        checker.forgive(race)
        return
    error = refuse(race, checker.doubtful, is_scattered=checker.footprints.is_scattered(race.later))
    if not checker.forgives or race.in_flight != Collision.NEVER:
        raise error
    warn(
        f"{error.message}; the option tl.disable_thread_storage_sync says that the author orders them",
        race.later.location or race.earlier.location,
    )
    checker.forgive(race)


def refuse(
    race: Race, doubtful: MbarrierStep | None = None, *, is_scattered: bool
) -> DataRace | VerifyError:
    """The error for a race that no barrier can prevent.

    Which elements the later access touches is known to the kernel's input alone if it is scattered.
    Threads may arrive too early at a `doubtful` mbarrier, which orders nothing therefore.
    """
    earlier, later = race.earlier, race.later
    if race.in_flight != Collision.NEVER:
        return _refuse_before_arrival(earlier, later)
    rows = _ROWS if is_scattered else ""
    if race.in_statement:
        return DataRace(
            f"threads read elements of {describe(later.root)} that others write in the same statement",
            location=later.location,
            help="read them into a local variable or a fragment first" + rows,
        )
    what = "written" if later.writes else "read"
    before = "written" if earlier.writes else "read"
    where = "" if earlier.location is None else f", at {earlier.location}"
    remedy = doubtful and _arrives_once(doubtful)
    if earlier.groups != later.groups:
        first, second = (each.groups[-1:] or ("all threads",) for each in (earlier, later))
        return DataRace(
            f"elements of {describe(later.root)} are {what} by {second[0]} of the block and {before} "
            f"by {first[0]}{where}, which run at the same time: no barrier can stand between",
            location=later.location or earlier.location,
            help=remedy or _MEET,
        )
    return DataRace(
        f"elements of {describe(later.root)} are {what} by other threads than those that have "
        f"{before} them before{where}, and no barrier can stand between: not all threads of the "
        "block come there together",
        location=later.location or earlier.location,
        help=remedy
        or "end the branch, or the loop, that depends on the thread between the two" + rows,
    )


def _arrives_once(step: MbarrierStep) -> str:
    location = location_of(step.statement.value)
    where = "" if location is None else f", at {location}"
    return (
        f"threads may arrive twice in one phase of {step.mbarrier.root.name}{where}, so that it "
        "orders nothing: before they arrive again, let them wait for the phase, or for others that "
        "have waited for it"
    )


def _refuse_before_arrival(copy: Effect, later: Effect) -> DataRace | VerifyError:
    """The error for an access of elements that an asynchronous copy still writes or reads."""
    what = "written" if later.writes else "read"
    if copy.token == WGMMA.name:
        return DataRace(
            f"elements of {describe(later.root)} are {what} while a product that reads them goes on",
            location=later.location or copy.location,
            help="wait for it first, T.wait_wgmma(0), or leave wg_wait out",
        )
    which = "into" if copy.writes else "of"
    if copy.token == BULK_STORE.name:
        return DataRace(
            f"elements of {describe(later.root)} are {what} before the copy of them to a tensor is "
            "waited for",
            location=later.location or copy.location,
            help="put T.tma_store_wait() in front of it",
        )
    text = (
        f"elements of {describe(later.root)} are {what} before the asynchronous copy {which} them is "
        "waited for"
    )
    if copy.token == CP_ASYNC.name:  # written by hand
        return DataRace(
            text,
            location=later.location or copy.location,
            help="put T.ptx_commit_group() behind the copy and T.ptx_wait_group(0) in front of it, or "
            "let others wait for it by T.cp_async_barrier_noinc",
        )
    return VerifyError(
        text,
        location=later.location or copy.location,
        help="this is a defect of tvmtile: please report it with the kernel",
    )
