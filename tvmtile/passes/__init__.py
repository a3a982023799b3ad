"""The passes that lower tile programs; each is a `tvm.transform` pass in a module of its own.

`LowerTilePrograms(target)` is all of them as one pass; their order is in `tvmtile.pipeline`.
"""

from tvmtile.passes.checks.check_accumulators import CheckAccumulators
from tvmtile.passes.checks.check_assertions import CheckAssertions
from tvmtile.passes.checks.check_bounds import CheckBounds
from tvmtile.passes.checks.check_fragments import CheckFragments
from tvmtile.passes.checks.check_launch import CheckLaunch
from tvmtile.passes.checks.check_locals import CheckLocals
from tvmtile.passes.checks.check_loop_exits import CheckLoopExits
from tvmtile.passes.checks.check_parallel import CheckParallel
from tvmtile.passes.checks.check_reducers import CheckReducers
from tvmtile.passes.checks.verify import Verifier, Verify
from tvmtile.passes.cpu.accumulate_in_place import AccumulateInPlace
from tvmtile.passes.cpu.clear_by_products import ClearByProducts
from tvmtile.passes.cpu.insert_index_checks import InsertIndexChecks
from tvmtile.passes.cpu.interchange_loops import InterchangeLoopsOnCpu
from tvmtile.passes.cpu.launch_blocks import LaunchBlocksOnCpu
from tvmtile.passes.cpu.lower_parallel import LowerParallelOnCpu
from tvmtile.passes.cpu.serialize_threads import SerializeThreads
from tvmtile.passes.gpu.carry_remainders import CarryRemainders
from tvmtile.passes.gpu.distribute_parallel import DistributeParallel
from tvmtile.passes.gpu.drop_idle_tokens import DropIdleTokens
from tvmtile.passes.gpu.encode_tensor_maps import EncodeTensorMaps
from tvmtile.passes.gpu.expand_private_tiles import ExpandPrivateTiles
from tvmtile.passes.gpu.fence_loads import FenceLoads
from tvmtile.passes.gpu.fragment_to_simdgroup import FragmentToSimdgroup
from tvmtile.passes.gpu.hold_indices import HoldIndices
from tvmtile.passes.gpu.infer_layout import InferLayout
from tvmtile.passes.gpu.insert_barriers import InsertBarriers
from tvmtile.passes.gpu.keep_tensor_maps import KeepTensorMaps
from tvmtile.passes.gpu.launch_clusters import LaunchClusters
from tvmtile.passes.gpu.leave_unrolling import LeaveUnrolling
from tvmtile.passes.gpu.limit_unrolling import LimitUnrolling
from tvmtile.passes.gpu.load_first import LoadFirst
from tvmtile.passes.gpu.lower_async_work import LowerAsyncWork
from tvmtile.passes.gpu.place_fragments import PlaceFragments
from tvmtile.passes.gpu.reduce_behind_loops import ReduceBehindLoops
from tvmtile.passes.gpu.share_fragments import ShareFragments
from tvmtile.passes.gpu.swizzle_block_idx import SwizzleBlockIdx
from tvmtile.passes.legalize import (
    LegalizeExpressions,
    LegalizeIndices,
    LegalizeMemoryOnCpu,
    LegalizeOperations,
)
from tvmtile.passes.legalize.keep_names import KeepNames
from tvmtile.passes.legalize.keep_remainders import KeepRemainders
from tvmtile.passes.legalize.store_names import StoreNames
from tvmtile.passes.lower_tile_programs import LowerTilePrograms
from tvmtile.passes.memory.declare_in_kernel import DeclareInKernel
from tvmtile.passes.memory.flatten_shared import FlattenShared
from tvmtile.passes.memory.guard_global_access import GuardGlobalAccess
from tvmtile.passes.memory.pad_shared_rows import PadSharedRows
from tvmtile.passes.memory.place_memory import PlaceMemoryOnCpu, PlaceMemoryOnCuda, PlaceMemoryOnGpu
from tvmtile.passes.memory.plan_shared_memory import PlanSharedMemory
from tvmtile.passes.memory.sink_shared_allocations import SinkSharedAllocations
from tvmtile.passes.memory.swizzle_shared import SwizzleShared
from tvmtile.passes.target.call_imported_functions import CallImportedFunctions
from tvmtile.passes.target.inline_single_trip_loops import InlineSingleTripLoops
from tvmtile.passes.target.lower_cuda_functions import LowerCudaFunctions
from tvmtile.passes.target.lower_element_op import LowerElementOp
from tvmtile.passes.target.lower_narrow_floats import (
    LowerNarrowFloatsOnCpu,
    LowerNarrowFloatsOnCuda,
    LowerNarrowFloatsOnMetal,
)
from tvmtile.passes.target.name_divisions import NameDivisions
from tvmtile.passes.tile.add_axes import AddAxes
from tvmtile.passes.tile.bind_extents import BindExtents
from tvmtile.passes.tile.declare_views_in_kernel import DeclareViewsInKernel
from tvmtile.passes.tile.do_scalars_once import DoScalarsOnce
from tvmtile.passes.tile.elide_shared_staging import ElideSharedStaging
from tvmtile.passes.tile.find_groups import FindGroups
from tvmtile.passes.tile.hoist_assumptions import HoistAssumptions
from tvmtile.passes.tile.inject_pipeline import InjectPipeline
from tvmtile.passes.tile.legalize import Legalize
from tvmtile.passes.tile.limit_names import LimitNames
from tvmtile.passes.tile.lower_exits import LowerExits
from tvmtile.passes.tile.lower_tile_op import LowerTileOp
from tvmtile.passes.tile.order_iterations import OrderIterations
from tvmtile.passes.tile.own_fragments import OwnFragments
from tvmtile.passes.tile.pack_floats import PackFloats
from tvmtile.passes.tile.plan_pipeline import PlanPipeline
from tvmtile.passes.tile.plan_unrolling import PlanUnrolling
from tvmtile.passes.tile.reduce_accumulations import ReduceAccumulations
from tvmtile.passes.tile.select_implementation import SelectImplementation
from tvmtile.passes.tile.serialize_vectors import SerializeVectors
from tvmtile.passes.tile.split_reducers import SplitReducers
from tvmtile.passes.tile.stage_overlaps import StageOverlaps
from tvmtile.passes.tile.sum_before_scaling import SumBeforeScaling
from tvmtile.passes.tile.unswitch_conditions import UnswitchConditions
from tvmtile.passes.tile.warp_specialize import WarpSpecialize

__all__ = [
    "AccumulateInPlace",
    "AddAxes",
    "BindExtents",
    "CallImportedFunctions",
    "CarryRemainders",
    "CheckAccumulators",
    "CheckAssertions",
    "CheckBounds",
    "CheckFragments",
    "CheckLaunch",
    "CheckLocals",
    "CheckLoopExits",
    "CheckParallel",
    "CheckReducers",
    "ClearByProducts",
    "DeclareInKernel",
    "DeclareViewsInKernel",
    "DistributeParallel",
    "DoScalarsOnce",
    "DropIdleTokens",
    "ElideSharedStaging",
    "EncodeTensorMaps",
    "ExpandPrivateTiles",
    "FenceLoads",
    "FindGroups",
    "FlattenShared",
    "FragmentToSimdgroup",
    "GuardGlobalAccess",
    "HoistAssumptions",
    "HoldIndices",
    "InferLayout",
    "InjectPipeline",
    "InlineSingleTripLoops",
    "InsertBarriers",
    "InsertIndexChecks",
    "InterchangeLoopsOnCpu",
    "KeepNames",
    "KeepRemainders",
    "KeepTensorMaps",
    "LaunchBlocksOnCpu",
    "LaunchClusters",
    "LeaveUnrolling",
    "Legalize",
    "LegalizeExpressions",
    "LegalizeIndices",
    "LegalizeMemoryOnCpu",
    "LegalizeOperations",
    "LimitNames",
    "LimitUnrolling",
    "LoadFirst",
    "LowerAsyncWork",
    "LowerCudaFunctions",
    "LowerElementOp",
    "LowerExits",
    "LowerNarrowFloatsOnCpu",
    "LowerNarrowFloatsOnCuda",
    "LowerNarrowFloatsOnMetal",
    "LowerParallelOnCpu",
    "LowerTileOp",
    "LowerTilePrograms",
    "NameDivisions",
    "OrderIterations",
    "OwnFragments",
    "PackFloats",
    "PadSharedRows",
    "PlaceFragments",
    "PlaceMemoryOnCpu",
    "PlaceMemoryOnCuda",
    "PlaceMemoryOnGpu",
    "PlanPipeline",
    "PlanSharedMemory",
    "PlanUnrolling",
    "ReduceAccumulations",
    "ReduceBehindLoops",
    "SelectImplementation",
    "SerializeThreads",
    "SerializeVectors",
    "ShareFragments",
    "SinkSharedAllocations",
    "SplitReducers",
    "StageOverlaps",
    "StoreNames",
    "SumBeforeScaling",
    "SwizzleBlockIdx",
    "SwizzleShared",
    "UnswitchConditions",
    "Verifier",
    "Verify",
    "WarpSpecialize",
]
