"""Constructs that the Metal specification forbids and C++ allows, as far as tokens tell.

The rest of Metal's rules the host's compiler checks, by the emulator's headers.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from tvmtile.emulator.lexer import Token
from tvmtile.emulator.metal.signature import (
    BUILTIN_ATTRIBUTES,
    TYPES,
    MslParameter,
    MslSignature,
)
from tvmtile.errors import MetalCompileError

LAST_BUFFER = 30
"""The highest index of a buffer, of the 31 that a kernel takes."""

_LACKING = frozenset(
    (
        "catch",
        "double",
        "dynamic_cast",
        "goto",
        "new",
        "thread_local",
        "throw",
        "try",
        "typeid",
        "virtual",
    )
)
_UNKNOWN = {
    "function_constant": "function constants, which a host gives values when it makes a pipeline",
    "host_name": "kernels that are instances of templates: write the kernel for its types",
}
# Types and spaces that are keywords of Metal and names in the emulator's headers.
_KEYWORDS = TYPES - {"void", "bool", "char", "short", "int", "long", "float"} | {
    "device",
    "constant",
    "threadgroup",
}
_TYPES = TYPES | _KEYWORDS | {"auto"}
_LONG_LONG = re.compile(r"(?:0[xX][0-9a-fA-F']+|[0-9']+)(?:[uU]?(?:ll|LL)|(?:ll|LL)[uU])")
_DECLARED_BEFORE = frozenset(("=", ";", ",", ")", "["))


def check_restrictions(tokens: Sequence[Token], kernels: Sequence[MslSignature]) -> None:
    """Refuse what Apple's compiler refuses, and the host's would take.

    Raises
    ------
    MetalCompileError
        If the source uses what Metal lacks, calls a variable like a type, has an atomic float in
        threadgroup memory, or a kernel takes more buffers than there are, two at one index, positions
        of different types, or what the emulator does not know.
    """
    code = [token for token in tokens if token.kind != "space"]
    texts = ["", *(token.text for token in code), ""]
    for token, before, after in zip(code, texts, texts[2:], strict=False):
        wrong = _wrong(token, before, after)
        if wrong is not None:
            raise _error(wrong, tokens, token.line)
    for kernel in kernels:
        for parameter in (*kernel.buffers, *kernel.threadgroup_buffers):
            _check_index(kernel, parameter)
        wrong = _shared_index(kernel.buffers) or _shared_index(kernel.threadgroup_buffers)
        wrong = wrong or _unknown_attribute(kernel) or _mixed_positions(kernel)
        if wrong is not None:
            raise _error(wrong, tokens, kernel.line)


def _wrong(token: Token, before: str, after: str) -> str | None:
    text = token.text
    if token.kind == "number":
        return f"{text}: Metal has no long long" if _LONG_LONG.fullmatch(text) else None
    if token.kind != "name":
        return None
    if text in _UNKNOWN:
        return f"the emulator does not know {_UNKNOWN[text]}"
    if text in _LACKING:
        return f"Metal has no {text!r}"
    if text == before == "long":
        return "Metal has no long long"
    if text in _KEYWORDS and after in _DECLARED_BEFORE and _is_type(before):
        return f"{text!r} is the name of a type: a variable can't have it"
    if text == "atomic_float" and before == "threadgroup":
        return "atomic_float is for device memory"
    return None


def _is_type(text: str) -> bool:
    """Tell whether a name that follows is declared: after a type, a pointer or a reference."""
    return text in _TYPES


def _check_index(kernel: MslSignature, parameter: MslParameter) -> None:
    if parameter.index is not None and parameter.index > LAST_BUFFER:
        kind = "threadgroup" if parameter.space == "threadgroup" else "buffer"
        raise MetalCompileError(
            f"the Metal source does not compile: kernel {kernel.name!r} has {parameter.name!r} at "
            f"[[{kind}({parameter.index})]], where {LAST_BUFFER} is the last",
            help="pass several of its tensors as views of one",
        )


def _shared_index(buffers: Sequence[MslParameter]) -> str | None:
    """The complaint where two buffers, which are in the order of their indices, have one."""
    for first, second in itertools.pairwise(buffers):
        if first.index == second.index:
            return f"{first.name!r} and {second.name!r} have one index, {first.index}"
    return None


def _unknown_attribute(kernel: MslSignature) -> str | None:
    for parameter in kernel.parameters:
        if parameter.space is None and parameter.attribute not in BUILTIN_ATTRIBUTES:
            asked = parameter.attribute and f"asks for {parameter.attribute!r}"
            return f"parameter {parameter.name!r} of {kernel.name!r} " + (
                f"{asked}, which the emulator does not know"
                if asked
                else "is neither a buffer nor has an attribute"
            )
    return None


def _mixed_positions(kernel: MslSignature) -> str | None:
    """The complaint where positions and extents have not all as many components."""
    counts = {
        int(p.declared[-1]) if p.declared[-1] in "234" else 1: p.name
        for p in kernel.parameters
        if "{i}" in BUILTIN_ATTRIBUTES.get(p.attribute or "", "")
    }
    if len(counts) < 2:
        return None
    (one, first), (other, second) = sorted(counts.items())[:2]
    return (
        f"{first!r} of {kernel.name!r} has {one} of a grid's components and {second!r} {other}: "
        "positions and extents have one number of them"
    )


def _error(wrong: str, tokens: Sequence[Token], line: int) -> MetalCompileError:
    source = "".join(token.text for token in tokens).splitlines()
    return MetalCompileError(
        f"the Metal source does not compile: {wrong}\n  line {line}: {source[line - 1].strip()}"
    )
