"""TileLang's names that have no place of their own here: module paths, settings, options, helpers.

`absent`, `ignored` and `transform` are tables that the compiler reads: names that are not here, options
that change nothing, keys of `pass_configs`. All else stands on top of the compiler. `MOVED` are our own
names of the version before.
"""

from __future__ import annotations

import importlib
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

PATHS = {
    "carver.arch": "tvmtile.target.devices",
    "carver.arch.driver": "tvmtile.target.devices",
    "carver.roller": "tvmtile.carver.templates",
    "carver.roller.hint": "tvmtile.carver.templates",
    "carver.roller.rasterization": "tvmtile.carver.templates",
    "carver.template": "tvmtile.carver.templates",
    "contrib": None,
    "contrib.cc": "tvm.support.cc",
    "contrib.nvcc": "tvmtile.compat.nvcc",
    "cuda": None,
    "cuda.language": "tvmtile.language",
    "engine": "tvmtile.compat.engine",
    "engine.callback": "tvmtile.compat.engine",
    "engine.lower": "tvmtile.compat.engine",
    "engine.param": "tvmtile.compat.engine",
    "env": "tvmtile.compat.env",
    "language.dtypes": "tvmtile.language",
    "layout.swizzle": "tvmtile.layout",
    "tileop.base": "tvmtile.tileop.gemm",
    "tools": "tvmtile.compat.tools",
    "tools.analyzer": "tvmtile.compat.tools",
    "transform": "tvmtile.compat.transform",
    "utils": "tvmtile.compat.utils",
    "utils.device": "tvmtile.compat.utils",
    "utils.target": "tvmtile.compat.utils",
    "utils.tensor": "tvmtile.compat.utils",
}
"""Modules of TileLang, and the module whose names each has under `tvmtile`; None of a mere package."""

MOVED = {
    "autotuner.capture": "autotuner.measuring",
    "carver.arch.device": "target.devices",
    "carver.arch.inference": "target.devices",
    "carver.devices": "target.devices",
    "emulator.cuda.LaunchStatistics": "emulator.cuda.CudaStatistics",
    "emulator.cuda.TensorMap": "emulator.cuda.EncodedMap",
    "emulator.metal.LaunchStatistics": "emulator.metal.MetalStatistics",
    "frontend.operands": "frontend.emit",
    "jit.cuda.resources": "jit.resources",
    "jit.emulated": "jit.recorded",
    "jit.metal": "jit.recorded",
    "jit.profile": "profiler.kernel_profile",
    "passes.AddAxes": "passes.NormalizeSignature",
    "passes.ApproximateFunctionsOnCuda": "passes.LegalizeOperations",
    "passes.BindExtents": "passes.NormalizeSignature",
    "passes.CarryRemainders": "passes.SchedulePipelines",
    "passes.CheckAccumulators": "passes.CheckTiles",
    "passes.CheckAssertions": "passes.CheckLaunch",
    "passes.CheckBounds": "passes.CheckTiles",
    "passes.CheckFragments": "passes.CheckTiles",
    "passes.CheckLocals": "passes.CheckTiles",
    "passes.CheckLoopExits": "passes.CheckLoops",
    "passes.CheckParallel": "passes.CheckLoops",
    "passes.CheckReducers": "passes.CheckTiles",
    "passes.ClearByProducts": "passes.FoldClearIntoFirstGemm",
    "passes.DeclareViewsInKernel": "passes.NormalizeSignature",
    "passes.DoScalarsOnce": "passes.RunScalarEffectsOnce",
    "passes.DropIdleTokens": "passes.LowerAsyncWork",
    "passes.EliminateEmptyAsyncGroups": "passes.LowerAsyncWork",
    "passes.ExpandPrivateTiles": "passes.LowerThreadLocalTileOps",
    "passes.ForgetSharing": "passes.LegalizeOperations",
    "passes.GuardDivisionsOnCpu": "passes.LegalizeOperations",
    "passes.GuardGlobalAccess": "passes.InsertBoundsGuards",
    "passes.HideRemaindersOnCpu": "passes.LegalizeMemoryOnCpu",
    "passes.HideTruncationsOnCpu": "passes.LegalizeMemoryOnCpu",
    "passes.HoldIndices": "passes.HoistGatherIndices",
    "passes.InjectPipeline": "passes.SchedulePipelines",
    "passes.InlineSingleTripLoops": "passes.LegalizeOperations",
    "passes.KeepComparisons": "passes.LegalizeExpressions",
    "passes.KeepNames": "passes.PreventLetInlining",
    "passes.KeepTensorMaps": "passes.CacheTensorMaps",
    "passes.KeepTruncations": "passes.LegalizeExpressions",
    "passes.LeaveUnrolling": "passes.DeferUnrolling",
    "passes.Legalize": "passes.NormalizeOperands",
    "passes.LimitNames": "passes.NormalizeBinds",
    "passes.LoadFirst": "passes.BatchGlobalLoads",
    "passes.LocateAssertionsOnCpu": "passes.LegalizeExpressions",
    "passes.LowerAssertionsOnCuda": "passes.LegalizeOperations",
    "passes.LowerExits": "passes.StructureExits",
    "passes.LowerExtremaOnCpu": "passes.LegalizeExpressions",
    "passes.LowerIntegerCastsOnCuda": "passes.LegalizeOperations",
    "passes.LowerMathOnCpu": "passes.LegalizeOperations",
    "passes.LowerWaitsOnCuda": "passes.LegalizeOperations",
    "passes.NameDivisions": "passes.NormalizeBinds",
    "passes.OwnFragments": "passes.PrivatizeFragments",
    "passes.PadSharedRows": "passes.LayOutSharedTiles",
    "passes.PlaceFragments": "passes.PlaceMemoryOnGpu",
    "passes.PlanPipeline": "passes.SchedulePipelines",
    "passes.PredicateArrivals": "passes.LegalizeOperations",
    "passes.ShortCircuitOnCpu": "passes.LegalizeOperations",
    "passes.StageOverlaps": "passes.StageOverlappingCopies",
    "passes.StoreNames": "passes.SpillNestedLets",
    "passes.StoreNamesOnCpu": "passes.SpillNestedLets",
    "passes.StrengthReduceModulo": "passes.SchedulePipelines",
    "passes.SwizzleShared": "passes.LayOutSharedTiles",
    "passes.UnswitchConditions": "passes.VersionNests",
    "passes.VersionParallelNests": "passes.VersionNests",
    "passes.WarpSpecialize": "passes.SchedulePipelines",
    "passes.WidenTruthValuesOnCpu": "passes.LegalizeOperations",
    "passes.WrapUnsignedOnCpu": "passes.LegalizeOperations",
}
"""Modules and public names of the version before, and what they are now, both under `tvmtile`."""


class _Module(types.ModuleType):
    """A module that looks up its names in another one when it is asked for one."""

    def __getattr__(self, name: str) -> object:
        path = self.__name__.removeprefix("tvmtile.")
        source = _source(path)
        if source is not None and (name == "__all__" or not name.startswith("__")):
            module = importlib.import_module(source)
            if hasattr(module, name):
                if path in MOVED:
                    _warn_moved(path)
                return getattr(module, name)
        child = f"{path}.{name}"
        if child in PATHS:
            return importlib.import_module(PATHS[child] or f"tvmtile.{child}")
        from tvmtile.compat.absent import no_attribute

        raise no_attribute(path if path == "env" else "tvmtile", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        # Python says so of a submodule: `engine.lower` stays the function, though there is a module.
        if not isinstance(value, _Module):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        source = _source(self.__name__.removeprefix("tvmtile."))
        return [] if source is None else dir(importlib.import_module(source))


def _source(path: str) -> str | None:
    return f"tvmtile.{MOVED[path]}" if path in MOVED else PATHS[path]


def moved_name(module: str, name: str) -> Any:
    """The value of a name that a module of this package had in the version before, with a warning.

    Raises
    ------
    AttributeError
        If it had none.
    """
    path = f"{module}.{name}".removeprefix("tvmtile.")
    if path not in MOVED:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    _warn_moved(path)
    now, _, name = f"tvmtile.{MOVED[path]}".rpartition(".")
    return getattr(importlib.import_module(now), name)


def _warn_moved(path: str) -> None:
    from tvmtile.errors import warn

    warn(f"tvmtile.{path} is tvmtile.{MOVED[path]} now")


class _Finder(MetaPathFinder, Loader):
    """Makes these modules, which are packages: of another submodule Python says that there is none."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        path = name.removeprefix("tvmtile.")
        is_ours = path != name and (path in PATHS or (path in MOVED and path.islower()))
        return ModuleSpec(name, self, is_package=True) if is_ours else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        source = _source(spec.name.removeprefix("tvmtile."))
        return _Module(spec.name, f"`{source or 'submodules'}`, under another name.")

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    """Let TileLang's module paths, and those of modules that moved, be imported.

    In front of Python's own finders, to which a folder without a module, as an older version of this
    package leaves behind where it is a checkout, is a package too.
    """
    sys.meta_path.insert(0, _Finder())
