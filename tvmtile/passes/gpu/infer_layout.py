"""InferLayout: decide which thread holds which element of a fragment."""

from __future__ import annotations

import math

import numpy as np
import tvm_ffi
from tvm import ir, tirx
from tvm.target import Target

from tvmtile._tvm import Mutator, buffer_of, mapped, mutated, nodes_in
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.effects import Effect
from tvmtile.analysis.nests import Nest, elements_of, sample
from tvmtile.errors import warn
from tvmtile.ir.kernels import Launch, is_parallel, target_of, with_kernels, without
from tvmtile.ir.operands import constant, describe
from tvmtile.ir.operators import TileOp, fixed_layouts, operator_of, with_fields
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import for_loop, replace_loop, retyped, seq, substitute
from tvmtile.ir.scopes import FRAGMENT_SCOPE, SHARED_SCOPE, is_fragment
from tvmtile.layout.drawing import drawn, first_difference
from tvmtile.layout.fragment import FragmentLayout
from tvmtile.passes.gpu.fragment_layouts import Conflict, Inference, Placed
from tvmtile.passes.gpu.share_fragments import copied_to_shared
from tvmtile.passes.tile.lower_tile_op import TileOperators
from tvmtile.passes.tile.select_implementation import with_implementation
from tvmtile.tileop.registry import Decline, LoweringContext


@prim_func_pass(
    "InferLayout",
    requires=(Property.IMPLEMENTATIONS, Property.PIPELINED),
    establishes=(Property.FRAGMENT_LAYOUTS,),
)
def InferLayout(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give the type of every fragment's buffer a layout, `tvm.tirx.layout.TileLayout`.

    The layout maps the element's indices to the number of the thread (`tx`) and of the register
    (`m`); `fragment_layouts` says how it is found. Shapes are padded to what the layout has places for.
    Products whose accumulators a statement needs together are shared out over warps in one way, where
    that helps, whatever their policies say. A fragment that a statement still needs in threads which do
    not hold it is staged, and a warning says so: a statement that only reads what a product sums
    up gets a copy in shared memory, and any other fragment lies there, in the scope `shared.dyn`.

    Raises
    ------
    LayoutConflict
        If two groups of threads use one fragment.
    """
    target = target_of(func)

    def infer(kernel: tirx.For) -> tirx.For:
        launch = Launch(kernel)
        return _with_layouts(kernel, LoweringContext(target, launch.analyzer(), launch=launch))

    return with_kernels(func, infer)


def _with_layouts(loop: tirx.For, context: LoweringContext) -> tirx.For:
    while True:
        fragments = [
            buffer_of(each)
            for each in nodes_in(loop, tirx.AllocBuffer)
            if is_fragment(buffer_of(each))
        ]
        views, others = _views(loop)
        inference = Inference(loop, context, fragments, views)
        viewed = [Conflict(fragment, None) for fragment in others]
        conflicts = viewed or inference.run()
        if not conflicts:
            new = {f: _laid_out(f, layout) for f, layout in inference.layouts.items()}
            return substitute(loop, new)
        first = next((c for c in conflicts if c.is_demanded), conflicts[0])
        products = [] if viewed else inference.products_around(first.fragment)
        alike = _shared_alike(loop, context, fragments, products, len(conflicts))
        loop = alike or _staged(loop, first, context.target)


def _shared_alike(
    loop: tirx.For,
    context: LoweringContext,
    fragments: list[ir.Var],
    products: list[tirx.Stmt],
    conflicts: int,
) -> tirx.For | None:
    """The kernel with some products shared out over warps in one way; None without fewer conflicts."""
    # The way that most of them have already comes first.
    ways = (_shared_in(loop, products, way) for way in range(2))
    for changed, alike in sorted(ways, key=lambda way: way[0]):
        try:
            inference = Inference(alike, context, fragments, _views(alike)[0])
            if changed and len(inference.run()) < conflicts:
                return alike
        except Decline:
            continue
    return None


def _shared_in(loop: tirx.For, products: list[tirx.Stmt], way: int) -> tuple[int, tirx.For]:
    """A kernel with some products shared out in one way, and how many of them that changes."""
    changed = 0

    def share(node: tirx.Evaluate) -> tirx.Evaluate:
        nonlocal changed
        op = operator_of(node) if any(map(node.same_as, products)) else None
        shares = getattr(op, "shares", ())
        if op is None or not shares:
            return node
        call = with_fields(op, **shares[way]).to_call(node.value.span)
        changed += not tvm_ffi.structural_equal(call, node.value)
        return tirx.Evaluate(call, node.span)

    alike = mapped(loop, (tirx.Evaluate, share))
    return changed, alike


def _explained(conflict: Conflict) -> str:
    """An explanation of a conflict: the two uses, and where the elements lie."""
    first, second = conflict.uses
    same = first.fragment.same_as(second.fragment)
    what = (
        f"{describe(first.fragment)} is needed in two layouts"
        if same
        else f"{describe(first.fragment)} and {describe(second.fragment)} lie in different threads, "
        "and this statement needs the elements of both"
    )
    corner = first_difference(first.layout, second.layout)
    shown = [_described(placed, corner) for placed in conflict.uses]
    return "\n".join([what, *shown])


def _described(placed: Placed, corner: tuple[int, int]) -> str:
    """The place of a fragment, and since which line."""
    location = placed.location
    by = (
        f"as {location} wants it: {location.text}"
        if location is not None
        else "as was free to choose"
    )
    picture = drawn(placed.layout, corner).replace("\n", "\n      ")
    return (
        f"  {placed.fragment.name} {by}\n"
        f"      thread:register of the elements from {list(corner)} on\n      {picture}"
    )


def _staged(loop: tirx.For, conflict: Conflict, target: Target) -> tirx.For:
    """The kernel with a fragment in shared memory: a copy for who only reads it, or all of it."""
    fragment = conflict.fragment
    what = "the threads that hold its elements are not those that need them here, which costs time"
    why = f"\n{_explained(conflict)}" if conflict.uses else ""
    if conflict.reader is not None:
        text = f"{describe(fragment)} is read from a copy in shared memory: {what} and memory{why}"
        staged = _with_copy(loop, fragment, conflict.reader)
    else:
        text = f"{describe(fragment)} is kept in shared memory: {what} and memory{why}"
        staged = _moved(loop, fragment)
    warn(text, conflict.location)
    return _ChooseAgain(target).rewrite(staged)


def _with_copy(loop: tirx.For, fragment: ir.Var, reader: tirx.Stmt) -> tirx.For:
    tile, copying = copied_to_shared(fragment, f"{fragment.name}_shared")

    def hand_over(node: tirx.Stmt, mutator: Mutator) -> tirx.Stmt:
        if not node.same_as(reader):
            return mutator.default_mutate(node)
        return seq([*copying, substitute(node, {fragment: tile})])

    return mutated(loop, ((tirx.For, tirx.Evaluate), hand_over))


def _moved(loop: tirx.For, fragment: ir.Var) -> tirx.For:
    """The kernel with a fragment, or one that it views, in shared memory, and all views of that.

    Its layout is not fixed there.
    Iterations that add to one of its elements came one after the other in the thread that held it, and
    still do.
    """
    aliases = Aliases(loop)
    fragment = aliases.root(fragment)
    moved = [fragment, *aliases.views_of(fragment)]
    memory = {buffer: retyped(buffer, scope=SHARED_SCOPE) for buffer in moved}

    def fixes(node: tirx.Stmt) -> bool:
        op = operator_of(node)
        return op is not None and fragment in fixed_layouts(op)

    def in_order(node: tirx.For, mutator: Mutator) -> tirx.Stmt:
        if is_parallel(node):
            return _in_order(node, set(memory.values()))
        return mutator.default_mutate(node)

    return mutated(substitute(without(loop, fixes), memory), (tirx.For, in_order))


def _in_order(loop: tirx.For, memory: set[ir.Var]) -> tirx.Stmt:
    """A nest in which no two threads change one element of some memory, by whatever it read there."""
    nest = Nest(loop)
    accesses = [access for access in nest.accesses if access.buffer in memory]
    stores = [access for access in accesses if access.writes]

    def counts(each: tirx.For) -> bool:
        return all(any(map(each.loop_var.same_as, store.indices)) for store in stores)

    serial = [each for each in nest.loops if not counts(each)]
    is_changed = any(access.reads for access in accesses)
    if not stores or not serial or not is_changed or _are_distinct(stores, nest):
        return loop
    once = for_loop(tirx.Var("once", "int32"), 1, seq([]), tirx.ForKind.PARALLEL)
    parallel = [each for each in nest.loops if counts(each)] or [once]
    body = nest.body
    for each in reversed(serial):
        body = replace_loop(each, body=body, kind=tirx.ForKind.SERIAL)
    for each in reversed(parallel):
        body = replace_loop(each, body=body)
    return body


def _are_distinct(stores: list[Effect], nest: Nest) -> bool:
    """Tell whether all iterations of a nest certainly store to elements of their own."""
    iterations = sample(nest.loops)
    if iterations is None or len(stores) != 1 or stores[0].around or None in nest.extents:
        return False
    count = math.prod(extent or 0 for extent in nest.extents)
    found = elements_of(stores[0], iterations, {}, lambda _: False)
    return found is not None and len(np.unique(found.places, axis=0)) == count


class _ChooseAgain(TileOperators):
    def rewritten(self, op: TileOp, context: LoweringContext, node: tirx.Evaluate) -> tirx.Stmt:
        fitting = with_implementation(op, context)
        if fitting is op:
            return node
        return tirx.Evaluate(fitting.to_call(node.value.span), node.span)


def _views(loop: tirx.For) -> tuple[dict[ir.Var, ir.Var], list[ir.Var]]:
    """The fragment of each view that shows it under another shape, and the fragments with other views.

    The elements of the latter are those of an array in memory.
    """
    aliases = Aliases(loop)
    pairs = ((view, aliases.root(view)) for view in aliases.views)
    views = {view: root for view, root in pairs if is_fragment(root)}
    others = [root for view, root in views.items() if not _is_reshaped(view, root, aliases)]
    return views, others


def _is_reshaped(view: ir.Var, fragment: ir.Var, aliases: Aliases) -> bool:
    """Tell whether a view shows all elements of a fragment as they are."""
    shapes = [[constant(extent) for extent in each.ty.shape] for each in (view, fragment)]
    return (
        view.ty.storage_scope == fragment.ty.storage_scope == FRAGMENT_SCOPE
        and str(view.ty.dtype) == str(fragment.ty.dtype)
        and aliases.start(view) == (fragment, 0)
        and None not in (*shapes[0], *shapes[1])
        and math.prod(e or 0 for e in shapes[0]) == math.prod(e or 0 for e in shapes[1])
    )


def _laid_out(buffer: ir.Var, layout: FragmentLayout) -> ir.Var:
    return retyped(buffer, shape=layout.shape, layout=layout.to_tvm())
