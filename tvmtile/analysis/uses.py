"""What an expression or a statement of a thread does to memory, in its order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, indices_of, is_buffer_var, nodes_in
from tvmtile.analysis.collector import Collector, mbarriers_of
from tvmtile.analysis.conflicts.expressions import bits, strides
from tvmtile.ir.asynchronous import Issue, Product, issued, product_of
from tvmtile.ir.calls import op_name, takes_address
from tvmtile.ir.nodes import cached_per_node
from tvmtile.ir.operands import origin_of
from tvmtile.ir.operators import TileOp


@dataclass(frozen=True, eq=False)
class Use:
    """One place of the program where memory is read or written.

    Attributes
    ----------
    buffer : Var
        As the program names it: it may be a view.
    indices : tuple of Expr, or None
        The element, one index an axis of `buffer`, or a single one that counts its elements in the
        order of memory; None where any element may be meant.
    block : tuple of (int, Expr)
        Extents and strides, in elements, of what lies around that element and is accessed with it.
    writes, is_atomic : bool
        How.
    is_collective : bool
        The threads of a simdgroup do it together: any of them may touch any of the elements.
    is_gathered : bool
        Each of these threads names some of the elements; otherwise all name the same ones.
    token : str or None
        Of an access that goes on until a wait: what is written arrives there, what is read may be
        written then.
    completes_on : TensorLoad or None
        Of what arrives when a phase of an mbarrier is over: which one.
    is_opaque : bool
        A function that is called with an address does it.
    conditions : tuple of Expr
        What holds in a statement where it does that.
    ranks : tuple of Expr, or None
        The blocks of the cluster whose memory it is; None: the block's own.
    """

    buffer: ir.Var
    indices: tuple[ir.Expr, ...] | None
    block: tuple[tuple[int, ir.Expr], ...]
    writes: bool
    is_atomic: bool
    is_collective: bool
    is_gathered: bool
    token: str | None
    completes_on: ir.TensorLoad | None
    is_opaque: bool
    conditions: tuple[ir.Expr, ...]
    ranks: tuple[ir.Expr, ...] | None


@dataclass(frozen=True)
class _Role:
    """What a function does with an address that it is given."""

    reads: bool = False
    writes: bool = False
    matrix: bool = False
    """An 8x8 matrix, whose rows are as far apart as the fourth argument says, by a simdgroup."""
    row: bool = False
    """A row of 16 bytes; the addresses of all threads of a simdgroup are those of a few matrices."""
    copied: bool = False
    """As many bytes as the third argument says, asynchronously."""
    tile: tuple[int, int] | None = None
    """Rows and columns, by a group of threads, asynchronously."""

    @property
    def names_elements(self) -> bool:
        """The address is that of a known number of elements."""
        return self.matrix or self.row or self.copied or self.tile is not None

    @property
    def is_collective(self) -> bool:
        """The threads of a simdgroup do it together."""
        return self.matrix or self.row or self.tile is not None

    @property
    def is_asynchronous(self) -> bool:
        """It goes on until a wait."""
        return self.copied or self.tile is not None


_UNKNOWN = (_Role(reads=True, writes=True),)
_COPY = (_Role(writes=True, copied=True), _Role(reads=True, copied=True))
# By function: the role of each argument, the last one that of those after it too.
_FUNCTIONS = {
    "tirx.simdgroup_load": (_Role(reads=True, matrix=True),),
    "tirx.simdgroup_store": (_Role(writes=True, matrix=True),),
    "tirx.ptx.ldmatrix": (_Role(reads=True, row=True),),
    "tirx.ptx.stmatrix": (_Role(writes=True, row=True),),
}
# An address in another form.
_CONVERSIONS = ("tirx.cuda.cvta_generic_to_shared",)
_MATRIX_EXTENT = 8
_ROW = 16  # bytes


@cached_per_node  # of most statements several passes ask
def uses_in(node: ir.Node) -> list[Use]:
    """The uses of buffers of any scope in an expression or a statement, in their order."""
    return _UseCollector().of(node)


class _UseCollector(Collector):
    def __init__(self) -> None:
        super().__init__()
        self._role = _UNKNOWN[0]
        self._arguments: tuple[Any, ...] = ()  # of the function that an address is handed to
        self._token: str | None = None  # of the copy that it is handed to
        self._found: list[Use] = []

    def of(self, node: ir.Node) -> list[Use]:
        declarations = (tirx.AllocBuffer, tirx.DeclBuffer)
        self.visit(node, (declarations, lambda declaration, _: declaration))
        return self._found

    def _note(
        self,
        buffer: ir.Var,
        indices: Iterable[ir.Expr] | None,
        *,
        writes: bool,
        is_atomic: bool = False,
        is_opaque: bool = False,
        operator: TileOp | None = None,
    ) -> None:
        token = self._token if is_opaque and self._role.is_asynchronous else None
        block = self._block(buffer) if is_opaque else ()
        completes_on = ranks = None
        if operator is not None:
            token, completes_on = operator.token(), operator.completes_on()
            ranks = operator.ranks() if writes else None
            block = _box(buffer, operator.touched())
        self._found.append(
            Use(
                buffer,
                None if indices is None else tuple(indices),
                block,
                writes,
                is_atomic,
                is_opaque and self._role.is_collective,
                is_opaque and self._role.row,
                token,
                completes_on,
                is_opaque,
                self.conditions,
                None if ranks is None else tuple(ranks),
            )
        )

    def on_store(self, store: tirx.BufferStore) -> None:
        self._note(buffer_of(store), indices_of(store)[:], writes=True)

    def on_load(self, load: ir.TensorLoad) -> None:
        self._note(buffer_of(load), indices_of(load)[:], writes=False)

    def on_call(self, call: ir.Call, mutator: Mutator) -> None:
        name, copy, product = op_name(call), issued(call), product_of(call)
        if product is not None:
            self._product(product, mutator)
        elif copy is not None:
            self._copy(copy, mutator)
        elif takes_address(call):
            self._address(call.args[0], mutator)
        elif name in _CONVERSIONS:
            mutator.default_mutate(call)
        elif name == "tirx.tvm_access_ptr":
            self._pointer(call)
        else:
            self._function_call(call.args[:], _FUNCTIONS.get(name, _UNKNOWN), mutator)

    def on_operator(self, op: TileOp, call: ir.Call, mutator: Mutator) -> None:
        super().on_operator(op, call, mutator)
        for mbarrier in mbarriers_of(op):
            self._note(buffer_of(mbarrier), indices_of(mbarrier), writes=False, is_atomic=True)
        for operands, writes in ((op.reads(), False), (op.writes(), True)):
            for operand in operands:
                whole = op.is_tile or not isinstance(operand, ir.TensorLoad)
                self._note(
                    buffer_of(operand),
                    None if whole else origin_of(operand),
                    writes=writes,
                    is_atomic=op.is_atomic,
                    operator=op,
                )

    # Addresses ---------------------------------------------------------------------------------

    def _copy(self, copy: Issue, mutator: Mutator) -> None:
        outer, self._token = self._token, copy.token
        self._function_call(copy.operands, _COPY, mutator)
        self._token = outer

    def _product(self, product: Product, mutator: Mutator) -> None:
        self._note(buffer_of(product.sums), indices_of(product.sums), writes=True)
        mutator.mutate(product.sums)
        if not takes_address(product.a):
            mutator.mutate(product.a)
        outer = self._role, self._token
        self._token = product.token
        for address, rows, columns in product.matrices:
            self._role = _Role(reads=True, tile=(rows, columns))
            mutator.mutate(address)
        self._role, self._token = outer

    def _function_call(
        self, arguments: Iterable[ir.Expr], roles: tuple[_Role, ...], mutator: Mutator
    ) -> None:
        outer = self._role, self._arguments
        self._arguments = tuple(arguments)
        for number, argument in enumerate(self._arguments):
            self._role = roles[min(number, len(roles) - 1)]
            if is_buffer_var(argument):
                self._passed(argument, None)
            else:
                mutator.mutate(argument)
        self._role, self._arguments = outer

    def _block(self, buffer: ir.Var) -> tuple[tuple[int, Any], ...]:
        """What lies around the element at an address and is accessed with it."""
        one = tirx.const(1, "int32")
        if self._role.matrix:
            return (_MATRIX_EXTENT, self._arguments[3]), (_MATRIX_EXTENT, one)
        if self._role.tile is not None:
            *_, along_column, along_row = strides(buffer)
            rows, columns = self._role.tile
            return (rows, along_column), (columns, along_row)
        if not self._role.names_elements:
            return ()
        size = _ROW if self._role.row else int(self._arguments[2])
        return ((-(-size * 8 // bits(buffer)), one),)

    def _address(self, load: ir.Expr, mutator: Mutator) -> None:
        if not isinstance(load, ir.TensorLoad):
            mutator.mutate(load)
            return
        for index in indices_of(load):
            mutator.mutate(index)
        self._passed(buffer_of(load), indices_of(load) if self._role.names_elements else None)

    def _pointer(self, call: ir.Call) -> None:
        offset = (call.args[2],) if self._role.names_elements else None

        for buffer in filter(is_buffer_var, nodes_in(call.args[1], ir.Var)):
            self._passed(buffer, offset)

    def _passed(self, buffer: ir.Var, indices: Iterable[ir.Expr] | None) -> None:
        if self._role.reads:
            self._note(buffer, indices, writes=False, is_opaque=True)
        if self._role.writes:
            self._note(buffer, indices, writes=True, is_opaque=True)


def _box(buffer: ir.Var, extents: Sequence[int]) -> tuple[tuple[int, Any], ...]:
    """The extents and strides of a box along the last axes of a buffer, without leading units."""
    steps = strides(buffer)[len(buffer.ty.shape) - len(extents) :]
    axes = list(zip(extents, steps, strict=True))
    first = next((axis for axis, extent in enumerate(extents) if extent > 1), len(axes))
    return tuple(axes[first:])
