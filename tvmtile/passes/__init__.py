"""The passes that lower tile programs; each is a `tvm.transform` pass.

`LowerTilePrograms(target)` is all of them as one pass; their order is in `tvmtile.pipeline`.
"""

from __future__ import annotations

from typing import Any

from tvmtile.compat import moved_name
from tvmtile.passes.checks.launch import CheckLaunch
from tvmtile.passes.checks.loops import CheckLoops
from tvmtile.passes.checks.tiles import CheckTiles
from tvmtile.passes.checks.verify import Verifier, Verify
from tvmtile.passes.cpu.accumulate_in_place import AccumulateInPlace
from tvmtile.passes.cpu.fold_clear_into_first_gemm import FoldClearIntoFirstGemm
from tvmtile.passes.cpu.insert_index_checks import InsertIndexChecks
from tvmtile.passes.cpu.interchange_loops import InterchangeLoopsOnCpu
from tvmtile.passes.cpu.launch_blocks import LaunchBlocksOnCpu
from tvmtile.passes.cpu.lower_parallel import LowerParallelOnCpu
from tvmtile.passes.cpu.serialize_threads import SerializeThreads
from tvmtile.passes.exchange_values import ReducePartialWarps
from tvmtile.passes.gpu.async_fences import FenceLoads
from tvmtile.passes.gpu.batch_global_loads import BatchGlobalLoads
from tvmtile.passes.gpu.distribute_parallel import DistributeParallel
from tvmtile.passes.gpu.fragment_to_simdgroup import FragmentToSimdgroup
from tvmtile.passes.gpu.hoist_gather_indices import HoistGatherIndices
from tvmtile.passes.gpu.infer_layout import InferLayout
from tvmtile.passes.gpu.insert_barriers import InsertBarriers
from tvmtile.passes.gpu.launches import LaunchClusters, SwizzleBlockIdx
from tvmtile.passes.gpu.lower_async_work import LowerAsyncWork
from tvmtile.passes.gpu.lower_thread_local_tile_ops import LowerThreadLocalTileOps
from tvmtile.passes.gpu.reduce_behind_loops import ReduceBehindLoops
from tvmtile.passes.gpu.share_fragments import ShareFragments
from tvmtile.passes.gpu.tensor_maps import CacheTensorMaps, EncodeTensorMaps
from tvmtile.passes.legalize import (
    LegalizeExpressions,
    LegalizeMemoryOnCpu,
    LegalizeOperations,
)
from tvmtile.passes.legalize.prevent_let_inlining import PreventLetInlining
from tvmtile.passes.legalize.spill_nested_lets import SpillNestedLets
from tvmtile.passes.lower_tile_programs import LowerTilePrograms
from tvmtile.passes.memory.placement import (
    PlaceMemoryOnCpu,
    PlaceMemoryOnCuda,
    PlaceMemoryOnGpu,
    PlanSharedMemory,
)
from tvmtile.passes.memory.shared_layouts import FlattenShared, LayOutSharedTiles
from tvmtile.passes.memory.sink_shared_allocations import SinkSharedAllocations
from tvmtile.passes.nests.insert_bounds_guards import InsertBoundsGuards
from tvmtile.passes.nests.version_nests import VersionNests
from tvmtile.passes.target.lower_cuda_functions import CallImportedFunctions, LowerCudaFunctions
from tvmtile.passes.target.lower_element_op import LowerElementOp
from tvmtile.passes.target.lower_narrow_floats import (
    LowerNarrowFloatsOnCpu,
    LowerNarrowFloatsOnCuda,
    LowerNarrowFloatsOnMetal,
)
from tvmtile.passes.tile.elide_shared_staging import ElideSharedStaging
from tvmtile.passes.tile.find_groups import FindGroups
from tvmtile.passes.tile.hoist_assumptions import HoistAssumptions
from tvmtile.passes.tile.lower_tile_op import LowerTileOp
from tvmtile.passes.tile.normalize_binds import NormalizeBinds
from tvmtile.passes.tile.normalize_operands import NormalizeOperands
from tvmtile.passes.tile.order_iterations import OrderIterations
from tvmtile.passes.tile.pack_floats import PackFloats
from tvmtile.passes.tile.privatize_fragments import PrivatizeFragments
from tvmtile.passes.tile.reduce_accumulations import ReduceAccumulations
from tvmtile.passes.tile.run_scalar_effects_once import RunScalarEffectsOnce
from tvmtile.passes.tile.schedule.schedule_pipelines import SchedulePipelines
from tvmtile.passes.tile.select_implementation import SelectImplementation
from tvmtile.passes.tile.serialize_vectors import SerializeVectors
from tvmtile.passes.tile.signature import DeclareInKernel, NormalizeSignature
from tvmtile.passes.tile.split_reducers import SplitReducers
from tvmtile.passes.tile.stage_overlapping_copies import StageOverlappingCopies
from tvmtile.passes.tile.structure_exits import StructureExits
from tvmtile.passes.tile.sum_before_scaling import SumBeforeScaling
from tvmtile.passes.unrolling import DeferUnrolling, LimitUnrolling, PlanUnrolling

__all__ = [
    "AccumulateInPlace",
    "BatchGlobalLoads",
    "CacheTensorMaps",
    "CallImportedFunctions",
    "CheckLaunch",
    "CheckLoops",
    "CheckTiles",
    "DeclareInKernel",
    "DeferUnrolling",
    "DistributeParallel",
    "ElideSharedStaging",
    "EncodeTensorMaps",
    "FenceLoads",
    "FindGroups",
    "FlattenShared",
    "FoldClearIntoFirstGemm",
    "FragmentToSimdgroup",
    "HoistAssumptions",
    "HoistGatherIndices",
    "InferLayout",
    "InsertBarriers",
    "InsertBoundsGuards",
    "InsertIndexChecks",
    "InterchangeLoopsOnCpu",
    "LaunchBlocksOnCpu",
    "LaunchClusters",
    "LayOutSharedTiles",
    "LegalizeExpressions",
    "LegalizeMemoryOnCpu",
    "LegalizeOperations",
    "LimitUnrolling",
    "LowerAsyncWork",
    "LowerCudaFunctions",
    "LowerElementOp",
    "LowerNarrowFloatsOnCpu",
    "LowerNarrowFloatsOnCuda",
    "LowerNarrowFloatsOnMetal",
    "LowerParallelOnCpu",
    "LowerThreadLocalTileOps",
    "LowerTileOp",
    "LowerTilePrograms",
    "NormalizeBinds",
    "NormalizeOperands",
    "NormalizeSignature",
    "OrderIterations",
    "PackFloats",
    "PlaceMemoryOnCpu",
    "PlaceMemoryOnCuda",
    "PlaceMemoryOnGpu",
    "PlanSharedMemory",
    "PlanUnrolling",
    "PreventLetInlining",
    "PrivatizeFragments",
    "ReduceAccumulations",
    "ReduceBehindLoops",
    "ReducePartialWarps",
    "RunScalarEffectsOnce",
    "SchedulePipelines",
    "SelectImplementation",
    "SerializeThreads",
    "SerializeVectors",
    "ShareFragments",
    "SinkSharedAllocations",
    "SpillNestedLets",
    "SplitReducers",
    "StageOverlappingCopies",
    "StructureExits",
    "SumBeforeScaling",
    "SwizzleBlockIdx",
    "Verifier",
    "Verify",
    "VersionNests",
]


def __getattr__(name: str) -> Any:
    return moved_name(__name__, name)
