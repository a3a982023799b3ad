"""The source of a kernel as tokens: as much of the grammar of C's family as front ends understand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*|/\*.*?\*/|(?m:^)[ \t]*\#(?:\\\n|[^\n])*)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
  | (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
  | (?P<sign>::|->|\[\[|\]\]|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">", "[[": "]]"}


class Token(NamedTuple):
    """A piece of the source."""

    kind: str
    """"name", "number", "string", "sign", or "space", which includes comments and directives."""
    text: str
    """The piece as it stands."""
    line: int
    """Where it begins, counted from 1."""


def tokenize(source: str) -> list[Token]:
    """Split the source into tokens, spaces among them: their texts joined are the source."""
    tokens: list[Token] = []
    line = 1
    for match in _TOKEN.finditer(source):
        kind, text = match.lastgroup or "sign", match[0]
        if text == "]]" and _is_two_subscripts(tokens):
            tokens += [Token(kind, "]", line)] * 2
            continue
        tokens.append(Token(kind, text, line))
        if kind in {"space", "string"}:
            line += text.count("\n")
    return tokens


def _is_two_subscripts(tokens: Sequence[Token]) -> bool:
    """Tell whether `]]` ends two subscripts, as in `a[b[0]]`, and no attribute."""
    depth = 0
    for token in reversed(tokens):
        if token.text == "[[":
            return False
        depth += (token.text == "]") - (token.text == "[")
        if depth < 0:
            return True
    return True


def text_of(tokens: Sequence[Token]) -> str:
    """The source of some tokens."""
    return "".join(token.text for token in tokens)


def closing(tokens: Sequence[Token], start: int) -> int:
    """Find the bracket that closes the one at `start`; the end of the tokens if none does."""
    opening, end = tokens[start].text, _CLOSING[tokens[start].text]
    depth = 0
    for i in range(start, len(tokens)):
        depth += (tokens[i].text == opening) - (tokens[i].text == end)
        if depth == 0:
            return i
    return len(tokens)


def split_at_commas(tokens: Sequence[Token]) -> list[list[Token]]:
    """Split at the commas that are in no bracket, those of template arguments included.

    Within other brackets `<` and `>` compare and shift, as far as commas go.
    """
    parts: list[list[Token]] = [[]]
    inside = angles = 0
    for token in tokens:
        change = (token.text in _CLOSING) - (token.text in _CLOSING.values())
        if token.text not in ("<", ">"):
            inside += change
        elif not inside:
            angles += change
        if token.text == "," and not inside and not angles:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if any(token.kind != "space" for token in part)]
