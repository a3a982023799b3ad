"""Metal source to C++ source, which differs from it in the few tokens that a macro can't stand for.

`threadgroup half A[64];` in a function declares a variable that all threads of a threadgroup share;
everywhere else `threadgroup` qualifies what a pointer points to. The declaration becomes a reference
to memory of the runtime. `constant` means `const`, which must not be there twice. Lines stay where
they are, so that whatever is reported has the line of the Metal source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvmtile.emulator.lexer import Token, closing, split_at_commas, text_of
from tvmtile.emulator.metal.signature import BUILTIN_ATTRIBUTES, KernelSignature, Parameter
from tvmtile.errors import MetalCompileError

# What the compiler calls the Metal source in its messages.
SOURCE_NAME = "kernel.metal"


def translate(tokens: Sequence[Token], kernels: Sequence[KernelSignature]) -> str:
    """Make the C++ translation unit of a Metal source: the source, and an entry for each kernel.

    It is C++17, and compiled with the emulator's headers on the include path.

    Raises
    ------
    MetalCompileError
        If a threadgroup variable has an initial value.
    """
    body = "".join(_replaced(tokens))
    glue = "\n".join(_entry(kernel) for kernel in kernels)
    entries = f'#line 1 "entries"\n#include "emulator/entry.h"\n{glue}\n'
    return f'#line 1 "{SOURCE_NAME}"\n{body}\n{entries}'


def _replaced(tokens: Sequence[Token]) -> Iterator[str]:
    parentheses = 0
    alignment: str | None = None
    i = 0
    while i < len(tokens):
        text = tokens[i].text
        if text == "alignas" and (end := _alignas(tokens, i)) is not None:
            # Of a threadgroup variable: the macro says it to the runtime.
            alignment = text_of(tokens[i + 1 : end])
            i = end
            continue
        parentheses += (text == "(") - (text == ")")
        if text == "constant" and "const" in _neighbours(tokens, i):
            text = ""
        elif text == "threadgroup" and "[[" in _neighbours(tokens, i):
            text = "threadgroup_memory"  # an attribute's name, which the macro must leave alone
        elif text == "threadgroup" and parentheses == 0:
            end = next((j for j in range(i, len(tokens)) if tokens[j].text == ";"), len(tokens))
            variables = _threadgroup_variables(tokens[i + 1 : end], alignment)
            alignment = None
            if variables is not None and any(token.text == "=" for token in tokens[i:end]):
                raise MetalCompileError(
                    "the Metal source does not compile: a threadgroup variable has no initial value"
                    f"\n  line {tokens[i].line}: {text_of(tokens[i : end + 1])}",
                    help="let a thread store it, then put a threadgroup_barrier",
                )
            if variables is not None:
                # The newlines of a declaration over several lines follow it.
                text = variables + "\n" * text_of(tokens[i:end]).count("\n")
                i = end - 1
        yield text
        i += 1


def _alignas(tokens: Sequence[Token], i: int) -> int | None:
    """Where the specifier at `i` ends, if a threadgroup variable follows it."""
    end = next((j for j in range(i, len(tokens)) if tokens[j].text == "("), len(tokens))
    if end == len(tokens):
        return None
    end = closing(tokens, end) + 1
    after = next((t.text for t in tokens[end:] if t.kind != "space"), "")
    return end if after == "threadgroup" else None


def _neighbours(tokens: Sequence[Token], i: int) -> set[str]:
    before = next((t.text for t in reversed(tokens[:i]) if t.kind != "space"), "")
    after = next((t.text for t in tokens[i + 1 :] if t.kind != "space"), "")
    return {before, after}


def _threadgroup_variables(declaration: Sequence[Token], alignment: str | None) -> str | None:
    """The declaration without its `threadgroup`, as macro calls; None if it declares a pointer."""
    code = [token for token in declaration if token.kind != "space"]
    start = _end_of_type(code)
    if start >= len(code) or code[start].kind != "name":
        return None
    declared = " ".join(token.text for token in code[:start])
    variables = []
    for declarator in split_at_commas(code[start:]):
        name, extents = declarator[0], declarator[1:]
        if extents and extents[0].text not in {"[", "="}:
            return None
        macro = "EMULATOR_THREADGROUP("
        if alignment is not None:
            macro = f"EMULATOR_ALIGNED_THREADGROUP({alignment}, "
        variables.append(f"{macro}{name.text}, {text_of(extents)}, {declared})")
    return "; ".join(variables)


def _end_of_type(code: Sequence[Token]) -> int:
    """Where the declarator begins, in a declaration that begins with its type."""
    i = 0
    while i < len(code) and code[i].text in {"const", "volatile", "unsigned", "signed", "struct"}:
        i += 1
    if i < len(code) and code[i].kind == "name":
        i += 1
    while i + 1 < len(code) and code[i].text == "::":
        i += 2
    if i < len(code) and code[i].text == "<":
        i = closing(code, i) + 1
    while i < len(code) and code[i].text in {"const", "volatile"}:
        i += 1
    return i


def _entry(kernel: KernelSignature) -> str:
    bound = (*kernel.buffers, *kernel.threadgroup_buffers)
    arguments = ",\n    ".join(_argument(p, bound) for p in kernel.parameters)
    call = f"{kernel.name}(\n    {arguments});"
    return f"EMULATOR_ENTRY({kernel.name}) {{\n  {call}\n}}"


def _argument(parameter: Parameter, bound: Sequence[Parameter]) -> str:
    if parameter.space is not None:
        pointer = parameter.type.replace("constant", "const" if parameter.is_const else "")
        pointer = pointer.replace("const const", "const").replace("&", "*")
        cast = f"({pointer})arguments[{bound.index(parameter)}]"
        return f"*{cast}" if parameter.is_reference else cast
    value = BUILTIN_ATTRIBUTES[parameter.attribute or ""]
    components = ", ".join(value.format(i=i) for i in range(3)) if "{i}" in value else value
    return f"emulator::attribute<{parameter.declared}>({components})"
