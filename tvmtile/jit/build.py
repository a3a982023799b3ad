"""Compiling a tile program: the passes, TVM's code generators, and what they say.

Imported where something is compiled: what is loaded from the cache needs none of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import ir, tirx
from tvm.target import Target

from tvmtile._plugin import PIPELINE_NAME, register
from tvmtile.analysis.effects import written_parameters
from tvmtile.codegen.metal import complete, lacking_in_tvm
from tvmtile.compat.transform import EFFECTS, with_effect
from tvmtile.errors import InvalidOperand, NoLowering, UnknownTarget, warn
from tvmtile.ir.kernels import is_tile_program
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.backends import EMULATOR, METAL_BACKENDS
from tvmtile.jit.cuda.compilation import compiling
from tvmtile.jit.cuda.emulator import kernel_source as cuda_kernel_source
from tvmtile.jit.failures import known_options, translate_failures
from tvmtile.jit.metal.program import build_program
from tvmtile.jit.signature import name_of
from tvmtile.passes.checks.launch import refuse_host_accesses
from tvmtile.passes.checks.verify import Verifier
from tvmtile.passes.cpu.insert_index_checks import CHECK_INDICES
from tvmtile.target import gpu, runs_here

_VERIFY = "tvmtile.verify"


def build_artifact(
    func: tirx.PrimFunc, target: Target, backend: str, config: Mapping[str, object]
) -> Artifact:
    """Compile a program.

    Raises
    ------
    TileError
        For what is wrong with the program on this target.
    """
    name, written = name_of(func), written_parameters(func)
    capability = gpu(target)
    if capability is not None and not is_tile_program(func):
        refuse_host_accesses(func, capability)
    if target.kind.name == "cuda" and backend == EMULATOR:
        _require_this_host(target)
        with compiling(target), _compiling(func, target, config) as mod:
            module, kernels, sources = build_program(mod, target, cuda_kernel_source)
        return Artifact(name, target, module, sources, kernels, written)
    if target.kind.name == "cuda":
        with compiling(target) as compilation:
            module = build(func, target, config)
        sources = _sources(module)
        return Artifact(name, target, module, sources, written=written, binary=compilation.binary)
    if backend not in METAL_BACKENDS:
        module = build(func, target, config)
        if target.kind.name == "metal":
            _check_for_tvm(name, module)
        return Artifact(name, target, module, _sources(module), written=written)
    _require_this_host(target)
    with _compiling(func, target, config) as mod:
        module, kernels, sources = build_program(mod, target)
    return Artifact(name, target, module, sources, kernels, written)


def _require_this_host(target: Target) -> None:
    kind = {"metal": "Metal", "cuda": "CUDA"}[target.kind.name]
    if not runs_here(target):
        raise UnknownTarget(
            f"a {kind} program is launched from this machine, not from {target.host}",
            help="leave the host out of the target",
        )


def _sources(module: Any) -> dict[str, str]:
    """The text of each module of a GPU."""
    return {f"{m.kind}{i}": str(m.inspect_source()) for i, m in enumerate(module.imports)}


def _check_for_tvm(name: str, module: Any) -> None:
    """Refuse a Metal program that TVM's own runtime would compile wrongly, or not at all."""
    sources = [complete(str(kernels.inspect_source("metal"))) for kernels in module.imports]
    lacking = lacking_in_tvm("\n".join(sources))
    if lacking:
        raise InvalidOperand(
            f"{name}: TVM's runtime compiles kernels as Metal 2.3 with fast mathematics; this one "
            f"needs {'; '.join(lacking)}",
            help="use execution_backend='torch'",
        )


def build(func: tirx.PrimFunc, target: Target, config: Mapping[str, object]) -> Any:
    """Run the pipeline and TVM's code generator."""
    with _compiling(func, target, config) as mod:
        module = tvm.tirx.build(mod, target=target, pipeline=PIPELINE_NAME)
    if module is None:
        raise NoLowering("TVM built no module")
    return module


@contextmanager
def _compiling(
    func: tirx.PrimFunc, target: Target, config: Mapping[str, object]
) -> Iterator[ir.IRModule]:
    """A module of the program alone, with its options in force and TVM's failures translated."""
    register()
    name = name_of(func)
    named = func.with_attr("global_symbol", name)
    if config.get(CHECK_INDICES):
        if target.kind.name != "llvm":
            warn(f"{CHECK_INDICES} has no effect on {target.kind.name}: run the kernel on the CPU")
        named = named.with_attr(CHECK_INDICES, True)
    for effect in with_effect(config).keys() & EFFECTS.keys():
        named = named.with_attr(effect, True)
    mod = ir.IRModule({name: named})
    with pass_context(config), translate_failures(func, target):
        yield mod


@contextmanager
def pass_context(
    config: Mapping[str, object], instruments: Sequence[object] = ()
) -> Iterator[None]:
    """TVM's pass context with a kernel's options added to those in force."""
    current = tvm.transform.PassContext.current()
    known = with_effect(config)
    known.pop(CHECK_INDICES, None)
    for effect in EFFECTS:
        known.pop(effect, None)
    if known.pop(_VERIFY, False):
        instruments = [*instruments, Verifier()]
    with tvm.transform.PassContext(
        opt_level=current.opt_level,
        config={**current.config, **known_options(known)},
        instruments=[*(current.instruments or ()), *instruments],
    ):
        yield
