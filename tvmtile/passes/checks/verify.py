"""Verify: what must hold between the passes.

A pass says what it requires and what it establishes (`tvmtile.ir.passes`), and `INVARIANTS` how that
is checked. What is established holds to the end of the lowering; a few invariants hold always. A
violation is a defect of a pass, not of a kernel, so this is a tool for those who work on tvmtile: the
tests run with a `Verifier`, and `tvmtile.compile` takes one by
`pass_configs={"tvmtile.verify": True}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext
from tvm.tirx.analysis import verify_well_formed

from tvmtile._tvm import Mutator, is_buffer_var, mutated, walk
from tvmtile.analysis.aliases import allocations_in
from tvmtile.errors import VerifyError
from tvmtile.ir.annotations import STAGES_ANNOTATION
from tvmtile.ir.asynchronous import issued, names_token
from tvmtile.ir.calls import is_if_then_else, op_name
from tvmtile.ir.kernels import (
    is_barrier,
    is_grid_barrier,
    is_kernel,
    is_parallel,
    is_tile_program,
    leaves_loop,
    without_root_block,
)
from tvmtile.ir.operands import constant, describe
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, contract_of
from tvmtile.ir.rewriting import ScopedRewriter, contains
from tvmtile.ir.scopes import FRAGMENT_SCOPE, is_fragment
from tvmtile.layout.fragment import layout_of
from tvmtile.passes.memory.shared_memory import all_bytes
from tvmtile.target import gpu
from tvmtile.tileop.registry import fragments_of, implementation_of

__all__ = ["ALWAYS", "INVARIANTS", "Verifier", "Verify", "violations"]

Invariant: TypeAlias = Callable[[tirx.PrimFunc], Iterator[str]]
"""Names what is wrong with a function, if anything."""

_LOWERING = "tvmtile.LowerTilePrograms"


# Invariants --------------------------------------------------------------------------------------


def well_formed(func: tirx.PrimFunc) -> Iterator[str]:
    """Every variable is defined before it is used, and once."""
    if not verify_well_formed(without_root_block(func), assert_mode=False):
        yield "a variable is used outside of its definition, or defined twice"


def parallel_loops_are_nests(func: tirx.PrimFunc) -> Iterator[str]:
    """A parallel loop inside another one is its whole body."""
    nested: list[tirx.For] = []

    def visit(loop: tirx.For, mutator: Mutator) -> tirx.For:
        if is_parallel(loop) and nested and not nested[-1].body.same_as(loop):
            problems.append(
                f"the parallel loop over {loop.loop_var.name!r} stands inside another one"
            )
        if is_parallel(loop):
            nested.append(loop)
        result = mutator.default_mutate(loop)
        if is_parallel(loop):
            nested.pop()
        return result

    problems: list[str] = []
    mutated(func.body, (tirx.For, visit))
    yield from problems


def tiles_within_bounds(func: tirx.PrimFunc) -> Iterator[str]:
    """No access certainly lies outside a buffer, those of the function's tensors apart."""
    yield from _Bounds(ignored={p for p in func.params if is_buffer_var(p)}).check(func)


def tensors_within_bounds(func: tirx.PrimFunc) -> Iterator[str]:
    """No access certainly lies outside a tensor of the function."""
    yield from _Bounds(ignored=set()).check(func)


def operands_are_regions(func: tirx.PrimFunc) -> Iterator[str]:
    """Every operand of a tile operator is a region, so that its extents are known."""
    for call in _calls(func):
        op = operator_of(call)
        if op is None or not op.is_tile:
            continue
        for operand in [*op.reads(), *op.writes()]:
            if not isinstance(operand, ir.TensorRegion):
                yield f"the operand {describe(operand)} of {op.name} is not a region"


def implementations_are_chosen(func: tirx.PrimFunc) -> Iterator[str]:
    """Every tile operator has an implementation, or a fragment whose layout is waited for."""
    target = func.attrs.get("target") if func.attrs is not None else None
    for call in _calls(func):
        op = operator_of(call)
        if op is None or not op.is_tile or target is None or fragments_of(op):
            continue
        if implementation_of(op, target.kind.name) is None:
            yield f"no implementation of {op.name} is chosen"


def no_thread_loops(func: tirx.PrimFunc) -> Iterator[str]:
    """Nothing is bound to a thread, and nothing waits for one; blocks may wait for each other."""
    for loop in _loops(func.body):
        binding = loop.thread_binding
        if binding is not None and str(binding.thread_tag).startswith("threadIdx"):
            yield f"the loop over {loop.loop_var.name!r} is bound to {binding.thread_tag}"
    if contains(func.body, tirx.Evaluate, lambda s: is_barrier(s) and not is_grid_barrier(s)):
        yield "there is a barrier"


def no_tile_operators(func: tirx.PrimFunc) -> Iterator[str]:
    """No operator on tiles is left."""
    for call in _calls(func):
        op = operator_of(call)
        if op is not None and op.is_tile:
            yield f"the tile operator {op.name} is left"


def no_async_tokens(func: tirx.PrimFunc) -> Iterator[str]:
    """Asynchronous work is instructions; no tokens are left."""
    for call in _calls(func):
        if names_token(call):
            yield f"{op_name(call)} is left"


def no_operators(func: tirx.PrimFunc) -> Iterator[str]:
    """No operator of tvmtile is left, on tiles or on elements."""
    for call in _calls(func):
        op = operator_of(call)
        if op is not None:
            yield f"the operator {op.name} is left"


def loops_with_exits_are_serial(func: tirx.PrimFunc) -> Iterator[str]:
    """No loop with a `break` or `continue` is unrolled or vectorized."""
    for loop in _loops(func.body):
        if loop.kind in (tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED) and leaves_loop(loop.body):
            yield f"the loop over {loop.loop_var.name!r} is left, and is not serial"


def no_parallel_loops(func: tirx.PrimFunc) -> Iterator[str]:
    """No loop in a kernel is elementwise work that still waits to be placed."""
    for kernel in filter(is_kernel, _loops(func.body)):
        for loop in _loops(kernel.body):
            if is_parallel(loop):
                yield f"the loop over {loop.loop_var.name!r} is parallel"


def no_loops_with_stages(func: tirx.PrimFunc) -> Iterator[str]:
    """No loop waits to be pipelined."""
    for loop in _loops(func.body):
        if STAGES_ANNOTATION in loop.annotations:
            yield f"the loop over {loop.loop_var.name!r} is not pipelined yet"


def fragments_have_layouts(func: tirx.PrimFunc) -> Iterator[str]:
    """Every fragment's type says which thread holds which element."""
    for fragment in _allocated_fragments(func):
        if fragment.ty.storage_scope == FRAGMENT_SCOPE and layout_of(fragment) is None:
            yield f"{describe(fragment)} has no layout"


def no_fragments(func: tirx.PrimFunc) -> Iterator[str]:
    """Fragments are arrays of registers."""
    for fragment in _allocated_fragments(func):
        if layout_of(fragment) is not None or fragment.ty.storage_scope == FRAGMENT_SCOPE:
            yield f"{describe(fragment)} is a fragment"


def shared_memory_fits(func: tirx.PrimFunc) -> Iterator[str]:
    """A block needs no more shared memory than the target has."""
    target = func.attrs.get("target") if func.attrs is not None else None
    capability = gpu(target)
    if capability is None:
        return
    for kernel in filter(is_kernel, _loops(func.body)):
        size = all_bytes(kernel, capability)
        if size > capability.shared_memory:
            yield f"a block needs {size} bytes of shared memory"


def host_memory(func: tirx.PrimFunc) -> Iterator[str]:
    """Every buffer lies in the host's memory."""
    for buffer in dict.fromkeys(_buffers(func)):
        if buffer.ty.storage_scope != "global":
            yield f"{describe(buffer)} has the scope {buffer.ty.storage_scope!r}"


def no_kernels(func: tirx.PrimFunc) -> Iterator[str]:
    """No loop is bound to a block or a thread."""
    for loop in _loops(func.body):
        if is_kernel(loop) or loop.thread_binding is not None:
            yield f"the loop over {loop.loop_var.name!r} is bound to a block"


ALWAYS: tuple[Invariant, ...] = (well_formed, parallel_loops_are_nests, tiles_within_bounds)
"""What holds after every pass."""

INVARIANTS: dict[Property, Invariant] = {
    Property.REGIONS: operands_are_regions,
    Property.IMPLEMENTATIONS: implementations_are_chosen,
    Property.LEFT_LOOPS_ARE_SERIAL: loops_with_exits_are_serial,
    Property.PIPELINED: no_loops_with_stages,
    Property.FRAGMENT_LAYOUTS: fragments_have_layouts,
    Property.NO_TILE_OPERATORS: no_tile_operators,
    Property.IN_BOUNDS: tensors_within_bounds,
    Property.NO_THREADS: no_thread_loops,
    Property.NO_PARALLEL: no_parallel_loops,
    Property.NO_FRAGMENTS: no_fragments,
    Property.SHARED_MEMORY_FITS: shared_memory_fits,
    Property.NO_OPERATORS: no_operators,
    Property.NO_ASYNC_TOKENS: no_async_tokens,
    Property.HOST_MEMORY: host_memory,
    Property.NO_KERNELS: no_kernels,
}
"""How a property is checked, for those that can be seen in the program."""


# The verifier ------------------------------------------------------------------------------------


def violations(func: tirx.PrimFunc, passes: Sequence[str]) -> list[str]:
    """The violated properties of a function, given the names of the passes it went through.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Was a tile program at first.
    passes : sequence of str
        Names of passes, such as "tvmtile.Legalize"; those of TVM establish nothing.
    """
    return _broken(func, [p for name in passes for p in contract_of(name).establishes])


def _broken(func: tirx.PrimFunc, properties: Iterable[Property]) -> list[str]:
    return [problem for check in _expected(properties) for problem in check(func)]


def _expected(properties: Iterable[Property]) -> list[Invariant]:
    """What must hold; tiles are looked at together with tensors, where these must be, too."""
    expected = dict.fromkeys([*ALWAYS, *(INVARIANTS[p] for p in properties if p in INVARIANTS)])
    if tensors_within_bounds in expected:
        expected.pop(tiles_within_bounds, None)
    return list(expected)


def Verify(*passes: str) -> Any:
    """Make a pass that checks what must hold after some passes, for a pipeline of one's own.

    Parameters
    ----------
    *passes : str
        The passes that the module has been through, such as "tvmtile.Legalize".

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
        self._lowering: list[str] = []
        self._is_lowering = False
        self._programs: set[str] = set()
        self._sound: dict[str, tuple[tirx.PrimFunc, set[Invariant]]] = {}

    def run_before_pass(self, mod: ir.IRModule, info: Any) -> None:
        # The first pass comes again where LowerTilePrograms tries fewer stages.
        if info.name == _LOWERING or self._lowering[:1] == [info.name]:
            self._lowering = []
        self._is_lowering |= info.name == _LOWERING
        if not _is_checked(info.name):
            return
        self._programs |= _programs_of(mod)
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
        passes = [info.name]
        if self._is_lowering:
            self._lowering.append(info.name)
            passes = self._lowering
        for gv, func in mod.functions.items():
            if gv.name_hint in self._programs:
                self._check_new(gv.name_hint, func, passes)
        if not self._is_lowering:
            self._programs.clear()
            self._sound.clear()

    def _check_new(self, name: str, func: tirx.PrimFunc, passes: Sequence[str]) -> None:
        """Check what was not asked before; many passes find nothing to change."""
        before, sound = self._sound.get(name, (None, set()))
        if before is None or not tvm_ffi.structural_equal(before, func):
            sound = set()
        expected = _expected(p for each in passes for p in contract_of(each).establishes)
        problems = [text for check in expected if check not in sound for text in check(func)]
        _refuse(func, problems, f"after {passes[-1]}, {name} breaks what must hold")
        self._sound[name] = func, sound | set(expected)


def _is_checked(name: str) -> bool:
    return name.startswith("tvmtile.") and name != _LOWERING


def _programs_of(mod: ir.IRModule) -> set[str]:
    return {gv.name_hint for gv, func in mod.functions.items() if is_tile_program(func)}


# Bounds ------------------------------------------------------------------------------------------


class _Bounds(ScopedRewriter):
    """Finds accesses that the analyzer proves to lie outside, in code that may be reached."""

    def __init__(self, ignored: set[ir.Var]) -> None:
        super().__init__()
        self._ignored = ignored
        self._problems: list[str] = []
        self._shapes: dict[ir.Var, list[tuple[Any, int | None]]] = {}

    def check(self, func: tirx.PrimFunc) -> list[str]:
        self.rewrite(func.body)
        return list(dict.fromkeys(self._problems))

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        # The body of a loop without iterations is never reached.
        extent = constant(loop.extent)
        is_empty = self.analyzer.can_prove(loop.extent <= 0) if extent is None else extent <= 0
        return loop if is_empty else super().visit_for(loop)

    def visit_if(self, branch: tirx.IfThenElse) -> tirx.Stmt:
        self._visit_cases(branch.condition, branch.then_case, branch.else_case)
        return branch

    def visit_call(self, node: ir.Call) -> ir.Expr:
        op = operator_of(node)
        if op is not None:
            for operand in [*op.reads(), *op.writes()]:
                self._visit_operand(operand)
            return node
        if is_if_then_else(node):
            self._visit_cases(*node.args)
            return node
        copy = issued(node)
        if copy is not None and copy.fills:
            self.mutate(copy.operands[0])
            return node
        return self.descend(node)

    def _visit_cases(
        self, condition: ir.Expr, then_case: ir.Node, else_case: ir.Node | None
    ) -> None:
        self.mutate(condition)
        for case, holds in ((then_case, condition), (else_case, tirx.Not(condition))):
            if case is None or self.analyzer.can_prove(tirx.Not(holds)):
                continue
            with self.assuming(holds):
                self.mutate(case)

    def _visit_operand(self, operand: ir.Expr) -> None:
        if isinstance(operand, ir.TensorRegion):
            ends = [(r.min, r.min + r.extent - 1) for r in operand.region]
            self._note(operand.source, ends, lambda: operand)
        elif isinstance(operand, ir.TensorLoad):
            self.visit_load(operand)

    def visit_load(self, node: ir.TensorLoad) -> ir.Expr:
        self._note(node.source, map(_ends, node.indices), lambda: node)
        return self.descend(node)

    def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
        buffer, indices = node.buffer, node.indices
        self._note(buffer, map(_ends, indices), lambda: tirx.BufferLoad(buffer, indices))
        return self.descend(node)

    def _note(
        self, buffer: ir.Var, ends: Iterable[tuple[Any, Any]], access: Callable[[], Any]
    ) -> None:
        """Look at the first and the last index of an access along each axis."""
        if buffer in self._ignored:
            return
        for (first, last), (extent, size) in zip(ends, self._shape(buffer), strict=True):
            if self._is_inside(first, last, size):
                continue
            if self._is_proven(-1 - first) or self._is_proven(last - extent):
                self._problems.append(f"{describe(access())} lies outside {describe(buffer)}")

    def _shape(self, buffer: ir.Var) -> list[tuple[Any, int | None]]:
        """The extents, and what they are where they are constants."""
        if buffer not in self._shapes:
            self._shapes[buffer] = [(extent, constant(extent)) for extent in buffer.ty.shape]
        return self._shapes[buffer]

    def _is_inside(self, first: ir.Expr, last: ir.Expr, size: int | None) -> bool:
        """Tell whether bounds say so at once, as they mostly do."""
        if size is None:
            return False
        low = high = self.analyzer.const_int_bound(first)
        if last is not first:
            high = self.analyzer.const_int_bound(last)
        return bool(low.min_value >= 0 and high.max_value < size)

    def _is_proven(self, excess: ir.Expr) -> bool:
        """Tell whether an index is outside; under conditions that exclude each other, nothing is."""
        may_be = self.analyzer.const_int_bound(excess).max_value >= 0
        return may_be and self.analyzer.can_prove(excess >= 0)


def _ends(index: ir.Expr) -> tuple[Any, Any]:
    if isinstance(index, tirx.Ramp):
        return index.base, index.base + (index.lanes - 1) * index.stride
    return index, index


# Walks -------------------------------------------------------------------------------------------


def _calls(func: tirx.PrimFunc) -> list[ir.Call]:
    found: list[ir.Call] = []
    walk(func.body, (ir.Call, found.append))
    return found


def _loops(body: tirx.Stmt) -> list[tirx.For]:
    found: list[tirx.For] = []
    walk(body, (tirx.For, found.append))
    return found


def _allocated_fragments(func: tirx.PrimFunc) -> list[ir.Var]:
    return [each.buffer for each in allocations_in(func.body) if is_fragment(each.buffer)]


def _buffers(func: tirx.PrimFunc) -> list[ir.Var]:
    found: list[ir.Var] = []
    walk(func.body, (ir.Var, found.append))
    return [var for var in found if is_buffer_var(var)]
