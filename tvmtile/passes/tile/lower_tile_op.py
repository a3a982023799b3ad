"""LowerTileOp: replace tile operators by the statements that implement them."""

from __future__ import annotations

from collections.abc import Collection

from tvm import ir, tirx
from tvm.target import Target

from tvmtile._tvm import buffer_of, indices_of, mapped
from tvmtile.errors import VerifyError
from tvmtile.ir.asynchronous import token_of_region
from tvmtile.ir.kernels import (
    Launch,
    importing_llvm,
    is_kernel,
    target_of,
    with_body,
    with_launch_body,
)
from tvmtile.ir.operators import TileOp, operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import retyped, seq, substitute
from tvmtile.ir.spans import location_of
from tvmtile.ir.threads import GroupRewriter
from tvmtile.passes.memory.shared_layouts import SharedTiles
from tvmtile.tileop.registry import LoweringContext, implementation_of
from tvmtile.tileop.selection import emit


class TileOperators(GroupRewriter):
    """Base of rewriters of the tile operators of a function, each with its context."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target
        self._kernel: tirx.For | None = None
        self._tiles: SharedTiles | None = None
        self._token: str | None = None
        self.imports: list[str] = []
        self.alignments: dict[ir.Var, int] = {}
        self.setup: list[tirx.Stmt] = []
        self.teardown: list[tirx.Stmt] = []

    def enter_loop(self, loop: tirx.For) -> None:
        """Note the kernel."""
        if is_kernel(loop):
            self._kernel, self._tiles = loop, None
        super().enter_loop(loop)

    def visit_evaluate(self, node: tirx.Evaluate) -> tirx.Stmt:
        """Rewrite a tile operator."""
        op = operator_of(node)
        if op is None or not op.is_tile:
            return self.descend(node)
        context = LoweringContext(
            self._target,
            self.analyzer,
            location_of(node.value),
            self.imports,
            alignments=self.alignments,
            setup=self.setup,
            teardown=self.teardown,
            launch=self.launch,
            group=self.group,
            token=self._token,
            why_plain=self._why_plain,
        )
        return self.rewritten(op, context, node)

    def _why_plain(self, tile: ir.Var, panels: Collection[int]) -> str | None:
        """The reason why a shared tile does not lie as an implementation wants it."""
        if self._kernel is None:
            return None
        self._tiles = self._tiles or SharedTiles.of(self._kernel, self._target)
        return self._tiles.why_plain(tile, panels)

    def rewritten(self, op: TileOp, context: LoweringContext, node: tirx.Evaluate) -> tirx.Stmt:
        """The statement in place of an operator."""
        raise NotImplementedError


class _LowerTiles(TileOperators):
    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        if not is_kernel(loop):
            return super().visit_for(loop)
        self.alignments, self.setup, self.teardown = {}, [], []
        kernel = self.descend_loop(loop)
        if self.setup or self.teardown:
            body = seq([*self.setup, Launch(kernel).body, *self.teardown])
            kernel = with_launch_body(kernel, body)
        return substitute(
            kernel,
            {
                tile: retyped(tile, data_alignment=max(alignment, int(tile.ty.data_alignment)))
                for tile, alignment in self.alignments.items()
            },
        )

    def visit_attribute(self, node: tirx.AttrStmt) -> tirx.Stmt:
        """Statements whose asynchronous work is waited for elsewhere."""
        token = token_of_region(node)
        if token is None or not self._issues(node.body):
            return super().visit_attribute(node)
        self._token = token
        issued = self.mutate(node.body)
        self._token = None
        return issued

    def _issues(self, stmt: tirx.Stmt) -> bool:
        """Tell whether the implementation of an operator issues the work itself."""
        op = operator_of(stmt)
        chosen = implementation_of(op, str(self._target.kind.name)) if op is not None else None
        return chosen is not None and chosen.work is not None

    def rewritten(self, op: TileOp, context: LoweringContext, node: tirx.Evaluate) -> tirx.Stmt:
        chosen = implementation_of(op, context.kind)
        if chosen is None:
            raise VerifyError(
                f"{op.name}: no implementation is chosen",
                help="run SelectImplementation before this pass",
                location=context.location,
            )
        return _at_line_of(node.value, emit(chosen, op, context))


def _at_line_of(call: ir.Call, stmt: tirx.Stmt) -> tirx.Stmt:
    """The statement that implements an operator, with the user's line for later passes."""
    if call.span is None:
        return stmt

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        if node.span is not None:
            return node
        return tirx.BufferStore(buffer_of(node), node.value, indices_of(node), span=call.span)

    return mapped(stmt, (tirx.BufferStore, store))


@prim_func_pass(
    "LowerTileOp",
    requires=(Property.REGIONS, Property.IMPLEMENTATIONS),
    establishes=(Property.NO_TILE_OPERATORS,),
)
def LowerTileOp(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace each tile operator by the statement of its implementation.

    SelectImplementation has chosen that, unless the target implements an operator in one way only.
    Afterwards a program holds loops, loads, stores and element operators only.
    """
    lowerer = _LowerTiles(target_of(func))
    body = lowerer.rewrite(func.body)
    return with_body(func, importing_llvm(body, lowerer.imports))
