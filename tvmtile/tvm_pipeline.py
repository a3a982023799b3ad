"""The pipeline `tvmtile` of `tvm.tirx.build`: tile programs are lowered, and TVM does the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import ir, s_tir, tirx
from tvm.ir.transform import PassContext
from tvm.s_tir.pipeline import default_s_tir_pipeline

from tvmtile.codegen.device import marked
from tvmtile.codegen.intrinsics import LowerIntrinsics
from tvmtile.codegen.metal import complete_what_tvm_builds
from tvmtile.codegen.names import in_c, without_keywords
from tvmtile.codegen.opaque import AllowLetInlining
from tvmtile.ir.kernels import is_tile_program
from tvmtile.passes.checks.calls import CheckAlignment, CheckBuffers, CheckExtents
from tvmtile.passes.cpu.outline_blocks import OutlineBlocks
from tvmtile.passes.gpu.launches import GuardLaunches, SetKernelAttributes, WidenScalars
from tvmtile.passes.legalize import LegalizeSource
from tvmtile.passes.legalize.declared_dtypes import DeclareAsAccessed, PreventVectorArrays
from tvmtile.passes.legalize.narrow_sums import NarrowSums
from tvmtile.passes.lower_tile_programs import LowerTilePrograms
from tvmtile.passes.memory.flatten_buffers import FlattenBuffers
from tvmtile.target import gpu

__all__ = ["tvm_pipeline"]

# What TVM does with scheduled functions, without what only schedules need, without ThreadSync (the
# barriers are there already), FlattenBuffer and NarrowDataType (FlattenBuffers says why), and without
# the passes that make integers of bfloat16, which GPUs have.
_GPU_REST = ir.transform.Sequential(
    [
        s_tir.transform.UnifyThreadBinding(),
        s_tir.transform.LowerOpaqueBlock(),
        FlattenBuffers,  # elements have numbers, of 64 bits where 32 may not do
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
        WidenScalars,  # kernels get numbers in dtypes that TVM's runtime passes
        tirx.transform.MakePackedAPI(),
        CheckExtents,  # numbers of a call fit the dtypes of the program
        SetKernelAttributes,  # blocks that wait for each other run at once, and tensors may alias
        CheckBuffers,  # a kernel takes no more tensors than its GPU binds
    ]
)


def _cpu_rest(config: Mapping[str, object]) -> Any:
    """TVM's passes for scheduled functions on a CPU, without those that schedules and GPUs need.

    StorageRewrite is left out, which merges a micro-kernel's accumulators with arrays that are
    indexed by variables, so that LLVM can't keep them in registers, and so is CommonSubexprElim,
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
            FlattenBuffers,  # elements have numbers, of 64 bits where 32 may not do
            tirx.transform.BF16ComputeLegalize(),
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
                # Nothing simplifies any more: the source of a kernel is printed next.
                AllowLetInlining,  # names have the values that LowerIntrin was not to look into
                NarrowSums,  # 64-bit indices are summed in 32 bits where they fit
                LegalizeSource,  # constants, comparisons and narrow dtypes are printed right
                DeclareAsAccessed,  # memory that moves as words is declared in words
                PreventVectorArrays,  # arrays that are read by elements are declared as such
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
