"""Metal 4's `matmul2d`: where it is taken, and its lane map; `gemm_by_matmul2d` has the numbers."""

import itertools

import pytest

import tvmtile
from tests.fuzz.run import loaded, run
from tests.programs import catalogue
from tvmtile.tileop.gemm import matmul2d
from tvmtile.tileop.gemm.matmul2d import COLUMN, ROW


@pytest.mark.parametrize(
    ("target", "is_taken"),
    [({"kind": "metal", "keys": ["metal4", "metal", "gpu"]}, True), ("metal", False)],
)
def test_matmul2d_is_of_metal_4(target, is_taken, tmp_path):
    program = loaded(catalogue()["gemm_by_matmul2d"].case(), tmp_path).main
    kernel = tvmtile.compile(program, target=target, execution_backend="emulator")
    assert ("matmul2d" in kernel.get_kernel_source()) == is_taken


def test_another_lane_map_gives_other_numbers(monkeypatch, tmp_path):
    """The emulator knows the map by itself, so that a mistake in the layouts shows."""
    monkeypatch.setattr(matmul2d, "ROW", COLUMN)
    monkeypatch.setattr(matmul2d, "COLUMN", ROW)
    outcome = run(catalogue()["gemm_by_matmul2d"].case(), "metal4", tmp_path, limit=60)
    assert outcome.kind in ("wrong", "internal"), outcome.detail


def test_every_element_of_a_block_is_in_one_register_of_one_lane():
    def index(digits, lane, register):
        value = 0
        for digit in digits:
            number = lane if digit.is_thread else register
            value = value * digit.extent + number // digit.stride % digit.extent
        return value

    places = {
        (lane, register): (index(ROW, lane, register), index(COLUMN, lane, register))
        for lane in range(32)
        for register in range(8)
    }
    assert set(places.values()) == set(itertools.product(range(16), repeat=2))
    # As MLX's BaseNAXFrag::get_coord(idx) has it.
    for (lane, register), place in places.items():
        quad = lane >> 2
        row = ((quad & 4) | ((lane >> 1) & 3)) + (register >> 2) * 8
        assert place == (row, ((quad & 2) | (lane & 1)) * 4 + register % 4)
