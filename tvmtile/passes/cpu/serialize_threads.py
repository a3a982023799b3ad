"""SerializeThreads: a CPU runs the threads of a block one after the other."""

from __future__ import annotations

from tvm import tirx

from tvmtile.ir.kernels import Launch, with_kernels
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import replace_loop, substitute
from tvmtile.ir.threads import without_groups
from tvmtile.passes.cpu.threads.plan import plan_threads
from tvmtile.passes.cpu.threads.runs import emit_runs


@prim_func_pass(
    "SerializeThreads", requires=(Property.EXITS_ARE_BRANCHES,), establishes=(Property.NO_THREADS,)
)
def SerializeThreads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Remove the thread loops of a kernel; code that uses the thread index gets loops over threads.

    A tile program describes the work of a block, and most programs never name a thread: their body
    stays as it is. Where one does, the meaning is that of a GPU: all threads go through the body
    together, and a barrier separates what is before it from what is after it. So the body is cut into
    runs of statements that need no barrier, and each run becomes a loop over the threads (this is loop
    fission, as in MCUDA and POCL). Cuts lie

    - at `T.sync_threads()`;
    - at a tile operator or a `T.Parallel`, which is the work of the whole block and is done once, and
      at any other statement that is the same for all threads;
    - where a thread may read from a shared tile what another one wrote before, or may overwrite what
      another one still reads: a barrier is understood there, which on a GPU the compiler puts in.

    A loop or a branch with a cut inside stays outside of the loops over threads; the condition of a
    branch that diverges between threads is then kept per thread, and a loop whose bounds differ is
    stepped through by all threads together, each as often as its own bounds say. A private array
    (`T.alloc_local`, `T.alloc_var`) that lives across a cut gets an element for each thread; a value
    bound before a cut is computed again, or kept if it was read from memory. Shuffles and reductions
    over threads go through a shared array.

    The pass comes before LowerTileOp because a tile operator is still one statement there, which is
    what tells the work of a block from that of a thread. An operator on a private array, such as
    `T.clear` of one, is the work of a thread. The index of the only thread along an axis is 0, on which
    nothing depends.

    Raises
    ------
    NestingError
        If a barrier or a tile operator stands where some threads come and others don't. Tile operators
        may stand in a branch that depends on nothing but the index of the thread: its threads do the
        work.
    """

    def serialize(kernel: tirx.For) -> tirx.Stmt:
        launch = Launch(kernel)
        alone = [loop for loop in launch.threads if constant(loop.extent) == 1]
        zero = {loop.loop_var: tirx.const(0, str(loop.loop_var.ty.dtype)) for loop in alone}
        launch.body = substitute(launch.body, zero)
        body = without_groups(emit_runs(plan_threads(launch), launch))
        for block in reversed(launch.blocks):
            body = replace_loop(block, body=body)
        return body

    return with_kernels(func, serialize)
