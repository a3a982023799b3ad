"""InsertBarriers in regions of groups of threads: by which number a group waits."""

from __future__ import annotations

import pytest
from tvm import tirx

from tests.passes.gpu.barriers.oracle import barriers_in, with_pass
from tests.passes.gpu.barriers.programs import Kernel, numbered
from tvmtile.errors import NestingError
from tvmtile.ir.annotations import ARRIVE_COUNT, BARRIER_ID
from tvmtile.ir.threads import Group
from tvmtile.passes.gpu.barriers.groups import NamedBarriers


def waits(text, threads):
    """The number and the threads of each barrier that a kernel has after the pass."""
    kernel = Kernel("", tuple(text.splitlines()), "", {"threads": threads})
    attrs = [barrier.value.attrs for barrier in barriers_in(with_pass(kernel.before()))]
    return [(str(each[BARRIER_ID]), int(each[ARRIVE_COUNT])) for each in attrs]


@pytest.mark.parametrize(
    ("number", "own"), [(lambda k: 1 + k % 3, 4), (lambda k: k % 3 + 3, 1), (lambda k: k, None)]
)
def test_a_number_may_be_any_that_an_iteration_gives_it(number, own):
    barrier = tirx.Evaluate(numbered(number(tirx.Var("k", "int32")), 128))
    named = NamedBarriers(barrier, 16)
    if own is None:
        with pytest.raises(NestingError, match="all 16 barriers of a block are taken"):
            named.wait(Group(0, 64))
    else:
        attrs = named.wait(Group(0, 64)).value.attrs
        assert (int(attrs[BARRIER_ID]), int(attrs[ARRIVE_COUNT])) == (own, 64)


def test_one_of_sixteen_barriers_is_that_of_the_block():
    def groups(count):
        return "S = shared((1024,))\n" + "".join(
            f"""if tx >= {first} and tx < {first + 64}:
    with group({first}, 64):
        S[tx] = A[0, tx % 64]
        L[tx // 64, tx % 64] = S[{2 * first + 63} - tx]
"""
            for first in range(0, 64 * count, 64)
        )

    assert len(set(waits(groups(15), 1024))) == 15
    with pytest.raises(NestingError, match="all 16 barriers of a block are taken"):
        waits(groups(16), 1024)


def test_warpgroups_wait_together_where_one_number_is_left():
    taken = "\n".join(f"        number({number}, 64)" for number in range(1, 15))
    text = f"""S = shared((384,))
if tx < 256:
    with group(0, 256):
{taken}
        S[tx] = W[0, tx]
        apart()
        C[0, tx] = S[tx // 128 * 128 + 127 - tx % 128]"""
    assert waits(text, 384)[-1] == ("15", 256)
