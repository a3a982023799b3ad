"""The parameters of the kernels of a Metal source, and how a launch fills them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvmtile.emulator.lexer import Token, closing, split_at_commas, text_of

# What a kernel may ask about its thread, in terms of the runtime's `context`: three arguments of
# emulator::attribute<T>.
BUILTIN_ATTRIBUTES = {
    "thread_position_in_threadgroup": "context.position[{i}]",
    "threadgroup_position_in_grid": "context.block_position[{i}]",
    "thread_position_in_grid": (
        "context.block_position[{i}] * context.threads[{i}] + context.position[{i}]"
    ),
    "threads_per_threadgroup": "context.threads[{i}]",
    "dispatch_threads_per_threadgroup": "context.threads[{i}]",
    "threadgroups_per_grid": "context.grid[{i}]",
    "threads_per_grid": "context.grid[{i}] * context.threads[{i}]",
    "grid_size": "context.grid[{i}] * context.threads[{i}]",
    "grid_origin": "0",
    "thread_index_in_threadgroup": "context.index",
    "thread_index_in_simdgroup": "context.lane",
    "simdgroup_index_in_threadgroup": "context.warp",
    "thread_index_in_quadgroup": "context.index % 4",
    "quadgroup_index_in_threadgroup": "context.index / 4",
    "threads_per_simdgroup": "emulator::kWarpSize",
    "thread_execution_width": "emulator::kWarpSize",
    "simdgroups_per_threadgroup": "context.warps",
    "dispatch_simdgroups_per_threadgroup": "context.warps",
}
# Metal's own scalars and vectors.
_SCALARS = "bool char uchar short ushort int uint long ulong half bfloat float"
TYPES = frozenset(
    (*_SCALARS.split(), "void", *(f"{name}{n}" for name in _SCALARS.split() for n in (2, 3, 4)))
)
_ADDRESS_SPACES = ("device", "constant", "threadgroup", "thread")


@dataclass(frozen=True)
class StructField:
    """A field of a struct: the name of its type, and its own."""

    type: str
    name: str


@dataclass(frozen=True)
class MslParameter:
    """A parameter of a kernel."""

    name: str
    """The parameter's name."""
    declared: str
    """Its type as written, without qualifiers such as `device` and `const`: "half4", "args_t"."""
    type: str
    """Its whole type: "device const half4*"."""
    space: str | None = None
    """The address space of what it points or refers to; None for an attribute."""
    index: int | None = None
    """Its place in the table of buffers, or of threadgroup memory."""
    attribute: str | None = None
    """The builtin about the thread that it asks for, "thread_position_in_grid"."""
    is_reference: bool = False
    """Whether it is a reference."""
    is_const: bool = False
    """Whether the kernel can't write to it."""


@dataclass(frozen=True)
class MslSignature:
    """A kernel's name and parameters, and where it begins."""

    name: str
    parameters: tuple[MslParameter, ...]
    line: int
    argument_struct: tuple[StructField, ...] | None = None
    most_threads: int | None = None
    """The number in [[max_total_threads_per_threadgroup]]."""

    @property
    def buffers(self) -> tuple[MslParameter, ...]:
        """The parameters that buffers are bound to, by their index."""
        bound = [p for p in self.parameters if p.space in {"device", "constant"}]
        return tuple(sorted(bound, key=lambda p: p.index or 0))

    @property
    def threadgroup_buffers(self) -> tuple[MslParameter, ...]:
        """The parameters that the host gives threadgroup memory to, by their index."""
        bound = [p for p in self.parameters if p.space == "threadgroup"]
        return tuple(sorted(bound, key=lambda p: p.index or 0))


def find_kernels(tokens: Sequence[Token]) -> list[MslSignature]:
    """Find every kernel function of a source, in its order."""
    code = [token for token in tokens if token.kind != "space"]
    structs = _find_structs(code)
    kernels = []
    for i, token in enumerate(code):
        if token.text != "kernel":
            continue
        first, name = _around_attributes(code, i)
        while name + 1 < len(code) and code[name + 1].text != "(":
            name += 1
        if name + 1 >= len(code):
            break
        limit = [token.text for token in code[first:name]]
        most = None
        if "max_total_threads_per_threadgroup" in limit:
            number = limit[limit.index("max_total_threads_per_threadgroup") + 2]
            most = int(number) if number.isdecimal() else None
        end = closing(code, name + 1)
        parameters = _number([_parameter(p) for p in split_at_commas(code[name + 2 : end])])
        # TVM puts a kernel's scalars into a struct that it names after the kernel.
        scalars = f"{code[name].text}_args_t"
        struct = structs.get(scalars) if scalars in {p.declared for p in parameters} else None
        kernels.append(MslSignature(code[name].text, parameters, token.line, struct, most))
    return kernels


def _around_attributes(code: Sequence[Token], i: int) -> tuple[int, int]:
    """The start of a kernel's attributes, perhaps with `kernel`, and what it is declared as."""
    first = next((j + 1 for j in range(i - 1, -1, -1) if code[j].text in {";", "}"}), 0)
    end = i + 1
    if any(token.text == "[[" for token in code[first:i]) and code[i - 1].text != "]]":
        end = next((j + 1 for j in range(i, len(code)) if code[j].text == "]]"), i + 1)
    while end < len(code) and code[end].text == "[[":
        end = closing(code, end) + 1
    return first, end


def _find_structs(code: Sequence[Token]) -> dict[str, tuple[StructField, ...]]:
    """The fields of structs of plain fields; a struct that has anything else is left out."""
    structs = {}
    for i in range(len(code) - 2):
        if code[i].text != "struct" or code[i + 2].text != "{":
            continue
        body = [token.text for token in code[i + 3 : closing(code, i + 2)]]
        if not {"(", "{"} & set(body):
            structs[code[i + 1].text] = _plain_fields(body)
    return structs


def _plain_fields(body: Sequence[str]) -> tuple[StructField, ...]:
    fields = []
    declaration: list[str] = []
    for text in body:
        if text != ";":
            declaration.append(text)
            continue
        if len(declaration) > 1:
            fields.append(StructField(declaration[0], declaration[1]))
        declaration = []
    return tuple(fields)


def _parameter(tokens: Sequence[Token]) -> MslParameter:
    attribute, number = _attribute(tokens)
    plain = _without_attributes(tokens)
    texts = [token.text for token in plain]
    name = texts.pop()
    pointee = texts[: next((i for i, text in enumerate(texts) if text in "*&"), len(texts))]
    space = next((text for text in texts if text in _ADDRESS_SPACES), None)
    declared = [t for t in texts if t not in (*_ADDRESS_SPACES, "const", "volatile", "*", "&")]
    return MslParameter(
        name,
        "".join(declared),
        " ".join(texts),
        space,
        number,
        attribute if space is None else None,
        texts[-1] == "&",
        space == "constant" or "const" in pointee,
    )


def _attribute(tokens: Sequence[Token]) -> tuple[str | None, int | None]:
    for i, token in enumerate(tokens):
        if token.text != "[[":
            continue
        inside = tokens[i + 1 : closing(tokens, i)]
        number = int(inside[2].text) if len(inside) > 2 and inside[1].text == "(" else None
        return text_of(inside[:1]), number
    return None, None


def _without_attributes(tokens: Sequence[Token]) -> list[Token]:
    kept: list[Token] = []
    i = 0
    while i < len(tokens):
        if tokens[i].text == "[[":
            i = closing(tokens, i)
        else:
            kept.append(tokens[i])
        i += 1
    return kept


def _number(parameters: Sequence[MslParameter]) -> tuple[MslParameter, ...]:
    """Give the buffers without a number the lowest that is free, as Metal does."""
    taken = {(p.space == "threadgroup", p.index) for p in parameters if p.index is not None}
    numbered = []
    for parameter in parameters:
        if parameter.space is None or parameter.index is not None:
            numbered.append(parameter)
            continue
        shared = parameter.space == "threadgroup"
        index = next(i for i in range(len(parameters)) if (shared, i) not in taken)
        taken.add((shared, index))
        numbered.append(replace(parameter, index=index))
    return tuple(numbered)
