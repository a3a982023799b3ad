"""`tvmtile.torch.replace`: a model's layers by tile kernels, where they do the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from tvmtile.errors import TileError
from tvmtile.torch.forwards import (
    FUNCTIONS,
    activation_of,
    forward_of,
    functions_by_kernels,
    identity,
)
from tvmtile.torch.recording import Call, Recording, record
from tvmtile.torch.report import Entry, Report
from tvmtile.torch.verification import TOLERANCE, error_of, milliseconds


def replace(
    model: nn.Module, *inputs: object, at_least: float = 1.0, **named_inputs: object
) -> Report:
    """Run a model's linear layers, norms, softmaxes and attention by the kernels of `tvmtile.ops`.

    The model is called once with the sample, then each candidate, with copies of what it was given, by
    torch and by its kernel. It is replaced where results and gradients agree up to rounding
    (`tvmtile.torch.verification.TOLERANCE`) and the kernel is no slower: in training mode forward and
    backward, after `model.eval()` forward alone. All else is left as it is. A linear layer that an
    activation follows in an `nn.Sequential` computes it, too. Functions that are replaced in a module's
    forward are `scaled_dot_product_attention` (without mask or dropout) and `softmax`.

    Parameters, hooks and `state_dict` stay what they are; gradients are those of the operators. Later
    calls may have other batches and lengths than the sample.

    Parameters
    ----------
    model : nn.Module
        Changed in place.
    *inputs, **named_inputs
        A sample of what it is called with.
    at_least : float
        What is slower than so many times torch's speed, on the sample, is left; 0 keeps all.

    Returns
    -------
    Report
        What was replaced, what was not and why, and how fast each is; `report.restore()` undoes it.

    Examples
    --------
    >>> report = tvmtile.torch.replace(model, torch.randint(1000, (4, 128)))
    >>> print(report)
    """
    candidates = list(_modules(model))
    recording = record(model, [c.module for c in candidates], inputs, named_inputs)
    attempts = [
        *(_attempt(c, recording) for c in candidates),
        *_functions(model, recording),
    ]
    times: dict[object, list[float]] = {}
    entries = [attempt.entry(times, at_least, model.training) for attempt in attempts]
    kept = [attempt for attempt, entry in zip(attempts, entries, strict=True) if not entry.reason]
    forwards = _forwards(kept)
    for module, forward in forwards.items():
        module.__dict__["forward"] = forward
    return Report(entries, list(forwards))


def _forwards(kept: Sequence[_Attempt]) -> dict[nn.Module, Callable[..., Any]]:
    """The replacement of each module's forward."""
    forwards = {module: forward for attempt in kept for module, forward in attempt.forwards.items()}
    functions: dict[nn.Module, list[Any]] = {}
    for attempt in kept:
        for module, function in attempt.functions.items():
            functions.setdefault(module, []).append(function)
    for module, replaced in functions.items():
        forwards[module] = partial(functions_by_kernels, module, tuple(replaced))
    return forwards


@dataclass(frozen=True)
class _Candidate:
    """A module that an operator may stand in for, with the activation behind it."""

    name: str
    module: nn.Module
    operator: str
    forward: Callable[..., Tensor] | str
    follower: nn.Module | None = None


def _modules(model: nn.Module) -> Iterator[_Candidate]:
    followers = dict(_followed(model))
    for name, module in model.named_modules():
        follower = followers.get(module)
        known = forward_of(module, activation_of(follower) if follower else None)
        if known is not None:
            yield _Candidate(name, module, *known, follower)


def _followed(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Linear layers, and the activations that follow them in a sequence and are nowhere else."""
    places = Counter(child for parent in model.modules() for child in parent._modules.values())
    for sequence in model.modules():
        if type(sequence) is nn.Sequential:
            parts = list(sequence)
            for first, second in pairwise(parts):
                is_only_here = places[first] == places[second] == 1
                if isinstance(first, nn.Linear) and activation_of(second) and is_only_here:
                    yield first, second


@dataclass(frozen=True)
class _Attempt:
    """Something to be tried: forwards of modules, or functions that a module's own forward calls."""

    name: str
    operator: str
    call: Call | None
    ours: Callable[[], Tensor] | str
    theirs: Callable[[], Tensor]
    parameters: tuple[Tensor, ...]
    forwards: Mapping[nn.Module, Callable[..., Any]] = field(default_factory=dict)
    functions: Mapping[nn.Module, Any] = field(default_factory=dict)

    def entry(self, times: dict[Any, list[float]], at_least: float, trains: bool) -> Entry:
        """Verify and measure; what is alike is measured once."""
        tensors = self.call.tensors if self.call else []
        shapes = " ".join("x".join(map(str, t.shape)) for t in tensors)
        left = partial(Entry, self.name, self.operator, shapes)
        if self.call is None:
            return left("the sample does not call it")
        if isinstance(self.ours, str):
            return left(self.ours)
        if not tensors:
            return left("the sample gives it no tensor")
        try:
            error = error_of(self.ours, self.theirs, [*tensors, *self.parameters])
        except TileError as mistake:
            return left(str(mistake).partition("\n")[0])
        tolerance = TOLERANCE.get(tensors[0].dtype, 0.0)
        if not error <= tolerance:
            return left(f"it differs by {error:.1e}, more than {tolerance:.0e}", error)
        key = (
            self.operator,
            *((t.shape, t.stride(), t.dtype) for t in (*tensors, *self.parameters)),
        )
        if key not in times:
            wanted = [t for t in (*tensors, *self.parameters) if trains and t.requires_grad]
            times[key] = milliseconds([self.ours, self.theirs], tensors[0].device, wanted)
        ours, theirs = times[key]
        speed = f"{theirs / ours:.2f} of torch's speed, less than {at_least:g}"
        return left(speed if theirs < at_least * ours else "", error, ours, theirs)


def _attempt(candidate: _Candidate, recording: Recording) -> _Attempt:
    """A module's forward, and that of the activation behind it."""
    module, follower = candidate.module, candidate.follower
    call = recording.modules.get(module)
    args, kwargs = (call.args, call.kwargs) if call else ((), {})
    theirs = type(module).forward

    def by_torch() -> Tensor:
        result = theirs(module, *args, **kwargs)
        return follower(result) if follower else result

    reason = _reason(module, follower, recording)
    if isinstance(candidate.forward, str):
        ours: Callable[[], Tensor] | str = reason or candidate.forward
        forwards = {}
    else:
        ours = reason or partial(candidate.forward, *args, **kwargs)
        forwards = {module: candidate.forward, **({follower: identity} if follower else {})}
    return _Attempt(
        candidate.name,
        candidate.operator,
        call,
        ours,
        by_torch,
        tuple(module.parameters(recurse=False)),
        forwards,
    )


def _reason(module: nn.Module, follower: nn.Module | None, recording: Recording) -> str:
    """The reason why a module is left as it is, whatever it computes."""
    if any("forward" in part.__dict__ for part in (module, follower) if part):
        return "its forward has been replaced before"
    if follower and recording.counts[module] != recording.counts[follower]:
        return "it is called without the activation that follows it, or that without it"
    return ""


def _functions(model: nn.Module, recording: Recording) -> Iterator[_Attempt]:
    """The functions that modules' own forwards call."""
    names = {module: name for name, module in model.named_modules()}
    for (module, function), call in recording.functions.items():
        operator, make = FUNCTIONS[function]
        if callable((forward_of(module) or ("", ""))[1]):
            continue  # it is replaced as a whole
        yield _Attempt(
            names[module],
            operator,
            call,
            _reason(module, None, recording) or make(*call.args, **call.kwargs),
            partial(function, *call.args, **call.kwargs),
            (),
            functions={module: function},
        )
