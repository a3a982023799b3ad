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

from tvmtile import passes as P
from tvmtile.codegen.device import marked
from tvmtile.codegen.intrinsics import LowerIntrinsics
from tvmtile.codegen.metal_source import complete_what_tvm_builds
from tvmtile.codegen.names import in_c, without_keywords
from tvmtile.codegen.once import ShowNames
from tvmtile.codegen.unrolled_loops import MarkUnrolled
from tvmtile.errors import hide_internal_frames
from tvmtile.ir.kernels import is_tile_program
from tvmtile.ir.passes import check_order
from tvmtile.passes.checks.check_buffers import CheckBuffers
from tvmtile.passes.checks.check_extents import CheckExtents
from tvmtile.passes.cpu.outline_blocks import OutlineBlocks
from tvmtile.passes.gpu.check_alignment import CheckAlignment
from tvmtile.passes.gpu.guard_launches import GuardLaunches
from tvmtile.passes.gpu.kernel_attributes import SetKernelAttributes
from tvmtile.passes.legalize import LegalizeSource
from tvmtile.passes.legalize.declare_as_accessed import DeclareAsAccessed
from tvmtile.passes.legalize.keep_elements import KeepElements
from tvmtile.passes.legalize.narrow_sums import NarrowSums
from tvmtile.passes.lower_tile_programs import LowerTilePrograms
from tvmtile.target import TargetLike, gpu, host_target, parse, require_lowering

__all__ = ["CHECKS", "LOWERING", "SOURCE", "check", "lowering_passes", "tvm_pipeline"]

CHECKS: tuple[Any, ...] = (
    P.CheckAssertions,  # a kernel stops with an error only where the target can stop it
    P.CheckLaunch,  # threads and shared memory are what a block of the target has
    P.CheckLoopExits,  # a loop is left where its iterations have an order
    P.CheckParallel,  # unordered iterations do not exchange elements
    P.CheckLocals,  # thread-private arrays are not distributed over the threads
    P.CheckFragments,  # no serial loop visits a fragment that the threads share
    P.CheckBounds,  # no loop runs over the end of a tile
    P.CheckReducers,  # totals are begun, contributed to, ended, and read
    P.CheckAccumulators,  # nothing accumulates into a tile without a value
)
"""What is wrong with a tile program that can be said before it is lowered, for every target."""

_TILES: tuple[Any, ...] = (
    P.AddAxes,  # tensors and tiles without axes get one
    P.BindExtents,  # dynamic extents that stand in expressions only are bound
    P.DeclareViewsInKernel,  # views stand where whoever looks into a kernel finds them
    P.LegalizeExpressions,  # nothing that simplifies changes what expressions mean
    P.NameDivisions,  # divisions by run-time values are named
    P.SumBeforeScaling,  # what a loop adds with one scale is scaled once, behind the loop
    P.Legalize,  # operands of tile operators become explicit regions
    P.PackFloats,  # floats of 4 bits lie in pairs in bytes
    P.StageOverlaps,  # a copy within a buffer reads all before it writes
    P.DoScalarsOnce,  # scalar work that names no thread is done once a block
    P.LowerExits,  # code behind a return, or an exit of what may be no loop, becomes conditional
    P.HoistAssumptions,  # what is assumed of sizes is checked before a launch
    P.FindGroups,  # branches that admit whole warps become regions of groups of threads
    P.OwnFragments,  # what each thread stores for itself, each thread has
    P.SelectImplementation,  # operators say which of their implementations is used
    P.PlanUnrolling,  # loops are unrolled as far as they ask for, unless left by break or continue
    P.SerializeVectors,  # vectorized loops with dependent iterations become serial
)
"""What becomes of a tile program first, whatever the target."""

_CPU: tuple[Any, ...] = (
    *_TILES,
    P.InsertIndexChecks,  # an index outside of a tile stops a kernel that asks for it
    P.SerializeThreads,  # code that uses the thread index runs for one thread after the other
    P.ElideSharedStaging,  # tiles that a micro-kernel packs are not staged
    P.AccumulateInPlace,  # sums that are only written out are kept where they go
    P.ClearByProducts,  # and begin with the first product
    P.LowerTileOp,  # tile operators become loops over elements and micro-kernels
    P.UnswitchConditions,  # conditions that hold for whole tiles are decided before their loops
    P.GuardGlobalAccess,  # accesses outside of a tensor read zero and write nothing
    P.LowerCudaFunctions,  # CUDA's own functions, called by name, work here
    P.LowerElementOp,  # atomics and others on single elements become instructions and calls
    P.InterchangeLoopsOnCpu,  # serial loops in elementwise ones go outside, so that LLVM can vectorise
    P.LowerParallelOnCpu,  # elementwise loops become serial loops, which LLVM vectorises
    P.LegalizeOperations,  # comparisons, arithmetic and functions are what LLVM gets right
    P.LegalizeIndices,  # elements of large tensors are numbered in 64 bits
    P.KeepRemainders,  # remainders that TVM would wrongly merge stay two
    P.PlaceMemoryOnCpu,  # tiles become arrays of the host
    P.LowerNarrowFloatsOnCpu,  # bfloat16 and float8 become integers that hold their bits
    P.LegalizeMemoryOnCpu,  # LLVM vectorises no store or index wrongly
    P.StoreNamesOnCpu,  # names that are used in one another many times become variables
    P.KeepNames,  # named divisions are computed once, where they are named
    P.LaunchClusters,  # there are none
    P.LaunchBlocksOnCpu,  # the grid becomes one parallel loop
)


@dataclass(frozen=True)
class _Only:
    """A pass that one kind of GPU has."""

    kind: str
    step: Any


_GPU: tuple[Any, ...] = (
    *_TILES,
    P.ExpandPrivateTiles,  # each thread does what is asked of its own tiles
    P.OrderIterations,  # loops of the user say what their iterations store in their order
    _Only("metal", P.ElideSharedStaging),  # tiles that are read once are not staged
    P.ReduceAccumulations,  # accumulations into a fragment become reductions
    P.SplitReducers,  # every thread has totals of its own until they are put together
    P.ShareFragments,  # what a loop has computed is copied for code that needs all of it
    _Only("metal", P.FragmentToSimdgroup),  # operands of matrix units become simdgroup matrices
    _Only("cuda", P.WarpSpecialize),  # warps of their own copy the tiles of pipelined loops
    P.PlanPipeline,  # which copies of a loop run ahead, and how far
    P.InjectPipeline,  # tiles are multi-buffered; asynchronous copies run ahead and are waited for
    P.SinkSharedAllocations,  # tiles local to an iteration may share memory with others
    P.InferLayout,  # every element of a fragment gets its thread and register
    # What threads take at once from shared tiles lies in different banks.
    _Only("metal", P.PadSharedRows),
    _Only("cuda", P.SwizzleShared),
    P.ReduceBehindLoops,  # sums that a loop only adds up are exchanged between threads behind it
    P.SelectImplementation,  # now also where the choice depends on fragment layouts
    P.LowerTileOp,  # tile operators become loops over elements and matrix instructions
    _Only("cuda", P.EncodeTensorMaps),  # the host describes tensors to copies of boxes
    P.UnswitchConditions,  # conditions that hold for whole tiles are decided before their loops
    P.GuardGlobalAccess,  # accesses outside of a tensor read zero and write nothing
    P.DistributeParallel,  # elementwise loops run on the threads, as cp.async where it fits
    _Only("cuda", P.DropIdleTokens),  # copies that turn out synchronous are not waited for
    _Only("cuda", P.HoldIndices),  # by which a loop copies, stay in registers
    P.PlaceFragments,  # fragments become arrays of registers
    P.LimitUnrolling,  # loops are unrolled where arrays could not be in registers otherwise
    P.PlaceMemoryOnGpu,  # shared tiles are placed in the memory of a block
    P.PlanSharedMemory,  # and share it, where they would not fit otherwise
    P.DeclareInKernel,  # a tensor that has views is one argument of a kernel
    # Until here tiles are indexed by row and column, also where an address is taken: of 16 contiguous
    # bytes at most. What changes where elements lie in a tile comes after the barriers.
    P.InsertBarriers,  # threads wait for each other where they exchange elements
    _Only("cuda", P.FenceLoads),  # what threads did with a tile is over before a bulk copy fills it
    _Only("cuda", P.LowerAsyncWork),  # copies, their batches and the waits become instructions
    _Only("cuda", P.FlattenShared),  # where an element of a tile lies becomes arithmetic
    _Only("cuda", P.PlaceMemoryOnCuda),  # more than a kernel may declare is asked for at the launch
    P.SwizzleBlockIdx,  # blocks that run together share operands, where a kernel asks for it
    _Only("metal", P.LowerCudaFunctions),  # CUDA's own functions, called by name, work here
    P.KeepNames,  # named divisions are computed once, where they are named
    _Only("cuda", P.CallImportedFunctions),  # imported functions come with their source
    P.LowerElementOp,  # operators on single elements become instructions, and functions of the target's
    P.LegalizeOperations,  # functions, conversions, barriers and assertions are those of the target
    # Floats of 8 bits become integers that hold their bits.
    _Only("cuda", P.LowerNarrowFloatsOnCuda),
    _Only("metal", P.LowerNarrowFloatsOnMetal),
    P.InlineSingleTripLoops,  # loops of one iteration become their body
    _Only("cuda", P.CarryRemainders),  # blocks that persist do not divide in each iteration
    _Only("cuda", P.LoadFirst),  # copies by elements load all before they store
    P.LeaveUnrolling,  # the compiler of the source unrolls what is guarded, or very long
    P.LegalizeIndices,  # elements of large tensors are numbered in 64 bits
    P.KeepRemainders,  # remainders that TVM would wrongly merge stay two
    P.LaunchClusters,  # blocks of a cluster are launched together
    _Only("cuda", P.KeepTensorMaps),  # the host encodes them once for a tensor and a shape
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
    LegalizeSource,  # constants, comparisons and narrow dtypes are printed right
    DeclareAsAccessed,  # memory that moves as words is declared in words
    KeepElements,  # arrays that are read by elements are declared as such
    MarkUnrolled,  # loops that are left for Metal's compiler to unroll say so
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
        CheckAlignment,  # tensors begin where vectors of them may
        GuardLaunches,  # a grid without blocks is not launched
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        CheckExtents,  # numbers of a call fit the dtypes of the program
        SetKernelAttributes,  # blocks that wait for each other run at once, and tensors may alias
        CheckBuffers,  # a kernel takes no more tensors than its GPU binds
    ]
)


def _cpu_rest(config: Mapping[str, object]) -> Any:
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
            OutlineBlocks,  # what stands in two loops over the blocks is compiled once
            s_tir.transform.CanonicalizeLoop(),
            s_tir.transform.ConvertBlocksToOpaque(),
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
            CheckExtents,
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
    lowered = LowerTilePrograms()(programs)
    on_gpu = {gv: f for gv, f in lowered.functions.items() if gpu(f.attrs["target"]) is not None}
    names = {gv: str(func.attrs["global_symbol"]) for gv, func in on_gpu.items()}
    # A kernel's name begins with that of its program, and compilers for GPUs take C's letters only.
    named = {gv: f.with_attr("global_symbol", in_c(names[gv])) for gv, f in on_gpu.items()}
    result = _GPU_REST(ir.IRModule(named, attrs=programs.attrs))
    for gv, func in result.functions.items():
        symbol, name = str(func.attrs["global_symbol"]), names.get(gv, "")
        renamed = func.with_attr("global_symbol", symbol.replace(in_c(name), name))
        result[gv] = marked(without_keywords(renamed))
    functions = result.functions.values()
    complete_what_tvm_builds(f for f in functions if f.attrs["target"].kind.name == "metal")
    host = {gv: func for gv, func in lowered.functions.items() if gv not in on_gpu}
    if host:
        result.update(on_cpu(ir.IRModule(host, attrs=programs.attrs)))
    return result
