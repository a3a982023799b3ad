"""What the emulator finds: each kernel of `mistakes.cu` has one mistake planted."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tvmtile.emulator.cuda import compile_cuda
from tvmtile.errors import CudaCompileError, CudaEmulationError

SOURCE = (Path(__file__).parent / "mistakes.cu").read_text(encoding="utf-8")


@cache
def module():
    return compile_cuda(SOURCE)


def line_of(comment):
    """The line of the source that has a comment."""
    (line,) = [i for i, text in enumerate(SOURCE.splitlines(), 1) if f"// {comment}" in f"{text}\n"]
    return line


def error_of(name, *arguments, block=64, **launch):
    """Launch a kernel that must fail; the arguments must be left as they were."""
    before = [np.copy(a) for a in arguments]
    with pytest.raises(CudaEmulationError) as caught:
        module().kernel(name)(*arguments, **{"grid": 1, "block": block, **launch})
    for old, new in zip(before, arguments, strict=True):
        np.testing.assert_array_equal(old, new)
    assert f"kernel {name!r}: " in str(caught.value)
    return caught.value


def floats(count=64):
    return np.zeros(count, np.float32)


@pytest.mark.parametrize(
    ("name", "kind", "comment", "buffer", "text"),
    [
        ("write_after_reads", "race", "race: write after read", "tile", "writes tile["),
        (
            "never_written",
            "uninitialized",
            "never written\n",
            "tile",
            "which no thread of its block",
        ),
        ("barrier_in_a_branch", "divergence", None, None, "waits in __syncthreads"),
        ("shuffle_of_a_returned_lane", "divergence", "divergence: returned", None, "has returned"),
        (
            "shuffle_from_a_lane_outside_of_the_mask",
            "invalid_lane",
            "invalid lane",
            None,
            "__shfl_sync of thread (15, 0, 0) needs lane 20",
        ),
        (
            "misaligned_vector",
            "misaligned",
            "misaligned",
            "a",
            "must lie at a multiple of 16 bytes",
        ),
        ("named_barriers_crossed", "deadlock", "deadlock", None, "and no thread can go on"),
        ("beyond_a_tile", "out_of_bounds", "out of bounds: tile", "tile", "tile has 32 elements"),
    ],
)
def test_mistakes_are_found_at_their_line(name, kind, comment, buffer, text):
    error = error_of(name, floats())
    assert (error.kind, error.buffer) == (kind, buffer), str(error)
    assert text in str(error)
    if comment is not None:
        assert error.line == line_of(comment.strip("\n") + ("\n" if "\n" in comment else ""))


BY_VALUE = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
__device__ float plain(TYPE x) { return *(unsigned char*)&x; }
__noinline__ __device__ float apart(TYPE x) { return *(unsigned char*)&x; }
__device__ float again(TYPE x, int times) { return times == 0 ? plain(x) : again(x, times - 1); }
extern "C" __global__ void by_value(float* out) {
  __shared__ alignas(16) unsigned short words[512];
  TYPE* tile = (TYPE*)words;
  for (int i = threadIdx.x; i < 512; i += 64) words[i] = i;
  int other = 31 - threadIdx.x / 2;
  out[threadIdx.x] = READ;
}
"""
NUMBERS = ("half", "nv_bfloat16", "__nv_fp8_e4m3", "__nv_fp8_e5m2")


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    ("type_", "read"),
    [(number, "float(tile[other])") for number in NUMBERS]
    + [
        (number, read)
        for number in ("half", "nv_bfloat16")
        for read in (
            "float(tile[other] + tile[other])",
            "tile[other] < tile[other]",
            "float(__hmax(tile[other], tile[other]))",
            "float(-tile[other])",
        )
    ]
    + [("half", "__half_as_ushort(tile[other])"), ("half2", "__half22float2(tile[other]).x")]
    + [
        (type_, read)
        for type_ in ("half", "nv_bfloat16", "half2", "float4")
        for read in ("plain(tile[other])", "apart(tile[other])", "again(plain(tile[other]), 2)")
        if type_ == "half" or "again" not in read
    ],
)
def test_reads_of_what_a_function_takes_by_value_are_checked(type_, read):
    source = BY_VALUE.replace("TYPE", type_).replace("READ", read)
    with pytest.raises(CudaEmulationError) as caught:
        compile_cuda(source).kernel("by_value")(floats(), grid=1, block=64)
    assert (caught.value.kind, caught.value.buffer) == ("race", "words"), str(caught.value)


def test_a_tile_that_is_read_without_a_barrier():
    error = error_of("read_without_barrier", floats())
    assert (error.kind, error.buffer) == ("race", "tile")
    assert "and no barrier is between" in str(error)
    assert "put __syncthreads() between the two accesses" in str(error)


def test_a_barrier_of_a_warp_orders_no_two_warps():
    error = error_of("warp_barrier_for_two_warps", floats())
    assert error.kind == "race"
    assert {thread[0] // 32 for thread in error.threads} == {0, 1}


def test_nothing_orders_two_blocks():
    error = error_of("blocks_share_an_element", floats(), grid=2, block=1)
    assert error.kind == "race"
    assert "thread (0, 0, 0) of block (0, 0, 0) wrote" in str(error)
    assert "update the element atomically, or wait for the whole grid, T.sync_grid()" in str(error)
    assert "__syncthreads" not in str(error)
    module().kernel("blocks_share_an_element")(floats(), grid=2, block=1, check_global_races=False)


_STORES = {"one value": 0, "one value, one of them twice": 5, "and another one behind them": 7}
_RACES = {
    "two values": 1,
    "read by one of them": 2,
    "read by one of them before": 3,
    "two values by one of them": 4,
    "one of them atomic": 6,
}


@pytest.mark.parametrize("first", [0, 32])
@pytest.mark.parametrize("kind", _STORES.values(), ids=_STORES.keys())
def test_stores_of_one_value_are_no_race(kind, first):
    result = floats()
    module().kernel("two_stores")(result, kind, first, grid=1, block=64)
    assert result[0] == (7 if kind == 7 else 2)


@pytest.mark.parametrize("first", [0, 32])
@pytest.mark.parametrize("kind", _RACES.values(), ids=_RACES.keys())
def test_stores_are_a_race_whichever_comes_first(kind, first):
    error = error_of("two_stores", floats(), kind, first)
    assert (error.kind, error.buffer) == ("race", "tile")
    assert {thread[0] for thread in error.threads} == {0, 32}


@pytest.mark.parametrize("first", range(3))
def test_a_read_comes_before_all_stores_of_one_value(first):
    error = error_of("read_before_one_of_two_stores", floats(), first, block=96)
    assert (error.kind, error.buffer) == ("race", "tile")


def test_blocks_may_store_one_value():
    result = floats()
    module().kernel("blocks_store_an_element")(result, 0, grid=3, block=64)
    assert result[0] == 3
    assert error_of("blocks_store_an_element", floats(), 1, grid=3, block=64).kind == "race"


def test_an_index_beyond_the_end_of_an_array():
    array = floats()
    with pytest.raises(CudaEmulationError, match=r"writes a\[64\]; a has 64 elements") as caught:
        module().kernel("beyond_the_end")(array, 1, grid=1, block=64)
    assert caught.value.line == line_of("out of bounds\n")
    module().kernel("beyond_the_end")(array, 0, grid=1, block=64)


def test_traps_and_assertions_say_which():
    error = error_of("trapped", np.ones(64, np.float32))
    assert (error.kind, error.line) == ("trap", line_of("trap\n"))
    error = error_of("asserted", np.ones(64, np.float32))
    assert (error.kind, error.line) == ("trap", line_of("assert\n"))
    assert "assert(a[threadIdx.x] == 0)" in str(error)


def test_what_would_end_the_process_ends_the_launch():
    assert error_of("divided", np.zeros(64, np.int32)).kind == "division"
    assert error_of("endless", floats(), seconds=0.2).kind == "endless"


@pytest.mark.parametrize("seed", range(4))
def test_copies_in_the_background_are_waited_for(seed):
    a, out = np.arange(512, dtype=np.float32), floats()
    statistics = module().kernel("two_stages")(a, out, 1, 1, grid=1, block=64, seed=seed)
    np.testing.assert_array_equal(out, a[255 - np.arange(64)])
    assert statistics.async_copies == 128


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("left", "together", "text"),
    [(2, 1, "and nothing between waits for that"), (1, 0, "and no barrier is between")],
)
def test_what_is_read_too_early_is_a_race_at_any_time(left, together, text, seed):
    a, out = np.arange(512, dtype=np.float32), floats()
    error = error_of("two_stages", a, out, left, together, seed=seed)
    assert (error.kind, error.buffer) == ("race", "tiles")
    assert "cp.async of thread" in str(error)
    assert text in str(error)


def test_a_copy_in_the_background_needs_its_source_and_its_target():
    error = error_of("copied_source_is_overwritten", floats(1024))
    assert (error.kind, error.buffer, error.line) == ("race", "a", line_of("race: source"))
    error = error_of("copied_over_what_is_read", floats(1024), floats())
    assert (error.kind, error.buffer) == ("race", "tile")
    assert "cp.async of thread" in str(error)


def test_an_instruction_that_is_not_in_the_table_is_named():
    source = (
        'extern "C" __global__ void k() {\n  asm volatile("cp.reduce.magic [%0];" : : "r"(1));\n}'
    )
    with pytest.raises(CudaEmulationError, match=r"`cp.reduce.magic \[%0\];`") as caught:
        compile_cuda(source)
    assert (caught.value.kind, caught.value.line) == ("unsupported", 2)


def test_a_source_that_does_not_compile_is_shown_at_its_line():
    with pytest.raises(CudaCompileError, match=r"line 2: nonsense\(a\);"):
        compile_cuda('extern "C" __global__ void k(float* a) {\n  nonsense(a);\n}')
