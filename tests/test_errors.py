"""How exceptions are made, carried and shown; the messages themselves are in tests/messages."""

from __future__ import annotations

import importlib
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx

import tvmtile
import tvmtile.language as T
from tests.kernels import scaling
from tvmtile import errors
from tvmtile.errors import (
    MissingDependency,
    ShapeMismatch,
    SourceLocation,
    TileError,
    TileWarning,
    hide_internal_frames,
    import_optional,
    reason_of,
    warn,
)

SUBCLASSES = [
    getattr(errors, name)
    for name in errors.__all__
    if isinstance(getattr(errors, name), type) and issubclass(getattr(errors, name), TileError)
]


@pytest.mark.parametrize("kind", SUBCLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("remedy", [None, "what to do"])
@pytest.mark.parametrize("file", ["kernel.py", __file__], ids=["absent", "there"])
def test_error_is_shown_whole_and_crosses_cpp_as_it_is(kind, remedy, file):
    error = kind("what\n  is wrong", help=remedy, location=SourceLocation(file, 3))
    shown = "".join(traceback.format_exception_only(error))
    assert shown == f"{kind.__module__}.{kind.__name__}: {error}\n"
    if file == "kernel.py" and remedy:
        assert shown.endswith("wrong\n  --> kernel.py:3\n  help: what to do\n")

    def fail(_):
        raise error

    with pytest.raises(kind) as caught:  # in a callback of TVM's
        tvm_ffi.structural_map(tirx.Evaluate(tirx.Var("x", "int32")), (tirx.Var, fail))
    arrived = caught.value
    assert type(arrived) is kind
    for part in ("message", "help", "location", "__str__"):
        ours, theirs = getattr(arrived, part), getattr(error, part)
        assert (ours() if callable(ours) else ours) == (theirs() if callable(theirs) else theirs)


@pytest.mark.parametrize(
    "end", [KeyboardInterrupt(), SystemExit(), SystemExit(3), SystemExit(-1), SystemExit("bye")]
)
def test_what_ends_the_process_is_no_failure_of_a_pass(end):
    """Ctrl-C while a pass runs, or a signal's handler that calls `sys.exit`."""

    @tirx.transform.prim_func_pass(opt_level=0)
    def interrupted(_func, _mod, _context):
        raise end

    func = tirx.PrimFunc([], tirx.Evaluate(0))
    with pytest.raises(type(end)) as caught:
        interrupted(tvm.IRModule({"main": func}))
    if isinstance(end, SystemExit):
        assert caught.value.code == end.code


def test_what_tvm_adds_to_an_error_of_a_pass_is_left_out():
    shown = "wrong\n  --> kernel.py:3\n  help: do this"
    error = TileError(
        f"{shown}\n\nError in pass: tvmtile.NormalizeOperands\nLocation (TVMScript):\n..."
    )
    assert str(error) == shown
    assert (error.help, error.location) == ("do this", SourceLocation("kernel.py", 3))


def test_error_without_a_location_points_at_the_line_that_raises_it():
    line = sys._getframe().f_lineno + 1
    assert TileError("wrong").location == SourceLocation(__file__, line)


@hide_internal_frames
def fail_in_tvm():
    tirx.Var("x", "no_dtype")


def test_defects_keep_their_frames():
    with pytest.raises(Exception, match="no_dtype") as caught:
        fail_in_tvm()
    assert [entry.name for entry in caught.traceback if entry.name == "fail_in_tvm"]
    assert len(traceback.extract_tb(caught.value.__traceback__)) > 3


def test_exceptions_of_the_user_keep_type_and_text_and_lose_our_frames():
    def body():
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught:

        @T.prim_func
        def kernel(A: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                body()

    assert caught.value.args == ("mine",)
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert [file for file in files if file != __file__] == [errors.__file__]


def test_assertion_of_the_user():
    with pytest.raises(AssertionError, match=r"\A4 is not 8\Z") as caught:

        @T.prim_func
        def kernel(A: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                assert A.shape[0] == 8, f"{A.shape[0]} is not 8"

    assert caught.traceback[-1].path == Path(__file__)


def test_warning_is_shown_once_for_a_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            warn("slow", SourceLocation(__file__, 1))
        warn("slow", SourceLocation(__file__, 2))
    assert [(w.category, w.lineno) for w in caught] == [(TileWarning, 1), (TileWarning, 2)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Check failed: (a && b(c)) is false: Expected integers", "Expected integers"),
        ("Check failed: x.size() == 0 (1 vs. 0) : In PrimFunc main", "In PrimFunc main"),
        ("TypeError: Incompatible types", "Incompatible types"),
        ("Check failed: (a) is false: ", "Check failed: (a) is false:"),
        (
            "LLVM verification failed with the following errors: \nInvalid types\n  %a",
            "LLVM verification failed with the following errors: Invalid types",
        ),
        ("plain\nmore", "plain"),
        ("", "ValueError"),
    ],
)
def test_reason_without_the_check_of_tvm(text, reason):
    assert reason_of(ValueError(text)) == reason


@pytest.fixture
def no_torch(monkeypatch):
    """Parts of it that others have imported are there, whichever tests ran before."""
    importlib.import_module("torch._dynamo")
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.full
@pytest.mark.parametrize(
    ("use", "purpose"),
    [
        (T.float16.as_torch, "T.float16.as_torch()"),
        (tvmtile.testing.set_random_seed, "tvmtile.testing"),
    ],
)
@pytest.mark.usefixtures("no_torch")
def test_missing_torch_is_named_with_what_installs_it(use, purpose):
    with pytest.raises(MissingDependency) as caught:
        use()
    assert caught.value.message == f"{purpose} needs torch, which is not installed"
    assert caught.value.help == 'pip install "torch>=2.7"'


@pytest.mark.usefixtures("no_torch")
def test_kernels_run_without_torch():
    a = np.arange(64, dtype="float32")
    assert tvmtile.compile(scaling(), out_idx=-1)(a).tolist() == (a * 2).tolist()


def test_a_package_that_lacks_something_itself_is_not_missing(monkeypatch, tmp_path):
    (tmp_path / "half_installed.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module") as caught:
        import_optional("half_installed", "test", "This test")
    assert not isinstance(caught.value, TileError)


def test_errors_are_what_python_calls_them():
    """So that `except ValueError` and the like go on to work."""
    with pytest.raises(ValueError, match="disagree"):
        raise ShapeMismatch("A and B disagree")
    with pytest.raises(ImportError):
        raise MissingDependency("absent")
