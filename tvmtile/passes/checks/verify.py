"""Verify: what must hold between the passes.

A pass says what it requires and what it establishes (`tvmtile.ir.passes`), and `invariants` how that
is checked. What is established holds to the end of the lowering; a few invariants hold always. A
violation is a defect of a pass, not of a kernel, so this is a tool for those who work on tvmtile: the
tests run with a `Verifier`, and `tvmtile.compile` takes one by
`pass_configs={"tvmtile.verify": True}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from tvmtile.errors import VerifyError
from tvmtile.ir.kernels import is_tile_program
from tvmtile.ir.passes import Property, contract_of
from tvmtile.passes.checks.invariants import (
    ALWAYS,
    INVARIANTS,
    Invariant,
    tensors_within_bounds,
    tiles_within_bounds,
)

__all__ = ["ALWAYS", "INVARIANTS", "Verifier", "Verify", "violations"]

_LOWERING = "tvmtile.LowerTilePrograms"


def violations(func: tirx.PrimFunc, passes: Sequence[str]) -> list[str]:
    """The violated properties of a function that went through passes, such as "tvmtile.InferLayout"."""
    return _broken(func, [p for name in passes for p in contract_of(name).establishes])


def _broken(func: tirx.PrimFunc, properties: Iterable[Property]) -> list[str]:
    return [problem for check in _expected(properties) for problem in check(func)]


def _expected(properties: Iterable[Property]) -> list[Invariant]:
    """What must hold; tiles are looked at together with tensors, where these must be, too."""
    expected = dict.fromkeys([*ALWAYS, *(INVARIANTS[p] for p in properties if p in INVARIANTS)])
    if tensors_within_bounds in expected:
        expected.pop(tiles_within_bounds, None)
    return list(expected)


def Verify(*passes: str) -> Any:
    """Make a pass that checks what must hold after some passes, for a pipeline of one's own.

    Parameters
    ----------
    *passes : str
        The passes that the module has been through, such as "tvmtile.NormalizeOperands".

    Returns
    -------
    tvm.transform.Pass
        A module pass that changes nothing.

    Raises
    ------
    VerifyError
        When it runs, if something does not hold.
    """

    def transform(mod: ir.IRModule, _: PassContext) -> ir.IRModule:
        for gv, func in mod.functions.items():
            if is_tile_program(func):
                _check(gv.name_hint, func, passes)
        return mod

    return tvm.transform.module_pass(transform, opt_level=0, name="tvmtile.Verify")


def _check(name: str, func: tirx.PrimFunc, passes: Sequence[str]) -> None:
    after = f"after {passes[-1]}, " if passes else ""
    _refuse(func, violations(func, passes), f"{after}{name} breaks what must hold")


def _refuse(func: tirx.PrimFunc, problems: Sequence[str], what: str) -> None:
    if not problems:
        return
    listed = "\n".join(f"  {problem}" for problem in problems)
    raise VerifyError(
        f"{what}:\n{listed}\n{func.script()}",
        help="this is a defect of tvmtile: please report it with the kernel",
    )


@tvm.instrument.pass_instrument
class Verifier:
    """An instrument that checks tile programs after every pass that lowers them.

    Within `LowerTilePrograms` what all passes so far have established is checked; of a pass that runs
    on its own, what it requires and what it establishes.

    Examples
    --------
    >>> import tvm
    >>> from tvmtile.passes import Verifier
    >>> with tvm.transform.PassContext(instruments=[Verifier()]):
    ...     pass
    """

    def __init__(self) -> None:
        self._first = ""
        self._established: dict[Property, None] = {}
        self._is_lowering = False
        self._programs: set[str] = set()
        self._sound: dict[str, tuple[tirx.PrimFunc, set[Invariant]]] = {}

    def run_before_pass(self, mod: ir.IRModule, info: Any) -> None:
        # The first pass comes again where LowerTilePrograms tries fewer stages.
        if info.name in (_LOWERING, self._first):
            self._first, self._established = "", {}
        self._is_lowering |= info.name == _LOWERING
        if not _is_checked(info.name):
            return
        self._programs |= {
            gv.name_hint for gv, func in mod.functions.items() if is_tile_program(func)
        }
        if not self._is_lowering:
            self._check_requirements(mod, info.name)

    def _check_requirements(self, mod: ir.IRModule, name: str) -> None:
        for gv, func in mod.functions.items():
            if gv.name_hint in self._programs:
                problems = _broken(func, contract_of(name).requires)
                _refuse(func, problems, f"{gv.name_hint} is not what {name} requires")

    def run_after_pass(self, mod: ir.IRModule, info: Any) -> None:
        if info.name == _LOWERING:
            self._is_lowering = False
            self._programs.clear()
            self._sound.clear()
        if not _is_checked(info.name):
            return
        established = dict.fromkeys(contract_of(info.name).establishes)
        if self._is_lowering:
            self._first = self._first or info.name
            self._established |= established
            established = self._established
        for gv, func in mod.functions.items():
            if gv.name_hint in self._programs:
                self._check_new(gv.name_hint, func, info.name, established)
        if not self._is_lowering:
            self._programs.clear()
            self._sound.clear()

    def _check_new(
        self, name: str, func: tirx.PrimFunc, after: str, established: Iterable[Property]
    ) -> None:
        """Check what was not asked before; many passes find nothing to change."""
        before, sound = self._sound.get(name, (None, set()))
        if before is None or not (func.same_as(before) or tvm_ffi.structural_equal(before, func)):
            sound = set()
        expected = _expected(established)
        problems = [text for check in expected if check not in sound for text in check(func)]
        _refuse(func, problems, f"after {after}, {name} breaks what must hold")
        self._sound[name] = func, sound | set(expected)


def _is_checked(name: str) -> bool:
    return name.startswith("tvmtile.") and name != _LOWERING
