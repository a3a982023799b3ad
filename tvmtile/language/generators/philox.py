"""Philox4x32-10: numbers by a counter."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.language.generators.state import array, at, halves, store, u32, u64


class Philox:
    """Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

    With cuRAND's counters: the seed is its key, the sequence the upper half of its counter, and four
    numbers come of each value of the lower half. What a thread keeps is its position.
    """

    _ROUNDS = 10
    _MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
    _KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
    _SEED, _SEQUENCE, _POSITION = range(3)

    def __init__(self, seed: ir.Expr, sequence: ir.Expr, offset: ir.Expr) -> None:
        self._state = array("uint64", 3)
        for place, value in enumerate((seed, sequence, offset)):
            store(self._state, place, value)
        self._counter = array("uint32", 4)
        self._products = array("uint64", 2)

    def next(self) -> ir.Expr:
        """As of `Generator`."""
        state, counter = self._state, self._counter
        position = at(state, self._POSITION)
        start = (*halves(position >> u64(2)), *halves(at(state, self._SEQUENCE)))
        for place, word in enumerate(start):
            store(counter, place, word)
        self._rounds(halves(at(state, self._SEED)))
        lane = tirx.bitwise_and(tirx.Cast("int32", position), 3)
        store(counter, 0, at(counter, lane))
        store(state, self._POSITION, position + u64(1))
        return T.Bind(at(counter, 0))

    def _rounds(self, key: tuple[ir.Expr, ir.Expr]) -> None:
        """Replace the counter by its four numbers; stores, as names would be written out where used.

        The rounds are a loop, or a source would grow with each number of an unrolled loop.
        """
        counter, products = self._counter, self._products
        word = [at(counter, place) for place in range(4)]
        product = [at(products, place) for place in range(2)]
        with T.serial(0, self._ROUNDS) as round:
            keys = [
                part + u32(step) * tirx.Cast("uint32", round)
                for part, step in zip(key, self._KEY_STEPS, strict=True)
            ]
            for place, multiplier in enumerate(self._MULTIPLIERS):
                factor = tirx.Cast("uint64", word[2 * place])
                store(products, place, factor * u64(multiplier))
            (low0, high0), (low1, high1) = map(halves, product)
            store(counter, 0, high1 ^ word[1] ^ keys[0])
            store(counter, 2, high0 ^ word[3] ^ keys[1])
            store(counter, 1, low1)
            store(counter, 3, low0)
