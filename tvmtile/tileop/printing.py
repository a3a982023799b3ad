"""`T.print`: show a value or a tile while the kernel runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, is_buffer_var, ranges_of
from tvmtile.codegen import cuda, metal
from tvmtile.compat.ignored import warn_ignored
from tvmtile.frontend.emit import emit
from tvmtile.frontend.kernel import current_kernel
from tvmtile.frontend.values import as_expr
from tvmtile.ir.combiners import accumulator_dtype, has_bit_operations
from tvmtile.ir.operands import check_bounds, constant, describe, dtype_of
from tvmtile.ir.operators import TileOp, ValueOp, tile_operator
from tvmtile.ir.rewriting import nest, seq
from tvmtile.ir.types import Index
from tvmtile.tileop.elementwise import converted, element, moving_axes, over_region
from tvmtile.tileop.registry import LoweringContext, lowering

SHOW_VALUE, SHOW_TILE = "tvmtile.show_value", "tvmtile.show_tile"
"""Names of the functions that a kernel on the CPU calls to print, registered with TVM."""


def print(obj: Any = None, msg: str = "", warp_group_id: int = 0, warp_id: int = 0) -> None:
    """Print a value, a text or a whole tile from inside a kernel.

    Parameters
    ----------
    obj : Expr, number, str, buffer or region, optional
        A value may stand in T.Parallel; one that depends on the thread is printed by each, anything
        else once a block. Floats narrower than 32 bits are shown in float32.
    msg : str
        A text to print first.
    warp_group_id, warp_id : int
        Accepted with a warning.

    Notes
    -----
    One line begins with the block's index: `[block 0, 1] msg: acc[2, 2] float16 = ...`. On a CPU the
    text goes to Python's `sys.stdout` at once; the order between blocks is not fixed. On Metal it goes
    to the log of kernels (`os_log`, of Metal 3.2; a program has to switch it on, and torch does not),
    each element of a tile as a line of its own; the emulator writes the log to standard output. On
    CUDA such lines go to the standard output of the process when the GPU is waited for.
    """
    warn_ignored("T.print", warp_group_id=warp_group_id or None, warp_id=warp_id or None)
    kernel = current_kernel()
    blocks: list[Any] = list(kernel.blocks) if kernel is not None else []
    x, y, z = [*blocks, *[tirx.const(-1, "int32")] * (3 - len(blocks))]
    if is_buffer_var(obj) or isinstance(obj, ir.TensorRegion):
        emit(PrintTile(obj, x, y, z, msg), "print")
    elif obj is None or isinstance(obj, str):
        text = ": ".join(part for part in (msg, obj) if part)
        emit(Print(tirx.const(0, "int32"), x, y, z, text))
    else:
        value = as_expr(obj)
        emit(Print(value, x, y, z, msg, _label(value)))


def _label(value: ir.Expr) -> str:
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return "value"
    return str(value).strip().splitlines()[-1]


@tile_operator
class Print(ValueOp):
    """Print a message and, where there is a label, a value; -1 stands for an axis the grid has not."""

    name = "print"
    by = "block"

    value: ir.Expr
    block_x: ir.Expr
    block_y: ir.Expr
    block_z: ir.Expr
    msg: str = ""
    label: str = ""


@tile_operator
class PrintTile(TileOp):
    """Print a message and a tile."""

    name = "print_tile"
    inputs = ("src",)

    src: ir.TensorRegion
    block_x: ir.Expr
    block_y: ir.Expr
    block_z: ir.Expr
    msg: str = ""

    def check(self) -> None:
        check_bounds(self.name, self.src)


def _shown_dtype(dtype: str) -> str:
    """The numpy dtype in which elements are passed to Python."""
    return accumulator_dtype(dtype, dtype)


@lowering(Print, target="llvm", variant="packed")
def print_packed(op: Print, _: LoweringContext) -> tirx.Stmt:
    """Call `show_value`."""
    dtype = str(op.value.ty.dtype)
    value = converted(op.value, _shown_dtype(dtype))
    block = (op.block_x, op.block_y, op.block_z)
    return tirx.Evaluate(tirx.call_packed(SHOW_VALUE, op.msg, op.label, dtype, value, *block))


@lowering(PrintTile, target="llvm", variant="packed")
def print_tile_packed(op: PrintTile, _: LoweringContext) -> tirx.Stmt:
    """Copy the tile, which need not be contiguous, and call `show_tile` with a pointer to the copy."""
    dtype = _shown_dtype(dtype_of(op.src))
    extents = [r.extent for r in ranges_of(op.src)]
    shown = tirx.decl_buffer(extents, dtype, name="shown", scope="local")

    def body(offsets: list[Index]) -> tirx.Stmt:
        load = tirx.BufferLoad(buffer_of(op.src), element(op.src, offsets))
        return tirx.BufferStore(shown, converted(load, dtype), offsets)

    first = tirx.address_of(tirx.BufferLoad(shown, [0] * len(extents)))
    block = (op.block_x, op.block_y, op.block_z)
    call = tirx.call_packed(SHOW_TILE, op.msg, describe(op.src), dtype, first, *block, *extents)
    return seq([tirx.AllocBuffer(shown), over_region(op.src, body), tirx.Evaluate(call)])


@lowering(Print, target=("metal", "cuda"), variant="log")
def print_log(op: Print, context: LoweringContext) -> tirx.Stmt:
    """Write a line to the log of kernels, or to the host's standard output."""
    log = _LOGS[context.target.kind.name]
    block = (op.block_x, op.block_y, op.block_z)
    return log.line(op.msg, block, op.label, [], op.value if op.label else None)


@lowering(PrintTile, target=("metal", "cuda"), variant="log")
def print_tile_log(op: PrintTile, context: LoweringContext) -> tirx.Stmt:
    """Each thread writes a line for every element that it has."""
    log = _LOGS[context.target.kind.name]
    block = (op.block_x, op.block_y, op.block_z)

    def body(offsets: list[Index]) -> tirx.Stmt:
        indices = element(op.src, offsets)
        load = tirx.BufferLoad(buffer_of(op.src), indices)
        return log.line(op.msg, block, buffer_of(op.src).name, indices, load)

    if moving_axes(op.src):
        return over_region(op.src, body)
    return nest([1], lambda _: body([0] * len(ranges_of(op.src))))


@dataclass(frozen=True)
class _Log:
    """A function that takes a format and values, as C's printf does."""

    function: str
    """Its name."""
    formats: dict[str, str]
    """How a value of each dtype that it takes is written."""
    end: str = ""
    """The end of a line."""

    def line(
        self,
        msg: str,
        block: Sequence[Any],
        label: str,
        indices: Sequence[Index],
        value: Any,
    ) -> tirx.Stmt:
        """Write a line: the block's index, the message, and the value if there is one."""
        axes = [axis for axis in block if constant(axis) != -1]
        places = f"{label}[{', '.join(['%d'] * len(indices))}]" if indices else _escaped(label)
        shown: list[Any] = [*axes, *indices]
        text = f"{places} = " if value is not None else ""
        if value is not None:
            dtype = self._dtype(str(value.ty.dtype))
            text += self.formats[dtype]
            shown.append(converted(value, dtype))
        line = ": ".join(part for part in (_escaped(msg), text) if part)
        template = f"[block {', '.join(['%d'] * len(axes))}] {line}{self.end}"
        return tirx.Evaluate(
            tirx.call_extern("void", self.function, ir.StringImm(template), *shown)
        )

    def _dtype(self, dtype: str) -> str:
        """The dtype in which a value is handed to the function."""
        return dtype if dtype in self.formats else _logged_dtype(dtype)


_SHORT = {"float32": "%.9g", "int32": "%d", "uint32": "%u"}
_LOGS = {
    "metal": _Log(metal.LOG, {**_SHORT, "int64": "%ld", "uint64": "%lu"}),
    "cuda": _Log(
        cuda.LOG, {**_SHORT, "float64": "%.17g", "int64": "%lld", "uint64": "%llu"}, end="\\n"
    ),
}


def _logged_dtype(dtype: str) -> str:
    """The dtype in which a value is handed to the log."""
    if not has_bit_operations(dtype):
        return "float32"
    wide = "64" if dtype.endswith("64") else "32"
    return f"uint{wide}" if dtype.startswith("uint") else f"int{wide}"


def _escaped(text: str) -> str:
    """A text as it stands in a format of C."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return text.replace("%", "%%")
