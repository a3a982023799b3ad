"""Bulk copies that reduce, that copy four rows, and that copy bytes; what moves parts of words."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.emulator.cuda.sources import MBARRIERS
from tvmtile.emulator.cuda import compile_cuda, tensor_map
from tvmtile.errors import CudaEmulationError

SOURCE = """
__device__ void begin(void* mbarrier, unsigned bytes) {
  init(mbarrier, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
  expect(mbarrier, bytes);
}
__device__ void end() {
  asm volatile("cp.async.bulk.commit_group;" : : : "memory");
  asm volatile("cp.async.bulk.wait_group 0;" : : : "memory");
}

// Tiles that each block has are added to one tensor, or are the largest of it.
extern "C" __global__ void reduced(const __grid_constant__ CUtensorMap sums, float* all,
                                   const __grid_constant__ CUtensorMap largest, int late) {
  __shared__ alignas(128) float tile[4 * 32];
  __shared__ alignas(128) half halves[4 * 64];
  for (int i = threadIdx.x; i < 128; i += 32) tile[i] = i + blockIdx.x;
  for (int i = threadIdx.x; i < 256; i += 32) {
    halves[i] = __int2half_rn(i * (blockIdx.x % 2 ? 1 : -1));
  }
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
  __syncwarp();
  if (threadIdx.x == 0) {
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group "
                 "[%0, {%1, %2}], [%3];"
                 : : "l"(&sums), "r"(0), "r"(0), "r"(at(tile)) : "memory");
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.max.bulk_group "
                 "[%0, {%1, %2}], [%3];"
                 : : "l"(&largest), "r"(0), "r"(0), "r"(at(halves)) : "memory");
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                 : : "l"(all), "r"(at(tile)), "r"(512) : "memory");
    end();
    if (late) all[0] = 1;
  }
}

// Rows of a table, in another order.
extern "C" __global__ void rows(const __grid_constant__ CUtensorMap from,
                                const __grid_constant__ CUtensorMap to, const int* places) {
  __shared__ alignas(128) float tile[4 * 32];
  __shared__ alignas(8) unsigned long long full;
  if (threadIdx.x != 0) return;
  begin(&full, 512);
  asm volatile("prefetch.tensormap [%0];" : : "l"(&from) : "memory");
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];"
      : : "r"(at(tile)), "l"(&from), "r"(0), "r"(places[0]), "r"(places[1]), "r"(places[2]),
          "r"(places[3]), "r"(at(&full)) : "memory");
  wait(&full, 0);
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group "
               "[%0, {%1, %2, %3, %4, %5}], [%6];"
               : : "l"(&to), "r"(0), "r"(places[4]), "r"(places[5]), "r"(places[6]), "r"(places[7]),
                   "r"(at(tile)) : "memory");
  end();
}

// Bytes from one place to another, by way of shared memory.
extern "C" __global__ void bytes(const int* from, int* to, int without) {
  __shared__ alignas(16) int tile[32];
  __shared__ alignas(8) unsigned long long full;
  if (threadIdx.x != 0) return;
  begin(&full, 128);
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               : : "r"(at(tile)), "l"(from), "r"(128), "r"(at(&full)) : "memory");
  if (without != 1) wait(&full, 0);
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               : : "l"(to), "r"(at(tile)), "r"(without == 2 ? 120 : 128) : "memory");
  end();
}

// The last block to come is told by a counter: any of them may be.
extern "C" __global__ void last(int* counter, int* out) {
  if (atomicAdd(counter, 1) == gridDim.x - 1) out[0] = blockIdx.x;
}
"""
REGISTERS = """
extern "C" __global__ void BOUNDS roles(int* out) {
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 PRODUCER;");
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 CONSUMER;");
  }
  out[threadIdx.x] = 1;
}
"""


@functools.cache
def module(arch="sm_100a"):
    return compile_cuda(MBARRIERS + SOURCE, arch=arch)


def reduced(seed=0, late=0, dtype=np.float32):
    sums, everything = np.ones((4, 32), dtype), np.zeros(128, np.float32)
    largest = np.full((4, 64), 3, np.float16)
    maps = (
        tensor_map(sums, (32, 4), (128,), (32, 4)),
        tensor_map(largest, (64, 4), (128,), (64, 4)),
    )
    kernel = module().kernel("reduced")
    kernel(maps[0], everything, maps[1], late, grid=5, block=32, seed=seed)
    return sums, everything, largest


@pytest.mark.parametrize("seed", range(4))
def test_copies_of_all_blocks_are_combined(seed):
    sums, everything, largest = reduced(seed)
    total = np.arange(128, dtype=np.float32) * 5 + 10
    assert np.array_equal(sums.ravel(), total + 1)
    assert np.array_equal(everything, total)
    assert np.array_equal(largest.ravel(), np.maximum(np.arange(256), 3).astype(np.float16))


def test_what_is_combined_races_with_what_is_stored():
    with pytest.raises(CudaEmulationError, match="nothing orders two blocks") as caught:
        reduced(late=1)
    assert caught.value.kind == "race"


def test_elements_that_ptx_does_not_add_up_are_refused():
    with pytest.raises(CudaEmulationError, match="elements that it can't combine"):
        reduced(dtype=np.uint8)


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_are_not_there_are_zeros_and_are_left_out(seed):
    table = np.random.default_rng(0).random((9, 32), np.float32)
    out = np.full((6, 32), 7, np.float32)
    maps = [tensor_map(t, (32, len(t)), (128,), (32, 1)) for t in (table, out)]
    places = np.array([8, 2, -1, 2, 5, 0, 1, 6], np.int32)
    module().kernel("rows")(*maps, places, grid=1, block=32, seed=seed)
    expected = np.full((6, 32), 7, np.float32)
    expected[[5, 0, 1]] = table[8], table[2], np.zeros(32)
    assert np.array_equal(out, expected)


def test_four_rows_are_boxes_of_one_row():
    table, out = np.zeros((9, 32), np.float32), np.zeros((6, 32), np.float32)
    maps = [tensor_map(t, (32, len(t)), (128,), (32, 2)) for t in (table, out)]
    with pytest.raises(CudaEmulationError, match="not of boxes of one row"):
        module().kernel("rows")(*maps, np.zeros(8, np.int32), grid=1, block=32)


def test_bytes_are_copied_both_ways():
    numbers, out = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    kernel = module().kernel("bytes")
    for seed in range(4):
        out[:] = 0
        did = kernel(numbers, out, 0, grid=1, block=1, seed=seed)
        assert np.array_equal(out, numbers)
    assert (did.bulk_copies, did.mbarrier_phases) == (2, 1)
    with pytest.raises(CudaEmulationError, match="which a bulk load for mbarrier full") as caught:
        kernel(numbers, out, 1, grid=1, block=1)
    assert caught.value.kind == "race"
    with pytest.raises(CudaEmulationError, match="not of multiples of 16 bytes"):
        kernel(numbers, out, 2, grid=1, block=1)


def test_a_seed_shuffles_the_blocks():
    lasts = set()
    for seed in range(6):
        counter, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
        kernel = module().kernel("last")
        kernel(counter, out, grid=8, block=1, seed=seed, check_global_races=False)
        lasts.add(int(out[0]))
        assert seed or out[0] == 7
    assert len(lasts) > 2


def roles(producer, consumer, block, bounds=""):
    text = REGISTERS.replace("PRODUCER", str(producer)).replace("CONSUMER", str(consumer))
    text = text.replace("BOUNDS", bounds)
    out = np.zeros(block, np.int32)
    compile_cuda(text, arch="sm_90a").kernel("roles")(out, grid=1, block=block)
    assert out.all()


@pytest.mark.full
def test_registers_come_from_those_that_others_give_back():
    roles(40, 232, 384)
    with pytest.raises(CudaEmulationError, match=r"deadlock: .* waits in setmaxnreg.inc"):
        roles(40, 240, 512)
    with pytest.raises(
        CudaEmulationError, match="setmaxnreg.dec to 200 registers of a thread that has 168"
    ):
        roles(200, 232, 384)
    with pytest.raises(CudaEmulationError, match="not a multiple of 8 from 24 to 256"):
        roles(40, 233, 384)


@pytest.mark.full
def test_blocks_share_registers_as_launch_bounds_say():
    roles(40, 232, 384, "__launch_bounds__(384)")
    roles(40, 232, 384, "__launch_bounds__(384, 1)")
    roles(24, 104, 384, "__launch_bounds__(384, 2)")
    with pytest.raises(CudaEmulationError, match=r"deadlock: .* waits in setmaxnreg.inc"):
        roles(40, 232, 384, "__launch_bounds__(384, 2)")
