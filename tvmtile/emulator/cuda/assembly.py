"""`asm` statements of a CUDA source as calls of what their instructions mean.

TVM wraps each PTX instruction into a function around one statement. A statement is taken apart into its
text and its operands; the instruction is looked up in the table. Whoever writes several instructions
into one statement, with registers of their own, is told that the emulator does not read PTX.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvmtile.emulator.cuda.instructions import Instruction, find
from tvmtile.emulator.lexer import Token, closing, split_at_commas, text_of
from tvmtile.errors import CudaEmulationError

_TYPES = {"h": "std::uint16_t", "r": "std::uint32_t", "l": "std::uint64_t"}
_TYPES |= {"f": "float", "d": "double", "n": "int"}
# A predicate that is set from an operand, and an instruction that depends on it or takes it.
_PREDICATED = re.compile(
    r"\{ \.reg \.pred (?P<p>\w+); setp\.ne\.(?:b32|s32|u32) (?P=p), (?P<value>%\d+), 0; "
    r"(?P<guard>@(?P=p) )?(?P<instruction>[^;]+); \}"
)
_INSTRUCTION = re.compile(r"(?P<name>[a-z][\w.:]*)\s*(?P<operands>[^;]*)")
# What is no instruction of its own, by its whole text.
_IDIOMS = {
    "{ .reg .b32 flipped; not.b32 flipped, %1; add.s32 %0, flipped, 1; }": "{0} = 0u - (unsigned){1}",
    "{ .reg .b32 last; not.b32 last, %2; add.s32 last, last, %1; add.s32 %0, last, 1; }": (
        "{0} = (unsigned){1} - (unsigned){2}"
    ),
    "{ .reg .b32 more, last; mad.lo.s32 more, %1, %2, %1; not.b32 last, %1; "
    "add.s32 last, last, more; add.s32 %0, last, 1; }": "{0} = (unsigned){1} * (unsigned){2}",
    "": "(void)0",
}
# The loops around a wait that may give up, as TVM and CUTLASS write them.
_WAIT = re.compile(
    r"\{ \.reg \.pred (?P<p>\w+); (?P<loop>\w+): "
    r"mbarrier\.try_wait\.parity(?:\.acquire\.(?P<scope>cta|cluster))?\.shared(?:::cta)?\.b64 (?P=p), "
    r"\[(?P<barrier>%\d+)\], (?P<parity>%\d+)(?:, %\w+)?; "
    r"@(?P=p) bra(?:\.uni)? (?P<done>\w+); bra(?:\.uni)? (?P=loop); "
    r"(?P=done): \}"
)
# One lane of a warp, as TVM, CUTLASS and CCCL choose it: the register is 1 there, else what it was.
_ELECT = re.compile(
    r"\{ (?:\.reg \.b32 (?P<lane>%?\w+); )?\.reg \.pred (?P<p>%?\w+); "
    r"elect\.sync (?:_|%?\w+)\|(?P=p), (?P<mask>%\d+|0[xX]\w+|-1); "
    r"@(?P=p) mov\.[su]32 (?P<chosen>%\d+), 1; (?:mov\.[su]32 (?P<index>%\d+), (?P=lane); )?\}"
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_SPECIAL = {
    **{
        name.format(axis): value.format(axis=axis)
        for axis in "xyz"
        for name, value in (
            ("%cluster_ctaid.{}", "(blockIdx.{axis} % ::emulator::cluster_extent().{axis})"),
            ("%cluster_nctaid.{}", "::emulator::cluster_extent().{axis}"),
            ("%clusterid.{}", "(blockIdx.{axis} / ::emulator::cluster_extent().{axis})"),
            ("%nclusterid.{}", "(gridDim.{axis} / ::emulator::cluster_extent().{axis})"),
        )
    },
    "%cluster_ctarank": "::emulator::rank_in_cluster()",
    "%cluster_nctarank": "::emulator::blocks_of_cluster()",
    "%laneid": "::emulator::this_lane()",
}


@dataclass(frozen=True)
class Operand:
    """An operand of a statement: its constraint and its expression."""

    constraint: str
    expression: str

    @property
    def is_written(self) -> bool:
        return self.constraint[:1] in "=+"

    @property
    def type(self) -> str:
        return _TYPES.get(self.constraint[-1:], "int")


@dataclass(frozen=True)
class Statement:
    """An `asm` statement."""

    text: str
    """Its instructions, white space made single."""
    operands: tuple[Operand, ...]
    """The operands that `%0`, `%1`, ... stand for."""
    line: int
    """Where it begins."""


def parse(tokens: Sequence[Token], start: int) -> tuple[Statement, int]:
    """Take apart the statement whose `asm` is at `start`; also where it ends, at its parenthesis."""
    opening = next(i for i in range(start, len(tokens)) if tokens[i].text == "(")
    end = closing(tokens, opening)
    parts = _split_at_colons(tokens[opening + 1 : end])
    strings = [t.text[1:-1] for t in parts[0] if t.kind == "string"]
    text = "".join(strings).replace("\\n", " ").replace("\\t", " ").replace("%%", "%")
    operands = [_operand(p) for part in parts[1:3] for p in split_at_commas(part)]
    return Statement(" ".join(text.split()), tuple(operands), tokens[start].line), end


def _split_at_colons(tokens: Sequence[Token]) -> list[list[Token]]:
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.text in "([{") - (token.text in ")]}") if token.kind == "sign" else 0
        if depth == 0 and token.text in (":", "::"):
            parts += [[] for _ in token.text]
        else:
            parts[-1].append(token)
    return parts


def _operand(tokens: Sequence[Token]) -> Operand:
    constraint = next(token.text.strip('"') for token in tokens if token.kind != "space")
    opening = next(i for i, token in enumerate(tokens) if token.text == "(")
    expression = text_of(tokens[opening + 1 : closing(tokens, opening)])
    return Operand(constraint, " ".join(expression.split()))


def translated(
    statement: Statement, line: str, parameters: frozenset[str] | None = None
) -> tuple[str, Instruction | None]:
    """The C++ of a statement, and the row of its instruction; none for what is no instruction.

    `line` is an expression: where the kernel asks for it. In a function with such parameters, other
    variables are no registers that stay: a compiler may choose others each time.

    Raises
    ------
    CudaEmulationError
        Of kind "unsupported", if the instruction is not in the table.
    """
    if statement.text in _IDIOMS:
        expressions = [f"({operand.expression})" for operand in statement.operands]
        return _IDIOMS[statement.text].format(*expressions), None
    wait = _WAIT.fullmatch(statement.text)
    if wait is not None:
        barrier, parity = (_expression(statement, wait[name]) for name in ("barrier", "parity"))
        of_cluster = str(wait["scope"] == "cluster").lower()
        return f"::emulator::ptx::mbarrier_wait({line}, {barrier}, {parity}, {of_cluster})", None
    elect = _ELECT.fullmatch(statement.text)
    if elect is not None:
        return _elected(statement, elect), None
    predicated, row, groups = _instruction(statement)
    predicates = {}
    if predicated:
        predicates[predicated["p"]] = f"((int)({_expression(statement, predicated['value'])}) != 0)"
    if row is None:
        raise _unknown(statement)
    before, arguments, after = _arguments(statement, groups, predicates, row, parameters)
    call = row.call.format(*arguments, line=line)
    guard = f"if {predicates[predicated['p']]} " if predicated and predicated["guard"] else ""
    # One statement with the semicolon behind it, as `asm` is: an `else` may follow.
    text = f"do {guard}{{ {''.join(before)}{call}; {''.join(after)}}} while (false)"
    return text, row


def registers_read(statement: Statement) -> set[str]:
    """Expressions of the registers that the instruction reads in the background."""
    _, row, groups = _instruction(statement)
    if row is None or not row.is_background:
        return set()
    return {m.expression for group in groups[1:] for m in _members(statement, group)}


def _instruction(
    statement: Statement,
) -> tuple[re.Match[str] | None, Instruction | None, list[str]]:
    """Its predicate, the row of the instruction, and the groups of its operands."""
    predicated = _PREDICATED.fullmatch(statement.text)
    body = predicated["instruction"] if predicated else statement.text.rstrip("; ")
    match = _INSTRUCTION.fullmatch(body)
    groups = _groups(match["operands"]) if match else []
    return predicated, find(match["name"], len(groups)) if match else None, groups


def _elected(statement: Statement, elect: re.Match[str]) -> str:
    """The first lane of the mask is the one."""
    mask, chosen = _expression(statement, elect["mask"]), _expression(statement, elect["chosen"])
    index = (
        f"{_expression(statement, elect['index'])} = emulator_leader; " if elect["index"] else ""
    )
    return (
        f"do {{ const unsigned emulator_leader = __builtin_ctz({mask}); __syncwarp({mask}); "
        f"if (::emulator::this_lane() == emulator_leader) {chosen} = 1; {index}}} while (false)"
    )


def _groups(text: str) -> list[str]:
    """The operands of an instruction; an address with coordinates is both, and `_` is none."""
    groups: list[str] = []
    depth, start = 0, 0
    for i, character in enumerate(f"{text},"):
        depth += (character in "{[") - (character in "}]")
        if character == "," and depth == 0:
            part = text[start:i].strip()
            start = i + 1
            if part.startswith("["):
                groups += _groups(part[1:-1])
            elif part not in {"", "_"}:
                groups.append(part)
    return groups


def _arguments(
    statement: Statement,
    groups: Sequence[str],
    predicates: Mapping[str, str],
    row: Instruction,
    parameters: frozenset[str] | None,
) -> tuple[list[str], list[str], list[str]]:
    """The text before the call, its arguments, and the text behind it."""
    before: list[str] = []
    arguments: list[str] = []
    after: list[str] = []
    for number, group in enumerate(groups):
        if not group.startswith("{"):
            arguments.append(predicates.get(group) or _expression(statement, group))
            continue
        members = _members(statement, group)
        name = f"emulator_{number}"
        arguments.append(name)
        if row.is_background and number == 0:
            places = ", ".join(f"&({m.expression})" for m in members)
            before.append(f"{members[0].type}* const {name}[] = {{{places}}}; ")
            continue
        if row.is_background:
            listed = ", ".join(_register(m.expression, parameters) for m in members)
            before.append(f"const ::emulator::Register {name}[] = {{{listed}}}; ")
            continue
        values = ", ".join(f"({m.type})({m.expression})" for m in members)
        initial = "" if members[0].constraint.startswith("=") else f" = {{{values}}}"
        before.append(f"{members[0].type} {name}[{len(members)}]{initial}; ")
        after += [f"{m.expression} = {name}[{i}]; " for i, m in enumerate(members) if m.is_written]
    return before, arguments, after


def _register(expression: str, parameters: frozenset[str] | None) -> str:
    """The register that an expression names, or a value alone."""
    stays = parameters is None or not parameters.isdisjoint(_NAME.findall(expression))
    return f"({expression})" if stays else f"(std::uint32_t)({expression})"


def _members(statement: Statement, group: str) -> list[Operand]:
    """The operands in braces."""
    parts = group[1:-1].split(",") if group.startswith("{") else ()
    return [_member(statement, part.strip()) for part in parts]


def _member(statement: Statement, text: str) -> Operand:
    if text in _SPECIAL:
        return Operand("r", _SPECIAL[text])
    if text.startswith("%") and text[1:].isdigit() and int(text[1:]) < len(statement.operands):
        return statement.operands[int(text[1:])]
    raise _unknown(statement)


def _expression(statement: Statement, text: str) -> str:
    if not text.startswith("%"):
        return text
    operand = _member(statement, text)
    return f"({operand.expression})"


def _unknown(statement: Statement) -> CudaEmulationError:
    return CudaEmulationError(
        f"the emulator does not know the PTX instruction `{statement.text}`\n"
        f"  line {statement.line}",
        help="an instruction is a row of tvmtile.emulator.cuda.instructions.ROWS",
        kind="unsupported",
        line=statement.line,
    )
