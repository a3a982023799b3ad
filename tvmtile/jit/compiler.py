"""From a tile program to a callable kernel."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import ir, tirx
from tvm.target import Target

from tvmtile._plugin import PIPELINE_NAME, register
from tvmtile.errors import (
    InvalidOperand,
    InvalidValue,
    NoLowering,
    TileError,
    UnknownTarget,
    hide_internal_frames,
    warn,
    warn_ignored,
)
from tvmtile.frontend.entry import OUT_IDX_ATTR
from tvmtile.jit.adapter import Adapter, TvmAdapter
from tvmtile.jit.backends import METAL_ADAPTERS, backend_for, check_for_tvm
from tvmtile.jit.cuda import CudaAdapter, compiling
from tvmtile.jit.failures import known_options, translate_failures
from tvmtile.jit.following import FollowingKernel, best_target, chosen_target
from tvmtile.jit.kernel import Kernel, name_of
from tvmtile.jit.metal import build_program
from tvmtile.passes import Verifier
from tvmtile.passes.cpu.insert_index_checks import CHECK_INDICES
from tvmtile.target import resolve, runs_here
from tvmtile.transform import PassConfigKey, is_of_tilelang, warn_without_effect

__all__ = [
    "build",
    "compile",
    "ignore_options",
    "par_compile",
    "pass_context",
    "refuse_unknown",
]

VERIFY_OPTION = "tvmtile.verify"


@hide_internal_frames
def compile(
    func: tirx.PrimFunc,
    out_idx: int | Sequence[int] | None = None,
    target: Any = None,
    execution_backend: str | None = "auto",
    target_host: Any = None,
    verbose: bool = False,
    pass_configs: Mapping[str, Any] | None = None,
    compile_flags: Any = None,
    **unknown: Any,
) -> Kernel:
    """Compile a tile program for a target.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        What `T.prim_func` makes.
    out_idx : int or sequence of int, optional
        Parameters that are results: a call allocates and returns them. Negative ones count from the
        end. A kernel that declares results with `T.empty` needs none.
    target : str, dict or Target, optional
        Where it runs. Where it is absent or "auto", the kernel is built for the kind of device that the
        tensors of a call are on (CPU, CUDA, an Apple GPU), once for each kind; what can be looked at
        before a call is for this machine's GPU, if it has one. `TVMTILE_TARGET` in the environment
        stands for an absent target: a name, or a dictionary as JSON.
    execution_backend : str or None
        Who runs the kernel. "tvm_ffi" is TVM's own runtime. A Metal program is run by "torch", on
        tensors of an Apple GPU, or by "emulator", on the CPU (see `tvmtile.emulator.metal`). "auto",
        or None, is "tvm_ffi" on a CPU; for Metal it is "torch" where torch has an Apple GPU, else
        "emulator".
    target_host, verbose
        Accepted with a warning: the host is that of the target, and `kernel.lowering` shows the passes.
    compile_flags
        Accepted with a warning: the flags of NVRTC are fixed.
    pass_configs : mapping, optional
        Options of TVM's passes, as of `tvm.transform.PassContext(config=...)`. With `tvmtile.verify`,
        what must hold between tvmtile's passes is checked (see `tvmtile.passes.checks.verify`). With
        `tvmtile.check_indices`, an index that lies outside of a tile when the kernel runs on the CPU is
        an error.

    Returns
    -------
    Kernel
        Callable on torch tensors, numpy arrays and TVM tensors.

    Raises
    ------
    UnknownTarget
        If tile programs can't be lowered for the target.
    InvalidOperand
        If an option is none of these; the message offers the nearest one.
    TileError
        For what is wrong with the program on this target.
    """
    refuse_unknown("compile", unknown, compile)
    ignore_options("tvmtile.compile", verbose, target_host)
    if compile_flags:
        warn_without_effect({PassConfigKey.TL_DEVICE_COMPILE_FLAGS: compile_flags})
    if not isinstance(func, tirx.PrimFunc):
        raise InvalidOperand(
            f"tvmtile.compile takes a T.prim_func, not a {type(func).__name__}",
            help="decorate the kernel with @T.prim_func; call a factory that returns one",
        )
    options = {
        "out_idx": out_idx,
        "target": target,
        "execution_backend": execution_backend,
        "pass_configs": dict(pass_configs or {}),
    }
    kernel = _compiled(func, options)
    kernel.options = options
    return kernel


def ignore_options(
    name: str, verbose: bool | None, target_host: Any, debug_root_path: Any = None
) -> None:
    """Warn of options of TileLang's kernels that change nothing.

    Parameters
    ----------
    name : str
        The function, as the user calls it.
    verbose, target_host, debug_root_path
        What it was given.
    """
    lowered = "kernel.lowering holds the program after each pass"
    warn_ignored(name, lowered, verbose=verbose, debug_root_path=debug_root_path)
    warn_ignored(name, "the host is that of the target", target_host=target_host)


def refuse_unknown(name: str, unknown: Iterable[str], *functions: Callable[..., Any]) -> None:
    """Refuse options that a function does not have.

    Parameters
    ----------
    name : str
        The function, as the user calls it.
    unknown : iterable of str
        The options.
    *functions : callable
        Whose parameters are its options, without the first, which is what is compiled, and the last,
        which takes unknown ones.

    Raises
    ------
    InvalidOperand
        If there is one; the message offers the nearest.
    """
    for option in unknown:
        known = [p for f in functions for p in list(inspect.signature(f).parameters)[1:-1]]
        near = difflib.get_close_matches(option, known, n=1, cutoff=0.5)
        raise InvalidOperand(
            f"{name} has no option {option!r}",
            help=f"did you mean {near[0]!r}?" if near else f"its options are {', '.join(known)}",
        )


def _compiled(func: tirx.PrimFunc, options: Mapping[str, Any]) -> Kernel:
    results = _result_positions(func, options["out_idx"])
    warn_without_effect(options["pass_configs"])
    target = options["target"]
    if target is None or target == "auto":
        target = chosen_target()
        if target is None and best_target() != "llvm":
            return FollowingKernel(
                func, results, lambda kind: compile(func, **{**options, "target": kind})
            )
    resolved = resolve(target)
    backend = backend_for(options["execution_backend"] or "auto", resolved)
    module, adapter = _built(func, resolved, options["pass_configs"], backend)
    return Kernel(func, module, resolved, results, options["pass_configs"], adapter)


def _built(
    func: tirx.PrimFunc, target: Target, config: Mapping[str, Any], backend: str
) -> tuple[Any, Adapter]:
    """The compiled module, and what calls it."""
    name, params = name_of(func), list(func.params)
    if target.kind.name == "cuda":
        with compiling(target) as compilation:
            module = build(func, target, config)
        return module, CudaAdapter(module, name, params, target, compilation)
    if backend not in METAL_ADAPTERS:
        module = build(func, target, config)
        if target.kind.name == "metal":
            check_for_tvm(name, module)
        return module, TvmAdapter(module, name, params, target)
    if not runs_here(target):
        raise UnknownTarget(
            f"a Metal program is launched from this machine, not from {target.host}",
            help="leave the host out of the target",
        )
    with _compiling(func, target, config) as mod:
        program = build_program(mod, target)
    return program.module, METAL_ADAPTERS[backend](program, name, params)


@hide_internal_frames
def par_compile(
    funcs: Iterable[tirx.PrimFunc],
    *,
    num_workers: int | None = None,
    ignore_error: bool = False,
    **options: Any,
) -> list[Kernel | None]:
    """Compile several tile programs, in threads.

    Parameters
    ----------
    funcs : iterable of tvm.tirx.PrimFunc
        The programs.
    num_workers : int, optional
        How many threads; Python decides where absent.
    ignore_error : bool
        Warn of a program that can't be compiled, and give None for it.
    **options
        As of `tvmtile.compile`.

    Returns
    -------
    list of Kernel
        In the order of the programs.

    Raises
    ------
    InvalidOperand
        If there is no such option; the message offers the nearest one.
    """
    known = inspect.signature(compile).parameters
    refuse_unknown("par_compile", options.keys() - known.keys(), compile, par_compile)

    def compiled(func: tirx.PrimFunc) -> Kernel | None:
        try:
            return compile(func, **options)
        except TileError as error:
            if not ignore_error:
                raise
            warn(f"a program was left out: {error}")
            return None

    with ThreadPoolExecutor(num_workers) as workers:
        return list(workers.map(compiled, funcs))


def _result_positions(func: tirx.PrimFunc, out_idx: Any) -> tuple[int, ...]:
    declared = func.attrs.get(OUT_IDX_ATTR) if func.attrs is not None else None
    if declared is not None:
        if out_idx is not None:
            raise InvalidValue(
                f"out_idx={out_idx} for a kernel that makes its results with T.empty",
                help="leave out_idx out: what the kernel returns are its results",
            )
        return tuple(int(i) for i in declared)
    if out_idx is None:
        return ()
    indices = [out_idx] if isinstance(out_idx, int) else list(out_idx)
    count = len(func.params)
    for index in indices:
        if not -count <= index < count:
            raise InvalidOperand(
                f"out_idx={index} is outside the {count} parameters of the kernel",
                help="count the parameters from 0, or from the end with negative numbers",
            )
    return tuple(index % count for index in indices)


def build(func: tirx.PrimFunc, target: Target, config: Mapping[str, Any]) -> Any:
    """Run the pipeline and TVM's code generator."""
    with _compiling(func, target, config) as mod:
        module = tvm.tirx.build(mod, target=target, pipeline=PIPELINE_NAME)
    if module is None:
        raise NoLowering("TVM built no module")
    return module


@contextmanager
def _compiling(
    func: tirx.PrimFunc, target: Target, config: Mapping[str, Any]
) -> Iterator[ir.IRModule]:
    """A module of the program alone, with its options in force and TVM's failures translated."""
    register()
    name = name_of(func)
    named = func.with_attr("global_symbol", name)
    if config.get(CHECK_INDICES):
        if target.kind.name != "llvm":
            warn(f"{CHECK_INDICES} has no effect on {target.kind.name}: run the kernel on the CPU")
        named = named.with_attr(CHECK_INDICES, True)
    mod = ir.IRModule({name: named})
    with pass_context(config), translate_failures(func, target):
        yield mod


@contextmanager
def pass_context(config: Mapping[str, Any], instruments: Sequence[Any] = ()) -> Iterator[None]:
    """TVM's pass context with a kernel's options added to those in force."""
    current = tvm.transform.PassContext.current()
    # Options of TileLang's own passes have no meaning here. A key may be a PassConfigKey.
    named = {getattr(key, "value", key): value for key, value in config.items()}
    known = {key: value for key, value in named.items() if not is_of_tilelang(key)}
    known.pop(CHECK_INDICES, None)
    if known.pop(VERIFY_OPTION, False):
        instruments = [*instruments, Verifier()]
    with tvm.transform.PassContext(
        opt_level=current.opt_level,
        config={**current.config, **known_options(known)},
        instruments=[*(current.instruments or ()), *instruments],
    ):
        yield
