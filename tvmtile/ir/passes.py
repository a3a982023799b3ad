"""Passes of TVM from rewritings, and what they require of the passes before them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from tvm import ir, tirx
from tvm.ir.transform import PassContext

from tvmtile.ir.kernels import is_tile_program


class Property(Enum):
    """A property that a pass establishes, and that holds from then on to the end of the lowering."""

    REGIONS = "every operand of a tile operator is a region"
    IMPLEMENTATIONS = "tile operators name what implements them, unless layouts are waited for"
    EXITS_ARE_BRANCHES = (
        "a thread that returns, or an iteration that ends early, skips by conditions"
    )
    GROUPS = "work that threads share is done by whole warps, and its region names them"
    LOOPS_WITH_BREAK_ARE_SERIAL = (
        "no loop that is left by break or continue is unrolled or vectorised"
    )
    PIPELINED = "no loop asks for stages; tiles have a copy a stage"
    SHARED_LAYOUTS = "shared tiles have the layouts that instructions and users ask for"
    FRAGMENT_LAYOUTS = "every fragment's type says which thread holds which element"
    NO_TILE_OPERATORS = "tile operators are loops and instructions"
    IN_BOUNDS = "no access lies outside a tensor"
    NO_THREADS = "nothing is bound to a thread, and no thread waits for another"
    NO_PARALLEL = "no elementwise loop waits to be placed"
    NO_FRAGMENTS = "fragments are arrays of registers"
    SHARED_MEMORY_FITS = "a block needs no more shared memory than the target has"
    BARRIERS_INSERTED = "threads wait for each other where they exchange elements"
    NO_ASYNC_TOKENS = "asynchronous work is instructions"
    FLAT_TILES = "indices of shared tiles are places in memory"
    NO_OPERATORS = "no operator of tvmtile is left"
    HOST_MEMORY = "every buffer lies in the host's memory"
    NO_KERNELS = "no loop is bound to a block"


@dataclass(frozen=True)
class Contract:
    """The properties that a pass requires before it, and those that it establishes."""

    requires: tuple[Property, ...] = ()
    establishes: tuple[Property, ...] = ()


class Phase:
    """A part of the lowering: a name, the form that comes out, and its passes in their order."""

    def __init__(self, name: str, form: str, *steps: Any) -> None:
        self.name, self.form, self.steps = name, form, steps

    def __str__(self) -> str:
        return f"{self.name}: {self.form}"

    @property
    def names(self) -> list[str]:
        """The passes for any target."""
        return [step.info.name.removeprefix("tvmtile.") for step, _ in map(_of_kinds, self.steps)]

    def passes(self, kind: str) -> list[Any]:
        """The passes for a kind of target."""
        return [
            step for step, kinds in map(_of_kinds, self.steps) if kinds is None or kind in kinds
        ]


def only(*kinds: str) -> Callable[[Any], tuple[Any, tuple[str, ...]]]:
    """Make a step of a phase from a pass that these kinds of target have."""
    return lambda step: (step, kinds)


def _of_kinds(step: Any) -> tuple[Any, tuple[str, ...] | None]:
    return step if isinstance(step, tuple) else (step, None)


_CONTRACTS: dict[str, Contract] = {}
_NOTHING = Contract()
_Rewriting: TypeAlias = Callable[[tirx.PrimFunc], tirx.PrimFunc]


def prim_func_pass(
    name: str,
    *,
    requires: Iterable[Property] = (),
    establishes: Iterable[Property] = (),
    everywhere: bool = False,
) -> Callable[[_Rewriting], Any]:
    """Decorate a rewriting `func -> func` as a pass over the tile programs of a module.

    TVM calls it by the name, with a prefix. It relies on what it `requires`; what it `establishes`
    holds after it. A pass that acts `everywhere` stands in TVM's part of the pipeline, in which the
    functions are no tile programs any more: it goes over those of the host and of the device.
    """
    full = f"tvmtile.{name}"
    _CONTRACTS[full] = Contract(tuple(requires), tuple(establishes))

    def decorate(function: _Rewriting) -> Any:
        def transform(
            func: tirx.PrimFunc, _mod: ir.IRModule, _context: PassContext
        ) -> tirx.PrimFunc:
            return function(func) if everywhere or is_tile_program(func) else func

        result = tirx.transform.prim_func_pass(transform, opt_level=0, name=full)
        result.__doc__, result.__module__ = function.__doc__, function.__module__
        return result

    return decorate


def contract_of(name: str) -> Contract:
    """The contract of a pass by its TVM name; an empty one for a pass that is not ours."""
    return _CONTRACTS.get(name, _NOTHING)


def check_order(passes: Iterable[Any]) -> None:
    """Make sure that each pass comes after those that establish what it requires.

    Raises
    ------
    ValueError
        If one does not; it is a mistake in the order, not in a kernel.
    """
    holds: set[Property] = set()
    for step in passes:
        contract = contract_of(step.info.name)
        for needed in contract.requires:
            if needed not in holds:
                raise ValueError(
                    f"{step.info.name} requires {needed.name} ({needed.value}), which no pass before "
                    "it establishes"
                )
        holds.update(contract.establishes)
