"""Metal source to C++ source, which differs from it in the few tokens that a macro can't stand for.

`threadgroup half A[64];` in a function declares a variable that all threads of a threadgroup share;
everywhere else `threadgroup` qualifies what a pointer points to. The declaration becomes a reference
to memory of the runtime. `constant` means `const`, which must not be there twice. Lines stay where
they are, so that whatever is reported has the line of the Metal source.

Behind a variable of a thread that is declared without a value stands an object that says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvmtile.emulator.lexer import Token, closing, split_at_commas, text_of
from tvmtile.emulator.metal.signature import BUILTIN_ATTRIBUTES, MslParameter, MslSignature
from tvmtile.errors import MetalCompileError

# What begins a statement that declares nothing, or something that has a value or is no thread's own.
_NO_VARIABLES = frozenset(
    (
        *("break", "case", "const", "constant", "constexpr", "continue"),
        *("default", "device", "do", "else", "extern", "return"),
        *("static", "struct", "threadgroup", "typedef", "union", "using", "while"),
    )
)

# What the compiler calls the Metal source in its messages.
SOURCE_NAME = "kernel.metal"


def translate(tokens: Sequence[Token], kernels: Sequence[MslSignature]) -> str:
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
    unset = _unset_variables(tokens)
    i = 0
    while i < len(tokens):
        text = tokens[i].text + unset.get(i, "")
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
    """The end of the specifier at `i`, if a threadgroup variable follows it."""
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


def _unset_variables(tokens: Sequence[Token]) -> dict[int, str]:
    """The texts to put behind the semicolons of declarations, by the index of their token."""
    places = [i for i, token in enumerate(tokens) if token.kind != "space"]
    code = [tokens[i] for i in places]
    before = ["", *(token.text for token in code)]
    unset: dict[int, str] = {}
    # Of each bracket that is open, what stands in front of it and whether statements stand in it.
    brackets = [("", False)]
    closed = ""  # in front of the parenthesis that closed last
    for k, token in enumerate(code):
        if brackets[-1][1] and before[k] in {"{", "}", ";"}:
            end = _end_of_statement(code, k)
            for name, extent in _without_value(code[k:end]) if end < len(code) else ():
                if not _is_filled_at_once(code, end, name, extent):
                    text = f' emulator::Unset unset_{name}({name}, "{name}");'
                    unset[places[end]] = unset.get(places[end], "") + text
        if token.text == "(":
            brackets.append((before[k], False))
        elif token.text == "{":
            inner = brackets[-1][1] and before[k] in {"{", "}", ";", ":", "else", "do"}
            # Nothing may stand behind a variable that a `case` jumps over.
            brackets.append(("", inner or (before[k] == ")" and closed != "switch")))
        elif token.text in {")", "}"} and len(brackets) > 1:
            closed, _ = brackets.pop()
    return unset


def _end_of_statement(code: Sequence[Token], start: int) -> int:
    return next((j for j in range(start, len(code)) if code[j].text == ";"), len(code))


def _without_value(statement: Sequence[Token]) -> Iterator[tuple[str, int | None]]:
    """The variables that a statement declares without a value, each with an array's extent, or -1."""
    code = list(statement)
    if code and code[0].text == "alignas":
        code = code[closing(code, 1) + 1 :]
    if code and code[0].text in {"thread", "volatile"}:
        code = code[1:]
    if not code or code[0].kind != "name" or code[0].text in _NO_VARIABLES:
        return
    for name, *rest in split_at_commas(code[_end_of_type(code) :]):
        has_value = any(token.text in {"=", "(", "{"} for token in rest)
        if name.kind == "name" and not has_value and (not rest or rest[0].text == "["):
            is_plain = len(rest) == 3 and rest[1].text.isdecimal()
            yield name.text, (int(rest[1].text) if is_plain else -1) if rest else None


def _is_filled_at_once(code: Sequence[Token], start: int, name: str, extent: int | None) -> bool:
    """Tell whether all elements are written, in the same block and before anything else is done.

    Generated code does so. What is written so can't be read before: no access of it needs a call.
    """
    missing = {""} if extent is None else {str(i) for i in range(extent)}
    if not missing:
        return False
    depth = 0
    j = start
    while depth >= 0 and j + 1 < len(code):
        j += 1
        depth += (code[j].text == "{") - (code[j].text == "}")
        if code[j].text != name:
            continue
        equals = j + (1 if extent is None else 4)
        is_statement = not depth and code[j - 1].text in {";", "{", "}"}
        value = [token.text for token in code[equals : _end_of_statement(code, equals)]]
        if not is_statement or value[:1] != ["="] or value[1:2] == ["="] or name in value:
            return False
        missing.discard("" if extent is None else code[j + 2].text)
        if not missing:
            return True
    return False


def _end_of_type(code: Sequence[Token]) -> int:
    """The start of the declarator, in a declaration that begins with its type."""
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


def _entry(kernel: MslSignature) -> str:
    bound = (*kernel.buffers, *kernel.threadgroup_buffers)
    arguments = ",\n    ".join(_argument(p, bound) for p in kernel.parameters)
    call = f"{kernel.name}(\n    {arguments});"
    return f"EMULATOR_ENTRY({kernel.name}) {{\n  {call}\n}}"


def _argument(parameter: MslParameter, bound: Sequence[MslParameter]) -> str:
    if parameter.space is not None:
        pointer = parameter.type.replace("constant", "const" if parameter.is_const else "")
        pointer = pointer.replace("const const", "const").replace("&", "*")
        cast = f"({pointer})arguments[{bound.index(parameter)}]"
        return f"*{cast}" if parameter.is_reference else cast
    value = BUILTIN_ATTRIBUTES[parameter.attribute or ""]
    components = ", ".join(value.format(i=i) for i in range(3)) if "{i}" in value else value
    return f"emulator::attribute<{parameter.declared}>({components})"
