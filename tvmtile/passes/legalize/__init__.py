"""Rules: expressions and statements that a tool gets wrong, or a target lacks, in another form.

TIR with the right meaning comes in; from the TIR that goes out, TVM, LLVM and the compilers of NVIDIA
and Apple make the right code. A construct that one of them gets wrong, or that a target does not have,
is a `Rule` (`rules`), a row of a table: of `every_target`, `llvm`, `gpu`, `cuda` or `metal`. A row
goes when its reason does. A rewrite that needs more than a node and the loops around it is a pass of
its own.

Rules act at four places of the pipeline, and a pass for each goes through a function once:
LegalizeExpressions, before anything simplifies; LegalizeOperations, when no operator is left;
LegalizeMemoryOnCpu, when the places of all elements are known; LegalizeSource, when the source is
printed next.
"""

from __future__ import annotations

from tvm import tirx

from tvmtile.codegen.device import device_pass
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.passes.legalize import cuda, every_target, gpu, llvm, metal
from tvmtile.passes.legalize.assertions import LOCATED
from tvmtile.passes.legalize.rules import Rule, kind_of, legalized

EXPRESSIONS: dict[str, tuple[Rule, ...]] = {
    "llvm": (*every_target.EXPRESSIONS, llvm.EXTREMA, LOCATED),
    "cuda": every_target.EXPRESSIONS,
    "metal": every_target.EXPRESSIONS,
}
OPERATIONS: dict[str, tuple[Rule, ...]] = {
    "llvm": (*every_target.OPERATIONS, *llvm.OPERATIONS),
    "cuda": (*every_target.OPERATIONS, *gpu.OPERATIONS, *cuda.OPERATIONS),
    "metal": (*every_target.OPERATIONS, *gpu.OPERATIONS),
}
MEMORY: dict[str, tuple[Rule, ...]] = {"llvm": llvm.MEMORY}
SOURCE: dict[str, tuple[Rule, ...]] = {
    "cuda": (*gpu.SOURCE, *cuda.SOURCE),
    "metal": (*gpu.SOURCE, *metal.SOURCE),
}

RULE_TABLES = (EXPRESSIONS, OPERATIONS, MEMORY, SOURCE)
"""The rules by kind of target, for each place of the pipeline."""


@prim_func_pass("LegalizeExpressions")
def LegalizeExpressions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write expressions so that nothing that simplifies changes what they mean."""
    return legalized(func, EXPRESSIONS.get(kind_of(func), every_target.EXPRESSIONS))


@prim_func_pass("LegalizeOperations", requires=(Property.NO_OPERATORS,))
def LegalizeOperations(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write what elements are computed by, and barriers and assertions, as the target has them."""
    return legalized(func, OPERATIONS.get(kind_of(func), ()))


@prim_func_pass("LegalizeMemoryOnCpu", requires=(Property.HOST_MEMORY,))
def LegalizeMemoryOnCpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write accesses so that LLVM does not vectorise them wrongly."""
    return legalized(func, MEMORY["llvm"])


@device_pass("LegalizeSource")
def LegalizeSource(func: tirx.PrimFunc, kind: str) -> tirx.PrimFunc:
    """Write what TVM's generators and their compilers take, when nothing simplifies any more."""
    return legalized(func, SOURCE[kind])
