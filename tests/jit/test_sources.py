"""The modules that a kernel's key holds, and what of their text."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.fuzz import run
from tests.fuzz.generate import generate, generate_pipelined
from tests.fuzz.run import compiled
from tvmtile.errors import OutOfSharedMemory
from tvmtile.jit import artifact
from tvmtile.jit import key as sources

KINDS = ("llvm", "metal", "cuda")


def codes():
    """The digests of the code for each kind of target, as a new process finds them."""
    sources.all_sources.cache_clear()
    sources.code_of.cache_clear()
    return {kind: sources.code_of(kind) for kind in KINDS}


@pytest.fixture
def package(tmp_path, monkeypatch, sources_of_now):
    """A copy of tvmtile to edit."""
    copy = tmp_path / "tvmtile"
    shutil.copytree(
        sources.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.h", "*.cc")
    )
    monkeypatch.setattr(sources, "PACKAGE", copy)
    monkeypatch.setenv("TVMTILE_CACHE_DIR", str(tmp_path / "cache"))
    yield copy
    sources.all_sources.cache_clear()
    sources.code_of.cache_clear()


PASS = "passes/tile/normalize_operands.py"


def append(file, line):
    with file.open("a") as opened:
        opened.write(f"\n{line}\n")


def test_the_code_stays_where_only_what_is_said_of_it_changes(package):
    before = codes()
    text = (package / PASS).read_text()
    commented = "# What it is for.\n" + text.replace(
        "\n    return", "\n    # And now:\n\n    return"
    )
    documented, count = re.subn(r'^( *""")(\w)', r"\1Other words. \2", commented, flags=re.M)
    assert count > 3
    (package / PASS).write_text(documented)
    assert codes() == before


def test_the_code_stays_where_a_module_changes_that_takes_no_part(package):
    before = codes()
    for module in (
        "ops/programs/gemm.py", "autotuner/tuner.py", "carver/model.py", "torch/replace.py",
        "relax/graph.py", "compat/tools.py", "commands.py", "profiler/bench.py", "jit/kernel.py",
        "emulator/cuda/module.py", "language/warps.py", "__main__.py",
    ):  # fmt: skip
        append(package / module, "LIMIT = 3")
    assert codes() == before


CHANGED = {
    PASS: KINDS,
    "passes/checks/tiles.py": KINDS,
    "passes/cpu/lower_parallel.py": ("llvm",),
    "passes/gpu/distribute_parallel.py": ("metal", "cuda"),
    "passes/gpu/fragment_to_simdgroup.py": ("metal",),
    "tileop/gemm/amx.py": ("llvm",),
    "tileop/gemm/simdgroup.py": ("metal",),
    "tileop/gemm/wgmma.py": ("cuda",),
    "tileop/moves.py": KINDS,
    "instructions/wgmma.py": ("metal", "cuda"),  # by SchedulePipelines
    "analysis/nests.py": KINDS,
    "analysis/linearity.py": ("metal", "cuda"),
    "pipeline.py": KINDS,
    "jit/build.py": KINDS,
    "_plugin.py": KINDS,
}


def test_the_code_changes_for_the_targets_that_a_module_takes_part_for(package):
    found, before = {}, codes()
    for module in CHANGED:
        append(package / module, "LIMIT = 3")
        after = codes()
        found[module] = tuple(kind for kind in KINDS if after[kind] != before[kind])
        before = after
    assert found == CHANGED


def test_the_code_changes_with_a_constant_and_an_operator(package):
    text, found = (package / PASS).read_text(), set()
    for line in ("x = 1 + 2", "x = 1 + 3", "x = 1 - 2", "x = 1 + 2.0", "x = 'a'", "x = 'b'", "'a'"):
        (package / PASS).write_text(f"{text}\n{line}\n")
        found.add(codes()["llvm"])
    (package / PASS).write_text(f"{text}\n'b'\n")
    assert len(found | {codes()["llvm"]}) == 8


def test_a_module_joins_where_it_is_imported_or_has_a_lowering(package):
    before = codes()
    (package / "passes/tile/new.py").write_text("LIMIT = 1\n")
    assert codes() == before
    append(
        package / "passes/cpu/lower_parallel.py",
        "def f():\n    from tvmtile.passes.tile import new",
    )
    imported = codes()
    (package / "passes/tile/new.py").write_text("LIMIT = 2\n")
    changed = codes()
    assert len({before["llvm"], imported["llvm"], changed["llvm"]}) == 3
    assert imported["cuda"] == changed["cuda"] == before["cuda"]
    (package / "tileop/new.py").write_text("lowering(New, target=('metal',))(as_loops)\n")
    lowers = codes()
    assert [kind for kind in KINDS if lowers[kind] != changed[kind]] == ["metal"]


def test_files_are_parsed_once_and_nothing_is_kept_of_files_that_changed(package, monkeypatch):
    kept = Path(os.environ["TVMTILE_CACHE_DIR"]) / "sources"
    before = codes()
    assert len(list(kept.iterdir())) == len(KINDS)
    with monkeypatch.context() as patch:
        patch.setattr(sources, "_modules", lambda kind: pytest.fail("parsed again"))
        assert codes() == before
    append(package / PASS, "LIMIT = 3")
    assert codes() != before
    assert len(list(kept.iterdir())) == len(KINDS)


def test_nobody_takes_a_name_from_a_module_whose_imports_are_not_followed():
    paths = sources._paths()
    for name in {name for kind in KINDS for name in sources.modules(kind)} - set(sources._INDEXES):
        for taken, *module in sources._text(paths[name].read_bytes()).imports:
            assert taken in paths or not {"tvmtile", "tvmtile.passes"} & set(module), (name, taken)


TARGETS = {
    "llvm": {"target": "llvm"},
    "metal": {"target": "metal", "execution_backend": "emulator"},
    **{
        arch: {"target": {"kind": "cuda", "arch": arch}, "execution_backend": "emulator"}
        for arch in ("sm_80", "sm_90a", "sm_100a")
    },
}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::tvmtile.errors.TileWarning")
@pytest.mark.parametrize("target", TARGETS)
def test_what_runs_when_a_kernel_is_built_takes_part(target, tmp_path, monkeypatch):
    """Whatever the imports say: by the functions that Python calls."""
    kind = target.partition("_")[0].replace("sm", "cuda")
    taking_part = sources.modules(kind)
    for name in ("tvmtile.tileop.lowerings", *taking_part):
        importlib.import_module(name)  # what runs when they are imported makes no kernel
    called = set()
    build = artifact._build

    def traced(*args):
        sys.setprofile(lambda frame, event, arg: called.add(frame.f_code.co_filename))
        try:
            return build(*args)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(artifact, "_build", traced)
    monkeypatch.setitem(run.TARGETS, "this", TARGETS[target])
    for program in (*(generate(seed, 3) for seed in range(1, 5)), generate_pipelined(0)):
        with contextlib.suppress(OutOfSharedMemory):  # Metal has little
            compiled(program, "this", tmp_path)
    paths = {name: str(path) for name, path in sources._paths().items()}
    ran = {name for name, path in paths.items() if path in called}
    assert len(ran) > 100
    assert ran - set(taking_part) == set()
