"""Redundant barriers are removed from each slot on, as if each slot were looked at for each start."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmtile.passes.gpu.barriers.removal import remaining


def removed_from_each_slot_on(slots, weights, clauses, *, is_loop):
    """The same, with no thought of which slots have anything to do with each other."""
    for start in range(-1, len(slots) - 1) if is_loop and slots else range(1):
        order = slots[start:] + slots[:start]
        for each in (order, sorted(order, key=weights.__getitem__)):
            left = sum(slots)
            for slot in each:
                if not any(clause & left == slot for clause in clauses):
                    left &= ~slot
            yield left


@st.composite
def bodies(draw):
    count = draw(st.integers(1, 12))
    shift = draw(st.integers(0, 3))  # slots of other bodies come before
    slots = [1 << number + shift for number in range(count)]
    weights = {slot: draw(st.sampled_from([1.0, 1.0, 0.5])) for slot in slots}
    whole = st.sets(st.sampled_from(slots), min_size=1, max_size=4).map(sum)
    path = st.tuples(st.integers(0, count - 1), st.integers(1, 4)).map(
        lambda ends: sum({slots[(ends[0] + step) % count] for step in range(ends[1])})
    )
    return slots, weights, draw(st.lists(st.one_of(whole, path, st.just(0)), max_size=10))


@pytest.mark.full
@settings(max_examples=100)
@given(bodies(), st.booleans())
def test_the_sets_that_remain_in_the_same_order(body, is_loop):
    slots, weights, clauses = body
    expected = list(dict.fromkeys(removed_from_each_slot_on(*body, is_loop=is_loop)))
    assert list(dict.fromkeys(remaining(slots, weights, clauses, is_loop=is_loop))) == expected
    for left in expected:
        assert all(clause & left for clause in clauses if clause)


def test_a_start_between_slots_of_a_clause():
    slots = [1, 2, 4]
    weights = dict.fromkeys(slots, 1.0)
    found = dict.fromkeys(remaining(slots, weights, [1 | 2, 2 | 4, 4 | 1], is_loop=True))
    assert list(found) == [2 | 1, 2 | 4, 1 | 4]
    assert [*remaining(slots, weights, [1 | 2], is_loop=False)] == [2, 2]


def test_the_slot_of_less_weight_goes_first():
    found = list(remaining([1, 2], {1: 1.0, 2: 0.5}, [1 | 2], is_loop=False))
    assert found == [2, 1]
