"""A plugin of pytest: writes what each test does as it ends, so that a process may be killed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

_LOG = Path(os.environ["MUTATION_LOG"])


def _write(**facts: object) -> None:
    with _LOG.open("a", encoding="utf-8") as log:
        log.write(json.dumps(facts) + "\n")


def _message(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr).strip()
    return text.partition("\n")[0][:120]


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(begins=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _write(failed=report.nodeid, message=_message(report))
    _write(took=report.nodeid, seconds=report.duration)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(failed=report.nodeid, message=_message(report))


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        _write(collected=[item.nodeid for item in session.items])
