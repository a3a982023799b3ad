"""Groups with loops of their own that hand tiles over at mbarriers, whichever stands first in the text.

The kernels of `handovers.txt` are right. Without one of their statements at mbarriers they are refused,
or have no race either.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

import tvmtile
from tvmtile.errors import CudaEmulationError, DataRace, InvalidOperand

SM90 = {"kind": "cuda", "arch": "sm_90a"}
HEAD = 'import tvmtile.language as T\nn = T.dynamic("n")\n\n@T.prim_func\n'
TEXTS = re.split(r"(?m)^# ", Path(__file__).with_name("handovers.txt").read_text())[1:]
KERNELS = dict(text.split("\n", 1) for text in TEXTS)
STATEMENT = re.compile(r"T\.(barrier_arrive|barrier_wait|cp_async_barrier|sync_)")


def without(text, number):
    """A kernel without the statement of a line."""
    lines = text.split("\n")
    lines[number] = re.sub(r"T\..*", "pass", lines[number])
    return "\n".join(lines)


REMOVALS = [
    (name, number)
    for name, text in KERNELS.items()
    for number, line in enumerate(text.split("\n"))
    if STATEMENT.search(line)
]


@pytest.fixture
def emulated(tmp_path):
    def compiled(text):
        path = tmp_path / "kernel.py"
        path.write_text(HEAD + text)
        spec = importlib.util.spec_from_file_location("kernel", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return tvmtile.compile(module.main, target=SM90, execution_backend="emulator")

    return compiled


def call(kernel, text, n):
    columns = int(re.search(r"Tensor\(\(\w, (\d+)\)", text)[1])
    a, c = torch.randn(n, columns), torch.zeros(n, columns)
    kernel(a, c, *([64 * n - 5] if "size" in text else []))
    swapped = a.flip(1)
    return c, swapped * 2 + a if "sums" in text else swapped


def sizes(text):
    return [6] if "serial(5)" in text else [1, 2, 5]


@pytest.mark.full(but=2)
@pytest.mark.parametrize("name", KERNELS)
def test_handovers_in_loops_are_no_race(emulated, name):
    text = KERNELS[name]
    kernel = emulated(text)
    assert kernel.get_kernel_source().count("__syncthreads") == 1  # behind the initialisation
    for n in sizes(text):
        result, expected = call(kernel, text, n)
        assert torch.equal(result, expected)


@pytest.mark.full(but=0)
@pytest.mark.parametrize(("name", "number"), REMOVALS)
@pytest.mark.filterwarnings("ignore:nothing arrives at the mbarrier")
def test_what_is_accepted_without_a_handover_has_no_race(emulated, name, number):
    text = without(KERNELS[name], number)
    try:
        kernel = emulated(text)
    except DataRace:
        return
    except InvalidOperand:
        with pytest.raises(InvalidOperand, match="nothing arrives at the mbarrier"):
            emulated(text)
        return
    for n in sizes(text):
        error = None
        try:
            result, expected = call(kernel, text, n)
        except CudaEmulationError as found:
            error = found.message
        assert error is None or "race" not in error
        assert error or torch.equal(result, expected)


def test_a_tile_of_two_that_may_be_read_still_is_not_written(emulated):
    """Without the second mbarrier a tile is free two iterations later, not three."""
    text = KERNELS["A tile, taken and given back at mbarriers at which both groups arrive"]
    text = re.sub(r".*\(taken.*\n", "", text).replace("shared((32,)", "shared((2, 32)")
    text = text.replace("tile[", "tile[k // 3 % 2, ")
    with pytest.raises(DataRace, match="written by threads 32 to 63 of the block and read by"):
        emulated(text)


@pytest.mark.parametrize("count", [4, pytest.param(7, marks=pytest.mark.full)])
def test_a_ring_may_have_any_number_of_tiles(emulated, count):
    text = KERNELS["A ring of five tiles: who waits for the next one has read the one before"]
    text = re.sub(r"5(?=, 32\)|,)", str(count), text)
    result, expected = call(emulated(text), text, 2 * count + 1)
    assert torch.equal(result, expected)


MEETING = """
def main(A: T.Tensor((1, 32), "float32"), C: T.Tensor((1, 32), "float32")):
    with T.Kernel(1, threads=64):
        T.annotate_pass_configs({"tl.disable_thread_storage_sync": True})
        tile = T.alloc_shared((32,), "float32")
        tx = T.get_thread_binding()
        if tx >= 32:
            T.sync_threads()
            C[0, tx - 32] = tile[63 - tx]
        else:
            tile[tx] = A[0, tx]
            T.sync_threads()
"""


def test_an_author_of_barriers_lets_the_block_meet_in_branches(emulated):
    kernel = emulated(MEETING)
    result, expected = call(kernel, MEETING, 1)
    assert torch.equal(result, expected)


ROWS = """
def main(cu: T.Tensor((8,), "int32"), C: T.Tensor((n, 64), "float32")):
    with T.Kernel(4, threads=256) as bx:
        start, end = T.alloc_var("int32"), T.alloc_var("int32")
        start = cu[bx]
        end = cu[bx + 1]
        given = T.alloc_barrier(128)
        if T.get_thread_binding() < 128:
            T.barrier_arrive(given)
            for i, j in T.Parallel(64, 64):
                if start + i < end:
                    C[start + i, j] = 1
        else:
            T.barrier_wait(given, 0)
            for i, j in T.Parallel(64, 64):
                if end + i < n:
                    C[end + i, j] = 0
"""


def test_conditions_of_both_groups_keep_rows_apart(emulated):
    emulated(ROWS)
    with pytest.raises(DataRace, match="written by threads 128 to 255 of the block and written"):
        emulated(ROWS.replace("C[end + i", "C[end + i - 1"))


COUNTED = """
def main(
    cu: T.Tensor((4,), "int32"), A: T.Tensor((n, 32), "float32"), C: T.Tensor((n, 32), "float32")
):
    with T.Kernel(4, threads=64) as bx:
        count, with_more = T.alloc_var("int32"), T.alloc_var("bool")
        count = cu[bx]
        with_more = count >= n
        tile, other = T.alloc_shared((32,), "float32"), T.alloc_shared((32,), "float32")
        given, taken, more = T.alloc_barrier(32), T.alloc_barrier(32), T.alloc_barrier(32)
        tx = T.get_thread_binding()
        if tx < 32:
            for k in T.serial(count):
                T.barrier_wait(given, k % 2)
                C[k, tx] = tile[31 - tx]
                if with_more:
                    T.barrier_wait(more, k % 2)
                    C[k, tx] = other[31 - tx]
                T.barrier_arrive(taken)
        else:
            for k in T.serial(count):
                T.barrier_wait(taken, k % 2 ^ 1)
                tile[tx - 32] = A[k, tx - 32]
                T.barrier_arrive(given)
                if with_more:
                    other[tx - 32] = A[k, tx - 32]
                    T.barrier_arrive(more)
"""


def test_conditions_may_name_the_number_of_iterations(emulated):
    """As those of flash-qla's forward in its context-parallel form."""
    emulated(COUNTED)
    with pytest.raises(DataRace, match="elements of other.32. float32"):
        emulated(COUNTED.replace("T.barrier_wait(more", "pass  # T.barrier_wait(more"))
