"""Options of a kernel: what its author asks of the compiler, by annotations of its outermost loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tvm import ir, tirx

from tvmtile.errors import InvalidValue
from tvmtile.ir.annotations import OPTIONS_ANNOTATION
from tvmtile.ir.kernels import is_kernel
from tvmtile.ir.rewriting import replace_loop, statements_in


@dataclass(frozen=True)
class KernelOptions:
    """The options of a kernel; None where it does not say and the compiler decides.

    They change no result, but for `source`, whose functions the kernel calls. None names a buffer:
    rewriting would leave it in an annotation as it was. So layouts and values outside are operators.
    """

    panel_size: int | None = None
    """Blocks across a panel, in which the blocks of the grid are visited."""
    panel_order: str = "row"
    """The axis along which a panel runs: "row", "column", or "strip", all panels in one direction."""
    specialize_warps: bool | None = None
    """Whether warps of their own copy the tiles of pipelined loops."""
    persistent: bool | None = None
    """Whether as many blocks as run at once loop over the blocks of the grid."""
    blocks_per_multiprocessor: int | None = None
    """How many blocks must fit on a multiprocessor at once."""
    fixed_registers: bool = False
    """Whether each thread keeps the registers that it begins with."""
    source: str = ""
    """Text in the target's language that stands before the kernel."""


def options_of(kernel: tirx.For) -> KernelOptions:
    """The options in the annotation of a kernel's outermost loop.

    Raises
    ------
    InvalidValue
        If it names another one.
    """
    given = kernel.annotations.get(OPTIONS_ANNOTATION, {})
    names = {item.name for item in fields(KernelOptions)}
    unknown = sorted(given.keys() - names)
    if unknown:
        raise InvalidValue(
            f"a kernel has no option {unknown[0]!r}",
            help=f"its options are {', '.join(sorted(names))}",
        )
    return KernelOptions(**{name: _plain(value) for name, value in given.items()})


def _plain(value: Any) -> Any:
    """A number as Python has it; TVMScript reads those in annotations as constants of the IR."""
    if isinstance(value, tirx.IntImm):
        return bool(value) if str(value.ty.dtype) == "bool" else int(value)
    return value.value if isinstance(value, ir.StringImm) else value


def with_options(kernel: tirx.For, options: Mapping[str, object]) -> tirx.For:
    """A kernel whose options are these, by the names of `KernelOptions`' attributes."""
    annotations = {k: v for k, v in kernel.annotations.items() if k != OPTIONS_ANNOTATION}
    if options:
        annotations[OPTIONS_ANNOTATION] = dict(options)
    return replace_loop(kernel, annotations=annotations)


def without_panels(kernel: tirx.For) -> tirx.For:
    """A kernel whose blocks are visited by their numbers."""
    given = kernel.annotations.get(OPTIONS_ANNOTATION, {})
    others = {k: v for k, v in given.items() if k not in ("panel_size", "panel_order")}
    return with_options(kernel, others)


def sources_in(func: tirx.PrimFunc) -> list[str]:
    """The texts that stand before the kernels of a function, each once."""
    kernels = filter(is_kernel, statements_in(func.body, tirx.For))
    return list(dict.fromkeys(filter(None, (options_of(kernel).source for kernel in kernels))))
