"""Compiling a tile program: the passes, TVM's code generators, and what they refuse.

Imported where something is compiled: what is loaded from the cache needs none of it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tvm
from tvm import ir, tirx
from tvm.target import Target

from tvmtile._plugin import PIPELINE_NAME, register
from tvmtile._tvm import codegen_build, nodes_in, split_host_device_mods
from tvmtile.analysis.effects import written_parameters
from tvmtile.codegen.metal import complete, kernel_source, lacking_in_tvm
from tvmtile.compat.transform import EFFECTS, with_effect
from tvmtile.errors import (
    CudaCompileError,
    InvalidOperand,
    InvalidValue,
    MetalCompileError,
    NoLowering,
    TileError,
    UnknownTarget,
    is_tvm,
    reason_of,
    warn,
)
from tvmtile.ir.kernels import is_tile_program
from tvmtile.jit.arguments import location_of_kernel
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.backends import EMULATOR, METAL_BACKENDS
from tvmtile.jit.cuda import compiling
from tvmtile.jit.launches import KernelInterface, record_launches
from tvmtile.jit.signature import name_of
from tvmtile.passes.checks.launch import refuse_host_accesses
from tvmtile.passes.checks.verify import Verifier
from tvmtile.passes.cpu.insert_index_checks import CHECK_INDICES
from tvmtile.target import gpu, runs_here
from tvmtile.tvm_pipeline import tvm_pipeline

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
            module, kernels, sources = build_program(mod, target, _cuda_source)
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


def build_program(
    mod: ir.IRModule,
    target: Target,
    source_of: Callable[[str, tirx.PrimFunc, Target], str] = kernel_source,
) -> tuple[Any, dict[str, KernelInterface], dict[str, str]]:
    """Lower a module and generate its code, without needing a GPU's runtime.

    The target has a host. Returned are the host's part, which records launches; what each kernel is
    launched with, in the order of the program; and their sources, each of which compiles by itself:
    `source_of` makes it of the kernel's name, its function after TVM's last pass, and the target.
    """
    lower, finalize_host, finalize_device = tvm_pipeline()
    host, devices = split_host_device_mods(lower(tirx.transform.BindTarget(target)(mod)))
    host_module = codegen_build(finalize_host()(record_launches(host)), target.host)
    kernels, sources = {}, {}
    for device in devices.values():
        for name, kernel in finalize_device()(device).functions.items():
            symbol = str(kernel.attrs.get("global_symbol", name.name_hint))
            kernels[symbol] = KernelInterface.of(kernel)
            sources[symbol] = source_of(symbol, kernel, target)
    return host_module, kernels, sources


def _cuda_source(name: str, kernel: tirx.PrimFunc, target: Target) -> str:
    """The CUDA source of a kernel, of its name and its function after TVM's last pass."""
    return str(codegen_build(ir.IRModule({name: kernel}), target).inspect_source())


_OUR_LOWERING = tuple(
    str(Path(__file__).resolve().parent.parent / name)
    for name in ("analysis", "codegen", "ir", "layout", "passes", "tileop")
)
# These hand a module from pass to pass, or to TVM's code generator.
_PASS_RUNNERS = ("lower_tile_programs.py", "passes.py", "codegen/metal.py")


@contextmanager
def translate_failures(func: tirx.PrimFunc, target: Target) -> Iterator[None]:
    """Turn what TVM's own passes and code generators raise into an error at the kernel's line.

    An exception out of our passes, or of TVM called by them, is a defect of ours and stays what it is.

    Raises
    ------
    NoLowering
        With TVM's reason.
    """
    try:
        yield
    except (CudaCompileError, MetalCompileError) as error:
        error.location = (
            location_of_kernel(func) or error.location
        )  # of the kernel, not of the call
        raise
    except Exception as error:
        if os.environ.get("TVM_BACKTRACE") == "1" or not _is_refusal(error):
            raise
        raise _refusal(error, func, target) from error


def _is_refusal(error: Exception) -> bool:
    """Tell whether TVM raised it, with no lowering of ours at work."""
    if isinstance(error, TileError):
        return False
    files = []
    traceback = error.__traceback__
    while traceback is not None:
        files.append(traceback.tb_frame.f_code.co_filename)
        traceback = traceback.tb_next
    lowering = [Path(f) for f in files if f.startswith(_OUR_LOWERING)]
    ours = [path for path in lowering if not any(map(path.match, _PASS_RUNNERS))]
    return not ours and is_tvm(files[-1])


def _refusal(error: Exception, func: tirx.PrimFunc, target: Target) -> TileError:
    location = location_of_kernel(func)
    name = func.attrs.get("global_symbol", "main") if func.attrs is not None else "main"
    tag = _tag_bound_for_tvm(func)
    if target.kind.name == "llvm" and tag is not None:
        return NoLowering(
            f"{name}: {tag} is bound without T.Kernel, and a CPU has no threads that TVM could bind "
            "it to",
            help="write the launch as `with T.Kernel(blocks, threads=...) as bx:`, or its loops as "
            '`for bx in T.thread_binding(blocks, thread="blockIdx.x"):`',
            location=location,
        )
    return NoLowering(
        f"{name}: TVM can't compile this kernel for {target.kind.name}: {reason_of(error)}",
        help="set TVM_BACKTRACE=1 to see where in TVM",
        location=location,
    )


def _tag_bound_for_tvm(func: tirx.PrimFunc) -> str | None:
    """The outermost axis of a GPU's launch that a program without T.Kernel binds."""
    if is_tile_program(func):
        return None
    tag = None
    for node in nodes_in(func.body, (tirx.AttrStmt, tirx.For)):
        if isinstance(node, tirx.For):
            binding = node.thread_binding
        else:
            binding = node.node if node.attr_key == "thread_extent" else None
        if binding is not None:
            tag = str(binding.thread_tag)
    return tag


_OWN_OPTIONS = ("tvmtile.verify", "tvmtile.check_indices")
"""The keys of `pass_configs` besides TVM's options; Python can't register one with TVM."""


def known_options(options: Mapping[str, object]) -> dict[str, object]:
    """Options of TVM's passes, checked.

    Raises
    ------
    InvalidValue
        If there is no such option; the message offers the nearest one.
    """
    if not options:
        return {}
    known = [str(name) for name in tvm.transform.PassContext.list_configs()]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, [*_OWN_OPTIONS, *known], n=1)
            raise InvalidValue(
                f"there is no pass option {name!r}",
                help=f"did you mean {near[0]!r}?"
                if near
                else "tvm.transform.PassContext.list_configs() lists them",
            )
    return dict(options)
