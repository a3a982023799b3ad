"""Commands of `python -m tvmtile`: on the kernels of a file, and about the installation."""

from __future__ import annotations

import importlib.metadata
import platform
import runpy
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tvm import tirx

from tvmtile.errors import InvalidValue, TileError

__all__ = ["check", "info", "lower", "profile", "programs_of", "source"]

_PACKAGES = ("tvmtile", "apache-tvm", "apache-tvm-ffi", "torch", "numpy")


def programs_of(place: str) -> list[tuple[str, tirx.PrimFunc]]:
    """The tile programs that the names of a file have once it was run, with these names.

    Parameters
    ----------
    place : str
        A path, or a path and a name: `kernels.py:matmul`.

    Raises
    ------
    InvalidValue
        If there is none, or no such file; the message says what functions would have to be called.
    """
    from tvmtile.ir.kernels import is_tile_program

    path, _, wanted = place.partition(".py:")
    file = Path(f"{path}.py" if wanted else place)
    if not file.is_file():
        raise InvalidValue(
            f"there is no file {file}", help="give a path, or path.py:name of a kernel"
        )
    sys.path.insert(0, str(file.parent))
    try:
        names = runpy.run_path(str(file), run_name="tvmtile_command")
    finally:
        sys.path.pop(0)
    found = [(name, value) for name, value in names.items() if is_tile_program(value)]
    chosen = [item for item in found if wanted in ("", item[0])]
    if not chosen:
        eager = [
            name
            for name, value in names.items()
            if hasattr(value, "get_tir") and wanted in ("", name)
        ]
        help = (
            f"{eager[0]} has no shapes before it is called: name a program of it in the file, "
            f"`program = {eager[0]}.get_tir(...)` with tensors or with its extents by keyword"
            if eager
            else "a T.prim_func must have a name in it, as `matmul = make_matmul(128)` gives to what a "
            f"function returns; it has {', '.join(name for name, _ in found) or 'none'}"
        )
        raise InvalidValue(f"{file} has no tile program{f' {wanted}' if wanted else ''}", help=help)
    return chosen


def lower(given: Namespace) -> None:
    """Print programs after the passes, after one of them, or what each has changed."""
    from tvmtile.jit.lowering_view import LoweringView, lowering_steps
    from tvmtile.target import resolve

    target = resolve(given.target[-1])
    for _, program in programs_of(given.file):
        steps = lowering_steps(program, target, {})
        if given.diff:
            LoweringView(program, steps, given.after or "").show()
            continue
        wanted = [mod for step, mod in steps if given.after is None or given.after in step]
        if not wanted:
            raise InvalidValue(
                f"there is no pass {given.after!r}",
                help=f"the passes are {', '.join(dict(steps))}",
            )
        print(wanted[-1].script())


def source(given: Namespace) -> None:
    """Print the code that is generated for programs."""
    for _, program in programs_of(given.file):
        print(_compiled(program, given.target[-1]).get_kernel_source(given.kernel_only))


def check(given: Namespace) -> None:
    """Compile programs for targets, and say of each whether it can be; exit with 1 where one can't."""
    failed = 0
    for name, program in programs_of(given.file):
        for target in given.target:
            try:
                kernel = _compiled(program, target)
                if kernel.target.kind.name == "cuda":
                    _ = kernel.cubin
            except TileError as error:
                failed += 1
                print(f"{name} {target}: {type(error).__name__}: {error}")
            else:
                print(f"{name} {target}: ok")
    if failed:
        sys.exit(1)


def profile(given: Namespace) -> None:
    """Measure programs, and print what they do beside what the device can."""
    sizes = dict(given.extent)
    for _, program in programs_of(given.file):
        kernel = _compiled(program, given.target[-1], given.emulate)
        print(
            kernel.profile(*kernel.get_profiler().inputs(sizes) if kernel.adapter.can_run else ())
        )


def _compiled(program: tirx.PrimFunc, target: Any, emulated: bool = False) -> Any:
    from tvmtile.jit.backends import EMULATOR, mps_is_available
    from tvmtile.jit.compiler import compile as compile_program
    from tvmtile.target import resolve

    metal = resolve(target).kind.name == "metal" and not mps_is_available()
    return compile_program(
        program, target=target, execution_backend=EMULATOR if emulated or metal else "auto"
    )


def info(given: Namespace) -> None:
    """Print versions, the machine, the targets, and the operators with what implements them."""
    del given
    print("\n".join(_facts()))


def _facts() -> Iterator[str]:
    from tvmtile.cache import cache_directory
    from tvmtile.jit.inspection import implementations
    from tvmtile.target import HOW_WRITTEN, host_target
    from tvmtile.target.devices import auto_infer_current_arch

    yield f"python {platform.python_version()} on {platform.platform()}"
    for package in _PACKAGES:
        try:
            yield f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"{package} is not installed"
    device = auto_infer_current_arch()
    yield f"device {device.name}, {device.compute_max_core} cores"
    yield f"host {host_target()}"
    yield f"targets {HOW_WRITTEN}"
    yield f"cache {cache_directory() or 'none'}"
    yield "operators"
    for name, found in implementations().items():
        yield f"  {name:20} {' '.join(found)}".rstrip()
