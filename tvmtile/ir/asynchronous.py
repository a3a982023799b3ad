"""Asynchronous work: issued, signalled, waited for.

Work that goes on while threads do is described by three statements of a thread, which name a token:

* `issue(token, ...)` begins a piece of work, as of copying some bytes;
* `signal(token)` ends a batch: what the thread has issued on the token since its last signal;
* `wait(token, behind)` waits for all batches of the token but the latest `behind` ones.

A token is a text, `"<kind>/<name>"`. A kind is a row of `KINDS`; its name alone is a token too, of all
work of that kind in the order of its issue, whichever token it has. The passes of the phase schedule
write tokens, the analysis of barriers reads them, and LowerAsyncWork makes instructions of them last.
The instructions themselves, where a program is written in them, mean the same on the token of their
kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvmtile.ir.calls import op_name, takes_address
from tvmtile.ir.operands import as_int32
from tvmtile.ir.types import Index

_ISSUE, _MULTIPLY, _SIGNAL, _WAIT = INTRINSICS = (
    "async_issue",
    "async_multiply",
    "async_signal",
    "async_wait",
)
"""Names of the intrinsics, without their prefix."""
_REGION = "tvmtile.asynchronous"


@dataclass(frozen=True)
class Kind:
    """A kind of asynchronous work, and a GPU's instructions for it.

    Notes
    -----
    A thread waits for batches of its own, the oldest first. What other threads have copied is visible
    after a barrier behind their waits.
    """

    name: str
    """The token of all work of the kind."""
    issues: tuple[str, ...]
    """The instructions that issue a copy, with the operands of `issue`."""
    signal: str
    wait: str
    """The operators of the instructions that end a batch, and that wait."""
    commit_group: str
    wait_group: str
    """These instructions in PTX."""
    max_behind: int
    """The largest number of batches that the wait leaves."""


CP_ASYNC = Kind(
    "cp.async",
    issues=(
        "tirx.ptx.cp_async_ca",
        "tirx.ptx.cp_async_cg",
        "tirx.ptx.cp_async_ca_src_size",
        "tirx.ptx.cp_async_cg_src_size",
    ),
    signal="tirx.ptx.cp_async_commit_group",
    wait="tirx.ptx.cp_async_wait_group",
    commit_group="cp.async.commit_group",
    wait_group="cp.async.wait_group",
    max_behind=7,  # of TVM's `cp.async.wait_group`
)
"""PTX ISA, "Data Movement and Conversion Instructions: cp.async"."""
WGMMA = Kind(
    "wgmma",
    issues=(),
    signal="tirx.ptx.wgmma_commit_group",
    wait="tirx.ptx.wgmma_wait_group",
    commit_group="wgmma.commit_group.sync.aligned",
    wait_group="wgmma.wait_group.sync.aligned",
    max_behind=7,  # of `wgmma.wait_group`
)
"""PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions"."""
BULK_STORE = Kind(
    "bulk",
    issues=(),
    signal="tirx.ptx.cp_async_bulk_commit_group",
    wait="tirx.ptx.cp_async_bulk_wait_group",
    commit_group="cp.async.bulk.commit_group",
    wait_group="cp.async.bulk.wait_group.read",
    max_behind=7,
)
"""PTX ISA, "cp.async.bulk": copies from shared memory; waited for, it may be written again."""
KINDS = {kind.name: kind for kind in (CP_ASYNC, WGMMA, BULK_STORE)}
_ISSUES = {name: kind.name for kind in KINDS.values() for name in kind.issues}
_SIGNALS = {kind.signal: kind.name for kind in KINDS.values()}
_WAITS = {kind.wait: kind.name for kind in KINDS.values()}
"""Of the instructions, the tokens that they name."""


def kind_of(token: str) -> Kind:
    """The kind of a token."""
    return KINDS[token.partition("/")[0]]


# What the pipeline says of statements ------------------------------------------------------------


def asynchronously(token: str, stmt: tirx.Stmt) -> tirx.Stmt:
    """Let what a statement moves from global to shared memory be issued on a token."""
    return tirx.AttrStmt(tirx.const(0, "int32"), _REGION, ir.StringImm(token), stmt)


def token_of_region(stmt: tirx.AttrStmt) -> str | None:
    """The token of `asynchronously`; None of another attribute."""
    if str(stmt.attr_key) != _REGION:
        return None
    assert isinstance(stmt.value, ir.StringImm), "written by `asynchronously`"
    return str(stmt.value.value)


# Statements of a thread --------------------------------------------------------------------------


def issue(token: str, target: ir.Expr, source: ir.Expr, size: int, *read: ir.Expr) -> tirx.Stmt:
    """Begin to copy 4, 8 or 16 bytes from an address in global memory to one in shared memory.

    `read` is how many of them are read, where it may be fewer; the rest is zero. Where it is none, the
    source may lie anywhere.
    """
    return _statement(_ISSUE, token, target, source, size, *read)


@dataclass(frozen=True)
class Product:
    """Sums of a group of threads, to which a product of matrices is added."""

    token: str
    """The token that it is waited for by: until then sums and operands are its own."""
    sums: ir.TensorLoad
    """The first element of the accumulator that a thread holds."""
    a: Any
    b: Any
    """The address of the group's first element of A, or of B, in shared memory; of A in registers,
    its first element that the thread holds.
    """
    m: int
    n: int
    k: int
    """Extents."""
    columns: int
    """Of an instruction."""
    a_transposed: bool = False
    b_transposed: bool = False
    """The operand is stored as [k, m], as [n, k]."""
    clear: bool = False
    """Sums begin from zero."""

    @property
    def matrices(self) -> list[tuple[Any, int, int]]:
        """The operands in shared memory, each with its rows and columns there."""
        a = (self.k, self.m) if self.a_transposed else (self.m, self.k)
        b = (self.n, self.k) if self.b_transposed else (self.k, self.n)
        both = ((self.a, *a), (self.b, *b))
        return [matrix for matrix in both if takes_address(matrix[0])]


def multiply(product: Product) -> tirx.Stmt:
    """Begin to multiply."""
    operands = [ir.StringImm(product.token), product.sums, product.a, product.b]
    values = {name: getattr(product, name) for name in (*_EXTENTS, *_FLAGS)}
    attrs = {name: value for name, value in values.items() if value}
    call = ir.Call(f"tvmtile.{_MULTIPLY}", operands, attrs=attrs, ret_ty="void")
    return tirx.Evaluate(call)


_EXTENTS = ("m", "n", "k", "columns")
_FLAGS = ("a_transposed", "b_transposed", "clear")


def product_of(call: ir.Call) -> Product | None:
    """The product of a call; None of another call."""
    if op_name(call) != f"tvmtile.{_MULTIPLY}":
        return None
    token, *operands = call.args
    keys = set(call.attrs.keys())
    extents = (int(call.attrs[name]) for name in _EXTENTS)
    return Product(str(token.value), *operands, *extents, *(name in keys for name in _FLAGS))


def signal(token: str) -> tirx.Stmt:
    """End a batch: what the thread has issued on the token since the last one, if anything."""
    return _statement(_SIGNAL, token)


def wait(token: str, behind: int) -> tirx.Stmt:
    """Wait for all batches of the token but the latest ones."""
    return _statement(_WAIT, token, behind)


def _statement(name: str, token: str, *args: Index) -> tirx.Stmt:
    call = ir.Call(f"tvmtile.{name}", [ir.StringImm(token), *map(as_int32, args)], ret_ty="void")
    return tirx.Evaluate(call)


def names_token(call: ir.Expr) -> bool:
    """Tell whether a call is one of the three statements, and not an instruction."""
    return op_name(call).removeprefix("tvmtile.") in INTRINSICS


@dataclass(frozen=True)
class Issue:
    """The work that a call issues: a token, and the operands of `issue`, where it is a copy."""

    token: str
    operands: tuple[ir.Expr, ...]

    @property
    def fills(self) -> bool:
        """Tell whether the copy is told how many bytes to read."""
        return len(self.operands) > 3


def issued(call: ir.Call) -> Issue | None:
    """The work that a call issues; None of another call."""
    name = op_name(call)
    if name == f"tvmtile.{_ISSUE}":
        return Issue(str(call.args[0].value), tuple(call.args[1:]))
    if name == f"tvmtile.{_MULTIPLY}":
        return Issue(str(call.args[0].value), ())
    return Issue(_ISSUES[name], tuple(call.args)) if name in _ISSUES else None


@dataclass(frozen=True)
class Wait:
    """A wait of a statement: for all batches of a token but the latest ones."""

    token: str
    behind: int


def signalled(stmt: tirx.Stmt) -> str | None:
    """The token of which a statement ends a batch; None of another statement."""
    name, call = _call(stmt)
    if name == f"tvmtile.{_SIGNAL}":
        return str(call.args[0].value)
    return _SIGNALS.get(name)


def waited(stmt: tirx.Stmt) -> Wait | None:
    """The wait of a statement; None of another one."""
    name, call = _call(stmt)
    if name == f"tvmtile.{_WAIT}":
        return Wait(str(call.args[0].value), int(call.args[1]))
    return Wait(_WAITS[name], int(call.args[0])) if name in _WAITS else None


def _call(stmt: tirx.Stmt) -> tuple[str, Any]:
    """The operator that a statement calls by itself, and the call."""
    return (op_name(stmt.value), stmt.value) if type(stmt) is tirx.Evaluate else ("", None)
