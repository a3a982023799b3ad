"""Products that go on in the background: `T.wgmma_gemm`, and `T.wait_wgmma`, which waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvmtile.errors import InvalidOperand
from tvmtile.frontend.emit import emit
from tvmtile.ir.asynchronous import WGMMA, wait
from tvmtile.ir.operators import ValueOp, tile_operator
from tvmtile.tileop.gemm import GemmWarpPolicy, gemm
from tvmtile.tileop.registry import LoweringContext, lowering

__all__ = ["WaitWgmma", "wait_wgmma", "wgmma_gemm"]


def wgmma_gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: GemmWarpPolicy = GemmWarpPolicy.Square,
    clear_accum: bool = False,
) -> None:
    """`C += A @ B`, which may go on until `T.wait_wgmma`.

    Parameters
    ----------
    A, B, C, transpose_A, transpose_B, policy, clear_accum
        As of `T.gemm`.

    Notes
    -----
    Until then nothing else may touch `C`, nor write `A` or `B`: the compiler refuses what overwrites a
    tile in shared memory, and CUDA's emulator reports a register of `C`. Where `wgmma` does not do the
    product, it is complete when the next statement begins.
    """
    gemm(A, B, C, transpose_A, transpose_B, policy, clear_accum, wg_wait=-1)


def wait_wgmma(n: Any = 0) -> None:
    """Wait for products that go on in the background, but for the `n` latest ones.

    Parameters
    ----------
    n : int
        At least 0.

    Raises
    ------
    InvalidOperand
        If it is not an integer of at least 0.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise InvalidOperand(f"T.wait_wgmma: n={n!r}", help="n is an integer of at least 0")
    emit(WaitWgmma(n))


@tile_operator
@dataclass(frozen=True, eq=False)
class WaitWgmma(ValueOp):
    """Wait for products of the threads, but for the latest ones."""

    name = "wait_wgmma"
    options = ("behind",)
    is_tile = True

    behind: int = 0


@lowering(WaitWgmma, target="cuda", variant="wait_group")
def _(op: WaitWgmma, _: LoweringContext) -> tirx.Stmt:
    """Products are batches, each of one."""
    return wait(WGMMA.name, op.behind)


@lowering(WaitWgmma, target=("llvm", "metal"), variant="complete")
def _(_op: WaitWgmma, _context: LoweringContext) -> tirx.Stmt:
    """Nothing goes on in the background."""
    return tirx.Evaluate(tirx.const(0, "int32"))
