"""The buffers of a kernel, their views, and who uses them."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, nodes_in
from tvmtile.analysis.accesses import accesses_of
from tvmtile.analysis.aliases import Aliases
from tvmtile.ir.kernels import Launch


class KernelTiles(Aliases):
    """The buffers of a kernel.

    Attributes
    ----------
    allocated : dict of Var to AllocBuffer
        What the kernel allocates.
    accesses : list of Access
        All uses, views resolved.
    bound_loops : list of For
        The loops that are bound to blocks and threads.
    threads : set of Var
        The variables of those that are bound to threads.
    """

    def __init__(self, kernel: tirx.For) -> None:
        super().__init__(kernel)
        self.allocated = {buffer_of(each): each for each in nodes_in(kernel, tirx.AllocBuffer)}
        launch = Launch(kernel)
        self.bound_loops = [*launch.blocks, *launch.threads]
        self.threads = {loop.loop_var for loop in launch.threads}
        self.accesses = accesses_of(kernel)

    def escapes(self, buffer: ir.Var) -> bool:
        """Tell whether a buffer, or its address, is handed to something as a whole."""
        return any(a.is_whole and a.buffer.same_as(buffer) for a in self.accesses)
