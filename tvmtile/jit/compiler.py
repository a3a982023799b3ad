"""A tile program becomes a callable kernel."""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, overload

from tvm import ir, tirx
from tvm.target import Target

from tvmtile.compat.ignored import warn_ignored
from tvmtile.compat.transform import PassConfigKey, in_force, warn_without_effect, with_effect
from tvmtile.errors import (
    InvalidOperand,
    InvalidValue,
    TileError,
    hide_internal_frames,
    user_location,
    warn,
)
from tvmtile.frontend.program import OUT_IDX_ATTR
from tvmtile.jit.artifact import Artifact, artifact_of
from tvmtile.jit.backends import backend_for, best_target, chosen_target
from tvmtile.jit.executable import Executable
from tvmtile.jit.kernel import Kernel
from tvmtile.jit.key import Key, key_of
from tvmtile.jit.signature import KernelParam
from tvmtile.jit.typing import One, Program
from tvmtile.target import TargetLike, resolve


@dataclass(frozen=True, eq=False)
class Request:
    """A program, where it is to run, and how it is compiled."""

    func: tirx.PrimFunc
    """The tile program."""
    results: tuple[int, ...]
    """The positions of parameters that are results."""
    target: Target
    """The target to compile for."""
    backend: str
    """The backend that runs it."""
    config: Mapping[str, Any]
    """Options of passes."""

    @classmethod
    def of(
        cls,
        func: tirx.PrimFunc,
        out_idx: Any = None,
        target: TargetLike | None = None,
        execution_backend: str | None = "auto",
        pass_configs: Mapping[str, Any] | None = None,
    ) -> Request:
        """Decide what `tvmtile.compile` leaves open.

        Raises
        ------
        TileError
            If the target, the backend or the results are none.
        """
        resolved = resolve(target)
        return cls(
            func,
            result_positions(func, out_idx),
            resolved,
            backend_for(execution_backend or "auto", resolved),
            dict(pass_configs or {}),
        )

    def key(self) -> Key | None:
        """The names of the code in the cache; None where it depends on what has no name."""
        return key_of(self.func, self.target, self.backend, with_effect(self.config))

    def artifact(self) -> Artifact:
        """Compile the program, or find it compiled."""
        return artifact_of(self)

    def executable(self) -> Executable:
        """The program as it is run, compiled or found."""
        return Executable(self, self.artifact())

    def kernel(self, artifact: Artifact) -> Kernel:
        """Make the compiled program callable."""
        kernel: Kernel = Kernel(self.func, self.results, Executable(self, artifact))
        kernel.options = self.options
        return kernel

    @property
    def options(self) -> dict[str, object]:
        """The options with which `tvmtile.compile` compiles it again."""
        declares = self.func.attrs is not None and OUT_IDX_ATTR in self.func.attrs
        return {
            "out_idx": None if declares else list(self.results),
            "target": self.target,
            "execution_backend": self.backend,
            "pass_configs": dict(self.config),
        }

    def __reduce__(self) -> tuple[object, ...]:
        target = json.loads(str(self.target))
        return _again, (self.func, self.results, target, self.backend, dict(self.config))


def _again(
    func: Any, results: tuple[int, ...], target: TargetLike, backend: str, config: Any
) -> Request:
    return Request(func, results, Target(target), backend, config)


def result_positions(func: tirx.PrimFunc, out_idx: Any) -> tuple[int, ...]:
    """The positions of the parameters of a program that are results.

    The program may declare them; negative ones of `out_idx` count from the end.

    Raises
    ------
    InvalidValue
        If it declares them and is asked for others.
    InvalidOperand
        If there is no such parameter.
    """
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


@dataclass(frozen=True)
class CompiledArtifact:
    """A tile program that was compiled for a target, which need not be here."""

    kernel: Kernel
    """The compiled program."""

    @property
    def kernel_source(self) -> str:
        """The code that was generated."""
        return self.kernel.get_kernel_source()

    @property
    def params(self) -> list[KernelParam]:
        """The parameters of the program."""
        return self.kernel.params

    @property
    def rt_mod(self) -> Any:
        """The module that TVM built."""
        return self.kernel.module

    @property
    def device_mod(self) -> ir.IRModule:
        """The program as ordinary TIR, after tvmtile's passes."""
        return dict(self.kernel.lowering)["tvmtile.LowerTilePrograms"]


@hide_internal_frames
def lower(
    func_or_mod: Program | ir.IRModule,
    target: TargetLike | None = None,
    target_host: TargetLike | None = None,
    runtime_only: bool = False,
    enable_host_codegen: bool = False,
    enable_device_compile: bool = False,
) -> CompiledArtifact:
    """Compile a tile program without a GPU to run it on.

    Parameters
    ----------
    func_or_mod : tvm.tirx.PrimFunc or tvm.ir.IRModule
        The program, or a module of it alone.
    target : str, dict or Target, optional
        As of `tvmtile.compile`; where absent, the target in force (`with tvm.target.Target(...)`).
    target_host, runtime_only, enable_host_codegen
        Accepted for TileLang's programs.
    enable_device_compile : bool
        Compile the source of a CUDA program to machine code too.

    Raises
    ------
    TileError
        For what is wrong with the program on this target.
    """
    del target_host, runtime_only, enable_host_codegen
    func: Any = func_or_mod
    if isinstance(func_or_mod, ir.IRModule) and len(func_or_mod.functions) == 1:
        (func,) = func_or_mod.functions.values()
    if target in (None, "auto"):
        target = Target.current(allow_none=True)
    kernel = compile(func, target=target)
    if enable_device_compile and kernel.target.kind.name == "cuda":
        _ = kernel.cubin
    return CompiledArtifact(kernel)
