"""`T.set_max_nreg`: registers move between the warpgroups of a block."""

from __future__ import annotations

from tvm import tirx

from tvmtile.errors import InvalidOperand
from tvmtile.frontend.emit import emit
from tvmtile.instructions.ptx import ptx
from tvmtile.ir.annotations import LAUNCH_BOUNDS_BLOCKS
from tvmtile.ir.operators import ValueOp, tile_operator
from tvmtile.tileop.registry import LoweringContext, lowering, needs, no_code

_COUNTS = range(24, 257, 8)
"""PTX ISA, "Miscellaneous Instructions: setmaxnreg"."""


def set_max_nreg(reg_count: int, is_inc: int | bool) -> None:
    """Set how many registers a thread of this warpgroup may use, on NVIDIA's Hopper.

    Parameters
    ----------
    reg_count : int
        24 to 256, a multiple of 8.
    is_inc : bool
        True: not fewer than now; wait until others have given as many back. False: not more.

    Notes
    -----
    All warps of a warpgroup come here: `with T.ws(0): T.set_max_nreg(240, 1)`. Other targets have
    nothing to do.

    Raises
    ------
    InvalidOperand
        If there is no such count.
    """
    if isinstance(reg_count, bool) or reg_count not in _COUNTS:
        raise InvalidOperand(
            f"T.set_max_nreg: reg_count={reg_count!r}",
            help=f"give a multiple of {_COUNTS.step} from {_COUNTS.start} to {_COUNTS[-1]}",
        )
    emit(SetMaxRegisters(reg_count, bool(is_inc)))


def inc_max_nreg(reg_count: int) -> None:
    """The same as `T.set_max_nreg(reg_count, True)`."""
    set_max_nreg(reg_count, True)


def dec_max_nreg(reg_count: int) -> None:
    """The same as `T.set_max_nreg(reg_count, False)`."""
    set_max_nreg(reg_count, False)


@tile_operator
class SetMaxRegisters(ValueOp):
    """Set how many registers a thread of a warpgroup may use."""

    name = "set_max_registers"
    role = "registers"

    count: int = 0
    more: bool = False


# The registers of a thread are fixed.
lowering(SetMaxRegisters, target=("llvm", "metal", "cuda"), variant="none")(no_code)


_moves_registers = needs(
    lambda gpu: gpu.has_warpgroup_products,
    "the registers of a thread are fixed when a block begins",
)


@lowering(SetMaxRegisters, target="cuda", variant="setmaxnreg", priority=10, fits=_moves_registers)
def _(op: SetMaxRegisters, context: LoweringContext) -> tirx.Stmt:
    """One instruction. It needs a launch whose registers are known: one that says how many blocks."""
    context.attributes.setdefault(LAUNCH_BOUNDS_BLOCKS, tirx.const(1, "int32"))
    name = f"setmaxnreg.{'inc' if op.more else 'dec'}.sync.aligned.u32"
    return tirx.Evaluate(ptx(name)(op.count))
