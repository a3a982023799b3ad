"""Groups of threads: `T.ws`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tvm import ir, tirx

from tvmtile.errors import InvalidValue, NestingError
from tvmtile.frontend.kernel import current_kernel, thread_index
from tvmtile.frontend.tracer import current_tracer
from tvmtile.ir.threads import WARPGROUP, Group

__all__ = ["WarpSpecialize", "ws"]


@contextmanager
def ws(*warp_group_idx: int) -> Iterator[None]:
    """Let some warpgroups do what follows: `with T.ws(0):`.

    Parameters
    ----------
    *warp_group_idx : int
        The numbers of the warpgroups, of 128 threads each.

    Notes
    -----
    It is the branch on the index of a thread that one would write by hand, `if tx < 128:` for
    `T.ws(0)`. Tile operators in it are the work of these threads, which must follow each other:
    `T.ws(0, 1)`, not `T.ws(0, 2)`.

    Raises
    ------
    NestingError
        If it stands outside `T.Kernel`.
    InvalidValue
        If the block does not have such a warpgroup.
    """
    kernel, tracer = current_kernel(), current_tracer()
    if kernel is None or tracer is None:
        raise NestingError(
            "T.ws stands outside T.Kernel", help="move it into the body of `with T.Kernel(...)`"
        )
    branch = tracer.branch(_is_of(warp_group_idx, kernel.num_threads))
    with branch.then():
        yield
    tracer.end(branch)


WarpSpecialize = ws


def _is_of(numbers: tuple[int, ...], threads: int) -> ir.Expr | None:
    """The condition that a thread is of one of the warpgroups."""
    have = threads // WARPGROUP
    if not numbers or any(not 0 <= number < have for number in numbers):
        raise InvalidValue(
            f"T.ws({', '.join(map(str, numbers))}): a block of {threads} threads has {have} "
            f"warpgroups of {WARPGROUP}",
            help="name one or more of them, counted from 0, or give T.Kernel more threads",
        )
    groups = (Group(number * WARPGROUP, WARPGROUP) for number in sorted(set(numbers)))
    return tirx.any(*(group.admits(thread_index(), threads) for group in groups))
