"""Blocks of a cluster in the emulator: they meet at a barrier, and reach each other's memory."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.emulator.cuda.sources import MBARRIERS
from tvmtile.emulator.cuda import compile_cuda, tensor_map
from tvmtile.errors import ArgumentError, CudaEmulationError

EXCHANGE = """
extern "C" __global__ void exchange(int* between, int* out, int returns) {
  const int at = blockIdx.x * 64 + threadIdx.x;
  const bool first = rank() == 0;
  between[at] = at;
  if (returns && first) return;
  cluster_arrive();
  cluster_wait();
  out[at] = between[(blockIdx.x ^ 1) * 64 + 63 - threadIdx.x] * 2 + rank();
}
"""


@functools.cache
def compiled(source):
    return compile_cuda(MBARRIERS + source)


def exchanged(returns=0, cluster=2):
    between, out = np.zeros(256, np.int32), np.zeros(256, np.int32)
    kernel = compiled(EXCHANGE).kernel("exchange")
    races = not returns  # what a block that returns writes is ordered by nothing
    statistics = kernel(
        between, out, returns, grid=4, block=64, cluster=cluster, check_global_races=races
    )
    return out, statistics


def test_blocks_of_a_cluster_meet_at_its_barrier():
    out, statistics = exchanged()
    numbers = np.arange(256).reshape(2, 2, 64)
    expected = numbers[:, ::-1, ::-1] * 2 + np.arange(2).reshape(1, 2, 1)
    assert np.array_equal(out, expected.ravel())
    assert statistics.cluster_barriers == 4 * 2 * 2  # blocks, warps, an arrival and a wait


def test_threads_that_have_returned_are_not_waited_for():
    out, _ = exchanged(returns=1)
    assert not out[:64].any()
    assert out[64:128].any()


@pytest.mark.parametrize("cluster", [3, 16, (2, 2)])
def test_a_grid_is_whole_clusters_of_8_blocks_at_most(cluster):
    with pytest.raises(
        ArgumentError, match="the grid is a multiple of the cluster, which has 8 blocks"
    ):
        exchanged(cluster=cluster)


PLACES = """
extern "C" __global__ void places(unsigned* out) {
  unsigned values[7];
  asm volatile("mov.u32 %0, %cluster_ctaid.x;" : "=r"(values[0]));
  asm volatile("mov.u32 %0, %cluster_ctaid.y;" : "=r"(values[1]));
  asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(values[2]));
  asm volatile("mov.u32 %0, %cluster_nctarank;" : "=r"(values[3]));
  asm volatile("mov.u32 %0, %clusterid.x;" : "=r"(values[4]));
  asm volatile("mov.u32 %0, %clusterid.y;" : "=r"(values[5]));
  asm volatile("mov.u32 %0, %nclusterid.x;" : "=r"(values[6]));
  for (int i = 0; i < 7; ++i) out[(blockIdx.y * gridDim.x + blockIdx.x) * 7 + i] = values[i];
}
"""


def test_a_block_knows_where_it_is_in_its_cluster():
    out = np.zeros((4, 6, 7), np.uint32)
    compiled(PLACES).kernel("places")(out, grid=(6, 4), block=1, cluster=(3, 2))
    y, x = np.indices((4, 6))
    expected = np.stack(
        [x % 3, y % 2, y % 2 * 3 + x % 3, 0 * x + 6, x // 3, y // 2, 0 * x + 2], axis=-1
    )
    assert np.array_equal(out, expected)


MULTICAST = """
__device__ void sync() {
  cluster_arrive();
  cluster_wait();
}

// The first block of a cluster loads each tile for all; the others say when they have read it.
extern "C" __global__ void shared_tiles(const __grid_constant__ CUtensorMap A, float* out, int tiles,
                                        int without) {
  __shared__ alignas(128) float tile[32];
  __shared__ alignas(8) unsigned long long full, empty;
  unsigned blocks, remote;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  if (threadIdx.x == 0) {
    init(&full, 1);
    init(&empty, blocks);
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
  }
  if (without != 1) sync();
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at(&empty)), "r"(0));
  for (int k = 0; k < tiles; ++k) {
    if (threadIdx.x == 0) {
      expect(&full, 128);
      if (rank() == 0) {
        if (k > 0 && without != 2) wait(&empty, (k - 1) % 2);
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
            ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
            : : "r"(at(tile)), "l"(&A), "r"(0), "r"(k), "r"(at(&full)),
                "h"((unsigned short)((1 << blocks) - 1)) : "memory");
      }
    }
    __syncwarp();
    wait(&full, k % 2);
    out[(blockIdx.x * tiles + k) * 32 + threadIdx.x] = tile[threadIdx.x] + rank();
    if (without != 4) asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
    __syncwarp();
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"
                   : : "r"(remote) : "memory");
    }
  }
  if (without != 3) sync();
}
"""


def loaded(seed=0, without=0):
    a = np.random.default_rng(0).random((5, 32), np.float32)
    out = np.zeros((4, 5, 32), np.float32)
    tiles = tensor_map(a, extents=(32, 5), strides=(128,), box=(32, 1), swizzle=0)
    kernel = compiled(MULTICAST).kernel("shared_tiles")
    kernel(tiles, out, 5, without, grid=4, block=32, cluster=2, seed=seed)
    ranks = np.array([0, 1, 0, 1], np.float32).reshape(4, 1, 1)
    assert np.array_equal(out, a + ranks)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_a_block_loads_a_tile_for_all_of_its_cluster(seed):
    loaded(seed)


@pytest.mark.parametrize(
    ("without", "kind", "text"),
    [
        (1, "uninitialized", "reads full[0]"),
        (2, "race", "a bulk load for mbarrier full[0] writes tile[0]"),
        (3, "protocol", "the shared memory of a block that has ended"),
        (4, "fence", "writes tile[0], which thread (0, 0, 0) read, and no fence"),
    ],
)
def test_what_is_missing_between_blocks_is_found(without, kind, text):
    errors = []
    for seed in range(4):
        try:
            loaded(seed, without)
        except CudaEmulationError as error:
            errors.append(error)
    assert errors
    assert {error.kind for error in errors} == {kind}
    assert text in str(errors[0])


SENT = """
extern "C" __global__ void sent(unsigned* out, int bytes, int without) {
  __shared__ alignas(16) unsigned got[4];
  __shared__ alignas(8) unsigned long long arrived;
  unsigned there, mbarrier;
  if (threadIdx.x == 0) {
    init(&arrived, 1);
    asm volatile("fence.mbarrier_init.release.cluster;");
    expect(&arrived, bytes);
  }
  cluster_arrive();
  cluster_wait();
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at(got)), "r"(rank() ^ 1));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(mbarrier) : "r"(at(&arrived)), "r"(rank() ^ 1));
  if (threadIdx.x == 0) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 : : "r"(there), "r"(100 + rank()), "r"(mbarrier) : "memory");
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];"
                 : : "r"(there + 8), "r"(7 + rank()), "r"(8u), "r"(mbarrier) : "memory");
  }
  if (without != 1) wait(&arrived, 0);
  if (threadIdx.x == 0) {
    out[blockIdx.x * 3] = got[0];
    out[blockIdx.x * 3 + 1] = got[2];
    out[blockIdx.x * 3 + 2] = got[3];
  }
  cluster_arrive();
  cluster_wait();
}
"""


def test_values_are_sent_to_another_block():
    kernel = compiled(SENT).kernel("sent")
    for seed in range(3):
        out = np.zeros(6, np.uint32)
        kernel(out, 12, 0, grid=2, block=32, cluster=2, seed=seed)
        assert out.tolist() == [101, 8, 8, 100, 7, 8]
        with pytest.raises(CudaEmulationError, match=r"race: .* got\[0\], which"):
            kernel(out, 12, 1, grid=2, block=32, cluster=2, seed=seed)
        with pytest.raises(CudaEmulationError, match="4 bytes to come"):
            kernel(out, 16, 0, grid=2, block=32, cluster=2, seed=seed)
