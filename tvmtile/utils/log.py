"""How much the package says in its log."""

from __future__ import annotations

import logging


def set_log_level(level: int | str) -> None:
    """Set the level of the log `tvmtile`, in which the autotuner writes.

    Parameters
    ----------
    level : int or str
        As of Python's `logging`: "INFO" has a line for each configuration that is measured.
    """
    logging.getLogger("tvmtile").setLevel(level.upper() if isinstance(level, str) else level)
