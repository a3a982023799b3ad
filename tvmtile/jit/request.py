"""What is to be compiled, with everything decided: plain data, which another process can be given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.target import Target

from tvmtile.compat.transform import with_effect
from tvmtile.errors import InvalidOperand, InvalidValue
from tvmtile.frontend.program import OUT_IDX_ATTR
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.artifacts import artifact_of
from tvmtile.jit.backends import backend_for
from tvmtile.jit.executable import Executable
from tvmtile.jit.kernel import Kernel
from tvmtile.jit.key import Key, key_of
from tvmtile.target import TargetLike, resolve


@dataclass(frozen=True, eq=False)
class Request:
    """A program, where it is to run, and how it is compiled."""

    func: tirx.PrimFunc
    """The tile program."""
    results: tuple[int, ...]
    """Which parameters are results."""
    target: Target
    """What for."""
    backend: str
    """Who runs it."""
    config: Mapping[str, Any]
    """Options of passes."""

    @classmethod
    def of(
        cls,
        func: tirx.PrimFunc,
        out_idx: Any = None,
        target: TargetLike | None = None,
        execution_backend: str | None = "auto",
        pass_configs: Mapping[str, Any] | None = None,
    ) -> Request:
        """Decide what `tvmtile.compile` leaves open.

        Raises
        ------
        TileError
            If the target, the backend or the results are none.
        """
        resolved = resolve(target)
        return cls(
            func,
            result_positions(func, out_idx),
            resolved,
            backend_for(execution_backend or "auto", resolved),
            dict(pass_configs or {}),
        )

    def key(self) -> Key | None:
        """The names of the code in the cache; None where it depends on what has no name."""
        return key_of(self.func, self.target, self.backend, with_effect(self.config))

    def artifact(self) -> Artifact:
        """Compile the program, or find it compiled."""
        return artifact_of(self.func, self.target, self.backend, self.config)

    def executable(self) -> Executable:
        """The program as it is run, compiled or found."""
        return Executable(self, self.artifact())

    def kernel(self, artifact: Artifact) -> Kernel:
        """Make the compiled program callable."""
        kernel: Kernel = Kernel(self.func, self.results, Executable(self, artifact))
        kernel.options = self.options
        return kernel

    @property
    def options(self) -> dict[str, object]:
        """What `tvmtile.compile` is given to compile it again."""
        declares = self.func.attrs is not None and OUT_IDX_ATTR in self.func.attrs
        return {
            "out_idx": None if declares else list(self.results),
            "target": self.target,
            "execution_backend": self.backend,
            "pass_configs": dict(self.config),
        }

    def __reduce__(self) -> tuple[object, ...]:
        target = json.loads(str(self.target))
        return _again, (self.func, self.results, target, self.backend, dict(self.config))


def _again(
    func: Any, results: tuple[int, ...], target: TargetLike, backend: str, config: Any
) -> Request:
    return Request(func, results, Target(target), backend, config)


def result_positions(func: tirx.PrimFunc, out_idx: Any) -> tuple[int, ...]:
    """Which parameters of a program are results.

    The program may declare them; negative ones of `out_idx` count from the end.

    Raises
    ------
    InvalidValue
        If it declares them and is asked for others.
    InvalidOperand
        If there is no such parameter.
    """
    declared = func.attrs.get(OUT_IDX_ATTR) if func.attrs is not None else None
    if declared is not None:
        if out_idx is not None:
            raise InvalidValue(
                f"out_idx={out_idx} for a kernel that makes its results with T.empty",
                help="leave out_idx out: what the kernel returns are its results",
            )
        return tuple(int(i) for i in declared)
    if out_idx is None:
        return ()
    indices = [out_idx] if isinstance(out_idx, int) else list(out_idx)
    count = len(func.params)
    for index in indices:
        if not -count <= index < count:
            raise InvalidOperand(
                f"out_idx={index} is outside the {count} parameters of the kernel",
                help="count the parameters from 0, or from the end with negative numbers",
            )
    return tuple(index % count for index in indices)
