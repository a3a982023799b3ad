"""How it is checked that a program has the properties which passes establish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx.analysis import verify_well_formed

from tvmtile._tvm import is_buffer_var, nodes_in, walk
from tvmtile.analysis.aliases import Aliases
from tvmtile.ir.annotations import STAGES_ANNOTATION
from tvmtile.ir.asynchronous import names_token
from tvmtile.ir.barriers import is_barrier, is_grid_barrier
from tvmtile.ir.calls import op_name
from tvmtile.ir.kernels import bound_target, is_kernel, is_parallel, leaves_loop, without_root_block
from tvmtile.ir.nodes import once_per_node
from tvmtile.ir.operands import describe
from tvmtile.ir.operators import TileOp, operator_of
from tvmtile.ir.passes import Property
from tvmtile.ir.rewriting import contains
from tvmtile.ir.scopes import FRAGMENT_SCOPE, is_fragment, is_global
from tvmtile.layout.fragment import layout_of
from tvmtile.passes.checks.bounds import Bounds
from tvmtile.passes.memory.shared_memory import all_bytes
from tvmtile.target import gpu
from tvmtile.tileop.registry import fragments_of, implementation_of

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
    allocated = {each.buffer for each in nodes_in(func.body, tirx.AllocBuffer)}
    views = (view for view in aliases.views if aliases.root(view) not in allocated)
    yield from Bounds(ignored=[*filter(is_buffer_var, func.params), *views]).check(func)


def tensors_within_bounds(func: tirx.PrimFunc) -> Iterator[str]:
    """No access certainly lies outside a tensor of the function."""
    yield from Bounds().check(func)


def operands_are_regions(func: tirx.PrimFunc) -> Iterator[str]:
    """Every operand of a tile operator is a region, so that its extents are known."""
    for op in _tile_operators(func):
        for operand in [*op.reads(), *op.writes()]:
            if not isinstance(operand, ir.TensorRegion):
                yield f"the operand {describe(operand)} of {op.name} is not a region"


def implementations_are_chosen(func: tirx.PrimFunc) -> Iterator[str]:
    """Every tile operator has an implementation, or a fragment whose layout is waited for."""
    target = bound_target(func)
    if target is None:
        return
    for op in _tile_operators(func):
        if not fragments_of(op) and implementation_of(op, target.kind.name) is None:
            yield f"no implementation of {op.name} is chosen"


def no_thread_loops(func: tirx.PrimFunc) -> Iterator[str]:
    """Nothing is bound to a thread, and nothing waits for one; blocks may wait for each other."""
    for loop in _contents(func).loops:
        binding = loop.thread_binding
        if binding is not None and str(binding.thread_tag).startswith("threadIdx"):
            yield f"the loop over {loop.loop_var.name!r} is bound to {binding.thread_tag}"
    if contains(func.body, tirx.Evaluate, lambda s: is_barrier(s) and not is_grid_barrier(s)):
        yield "there is a barrier"


def no_tile_operators(func: tirx.PrimFunc) -> Iterator[str]:
    """No operator on tiles is left."""
    for op in _tile_operators(func):
        yield f"the tile operator {op.name} is left"


def no_async_tokens(func: tirx.PrimFunc) -> Iterator[str]:
    """Asynchronous work is instructions; no tokens are left."""
    for call in _contents(func).calls:
        if names_token(call):
            yield f"{op_name(call)} is left"


def no_operators(func: tirx.PrimFunc) -> Iterator[str]:
    """No operator of tvmtile is left, on tiles or on elements."""
    for op in map(operator_of, _contents(func).calls):
        if op is not None:
            yield f"the operator {op.name} is left"


def loops_with_exits_are_serial(func: tirx.PrimFunc) -> Iterator[str]:
    """No loop with a `break` or `continue` is unrolled or vectorized."""
    for loop in _contents(func).loops:
        if loop.kind in (tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED) and leaves_loop(loop.body):
            yield f"the loop over {loop.loop_var.name!r} is left, and is not serial"


def no_parallel_loops(func: tirx.PrimFunc) -> Iterator[str]:
    """No loop in a kernel is elementwise work that still waits to be placed."""
    loops = _contents(func).loops
    if not any(map(is_parallel, loops)):
        return
    for kernel in filter(is_kernel, loops):
        for loop in _contents_of(kernel.body).loops:
            if is_parallel(loop):
                yield f"the loop over {loop.loop_var.name!r} is parallel"


def no_loops_with_stages(func: tirx.PrimFunc) -> Iterator[str]:
    """No loop waits to be pipelined."""
    for loop in _contents(func).loops:
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
    target = bound_target(func)
    capability = gpu(target)
    if capability is None:
        return
    for kernel in filter(is_kernel, _contents(func).loops):
        size = all_bytes(kernel, capability)
        if size > capability.shared_memory:
            yield f"a block needs {size} bytes of shared memory"


def host_memory(func: tirx.PrimFunc) -> Iterator[str]:
    """Every buffer lies in the host's memory."""
    for buffer in dict.fromkeys(_buffers(func)):
        if not is_global(buffer):
            yield f"{describe(buffer)} has the scope {buffer.ty.storage_scope!r}"


def no_kernels(func: tirx.PrimFunc) -> Iterator[str]:
    """No loop is bound to a block or a thread."""
    for loop in _contents(func).loops:
        if is_kernel(loop) or loop.thread_binding is not None:
            yield f"the loop over {loop.loop_var.name!r} is bound to a block"


ALWAYS: tuple[Invariant, ...] = (well_formed, parallel_loops_are_nests, tiles_within_bounds)
"""What holds after every pass."""

INVARIANTS: dict[Property, Invariant] = {
    Property.REGIONS: operands_are_regions,
    Property.IMPLEMENTATIONS: implementations_are_chosen,
    Property.LOOPS_WITH_BREAK_ARE_SERIAL: loops_with_exits_are_serial,
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


@dataclass
class _Contents:
    """What a statement has of what invariants ask for, most of them after each pass."""

    loops: list[tirx.For]
    allocations: list[tirx.AllocBuffer]
    calls: list[ir.Call]
    """Those of operators of tvmtile."""


@once_per_node
def _contents_of(body: tirx.Stmt) -> _Contents:
    found = nodes_in(body, (tirx.For, tirx.AllocBuffer, ir.Call))  # one walk, after each pass
    return _Contents(
        loops=[node for node in found if isinstance(node, tirx.For)],
        allocations=[node for node in found if isinstance(node, tirx.AllocBuffer)],
        calls=[
            node
            for node in found
            if isinstance(node, ir.Call) and op_name(node).startswith("tvmtile.")
        ],
    )


def _contents(func: tirx.PrimFunc) -> _Contents:
    return _contents_of(func.body)


def _tile_operators(func: tirx.PrimFunc) -> Iterator[TileOp]:
    for op in map(operator_of, _contents(func).calls):
        if op is not None and op.is_tile:
            yield op


def _allocated_fragments(func: tirx.PrimFunc) -> Iterator[ir.Var]:
    buffers = (each.buffer for each in _contents(func).allocations)
    return filter(is_fragment, buffers)


def _buffers(func: tirx.PrimFunc) -> list[ir.Var]:
    return list(filter(is_buffer_var, nodes_in(func.body, ir.Var)))
