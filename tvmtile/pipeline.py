"""The order of the passes, per target: the page to read first.

A tile program goes in; ordinary TIR comes out, which TVM's own passes and code generators finish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import ir, s_tir, tirx
from tvm.ir.transform import PassContext
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.target import Target

from tvmtile.codegen.device import marked
from tvmtile.codegen.intrinsics import LowerIntrinsics
from tvmtile.codegen.metal_source import complete_what_tvm_builds
from tvmtile.codegen.names import without_keywords
from tvmtile.codegen.once import ShowNames
from tvmtile.errors import hide_internal_frames
from tvmtile.ir.kernels import is_tile_program
from tvmtile.ir.passes import check_order
from tvmtile.passes import (
    BindExtents,
    CallImportedFunctions,
    CheckAccumulators,
    CheckAssertions,
    CheckBounds,
    CheckFragments,
    CheckLaunch,
    CheckLocals,
    CheckLoopExits,
    CheckParallel,
    CheckReducers,
    DeclareAsAccessed,
    DeclareInKernel,
    DistributeParallel,
    DoScalarsOnce,
    DropIdleTokens,
    ElideSharedStaging,
    EncodeTensorMaps,
    FindGroups,
    FlattenShared,
    FragmentToSimdgroup,
    GuardGlobalAccess,
    HideRemaindersOnCpu,
    HideTruncationsOnCpu,
    HoldIndices,
    InferLayout,
    InjectPipeline,
    InlineSingleTripLoops,
    InsertBarriers,
    InsertIndexChecks,
    InterchangeLoopsOnCpu,
    KeepComparisons,
    KeepNames,
    KeepRemainders,
    KeepTruncations,
    LaunchBlocksOnCpu,
    LaunchClusters,
    Legalize,
    LimitUnrolling,
    LocateAssertionsOnCpu,
    LowerAssertionsOnCuda,
    LowerAsyncWork,
    LowerCudaFunctions,
    LowerElementOp,
    LowerExits,
    LowerExtremaOnCpu,
    LowerIntegerCastsOnCuda,
    LowerMathOnCpu,
    LowerNarrowFloatsOnCpu,
    LowerNarrowFloatsOnCuda,
    LowerNarrowFloatsOnMetal,
    LowerParallelOnCpu,
    LowerTileOp,
    LowerWaitsOnCuda,
    NameDivisions,
    PackFloats,
    PadSharedRows,
    PlaceFragments,
    PlaceMemoryOnCpu,
    PlaceMemoryOnCuda,
    PlaceMemoryOnGpu,
    PlanPipeline,
    PlanSharedMemory,
    PlanUnrolling,
    ReduceAccumulations,
    SelectImplementation,
    SerializeThreads,
    SerializeVectors,
    ShareFragments,
    ShortCircuitOnCpu,
    SinkSharedAllocations,
    SplitReducers,
    StageOverlaps,
    StoreNamesOnCpu,
    SumBeforeScaling,
    SwizzleBlockIdx,
    SwizzleShared,
    UnswitchConditions,
    WarpSpecialize,
    WidenIndices,
    WrapUnsignedOnCpu,
)
from tvmtile.passes.checks.check_buffers import CheckBuffers
from tvmtile.passes.gpu.kernel_attributes import SetKernelAttributes
from tvmtile.passes.workarounds.keep_comparisons import ShowComparisons
from tvmtile.passes.workarounds.keep_elements import KeepElements
from tvmtile.passes.workarounds.keep_negations import KeepNegations
from tvmtile.passes.workarounds.narrow_sums import NarrowSums
from tvmtile.passes.workarounds.write_constants import WriteConstants
from tvmtile.target import TargetLike, gpu, host_target, parse, require_lowering

__all__ = ["CHECKS", "LOWERING", "SOURCE", "check", "lowering_passes", "tvm_pipeline"]

CHECKS: tuple[Any, ...] = (
    CheckAssertions,  # a kernel stops with an error only where the target can stop it
    CheckLaunch,  # threads and shared memory are what a block of the target has
    CheckLoopExits,  # a loop is left where its iterations have an order
    CheckParallel,  # unordered iterations do not exchange elements
    CheckLocals,  # thread-private arrays are not distributed over the threads
    CheckFragments,  # no serial loop visits a fragment that the threads share
    CheckBounds,  # no loop runs over the end of a tile
    CheckReducers,  # totals are begun, contributed to, ended, and read
    CheckAccumulators,  # nothing accumulates into a tile without a value
)
"""What is wrong with a tile program that can be said before it is lowered, for every target."""

_TILES: tuple[Any, ...] = (
    BindExtents,  # dynamic extents that stand in expressions only are bound
    KeepComparisons,  # comparisons of floats are right for NaN, whatever TVM simplifies
    KeepTruncations,  # conversions to narrow integers are right for constants, too
    NameDivisions,  # divisions by run-time values are named
    SumBeforeScaling,  # what a loop adds with one scale is scaled once, behind the loop
    Legalize,  # operands of tile operators become explicit regions
    PackFloats,  # floats of 4 bits lie in pairs in bytes
    StageOverlaps,  # a copy within a buffer reads all before it writes
    DoScalarsOnce,  # scalar work that names no thread is done once a block
    LowerExits,  # code behind a return, or an exit of what may be no loop, becomes conditional
    FindGroups,  # branches that admit whole warps become regions of groups of threads
    SelectImplementation,  # operators say which of their implementations is used
    PlanUnrolling,  # loops are unrolled as far as they ask for, unless left by break or continue
    SerializeVectors,  # vectorized loops with dependent iterations become serial
)
"""What becomes of a tile program first, whatever the target."""

_CPU: tuple[Any, ...] = (
    *_TILES,
    LocateAssertionsOnCpu,  # what an assertion says names its line
    InsertIndexChecks,  # an index outside of a tile stops a kernel that asks for it
    SerializeThreads,  # code that uses the thread index runs for one thread after the other
    ElideSharedStaging,  # tiles that a micro-kernel packs are not staged
    LowerExtremaOnCpu,  # the larger of two floats is a number, if one of them is
    LowerTileOp,  # tile operators become loops over elements and micro-kernels
    UnswitchConditions,  # conditions that hold for whole tiles are decided before their loops
    GuardGlobalAccess,  # accesses outside of a tensor read zero and write nothing
    LowerCudaFunctions,  # CUDA's own functions, called by name, work here
    LowerElementOp,  # atomics and others on single elements become instructions and calls
    InterchangeLoopsOnCpu,  # serial loops in elementwise ones go outside, so that LLVM can vectorise
    LowerParallelOnCpu,  # elementwise loops become serial loops, which LLVM vectorises
    WrapUnsignedOnCpu,  # arithmetic of unsigned integers wraps
    ShortCircuitOnCpu,  # the right side of `and` is evaluated only where the left one holds
    LowerMathOnCpu,  # exp and exp2 become arithmetic, so that LLVM can
    WidenIndices,  # elements of large tensors are numbered in 64 bits
    KeepRemainders,  # remainders that TVM would wrongly merge stay two
    PlaceMemoryOnCpu,  # tiles become arrays of the host
    LowerNarrowFloatsOnCpu,  # bfloat16 and float8 become integers that hold their bits
    HideTruncationsOnCpu,  # and LLVM does not join their conversion with a store
    HideRemaindersOnCpu,  # nor take an index that wraps around for one that goes on
    StoreNamesOnCpu,  # names that are used in one another many times become variables
    KeepNames,  # named divisions are computed once, where they are named
    LaunchClusters,  # there are none
    LaunchBlocksOnCpu,  # the grid becomes one parallel loop
)


@dataclass(frozen=True)
class _Only:
    """A pass that one kind of GPU has."""

    kind: str
    step: Any


_GPU: tuple[Any, ...] = (
    *_TILES,
    _Only("metal", ElideSharedStaging),  # tiles that are read once are not staged
    ReduceAccumulations,  # accumulations into a fragment become reductions
    SplitReducers,  # every thread has totals of its own until they are put together
    ShareFragments,  # what a loop has computed is copied for code that needs all of it
    _Only("metal", FragmentToSimdgroup),  # operands of matrix units are held in simdgroup matrices
    _Only("cuda", WarpSpecialize),  # warps of their own copy the tiles of pipelined loops
    PlanPipeline,  # which copies of a loop run ahead, and how far
    InjectPipeline,  # tiles are multi-buffered; asynchronous copies run ahead and are waited for
    SinkSharedAllocations,  # tiles local to an iteration may share memory with others
    # What threads take at once from shared tiles lies in different banks.
    _Only("metal", PadSharedRows),
    _Only("cuda", SwizzleShared),
    InferLayout,  # every element of a fragment gets its thread and register
    SelectImplementation,  # now also where the choice depends on fragment layouts
    LowerTileOp,  # tile operators become loops over elements and matrix instructions
    _Only("cuda", EncodeTensorMaps),  # the host describes tensors to copies of boxes
    UnswitchConditions,  # conditions that hold for whole tiles are decided before their loops
    GuardGlobalAccess,  # accesses outside of a tensor read zero and write nothing
    DistributeParallel,  # elementwise loops are distributed over the threads, as cp.async where it fits
    _Only("cuda", DropIdleTokens),  # copies that turn out synchronous are not waited for
    _Only("cuda", HoldIndices),  # by which a loop copies, stay in registers
    PlaceFragments,  # fragments become arrays of registers
    LimitUnrolling,  # loops are unrolled where arrays could not be in registers otherwise
    PlaceMemoryOnGpu,  # shared tiles are placed in the memory of a block
    PlanSharedMemory,  # and share it, where they would not fit otherwise
    _Only("metal", DeclareAsAccessed),  # memory that moves as words is declared in words
    DeclareInKernel,  # a tensor that has views is one argument of a kernel
    # Until here tiles are indexed by row and column, also where an address is taken: of 16 contiguous
    # bytes at most. What changes where elements lie in a tile comes after the barriers.
    InsertBarriers,  # threads wait for each other where they exchange elements
    _Only("cuda", LowerAsyncWork),  # copies, their batches and the waits become instructions
    _Only("cuda", FlattenShared),  # where an element of a tile lies becomes arithmetic
    _Only("cuda", PlaceMemoryOnCuda),  # more than a kernel may declare is asked for at the launch
    SwizzleBlockIdx,  # blocks that run together share operands, where a kernel asks for it
    _Only("metal", LowerCudaFunctions),  # CUDA's own functions, called by name, work here
    KeepNames,  # named divisions are computed once, where they are named
    _Only("cuda", CallImportedFunctions),  # imported functions come with their source
    LowerElementOp,  # operators on single elements become instructions, and functions of the target's
    _Only("cuda", LowerIntegerCastsOnCuda),  # small integers become 16-bit floats by their bits
    # Floats of 8 bits become integers that hold their bits.
    _Only("cuda", LowerNarrowFloatsOnCuda),
    _Only("metal", LowerNarrowFloatsOnMetal),
    _Only("cuda", LowerWaitsOnCuda),  # barriers of warps, and of some threads, become instructions
    _Only(
        "cuda", LowerAssertionsOnCuda
    ),  # assertions print what does not hold, and stop the kernel
    InlineSingleTripLoops,  # loops of one iteration become their body
    WidenIndices,  # elements of large tensors are numbered in 64 bits
    KeepRemainders,  # remainders that TVM would wrongly merge stay two
    LaunchClusters,  # blocks of a cluster are launched together
)


def _for_gpu(kind: str) -> tuple[Any, ...]:
    steps = (s if not isinstance(s, _Only) else s.step if s.kind == kind else None for s in _GPU)
    return tuple(step for step in steps if step is not None)


LOWERING: dict[str, tuple[Any, ...]] = {
    "llvm": _CPU,
    "metal": _for_gpu("metal"),
    "cuda": _for_gpu("cuda"),
}
"""The passes that lower a tile program, by kind of target."""

SOURCE: tuple[Any, ...] = (
    ShowNames,  # names have the values that LowerIntrin was not to look into
    NarrowSums,  # 64-bit indices are summed in 32 bits where they fit
    ShowComparisons,  # comparisons of floats look as they were written
    KeepNegations,  # ptxas does not lose the sign of a negation
    WriteConstants,  # constants and narrow dtypes are printed right
    KeepElements,  # arrays that are read by elements are declared as such
)
"""The passes over a GPU's kernels when nothing simplifies any more: their source is printed next."""

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
    bound = tirx.transform.BindTarget(_with_host(target))
    return (bound, *CHECKS, *LOWERING[target.kind.name])


def _metal_kernels(mod: ir.IRModule) -> list[str]:
    """The names of the kernels for Metal of a module that was split."""
    functions = mod.functions.values()
    kernels = [func for func in functions if func.attrs["target"].kind.name == "metal"]
    return [str(kernel.attrs["global_symbol"]) for kernel in kernels]


def _with_host(target: Target) -> Target:
    if target.kind.name == "llvm":
        return target.with_host(target)
    return target if target.host is not None else target.with_host(host_target())


# What TVM does with scheduled functions, without what only schedules need, without ThreadSync (the
# barriers are there already), and without the passes that make integers of bfloat16, which GPUs have.
_GPU_REST = ir.transform.Sequential(
    [
        s_tir.transform.UnifyThreadBinding(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.NarrowDataType(32),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.UnrollLoop(),
        s_tir.transform.RenormalizeSplitPattern(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveAssume(),
        tirx.transform.RemoveNoOp(),
        s_tir.transform.RewriteUnsafeSelect(),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        s_tir.transform.LowerThreadAllreduce(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        SetKernelAttributes,  # blocks that wait for each other run at once, and tensors may alias
        CheckBuffers,  # a kernel takes no more tensors than its GPU binds
    ]
)


def _cpu_rest(config: Mapping[str, Any]) -> Any:
    """What TVM does with scheduled functions on a CPU, without what only schedules and GPUs need.

    It is without StorageRewrite, which merges a micro-kernel's accumulators with arrays that are
    indexed by variables, so that LLVM can't keep them in registers, and without CommonSubexprElim,
    which makes the value of a Let a variable: TVM's simplifier binds such a Let a second time and
    fails. LLVM finds common subexpressions itself.
    """
    bounds = config.get("tirx.instrument_bound_checkers", False)
    profile = config.get("tirx.instrument_lwp", False)
    return ir.transform.Sequential(
        [
            s_tir.transform.CanonicalizeLoop(),
            s_tir.transform.ConvertBlocksToOpaque(),
            s_tir.transform.CompactBufferAllocation(),
            s_tir.transform.LowerMatchBuffer(),
            s_tir.transform.StmtSimplify(),
            s_tir.transform.AnnotateIrregularLoop(),
            s_tir.transform.LowerOpaqueBlock(),
            tirx.transform.FlattenBuffer(),
            tirx.transform.BF16ComputeLegalize(),
            tirx.transform.NarrowDataType(32),
            s_tir.transform.LoopPartition(),
            tirx.transform.VectorizeLoop(not config.get("tirx.disable_vectorize", False)),
            s_tir.transform.HoistIfThenElse(),
            tirx.transform.UnrollLoop(),
            s_tir.transform.RenormalizeSplitPattern(),
            tirx.transform.StmtSimplify(),
            tirx.transform.RemoveNoOp(),
            s_tir.transform.RewriteUnsafeSelect(),
            *([s_tir.transform.InstrumentBoundCheckers()] if bounds else []),
            *([s_tir.transform.InstrumentProfileIntrinsics()] if profile else []),
            tirx.transform.FP8ComputeLegalize(),
            tirx.transform.VerifyMemory(),
            tirx.transform.AnnotateEntryFunc(),
            tirx.transform.SplitHostDevice(),
            tirx.transform.MakePackedAPI(),
            tirx.transform.FP8StorageLegalize(),
            tirx.transform.BF16StorageLegalize(),
        ]
    )


def tvm_pipeline(others: Callable[[], tuple[Any, Any, Any]] = default_s_tir_pipeline) -> Any:
    """The pipeline `tvmtile` of `tvm.tirx.build`: tile programs are lowered, TVM does the rest.

    Parameters
    ----------
    others : callable
        Makes the pipeline of the module's other functions, which they go through as they would alone.

    Returns
    -------
    tuple
        What `tvm.tirx.register_tir_pipeline` asks for: the pass over the module, and the factories of
        the final passes for host and device functions.
    """
    _, finalize, _ = default_s_tir_pipeline()
    on_others, _, _ = others()

    def finalize_host() -> Any:
        # LLVM has no pointers to the narrow floats that a kernel's tensors may hold.
        legal = (tirx.transform.FP8StorageLegalize(), tirx.transform.BF16StorageLegalize())
        return ir.transform.Sequential([*legal, finalize()])

    def finalize_on_device() -> Any:
        return ir.transform.Sequential(
            [
                tirx.transform.LowerWarpMemory(),
                tirx.transform.StmtSimplify(),
                LowerIntrinsics,
                tirx.transform.LowerIntrin(),
                tirx.transform.FP8StorageLegalize(),
                *SOURCE,
            ]
        )

    @tvm.transform.module_pass(opt_level=0, name="tvmtile.pipeline")
    def run(mod: ir.IRModule, context: PassContext) -> ir.IRModule:
        programs = {gv: func for gv, func in mod.functions.items() if is_tile_program(func)}
        rest = {gv: func for gv, func in mod.functions.items() if gv not in programs}
        result = ir.IRModule({}, attrs=mod.attrs)
        if programs:
            on_cpu = _cpu_rest(context.config)
            result.update(_finished(ir.IRModule(programs, attrs=mod.attrs), on_cpu))
        if rest:
            result.update(on_others(ir.IRModule(rest, attrs=mod.attrs)))
        return result

    return run, finalize_host, finalize_on_device


def _finished(programs: ir.IRModule, on_cpu: Any) -> ir.IRModule:
    """A module of tile programs, lowered and split into kernels and what launches them."""
    from tvmtile.passes import LowerTilePrograms

    lowered = LowerTilePrograms()(programs)
    on_gpu = {gv: f for gv, f in lowered.functions.items() if gpu(f.attrs["target"]) is not None}
    result = _GPU_REST(ir.IRModule(on_gpu, attrs=programs.attrs))
    for gv, func in result.functions.items():
        result[gv] = marked(without_keywords(func))
    complete_what_tvm_builds(_metal_kernels(result))
    host = {gv: func for gv, func in lowered.functions.items() if gv not in on_gpu}
    if host:
        result.update(on_cpu(ir.IRModule(host, attrs=programs.attrs)))
    return result
