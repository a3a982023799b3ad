"""Progress of tuning for a user: a bar where a terminal looks on, lines in the log."""

from __future__ import annotations

import io
import logging

import pytest

from tvmtile.autotuner.search import logger, watched


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_bar_counts_where_a_terminal_looks_on(monkeypatch, is_terminal):
    seen_by = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", seen_by)
    with watched(iter("abc"), 3, "compiling") as items:
        assert list(items) == ["a", "b", "c"]
    shown = seen_by.getvalue()
    assert ("compiling:" in shown, "/3" in shown) == (is_terminal, is_terminal)
    assert not shown.split("\r")[-1].strip()  # it leaves the line as it was


def test_a_line_of_the_log_does_not_break_the_bar(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    handler = logging.StreamHandler(terminal)
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    with watched(range(2), 2, "measuring") as items:
        for item in items:
            logger.warning("configuration %d is left out", item)
    lines = [part for line in terminal.getvalue().split("\n") for part in [line.split("\r")[-1]]]
    assert {"configuration 0 is left out", "configuration 1 is left out"} <= set(lines)
