"""Random kernels: loops, branches, versions of two tiles, or of tensors; the lines of their bodies."""

from __future__ import annotations

import random
import textwrap


class RandomKernel:
    """The body of a kernel of a few threads.

    Parameters
    ----------
    seed : int
        Of the random choices.
    tiles : tuple of str
        Of two rows of eight elements: `S` and `R`, which are shared, or the tensors `W` and `L`.
    """

    def __init__(self, seed, tiles):
        self._random = random.Random(seed)
        self._tiles = tiles
        self.threads = self._random.choice([2, 4, 64])
        shared = [f"{tile} = shared((2, 8))\n" for tile in tiles if tile in "SR"]
        self.text = "".join(shared) + self._statements([], 0)

    def _statements(self, loops, depth):
        count = self._random.randint(2, 4)
        text = "".join(self._statement(loops, depth) for _ in range(count))
        return textwrap.indent(text, "    ") if depth else text

    def _statement(self, loops, depth):
        kind = self._random.random()
        if depth < 2 and kind < 0.25:
            var = "ij"[depth]
            count = (
                loops[-1] if loops and self._random.random() < 0.3 else self._random.randint(1, 4)
            )
            return f"for {var} in range({count}):\n" + self._statements([*loops, var], depth + 1)
        if depth < 2 and kind < 0.4:
            return self._branch(loops, depth + 1)
        if kind < 0.45:
            return "block()\n"
        if kind < 0.75:
            return f"{self._place(loops)} = 1.0\n"
        return f"C[0, tx % 8] = {self._place(loops)}\n"

    def _branch(self, loops, depth):
        if not loops or self._random.random() < 0.4:
            return f"if tx < {self._random.randint(1, self.threads)}:\n    {self._place(loops)} = 1.0\n"
        text = f"if {loops[-1]} < {self._random.randint(1, 3)}:\n{self._statements(loops, depth)}"
        return text + self._random.choice(["", f"else:\n{self._statements(loops, depth)}"])

    def _place(self, loops):
        version = self._random.choice(["0", "1", *loops, *loops])
        columns = ["tx % 8", "tx % 8", "7 - tx % 8", "(tx + 1) % 8", "tx % 4 * 2", "(tx % 8 ^ 1)"]
        wraps = 'T.Cast("int32", T.Cast("uint8", tx * 36)) // 4'
        hashes = 'T.Cast("int32", T.Cast("uint32", tx) * T.uint32(2654435761) >> T.uint32(29))'
        column = self._random.choice([*columns, *loops, wraps, hashes])
        shift = self._random.choice([0, 0, 1])
        return f"{self._random.choice(self._tiles)}[({version} + {shift}) % 2, {column} % 8]"
