// What the kernels beside this file do with mbarriers and clusters; their tests put it before them.
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void init(void* barrier, unsigned count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" : : "r"(at(barrier)), "r"(count) : "memory");
}
__device__ void expect(void* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
               : : "r"(at(barrier)), "r"(bytes) : "memory");
}
__device__ void wait(void* barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred P1;\n"
      "LAB_WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n"
      "@P1 bra DONE;\n"
      "bra LAB_WAIT;\n"
      "DONE:\n"
      "}\n" : : "r"(at(barrier)), "r"(parity) : "memory");
}
__device__ unsigned rank() {
  unsigned r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" : : : "memory"); }
__device__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" : : : "memory"); }
