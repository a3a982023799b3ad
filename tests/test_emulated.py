"""The tier fast emulates a kernel for each lowering and for each family of device instructions."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any

import pytest

from tests.fuzz import run
from tests.programs import catalogue
from tvmtile import tileop
from tvmtile.jit.build import build_artifact
from tvmtile.target import resolve
from tvmtile.tileop.registry import Lowering, registered_lowerings

FAMILIES = {
    "cuda": {
        "atom": r"\batomicAdd|\bred\.",
        "cp.async": r"cp\.async\.c[ag]",
        "ldmatrix": r"ldmatrix",
        "stmatrix": r"stmatrix",
        "mma.sync": r"mma\.sync",
        "mma.sp": r"mma\.sp",
        "wgmma": r"wgmma\.mma_async",
        "mbarrier": r"mbarrier\.try_wait",
        "loads by tensor maps": r"cp\.async\.bulk\.tensor.*shared::cluster\.global",
        "stores by tensor maps": r"cp\.async\.bulk\.tensor.*global\.shared::cta",
        "sums by tensor maps": r"cp\.reduce\.async\.bulk\.tensor",
        "multicast": r"multicast::cluster",
        "copies to a block": r"cp\.async\.bulk\.shared::cluster\.shared::cta",
        "barriers of a cluster": r"barrier\.cluster",
        "fence.proxy": r"fence\.proxy",
        "setmaxnreg": r"setmaxnreg",
        "griddepcontrol": r"griddepcontrol|cudaGridDependencySynchronize",
        "dp4a": r"__dp4a|dp4a\.",
    },
    "metal": {
        "atomic": r"atomic_fetch_add_explicit",
        "simdgroup_matrix": r"simdgroup_multiply_accumulate",
        "matmul2d": r"matmul2d",
        "simd_shuffle": r"simd_shuffle",
    },
}
"""A family, by what its instructions have in a kernel's source."""

BY_HAND = {
    "cuda": (
        "atomic_load/instruction", "await_phase/mbarrier", "barriers of a cluster",
        "block_rank_in_cluster/register",
        "bulk_load/gather4", "bulk_store/scatter4", "commit_wgmma/commit_group", "copies to a block",
        "copy/ldmatrix", "copy/tma", "copy_to_block/bulk", "copy_to_block/elements",
        "dependent_launch/griddepcontrol", "dp4a", "dp4a/elements", "dp4a/instruction",
        "end_phase/mbarrier", "finalize_reducer/threads", "gemm_sp/elements", "gemm_sp/mma",
        "griddepcontrol",
        "im2col/elements", "join_cluster/barrier", "min_blocks/launch bounds", "mma.sp", "multicast",
        "multicast/tma",
        "print/log", "print_tile/log", "quantifier/threads",
        "reducer_init/threads",
        "reducer_update/store", "remote_arrival/mbarrier", "remote_copy/bulk", "remote_store/st",
        "rounded/intrinsic", "rounded_cast/function", "scan/strips",
        "set_max_registers/setmaxnreg", "setmaxnreg",
        "sums by tensor maps", "tma_load/tma", "transpose/elements", "transpose/staged",
    ),
    "metal": (
        "atomic_load/instruction", "commit_wgmma/complete", "dp4a/elements", "finalize_reducer/threads",
        "gemm_sp/elements", "im2col/elements", "print/log", "print_tile/log", "quantifier/threads",
        "reducer_init/threads",
        "reducer_update/store", "rounded/integers", "rounded_cast/function", "transpose/elements",
        "transpose/staged", "wait_wgmma/complete",
    ),
}  # fmt: skip
"""Hand-written tests emulate these; what the catalogue has for `fast` leaves the list."""


@pytest.fixture
def used():
    """The lowerings that a compilation asks for code from here on."""
    found = set()

    def noted(lowering: Lowering, code: Any) -> Any:
        def noting(op, context):
            found.add(name_of(lowering))
            return code(op, context)

        return noting

    # Operators are registered when they are used first.
    for module in pkgutil.walk_packages(tileop.__path__, f"{tileop.__name__}."):
        importlib.import_module(module.name)
    # In the lowering itself: other modules hold some of them.
    before = [(lowering, lowering.code) for lowering in registered_lowerings()]
    for lowering, code in before:
        object.__setattr__(lowering, "code", noted(lowering, code))
    yield found
    for lowering, code in before:
        object.__setattr__(lowering, "code", code)


def name_of(lowering):
    return lowering.target_kind, f"{lowering.operator}/{lowering.variant}"


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::tvmtile.errors.TileWarning")
def test_the_tier_fast_emulates_every_lowering_and_family_of_instructions(used, tmp_path):
    every = {
        name_of(lowering)
        for lowering in registered_lowerings()
        if lowering.target_kind != "llvm" and lowering.variant != "none"
    }
    every |= {(kind, family) for kind, families in FAMILIES.items() for family in families}
    for program in catalogue().values():
        for name in set(program.fast) - {"gpu"}:
            for case in program.cases(name, "fast"):
                target = resolve(run.TARGETS[name]["target"])
                config = case.options.get("pass_configs", {})
                built = build_artifact(run.loaded(case, tmp_path).main, target, "emulator", config)
                text = "\n".join(built.sources.values())
                kind = target.kind.name
                used |= {(kind, f) for f, shown in FAMILIES[kind].items() if re.search(shown, text)}
    by_hand = {(kind, name) for kind, names in BY_HAND.items() for name in names}
    assert by_hand <= every
    assert sorted(every - used - by_hand) == []
