"""Parts of a random program: axes, tiles, tensors, and the text that they go into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

__all__ = ["BOUND", "Axis", "Module", "Tensor", "Text", "Tile"]

BOUND = 8.0
"""The bound of elements of an ordinary tile. Others hold sums, which are clamped when read."""


@dataclass(frozen=True)
class Axis:
    """One of the directions in which a kernel's tensors extend.

    Attributes
    ----------
    role : str
        "m" and "n", along which blocks share the work; "k", which a loop walks; "x", a small extent.
    extent : int
        Of a tile.
    size : str
        Of a tensor: a number, or a dynamic extent.
    blocks : int
        How many tiles there are at most.
    index : str
        The block's, or the loop's; "" where there is none.
    is_reversed : bool
        The first index has the last tile.
    """

    role: str
    extent: int
    size: str
    blocks: int
    index: str
    is_reversed: bool = False

    @property
    def origin(self) -> str:
        """The first element of the block's tile."""
        if not self.index:
            return "0"
        if self.is_reversed:
            return f"(T.ceildiv({self.size}, {self.extent}) - 1 - {self.index}) * {self.extent}"
        return f"{self.index} * {self.extent}"


@dataclass
class Tile:
    """A tile of a block; `bound` is the greatest absolute value of its elements."""

    name: str
    dtype: str
    scope: str
    roles: tuple[str, ...]
    shape: tuple[int, ...]
    bound: float = BOUND
    filled: bool = False

    @property
    def is_sum(self) -> bool:
        """The tile holds sums, which loops let grow."""
        return self.bound > BOUND


@dataclass
class Tensor:
    """A parameter.

    Attributes
    ----------
    dims : tuple of str
        Its extents.
    use : str
        What the kernel at hand does with it: "read", "written" or an atomic's kind.
    bound : float
        The greatest absolute value of its elements.
    strides : tuple of str
        Of each axis, in elements; none where the tensor is dense.
    """

    name: str
    dims: tuple[str, ...]
    dtype: str
    use: str
    bound: float = BOUND
    strides: tuple[str, ...] = ()


class Text:
    """Lines of a program, indented."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 1

    def add(self, line: str) -> None:
        self.lines.append("    " * self._depth + line)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """The body of a compound statement; `pass` where nothing is written into it."""
        self.add(header)
        self._depth += 1
        before = len(self.lines)
        try:
            yield
        finally:
            if len(self.lines) == before:
                self.add("pass")
            self._depth -= 1


@dataclass
class Module:
    """The module of a program, which its kernels have in common."""

    rng: Random
    text: Text = field(default_factory=Text)
    tensors: list[Tensor] = field(default_factory=list)
    scalars: dict[str, str] = field(default_factory=dict)
    macros: list[str] = field(default_factory=list)
    sizes: list[dict[str, int]] = field(default_factory=lambda: [{}, {}])
    dynamic: str = "int32"
    count: int = 0

    def name(self, prefix: str) -> str:
        """A new name."""
        self.count += 1
        return f"{prefix}{self.count}"

    def tensor(self, dims: tuple[str, ...], dtype: str, use: str, bound: float = BOUND) -> Tensor:
        """A new parameter."""
        tensor = Tensor(self.name("O" if use != "read" else "A"), dims, dtype, use, bound)
        self.tensors.append(tensor)
        return tensor

    def source(self, seed: int) -> str:
        """The text of the program."""
        dtype = "" if self.dynamic == "int32" else f', "{self.dynamic}"'
        dynamic = [f'{name} = T.dynamic("{name}"{dtype})' for name in self.sizes[0]]
        parameters = [f"    {t.name}: {_tensor(t)}," for t in self.tensors]
        parameters += [f"    {name}: T.{dtype}," for name, dtype in self.scalars.items()]
        head = [
            f'"""A random tile program: seed {seed}."""',
            "",
            "import tvmtile.language as T",
            "",
        ]
        head += [f"SIZES = {self.sizes}", *dynamic, ""]
        main = ["@T.prim_func", "def main(", *parameters, "):", *self.text.lines, ""]
        return "\n".join([*head, *self.macros, *main])


def _tensor(tensor: Tensor) -> str:
    dims, strides = (
        ", ".join(numbers) + ("," if len(numbers) == 1 else "")
        for numbers in (tensor.dims, tensor.strides)
    )
    if strides:
        return f'T.StridedTensor(({dims}), ({strides}), "{tensor.dtype}")'
    return f'T.Tensor(({dims}), "{tensor.dtype}")'
