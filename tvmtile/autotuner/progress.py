"""What a user sees of tuning: a bar in a terminal, and in the log a line a configuration."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tvmtile.autotuner.result import Trial

_Item = TypeVar("_Item")

logger = logging.getLogger("tvmtile.autotuner")
"""A configuration's time is information, one that is left out a warning."""


def report(trial: Trial, count: int) -> None:
    """Write the line of a configuration."""
    measured = trial.latency is not None
    logger.log(
        logging.INFO if measured else logging.WARNING, "%d/%d %s", trial.index + 1, count, trial
    )


@contextmanager
def watched(items: Iterable[_Item], total: int, what: str) -> Iterator[Iterable[_Item]]:
    """The items, with a bar that counts them where a terminal looks on."""
    if not sys.stderr.isatty():
        yield items
        return
    from tqdm import tqdm
    from tqdm.contrib.logging import logging_redirect_tqdm

    with logging_redirect_tqdm(), tqdm(items, what, total, leave=False) as bar:
        seen: Any = bar
        yield seen
