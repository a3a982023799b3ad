"""What TVM refuses while it compiles a kernel, as errors that point at the kernel."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import tvm
from tvm import ir, tirx
from tvm.target import Target

from tvmtile._tvm import nodes_in
from tvmtile.errors import (
    ArgumentError,
    CudaCompileError,
    InvalidValue,
    MetalCompileError,
    NoLowering,
    SourceLocation,
    TileError,
    is_tvm,
    reason_of,
)
from tvmtile.ir.assumptions import failure_of, is_assumption
from tvmtile.ir.barriers import is_grid_barrier
from tvmtile.ir.conditions import conjuncts
from tvmtile.ir.kernels import MORE_BLOCKS_IN_X, TOO_MANY_BLOCKS, is_tile_program, kernels_of
from tvmtile.ir.spans import location_of

_OUR_LOWERING = tuple(
    str(Path(__file__).resolve().parent.parent / name)
    for name in ("analysis", "codegen", "ir", "layout", "passes", "tileop")
)
# These hand a module from pass to pass, or to TVM's code generator.
_PASS_RUNNERS = ("lower_tile_programs.py", "passes.py", "codegen/metal.py")


@contextmanager
def translate_failures(func: tirx.PrimFunc, target: Target) -> Iterator[None]:
    """Turn what TVM's own passes and code generators raise into an error at the kernel's line.

    An exception out of our passes, or of TVM called by them, is a defect of ours and stays what it is.

    Raises
    ------
    NoLowering
        With TVM's reason.
    """
    try:
        yield
    except (CudaCompileError, MetalCompileError) as error:
        error.location = _location(func) or error.location  # of the kernel, not of the call
        raise
    except Exception as error:
        if os.environ.get("TVM_BACKTRACE") == "1" or not _is_refusal(error):
            raise
        raise _refusal(error, func, target) from error


def _is_refusal(error: Exception) -> bool:
    """Tell whether TVM raised it, with no lowering of ours at work."""
    if isinstance(error, TileError):
        return False
    files = []
    traceback = error.__traceback__
    while traceback is not None:
        files.append(traceback.tb_frame.f_code.co_filename)
        traceback = traceback.tb_next
    lowering = [Path(f) for f in files if f.startswith(_OUR_LOWERING)]
    ours = [path for path in lowering if not any(map(path.match, _PASS_RUNNERS))]
    return not ours and is_tvm(files[-1])


def _refusal(error: Exception, func: tirx.PrimFunc, target: Target) -> TileError:
    location = _location(func)
    name = func.attrs.get("global_symbol", "main") if func.attrs is not None else "main"
    tag = _tag_bound_for_tvm(func)
    if target.kind.name == "llvm" and tag is not None:
        return NoLowering(
            f"{name}: {tag} is bound without T.Kernel, and a CPU has no threads that TVM could bind "
            "it to",
            help="write the launch as `with T.Kernel(blocks, threads=...) as bx:`, or its loops as "
            '`for bx in T.thread_binding(blocks, thread="blockIdx.x"):`',
            location=location,
        )
    return NoLowering(
        f"{name}: TVM can't compile this kernel for {target.kind.name}: {reason_of(error)}",
        help="set TVM_BACKTRACE=1 to see where in TVM",
        location=location,
    )


def _tag_bound_for_tvm(func: tirx.PrimFunc) -> str | None:
    """The outermost axis of a GPU's launch that a program without T.Kernel binds."""
    if is_tile_program(func):
        return None
    tag = None
    for node in nodes_in(func.body, (tirx.AttrStmt, tirx.For)):
        if isinstance(node, tirx.For):
            binding = node.thread_binding
        else:
            binding = node.node if node.attr_key == "thread_extent" else None
        if binding is not None:
            tag = str(binding.thread_tag)
    return tag


def _location(func: tirx.PrimFunc) -> SourceLocation | None:
    kernel = next(kernels_of(func), None)
    return None if kernel is None else location_of(kernel)


def failed_assumption(
    func: tirx.PrimFunc, error: Exception
) -> tuple[ir.Expr, SourceLocation | None] | None:
    """What a program assumes of its arguments, and where, that the host found not to hold."""
    said = str(error)
    assumptions = [each for each in nodes_in(func.body, tirx.Evaluate) if is_assumption(each)]
    for stmt in assumptions:
        for condition in conjuncts(stmt.value.args[0]):
            if failure_of(condition) in said:  # a cached kernel may name another line
                return condition, location_of(stmt.value)
    for stmt in assumptions:  # a comparison of floats is written in another way when it is lowered
        location = location_of(stmt.value)
        if location is not None and f"{location.file}:{location.line}" in said:
            return stmt.value.args[0], location
    return None


def launch_failure(func: tirx.PrimFunc, error: Exception) -> Exception:
    """Say what to do about a launch of more blocks than a GPU takes, or runs at once.

    Another error is returned as it is.
    """
    too_many = TOO_MANY_BLOCKS.search(str(error))
    if too_many is not None:
        return ArgumentError(too_many.group(), help=MORE_BLOCKS_IN_X, location=_location(func))
    if "COOPERATIVE_LAUNCH_TOO_LARGE" not in str(error):
        return error
    barriers = filter(is_grid_barrier, nodes_in(func.body, tirx.Evaluate))
    return InvalidValue(
        "T.sync_grid: all blocks of the grid wait for each other, and the GPU has no room to run "
        "all of them at once",
        help="launch fewer blocks, each of which does more of the work, or let a block use less shared "
        "memory and fewer threads",
        location=next((location_of(barrier.value) for barrier in barriers), None),
    )


_OWN_OPTIONS = ("tvmtile.verify", "tvmtile.check_indices")
"""What `pass_configs` takes besides TVM's options; Python can't register one with TVM."""


def known_options(options: Mapping[str, object]) -> dict[str, object]:
    """Options of TVM's passes, checked.

    Raises
    ------
    InvalidValue
        If there is no such option; the message offers the nearest one.
    """
    if not options:
        return {}
    known = [str(name) for name in tvm.transform.PassContext.list_configs()]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, [*_OWN_OPTIONS, *known], n=1)
            raise InvalidValue(
                f"there is no pass option {name!r}",
                help=f"did you mean {near[0]!r}?"
                if near
                else "tvm.transform.PassContext.list_configs() lists them",
            )
    return dict(options)
