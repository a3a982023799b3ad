// C = A * B by 8x8 simdgroup matrices: tiles of 64x64 in threadgroup memory, four simdgroups of
// 32x32, ragged edges filled with zeros and not stored.
#include <metal_stdlib>
using namespace metal;

constant constexpr int BM = 64, BN = 64, BK = 32;

struct Shape {
  int M, N, K;
};

kernel void gemm(device const half* A [[buffer(0)]], device const half* B [[buffer(1)]],
                 device half* C [[buffer(2)]], constant Shape& shape [[buffer(3)]],
                 uint2 group [[threadgroup_position_in_grid]],
                 uint index [[thread_index_in_threadgroup]],
                 uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup half As[BM * BK];
  threadgroup half Bs[BK * BN];
  const int M = shape.M, N = shape.N, K = shape.K;
  const int row0 = group.y * BM, column0 = group.x * BN;
  simdgroup_matrix<float, 8, 8> sum[4][4];
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) sum[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  const int row = (simdgroup / 2) * 32, column = (simdgroup % 2) * 32;
  for (int k0 = 0; k0 < K; k0 += BK) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int e = index; e < BM * BK; e += 128) {
      const int m = row0 + e / BK, k = k0 + e % BK;
      As[e] = m < M && k < K ? A[m * K + k] : half(0);
    }
    for (int e = index; e < BK * BN; e += 128) {
      const int k = k0 + e / BN, n = column0 + e % BN;
      Bs[e] = k < K && n < N ? B[k * N + n] : half(0);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int k = 0; k < BK; k += 8) {
      simdgroup_matrix<half, 8, 8> a[4], b[4];
      for (int i = 0; i < 4; ++i) simdgroup_load(a[i], As + (row + i * 8) * BK + k, BK);
      for (int j = 0; j < 4; ++j) simdgroup_load(b[j], Bs + k * BN + column + j * 8, BN);
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) simdgroup_multiply_accumulate(sum[i][j], a[i], b[j], sum[i][j]);
    }
  }
  // Lane by lane, by the map of thread_elements().
  const uint lane = index % 32;
  const int r = row0 + row + (lane / 4 & 4) + lane / 2 % 4;
  const int c = column0 + column + (lane / 4 & 2) * 2 + lane % 2 * 2;
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j)
      for (int e = 0; e < 2; ++e)
        if (r + i * 8 < M && c + j * 8 + e < N)
          C[(r + i * 8) * N + c + j * 8 + e] = half(sum[i][j].thread_elements()[e]);
}
