"""From a tile program to a callable kernel."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, overload

from tvm import tirx

from tvmtile.compat.ignored import warn_ignored
from tvmtile.compat.transform import PassConfigKey, in_force, warn_without_effect
from tvmtile.errors import (
    InvalidOperand,
    TileError,
    hide_internal_frames,
    user_location,
    warn,
)
from tvmtile.jit.backends import best_target, chosen_target
from tvmtile.jit.kernel import Kernel
from tvmtile.jit.request import Request, result_positions
from tvmtile.jit.signatures import One, Program
from tvmtile.target import TargetLike


@overload
def compile(
    func: Program,
    out_idx: int,
    target: TargetLike | None = None,
    execution_backend: str | None = "auto",
    target_host: TargetLike | None = None,
    verbose: bool = False,
    pass_configs: Mapping[str, object] | None = None,
    compile_flags: Any = None,
) -> Kernel[One]: ...
@overload
def compile(
    func: Program,
    out_idx: Sequence[int] | None = None,
    target: TargetLike | None = None,
    execution_backend: str | None = "auto",
    target_host: TargetLike | None = None,
    verbose: bool = False,
    pass_configs: Mapping[str, object] | None = None,
    compile_flags: Any = None,
) -> Kernel[Any]: ...
@hide_internal_frames
def compile(
    func: Program,
    out_idx: int | Sequence[int] | None = None,
    target: TargetLike | None = None,
    execution_backend: str | None = "auto",
    target_host: TargetLike | None = None,
    verbose: bool = False,
    pass_configs: Mapping[str, object] | None = None,
    compile_flags: Any = None,
    **unknown: object,
) -> Kernel[Any]:
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
        Who runs the kernel. "tvm_ffi" is TVM's own runtime. "torch" runs a Metal program on tensors of
        an Apple GPU. "emulator" runs the source of a Metal or CUDA program on the CPU, with every
        access checked (see `tvmtile.emulator`). "auto", or None, is "tvm_ffi" on a CPU and for CUDA;
        for Metal it is "torch" where torch has an Apple GPU, else "emulator".
    target_host, verbose
        Accepted with a warning: the host is that of the target, and `kernel.lowering` shows the passes.
    compile_flags
        Accepted with a warning: the flags of NVRTC are fixed.
    pass_configs : mapping, optional
        Options of TVM's passes, as of `tvm.transform.PassContext(config=...)`. With `tvmtile.verify`,
        what must hold between tvmtile's passes is checked (see `tvmtile.passes.checks.verify`). With
        `tvmtile.check_indices`, an index that lies outside of a tile when the kernel runs on the CPU is
        an error, and so is an integer that is divided by 0.

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
    warn_ignored("tvmtile.compile", verbose=verbose, target_host=target_host)
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
        "pass_configs": {**in_force(), **(pass_configs or {})},
    }
    kernel = _compiled(func, options)
    kernel.options = options
    return kernel


def refuse_unknown(name: str, unknown: Iterable[str], *functions: Callable[..., object]) -> None:
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
    results = result_positions(func, options["out_idx"])
    warn_without_effect(options["pass_configs"])

    def request(target: Any) -> Request:
        return Request.of(func, **{**options, "target": target})

    target = options["target"]
    if target is None or target == "auto":
        target = chosen_target()
        if target is None and best_target() != "llvm":
            return Kernel(func, results, compile_for=lambda kind: request(kind).executable())
    return Kernel(func, results, request(target).executable())


@overload
def par_compile(
    funcs: Iterable[Program],
    *,
    num_workers: int | None = None,
    ignore_error: Literal[False] = False,
    **options: Any,
) -> list[Kernel]: ...
@overload
def par_compile(
    funcs: Iterable[Program],
    *,
    num_workers: int | None = None,
    ignore_error: bool,
    **options: Any,
) -> list[Kernel | None]: ...
@hide_internal_frames
def par_compile(
    funcs: Iterable[Program],
    *,
    num_workers: int | None = None,
    ignore_error: bool = False,
    **options: Any,
) -> Any:
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
    here = user_location()  # the threads have no line of the user's

    def compiled(func: Program) -> Kernel | None:
        try:
            return compile(func, **options)
        except TileError as error:
            error.location = error.location or here
            if not ignore_error:
                raise
            warn(f"a program was left out: {error}", here)
            return None

    with ThreadPoolExecutor(num_workers) as workers:
        return list(workers.map(compiled, funcs))
