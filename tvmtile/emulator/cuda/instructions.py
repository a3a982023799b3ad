"""PTX instructions that the emulator knows: one row an instruction.

A row is an instruction's name and the C++ call that does what it means. In the call, `{0}`, `{1}`, ...
are the operands as they stand in the text, those in braces together as an array; `{line}` is where the
kernel asks for it. The C++ calls functions of the headers in `include`, or of the runtime: those that
its sources define in the namespace `ptx`. An instruction that no row has is an error that names it.
"""

from __future__ import annotations

from tvmtile.emulator.cuda.arithmetic import arithmetic_rows
from tvmtile.emulator.cuda.asynchronous import asynchronous_rows
from tvmtile.emulator.cuda.matrices import matrix_rows
from tvmtile.emulator.cuda.row import Instruction
from tvmtile.emulator.cuda.tensor_cores import tensor_core_rows

__all__ = ["ROWS", "Instruction", "find"]


ROWS: tuple[Instruction, ...] = (
    *matrix_rows(),
    *asynchronous_rows(),
    *tensor_core_rows(),
    *arithmetic_rows(),
)
"""All instructions, each with a number of operands once."""
_BY_NAME = {(row.name, row.operands): row for row in ROWS}
if len(_BY_NAME) != len(ROWS):
    raise ValueError("two rows are for the same instruction")


def find(name: str, operands: int) -> Instruction | None:
    """The row of an instruction with so many groups of operands."""
    return _BY_NAME.get((name, operands))
