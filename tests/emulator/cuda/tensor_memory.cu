// Single instructions of tensor memory: what lies in shared memory is multiplied, or stored, and loaded back.
__device__ void alloc(void* to) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.b32 [%0], 512;" : : "l"(to) : "memory");
}
__device__ void dealloc(unsigned at) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 512;" : : "r"(at) : "memory");
}
__device__ void fence_before() { asm volatile("tcgen05.fence::before_thread_sync;" : : : "memory"); }
__device__ void fence_after() { asm volatile("tcgen05.fence::after_thread_sync;" : : : "memory"); }
__device__ void wait_ld() { asm volatile("tcgen05.wait::ld.sync.aligned;" : : : "memory"); }
__device__ void wait_st() { asm volatile("tcgen05.wait::st.sync.aligned;" : : : "memory"); }
__device__ void store(unsigned to, unsigned word) {
  asm volatile("tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};" : : "r"(to), "r"(word) : "memory");
}
__device__ unsigned load(unsigned from) {
  unsigned word;
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(word) : "r"(from));
  wait_ld();
  return word;
}
__device__ void commit_and_wait(void* barrier) {
  if (threadIdx.x == 0) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%0];" : : "l"(barrier) : "memory");
  }
  wait(barrier, 0);
  fence_after();
}
__device__ void meet() {
  wait_st();
  fence_before();
  __syncthreads();
  fence_after();
}
// Words of tensor memory are the numbers of their lanes and columns first, and are loaded last.
template <typename Body>
__device__ void with_tensor_memory(unsigned* out, int columns, bool of_floats, Body body) {
  __shared__ unsigned place;
  if (threadIdx.x < 32) alloc(&place);
  __syncthreads();
  unsigned base = place, own = base + (threadIdx.x / 32 << 21);
  for (int c = 0; c < columns; ++c) {
    store(own + c, of_floats ? __float_as_uint(threadIdx.x * columns + c) : threadIdx.x << 16 | c);
  }
  meet();
  body(base, own);
  for (int c = 0; c < columns; ++c) out[threadIdx.x * columns + c] = load(own + c);
  __syncthreads();
  if (threadIdx.x < 32) dealloc(base);
}

TRANSFERS

// Products by `form`, of what `bytes` has for A and for B.
extern "C" __global__ void multiply(const unsigned char* bytes, unsigned* out, int form, unsigned what, unsigned a_step,
                                    unsigned b_step, unsigned a_group, unsigned b_group, int mode, int adds, int a_column) {
  __shared__ alignas(1024) unsigned char tile[32768];
  __shared__ alignas(8) unsigned long long done;
  if (threadIdx.x == 0) {
    init(&done, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
  }
  for (int i = threadIdx.x; i < 32768; i += 128) tile[i] = bytes[i];
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
  with_tensor_memory(out, 128, true, [&](unsigned base, unsigned own) {
    for (int c = 0; a_column && c < 8; ++c) store(own + a_column + c, ((unsigned*)tile)[threadIdx.x * 8 + c]);
    meet();
    auto descriptor = [&](const void* p, unsigned long long step, unsigned long long group) {
      return (unsigned long long)(at(p) & 0x3ffff) >> 4 | step << 16 | group << 32 | 1ull << 46 |
             (unsigned long long)mode << 61;
    };
    unsigned long long a = descriptor(tile, a_step, a_group), b = descriptor(tile + 16384, b_step, b_group);
    if (threadIdx.x == 0) run(form, base, a, b, what, adds);
    commit_and_wait(&done);
  });
}
