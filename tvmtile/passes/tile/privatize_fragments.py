"""PrivatizeFragments: a fragment that each thread stores to for itself is one of each thread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from itertools import zip_longest

from tvm import ir, tirx
from tvm_ffi import structural_equal

from tvmtile._tvm import buffer_of, mapped, nodes_in
from tvmtile.analysis.effects import Effect, effects_of
from tvmtile.analysis.kernel_info import info_of
from tvmtile.analysis.uniformity import ThreadVariance
from tvmtile.errors import InvalidOperand
from tvmtile.ir.kernels import is_parallel, with_kernels, with_launch_body
from tvmtile.ir.operands import describe
from tvmtile.ir.operators import fixed_layouts, operators_in
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import replace_loop, retyped, substitute
from tvmtile.ir.scopes import (
    is_by_elements,
    is_fragment,
    is_in_registers,
    is_private,
)


@prim_func_pass("PrivatizeFragments", requires=(Property.REGIONS, Property.GROUPS))
def PrivatizeFragments(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make a `T.alloc_local` of a fragment in which threads store different values.

    The elements of a fragment are those of a block. A statement outside of `T.Parallel` that stores
    what depends on the thread gives each thread a value of its own, as in a sum over the threads of a
    warp. So each has the fragment for itself, and does for itself what tile operators and `T.Parallel`
    do to it. A fragment whose layout the user gives stays: it says which thread holds what.

    Raises
    ------
    InvalidOperand
        If threads use other elements than those that they store to, or if a product, or a nest that
        writes something else too, would have to share such a fragment out.
    """

    def rewrite(kernel: tirx.For) -> tirx.For:
        info = info_of(kernel)
        body = info.launch.body
        fragments = list(filter(is_by_elements, info.allocated))
        if not fragments or not info.names_threads:
            return kernel
        variance = ThreadVariance(body, info.threads, is_in_registers)
        laid_out = {each for op in operators_in(body) for each in fixed_layouts(op)}
        own = {each for each in fragments if variance.depends(each)} - laid_out
        return with_launch_body(kernel, _owned(body, own, variance)) if own else kernel

    return with_kernels(func, rewrite)


def _owned(body: tirx.Stmt, own: Set[ir.Var], variance: ThreadVariance) -> tirx.Stmt:
    uses: defaultdict[ir.Var, list[Effect]] = defaultdict(list)
    nests: defaultdict[ir.Var, list[Effect]] = defaultdict(list)  # by the variable of the loop
    for access in effects_of(body):
        uses[access.root].append(access)
        for nest in filter(is_parallel, access.around):
            nests[nest.loop_var].append(access)
    for fragment in filter(own.__contains__, uses):
        _check_elements(uses[fragment], variance)
    filled = {
        loop_var
        for loop_var, accesses in nests.items()
        if any(each.writes and each.root in own for each in accesses)
    }
    for loop_var in filter(filled.__contains__, nests):
        _check_nest(nests[loop_var], own)

    def by_each(loop: tirx.For) -> tirx.For:
        is_filled = loop.loop_var in filled
        return replace_loop(loop, kind=tirx.ForKind.SERIAL) if is_filled else loop

    declarations = nodes_in(body, (tirx.AllocBuffer, tirx.DeclBuffer))
    names = [buffer_of(each) for each in declarations if variance.root(buffer_of(each)) in own]
    body = mapped(body, (tirx.For, by_each))
    return substitute(body, {name: retyped(name, scope="local") for name in names})


def _check_elements(uses: Sequence[Effect], variance: ThreadVariance) -> None:
    """Make sure that a thread finds in its own fragment what the program stores there.

    An axis that the thread has a part in is indexed the same everywhere, and no operator goes along it.
    """
    for product in (
        use for use in uses if use.operator is not None and use.operator.role == "product"
    ):
        raise _shared_out(product)
    elements = [use for use in uses if use.indices]
    for axis in zip_longest(*(use.indices for use in elements)):  # a view may have fewer axes
        if not any(variance.depends(index) for index in axis if index is not None):
            continue
        others = [use for use in uses if not use.indices and use.reads]
        others += [
            use
            for use, index in zip(elements, axis, strict=True)
            if not structural_equal(index, axis[0])
        ]
        for other in others:
            raise InvalidOperand(
                f"threads store to elements of the fragment {describe(other.root)} by their "
                "index, and use others than they have stored",
                help="use T.alloc_shared for a tile of which each thread stores a part, or "
                "T.alloc_local for an array of each thread",
                location=other.location,
            )


def _check_nest(accesses: Sequence[Effect], own: Set[ir.Var]) -> None:
    """Make sure that every thread can go through a nest by itself."""
    for access in accesses:
        is_of_thread = is_private(access.root) or access.root in own
        if not is_of_thread and (access.writes or is_fragment(access.root)):
            raise _shared_out(next(each for each in accesses if each.root in own))


def _shared_out(use: Effect) -> InvalidOperand:
    work = "T.Parallel" if use.operator is None else f"T.{use.operator.name}"
    return InvalidOperand(
        f"{work} shares {describe(use.root)} out to the threads, but each of them stores "
        "another value in it elsewhere",
        help="store to it in T.Parallel, by the loop's variables, or keep what each thread has "
        "for itself in T.alloc_local",
        location=use.location,
    )
