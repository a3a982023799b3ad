"""Schedules are proven right on their steps, and wrong ones are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tvm import ir, tirx

from tests.fuzz.run import loaded
from tests.programs import catalogue
from tvmtile.errors import VerifyError
from tvmtile.passes.tile.schedule import one_role, two_roles
from tvmtile.passes.tile.schedule.rings import Mbarriers, Position, Ring
from tvmtile.passes.tile.schedule.schedule import (
    Action,
    RoleSchedule,
    Schedule,
    Step,
    verify,
)
from tvmtile.pipeline import lowering_passes
from tvmtile.target import resolve

PROGRAMS = [
    "roles_product",
    "roles_masked",  # with a product in flight
    "roles_products_that_are_waited_for_apart",
    "roles_sums_scaled_in_each_iteration",  # which waits for the tiles of the next iteration
    "roles_two_products_with_a_sum_between_them",  # with a skew
    "roles_weights_that_are_converted",
    "roles_rows_that_threads_gather",
]


@pytest.fixture
def schedules(tmp_path, monkeypatch):
    """The schedules of the loops of a program."""
    found = []
    for module in (one_role, two_roles):
        monkeypatch.setattr(module, "verify", found.append)

    def of(name, target="sm_90a"):
        (case,) = catalogue()[name].cases(target, "fast")[:1]
        mod = ir.IRModule({"main": loaded(case, tmp_path).main})
        for step in lowering_passes(resolve(target)):
            mod = step(mod)
            if found:
                return found
        return found

    return of


def without(schedule, role, place):
    """A schedule in which a role leaves out a step."""
    steps = schedule.roles[role].steps
    return with_steps(schedule, role, (*steps[:place], *steps[place + 1 :]))


def with_steps(schedule, role, steps):
    roles = list(schedule.roles)
    roles[role] = replace(roles[role], steps=tuple(steps))
    return replace(schedule, roles=tuple(roles))


def steps_of(schedule):
    return [
        (role, place, step)
        for role, each in enumerate(schedule.roles)
        for place, step in enumerate(each.steps)
    ]


def mutants(schedule):
    """Schedules that are wrong, each with what is."""
    for role, place, step in steps_of(schedule):
        steps = list(schedule.roles[role].steps)
        yield f"without {step}", without(schedule, role, place)
        if step.action is not Action.AWAIT:  # or there are two waits for one thing
            yield f"{step} twice", with_steps(schedule, role, [*steps, step])
        # Waits come an iteration too late, what others wait for an iteration too soon. (Where a wait is
        # ahead, there is time.)
        late = step.action in (Action.WAIT, Action.ACQUIRE, Action.AWAIT) and step.offset <= 0
        soon = step.action in (Action.RELEASE, Action.FILLED)
        if late or soon:
            moved = replace(step, offset=step.offset + (1 if soon else -1))
            steps[place] = moved
            yield f"{moved} for {step}", with_steps(schedule, role, steps)
        if late:
            del steps[place]
            yield f"{step} at the end", with_steps(schedule, role, [*steps, step])
        if soon:
            del steps[place]
            yield f"{step} at the beginning", with_steps(schedule, role, [step, *steps])
    for role, each in enumerate(schedule.roles[1:], start=1):
        for more in (-1, 1):
            roles = list(schedule.roles)
            roles[role] = replace(each, arrivals=each.arrivals + more)
            yield f"{more} arrivals", replace(schedule, roles=tuple(roles))
    for tile, count in schedule.copies.items():
        fewer = {**schedule.copies, tile: count - 1}
        yield f"a copy of {tile.name} less", replace(schedule, copies=fewer)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        *((name, "sm_90a") for name in PROGRAMS),
        ("scaled_gemm", "sm_80"),
        ("roles_product", "sm_80"),
    ],
)
def test_a_schedule_is_right_and_none_of_its_mutants(name, target, schedules):
    of_program = schedules(name, target)
    assert of_program
    for schedule in of_program:
        verify(schedule)
        passed = []
        for what, mutant in mutants(schedule):
            try:
                verify(mutant)
            except VerifyError:
                continue
            passed.append(what)
        assert passed == []


def test_a_product_is_not_given_back_while_it_goes_on(schedules):
    """The one that goes on until the next iteration has begun its own holds a copy for so long."""
    (schedule,) = schedules("roles_masked")
    _, consumer = schedule.roles
    places = [n for n, step in enumerate(consumer.steps) if step.action is Action.RELEASE]
    steps = list(consumer.steps)
    steps[places[0]] = replace(steps[places[0]], offset=0)
    with pytest.raises(VerifyError, match="is done"):
        verify(with_steps(schedule, 1, steps))


# More roles ---------------------------------------------------------------------------------------


def ring(slots, *, arrivals, tiles=(), units=()):
    position = Position.of(tirx.Var("k", "int32"), slots)
    full, empty = Mbarriers.named("full", slots), Mbarriers.named("empty", slots, arrivals)
    return Ring(tiles, units, position, full, empty)


def taking_turns(first, second):
    """Two groups of consumers, of which the second multiplies when the first one has (ping-pong)."""
    before = [Step(Action.ACQUIRE, 0), Step(Action.FILLED, 0)]
    behind = [Step(Action.WAIT, 0), Step(Action.RELEASE, 0)]
    roles = {"before": before, "behind": behind, "swapped": before[::-1], "crossed": behind[::-1]}
    return Schedule(
        (), (RoleSchedule(roles[first]), RoleSchedule(roles[second])), (ring(1, arrivals=1),), {}
    )


def test_roles_may_take_turns():
    verify(taking_turns("before", "behind"))


@pytest.mark.parametrize(("first", "second"), [("swapped", "behind"), ("before", "crossed")])
def test_turns_have_an_order(first, second):
    with pytest.raises(VerifyError):
        verify(taking_turns(first, second))


def test_roles_do_not_wait_for_each_other_for_ever():
    """Each fills a ring once the other one has filled its own."""
    rings = ring(2, arrivals=1), ring(2, arrivals=1)

    def role(own, others):
        order = [Action.WAIT, Action.RELEASE]
        own_steps = [Step(Action.ACQUIRE, own), Step(Action.FILLED, own)]
        return [*(Step(action, others) for action in order), *own_steps]

    both = RoleSchedule(tuple(role(0, 1))), RoleSchedule(tuple(role(1, 0)))
    with pytest.raises(VerifyError, match="wait for each other for ever"):
        verify(Schedule((), both, rings, {}))
    later = [replace(step, offset=-1) for step in both[1].steps[:2]]
    verify(Schedule((), (both[0], RoleSchedule((*later, *both[1].steps[2:]))), rings, {}))


def test_a_ring_may_have_readers_in_several_roles(schedules):
    """Each of them gives a slot back: two groups of threads that multiply, a third one beside them."""
    schedule, _ = schedules("roles_products_of_the_same_registers")
    first = schedule.rings[0]
    watching = RoleSchedule((Step(Action.WAIT, 0), Step(Action.RELEASE, 0)), arrivals=2)
    arrivals = first.empty.arrivals + watching.arrivals
    rings = (replace(first, empty=Mbarriers.named("empty", first.slots, arrivals)),)
    both = replace(schedule, roles=(*schedule.roles, watching), rings=rings)
    verify(both)
    with pytest.raises(VerifyError, match="warps release"):
        verify(replace(both, rings=schedule.rings))
    with pytest.raises(VerifyError):
        verify(without(both, 2, 1))
