"""PlanSharedMemory: the shared tiles of a block fit into what the target has."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import mapped
from tvmtile.errors import OutOfSharedMemory
from tvmtile.ir.kernels import Launch, target_of, with_kernels, with_launch_body
from tvmtile.ir.operands import describe
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import seq
from tvmtile.ir.spans import location_of
from tvmtile.passes.memory.shared_memory import Slot, all_bytes, lifetimes_in, packed
from tvmtile.target import GpuCapability, gpu


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
        if node.buffer not in self._memory:
            return node
        words, offset = self._memory[node.buffer]
        data = words.data
        if offset:
            data = T.ptr_byte_offset(data, offset, str(node.buffer.ty.dtype))
        return tirx.DeclBuffer(node.buffer, data=data)
