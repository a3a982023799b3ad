"""Address spaces in pointers: what Metal's compiler checks and a C++ compiler knows nothing of.

Two mistakes are found. A pointer to one address space made from a pointer to another one, by a cast,
in a declaration, an assignment or a call; and a pointer or reference without an address space.
What an expression points to is known where it leads back to a variable by `&`, `+`, subscripts,
parentheses and casts; of other expressions (calls, members, conditionals) nothing is said. A function
is known by its definition in the source, of overloads those that take as many arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvmtile.emulator.lexer import Token, closing, split_at_commas, text_of
from tvmtile.emulator.metal.signature import TYPES
from tvmtile.errors import MetalEmulationError

_SPACES = frozenset({"device", "threadgroup", "thread", "constant"})
_QUALIFIERS = frozenset({"const", "volatile", "unsigned", "signed", "struct"})
_STATEMENT = frozenset({"", ";", "{", "}", ")", ":"})  # what one stands behind
_CASTS = frozenset({"static_cast", "reinterpret_cast", "const_cast"})


@dataclass(frozen=True)
class _Type:
    """A type at the beginning of some tokens: its address space, its stars, where it ends."""

    space: str | None
    stars: int
    end: int


@dataclass(frozen=True)
class _Variable:
    name: str
    space: str
    dimensions: int  # how often it can be subscripted and still be an address


class _Checker:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self.lines = text_of(tokens).splitlines()
        self.code = [token for token in tokens if token.kind != "space"]
        self.kernel = ""
        self.parentheses = 0
        before = zip(self.code, self.code[1:], strict=False)
        self.types = TYPES | {name.text for word, name in before if word.text == "struct"}
        self.functions = self.find_functions()
        self.scopes: list[dict[str, _Variable]] = [{}]
        self.parameters: dict[str, _Variable] = {}  # their scope is the body that follows

    def text(self, i: int) -> str:
        return self.code[i].text if 0 <= i < len(self.code) else ""

    def run(self) -> None:
        for i, token in enumerate(self.code):
            self.parentheses += (token.text == "(") - (token.text == ")")
            if token.text == "{":
                self.scopes.append(self.parameters)
                self.parameters = {}
            elif token.text == "}" and len(self.scopes) > 1:
                self.scopes.pop()
            elif token.text == "kernel":
                self.kernel = self.name_before_parenthesis(i)
            elif token.text in _SPACES and self.text(i - 1) != "*":
                self.declare(i)
            elif token.text in self.types:
                self.check_type(i)
                if len(self.scopes) > 1 and self.text(i - 1) in _STATEMENT:
                    self.declare(i, "thread")
            self.check_cast(i)
            self.check_call(i)
            self.check_assignment(i)

    def name_before_parenthesis(self, i: int) -> str:
        while i < len(self.code) and self.text(i + 1) != "(":
            i += 1
        return self.text(i)

    # --- functions

    def find_functions(self) -> dict[str, list[list[_Type | None]]]:
        """The types of the parameters, by name, of each function that is defined in the source."""
        functions: dict[str, list[list[_Type | None]]] = {}
        for i, token in enumerate(self.code):
            named = self.code[i - 1].kind == "name" or self.text(i - 1) in {"*", "&", ">"}
            if not (i and token.kind == "name" and named and self.text(i + 1) == "("):
                continue
            end = closing(self.code, i + 1)
            if self.text(end + 1) == "{" and token.text not in {"if", "for", "while", "switch"}:
                types = [self.type_at(start) for start in self.arguments(i + 1)]
                functions.setdefault(token.text, []).append(types)
        return functions

    def arguments(self, opening: int) -> list[int]:
        """The start of each argument in a parenthesis."""
        starts, at = [], opening + 1
        for part in split_at_commas(self.code[at : closing(self.code, opening)]):
            starts.append(at)
            at += len(part) + 1
        return starts

    def check_call(self, i: int) -> None:
        taken = self.functions.get(self.text(i)) if self.text(i + 1) == "(" else None
        if taken is None or len(self.scopes) == 1:
            return
        starts = self.arguments(i + 1)
        for number, start in enumerate(starts):
            types = [types[number] for types in taken if len(types) == len(starts)]
            spaces = {t.space if t is not None and t.stars else None for t in types}
            if len(spaces) == 1 and (space := spaces.pop()) is not None:
                self.check(start, space, "a pointer to", self.code[i].line)

    # --- declarations

    def check_type(self, i: int) -> None:
        """Refuse a pointer or reference to a type that is known, if nothing says where that lies."""
        first, after = i, i + 1
        while self.text(first - 1) in _QUALIFIERS | _SPACES:
            first -= 1
        while self.text(after) in {"const", "volatile", *_SPACES}:
            after += 1
        if self.text(after) not in {"*", "&"}:
            return
        if _SPACES.isdisjoint(token.text for token in self.code[first:after]):
            what = {"*": "a pointer", "&": "a reference"}[self.text(after)]
            raise self.error(
                f"{what} to {self.text(i)} without an address space",
                self.code[i].line,
                "write `device`, `threadgroup`, `thread` or `constant` in front of the type",
            )

    def check_assignment(self, i: int) -> None:
        if self.text(i + 1) != "=" or self.text(i + 2) == "=" or self.text(i - 1) not in _STATEMENT:
            return
        variable = self.look_up(self.text(i))
        if variable is not None and variable.dimensions:
            self.check(i + 2, variable.space, "a pointer to", self.code[i].line)

    def declare(self, start: int, default: str | None = None) -> None:
        while start and self.text(start - 1) in {"const", "volatile"}:
            start -= 1
        declared = self.type_at(start)
        if declared is None:
            return
        declared = replace(declared, space=declared.space or default)
        if declared.space is None:
            return
        after = self.declarator(declared.end, declared)
        # A comma in a list of parameters begins another type.
        while self.text(after) == "," and not self.parentheses:
            after = self.declarator(after + 1, replace(declared, stars=0))

    def declarator(self, start: int, declared: _Type) -> int:
        """Take in the variable that is declared at `start`; say where its declarator ends."""
        name, stars = start, declared.stars
        while self.text(name) in {"*", "&", "const"}:
            stars += self.text(name) == "*"
            name += 1
        if name >= len(self.code) or self.code[name].kind != "name" or declared.space is None:
            return len(self.code)
        dimensions = stars
        after = name + 1
        while self.text(after) == "[":
            dimensions += 1
            after = closing(self.code, after) + 1
        variable = _Variable(self.text(name), declared.space, dimensions)
        is_parameter = self.parentheses > 0 and self.text(after) in {",", ")", "[["}
        (self.parameters if is_parameter else self.scopes[-1])[variable.name] = variable
        if self.text(after) == "=" and stars:
            self.check(after + 1, declared.space, "a pointer to", self.code[name].line)
        return after

    def type_at(self, start: int) -> _Type | None:
        i = start
        space = None
        named = False
        while i < len(self.code):
            text = self.text(i)
            if text in _SPACES:
                space = text
            elif text in {"unsigned", "signed"}:
                named = True
            elif text in _QUALIFIERS:
                pass
            elif self.code[i].kind == "name" and not named:
                named = True
                while self.text(i + 1) == "::":
                    i += 2
                if self.text(i + 1) == "<":
                    i = closing(self.code, i + 1)
            else:
                break
            i += 1
        stars = 0
        while self.text(i) in {"*", "const", "volatile", "thread"} and named:
            stars += self.text(i) == "*"
            i += 1
        return _Type(space, stars, i) if named else None

    # --- casts

    def cast_at(self, i: int) -> tuple[_Type, int] | None:
        """The pointer type that is cast to, and where the operand begins."""
        if self.text(i) == "(":
            target = self.type_at(i + 1)
            if target is None or not target.stars or self.text(target.end) != ")":
                return None
            return target, target.end + 1
        if self.text(i) in _CASTS and self.text(i + 1) == "<":
            target = self.type_at(i + 2)
            if target is None or not target.stars or self.text(target.end) != ">":
                return None
            return target, target.end + 1
        return None

    def check_cast(self, i: int) -> None:
        cast = self.cast_at(i)
        if cast is None:
            return
        target, operand = cast
        self.check(operand, target.space, "a cast to a pointer to", self.code[i].line)

    def check(self, operand: int, space: str | None, what: str, line: int) -> None:
        found, _ = self.unary(operand)
        if found is None or found.space == space:
            return
        if space is None:
            wrong = f"a cast to a pointer without an address space of {found.name!r}"
        else:
            wrong = f"{what} {space} memory made from {found.name!r}"
        raise self.error(
            f"{wrong}, which is in {found.space} memory",
            line,
            f"write `{found.space}` in the pointer's type, or copy the data",
            found.name,
        )

    def error(
        self, wrong: str, line: int, help: str, buffer: str | None = None
    ) -> MetalEmulationError:
        kernel = f"kernel {self.kernel!r}: " if self.kernel else ""
        return MetalEmulationError(
            f"{kernel}{wrong}\n  line {line}: {self.lines[line - 1].strip()}",
            kind="address_space",
            kernel=self.kernel,
            buffer=buffer,
            line=line,
            help=help,
        )

    # --- what an expression points to

    def unary(self, i: int) -> tuple[_Variable | None, int]:
        """The variable whose memory the operand at `i` is an address in, and the operand's end."""
        if self.text(i) == "&":
            return self.postfix(i + 1, address_taken=True)
        cast = self.cast_at(i)
        if cast is not None:
            target, operand = cast
            inner, end = self.unary(operand)
            if target.space is None:
                return None, end
            name = inner.name if inner is not None else "a pointer"
            return _Variable(name, target.space, 1), end
        return self.postfix(i, address_taken=False)

    def postfix(self, i: int, *, address_taken: bool) -> tuple[_Variable | None, int]:
        if self.text(i) == "(":
            end = closing(self.code, i)
            if address_taken:
                variable, inner_end = self.postfix(i + 1, address_taken=True)
                return (variable if inner_end == end else None), end + 1
            variable = self.sum_of(i + 1, end)
            return self.subscripted(variable, end + 1, address_taken)
        if i < len(self.code) and self.code[i].kind == "name":
            return self.subscripted(self.look_up(self.text(i)), i + 1, address_taken)
        return None, i + 1

    def subscripted(
        self, variable: _Variable | None, i: int, address_taken: bool
    ) -> tuple[_Variable | None, int]:
        left = variable.dimensions + address_taken if variable is not None else 0
        while self.text(i) == "[":
            left -= 1
            i = closing(self.code, i) + 1
        if self.text(i) in {".", "->", "(", "::"}:
            return None, i + 1
        return (variable if left > 0 else None), i

    def sum_of(self, start: int, end: int) -> _Variable | None:
        """The first term of a sum that is an address."""
        i = start
        while i < end:
            variable, i = self.unary(i)
            if variable is not None:
                return variable
            depth = 0
            while i < end and (depth or self.text(i) not in {"+", "-"}):
                if self.text(i) in {"?", "==", "<", ">", ","}:
                    return None
                depth += (self.text(i) in {"(", "["}) - (self.text(i) in {")", "]"})
                i += 1
            i += 1
        return None

    def look_up(self, name: str) -> _Variable | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None


def check_address_spaces(tokens: Sequence[Token]) -> None:
    """Check the pointers of a Metal source.

    Raises
    ------
    MetalEmulationError
        Of kind "address_space": the first pointer that is in a wrong address space.
    """
    _Checker(tokens).run()
