"""PlaceMemoryOnCpu, PlaceMemoryOnGpu and what follows that: tiles become arrays of the target.

On a GPU fragments become registers and shared tiles memory of a block. Then PlanSharedMemory lets tiles
share it where they must, and PlaceMemoryOnCuda asks for more than a kernel may declare.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import reduce

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.tirx.script import builder as T

from tvmtile._tvm import Replacement, buffer_of, indices_of, is_buffer_var, mapped
from tvmtile.analysis.aliases import Aliases
from tvmtile.codegen.metal import element_of, set_element
from tvmtile.errors import OutOfSharedMemory, VerifyError, warn
from tvmtile.ir.alignment import least_alignments
from tvmtile.ir.kernels import (
    Launch,
    is_kernel,
    leaves_loop,
    target_of,
    with_body,
    with_kernels,
    with_launch_body,
    with_statements,
)
from tvmtile.ir.operands import bits_of, describe
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import (
    contains,
    mentions,
    retyped,
    seq,
    statements_in,
    substitute,
)
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.scopes import (
    SIMDGROUP_SCOPE,
    is_by_matrices,
    is_fragment,
    is_global,
    is_mbarrier,
    is_shared,
)
from tvmtile.ir.spans import location_of
from tvmtile.ir.threads import MOST_REGISTERS, WARP_SIZE
from tvmtile.layout.fragment import FragmentLayout, layout_of
from tvmtile.passes.memory.shared_memory import (
    Slot,
    alignment_of,
    all_bytes,
    lifetimes_in,
    one_after_the_other,
    packed,
    shared_tiles_in,
)
from tvmtile.target import GpuCapability, gpu


@prim_func_pass(
    "PlaceMemoryOnCpu", requires=(Property.NO_TILE_OPERATORS,), establishes=(Property.HOST_MEMORY,)
)
def PlaceMemoryOnCpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give tiles the host's scope, and assume no more of a tensor's alignment than its dtype demands.

    TVM places a `global` buffer of less than 1024 bytes on the stack, where LLVM can keep it in
    registers, and takes larger ones from its pool of workspaces, 64-byte aligned. It gives them back
    at the end of a loop's body, which `break` and `continue` don't reach, and not at all in the body of
    a `while`: what such a loop allocates stands in front of it.

    A tensor of the signature may be a slice of a larger one (`x[1:]`) or a numpy
    array, so it is not taken to be 64-byte aligned, as TVM would.
    """
    placed = {
        tensor: retyped(tensor, data_alignment=alignment)
        for tensor, alignment in least_alignments(func, func.params).items()
    }

    place = _in_scope(lambda var: None if is_global(var) else "global", placed)
    body = mapped(func.body, (ir.Var, place), ((tirx.For, tirx.While), _allocated_in_front))
    params = [placed.get(param, param) for param in func.params]
    if not any(is_buffer_var(param) for param in params):
        # TVM takes the device from a tensor; its pool of workspaces asks for it.
        body = tirx.AttrStmt(ir.StringImm("default"), "device_id", tirx.const(0, "int32"), body)
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs, func.span)


def _in_scope(
    scope: Callable[[ir.Var], str | None], placed: dict[ir.Var, ir.Var]
) -> Callable[[ir.Var], ir.Var]:
    """A function that replaces buffers: as `placed` has them, else by those in another scope."""

    def place(var: ir.Var) -> ir.Var:
        if is_buffer_var(var) and var not in placed and (other := scope(var)) is not None:
            placed[var] = retyped(var, scope=other)
        return placed.get(var, var)

    return place


def _allocated_in_front(loop: tirx.For | tirx.While) -> tirx.Stmt:
    """A loop that does not reach the end of its body, without allocations in that."""
    if not isinstance(loop, tirx.While) and not leaves_loop(loop.body):
        return loop
    if contains(loop.body, tirx.For, lambda inner: inner.kind in _BLOCKS):
        return loop
    found: list[tirx.Stmt] = []

    def take(allocation: tirx.AllocBuffer) -> tirx.Stmt:
        if not all(isinstance(extent, tirx.IntImm) for extent in buffer_of(allocation).ty.shape):
            return allocation
        found.append(allocation)
        return seq([])

    body = mapped(loop.body, (tirx.AllocBuffer, take))
    return seq([*found, with_statements(loop, [body])]) if found else loop


_BLOCKS = (tirx.ForKind.PARALLEL, tirx.ForKind.THREAD_BINDING)


@prim_func_pass(
    "PlaceMemoryOnGpu",
    requires=(Property.FRAGMENT_LAYOUTS, Property.NO_PARALLEL),
    establishes=(Property.NO_FRAGMENTS,),
)
def PlaceMemoryOnGpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace fragments by arrays of registers, and place shared tiles in memory of a block.

    Indices of a fragment's elements become numbers of registers. Each thread accesses elements that it
    holds (InferLayout and DistributeParallel see to that), and as a rule the number of a register does
    not depend on the thread then. Elements of simdgroup matrices are read and written through
    `thread_elements()`. A fragment of more registers than a thread can have is one in memory: that
    warns. The size of shared tiles is fixed when a kernel is compiled.
    """
    placer = _Placer(func.body)
    place = _in_scope(lambda var: _SCOPES_ON_GPU.get(var.ty.storage_scope), placer.arrays)
    return with_body(func, mapped(placer.rewrite(func.body), (ir.Var, place)))


_SCOPES_ON_GPU = {"shared.dyn": "shared", "local.var": "local"}


class _Placer(ScopedRewriter):
    def __init__(self, body: tirx.Stmt) -> None:
        super().__init__()
        self._launch: Launch | None = None
        self._along: dict[Hashable, ir.Expr | None] = {}
        self.arrays: dict[ir.Var, ir.Var] = {}
        self._layouts: dict[ir.Var, FragmentLayout] = {}
        for allocation in statements_in(body, tirx.AllocBuffer):
            self._note(allocation)
        aliases = Aliases(body)
        for view in filter(is_fragment, aliases.views):
            layout = layout_of(view)
            if layout is not None:
                self._layouts[view], self.arrays[view] = layout, self.arrays[aliases.root(view)]

    def _note(self, alloc: tirx.AllocBuffer) -> None:
        fragment = buffer_of(alloc)
        if not is_fragment(fragment):
            return
        layout = layout_of(fragment)
        if layout is None:
            return  # matrices that a product has for itself
        taken = layout.registers * bits_of(fragment) // 32
        if taken > MOST_REGISTERS:
            warn(
                f"{describe(fragment)} takes {taken} registers of each thread, which has at most "
                f"{MOST_REGISTERS}: it will lie in memory, which is slow; make it smaller, or give "
                "T.Kernel more threads",
                location_of(alloc),
            )
        in_matrices = is_by_matrices(fragment)
        self._layouts[fragment] = layout
        self.arrays[fragment] = tirx.decl_buffer(
            (layout.registers * (WARP_SIZE if in_matrices else 1),),
            str(fragment.ty.dtype),
            name=fragment.name,
            scope=SIMDGROUP_SCOPE if in_matrices else "local",
        )

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        if is_kernel(loop):
            self._launch, self._of_threads, self._along = Launch(loop), Analyzer(), {}
            for axis in self._launch.threads:
                self._of_threads.bind(
                    axis.loop_var, ir.Range.from_min_extent(axis.min, axis.extent)
                )
        return super().visit_for(loop)

    def others(self) -> list[Replacement]:
        return [(tirx.DeclBuffer, self.visit_decl)]

    def visit_decl(self, view: tirx.DeclBuffer) -> tirx.Stmt:
        return seq([]) if buffer_of(view) in self._layouts else self.descend(view)

    def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
        if buffer_of(node) not in self._layouts:
            return self.descend(node)
        array = self.arrays[buffer_of(node)]
        value = self.mutate(node.value)
        register = self._register(buffer_of(node), indices_of(node))
        if is_by_matrices(array):
            return set_element(array, register, value)
        return tirx.BufferStore(array, value, [register], span=node.span)

    def visit_load(self, node: ir.TensorLoad) -> ir.Expr:
        if buffer_of(node) not in self._layouts:
            return self.descend(node)
        array = self.arrays[buffer_of(node)]
        register = self._register(buffer_of(node), indices_of(node))
        if is_by_matrices(array):
            return element_of(array, register)
        return tirx.BufferLoad(array, [register])

    def _register(self, fragment: ir.Var, indices: Sequence[ir.Expr]) -> ir.Expr:
        indices = [self.mutate(index) for index in indices]
        layout = self._layouts[fragment]
        if self._launch is None:
            raise VerifyError(f"{describe(fragment)} is used outside of a kernel")
        threads = [loop.loop_var for loop in self._launch.threads]
        if not contains(indices, ir.Var, lambda var: not any(map(var.same_as, threads))):
            along = [self._register_along(fragment, *each, threads) for each in enumerate(indices)]
            known = [each for each in along if each is not None]
            if known and len(known) == len(along):
                return reduce(operator.add, known)
        register = self.analyzer.simplify(layout.register_of(indices))
        if type(register) is tirx.IntImm:
            return register
        if not any(mentions(register, thread) for thread in threads):
            return register
        bounds = self.analyzer.const_int_bound
        first = {t: tirx.const(bounds(t).min_value, "int32") for t in threads}  # of those that come
        in_first = self.analyzer.simplify(substitute(register, first))
        # A thread may look for what all of them hold in a register that depends on the thread.
        return in_first if self.analyzer.can_prove_equal(register, in_first) else register

    def _register_along(
        self, fragment: ir.Var, axis: int, index: ir.Expr, threads: list[ir.Var]
    ) -> ir.Expr | None:
        """The part of the register that an index has, where it is one number for all that come.

        Tiles that are staged are written out, register by register, with few indices along each axis.
        """
        bounds = [self.analyzer.const_int_bound(thread) for thread in threads]
        known = ((each.min_value, each.max_value) for each in bounds)
        key = hash(fragment), axis, *known, tvm_ffi.StructuralKey(index)
        if key not in self._along:
            analyzer = Analyzer()
            for thread, each in zip(threads, bounds, strict=True):
                analyzer.update(thread, each)
            part = analyzer.simplify(self._layouts[fragment].register_along(axis, index))
            self._along[key] = part if type(part) is tirx.IntImm else None
        return self._along[key]


# The shared memory of a block ------------------------------------------------------------------------


@prim_func_pass(
    "PlanSharedMemory",
    requires=(Property.NO_FRAGMENTS,),
    establishes=(Property.SHARED_MEMORY_FITS,),
)
def PlanSharedMemory(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let tiles share memory where a block would otherwise need more than the target has.

    Two tiles can share memory where one is last used before the other is first used; several smaller
    ones lie side by side in the memory of a larger one. They are left apart where all fit, because
    sharing costs barriers, and where threads come that can't wait for each other: in what a group does,
    and under a condition that diverges between threads.

    Raises
    ------
    OutOfSharedMemory
        If the tiles that are in use at once don't fit; the message lists them.
    """
    capability = gpu(target_of(func))
    if capability is None:
        return func
    return with_kernels(func, lambda kernel: _planned(kernel, capability))


def _planned(kernel: tirx.For, capability: GpuCapability) -> tirx.For:
    if all_bytes(kernel, capability) <= capability.shared_memory:
        return kernel
    slots = packed(lifetimes_in(kernel, capability))
    if sum(slot.size for slot in slots) > capability.shared_memory:
        raise _too_large(kernel, slots, capability)
    shared = [slot for slot in slots if len(slot.offsets) > 1]
    return _Sharing(shared, capability.shared_alignment).apply(kernel)


def _too_large(kernel: tirx.For, slots: list[Slot], capability: GpuCapability) -> OutOfSharedMemory:
    needed = sum(slot.size for slot in slots)
    table = "".join(
        f"\n  {describe(tile.buffer)}: {tile.size / 1024:g} KB"
        for slot in slots
        for tile in list(slot.offsets)[:1]
    )
    return OutOfSharedMemory(
        f"T.Kernel: the shared tiles need {needed / 1024:g} KB at once, with the copies that "
        f"pipelined loops give them; a block of {capability.name} has "
        f"{capability.shared_memory / 1024:g} KB{table}",
        help="make the tiles smaller, use fewer stages (num_stages), or keep a tile in a fragment",
        location=location_of(kernel),
    )


class _Sharing:
    """Replaces the allocations of tiles that share memory by views of it."""

    def __init__(self, slots: list[Slot], alignment: int) -> None:
        self._memory: dict[ir.Var, tuple[ir.Var, int]] = {}
        self._allocations: list[tirx.Stmt] = []
        for slot in slots:
            words = tirx.decl_buffer(
                (slot.size // 4,),
                "uint32",
                name="tiles",
                scope="shared",
                data_alignment=slot.alignment if slot.alignment > alignment else -1,
            )
            self._allocations.append(tirx.AllocBuffer(words))
            places = slot.offsets.items()
            self._memory.update({tile.buffer: (words, offset) for tile, offset in places})

    def apply(self, kernel: tirx.For) -> tirx.For:
        body = mapped(Launch(kernel).body, (tirx.AllocBuffer, self._view))
        return with_launch_body(kernel, seq([*self._allocations, body]))

    def _view(self, node: tirx.AllocBuffer) -> tirx.Stmt:
        if buffer_of(node) not in self._memory:
            return node
        words, offset = self._memory[buffer_of(node)]
        data = words.data
        if offset:
            data = T.ptr_byte_offset(data, offset, str(buffer_of(node).ty.dtype))
        return tirx.DeclBuffer(buffer_of(node), data=data)


_STATIC_LIMIT = 48 * 1024
"""Bytes of shared memory that a CUDA kernel may declare; more is asked for when it is launched."""


@prim_func_pass("PlaceMemoryOnCuda", requires=(Property.FLAT_TILES,))
def PlaceMemoryOnCuda(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Place shared tiles in memory that a kernel declares, or, if they need more than 48 KB, asks for.

    Memory that is asked for when a kernel is launched is one array, of which the tiles are parts.
    """
    capability = gpu(target_of(func))
    if capability is None:
        return func
    return with_kernels(func, lambda kernel: _with_arena(kernel, capability))


def _with_arena(kernel: tirx.For, capability: GpuCapability) -> tirx.For:
    tiles = shared_tiles_in(kernel)
    size = all_bytes(kernel, capability)
    if size <= _STATIC_LIMIT and not _moves_boxes(kernel, tiles):
        return kernel
    if size <= _STATIC_LIMIT:
        return substitute(
            kernel,
            {
                tile: retyped(tile, scope="shared", data_alignment=alignment_of(tile, capability))
                for tile in tiles
            },
        )
    offsets = one_after_the_other(tiles, capability)
    largest = max(alignment_of(tile, capability) for tile in tiles)
    arena = tirx.decl_buffer(
        (size,),
        "uint8",
        name="tiles",
        scope="shared.dyn",
        data_alignment=largest if largest > capability.shared_alignment else -1,
    )

    def part(node: tirx.AllocBuffer) -> tirx.Stmt:
        if buffer_of(node) not in offsets:
            return node
        dtype = str(buffer_of(node).ty.dtype)
        data = T.ptr_byte_offset(arena.data, offsets[buffer_of(node)], dtype)
        return tirx.DeclBuffer(buffer_of(node), data=data)

    def scope(var: ir.Var) -> str | None:
        return "shared.dyn" if is_shared(var) and not var.same_as(arena) else None

    parts = mapped(Launch(kernel).body, (tirx.AllocBuffer, part))
    body = mapped(parts, (ir.Var, _in_scope(scope, {})))
    return with_launch_body(kernel, seq([tirx.AllocBuffer(arena), body]))


def _moves_boxes(kernel: tirx.For, tiles: Iterable[ir.Var]) -> bool:
    """Tell whether boxes of tiles move at once, which begin at multiples of the target's alignment."""

    def is_bulk(call: ir.Call) -> bool:
        op = operator_of(call)
        return op is not None and op.effects().token is not None

    return any(map(is_mbarrier, tiles)) or contains(kernel, ir.Call, is_bulk)
