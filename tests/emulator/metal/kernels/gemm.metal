// C = A * B by 8x8 simdgroup matrices: tiles of 64x64 in threadgroup memory, four simdgroups of
// 32x32, ragged edges filled with zeros and not stored.
#include <metal_stdlib>
using namespace metal;

constant constexpr int BM = 64, BN = 64, BK = 32;

struct Shape {
  int M, N, K;
};

template <typename T, bool TransposeA, bool TransposeB>
void gemm_tile(device const T* A, device const T* B, device T* C, constant Shape& shape,
               threadgroup T* As, threadgroup T* Bs, uint2 group, uint index, uint simdgroup) {
  const int M = shape.M, N = shape.N, K = shape.K;
  const int row0 = group.y * BM, column0 = group.x * BN;
  simdgroup_matrix<float, 8, 8> sum[4][4];
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) sum[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  const int row = (simdgroup / 2) * 32, column = (simdgroup % 2) * 32;
  for (int k0 = 0; k0 < K; k0 += BK) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int e = index; e < BM * BK; e += 128) {
      const int m = TransposeA ? e % BM : e / BK, k = TransposeA ? e / BM : e % BK;
      const bool inside = row0 + m < M && k0 + k < K;
      As[e] = inside ? A[TransposeA ? (k0 + k) * M + row0 + m : (row0 + m) * K + k0 + k] : T(0);
    }
    for (int e = index; e < BK * BN; e += 128) {
      const int k = TransposeB ? e % BK : e / BN, n = TransposeB ? e / BK : e % BN;
      const bool inside = k0 + k < K && column0 + n < N;
      Bs[e] = inside ? B[TransposeB ? (column0 + n) * K + k0 + k : (k0 + k) * N + column0 + n]
                     : T(0);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int k = 0; k < BK; k += 8) {
      simdgroup_matrix<T, 8, 8> a[4], b[4];
      for (int i = 0; i < 4; ++i) {
        const int m = row + i * 8;
        simdgroup_load(a[i], As + (TransposeA ? k * BM + m : m * BK + k), TransposeA ? BM : BK, 0,
                       TransposeA);
      }
      for (int j = 0; j < 4; ++j) {
        const int n = column + j * 8;
        simdgroup_load(b[j], Bs + (TransposeB ? n * BK + k : k * BN + n), TransposeB ? BK : BN, 0,
                       TransposeB);
      }
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
          C[(r + i * 8) * N + c + j * 8 + e] = T(sum[i][j].thread_elements()[e]);
}
