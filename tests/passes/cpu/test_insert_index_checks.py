"""InsertIndexChecks: indices of tiles that are known when a kernel runs."""

from __future__ import annotations

import importlib.util
import textwrap

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidValue, MetalEmulationError, OutOfBounds, TileWarning

CHECKED = {"tvmtile.check_indices": True}
PROGRAM = """
import tvmtile.language as T

@T.prim_func
def main(I: T.Tensor((32,), "int32"), Y: T.Tensor((32,), "int32"), n: T.int32):
    with T.Kernel(1, threads=32):
        s = T.alloc_shared((4, 32), "int32")
        places = T.alloc_shared((32,), "int32")
        own = T.alloc_local((4,), "int32")
        steps = T.alloc_var("int32", 0)
        tx = T.get_thread_binding()
        T.fill(s, 1)
        T.copy(I, places)
        for i in T.serial(4):
            own[i] = i
        T.sync_threads()
{body}  # here
"""
OUTSIDE = {
    "for i in T.serial(32):\n    s[0, I[i]] = i": "index 0, {} of s[4, 32] int32, which has 4 x 32",
    "for i in T.Parallel(32):\n    T.atomic_add(s[I[i], 0], 1)": "index {}, 0 of s[4, 32] int32",
    "for i in T.vectorized(4):\n    Y[i] = s[I[0], i]": "index {}, 0 of s[4, 32] int32",
    "T.fill(s[I[0] : I[0] + 2, 0:8], 1)": "index {}:{}, 0:8 of s[4, 32] int32",
    "while s[I[steps], 0] == 0: steps += 1": "index {}, 0 of s[4, 32] int32",
    "for i in T.Parallel(32):\n    Y[i] = s[0, places[places[i]]]": "index {} of places[32] int32",
    "some = T.alloc_shared((n,), 'int32')\nT.clear(some)\nY[tx] = some[I[tx]]": "index {} of some[n]",
    "Y[tx] = own[I[tx]]": "index {} of own[4] int32, which has 4 elements",
}


@pytest.fixture
def kernel_of(tmp_path):
    """A function that compiles the program with some statements."""

    def compiled(body, **options):
        file = tmp_path / "program.py"
        file.write_text(PROGRAM.format(body=textwrap.indent(body, " " * 8)))
        spec = importlib.util.spec_from_file_location("program", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return tvmtile.compile(module.main, **options)

    return compiled


def zeros():
    return torch.zeros(32, dtype=torch.int32)


@pytest.mark.full(but=3)
@pytest.mark.parametrize("body", OUTSIDE)
def test_an_index_outside_is_an_error_at_its_line(body, kernel_of):
    kernel = kernel_of(body, target="llvm", pass_configs=CHECKED)
    kernel(zeros(), zeros(), 4)
    for value in (32, -1, -(2**31), 2**31 - 3):
        indices = zeros()
        indices[0 if "steps" in body or "I[0]" in body else 17] = value
        with pytest.raises(OutOfBounds) as caught:
            kernel(indices, zeros(), 4)
        assert f"takes {OUTSIDE[body].format(value, value + 2)}" in str(caught.value)
        assert caught.value.location.text.endswith("# here")
        assert "a tile has no guards" in caught.value.help
    kernel(zeros(), zeros(), 4)  # once more, after the errors


DIVISIONS = {
    "Y[tx] = tx // I[tx]": 17,
    "Y[tx] = tx % T.cast(I[tx], 'uint8')": 17,
    "Y[tx] = s[0, 3 % (I[tx] + 4)]": 17,
    "for i in T.serial(64 // I[0]):\n    Y[i % 32] = i": 0,
    "for i in T.Parallel(32):\n    Y[i] = T.truncmod(i, I[i])": 17,
    "T.copy(I[0 : T.ceildiv(2, I[0])], places[0 : T.ceildiv(2, I[0])])": 0,
    "a = T.max(tx, 2) // I[tx]\nY[tx] = a": 17,
    "while steps < 9 // I[0]: steps += 1": 0,
    "a = tx // n\nY[tx] = a + I[tx]": None,
    "if tx // n == 3: Y[tx] = 1": None,
}


@pytest.mark.full(but=3)
@pytest.mark.parametrize("body", DIVISIONS)
def test_a_division_by_zero_is_an_error_at_its_line(body, kernel_of):
    marked = body.replace("\n", "  # here\n")
    kernel = kernel_of(marked, target="llvm", pass_configs=CHECKED)
    numbers = torch.ones(32, dtype=torch.int32)
    kernel(numbers, zeros(), 4)
    place = DIVISIONS[body]
    if place is not None:
        numbers[place] = -4 if "+ 4" in body else 0
    with pytest.raises(InvalidValue) as caught:
        kernel(numbers, zeros(), 4 if place is not None else 0)
    assert caught.value.message == "an integer is divided by 0"
    assert caught.value.location.text.endswith("# here")
    assert "T.if_then_else" in caught.value.help


def test_what_a_condition_keeps_from_an_access_is_not_checked():
    @tvmtile.jit(target="llvm", pass_configs=CHECKED)
    def main(I: T.Tensor((8,), "int32"), Y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32) as _:
            s = T.alloc_shared((4,), "float32")
            T.fill(s, 2)
            for i in T.Parallel(8):
                Y[i] = T.if_then_else(I[i] < 4, s[I[i]], 1)
                if I[i] < 4 and s[I[i]] > 1:
                    Y[i] += s[I[i]]
                if I[i] >= 4 or s[I[i]] > 3:
                    Y[i] += 10
                if I[i] != 0 and 8 // I[i] == 2:
                    Y[i] += 8 % I[i] + T.if_then_else(I[i] == 0, 7, 4 // I[i])

    y = torch.zeros(8)
    main(torch.arange(8, dtype=torch.int32), y)
    assert y.tolist() == [4, 4, 4, 4 + 2 + 1, 11 + 0 + 1, 11, 11, 11]


def test_a_gpu_has_no_such_checks_and_its_emulator_says_the_same(kernel_of):
    body = next(iter(OUTSIDE))
    with pytest.warns(TileWarning, match="check_indices has no effect on metal: run the kernel on"):
        kernel = kernel_of(body, target="metal", execution_backend="emulator", pass_configs=CHECKED)
    with pytest.raises(MetalEmulationError, match=r"out of bounds: .* takes index .*500 of s\b"):
        kernel(zeros() + 500, zeros(), 4)
