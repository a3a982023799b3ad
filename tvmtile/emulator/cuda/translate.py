"""CUDA source to C++ source, which differs from it in what a macro can't stand for.

`__shared__ half A[64];` becomes a reference to memory of the machine, an `asm` statement a call of what
its instruction means, and a kernel gets an entry that takes its arguments from a launch. Functions
with `asm` statements, which TVM wraps around each instruction, learn from where they are called. Lines
stay where they are, so that whatever is reported has the line of the CUDA source.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tvmtile.emulator.cuda.assembly import parse, registers_read, translated
from tvmtile.emulator.cuda.row import Instruction
from tvmtile.emulator.cuda.signature import CudaSignature
from tvmtile.emulator.lexer import Token, closing, split_at_commas, text_of
from tvmtile.errors import CudaEmulationError

SOURCE_NAME = "kernel.cu"
"""The name of the CUDA source in the compiler's messages."""
PRELUDE = "emulated_cuda.h"
"""The header that a source is compiled against."""
_ASM = frozenset(("asm", "__asm__", "__asm"))
_LINE = "emulator_line"
_NUMBER_OR_ADDRESS = re.compile(
    r"[*&]|^\s*(const\s+)?(unsigned|int|float|double|bool|u?int(8|16|32|64)_t)\b"
)
_RUNTIME = Path(__file__).parent / "runtime"
_OF_KERNELS = re.compile(r"^namespace ptx \{\n(.*?)^\}  // namespace ptx", re.MULTILINE | re.DOTALL)
_DEFINITION = re.compile(r"^(?!inline|static|template)(\w[^{};]*?\)) \{", re.MULTILINE)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>\n]*)>.*$", re.MULTILINE)


def translate(tokens: Sequence[Token], kernels: Sequence[CudaSignature], arch: int) -> str:
    """Make the C++ translation unit of a CUDA source: the source, and an entry for each kernel.

    It is compiled with the emulator's headers on the include path, for a compute capability: 90.

    Raises
    ------
    CudaEmulationError
        Of kind "unsupported", if it has an instruction that the emulator does not know.
    """
    source = _Source(tokens)
    body = _INCLUDE.sub(_unless_included, "".join(source.replaced()))
    entries = "\n".join(map(_entry, kernels))
    tables = "".join(dict.fromkeys(source.definitions))
    return (
        f'#include "{PRELUDE}"\n#define EMULATOR_ARCHITECTURE {arch}0\n{_declarations()}{tables}'
        f'#line 1 "{SOURCE_NAME}"\n{body}\n#line 1 "entries"\n{entries}\n'
    )


@functools.cache
def _declarations() -> str:
    """The functions that instructions call: the runtime's sources define them, in `ptx`."""
    sources = (path.read_text(encoding="utf-8") for path in sorted(_RUNTIME.glob("*.cc")))
    parts = (part for source in sources for part in _OF_KERNELS.findall(source))
    declared = (f"{head};\n" for part in parts for head in _DEFINITION.findall(part))
    return f"namespace emulator::ptx {{\n{''.join(declared)}}}\n"


@functools.cache
def _included() -> frozenset[str]:
    """The headers that the prelude includes and that are not ours."""
    prelude = (Path(__file__).parent / "include" / PRELUDE).read_text(encoding="utf-8")
    return frozenset(_INCLUDE.findall(prelude))


def _unless_included(directive: re.Match[str]) -> str:
    """Leave out what would only be skipped, a megabyte in `cuda.h`."""
    return "" if directive[1] in _included() else directive[0]


@functools.cache
def _definitions(row: Instruction) -> str:
    return row.definitions()


class _Source:
    """The tokens of a source, and what takes the place of some."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self.definitions: list[str] = []
        # By the place of the parenthesis that ends its parameters.
        self._told_lines = dict(self._functions_with_asm())
        self._types = dict(self._types_of_registers())

    def replaced(self) -> Iterator[str]:
        i = 0
        end_of_teller, parameters = -1, frozenset[str]()
        depth = 0
        while i < len(self._tokens):
            text = self._tokens[i].text
            if text in _ASM and self._is_statement(i):
                where = (_LINE, parameters) if i < end_of_teller else ("__LINE__", None)
                text, i = self._instruction(i, *where)
            elif text == "extern" and self._next(i) == "__shared__":
                text = ""
            elif text == "__shared__":
                if depth == 0:
                    raise _outside(self._tokens[i])
                text, i = self._shared(i)
            elif text in {"__device__", "__forceinline__"} and self._is_called(i):
                text = ""
            elif text == "__device__":
                text = "__attribute__((always_inline))"
            elif i in self._types:
                text = self._types[i]
            elif i in self._told_lines:
                has_parameters, end_of_teller = self._told_lines[i]
                parameters = frozenset(self._parameters(i))
                text = f"{', ' * has_parameters}int {_LINE} = __builtin_LINE())"
            depth += (text == "{") - (text == "}")
            yield text
            i += 1

    def _next(self, i: int) -> str:
        return next((t.text for t in self._tokens[i + 1 :] if t.kind != "space"), "")

    def _is_statement(self, i: int) -> bool:
        following = (t.text for t in self._tokens[i + 1 :] if t.kind != "space")
        text = next(following, "")
        while text in {"volatile", "__volatile__"}:
            text = next(following, "")
        return text == "("

    def _instruction(
        self, start: int, line: str, parameters: frozenset[str] | None
    ) -> tuple[str, int]:
        statement, end = parse(self._tokens, start)
        text, row = translated(statement, line, parameters)
        if row is not None:
            self.definitions.append(_definitions(row))
        return text + "\n" * text_of(self._tokens[start:end]).count("\n"), end

    def _functions_with_asm(self) -> Iterator[tuple[int, tuple[bool, int]]]:
        """Functions with `asm` statements but kernels: the place of `)`, and the end of the body."""
        i = 0
        begin = 0
        while i < len(self._tokens):
            text = self._tokens[i].text
            if text == ";":
                begin = i
            elif text == "{":
                head = self._tokens[begin:i]
                end = closing(self._tokens, i)
                close = next((j for j in range(i - 1, begin, -1) if self._tokens[j].text == ")"), 0)
                inside = any(t.text in _ASM for t in self._tokens[i:end])
                is_kernel = any(t.text == "__global__" for t in head)
                if any(t.text == "extern" for t in head) and not close:
                    end = i  # extern "C" { ... }
                elif close and inside and not is_kernel:
                    before = next(
                        t.text for t in reversed(self._tokens[:close]) if t.kind != "space"
                    )
                    yield close, (before != "(", end)
                i = begin = end
            i += 1

    def _parameters(self, close: int) -> dict[str, list[int]]:
        """The tokens of each parameter's type, by its name, as far as these are names."""
        tokens = self._tokens
        begin = next((i for i in range(close, 0, -1) if tokens[i].text in {";", "{", "}"}), 0)
        code = [i for i in range(begin, close + 1) if tokens[i].kind != "space"]
        found = {}
        for n, i in enumerate(code[:-1]):
            if tokens[i].kind == "name" and tokens[code[n + 1]].text in {",", ")", "["}:
                before = code[n - 1 :: -1]
                words = [*itertools.takewhile(lambda j: tokens[j].kind == "name", before)]
                is_value = words and tokens[before[len(words)]].text in {",", "("}
                found[tokens[i].text] = words[::-1] if is_value else []
        return found

    def _types_of_registers(self) -> Iterator[tuple[int, str]]:
        """Types of parameters that are a register of the caller's, which an instruction reads later."""
        tokens = self._tokens
        for close, (_, end) in self._told_lines.items():
            asm = [i for i in range(close, end) if tokens[i].text in _ASM and self._is_statement(i)]
            read = {name for i in asm for name in registers_read(parse(tokens, i)[0])}
            for name, words in self._parameters(close).items() if read else ():
                if name in read and words:
                    yield words[0], "::emulator::Register"
                    yield from ((j, "") for j in words[1:])

    def _is_called(self, start: int) -> bool:
        """Tell whether what is declared there is a function that is not inlined.

        It calls itself, or it stands for an instruction and takes numbers and addresses only, which are
        loaded, and the loads checked, before a call.
        """
        tokens = self._tokens
        declared = (j for j in range(start, len(tokens)) if tokens[j].text in {"(", ";", "="})
        head = next(declared, start)
        body = next((j for j in range(head, len(tokens)) if tokens[j].text in {"{", ";"}), head)
        names = [token.text for token in tokens[start:head] if token.kind == "name"]
        inside = tokens[body : closing(tokens, body)] if tokens[body].text == "{" else []
        if names and any(token.text == names[-1] for token in inside):
            return True
        parameters = split_at_commas(tokens[head + 1 : closing(tokens, head)])
        return any(token.text in _ASM for token in inside) and all(
            _NUMBER_OR_ADDRESS.search(text_of(parameter)) for parameter in parameters
        )

    def _shared(self, start: int) -> tuple[str, int]:
        """The declaration of variables that the threads of a block share."""
        tokens = self._tokens
        end = next(j for j in range(start, len(tokens)) if tokens[j].text == ";")
        code = [t for t in tokens[start + 1 : end] if t.kind != "space"]
        lines = "\n" * text_of(tokens[start:end]).count("\n")
        alignment, code = _without_alignment(code)
        begin = next(i for i, t in enumerate(code) if _ends_type(code, i))
        declared = text_of_code(code[:begin])
        variables = []
        for declarator in split_at_commas(code[begin:]):
            name, extents = declarator[0].text, text_of(declarator[1:])
            if extents.replace(" ", "") == "[]":
                variables.append(f"EMULATOR_DYNAMIC_SHARED({name}, {declared})")
                continue
            least = alignment or f"alignof({declared})"
            variables.append(f"EMULATOR_SHARED({least}, {name}, {extents}, {declared})")
        return "; ".join(variables) + lines, end - 1


def _outside(token: Token) -> CudaEmulationError:
    return CudaEmulationError(
        f"shared memory outside of a function\n  line {token.line}",
        help="declare it in the kernel",
        kind="unsupported",
        line=token.line,
    )


def _ends_type(code: Sequence[Token], i: int) -> bool:
    """Tell whether the declarator begins at `i`: a name before an extent, a comma or the end."""
    after = code[i + 1].text if i + 1 < len(code) else ";"
    return code[i].kind == "name" and after in {"[", ",", ";"}


def text_of_code(code: Sequence[Token]) -> str:
    """Tokens without the spaces between them, as text."""
    return " ".join(token.text for token in code)


def _without_alignment(code: list[Token]) -> tuple[str | None, list[Token]]:
    for i, token in enumerate(code):
        if token.text in {"alignas", "__align__"}:
            end = closing(code, i + 1)
            return text_of(code[i + 2 : end]), [*code[:i], *code[end + 1 :]]
    return None, code


def _entry(kernel: CudaSignature) -> str:
    arguments = ", ".join(
        f"({p.type}*)arguments[{i}]" if p.is_pointer else f"*({p.type}*)arguments[{i}]"
        for i, p in enumerate(kernel.parameters)
    )
    return f"EMULATOR_ENTRY({kernel.name}) {{ {kernel.name}({arguments}); }}"
