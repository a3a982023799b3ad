"""Products that go on in the background: `T.wgmma_gemm`, and `T.wait_wgmma`, which waits for them."""

from __future__ import annotations

from tvm import tirx

from tvmtile.errors import InvalidOperand
from tvmtile.frontend.emit import check_operand, emit
from tvmtile.ir.asynchronous import WGMMA, signal, wait
from tvmtile.ir.operators import ValueOp, tile_operator
from tvmtile.ir.types import Index, TileOperand, Value
from tvmtile.tileop.gemm import GemmWarpPolicy, gemm
from tvmtile.tileop.registry import LoweringContext, lowering


def wgmma_gemm(
    A: TileOperand,
    B: TileOperand,
    C: TileOperand,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: GemmWarpPolicy = GemmWarpPolicy.Square,
    clear_accum: Value = False,
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


def wait_wgmma(n: Index = 0) -> None:
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
    _wait_for_all_but(n, "T.wait_wgmma: n")


def warpgroup_wait(num_mma: Index) -> None:
    """Wait for products, but for the `num_mma` latest ones: `T.wait_wgmma` by CUDA's name.

    Raises
    ------
    InvalidOperand
        If it is not an integer of at least 0.
    """
    _wait_for_all_but(num_mma, "T.warpgroup_wait: num_mma")


def _wait_for_all_but(count: Index, what: str) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise InvalidOperand(f"{what}={count!r}", help="give an integer of at least 0")
    emit(WaitWgmma(count))


def warpgroup_commit_batch() -> None:
    """End a batch of products that `T.warpgroup_wait` counts.

    `T.wgmma_gemm` ends one of its own: behind it the batch that this ends is empty, and counts.
    """
    emit(CommitWgmma())


def warpgroup_arrive() -> None:
    """Begin products behind what was done to their operands: each product does so by itself."""


def warpgroup_fence_operand(buffer: TileOperand, *_: object, **__: object) -> None:
    """Keep what uses the registers of a sum behind the wait for it: the compiler does so by itself.

    Parameters
    ----------
    buffer : buffer, region or element
        The sum. What TileLang takes besides says which of its registers.

    Raises
    ------
    InvalidOperand
        If it is no tile.
    """
    check_operand("warpgroup_fence_operand", "buffer", buffer)


@tile_operator
class CommitWgmma(ValueOp):
    """End a batch of products of the threads."""

    name = "commit_wgmma"
    is_tile = True


@tile_operator
class WaitWgmma(ValueOp):
    """Wait for products of the threads, but for the latest ones."""

    name = "wait_wgmma"
    is_tile = True

    behind: int = 0


@lowering(CommitWgmma, target="cuda", variant="commit_group")
def _(_op: CommitWgmma, _context: LoweringContext) -> tirx.Stmt:
    """Products end batches of their own: this one is empty."""
    return signal(WGMMA.name)


@lowering(WaitWgmma, target="cuda", variant="wait_group")
def _(op: WaitWgmma, _: LoweringContext) -> tirx.Stmt:
    """Products are batches, each of one."""
    return wait(WGMMA.name, op.behind)


@lowering(WaitWgmma, target=("llvm", "metal"), variant="complete")
@lowering(CommitWgmma, target=("llvm", "metal"), variant="complete")
def _(_op: WaitWgmma | CommitWgmma, _context: LoweringContext) -> tirx.Stmt:
    """Nothing goes on in the background."""
    return tirx.Evaluate(tirx.const(0, "int32"))
