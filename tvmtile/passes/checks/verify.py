"""Verify: what must hold between the passes.

A pass says what it requires and what it establishes (`tvmtile.ir.passes`); `INVARIANTS` says how that
is checked. What is established holds to the end of the lowering; a few invariants hold always. A
violation is a defect of a pass, not of a kernel, so this is a tool for those who work on tvmtile: the
tests run with a `Verifier`, and `tvmtile.compile` takes one by
`pass_configs={"tvmtile.verify": True}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext
from tvm.tirx.analysis import verify_well_formed

from tvmtile._tvm import buffer_of, is_buffer_var, nodes_in, walk
from tvmtile.analysis.aliases import Aliases
from tvmtile.errors import VerifyError
from tvmtile.ir.annotations import STAGES_ANNOTATION
from tvmtile.ir.asynchronous import names_token
from tvmtile.ir.barriers import is_barrier, is_grid_barrier
from tvmtile.ir.calls import op_name
from tvmtile.ir.kernels import (
    binds_thread,
    bound_target,
    is_kernel,
    is_parallel,
    is_tile_program,
    leaves_loop,
    without_root_block,
)
from tvmtile.ir.nodes import cached_per_node
from tvmtile.ir.operands import describe
from tvmtile.ir.operators import TileOp, operator_of
from tvmtile.ir.passes import Property, contract_of
from tvmtile.ir.rewriting import contains
from tvmtile.ir.scopes import is_by_elements, is_fragment, is_global
from tvmtile.layout.fragment import layout_of
from tvmtile.passes.checks.bounds import OutsideAccesses
from tvmtile.passes.memory.shared_memory import all_bytes
from tvmtile.target import gpu
from tvmtile.tileop.registry import fragments_of, implementation_of

__all__ = ["ALWAYS", "INVARIANTS", "Verifier", "Verify", "violations"]

Invariant: TypeAlias = Callable[[tirx.PrimFunc], Iterator[str]]
"""Names what is wrong with a function, if anything."""


def well_formed(func: tirx.PrimFunc) -> Iterator[str]:
    """Every variable is defined before it is used, and once."""
    if not verify_well_formed(without_root_block(func), assert_mode=False):
        yield "a variable is used outside of its definition, or defined twice"


def parallel_loops_are_nests(func: tirx.PrimFunc) -> Iterator[str]:
    """A parallel loop inside another one is its whole body."""
    nested: list[tirx.For] = []

    def visit(loop: tirx.For) -> tvm_ffi.WalkResult | None:
        if not is_parallel(loop):
            return None
        nested.append(loop)
        return tvm_ffi.WalkResult.SKIP

    for outer in filter(is_parallel, _contents(func).loops):
        if not is_parallel(outer.body):
            walk(outer.body, (tirx.For, visit), order="pre")
    for loop in nested:
        yield f"the parallel loop over {loop.loop_var.name!r} stands inside another one"


def tiles_within_bounds(func: tirx.PrimFunc) -> Iterator[str]:
    """No access certainly lies outside a buffer, tensors and their views apart."""
    aliases = Aliases(func.body)
    allocated = {buffer_of(each) for each in nodes_in(func.body, tirx.AllocBuffer)}
    views = (view for view in aliases.views if aliases.root(view) not in allocated)
    yield from OutsideAccesses(ignored=[*filter(is_buffer_var, func.params), *views]).check(func)


def tensors_within_bounds(func: tirx.PrimFunc) -> Iterator[str]:
    """No access certainly lies outside a tensor of the function."""
    yield from OutsideAccesses().check(func)


def _operands_are_regions(func: tirx.PrimFunc) -> Iterator[str]:
    for op in _tile_operators(func):
        for operand in [*op.reads(), *op.writes()]:
            if not isinstance(operand, ir.TensorRegion):
                yield f"the operand {describe(operand)} of {op.name} is not a region"


def _implementations_are_chosen(func: tirx.PrimFunc) -> Iterator[str]:
    target = bound_target(func)
    if target is None:
        return
    for op in _tile_operators(func):
        if not fragments_of(op) and implementation_of(op, target.kind.name) is None:
            yield f"no implementation of {op.name} is chosen"


def _nothing_waits(func: tirx.PrimFunc) -> Iterator[str]:
    """Nothing is bound to a thread, and nothing waits for one; blocks may wait for each other."""
    for loop in _contents(func).loops:
        if binds_thread(loop):
            tag = loop.thread_binding.thread_tag
            yield f"the loop over {loop.loop_var.name!r} is bound to {tag}"
    if contains(func.body, tirx.Evaluate, lambda s: is_barrier(s) and not is_grid_barrier(s)):
        yield "there is a barrier"


def _no_parallel_loops(func: tirx.PrimFunc) -> Iterator[str]:
    loops = _contents(func).loops
    if not any(map(is_parallel, loops)):
        return
    for kernel in filter(is_kernel, loops):
        for loop in _contents_of(kernel.body).loops:
            if is_parallel(loop):
                yield f"the loop over {loop.loop_var.name!r} is parallel"


def _shared_memory_fits(func: tirx.PrimFunc) -> Iterator[str]:
    capability = gpu(bound_target(func))
    if capability is None:
        return
    for kernel in filter(is_kernel, _contents(func).loops):
        size = all_bytes(kernel, capability)
        if size > capability.shared_memory:
            yield f"a block needs {size} bytes of shared memory"


def _host_memory(func: tirx.PrimFunc) -> Iterator[str]:
    for buffer in dict.fromkeys(filter(is_buffer_var, nodes_in(func.body, ir.Var))):
        if not is_global(buffer):
            yield f"{describe(buffer)} has the scope {buffer.ty.storage_scope!r}"


def _no_loop(is_such: Callable[[tirx.For], bool], what: str) -> Invariant:
    return lambda func: (
        f"the loop over {loop.loop_var.name!r} {what}"
        for loop in _contents(func).loops
        if is_such(loop)
    )


def _no_fragment(is_such: Callable[[ir.Var], bool], what: str) -> Invariant:
    return lambda func: (
        f"{describe(buffer_of(each))} {what}"
        for each in _contents(func).allocations
        if is_fragment(buffer_of(each)) and is_such(buffer_of(each))
    )


_COPIES_OF_BODIES = (tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED)

ALWAYS: tuple[Invariant, ...] = (well_formed, parallel_loops_are_nests, tiles_within_bounds)
"""The invariants after every pass."""

INVARIANTS: dict[Property, Invariant] = {
    Property.REGIONS: _operands_are_regions,
    Property.IMPLEMENTATIONS: _implementations_are_chosen,
    Property.LOOPS_WITH_BREAK_ARE_SERIAL: _no_loop(
        lambda loop: loop.kind in _COPIES_OF_BODIES and leaves_loop(loop.body),
        "is left, and is not serial",
    ),
    Property.PIPELINED: _no_loop(
        lambda loop: STAGES_ANNOTATION in loop.annotations, "is not pipelined yet"
    ),
    Property.FRAGMENT_LAYOUTS: _no_fragment(
        lambda tile: is_by_elements(tile) and layout_of(tile) is None,
        "has no layout",
    ),
    Property.NO_TILE_OPERATORS: lambda func: (
        f"the tile operator {op.name} is left" for op in _tile_operators(func)
    ),
    Property.IN_BOUNDS: tensors_within_bounds,
    Property.NO_THREADS: _nothing_waits,
    Property.NO_PARALLEL: _no_parallel_loops,
    Property.NO_FRAGMENTS: _no_fragment(
        lambda tile: layout_of(tile) is not None or is_by_elements(tile),
        "is a fragment",
    ),
    Property.SHARED_MEMORY_FITS: _shared_memory_fits,
    Property.NO_OPERATORS: lambda func: (
        f"the operator {op.name} is left" for op in _operators(func)
    ),
    Property.NO_ASYNC_TOKENS: lambda func: (
        f"{op_name(call)} is left" for call in _contents(func).calls if names_token(call)
    ),
    Property.HOST_MEMORY: _host_memory,
    Property.NO_KERNELS: _no_loop(
        lambda loop: is_kernel(loop) or loop.thread_binding is not None, "is bound to a block"
    ),
}
"""How a property is checked, for those that can be seen in the program."""


@dataclass
class _Contents:
    """The nodes of a statement that invariants ask for, most of them after each pass."""

    loops: list[tirx.For]
    allocations: list[tirx.AllocBuffer]
    calls: list[ir.Call]
    """The calls of operators of tvmtile."""


@cached_per_node
def _contents_of(body: tirx.Stmt) -> _Contents:
    found = nodes_in(body, (tirx.For, tirx.AllocBuffer, ir.Call))  # one walk, after each pass
    calls = (node for node in found if isinstance(node, ir.Call))
    return _Contents(
        loops=[node for node in found if isinstance(node, tirx.For)],
        allocations=[node for node in found if isinstance(node, tirx.AllocBuffer)],
        calls=[call for call in calls if op_name(call).startswith("tvmtile.")],
    )


def _contents(func: tirx.PrimFunc) -> _Contents:
    return _contents_of(func.body)


def _operators(func: tirx.PrimFunc) -> Iterator[TileOp]:
    return (op for op in map(operator_of, _contents(func).calls) if op is not None)


def _tile_operators(func: tirx.PrimFunc) -> Iterator[TileOp]:
    return (op for op in _operators(func) if op.is_tile)


# Verifier ----------------------------------------------------------------------------------------

_LOWERING = "tvmtile.LowerTilePrograms"


def violations(func: tirx.PrimFunc, passes: Sequence[str]) -> list[str]:
    """The violated properties of a function that went through passes, such as "tvmtile.InferLayout"."""
    return _broken(func, [p for name in passes for p in contract_of(name).establishes])


def _broken(func: tirx.PrimFunc, properties: Iterable[Property]) -> list[str]:
    return [problem for check in _expected(properties) for problem in check(func)]


def _expected(properties: Iterable[Property]) -> list[Invariant]:
    """The invariants of properties; tiles are looked at with tensors, where these must hold too."""
    expected = dict.fromkeys([*ALWAYS, *(INVARIANTS[p] for p in properties if p in INVARIANTS)])
    if tensors_within_bounds in expected:
        expected.pop(tiles_within_bounds, None)
    return list(expected)


def Verify(*passes: str) -> Any:
    """Make a pass that checks what must hold after some passes, for a pipeline of one's own.

    Parameters
    ----------
    *passes : str
        The passes that the module has been through, such as "tvmtile.NormalizeOperands".

    Returns
    -------
    tvm.transform.Pass
        A module pass that changes nothing.

    Raises
    ------
    VerifyError
        When it runs, if something does not hold.
    """

    def transform(mod: ir.IRModule, _: PassContext) -> ir.IRModule:
        for gv, func in mod.functions.items():
            if is_tile_program(func):
                _check(gv.name_hint, func, passes)
        return mod

    return tvm.transform.module_pass(transform, opt_level=0, name="tvmtile.Verify")


def _check(name: str, func: tirx.PrimFunc, passes: Sequence[str]) -> None:
    after = f"after {passes[-1]}, " if passes else ""
    _refuse(func, violations(func, passes), f"{after}{name} breaks what must hold")


def _refuse(func: tirx.PrimFunc, problems: Sequence[str], what: str) -> None:
    if not problems:
        return
    listed = "\n".join(f"  {problem}" for problem in problems)
    raise VerifyError(
        f"{what}:\n{listed}\n{func.script()}",
        help="this is a defect of tvmtile: please report it with the kernel",
    )


@tvm.instrument.pass_instrument
class Verifier:
    """An instrument that checks tile programs after every pass that lowers them.

    Within `LowerTilePrograms` what all passes so far have established is checked; of a pass that runs
    on its own, what it requires and what it establishes.

    Examples
    --------
    >>> import tvm
    >>> from tvmtile.passes import Verifier
    >>> with tvm.transform.PassContext(instruments=[Verifier()]):
    ...     pass
    """

    def __init__(self) -> None:
        self._first = ""
        self._established: dict[Property, None] = {}
        self._is_lowering = False
        self._programs: set[str] = set()
        self._sound: dict[str, tuple[tirx.PrimFunc, set[Invariant]]] = {}

    def run_before_pass(self, mod: ir.IRModule, info: Any) -> None:
        # The first pass comes again where LowerTilePrograms tries fewer stages.
        if info.name in (_LOWERING, self._first):
            self._first, self._established = "", {}
        self._is_lowering |= info.name == _LOWERING
        if not _is_checked(info.name):
            return
        self._programs |= {
            gv.name_hint for gv, func in mod.functions.items() if is_tile_program(func)
        }
        if not self._is_lowering:
            self._check_requirements(mod, info.name)

    def _check_requirements(self, mod: ir.IRModule, name: str) -> None:
        for gv, func in mod.functions.items():
            if gv.name_hint in self._programs:
                problems = _broken(func, contract_of(name).requires)
                _refuse(func, problems, f"{gv.name_hint} is not what {name} requires")

    def run_after_pass(self, mod: ir.IRModule, info: Any) -> None:
        if info.name == _LOWERING:
            self._is_lowering = False
            self._programs.clear()
            self._sound.clear()
        if not _is_checked(info.name):
            return
        established = dict.fromkeys(contract_of(info.name).establishes)
        if self._is_lowering:
            self._first = self._first or info.name
            self._established |= established
            established = self._established
        for gv, func in mod.functions.items():
            if gv.name_hint in self._programs:
                self._check_new(gv.name_hint, func, info.name, established)
        if not self._is_lowering:
            self._programs.clear()
            self._sound.clear()

    def _check_new(
        self, name: str, func: tirx.PrimFunc, after: str, established: Iterable[Property]
    ) -> None:
        """Check what was not asked before; many passes find nothing to change."""
        before, sound = self._sound.get(name, (None, set()))
        if before is None or not (func.same_as(before) or tvm_ffi.structural_equal(before, func)):
            sound = set()
        expected = _expected(established)
        problems = [text for check in expected if check not in sound for text in check(func)]
        _refuse(func, problems, f"after {after}, {name} breaks what must hold")
        self._sound[name] = func, sound | set(expected)


def _is_checked(name: str) -> bool:
    return name.startswith("tvmtile.") and name != _LOWERING
