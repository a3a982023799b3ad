"""The catalogue: named tile programs, each with the cases in which it is tested.

A program is data: its text is taken, and stands alone once its parameters have values. What that text
means, the fuzzer's interpreter says. What the fields are, tests/README.md says.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from zlib import crc32

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from tests.fuzz.program import Program
from tests.gpu.machine import HAS_GPU
from tests.programs.text import stand_alone

__all__ = ["ARCHITECTURES", "TARGETS", "Case", "Entry", "catalogue", "program"]

ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_100a")
TARGETS = ("llvm", "metal", *ARCHITECTURES, "gpu")
"""The CPU, the emulators of Metal and of four architectures of CUDA, and the GPU of this machine."""
METAL4 = "metal4"
"""Metal 4, with `matmul2d`: a target of those programs only that name it."""
_DRAWN = {"fast": 1, "full": 6, "nightly": 200}
"""How many cases are drawn in a tier."""
_EMULATED = {"fast": 0, "full": 2, "nightly": 200}
"""How many of them each emulator runs; those of CUDA share them."""


@dataclass(frozen=True)
class Case(Program):
    """A program with values for its parameters."""

    name: str = ""


@dataclass(frozen=True, eq=False)
class Entry:
    """A program of the catalogue; the fields are what `@program` is given."""

    function: Callable[..., Any]
    name: str
    tags: frozenset[str] = frozenset()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    examples: Any = ({},)
    where: Callable[[Any], bool] = lambda p: True
    fast: Sequence[str] = ()
    targets: Any = TARGETS
    refused: Any = field(default_factory=dict)
    inputs: Mapping[str, Any] | str = field(default_factory=dict)
    sizes: Any = ({}, {})
    expects: Any = field(default_factory=dict)
    counts: Any = field(default_factory=dict)
    options: Any = field(default_factory=dict)
    drawn: int = 0

    def cases(self, target: str, tier: str) -> list[Case]:
        """The cases that a target has in a tier: examples, then drawn ones."""
        return [self._case(p) for p in self.selected(target, tier)]

    def selected(self, target: str, tier: str) -> list[dict[str, Any]]:
        """The parameters of these cases."""
        examples = self._examples[: 1 if tier == "fast" else None]
        runs_here = target == "llvm" or (target == "gpu" and HAS_GPU)
        count = (_DRAWN if runs_here else _EMULATED)[tier]
        more = tier == "full" and (runs_here or target != "gpu")
        drawn = self._drawn(max(count, self.drawn) if more else count)
        if tier != "full" or target not in ARCHITECTURES:
            found = examples + drawn
        else:
            # The first example with either way to copy. Of the others each has one architecture,
            # and those with texts to find.
            shared, turn = examples[1:] + drawn, crc32(self.name.encode())
            found = examples[:1] if target in ("sm_80", "sm_90a") else []
            for number, p in enumerate(shared, turn):
                if ARCHITECTURES[number % 4] == target or target in self._of("expects", p):
                    found.append(p)
        return [p for n, p in enumerate(found) if self._allows(target, p) and p not in found[:n]]

    def case(self, **given: Any) -> Case:
        """The program with these values, and the first ones of its other parameters."""
        return self._case(self._completed(given))

    def refusals(self, target: str) -> list[tuple[Case, str]]:
        """The examples that a target must refuse, and how its message begins."""
        refused = [(p, self._of("refused", p)) for p in self._examples]
        return [(self._case(p), messages[target]) for p, messages in refused if target in messages]

    def _allows(self, target: str, case: dict[str, Any]) -> bool:
        return target in self._of("targets", case) and target not in self._of("refused", case)

    def _of(self, name: str, case: dict[str, Any]) -> Any:
        """A field that may be a function of the parameters."""
        value = getattr(self, name)
        return value(SimpleNamespace(**case)) if callable(value) else value

    @functools.cached_property
    def _examples(self) -> list[dict[str, Any]]:
        """The examples; a parameter's name stands for one of each of its values."""
        named = self.examples
        if isinstance(named, str):
            return [self._completed({named: value}) for value in self.parameters[named]]
        return [self._completed(example) for example in named]

    def _completed(self, example: Mapping[str, Any]) -> dict[str, Any]:
        """An example with the first value of each parameter that it does not name."""
        assert example.keys() <= self.parameters.keys(), f"{self.name}: {example}"
        first = {n: v[0] for n, v in self.parameters.items() if n not in example}
        return self._ordered({**first, **example})

    @functools.cache  # noqa: B019 - the catalogue lives as long as the process
    def _drawn(self, count: int) -> list[dict[str, Any]]:
        """Cases that hypothesis draws, always the same: each has the most values not seen before."""
        pool = list(self._pool(max(60, count))) if count and self.parameters else []
        seen = {pair for example in self._examples for pair in _pairs(example)}
        chosen: list[dict[str, Any]] = []
        while pool and len(chosen) < count:
            chosen.append(max(pool, key=lambda case: len(_pairs(case) - seen)))
            seen |= _pairs(chosen[-1])
            pool.remove(chosen[-1])
        return chosen

    @functools.cache  # noqa: B019
    def _pool(self, count: int) -> list[dict[str, Any]]:
        strategies = {
            name: values if isinstance(values, st.SearchStrategy) else st.sampled_from(values)
            for name, values in self.parameters.items()
        }
        pool: list[dict[str, Any]] = []
        cases = st.fixed_dictionaries(strategies).filter(lambda p: self.where(SimpleNamespace(**p)))

        @seed(crc32(self.name.encode()))
        @settings(
            max_examples=count,
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(cases)
        def note(case: dict[str, Any]) -> None:
            if (ordered := self._ordered(case)) not in pool:
                pool.append(ordered)

        with contextlib.suppress(Unsatisfiable):  # where there are examples only
            note()
        return pool

    def _ordered(self, case: Mapping[str, Any]) -> dict[str, Any]:
        return {name: case[name] for name in self.parameters}

    @staticmethod
    def _label(case: dict[str, Any]) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in case.items())

    def _case(self, case: dict[str, Any]) -> Case:
        name = f"{self.name}({self._label(case)})"
        number = crc32(name.encode())
        sizes = [dict(sizes) for sizes in self._of("sizes", case)]
        architectures = [arch for arch in ARCHITECTURES if self._allows(arch, case)]
        head = [
            f'"""{name}: seed {number}."""',
            "",
            "import math",
            "",
            "import numpy as np",
            "",
            "import tvmtile.language as T",
            "import tvmtile.layout as layouts",
            "",
            f"SIZES = {sizes}",
            *(f'{extent} = T.dynamic("{extent}")' for extent in sizes[0]),
            *(
                f"{n.upper()} = {given}"
                for n in ("expects", "counts", "options")
                if (given := self._of(n, case))
            ),
            *(
                [f"ARCHITECTURES = {architectures}"]
                if len(architectures) < len(ARCHITECTURES)
                else []
            ),
        ]
        return Case(stand_alone(self.function, case, "\n".join(head)), number, name)


def _pairs(case: dict[str, Any]) -> set[tuple[str, str]]:
    return {(name, repr(value)) for name, value in case.items()}


_CATALOGUE: dict[str, Entry] = {}


def program(name: str = "", **fields: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that puts a program into the catalogue; the fields of `Entry`.

    A function may be decorated more than once, by other names: these are other parameters of one text.
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        known = name or function.__name__
        assert known not in _CATALOGUE, f"there are two programs {known}"
        tags: Iterable[str] = fields.get("tags", ())
        _CATALOGUE[known] = Entry(function, known, **{**fields, "tags": frozenset(tags)})
        return function

    return add


@functools.cache
def catalogue() -> dict[str, Entry]:
    """All programs, by their names."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(_CATALOGUE)
