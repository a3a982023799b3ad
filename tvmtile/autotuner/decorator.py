"""`@tvmtile.autotune` over `@tvmtile.jit`: a kernel that is tuned when it is first called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, overload

from typing_extensions import Unpack

from tvmtile.autotuner.configurations import AUTO, PASS_CONFIGS, expanded
from tvmtile.autotuner.result import AutotuneResult
from tvmtile.autotuner.saved import identity
from tvmtile.autotuner.tuner import AutoTuner
from tvmtile.errors import InvalidOperand, hide_internal_frames
from tvmtile.jit.decorator import JitFunction
from tvmtile.jit.kernel import Kernel
from tvmtile.jit.specialisation import hashable, is_tensor
from tvmtile.jit.typing import CalledWhenCompiled, Makes, Parameters, Results
from tvmtile.profiler import TensorSupplyType

__all__ = ["TunedFunction", "autotune"]

Configs: TypeAlias = (
    Iterable[Mapping[str, Any]] | Mapping[str, Iterable[Any]] | Callable[..., Any] | str
)


class TuneOptions(TypedDict, total=False):
    """Options of `tvmtile.autotune` besides the configurations."""

    warmup: int
    rep: int
    timeout: float
    supply_type: TensorSupplyType
    ref_prog: Callable[..., Any] | None
    supply_prog: Callable[..., Any] | None
    rtol: float
    atol: float
    max_mismatched_ratio: float
    skip_check: bool
    manual_check_prog: Callable[..., Any] | None
    cache_input_tensors: bool
    do_not_specialize: Collection[str] | None
    early_stop: bool
    early_stop_factor: float
    executor: Executor | None
    num_workers: int | None


@overload
def autotune(
    func: JitFunction[Parameters, Makes, Results],
    *,
    configs: Configs,
    **options: Unpack[TuneOptions],
) -> TunedFunction[Parameters, Makes, Results]: ...
@overload
def autotune(
    func: None = None, *, configs: Configs, **options: Unpack[TuneOptions]
) -> Callable[
    [JitFunction[Parameters, Makes, Results]], TunedFunction[Parameters, Makes, Results]
]: ...
def autotune(
    func: Any = None,
    *,
    configs: Configs,
    warmup: int = 25,
    rep: int = 100,
    timeout: float = 100,
    supply_type: TensorSupplyType = TensorSupplyType.Auto,
    ref_prog: Callable[..., Any] | None = None,
    supply_prog: Callable[..., Any] | None = None,
    rtol: float = 1e-2,
    atol: float = 1e-2,
    max_mismatched_ratio: float = 0.01,
    skip_check: bool = False,
    manual_check_prog: Callable[..., Any] | None = None,
    cache_input_tensors: bool = False,
    do_not_specialize: Collection[str] | None = None,
    early_stop: bool = False,
    early_stop_factor: float = 2.0,
    executor: Executor | None = None,
    num_workers: int | None = None,
) -> Any:
    """Find the best values of some parameters when a kernel is called, once for the others' values.

    ```
    @tvmtile.autotune(configs={"block": [64, 128, 256], "threads": [128, 256]})
    @tvmtile.jit
    def scale(A, factor, block=128, threads=128): ...
    ```

    A call that gives such a parameter itself is not tuned. The times of all configurations are kept on
    disk (`tvmtile.cache`); another process that calls the kernel in the same way measures nothing.

    Parameters
    ----------
    func : JitFunction
        The kernel, under `@tvmtile.jit`.
    configs : iterable of mapping, mapping of iterables, callable or "auto"
        As of `AutoTuner`. A callable gets the arguments of the call.
    warmup, rep, timeout, early_stop, early_stop_factor, executor, num_workers
        As of `AutoTuner.run`.
    supply_type, ref_prog, supply_prog, rtol, atol, max_mismatched_ratio, skip_check, manual_check_prog
        As of `AutoTuner.set_profile_args`.
    cache_input_tensors : bool
        Accepted for TileLang's callers: all configurations get the same inputs.
    do_not_specialize : collection of str, optional
        Parameters for whose other values the kernel is compiled again, but not tuned again. Of a
        parameter that is tuned, a value that a call gives by name is replaced by the best one.

    Returns
    -------
    TunedFunction
        It is called as the kernel is.

    Raises
    ------
    TuningFailed
        At the call, if no configuration can be used.
    """
    profile = {
        "supply_type": supply_type,
        "ref_prog": ref_prog,
        "supply_prog": supply_prog,
        "rtol": rtol,
        "atol": atol,
        "max_mismatched_ratio": max_mismatched_ratio,
        "skip_check": skip_check,
        "manual_check_prog": manual_check_prog,
        "cache_input_tensors": cache_input_tensors,
    }
    run = {
        "warmup": warmup,
        "rep": rep,
        "timeout": timeout,
        "early_stop": early_stop,
        "early_stop_factor": early_stop_factor,
        "executor": executor,
        "num_workers": num_workers,
    }

    def decorate(function: Any) -> TunedFunction:
        if not isinstance(function, JitFunction):
            raise InvalidOperand(
                f"@tvmtile.autotune is for @tvmtile.jit kernels, not for a {type(function).__name__}",
                help="write @tvmtile.autotune(configs=...) above @tvmtile.jit",
            )
        return TunedFunction(function, configs, profile, run, do_not_specialize or ())

    return decorate if func is None else decorate(func)


@dataclass
class _Tuned:
    """The result of tuning for a call, and the kernels for it by all of its values."""

    result: AutotuneResult
    kernels: dict[Any, Kernel]


class TunedFunction(CalledWhenCompiled[Parameters, Makes, Results]):
    """A kernel under `@tvmtile.autotune`.

    Attributes
    ----------
    jit_impl : JitFunction
        The kernel under `@tvmtile.jit`.
    configs : Any
        The configurations as they were given.
    """

    def __init__(
        self,
        function: JitFunction[Parameters, Makes, Results],
        configs: Configs,
        profile: Mapping[str, Any],
        run: Mapping[str, Any],
        ignored: Collection[str],
    ) -> None:
        functools.update_wrapper(self, function)
        self.jit_impl = function
        self.configs = configs
        self._profile, self._run, self._ignored = profile, run, frozenset(ignored)
        self._tuner_cache: dict[Any, _Tuned] = {}

    def __repr__(self) -> str:
        return f"<tvmtile.autotune {self.jit_impl!r}, {len(self._tuner_cache)} tuned>"

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        returns_kernel = kwargs.pop("__return_kernel", False)
        kernel = self._kernel(args, kwargs)
        if returns_kernel:
            return kernel
        tensors = self.jit_impl.tensors_of(args, {**kwargs, **_values(kernel.config or {})})
        return kernel if tensors is None else kernel(*tensors)

    @hide_internal_frames
    def compile(self, *args: Any, **kwargs: Any) -> Kernel[Results]:
        """The best kernel for these arguments, without running it."""
        return self._kernel(args, kwargs)

    @hide_internal_frames
    def result(self, *args: Any, **kwargs: Any) -> AutotuneResult:
        """The result of tuning for these arguments; it is done where it was not."""
        return self._found(args, kwargs).result

    def _found(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Tuned:
        key = hashable(self._described(args, kwargs, self._ignored))
        if key not in self._tuner_cache:
            result = self._tuned(args, kwargs)
            whole = hashable(self._described(args, kwargs, ()))
            self._tuner_cache[key] = _Tuned(result, {whole: result.kernel})
        return self._tuner_cache[key]

    def _kernel(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Kernel:
        key, found = hashable(self._described(args, kwargs, ())), self._found(args, kwargs)
        if key not in found.kernels:  # it was for other values of what is not specialised
            found.kernels[key] = self._kernel_of(found.result, args, kwargs)
        return found.kernels[key]

    def _described(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], ignored: Collection[str]
    ) -> dict[str, Any]:
        """The arguments of a call by name, tensors by what a kernel is compiled for."""
        own = {name: v for name, v in kwargs.items() if name in self.jit_impl.signature.parameters}
        bound = self.jit_impl.signature.bind_partial(*args, **own)
        bound.apply_defaults()
        return {
            name: identity(value) if is_tensor(value) else value
            for name, value in {**kwargs, **bound.arguments}.items()
            if name not in ignored
        }

    def _tuner(self, configs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AutoTuner:
        tuner = AutoTuner(self.jit_impl, configs, args, kwargs)
        return tuner.set_profile_args(**self._profile)

    def _tuned(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AutotuneResult:
        parameters = self.jit_impl.signature.parameters
        configs = self.configs
        if configs == AUTO:
            from tvmtile import carver

            tuned = carver.tunable(parameters)
        else:
            configs = expanded(configs, parameters, args, kwargs)
            tuned = {name: value for config in configs for name, value in _values(config).items()}
        # Values of what is not specialised are replaced by those of the best configuration.
        kwargs = {n: v for n, v in kwargs.items() if n not in tuned or n not in self._ignored}
        if tuned.keys() & {*list(parameters)[: len(args)], *kwargs}:
            kernel = self.jit_impl.compile(*args, **kwargs)
            return AutotuneResult(None, None, None, kernel, kernel.prim_func)
        tensors = self.jit_impl.tensors_of(args, {**kwargs, **tuned})
        return self._tuner(configs, args, kwargs).run(inputs=tensors or None, **self._run)

    def _kernel_of(
        self, result: AutotuneResult, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Kernel:
        """The kernel of the best configuration for other values of what is not specialised."""
        config = result.config or {}
        kwargs = {n: v for n, v in kwargs.items() if n not in config}
        request = self._tuner([config], args, kwargs).request(config, result.kernel.target)
        kernel = request.kernel(request.artifact())
        kernel.config = result.config
        return kernel


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != PASS_CONFIGS}
