"""Steps of kernels with two roles, left out or off by one: the emulator or the numbers show each."""

from __future__ import annotations

import re

import pytest

from tests.fuzz.run import _checked, compiled
from tests.programs import catalogue
from tvmtile.errors import CudaEmulationError

ALL = "cuda_mbarrier_wait|ptx_wgmma_wait_group"
WITH_WAITS = [
    ("roles_two_products_with_a_sum_between_them", {"shape": (64, 64, 64)}, ALL),
    # Its tiles are copied as often as there are buffers for them.
    ("roles_products_that_are_waited_for_apart", {"steps": 3}, "ptx_wgmma_wait_group"),
    ("roles_parts_that_share_their_partial_sums", {}, ALL),
    ("roles_sums_scaled_in_each_iteration", {"form": "dynamic trips"}, ALL),
    ("roles_sums_scaled_in_each_iteration", {"form": "two loops in one that is left"}, ALL),
]
_COUNTED = re.compile(
    r"^ +(?P<counter>\w+_done_ptr\w*)\[0\] = \((?P=counter)\[0\] \+ 1\);$", re.MULTILINE
)
_LEFT_OUT = re.compile(r"\(condval\w* <= 0\)")


class Subject:
    """A kernel of the catalogue whose source is replaced."""

    def __init__(self, name, given, directory):
        self._case = catalogue()[name].case(**given)
        self._expected = [self._case.meaning(call) for call in range(len(self._case.sizes))]
        self._kernel = compiled(self._case, "sm_90a", directory)
        ((self._symbol, self.source),) = self._kernel.adapter.sources.items()

    def run(self, source):
        self._kernel.adapter.sources[self._symbol] = source
        return _checked(self._case, "sm_90a", self._kernel, self._expected)

    def finds(self, source):
        try:
            return bool(self.run(source))
        except CudaEmulationError:
            return True


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "given", "kinds"), WITH_WAITS)
def test_a_wait_that_is_left_out_is_found(name, given, kinds, tmp_path):
    subject = Subject(name, given, tmp_path)
    assert not subject.run(subject.source)
    pattern = rf"^ +tvm_builtin_({kinds})\w*\(.*\);$"
    waits = list(re.finditer(pattern, subject.source, re.MULTILINE))
    assert len(waits) >= (6 if kinds == ALL else 3)
    missed = [subject.source[: wait.start()] + subject.source[wait.end() :] for wait in waits]
    assert all(map(subject.finds, missed))


@pytest.mark.full
def test_roles_that_do_not_count_alike_are_found(tmp_path):
    subject = Subject("roles_masked", {}, tmp_path)
    source = subject.source
    counted, decided = list(_COUNTED.finditer(source)), list(_LEFT_OUT.finditer(source))
    assert (len(counted), len(decided)) == (2, 4)
    wrong = [source[: at.start()] + source[at.end() :] for at in counted]
    wrong += [f"{source[: at.start()]}!({at[0]}){source[at.end() :]}" for at in decided]
    assert all(map(subject.finds, wrong))
