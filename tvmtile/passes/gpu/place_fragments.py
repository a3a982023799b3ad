"""PlaceFragments: a fragment becomes an array of each thread's registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, walk
from tvmtile.codegen.metal import element_of, set_element
from tvmtile.errors import VerifyError, warn
from tvmtile.ir.kernels import Launch, is_kernel, with_body
from tvmtile.ir.operands import bits_of, describe
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import mentions, substitute
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.scopes import SIMDGROUP_SCOPE, is_fragment
from tvmtile.ir.spans import location_of
from tvmtile.ir.threads import MOST_REGISTERS, WARP_SIZE
from tvmtile.layout.fragment import FragmentLayout, layout_of


@prim_func_pass(
    "PlaceFragments",
    requires=(Property.FRAGMENT_LAYOUTS, Property.NO_PARALLEL),
    establishes=(Property.NO_FRAGMENTS,),
)
def PlaceFragments(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace fragments by arrays of registers, and indices of elements by numbers of registers.

    Each thread accesses elements that it holds (InferLayout and DistributeParallel see to that), and as
    a rule the number of a register does not depend on the thread then. Elements of simdgroup
    matrices are read and written through `thread_elements()`. A fragment of more registers than a
    thread can have is one in memory: that warns.
    """
    return with_body(func, _Place().rewrite(func.body))


class _Place(ScopedRewriter):
    def __init__(self) -> None:
        super().__init__()
        self._launch: Launch | None = None
        self._arrays: dict[ir.Var, ir.Var] = {}
        self._layouts: dict[ir.Var, FragmentLayout] = {}

    def rewrite(self, node: Any) -> Any:
        body = self._places(node)
        return substitute(body, dict(self._arrays))

    def _places(self, node: tirx.Stmt) -> tirx.Stmt:
        walk(node, (tirx.AllocBuffer, self._note), order="pre")
        return super().rewrite(node)

    def _note(self, alloc: tirx.AllocBuffer) -> None:
        fragment = alloc.buffer
        if not is_fragment(fragment):
            return
        layout = layout_of(fragment)
        if layout is None:
            return  # matrices that a product has for itself
        taken = layout.registers * bits_of(fragment) // 32
        if taken > MOST_REGISTERS:
            warn(
                f"{describe(fragment)} takes {taken} registers of each thread, which has at most "
                f"{MOST_REGISTERS}: it will lie in memory, which is slow; make it smaller, or give "
                "T.Kernel more threads",
                location_of(alloc),
            )
        in_matrices = fragment.ty.storage_scope == SIMDGROUP_SCOPE
        self._layouts[fragment] = layout
        self._arrays[fragment] = tirx.decl_buffer(
            (layout.registers * (WARP_SIZE if in_matrices else 1),),
            str(fragment.ty.dtype),
            name=fragment.name,
            scope=SIMDGROUP_SCOPE if in_matrices else "local",
        )

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        if is_kernel(loop):
            self._launch = Launch(loop)
        return super().visit_for(loop)

    def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
        if node.buffer not in self._arrays:
            return self.descend(node)
        array = self._arrays[node.buffer]
        value = self.mutate(node.value)
        register = self._register(node.buffer, node.indices)
        if array.ty.storage_scope == SIMDGROUP_SCOPE:
            return set_element(array, register, value)
        return tirx.BufferStore(array, value, [register], span=node.span)

    def visit_load(self, node: ir.TensorLoad) -> ir.Expr:
        if buffer_of(node) not in self._arrays:
            return self.descend(node)
        array = self._arrays[buffer_of(node)]
        register = self._register(buffer_of(node), node.indices)
        if array.ty.storage_scope == SIMDGROUP_SCOPE:
            return element_of(array, register)
        return tirx.BufferLoad(array, [register])

    def _register(self, fragment: ir.Var, indices: Sequence[ir.Expr]) -> ir.Expr:
        indices = [self.mutate(index) for index in indices]
        layout = self._layouts[fragment]
        if self._launch is None:
            raise VerifyError(f"{describe(fragment)} is used outside of a kernel")
        register = self.analyzer.simplify(layout.register_of(indices))
        if type(register) is tirx.IntImm:
            return register
        threads = [loop.loop_var for loop in self._launch.threads]
        if not any(mentions(register, thread) for thread in threads):
            return register
        bounds = self.analyzer.const_int_bound
        first = {t: tirx.const(bounds(t).min_value, "int32") for t in threads}  # of those that come
        in_first = self.analyzer.simplify(substitute(register, first))
        # A thread may look for what all of them hold in a register that depends on the thread.
        return in_first if self.analyzer.can_prove_equal(register, in_first) else register
