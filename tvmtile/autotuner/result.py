"""The result of tuning: each configuration with its time or with what went wrong."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvm import tirx

from tvmtile.autotuner.configurations import Configuration
from tvmtile.errors import import_optional
from tvmtile.jit.kernel import Kernel

__all__ = ["AutotuneResult", "Trial"]


@dataclass
class Trial:
    """A configuration, and what came of it.

    Attributes
    ----------
    index : int
        Its place among the configurations.
    config : dict
        The configuration.
    status : str
        "ok"; "stopped early" where it was clearly slower than the best one; "wrong result"; "not
        compiled", "timed out", "died" or "failed" where it could not be measured.
    latency : float or None
        Milliseconds a call, where it was measured.
    reason : str
        What went wrong.
    """

    index: int
    config: Configuration
    status: str = ""
    latency: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.config.items())
        if self.status == "ok":
            return f"{values}: {self.latency:.4g} ms"
        reason = self.reason.partition("\n")[0]
        return f"{values}: {self.status}" + (f": {reason}" if reason else "")


@dataclass(frozen=True)
class AutotuneResult:
    """The best configuration, and all others.

    Attributes
    ----------
    latency : float or None
        Milliseconds a call of the best one; None where the caller chose it.
    config : dict or None
        The best configuration.
    ref_latency : float or None
        Milliseconds that the reference takes, where there is one.
    kernel : Kernel
        The best one, compiled.
    func : tvm.tirx.PrimFunc
        Its program.
    trials : tuple of Trial
        All configurations, in order.
    is_from_cache : bool
        Whether another tuning found it.
    """

    latency: float | None
    config: Configuration | None
    ref_latency: float | None
    kernel: Kernel = field(repr=False)
    func: tirx.PrimFunc = field(repr=False)
    trials: Sequence[Trial] = field(default=(), repr=False)
    is_from_cache: bool = False

    @property
    def libcode(self) -> str:
        """The code of the best one."""
        return self.kernel.get_kernel_source()

    def save_to_disk(self, path: str | Path, verbose: bool = False) -> None:
        """Write it to a file, or in place of an older one; the kernel's program is in it, not its code.

        Parameters
        ----------
        path : str or Path
            The file; its directory is made.
        verbose : bool
            Accepted for TileLang's callers.
        """
        del verbose
        from tvmtile.autotuner.saved import save

        save(self, Path(path))

    @classmethod
    def load_from_disk(cls, path: str | Path, compile_args: object = None) -> AutotuneResult | None:
        """Read what `save_to_disk` has written, and compile the kernel or find it compiled.

        Parameters
        ----------
        path : str or Path
            The file.
        compile_args
            Accepted for TileLang's callers: the file says how the kernel is compiled.

        Returns
        -------
        AutotuneResult or None
            None where there is no such file.

        Raises
        ------
        InvalidValue
            If another version of tvmtile or TVM has written it, or it is something else.
        """
        del compile_args
        from tvmtile.autotuner.saved import load

        return load(Path(path))

    def table(self) -> Any:
        """All configurations, the quickest first, those without a time last.

        Returns
        -------
        pandas.DataFrame or list of dict
            A row has the configuration's values, `latency`, `status` and `reason`; it is a dict where
            pandas is not installed.
        """
        ordered = sorted(self.trials, key=_rank)
        rows = [
            {**t.config, "latency": t.latency, "status": t.status, "reason": t.reason}
            for t in ordered
        ]
        if importlib.util.find_spec("pandas") is None:
            return rows
        import pandas as pd

        return pd.DataFrame(rows)

    def plot(self, axes: Any = None) -> Any:
        """Draw the times of all configurations, the quickest first, and the reference's.

        Parameters
        ----------
        axes : matplotlib.axes.Axes, optional
            Where; a new figure where absent.

        Returns
        -------
        matplotlib.axes.Axes
            Where it was drawn.
        """
        if axes is None:
            axes = import_optional("matplotlib.pyplot", "plot", "result.plot()").subplots()[1]
        times = [t.latency for t in sorted(self.trials, key=_rank) if t.latency is not None]
        axes.plot(range(1, len(times) + 1), times, "o", label="configurations")
        if self.ref_latency is not None:
            axes.axhline(self.ref_latency, linestyle="--", label="reference")
        axes.set(xlabel="configurations, the quickest first", ylabel="ms a call", ylim=(0, None))
        axes.legend()
        return axes


def _rank(trial: Trial) -> tuple[bool, float, int]:
    return trial.latency is None, trial.latency or 0.0, trial.index
