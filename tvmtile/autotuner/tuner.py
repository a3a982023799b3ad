"""The autotuner for a function that makes a kernel's program of a configuration.

```
tuner = AutoTuner.from_kernel(matmul, configs={"block_M": [64, 128], "num_stages": [2, 3]})
result = tuner.set_compile_args(out_idx=-1).set_profile_args(ref_prog=reference).run()
```
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from tvm import tirx

from tvmtile.autotuner.compilation import adopt_compiled
from tvmtile.autotuner.configurations import (
    AUTO,
    PASS_CONFIGS,
    CompileArgs,
    Configuration,
    ProfileArgs,
    expanded,
)
from tvmtile.autotuner.measuring import InputsOf
from tvmtile.autotuner.result import AutotuneResult, Trial
from tvmtile.autotuner.saved import keep, kept, key_of_tuning
from tvmtile.autotuner.search import Limits, Search
from tvmtile.compat.ignored import warn_ignored
from tvmtile.compat.transform import warn_without_effect
from tvmtile.errors import (
    InvalidOperand,
    InvalidValue,
    TuningFailed,
    hide_internal_frames,
)
from tvmtile.jit.backends import best_target, chosen_target, target_of
from tvmtile.jit.compiler import Request
from tvmtile.jit.decorator import JitFunction
from tvmtile.profiler import TensorSupplyType
from tvmtile.target import TargetLike


class AutoTuner:
    """Tries configurations of a kernel.

    Parameters
    ----------
    fn : callable or JitFunction
        Takes a configuration's values by keyword and returns a `T.prim_func`; or a kernel under
        `@tvmtile.jit`.
    configs : iterable of mapping, mapping of iterables, callable or "auto"
        The configurations; a mapping of iterables stands for all combinations, "auto" for what a model
        of the device proposes (`tvmtile.carver`). The key `pass_configs` of a configuration holds
        options of passes.
    args, kwargs
        What the kernel is called with besides.
    """

    def __init__(
        self,
        fn: Callable[..., object],
        configs: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> None:
        self.fn = fn
        self.configs = configs
        self.args, self.kwargs = args, dict(kwargs or {})
        options = fn.options if isinstance(fn, JitFunction) else {}
        options.pop("compile_flags", None)  # the kernel has warned of it
        self.compile_args = CompileArgs(**options)
        self.profile_args = ProfileArgs()

    @classmethod
    def from_kernel(cls, kernel: Callable[..., object], configs: object) -> AutoTuner:
        """A tuner for a function; see the class."""
        return cls(kernel, configs)

    def set_compile_args(
        self,
        out_idx: int | Sequence[int] | None = None,
        target: TargetLike | None = None,
        execution_backend: str | None = "auto",
        target_host: object = None,
        verbose: bool | None = None,
        pass_configs: Mapping[str, object] | None = None,
    ) -> AutoTuner:
        """Say how configurations are compiled; see `CompileArgs`. The tuner itself is returned."""
        warn_ignored("set_compile_args", verbose=verbose, target_host=target_host)
        self.compile_args = CompileArgs(out_idx, target, execution_backend, pass_configs)
        return self

    def set_profile_args(
        self,
        warmup: int = 25,
        rep: int = 100,
        timeout: int = 30,
        supply_type: TensorSupplyType = TensorSupplyType.Auto,
        ref_prog: Callable[..., object] | None = None,
        supply_prog: Callable[..., object] | None = None,
        rtol: float = 1e-2,
        atol: float = 1e-2,
        max_mismatched_ratio: float = 0.01,
        skip_check: bool = False,
        manual_check_prog: Callable[..., object] | None = None,
        cache_input_tensors: bool = False,
        backend: str = "event",
    ) -> AutoTuner:
        """Say what configurations are measured with; see `ProfileArgs`. The tuner itself is returned.

        As in TileLang, `run` says how often they are called. All configurations get the same inputs,
        with and without `cache_input_tensors`; `backend` is that of `do_bench`.
        """
        del warmup, rep, timeout, cache_input_tensors, backend
        self.profile_args = ProfileArgs(
            supply_type, ref_prog, supply_prog, rtol, atol, max_mismatched_ratio, skip_check,
            manual_check_prog,
        )  # fmt: skip
        return self

    @hide_internal_frames
    def run(
        self,
        warmup: int = 25,
        rep: int = 100,
        timeout: float = 180,
        use_pipeline: bool = False,
        enable_grouped_compile: bool = False,
        group_compile_size: int = 2,
        benchmark_devices: Sequence[int] | None = None,
        benchmark_multi_gpu: bool = False,
        early_stop: bool = False,
        early_stop_factor: float = 2.0,
        executor: Executor | None = None,
        num_workers: int | None = None,
        inputs: Sequence[Any] | None = None,
    ) -> AutotuneResult:
        """Find the quickest configuration.

        Programs are compiled in other processes, and measured in one of them, one at a time. What fails
        to compile, ends its process, takes too long or returns something wrong is left out, with a
        warning in the log `tvmtile.autotuner`.

        Parameters
        ----------
        warmup, rep : int
            Calls before measuring, and measured ones.
        timeout : float
            Seconds that a configuration may take to compile, and again to be measured.
        use_pipeline : bool
            Measure while others are still being compiled, which disturbs the times of a CPU.
        enable_grouped_compile, group_compile_size, benchmark_devices, benchmark_multi_gpu
            Accepted with a warning: configurations are compiled and measured singly.
        early_stop : bool
            Do not measure well what takes longer than the best by `early_stop_factor`.
        early_stop_factor : float
            1 at least.
        executor : Executor, optional
            Where programs are compiled: any of `concurrent.futures`, or of a cluster.
        num_workers : int, optional
            How many processes compile where there is no executor; one a processor where absent.
        inputs : sequence, optional
            Arguments to measure with, where there is no `set_autotune_inputs` around the call.

        Raises
        ------
        TuningFailed
            If no configuration is left; the message says what was wrong with each.
        ArgumentError
            If inputs can't be made up.
        """
        if early_stop and early_stop_factor < 1:
            raise InvalidValue(
                f"early_stop_factor={early_stop_factor}", help="give 1 or more: 2 is twice the best"
            )
        del group_compile_size, benchmark_devices
        warn_ignored(
            "AutoTuner.run",
            enable_grouped_compile=enable_grouped_compile, benchmark_multi_gpu=benchmark_multi_gpu,
        )  # fmt: skip
        warn_without_effect(self.compile_args.pass_configs or {})
        inputs_of = InputsOf(self.profile_args, list(inputs) if inputs is not None else None)
        target = self._target(inputs_of.given or ())
        limits = Limits(timeout, warmup, rep, early_stop_factor if early_stop else None)
        configs = self._configurations(target)
        search = Search(configs, lambda config: self.request(config, target), inputs_of, limits)
        key = self._key(search, configs, inputs_of, limits)
        known = kept(key, configs) if key is not None else None
        if known is not None:
            search.trials, ref_latency = known
        else:
            search.run(executor, num_workers, use_pipeline)
            ref_latency = self._reference_latency(search, inputs_of, limits)
            if key is not None and search.best is not None:
                keep(key, search.trials, ref_latency)
        return self._result(search, target, ref_latency, known is not None)

    __call__ = run

    def request(self, config: Configuration, target: TargetLike) -> Request:
        """The program of a configuration, and how it is compiled."""
        values = {name: value for name, value in config.items() if name != PASS_CONFIGS}
        make = self.fn.get_tir if isinstance(self.fn, JitFunction) else self.fn
        program = make(*self.args, **{**self.kwargs, **values})
        if not isinstance(program, tirx.PrimFunc):
            raise InvalidOperand(
                f"the function to tune returned a {type(program).__name__}, not a kernel",
                help="return a function decorated with @T.prim_func",
            )
        args = self.compile_args
        options = {**(args.pass_configs or {}), **(config.get(PASS_CONFIGS) or {})}
        return Request.of(program, args.out_idx, target, args.execution_backend, options)

    def _target(self, inputs: Sequence[object]) -> Any:
        """The target asked for, or the device of the inputs, or the best one of this machine."""
        if self.compile_args.target not in (None, "auto"):
            return self.compile_args.target
        return chosen_target() or target_of(inputs) or best_target()

    def _configurations(self, target: TargetLike) -> list[Configuration]:
        parameters = self._parameters()
        if self.configs != AUTO:
            return expanded(self.configs, parameters, self.args, self.kwargs)
        from tvmtile import carver

        free = [name for name in list(parameters)[len(self.args) :] if name not in self.kwargs]
        return carver.proposals(
            lambda config: self.request(dict(config), target).func, free, carver.get_arch(target)
        )

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        function = self.fn.func if isinstance(self.fn, JitFunction) else self.fn
        return inspect.signature(function).parameters

    def _key(
        self,
        search: Search,
        configs: Sequence[Configuration],
        inputs_of: InputsOf,
        limits: Limits,
    ) -> str | None:
        """The name under which the times are kept; None where the first program can't be made."""
        first = search.traced(search.trials[0])
        if first is None:
            return None
        calls = [limits.n_warmup, limits.n_repeat, limits.slower]
        return key_of_tuning(first, configs, inputs_of.given, self.profile_args, calls)

    def _reference_latency(
        self, search: Search, inputs_of: InputsOf, limits: Limits
    ) -> float | None:
        if search.best is None:
            return None
        inputs = inputs_of(search.requests[search.best.index])
        return inputs.reference_latency(limits.n_warmup, limits.n_repeat)

    def _result(
        self, search: Search, target: TargetLike, ref_latency: float | None, is_from_cache: bool
    ) -> AutotuneResult:
        best = search.best
        if best is None:
            raise _failure(self.fn, search.trials)
        request = search.requests.get(best.index) or self.request(best.config, target)
        compiled = search.compiled.get(best.index)
        if compiled is not None:
            adopt_compiled(request, compiled)
        kernel = request.kernel(request.artifact())
        kernel.latency, kernel.config, kernel.ref_latency = best.latency, best.config, ref_latency
        return AutotuneResult(
            best.latency, best.config, ref_latency, kernel, request.func,
            tuple(search.trials), is_from_cache,
        )  # fmt: skip


_SHOWN = 10


def _failure(fn: Callable[..., object], trials: Sequence[Trial]) -> TuningFailed:
    lines = [f"  {trial}" for trial in trials[:_SHOWN]]
    if len(trials) > _SHOWN:
        lines.append(f"  and {len(trials) - _SHOWN} more")
    return TuningFailed(
        "\n".join(
            [f"{getattr(fn, '__name__', 'the kernel')}: no configuration can be used", *lines]
        ),
        help="compile one of them with tvmtile.compile, or call it, to see the whole of its error",
    )
