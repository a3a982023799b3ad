"""Mistakes as people see them: in Python, and in a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.messages.table import Row, rows, write
from tvmtile import errors
from tvmtile.errors import TileError, TileWarning

ROWS = [row for file in sorted(Path(__file__).parent.glob("*.txt")) for row in rows(file)]


def own_frames(frames: list[tuple[str, str]], *users: str) -> list[str]:
    """The functions of a traceback, of (file, name), but for those in files of the user's."""
    return [name for file, name in frames if file not in users]


@dataclass
class Shown:
    """The output of a program: a text without places, the lines it points at, and an exception."""

    text: str
    lines: list[int]
    error: Exception | None


def run(file: Path) -> Shown:
    """Run a program, as its reader would in a notebook."""
    shown, lines, error = [], [], None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TileWarning)
        try:
            exec(compile(file.read_text(), file, "exec"), {"__name__": "program"})
        except Exception as raised:  # noqa: BLE001 - whatever it is
            error = raised
    for warning in caught:
        shown.append(f"TileWarning: {warning.message}".replace(str(file), "program.py"))
        lines.append(warning.lineno if warning.filename == str(file) else 0)
    if error is not None:
        text = f"{type(error).__name__}: {error}"
        text = text.replace(str(file), "program.py")
        shown.append(re.sub(r"\n  --> program.py:\d+\n   \|  .*", "", text))
        lines += [int(line) for line in re.findall(r"--> program.py:(\d+)", text)]
    return Shown("\n".join(shown), lines, error)


def pattern(text: str) -> str:
    """A message as a pattern; `...` stands for anything."""
    return re.escape(text).replace(re.escape("..."), "(.*)")


@pytest.mark.parametrize("row", [row for row in ROWS if row.targets("accepted", "")], ids=str)
def test_program_is_right_for_other_targets(row, tmp_path):
    file = tmp_path / "program.py"
    for target in row.targets("accepted"):
        file.write_text(row.program(target, checked=True))
        assert run(file) == Shown("", [], None)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_message(row, tmp_path, pytestconfig):
    for at, target in enumerate(row.targets()):
        file = tmp_path / f"{target}.py"
        expected = re.sub("^> ?", "", row.message, flags=re.MULTILINE).rstrip("\n")
        file.write_text(row.program(target, checked=row.file.stem == "right"))
        shown = run(file)
        wrong = not re.fullmatch(pattern(expected), shown.text)
        golden = pytestconfig.getoption("update_golden") and not row.shares
        if at == 0 and wrong and shown.text and golden:
            write(row, shown.text)
            row.message = expected = shown.text
        matched = re.fullmatch(pattern(expected), shown.text)
        assert matched, f"{file}:\n{shown.text}"
        assert not row.shares or all(part in row.code for part in matched.groups()), shown.text

        lines = file.read_text().splitlines()
        marked = [at for at, line in enumerate(lines, 1) if line.endswith("# <--")]
        assert sorted(shown.lines) == marked, f"{file}: {shown.lines}"
        if shown.error is None:
            continue
        assert isinstance(shown.error, TileError) == (shown.text.split(":")[0] in errors.__all__)
        if isinstance(shown.error, TileError) and marked:
            at = shown.lines[-1]
            place = f"  --> {file}:{at}\n   |  {lines[at - 1].strip()}"
            assert place in str(shown.error).split("\n  help: ")[0]
        stack = traceback.extract_tb(shown.error.__traceback__)
        own = own_frames([(frame.filename, frame.name) for frame in stack], str(file), __file__)
        assert (
            len(own) <= 1
        )  # Python adds the one that raises, by the name that the user has called
        assert re.fullmatch(r"(?!entry$)([a-z]\w*|__\w+__)?", "".join(own))
        assert shown.error.__suppress_context__ or shown.error.__context__ is None
        assert shown.error.__cause__ is None


ORIGINS = {
    "tracing": "gemm: T.gemm(A_shared, B_shared, C_local)",
    "tracing, a syntax error": "python: A[i] = math.sqrt(A[i])",
    "tracing, a warning": 'python: x = A[0]; print("x is", x)',
    "an option": 'calls: tvmtile.compile(double, target="cdua")',
    "a call": 'calls: tvmtile.compile(double)(np.zeros((64,), "float64"), np.zeros((64,), "float32"))',
    "a pass, through TVM": "nesting: A serial loop over a fragment of a product",
    "a pass, a warning": "warnings: An accumulator that is never cleared",
}
RUN_ALL = """\
import sys
from pathlib import Path

for file in sys.argv[1:]:
    print("===", file=sys.stderr)
    try:
        exec(compile(Path(file).read_text(), file, "exec"), {"__name__": "program"})
    except Exception:
        sys.excepthook(*sys.exc_info())
"""
FRAME = re.compile(r'^  File "([^"]*)", line \d+, in (.*)$', re.MULTILINE)


def of_origin(name: str, folder: Path) -> tuple[Row, Path]:
    """A row, and its program as a file."""
    (row,) = [row for row in ROWS if str(row) == ORIGINS[name]]
    file = folder / f"{name.replace(' ', '_').replace(',', '')}.py"
    file.write_text(row.program(row.targets()[0]))
    return row, file


def terminal(*files: Path) -> subprocess.CompletedProcess[str]:
    """The output of an interpreter that runs some files."""
    return subprocess.run(
        [sys.executable, *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )


def with_place(row: Row, file: Path) -> str:
    """The whole message of an error, or the whole warning, as a pattern."""
    lines = [line.removeprefix("> ") for line in row.message.splitlines()]
    source = file.read_text().splitlines()
    (at,) = [at for at, line in enumerate(source, 1) if line.endswith("# <--")]
    if lines[0].startswith("TileWarning"):
        return pattern(f"{file}:{at}: {lines[0]}\n  {source[at - 1].strip()}")
    end = next((i for i, line in enumerate(lines) if line.startswith("  help: ")), len(lines))
    lines[end:end] = [f"  --> {file}:{at}", f"   |  {source[at - 1].strip()}"]
    return r"(?:tvmtile\.errors\.)?" + pattern("\n".join(lines))


@pytest.mark.full
def test_message_of_a_script(tmp_path):
    driver = tmp_path / "driver.py"
    driver.write_text(RUN_ALL)
    rows_and_files = [of_origin(name, tmp_path) for name in ORIGINS]
    done = terminal(driver, *[file for _, file in rows_and_files])
    shown = done.stderr.split("===\n")[1:]
    for (row, file), text in zip(rows_and_files, shown, strict=True):
        assert re.search(rf"(?m)^{with_place(row, file)}\n\Z", text), text
        assert len(own_frames(FRAME.findall(text), str(file), str(driver))) <= 1, text
        assert text.count("Traceback (most recent call last):") == (
            "TileWarning" not in row.message
        )


@pytest.mark.full
def test_script_ends_with_an_error_of_a_pass(tmp_path):
    row, file = of_origin("a pass, through TVM", tmp_path)
    done = terminal(file)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(rf"(?m)^{with_place(row, file)}\n\Z", done.stderr)
    assert own_frames(FRAME.findall(done.stderr), str(file)) == ["compile"]


def test_backtrace_shows_all_frames(tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_BACKTRACE", "1")
    _, file = of_origin("tracing", tmp_path)
    frames = traceback.extract_tb(run(file).error.__traceback__)
    assert "trace_prim_func" in [frame.name for frame in frames]


@pytest.mark.parametrize(
    ("origin", "entry"), [("tracing, a warning", "prim_func"), ("a pass, a warning", "compile")]
)
def test_warning_that_is_an_error_keeps_its_type_and_loses_our_frames(origin, entry, tmp_path):
    row, file = of_origin(origin, tmp_path)
    with pytest.raises(TileWarning) as caught:
        exec(compile(file.read_text(), file, "exec"), {"__name__": "program"})
    assert f"> TileWarning: {caught.value}\n" == row.message
    frames = [frame for frame in caught.traceback if frame.path not in (file, Path(__file__))]
    assert [frame.name for frame in frames] == [entry]


def test_every_class_of_errors_is_in_the_table():
    elsewhere = {
        "EmulationError",  # of a kernel that runs, and its subclasses: tests/emulator
        "MetalCompileError",  # of Metal source by hand: tests/emulator/metal
        "MissingDependency",  # of the machine: tests/test_errors.py
        "TuningFailed",  # of a tuning: tests/autotuner
        "VerifyError",  # a defect of ours: tests/passes/checks/test_verify.py
    }
    shown = {name for row in ROWS for name in re.findall(r"^> (\w+): ", row.message, re.MULTILINE)}
    assert {each.__name__ for each in TileError.__subclasses__()} - shown == elsewhere
