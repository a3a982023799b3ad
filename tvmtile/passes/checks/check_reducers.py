"""CheckReducers: totals are begun, contributed to, ended, and read, in this order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvmtile.analysis.accesses import Access, accesses_of, kernels_of
from tvmtile.errors import InvalidOperand, SourceLocation
from tvmtile.ir.kernels import is_parallel
from tvmtile.ir.operands import describe
from tvmtile.ir.passes import prim_func_pass


@dataclass
class _Total:
    """What is known of a reducer so far."""

    is_open: bool = False
    """It is begun and not ended."""
    is_strict: bool = False
    """It was begun by its operator, so that only operators may touch it until it is ended."""
    has_ended: bool = False
    """It was ended before, and may be an ordinary tile since."""
    loops: tuple[tirx.For, ...] = ()
    """The loops in which it was begun."""
    location: SourceLocation | None = None
    """Where."""


@prim_func_pass("CheckReducers")
def CheckReducers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Refuse a reducer that is used out of order.

    On a GPU each thread has totals of its own from the beginning to the end, so that what is read
    before, or ended twice, is not what the program says. Operators name what they do to a reducer
    themselves (`TileOp.role`), and contribute in iterations that the threads share. A tile that is
    cleared and stored to instead of begun, as in older programs, must only be ended, in the loops in
    which it was cleared. The program is not changed.

    ```
    total = T.alloc_reducer((1,), "float32")
    for i in T.Parallel(8):
        T.reducer_update(total[0], A[i])   # reducer_update of total[1] float32 before T.reducer_init
    ```

    Raises
    ------
    InvalidOperand
        If it is.
    """
    for kernel in kernels_of(func):
        totals: dict[ir.Var, _Total] = {}
        reducers: dict[ir.Var, None] = {}
        before: Any = None
        for access in accesses_of(kernel):
            total = totals.setdefault(access.buffer, _Total())
            if not _is_of_reducer(access):
                _ordinary(access, total)
            elif access.operator is not before:  # one that ends in place has it as both operands
                reducers[access.buffer] = None
                _phase(access, total)
            before = access.operator
        for buffer in reducers:
            if totals[buffer].is_open and not totals[buffer].has_ended:
                raise InvalidOperand(
                    f"{describe(buffer)} is never finalized",
                    help="call T.finalize_reducer after the contributions",
                    location=totals[buffer].location,
                )
    return func


def _is_of_reducer(access: Access) -> bool:
    """Tell whether an operator uses the buffer as a reducer; the target of a finalize is none."""
    role = "" if access.operator is None else access.operator.role
    return access.reads if role == "end" else role in ("begin", "contribute")


def _phase(access: Access, total: _Total) -> None:
    assert access.operator is not None
    name, role = access.operator.name, access.operator.role
    if role == "begin":
        if total.is_open and total.is_strict:
            raise _misuse(access, f"double T.{name} of", "finalize it before it begins again")
        total.is_open = total.is_strict = True
        total.has_ended = False
        total.loops, total.location = access.loops, access.location
    elif role == "contribute":
        if not (total.is_open and total.is_strict):
            raise _misuse(access, f"{name} before T.reducer_init of", "begin the totals before")
        if not any(map(is_parallel, access.loops)):
            raise _misuse(
                access,
                f"{name} outside any T.Parallel, of",
                "contribute in a loop over T.Parallel(1)",
            )
    else:
        if not total.is_open:
            raise _misuse(access, f"{name} before T.reducer_init of", "begin the totals before")
        if not _same(access.loops, total.loops):
            raise _misuse(
                access,
                f"{name} is not in the scope of its T.reducer_init, of",
                "begin and finalize the totals in the same loops",
            )
        total.is_open, total.has_ended = False, True


def _ordinary(access: Access, total: _Total) -> None:
    if total.is_open and total.is_strict:
        what = "store to" if access.writes else "read of"
        raise _misuse(
            access,
            f"illegal {what} reducer",
            "contribute by T.reducer_update, and read what T.finalize_reducer gives",
        )
    if access.writes and not total.is_open:
        total.is_open, total.is_strict = True, False
        total.loops, total.location = access.loops, access.location


def _same(a: tuple[tirx.For, ...], b: tuple[tirx.For, ...]) -> bool:
    return len(a) == len(b) and all(
        x.loop_var.same_as(y.loop_var) for x, y in zip(a, b, strict=True)
    )


def _misuse(access: Access, problem: str, remedy: str) -> InvalidOperand:
    return InvalidOperand(
        f"{problem} {describe(access.buffer)}", help=remedy, location=access.location
    )
