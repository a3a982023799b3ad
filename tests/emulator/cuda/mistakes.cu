// Kernels with one mistake each, marked by a comment that a test looks for.

extern "C" __global__ void read_without_barrier(float* a) {
  __shared__ float tile[64];
  tile[threadIdx.x] = a[threadIdx.x];
  a[threadIdx.x] = tile[63 - threadIdx.x];
}

extern "C" __global__ void write_after_reads(float* a) {
  __shared__ float tile[64];
  tile[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  float other = tile[(threadIdx.x + 1) % 64];
  tile[threadIdx.x] = other;  // race: write after read
  __syncthreads();
  a[threadIdx.x] = tile[threadIdx.x];
}

extern "C" __global__ void warp_barrier_for_two_warps(float* a) {
  __shared__ float tile[64];
  tile[threadIdx.x] = a[threadIdx.x];
  __syncwarp();
  a[threadIdx.x] = tile[63 - threadIdx.x];
}

extern "C" __global__ void blocks_share_an_element(float* a) { a[0] = blockIdx.x; }

// Two threads of two warps, `x` and the other one: which of them comes first does not matter.
extern "C" __global__ void two_stores(float* a, int kind, int x) {
  __shared__ float tile[1];
  if (threadIdx.x == 5) tile[0] = 2;
  __syncthreads();
  if (threadIdx.x == x) {
    if (kind == 3) a[1] = tile[0];
    if (kind == 4) tile[0] = 1;
    if (kind == 5) tile[0] = 2;
    if (kind == 6) {
      atomicExch(tile, 2.0f);
    } else {
      tile[0] = kind == 1 ? 3 : 2;
    }
    if (kind == 2) a[1] = tile[0];
  } else if (threadIdx.x == 32 - x) {
    tile[0] = 2;
  }
  __syncthreads();
  if (kind == 7) tile[0] = 7;
  __syncthreads();
  if (threadIdx.x == 0) a[0] = tile[0];
}

// A warp reads, a second one stores behind that, and a third one stores the same at any time.
extern "C" __global__ void read_before_one_of_two_stores(float* a, int first) {
  __shared__ float tile[1];
  if (threadIdx.x == 0) tile[0] = 3;
  __syncthreads();
  const int role = (threadIdx.x / 32 + first) % 3;
  const bool acts = threadIdx.x % 32 == 0;
  if (role == 0) {
    if (acts) a[0] = tile[0];
    asm volatile("bar.sync 1, 64;");
  } else {
    if (role == 1) asm volatile("bar.sync 1, 64;");
    if (acts) tile[0] = 5;
  }
}

extern "C" __global__ void blocks_store_an_element(float* a, int apart) {
  a[0] = 3 + apart * blockIdx.x;
}

extern "C" __global__ void beyond_the_end(float* a, int n) {
  a[threadIdx.x + n] = 1;  // out of bounds
}

extern "C" __global__ void beyond_a_tile(float* a) {
  __shared__ float tile[32];
  float* place = tile + threadIdx.x;
  *place = 1;  // out of bounds: tile
  __syncthreads();
  a[threadIdx.x] = tile[threadIdx.x % 32];
}

extern "C" __global__ void never_written(float* a) {
  __shared__ float tile[64];
  if (threadIdx.x < 32) tile[threadIdx.x] = 1;
  __syncthreads();
  a[threadIdx.x] = tile[threadIdx.x];  // never written
}

extern "C" __global__ void barrier_in_a_branch(float* a) {
  if (threadIdx.x < 32) {
    __syncthreads();  // divergence
    a[threadIdx.x] = 1;
  } else {
    __syncthreads();
  }
}

extern "C" __global__ void shuffle_of_a_returned_lane(float* a) {
  if (threadIdx.x == 7) return;
  a[threadIdx.x] = __shfl_xor_sync(0xffffffff, a[threadIdx.x], 1);  // divergence: returned
}

extern "C" __global__ void shuffle_from_a_lane_outside_of_the_mask(float* a) {
  if (threadIdx.x < 16) a[threadIdx.x] = __shfl_sync(0xffff, a[threadIdx.x], 20);  // invalid lane
}

extern "C" __global__ void misaligned_vector(float* a) {
  float4 v = *(float4*)(a + threadIdx.x);  // misaligned
  a[threadIdx.x] = v.x;
}

extern "C" __global__ void named_barriers_crossed(float* a) {
  int first = threadIdx.x < 32 ? 1 : 2;
  asm volatile("bar.sync %0, %1;" : : "r"(first), "r"(64) : "memory");  // deadlock
  a[threadIdx.x] = 1;
}

extern "C" __global__ void trapped(float* a) {
  if (a[threadIdx.x] != 0) __trap();  // trap
}

extern "C" __global__ void asserted(float* a) {
  assert(a[threadIdx.x] == 0);  // assert
}

extern "C" __global__ void endless(volatile float* a) {
  while (a[0] == 0) {  // endless
  }
}

extern "C" __global__ void divided(int* a) {
  a[threadIdx.x] = 7 / a[threadIdx.x];  // division
}

__device__ __forceinline__ void copy_16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from)
               : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }

// Two stages, each copied by its thread and read by another.
extern "C" __global__ void two_stages(float* a, float* out, int left, int together) {
  __shared__ alignas(16) float tiles[2][256];
  for (int stage = 0; stage < 2; ++stage) {
    copy_16(&tiles[stage][threadIdx.x * 4], a + stage * 256 + threadIdx.x * 4);
    commit();
  }
  if (left == 1) asm volatile("cp.async.wait_group 1;" : : : "memory");
  if (left == 2) asm volatile("cp.async.wait_group 2;" : : : "memory");
  if (together) __syncthreads();
  out[threadIdx.x] = tiles[0][255 - threadIdx.x];
}

extern "C" __global__ void copied_source_is_overwritten(float* a) {
  __shared__ alignas(16) float tile[256];
  copy_16(&tile[threadIdx.x * 4], a + threadIdx.x * 4);
  commit();
  a[threadIdx.x * 4] = 1;  // race: source
  asm volatile("cp.async.wait_group 0;" : : : "memory");
}

extern "C" __global__ void copied_over_what_is_read(float* a, float* out) {
  __shared__ alignas(16) float tile[256];
  for (int i = 0; i < 4; ++i) tile[threadIdx.x * 4 + i] = i;
  __syncthreads();
  out[threadIdx.x] = tile[255 - threadIdx.x];
  copy_16(&tile[threadIdx.x * 4], a + threadIdx.x * 4);
  commit();
  asm volatile("cp.async.wait_group 0;" : : : "memory");
}
