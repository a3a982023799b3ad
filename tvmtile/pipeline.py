"""The order of the passes: the page to read first.

A tile program goes in; ordinary TIR comes out, which TVM's own passes and code generators finish
(`tvmtile.tvm_pipeline`). Every target has the same phases, `PHASES`; a pass in one says which kinds of
target have it, if not all do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import ir, tirx
from tvm.target import Target

from tvmtile import passes as P
from tvmtile.errors import hide_internal_frames
from tvmtile.ir.passes import Phase, check_order, only
from tvmtile.target import TargetLike, parse, require_lowering, with_host

__all__ = ["CHECKS", "LOWERING", "PHASES", "check", "lowering_passes"]

_llvm, _cuda, _metal = only("llvm"), only("cuda"), only("metal")
_gpu, _without_cuda = only("cuda", "metal"), only("llvm", "metal")

# fmt: off
PHASES = (
    Phase("check", "the same, or an error",
        P.CheckLaunch,  # a kernel asks for no more than the target has
        P.CheckLoops,  # loops are left where they can be, and T.Parallel exchanges no elements
        P.CheckTiles,  # threads have the elements that they use, and tiles have values
    ),
    Phase("normalize", "regions are explicit, exits are branches, groups are found",
        P.NormalizeSignature,  # tensors have axes, extents are bound, views are declared in kernels
        P.LegalizeExpressions,  # nothing that simplifies changes what expressions mean
        P.NormalizeBinds,  # run-time divisions have names, and no name stands for too large a value
        P.SumBeforeScaling,  # what a loop adds with one scale is scaled once, behind the loop
        P.NormalizeOperands,  # operands of tile operators become explicit regions
        P.PackFloats,  # floats of 4 bits lie in pairs in bytes
        P.StageOverlappingCopies,  # a copy within a buffer reads all before it writes
        P.RunScalarEffectsOnce,  # scalar work that names no thread is done once a block
        P.StructureExits,  # code behind a return, or an exit of no loop, becomes conditional
        P.HoistAssumptions,  # what is assumed of sizes is checked before a launch
        P.FindGroups,  # branches that admit whole warps become regions of groups of threads
        P.PrivatizeFragments,  # what each thread stores for itself, each thread has
        P.PlanUnrolling,  # loops are unrolled as far as they ask for, but those that `break` leaves
        P.SerializeVectors,  # vectorized loops with dependent iterations become serial
    ),
    Phase("select", "every operator names its implementation",
        P.SelectImplementation,  # operators say which of their implementations is used
    ),
    Phase("schedule", "pipelined loops have a prologue and an epilogue, or roles",
        _llvm(P.InsertIndexChecks),  # an index outside of a tile stops a kernel that asks for it
        _llvm(P.SerializeThreads),  # code that uses the thread index runs thread after thread
        _gpu(P.ReducePartialWarps),  # what the threads of an odd number count, each of them adds up
        _gpu(P.LowerThreadLocalTileOps),  # each thread does what is asked of its own tiles
        _gpu(P.OrderIterations),  # loops say what they store in the order of their iterations
        _without_cuda(P.ElideSharedStaging),  # tiles that are read once are not staged
        _llvm(P.AccumulateInPlace),  # sums that are only written out are kept where they go
        _llvm(P.FoldClearIntoFirstGemm),  # and begin with the first product
        _gpu(P.SplitReducers),  # reducers are fragments, or every thread has totals of its own
        _gpu(P.ReduceAccumulations),  # accumulations into a fragment become reductions
        _gpu(P.ShareFragments),  # what a loop has computed is copied for code that needs all of it
        _metal(P.FragmentToSimdgroup),  # operands of matrix units become simdgroup matrices
        _gpu(P.SchedulePipelines),  # copies run ahead of what uses them, by warps of their own or not
    ),
    Phase("layout", "every fragment and shared tile has a layout",
        _gpu(P.SinkSharedAllocations),  # tiles local to an iteration may share memory with others
        _gpu(P.InferLayout),  # every element of a fragment gets its thread and register
        _gpu(P.LayOutSharedTiles),  # what threads take at once lies in different banks
        _gpu(P.ReduceBehindLoops),  # sums of a loop are exchanged between threads behind it
        _gpu(P.SelectImplementation),  # now also where the choice depends on fragment layouts
    ),
    Phase("lower", "tile operators are loop nests and instructions",
        P.LowerTileOp,  # tile operators become loops over elements and matrix instructions
        _cuda(P.EncodeTensorMaps),  # the host describes tensors to copies of boxes
    ),
    Phase("distribute", "nests are guarded, and are threads or vectors",
        P.VersionNests,  # conditions that hold for whole tiles are decided before their loops
        P.InsertBoundsGuards,  # accesses outside of a tensor read zero and write nothing
        _llvm(P.LowerCudaFunctions),  # CUDA's own functions, called by name, work here
        _llvm(P.LowerElementOp),  # operators on single elements become instructions and calls
        _llvm(P.InterchangeLoopsOnCpu),  # serial loops go outside, so that LLVM can vectorise
        _llvm(P.LowerParallelOnCpu),  # elementwise loops become serial loops, which LLVM vectorises
        _gpu(P.DistributeParallel),  # elementwise loops run on the threads, as cp.async where it fits
        _cuda(P.HoistGatherIndices),  # by which a loop copies, stay in registers
    ),
    Phase("memory", "tiles are registers, shared memory, or arrays of the host",
        _llvm(P.PlaceMemoryOnCpu),  # tiles become arrays of the host
        _gpu(P.PlaceMemoryOnGpu),  # fragments become registers, shared tiles memory of a block
        _gpu(P.LimitUnrolling),  # loops are unrolled where arrays could not be in registers otherwise
        _gpu(P.PlanSharedMemory),  # shared tiles share memory, where they would not fit otherwise
        _gpu(P.DeclareInKernel),  # a tensor that has views is one argument of a kernel
    ),
    Phase("synchronize", "threads wait for each other where they must",
        # Until here tiles are indexed by row and column, also where an address is taken: of 16
        # contiguous bytes at most. What changes where elements lie comes after the barriers.
        _gpu(P.InsertBarriers),  # threads wait for each other where they exchange elements
        _cuda(P.FenceLoads),  # what threads did with a tile is over before a bulk copy fills it
        _cuda(P.LowerAsyncWork),  # copies, their batches and the waits become instructions
        _cuda(P.FlattenShared),  # where an element of a tile lies becomes arithmetic
        _cuda(P.PlaceMemoryOnCuda),  # more than a kernel may declare is asked for at the launch
        _gpu(P.SwizzleBlockIdx),  # blocks that run together share operands, where a kernel asks for it
    ),
    Phase("legalize", "elements, loops and indices suit TVM and the target's compiler",
        # Elements.
        _metal(P.LowerCudaFunctions),  # CUDA's own functions, called by name, work here
        _gpu(P.PreventLetInlining),  # named divisions are computed once, where they are named
        _cuda(P.CallImportedFunctions),  # imported functions come with their source
        _gpu(P.LowerElementOp),  # operators on single elements become instructions and calls
        P.LegalizeOperations,  # functions, arithmetic, barriers and assertions are the target's
        _cuda(P.LowerNarrowFloatsOnCuda),  # floats of 8 bits become integers that hold their bits
        _metal(P.LowerNarrowFloatsOnMetal),  # floats of 8 bits become integers that hold their bits
        # Loops, of statements as they are printed.
        _cuda(P.BatchGlobalLoads),  # copies by elements load all before they store
        _gpu(P.DeferUnrolling),  # the compiler of the source unrolls what is guarded, or very long
        # Memory and names.
        _llvm(P.LowerNarrowFloatsOnCpu),  # bfloat16 and float8 become integers that hold their bits
        _llvm(P.LegalizeMemoryOnCpu),  # LLVM vectorises no store and no index wrongly
        P.SpillNestedLets,  # names that are used in one another many times become variables
        _llvm(P.PreventLetInlining),  # named divisions are computed once, where they are named
    ),
    Phase("launch", "the host has what launches the blocks, or runs them",
        P.LaunchClusters,  # blocks of a cluster are launched together
        _cuda(P.CacheTensorMaps),  # the host encodes them once for a tensor and a shape
        _llvm(P.LaunchBlocksOnCpu),  # the grid becomes one parallel loop
    ),
)
# fmt: on
"""Phases by their names, with the form that comes out of each."""

CHECKS: tuple[Any, ...] = PHASES[0].steps
"""Mistakes in a tile program that are found before it is lowered, for every target."""

LOWERING: dict[str, tuple[Any, ...]] = {
    kind: tuple(step for phase in PHASES[1:] for step in phase.passes(kind))
    for kind in ("llvm", "metal", "cuda")
}
"""The passes that lower a tile program, by kind of target."""

for _steps in LOWERING.values():
    check_order((*CHECKS, *_steps))


@hide_internal_frames
def check(func: tirx.PrimFunc, target: TargetLike) -> None:
    """Say what is wrong with a tile program for a target, without lowering it.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        A tile program.
    target : str, dict or Target
        Any target of TVM: a kernel for a GPU can be checked on any machine.

    Raises
    ------
    TileError
        If it can't run there.
    """
    bound = tirx.transform.BindTarget(parse(target))
    mod = ir.IRModule({"main": func.with_attr("global_symbol", "main")})
    for step in (bound, *CHECKS):
        mod = step(mod)


def lowering_passes(target: Target) -> tuple[Callable[[ir.IRModule], ir.IRModule], ...]:
    """The passes for a target, the one that binds the target first.

    Raises
    ------
    UnknownTarget
        If tile programs can't be lowered for it.
    """
    require_lowering(target)
    bound = tirx.transform.BindTarget(with_host(target))
    return (bound, *CHECKS, *LOWERING[target.kind.name])
