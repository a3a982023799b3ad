"""The tier fast emulates a kernel for each lowering and for each family of device instructions."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import run
from tests.programs import catalogue
from tvmtile import tileop
from tvmtile.cache.settings import cache_directory
from tvmtile.jit import build
from tvmtile.jit.backends import EMULATOR
from tvmtile.target import resolve
from tvmtile.tileop.registry import Lowering, registered_lowerings

ROOT = Path(__file__).resolve().parents[1]
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

BY_HAND = (
    "tests/tileop/test_atomic.py::test_every_thread_gets_another_former_value_on_metal",
    "tests/tileop/test_copy_cluster.py::test_a_tile_goes_to_another_block",
    "tests/tileop/test_copy_cluster.py::test_what_is_told_at_the_scope_of_a_block_alone_is_a_race",
    "tests/tileop/test_printing.py::test_log_of_a_kernel_on_metal",
    "tests/tileop/test_rounded.py::test_arithmetic_is_exact_and_rounded_once",
    "tests/tileop/tma/test_descriptors.py::test_planted_mistakes_are_found",
)
"""Hand-written tests that emulate what the catalogue does not for `fast`."""
LACKING = {
    "cuda": (
        "atomic_load/instruction", "bulk_load/gather4", "bulk_store/scatter4",
        "commit_wgmma/commit_group", "copy/ldmatrix", "copy/tma",
        "dependent_launch/griddepcontrol", "dp4a", "dp4a/elements", "dp4a/instruction",
        "gemm_sp/elements", "griddepcontrol", "im2col/staged", "min_blocks/launch bounds",
        "multicast", "multicast/tma", "print/log", "print_tile/log", "quantifier/threads",
        "roll/staged", "rounded/intrinsic", "rounded_cast/function", "scan/strips",
        "transpose/staged",
    ),
    "metal": (
        "commit_wgmma/complete", "dp4a/elements", "gemm/fma", "im2col/staged",
        "quantifier/threads", "roll/staged", "rounded_cast/function", "transpose/staged",
        "wait_wgmma/complete",
    ),
}  # fmt: skip
"""Lowerings that the tier fast lacks; one that something emulates there leaves the list."""


@contextmanager
def noted() -> Iterator[set[tuple[str, str]]]:
    """The lowerings, and the families of instructions, of what is built for an emulator in here."""
    used: set[tuple[str, str]] = set()
    asked: set[tuple[str, str]] = set()
    build_artifact = build.build_artifact

    def noting(lowering: Lowering, code: Any) -> Any:
        def lowered(op, context):
            asked.add(name_of(lowering))
            return code(op, context)

        return lowered

    def building(func, target, backend, config):
        asked.clear()
        built = build_artifact(func, target, backend, config)
        if backend == EMULATOR:
            kind, text = target.kind.name, "\n".join(built.sources.values())
            shown = {(kind, f) for f, pattern in FAMILIES[kind].items() if re.search(pattern, text)}
            used.update(asked, shown)
        return built

    # Operators are registered when they are used first.
    for module in pkgutil.walk_packages(tileop.__path__, f"{tileop.__name__}."):
        importlib.import_module(module.name)
    # In the lowering itself: other modules hold some of them.
    before = [(lowering, lowering.code) for lowering in registered_lowerings()]
    for lowering, code in before:
        object.__setattr__(lowering, "code", noting(lowering, code))
    build.build_artifact = building
    yield used
    build.build_artifact = build_artifact
    for lowering, code in before:
        object.__setattr__(lowering, "code", code)


def name_of(lowering):
    return lowering.target_kind, f"{lowering.operator}/{lowering.variant}"


def run_by_hand(report: str) -> None:
    """Write what the hand-written tests emulate, in a process that has built nothing before."""
    with noted() as used:
        known = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what is imported by now
        status = pytest.main(["-q", "-p", "no:xdist", *known, "--tier=fast", *BY_HAND])
    assert status == 0
    Path(report).write_text(json.dumps(sorted(used)))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::tvmtile.errors.TileWarning")
def test_the_tier_fast_emulates_every_lowering_and_family_of_instructions(tmp_path):
    every = {(kind, family) for kind, families in FAMILIES.items() for family in families}
    with noted() as used:
        every |= {
            name_of(lowering)
            for lowering in registered_lowerings()
            if lowering.target_kind != "llvm" and lowering.variant != "none"
        }
        for program in catalogue().values():
            for name in set(program.fast) - {"gpu"}:
                for case in program.cases(name, "fast"):
                    target = resolve(run.TARGETS[name]["target"])
                    config = case.options.get("pass_configs", {})
                    build.build_artifact(run.loaded(case, tmp_path).main, target, EMULATOR, config)
    report = tmp_path / "by_hand.json"
    code = f"from tests.test_emulated import run_by_hand; run_by_hand({str(report)!r})"
    (tmp_path / "emulator").symlink_to(cache_directory() / "emulator")  # what it compiled is kept
    environment = {**os.environ, "TVMTILE_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, check=True)
    by_hand = set(map(tuple, json.loads(report.read_text())))
    lacking = {(kind, name) for kind, names in LACKING.items() for name in names}
    assert sorted(lacking & (used | by_hand)) == []
    assert sorted(every - used - by_hand - lacking) == []
