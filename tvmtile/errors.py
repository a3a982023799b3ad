"""Errors, warnings, and how a mistake is shown.

Every exception derives from `TileError`. A message says what was expected and what came, names
the operands with their shapes and dtypes, points at the line of the user's kernel and ends with a
remedy:

```
ShapeMismatch: gemm: A and B disagree on K
  A: A_shared[128, 32] float16, so K = 32
  B: B_shared[64, 128] float16, so K = 64
  --> kernel.py:23
   |  T.gemm(A_shared, B_shared, C_local)
  help: give both operands the same K extent, or pass transpose_A/transpose_B
```
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.metadata
import linecache
import os
import re
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from tvm import ir
from tvm_ffi import register_error

__all__ = [
    "ArgumentError",
    "CudaCompileError",
    "CudaEmulationError",
    "DataRace",
    "EmulationError",
    "InvalidOperand",
    "InvalidValue",
    "LayoutConflict",
    "MetalCompileError",
    "MetalEmulationError",
    "MissingDependency",
    "NestingError",
    "NoLowering",
    "OutOfBounds",
    "OutOfSharedMemory",
    "ScopeError",
    "ShapeMismatch",
    "SourceLocation",
    "SyntaxNotSupported",
    "TileError",
    "TileWarning",
    "TuningFailed",
    "UndefinedName",
    "UnknownTarget",
    "UnsupportedDtype",
    "VerifyError",
    "import_optional",
    "user_location",
    "warn",
    "warnings_on_success",
]

# Frames of these files stand between a user's line and the place that raises. TVM's C++ frames
# appear in tracebacks too, some of them without a file.
_INTERNAL = (
    f"{Path(__file__).resolve().parent}{os.sep}",  # a neighbour's name may begin with ours
    ast.__file__,
    contextlib.__file__,
    functools.__file__,
    threading.__file__,
    f"{Path(threading.__file__).with_name('concurrent')}{os.sep}",
    "<tvmtile",
    "<unknown>",
    "<frozen",
)
_TVM = tuple(
    f"{Path(str(sys.modules[name].__file__)).parent}{os.sep}" for name in ("tvm", "tvm_ffi")
)


@dataclass(frozen=True)
class SourceLocation:
    """A line of the user's source, counted from 1, and the path of its file as Python knows it."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def text(self) -> str:
        """The source line without its indentation, or "" where the file can't be read."""
        return linecache.getline(self.file, self.line).strip()


def is_internal(filename: str) -> bool:
    """Tell whether a code object's file belongs to tvmtile, to TVM, or is no Python at all."""
    return filename.startswith(_INTERNAL) or is_tvm(filename)


def _is_internal_frame(frame: types.FrameType) -> bool:
    """Tell it of a frame; the `__init__` that Python writes for a dataclass of ours is ours."""
    filename = frame.f_code.co_filename
    written = filename == "<string>" and frame.f_code.co_name == "__init__"
    module = str(frame.f_globals.get("__name__"))
    return is_internal(filename) or (written and module.partition(".")[0] == "tvmtile")


def is_tvm(filename: str) -> bool:
    """Tell whether a frame's file belongs to TVM, or is not Python, as its C++ sources."""
    if not filename.endswith((".py", ">")) or filename == "<unknown>":
        return True
    return filename.startswith(_TVM)


def user_location() -> SourceLocation | None:
    """Find the innermost line on the call stack that the user wrote, or None where there is none."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _is_internal_frame(frame):
            return SourceLocation(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


_SHOWN = re.compile(
    r"(?P<message>.*?)\n  --> (?P<file>[^\n]*):(?P<line>\d+)"
    r"(\n   \|  [^\n]*)?(\n  help: (?P<help>.*))?",
    re.DOTALL,
)


def reason_of(error: Exception) -> str:
    """The first line of an exception's message, without the text of the check in TVM's C++ code.

    With the next one, where it announces that: `failed with the following errors:`.
    """
    line, *following = (str(error).strip() or type(error).__name__).splitlines()
    if line.rstrip().endswith("following errors:") and following:
        line = f"{line.rstrip()} {following[0].strip()}"
    stated = re.sub(
        r"^(\w+Error: )?(Check failed: (.* is false\s*:|.*?\(.*? vs\. .*?\)\s*:))?", "", line
    )
    return stated.strip() or line


class TileError(Exception):
    """The root of everything that tvmtile raises.

    Parameters
    ----------
    message : str
        What is wrong, in one line; further lines may list the operands.
    help : str, optional
        What to do about it.
    location : SourceLocation, optional
        The user's line. Where it is absent, the line that is being executed now.
    """

    def __init__(
        self, message: str, *, help: str | None = None, location: SourceLocation | None = None
    ) -> None:
        # TVM carries exceptions through its C++ frames as their text alone, and adds to it the program
        # that a pass was given.
        message = message.partition("\n\nError in pass: ")[0].rstrip("\n")
        if help is None and location is None and (shown := _SHOWN.fullmatch(message)):
            message, help = shown["message"], shown["help"]
            location = SourceLocation(shown["file"], int(shown["line"]))
        super().__init__(message)
        self.message = message
        self.help = help
        self.location = location if location is not None else user_location()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        register_error(cls.__name__, cls)

    def __str__(self) -> str:
        lines = [self.message]
        if self.location is not None:
            lines.append(f"  --> {self.location}")
            if self.location.text:
                lines.append(f"   |  {self.location.text}")
        if self.help:
            lines.append(f"  help: {self.help}")
        return "\n".join(lines)


register_error(TileError.__name__, TileError)  # its subclasses register themselves
# Out of a pass that TVM runs, tvm_ffi makes a RuntimeError of each kind that it does not know, which
# `except Exception` around a compilation would take for a failure of that.
register_error("KeyboardInterrupt", KeyboardInterrupt)


class _Exit(SystemExit):
    """The argument of `sys.exit`, of which a text has come through TVM."""

    def __init__(self, text: str) -> None:
        number = int(text) if text.removeprefix("-").isdecimal() else text
        super().__init__(None if text in ("", "None") else number)


register_error("SystemExit", SystemExit)  # its name, and how it is made again
register_error("SystemExit", _Exit)


class ShapeMismatch(TileError, ValueError):
    """Operands whose extents do not fit together."""


class UnsupportedDtype(TileError, TypeError):
    """A dtype that is not known, or that an operator has no rule for."""


class InvalidOperand(TileError, TypeError):
    """An operand of the wrong kind: not a buffer, the wrong scope, the wrong rank."""


class OutOfBounds(TileError, ValueError, IndexError):
    """A region or an index that certainly lies outside its buffer."""


class InvalidValue(TileError, ValueError):
    """A number that a dtype can't hold, or that an operation does not take."""


class NestingError(TileError, RuntimeError):
    """A construct in a place where it has no meaning, such as a tile operator in `T.Parallel`."""


class DataRace(TileError, RuntimeError):
    """Threads that use an element at the same time, where no barrier can stand between them."""


class ScopeError(TileError, NameError):
    """A name used outside the loop or branch that binds it, or carried from one iteration on."""


class UndefinedName(TileError, NameError):
    """A name that is not defined."""


class SyntaxNotSupported(TileError, SyntaxError):
    """Python that has no meaning in a kernel."""

    @property
    def msg(self) -> str:  # type: ignore[override]
        """The text that tracebacks show of a syntax error."""
        return str(self)


class UnknownTarget(TileError, ValueError):
    """A target that TVM or tvmtile does not know."""


class NoLowering(TileError):
    """No implementation of an operator fits the target and the operands."""


class LayoutConflict(TileError):
    """A fragment is used by two groups of threads, each of which would hold elements of its own."""


class OutOfSharedMemory(TileError):
    """Shared tiles that need more memory than a block of the target has."""


class ArgumentError(TileError, ValueError):
    """A call of a compiled kernel with arguments that do not fit its parameters."""


class TuningFailed(TileError, RuntimeError):
    """No configuration of a kernel can be compiled, gives the right result and ends in time."""


class MissingDependency(TileError, ImportError):
    """An optional package that is not installed."""


class CudaCompileError(TileError):
    """CUDA source that NVRTC refuses."""


class MetalCompileError(TileError):
    """Metal source that the emulator's C++ compiler refuses."""


class EmulationError(TileError):
    """A mistake that the emulator found in a kernel, where a GPU may hide it.

    Attributes
    ----------
    kind : str
        "race", "out_of_bounds", "uninitialized", "divergence", "misaligned", "shared_memory",
        "not_uniform", "invalid_lane", "read_only", "division", "stack", "endless", "deadlock", "trap",
        "unsupported" or "resources".
    kernel : str
        The kernel's name.
    buffer : str or None
        The buffer or shared variable that was accessed.
    index : int or None
        The element of it, counted in elements of its declared type.
    threads : tuple of (int, int, int)
        Positions in the block: the thread that did it, then the other one of a race.
    block : (int, int, int) or None
        The first thread's block.
    line : int or None
        The line of the source.
    """

    def __init__(
        self,
        message: str,
        *,
        help: str | None = None,
        location: SourceLocation | None = None,
        kind: str = "",
        kernel: str = "",
        buffer: str | None = None,
        index: int | None = None,
        threads: tuple[tuple[int, int, int], ...] = (),
        block: tuple[int, int, int] | None = None,
        line: int | None = None,
    ) -> None:
        super().__init__(message, help=help, location=location)
        self.kind = kind
        self.kernel = kernel
        self.buffer = buffer
        self.index = index
        self.threads = threads
        self.block = block
        self.line = line


class CudaEmulationError(EmulationError):
    """A mistake in a CUDA kernel."""


class MetalEmulationError(EmulationError):
    """A mistake in a Metal kernel; further kinds are "address_space" and "threadgroup_memory"."""

    @property
    def threadgroup(self) -> tuple[int, int, int] | None:
        """The first thread's threadgroup."""
        return self.block


class VerifyError(TileError):
    """An invariant between two passes that does not hold: a defect of tvmtile, not of the kernel."""


class TileWarning(UserWarning):
    """A program that is right, and slower or stranger than its author may think."""


# A filter may turn it into an error, which then passes through TVM's C++ frames as others do.
register_error(TileWarning.__name__, TileWarning)


Caught = tuple[str, SourceLocation | None]
"""A warning that was not issued yet, with the line that it points at."""

_SHOWN_WARNINGS: dict[Any, Any] = {}


def warn(message: str, location: SourceLocation | None = None) -> None:
    """Issue a `TileWarning` that points at the user's line; it is shown once for a line."""
    where = location if location is not None else user_location()
    held = _HELD_WARNINGS.get()
    if held is not None:
        held.append((message, where))
        return
    if where is None:
        warnings.warn(message, TileWarning, stacklevel=3)
        return
    warnings.warn_explicit(message, TileWarning, where.file, where.line, registry=_SHOWN_WARNINGS)


DIVISION_BY_ZERO = (
    "an integer is divided by 0",
    "where a divisor may be 0, choose: T.if_then_else(n != 0, x // n, 0)",
)
"""The problem, and the remedy."""


@contextmanager
def warnings_on_success() -> Iterator[list[Caught]]:
    """Issue the warnings of what runs in this context when it has ended without an exception.

    The context is the list of what it has to say so far.
    """
    held: list[Caught] = []
    token = _HELD_WARNINGS.set(held)
    try:
        yield held
    finally:
        _HELD_WARNINGS.reset(token)
    for message, where in held:
        warn(message, where)


_HELD_WARNINGS: ContextVar[list[Caught] | None] = ContextVar("tvmtile_held_warnings", default=None)


def import_optional(module: str, extra: str, purpose: str) -> Any:
    """Import a package that only `purpose`, the subject of a sentence, needs.

    Raises
    ------
    MissingDependency
        If it is not installed; the message names the command that installs the packages of `extra`.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # it is installed and lacks something itself
        raise MissingDependency(
            f"{purpose} needs {module}, which is not installed",
            help=f"pip install {packages_of(extra)}",
        ) from None


def packages_of(extra: str) -> str:
    """The packages of an extra, as pip takes them: tvmtile itself may be on no index."""
    requirements = importlib.metadata.requires("tvmtile") or []
    marker = re.compile(rf"extra == ['\"]{extra}['\"]")
    return " ".join(
        f'"{each.split(";")[0].strip()}"' for each in requirements if marker.search(each)
    )


def _without_internal_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    if traceback is None:
        return None
    rest = _without_internal_frames(traceback.tb_next)
    if _is_internal_frame(traceback.tb_frame):
        return rest
    return types.TracebackType(rest, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)


def _is_mistake(error: Exception) -> bool:
    """Tell what the user's code did wrong from a defect of tvmtile's, or of TVM's, own code."""
    if isinstance(error, TileError | TileWarning):
        return True
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and not _is_internal_frame(traceback.tb_frame)


def as_shown(error: Exception) -> Exception:
    """An exception without the frames that its reader can do nothing about."""
    if os.environ.get("TVM_BACKTRACE") == "1" or not _is_mistake(error):
        return error
    if isinstance(error, TileError):
        error.__cause__ = None
        error.__suppress_context__ = True
    return error.with_traceback(_without_internal_frames(error.__traceback__))


_Function = TypeVar("_Function", bound=Callable[..., Any])


def hide_internal_frames(function: _Function) -> _Function:
    """Decorate a public entry point so that a mistake shows the user's frames only.

    One frame of ours remains, since Python adds the one that raises; it bears the entry point's name.
    What Python raises in the user's own lines keeps its type and its text. An exception raised in our
    code, or in TVM's, is a defect and keeps all of its frames, as everything does where
    `TVM_BACKTRACE=1` is set in the environment.
    """

    def entry(*args: object, **kwargs: object) -> ir.Expr | None:
        __tracebackhide__ = True  # pytest and IPython leave out this frame as well
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - all are raised again
            mistake = as_shown(error)
        raise mistake

    entry.__code__ = entry.__code__.replace(co_name=function.__name__)
    return cast(_Function, functools.update_wrapper(entry, function))
