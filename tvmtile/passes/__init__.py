"""The passes that lower tile programs; each is a `tvm.transform` pass in a module of its own.

`LowerTilePrograms(target)` is all of them as one pass; their order is in `tvmtile.pipeline`.
"""

from tvmtile.passes.allocate_in_loops import AllocateInLoops
from tvmtile.passes.bind_extents import BindExtents
from tvmtile.passes.call_imported_functions import CallImportedFunctions
from tvmtile.passes.check_accumulators import CheckAccumulators
from tvmtile.passes.check_assertions import CheckAssertions
from tvmtile.passes.check_bounds import CheckBounds
from tvmtile.passes.check_fragments import CheckFragments
from tvmtile.passes.check_launch import CheckLaunch
from tvmtile.passes.check_locals import CheckLocals
from tvmtile.passes.check_loop_exits import CheckLoopExits
from tvmtile.passes.check_parallel import CheckParallel
from tvmtile.passes.check_reducers import CheckReducers
from tvmtile.passes.declare_as_accessed import DeclareAsAccessed
from tvmtile.passes.declare_in_kernel import DeclareInKernel
from tvmtile.passes.distribute_parallel import DistributeParallel
from tvmtile.passes.do_scalars_once import DoScalarsOnce
from tvmtile.passes.drop_idle_groups import DropIdleGroups
from tvmtile.passes.flatten_shared import FlattenShared
from tvmtile.passes.fragment_to_simdgroup import FragmentToSimdgroup
from tvmtile.passes.guard_global_access import GuardGlobalAccess
from tvmtile.passes.hide_truncations import HideTruncationsOnCpu
from tvmtile.passes.infer_layout import InferLayout
from tvmtile.passes.inject_pipeline import InjectPipeline
from tvmtile.passes.insert_barriers import InsertBarriers
from tvmtile.passes.insert_index_checks import InsertIndexChecks
from tvmtile.passes.interchange_loops import InterchangeLoopsOnCpu
from tvmtile.passes.keep_comparisons import KeepComparisons
from tvmtile.passes.keep_remainders import KeepRemainders
from tvmtile.passes.launch_blocks import LaunchBlocksOnCpu
from tvmtile.passes.legalize import Legalize
from tvmtile.passes.lower_assertions import LowerAssertionsOnCuda
from tvmtile.passes.lower_cuda_functions import LowerCudaFunctions
from tvmtile.passes.lower_element_op import LowerElementOp
from tvmtile.passes.lower_extrema import LowerExtremaOnCpu
from tvmtile.passes.lower_integer_casts import LowerIntegerCastsOnCuda
from tvmtile.passes.lower_math import LowerMathOnCpu
from tvmtile.passes.lower_narrow_floats import (
    LowerNarrowFloatsOnCpu,
    LowerNarrowFloatsOnCuda,
    LowerNarrowFloatsOnMetal,
)
from tvmtile.passes.lower_parallel import LowerParallelOnCpu
from tvmtile.passes.lower_tile_op import LowerTileOp
from tvmtile.passes.lower_tile_programs import LowerTilePrograms
from tvmtile.passes.lower_waits import LowerWaitsOnCuda
from tvmtile.passes.name_divisions import KeepNames, NameDivisions
from tvmtile.passes.order_blocks import OrderBlocks
from tvmtile.passes.pad_shared_rows import PadSharedRows
from tvmtile.passes.place_fragments import PlaceFragments
from tvmtile.passes.place_memory import PlaceMemoryOnCpu, PlaceMemoryOnCuda, PlaceMemoryOnGpu
from tvmtile.passes.plan_pipeline import PlanPipeline
from tvmtile.passes.plan_shared_memory import PlanSharedMemory
from tvmtile.passes.plan_unrolling import PlanUnrolling
from tvmtile.passes.read_from_device import ReadFromDevice
from tvmtile.passes.reduce_accumulations import ReduceAccumulations
from tvmtile.passes.run_single_iterations import RunSingleIterations
from tvmtile.passes.serialize_threads import SerializeThreads
from tvmtile.passes.serialize_vectors import SerializeVectors
from tvmtile.passes.short_circuit import ShortCircuitOnCpu
from tvmtile.passes.split_reducers import SplitReducers
from tvmtile.passes.stage_overlaps import StageOverlaps
from tvmtile.passes.structure_exits import StructureExits
from tvmtile.passes.swizzle_shared import SwizzleShared
from tvmtile.passes.unswitch_conditions import UnswitchConditions
from tvmtile.passes.verify import Verifier, Verify
from tvmtile.passes.widen_indices import WidenIndices
from tvmtile.passes.wrap_unsigned import WrapUnsignedOnCpu

__all__ = [
    "AllocateInLoops",
    "BindExtents",
    "CallImportedFunctions",
    "CheckAccumulators",
    "CheckAssertions",
    "CheckBounds",
    "CheckFragments",
    "CheckLaunch",
    "CheckLocals",
    "CheckLoopExits",
    "CheckParallel",
    "CheckReducers",
    "DeclareAsAccessed",
    "DeclareInKernel",
    "DistributeParallel",
    "DoScalarsOnce",
    "DropIdleGroups",
    "FlattenShared",
    "FragmentToSimdgroup",
    "GuardGlobalAccess",
    "HideTruncationsOnCpu",
    "InferLayout",
    "InjectPipeline",
    "InsertBarriers",
    "InsertIndexChecks",
    "InterchangeLoopsOnCpu",
    "KeepComparisons",
    "KeepNames",
    "KeepRemainders",
    "LaunchBlocksOnCpu",
    "Legalize",
    "LowerAssertionsOnCuda",
    "LowerCudaFunctions",
    "LowerElementOp",
    "LowerExtremaOnCpu",
    "LowerIntegerCastsOnCuda",
    "LowerMathOnCpu",
    "LowerNarrowFloatsOnCpu",
    "LowerNarrowFloatsOnCuda",
    "LowerNarrowFloatsOnMetal",
    "LowerParallelOnCpu",
    "LowerTileOp",
    "LowerTilePrograms",
    "LowerWaitsOnCuda",
    "NameDivisions",
    "OrderBlocks",
    "PadSharedRows",
    "PlaceFragments",
    "PlaceMemoryOnCpu",
    "PlaceMemoryOnCuda",
    "PlaceMemoryOnGpu",
    "PlanPipeline",
    "PlanSharedMemory",
    "PlanUnrolling",
    "ReadFromDevice",
    "ReduceAccumulations",
    "RunSingleIterations",
    "SerializeThreads",
    "SerializeVectors",
    "ShortCircuitOnCpu",
    "SplitReducers",
    "StageOverlaps",
    "StructureExits",
    "SwizzleShared",
    "UnswitchConditions",
    "Verifier",
    "Verify",
    "WidenIndices",
    "WrapUnsignedOnCpu",
]
