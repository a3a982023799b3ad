// A product of 64 columns by tcgen05, as Blackwell does it: a warp that copies tiles by TMA, one that copies
// scales to tensor memory and multiplies, and four that load the sum. $BLOCKS blocks, $SCALES bytes of scales for
// a row of 32 bytes. Each step of the protocol has a number, and the kernel leaves out the one that it is told to.
#define STEP(n) if (without != n)
constexpr int kBlocks = $BLOCKS, kScales = $SCALES;
constexpr int kRow = 128, kRows = 128, kColumns = 64, kStages = 2;
constexpr int kA = kRows * kRow, kB = kColumns / kBlocks * kRow, kScale = 512 * kScales;
constexpr int kStage = kA + kB + 2 * kScale;

__device__ void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" : : "r"(barrier) : "memory");
}
__device__ void load(void* to, const CUtensorMap* map, int column, int row, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::$BLOCKS "
      "[%0], [%1, {%2, %3}], [%4];"
      : : "r"(at(to)), "l"(map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
__device__ void load_bytes(void* to, const void* from, unsigned bytes, void* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               : : "r"(at(to)), "l"(from), "r"(bytes), "r"(at(barrier)) : "memory");
}
__device__ void fence_before() { asm volatile("tcgen05.fence::before_thread_sync;" : : : "memory"); }
__device__ void fence_after() { asm volatile("tcgen05.fence::after_thread_sync;" : : : "memory"); }
__device__ void alloc(void* to) {
  asm volatile("tcgen05.alloc.cta_group::$BLOCKS.sync.aligned.shared::cta.b32 [%0], 128;" : : "r"(at(to)) : "memory");
}
__device__ void relinquish() {
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::$BLOCKS.sync.aligned;" : : : "memory");
}
__device__ void dealloc(unsigned address) {
  asm volatile("tcgen05.dealloc.cta_group::$BLOCKS.sync.aligned.b32 %0, 128;" : : "r"(address) : "memory");
}
__device__ void copy(unsigned to, unsigned long long from) {
  asm volatile("tcgen05.cp.cta_group::$BLOCKS.32x128b.warpx4 [%0], %1;" : : "r"(to), "l"(from) : "memory");
}
__device__ void mma(unsigned sum, unsigned long long a, unsigned long long b, unsigned what, unsigned a_scales,
                    unsigned b_scales, int adds) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %$PREDICATE, 0; tcgen05.mma.cta_group::$BLOCKS.kind::$KIND "
               "[%0], %1, %2, %3$OPERANDS, p; }"
               : : "r"(sum), "l"(a), "l"(b), "r"(what), "r"(a_scales), "r"(b_scales), "r"(adds) : "memory");
}
__device__ void commit(void* barrier) {
  asm volatile("tcgen05.commit.cta_group::$BLOCKS.mbarrier::arrive::one.shared::cluster$MULTICAST.b64 [%0]$MASK;"
               : : "r"(at(barrier)), "h"((unsigned short)3) : "memory");
}
__device__ void load_sums(unsigned (&r)[8], unsigned from) {
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7])
               : "r"(from));
}
__device__ void wait_for_sums() { asm volatile("tcgen05.wait::ld.sync.aligned;" : : : "memory"); }
// In the even block of the pair, which has the bit of the address that the other one's are apart by.
__device__ unsigned leaders(void* p) { return at(p) & (kBlocks == 2 ? 0xfeffffffu : ~0u); }

// Rows of 128 bytes, swizzled, in groups of eight; and rows of 16 bytes without.
__device__ unsigned long long descriptor(const void* p, unsigned long long group, unsigned long long mode) {
  return (at(p) & 0x3ffff) >> 4 | 1ull << 16 | group << 32 | 1ull << 46 | mode << 61;
}

extern "C" __global__ void product(const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B,
                                   const unsigned char* a_scales, const unsigned char* b_scales, unsigned* C,
                                   int tiles, int steps, int width, unsigned what, int without, unsigned flip,
                                   int consumers, int bytes_off, unsigned long long group, unsigned long long mode) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ __align__(8) unsigned long long full[kStages], empty[kStages], done, free_[1];
  __shared__ unsigned place;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  bool leads = rank() == 0;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      init(&full[s], 1);
      init(&empty[s], 1);
    }
    init(&done, 1);
    init(free_, consumers * kBlocks);
    STEP(0) asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
  }
  if (warp == 5) {
    alloc(&place);
    relinquish();
  }
  STEP(1) __syncthreads();
  if (kBlocks == 2) {
    cluster_arrive();
    cluster_wait();
  }
  unsigned sum = place;
  if (warp == 4 && lane == 0) {
    for (int it = 0; it < tiles * steps; ++it) {
      int s = it % kStages, k = it % steps, tile = it / steps;
      unsigned char* stage = memory + s * kStage;
      STEP(2) wait(&empty[s], it / kStages % 2 ^ 1);
      if (leads) {
        STEP(3) expect(&full[s], kBlocks * (kStage - 2 * kScale) + 2 * kScale + bytes_off);
      }
      load(stage, &A, k * width, (tile * kBlocks + rank()) * kRows, leaders(&full[s]));
      load(stage + kA, &B, k * width, rank() * (kColumns / kBlocks), leaders(&full[s]));
      if (kScales) {
        load_bytes(stage + kA + kB, a_scales + (tile * steps + k) * kScale, kScale, &full[s]);
        load_bytes(stage + kA + kB + kScale, b_scales + k * kScale, kScale, &full[s]);
      }
    }
  } else if (warp == 5 && lane == 0 && leads) {
    for (int it = 0; it < tiles * steps; ++it) {
      int s = it % kStages, k = it % steps;
      unsigned char* stage = memory + s * kStage;
      if (k == 0) {
        STEP(4) wait(free_, it / steps % 2 ^ 1);
        STEP(5) fence_after();
      }
      STEP(6) wait(&full[s], it / kStages % 2 ^ flip);
      for (int i = 0; i < 2 * kScales; ++i) {
        STEP(7) copy(sum + kColumns + 4 * i, descriptor(stage + kA + kB + 512 * i, 8, 0));
      }
      for (int i = 0; i < 4; ++i) {
        unsigned id = i * kScales % 4, word = i * kScales / 4;
        unsigned first = sum + kColumns + 4 * word;
        mma(sum, descriptor(stage, group, mode) + 2 * i, descriptor(stage + kA, group, mode) + 2 * i,
            what | id << 4 | id << 29, first, first + 4 * kScales, k > 0 || i > 0);
      }
      STEP(8) commit(&empty[s]);
      if (k == steps - 1) {
        STEP(9) commit(&done);
      }
    }
  } else if (warp < 4) {
    for (int tile = 0; tile < tiles; ++tile) {
      STEP(10) wait(&done, tile % 2);
      STEP(11) fence_after();
      int row = (tile * kBlocks + rank()) * kRows + threadIdx.x;
      for (int c = 0; c < kColumns; c += 8) {
        unsigned r[8];
        load_sums(r, sum + (warp << 21) + c);
        STEP(12) wait_for_sums();
        for (int i = 0; i < 8; ++i) C[row * kColumns + c + i] = r[i];
      }
      STEP(13) fence_before();
      __syncwarp();
      if (lane == 0) {
        STEP(14) arrive(leaders(free_));
      }
    }
  }
  __syncwarp();
  STEP(15) __syncthreads();
  if (kBlocks == 2) {
    cluster_arrive();
    cluster_wait();
  }
  if (warp == 5) {
    STEP(16) dealloc(sum);
  }
}
