"""The parameters of the kernels of a CUDA source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvmtile.emulator.lexer import Token, closing, split_at_commas

_QUALIFIERS = frozenset(("const", "volatile", "__restrict__", "__grid_constant__", "restrict"))


@dataclass(frozen=True)
class CudaParameter:
    """A parameter of a kernel."""

    name: str
    """The parameter's name."""
    type: str
    """Its type without qualifiers, and without the `*` of a pointer: "half", "unsigned int"."""
    is_pointer: bool
    """Whether it is a pointer; else it is a number or a structure, passed by value."""
    is_const: bool
    """Whether the kernel can't write to what it points to."""


@dataclass(frozen=True)
class CudaSignature:
    """A kernel's name, parameters and launch bounds."""

    name: str
    """Its name."""
    parameters: tuple[CudaParameter, ...]
    """Its parameters, in order."""
    least_blocks: int
    """How many of its blocks have registers at once, by `__launch_bounds__(threads, blocks)`; or 1."""


def find_kernels(tokens: Sequence[Token]) -> list[CudaSignature]:
    """Find every `__global__` function of a source, each once."""
    code = [token for token in tokens if token.kind != "space"]
    kernels: dict[str, CudaSignature] = {}
    for i, token in enumerate(code):
        if token.text != "__global__":
            continue
        found = _declared(code, i + 1)
        if found is not None:
            kernels.setdefault(found.name, found)
    return list(kernels.values())


def _declared(code: Sequence[Token], start: int) -> CudaSignature | None:
    """The function that is declared from `start` on; attributes in between may have parentheses."""
    i, least_blocks = start, 1
    while i + 1 < len(code) and code[i].text not in {";", "{"}:
        if code[i].kind == "name" and code[i + 1].text == "(":
            end = closing(code, i + 1)
            parts = split_at_commas(code[i + 2 : end])
            if not code[i].text.startswith("__"):
                parameters = tuple(_parameter(part) for part in parts if len(part) > 1)
                return CudaSignature(code[i].text, parameters, least_blocks)
            if code[i].text == "__launch_bounds__" and len(parts) > 1:
                least_blocks = _number(parts[1])
            i = end
        i += 1
    return None


def _number(tokens: Sequence[Token]) -> int:
    """A number as it is written; 1 of a name or an expression, whose value is not known."""
    text = "".join(token.text for token in tokens)
    return int(text) if text.isdigit() and int(text) else 1


def _parameter(tokens: Sequence[Token]) -> CudaParameter:
    texts = [token.text for token in tokens]
    name = texts.pop()
    star = texts.index("*") if "*" in texts else len(texts)
    kept = [text for text in texts[:star] if text not in _QUALIFIERS]
    return CudaParameter(name, _joined(kept), "*" in texts, "const" in texts[:star])


def _joined(texts: Sequence[str]) -> str:
    return " ".join(texts).replace(" :: ", "::")
