"""Times of a script's kernels, printed so that two runs can be compared; TileLang's names.

```
def regression_gemm():
    tvmtile.testing.process_func(measure_gemm, M=1024)

if __name__ == "__main__":
    tvmtile.testing.regression()
```
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvmtile.errors import InvalidValue

_PREFIX = "regression_"
_TRIES = 5


@dataclass(frozen=True)
class PerfResult:
    """What a function measured."""

    name: str
    """The function's."""
    latency: float
    """What it returned, in its own unit."""
    case: str | None = None
    """The case of `regression` that called it."""


_results: list[PerfResult] = []
_case: str | None = None


def process_func(func: Callable[..., float], name: str | None = None, /, **kwargs: object) -> None:
    """Call a function that returns a time, and note it.

    Parameters
    ----------
    func : callable
        Returns a positive number; it is called again where a timer was too coarse for that.
    name : str, optional
        What the result is called; the function's module where absent.
    **kwargs
        What it is called with.

    Raises
    ------
    InvalidValue
        If it returns no positive number.
    """
    called = (func.__module__ if name is None else name).removeprefix(_PREFIX)
    for _ in range(_TRIES):
        latency = float(func(**kwargs))
        if latency > 0:
            _results.append(PerfResult(called, latency, _case))
            return
    raise InvalidValue(f"{called} returned a time of {latency}", help="return a positive number")


def regression(prefixes: Sequence[str] = (_PREFIX,), verbose: bool = True) -> list[PerfResult]:
    """Call the caller's functions by their prefix, in the order of their names, and print the times.

    Parameters
    ----------
    prefixes : sequence of str
        With which the names of the functions begin.
    verbose : bool
        Print which one is called.

    Returns
    -------
    list of PerfResult
        What they noted.
    """
    global _case
    names = sys._getframe(1).f_globals
    _results.clear()
    for name in sorted(n for n in names if n.startswith(tuple(prefixes)) and callable(names[n])):
        _case = name.removeprefix(_PREFIX)
        if verbose:
            sys.stderr.write(f"{_case}\n")
        try:
            names[name]()
        finally:
            _case = None
    for result in _results:
        sys.stdout.write(f"{result.name}: {result.latency}\n")
    return list(_results)
