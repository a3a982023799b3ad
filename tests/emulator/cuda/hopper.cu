// A product of 64 columns by a producer and a warpgroup of consumers, as Hopper does it: bulk tensor copies
// into a ring of two stages, wgmma, and a bulk store. Each step of the protocol has a number, and the
// kernel leaves out the one that it is told to.
#include <cuda_fp16.h>

#define STEP(n) if (without != n)

__device__ void arrive(void* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" : : "r"(at(barrier)) : "memory");
}
__device__ void load(void* to, const CUtensorMap* map, int column, int row, void* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];" : : "r"(at(to)), "l"(map), "r"(column), "r"(row), "r"(at(barrier)) : "memory");
}
__device__ void store(const CUtensorMap* map, int column, int row, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
               : : "l"(map), "r"(column), "r"(row), "r"(at(from)) : "memory");
}
__device__ void fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }
__device__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
__device__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }
__device__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory"); }
__device__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" : : : "memory"); }
__device__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" : : : "memory");
}
__device__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" : : : "memory"); }
__device__ void consumers_meet() { asm volatile("bar.sync 1, 128;" : : : "memory"); }

// Rows of 128 bytes, swizzled; groups of eight rows follow each other.
__device__ unsigned long long descriptor(const void* p, unsigned long long group, unsigned long long mode) {
  return (at(p) & 0x3ffff) >> 4 | 1ull << 16 | group << 32 | mode << 62;
}
WGMMA

extern "C" __global__ void product(const __grid_constant__ CUtensorMap A,
                                   const __grid_constant__ CUtensorMap B,
                                   const __grid_constant__ CUtensorMap C, int tiles, int steps,
                                   int without, unsigned bytes, unsigned consumers, unsigned flip,
                                   int stage_off, unsigned long long group, unsigned long long mode) {
  __shared__ alignas(1024) half a[2][64 * 64];
  __shared__ alignas(1024) half b[2][64 * 64];
  __shared__ alignas(1024) half c[64 * 64];
  __shared__ alignas(8) unsigned long long full[2];
  __shared__ alignas(8) unsigned long long empty[2];
  int thread = threadIdx.x;
  if (thread == 0) {
    for (int s = 0; s < 2; ++s) {
      init(&full[s], 1);
      init(&empty[s], consumers);
    }
    STEP(0) fence_proxy();
  }
  STEP(1) __syncthreads();
  if (thread < 128) {
    if (thread == 0) {
      for (int it = 0; it < tiles * steps; ++it) {
        int s = it % 2;
        STEP(2) wait(&empty[s], it / 2 % 2 ^ 1);
        STEP(3) expect(&full[s], bytes);
        load(a[s], &A, it % steps * 64, it / steps * 64, &full[s]);
        load(b[s], &B, it % steps * 64, 0, &full[s]);
      }
    }
    return;
  }
  float d[32];
  int lane = thread % 32, row = (thread / 32 - 4) * 16 + lane / 4;
  for (int t = 0; t < tiles; ++t) {
    for (int k = 0; k < steps; ++k) {
      int it = t * steps + k, s = it % 2;
      STEP(4) wait(&full[s], it / 2 % 2 ^ flip);
      STEP(5) wgmma_fence();
      for (int i = 0; i < 4; ++i) {
        wgmma(d, descriptor(a[s ^ stage_off], group, mode) + i * 2, descriptor(b[s], group, mode) + i * 2,
              k > 0 || i > 0);
      }
      STEP(6) wgmma_commit();
      STEP(7) wgmma_wait();
      STEP(8) if (lane == 0) arrive(&empty[s]);
    }
    STEP(9) if (thread == 128) bulk_wait_read();
    STEP(10) consumers_meet();
    for (int i = 0; i < 32; ++i) {
      c[(row + i / 2 % 2 * 8) * 64 + i / 4 * 8 + lane % 4 * 2 + i % 2] = __float2half_rn(d[i]);
    }
    STEP(11) fence_proxy();
    STEP(12) consumers_meet();
    if (thread == 128) {
      store(&C, 0, t * 64, c);
      STEP(13) bulk_commit();
    }
  }
  STEP(14) if (thread == 128) bulk_wait();
}
