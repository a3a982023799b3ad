// Simdgroup functions, matrices, atomics and threadgroup memory, by chapter 6 of the Metal Shading
// Language Specification.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

kernel void reductions(device const float* in [[buffer(0)]],
                       device float* out [[buffer(1)]],
                       device const int* integers [[buffer(2)]],
                       device int* integer_out [[buffer(3)]],
                       uint i [[thread_position_in_grid]]) {
  const float x = in[i];
  device float* row = out + 7 * i;
  row[0] = simd_sum(x);
  row[1] = simd_max(x);
  row[2] = simd_min(x);
  row[3] = simd_product(x);
  row[4] = simd_prefix_inclusive_sum(x);
  row[5] = simd_prefix_exclusive_sum(x);
  row[6] = simd_sum(float2(x, 2 * x)).y;
  const int n = integers[i];
  device int* integer_row = integer_out + 7 * i;
  integer_row[0] = simd_and(n);
  integer_row[1] = simd_or(n);
  integer_row[2] = simd_xor(n);
  integer_row[3] = simd_any(n > 90);
  integer_row[4] = simd_all(n >= 0);
  integer_row[5] = (int)(ulong)simd_ballot(n > 50);
  integer_row[6] = simd_ballot(n >= 0).all();
}

kernel void shuffles(device const half* in [[buffer(0)]],
                     device half* out [[buffer(1)]],
                     uint lane [[thread_index_in_simdgroup]],
                     uint i [[thread_position_in_grid]]) {
  const half x = in[i];
  out[8 * i] = simd_shuffle(x, 31 - lane);
  out[8 * i + 1] = simd_shuffle_xor(x, 5);
  out[8 * i + 2] = simd_shuffle_up(x, 3);
  out[8 * i + 3] = simd_shuffle_down(x, 4);
  out[8 * i + 4] = simd_broadcast(x, 7);
  out[8 * i + 5] = simd_broadcast_first(x);
  out[8 * i + 6] = simd_shuffle_rotate_down(x, 1);
  out[8 * i + 7] = simd_shuffle_rotate_up(x, 2);
}

// The sum of 1024 numbers: lanes, then simdgroups through threadgroup memory.
kernel void block_sum(device const float* in [[buffer(0)]],
                      device float* out [[buffer(1)]],
                      threadgroup float* partial [[threadgroup(0)]],
                      uint i [[thread_index_in_threadgroup]],
                      uint lane [[thread_index_in_simdgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]],
                      uint simdgroups [[simdgroups_per_threadgroup]]) {
  const float sum = simd_sum(in[i]);
  if (lane == 0) partial[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0) {
    const float total = simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
    if (lane == 0) out[0] = total;
  }
}

// A tree in one simdgroup, ordered by simdgroup barriers.
kernel void simdgroup_tree(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                           uint i [[thread_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]],
                           uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup int tree[2][32];
  threadgroup int* mine = tree[simdgroup];
  mine[lane] = in[i];
  for (uint step = 16; step > 0; step /= 2) {
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (lane < step) mine[lane] += mine[lane + step];
  }
  if (lane == 0) out[simdgroup] = mine[0];
}

kernel void atomics(device const int* in [[buffer(0)]],
                    device atomic_int* counters [[buffer(1)]],
                    device atomic_uint* unsigned_counters [[buffer(2)]],
                    device atomic_float* sum [[buffer(3)]],
                    device int* histogram [[buffer(4)]],
                    uint i [[thread_position_in_grid]],
                    uint local [[thread_index_in_threadgroup]]) {
  threadgroup atomic_int bins[4];
  if (local < 4) atomic_store_explicit(&bins[local], 0, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const int x = in[i];
  atomic_fetch_add_explicit(&bins[x & 3], 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&counters[0], x, memory_order_relaxed);
  atomic_fetch_max_explicit(counters + 1, x, memory_order_relaxed);
  atomic_fetch_min_explicit(counters + 2, x, memory_order_relaxed);
  atomic_fetch_or_explicit(unsigned_counters, 1u << (x & 31), memory_order_relaxed);
  atomic_fetch_add_explicit(sum, 0.5f * x, memory_order_relaxed);
  int expected = atomic_load_explicit(counters + 3, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(counters + 3, &expected, expected + 2,
                                                memory_order_relaxed, memory_order_relaxed)) {
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (local < 4 && i < 4) histogram[local] = atomic_load_explicit(&bins[local], memory_order_relaxed);
}

// What each lane holds of a matrix whose element (r, c) is 8 r + c, plain and transposed.
kernel void lane_map(device const float* in [[buffer(0)]],
                     device float* out [[buffer(1)]],
                     uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_float8x8 plain, transposed;
  simdgroup_load(plain, in);
  simdgroup_load(transposed, in, 8, 0, true);
  float2 held = plain.thread_elements();
  thread auto& other = transposed.thread_elements();
  out[4 * lane] = held[0];
  out[4 * lane + 1] = held[1];
  out[4 * lane + 2] = other[0];
  out[4 * lane + 3] = other[1];
}

// d = a * b + c of one 8x8 block, cut out of larger matrices by origin and stride.
template <typename In, typename Out>
void block_multiply(device const In* a, device const In* b, device const Out* c, device Out* d,
                    ulong stride, ulong2 origin) {
  simdgroup_matrix<In, 8, 8> ma, mb;
  simdgroup_matrix<Out, 8, 8> mc, md;
  simdgroup_load(ma, a, stride, origin);
  simdgroup_load(mb, b, stride, origin, true);
  simdgroup_load(mc, c, stride, origin);
  simdgroup_multiply_accumulate(md, ma, mb, mc);
  simdgroup_store(md, d, stride, origin);
}

kernel void block_half(device const half* a [[buffer(0)]], device const half* b [[buffer(1)]],
                       device const float* c [[buffer(2)]], device float* d [[buffer(3)]]) {
  block_multiply(a, b, c, d, 24, ulong2(8, 16));
}
kernel void block_bfloat(device const bfloat* a [[buffer(0)]], device const bfloat* b [[buffer(1)]],
                         device const float* c [[buffer(2)]], device float* d [[buffer(3)]]) {
  block_multiply(a, b, c, d, 24, ulong2(8, 16));
}
kernel void block_float(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                        device const float* c [[buffer(2)]], device float* d [[buffer(3)]]) {
  block_multiply(a, b, c, d, 24, ulong2(8, 16));
}
kernel void block_all_half(device const half* a [[buffer(0)]], device const half* b [[buffer(1)]],
                           device const half* c [[buffer(2)]], device half* d [[buffer(3)]]) {
  block_multiply(a, b, c, d, 24, ulong2(8, 16));
}

kernel void special_matrices(device const float* in [[buffer(0)]], device float* out [[buffer(1)]]) {
  simdgroup_float8x8 matrix, product;
  simdgroup_load(matrix, in);
  simdgroup_multiply(product, matrix, simdgroup_float8x8(2.0f));
  simdgroup_store(product, out);
  simdgroup_multiply(product, make_diagonal_simdgroup_matrix<float, 8, 8>(3.0f), matrix);
  simdgroup_store(product, out + 64);
  simdgroup_store(make_filled_simdgroup_matrix<float, 8, 8>(4.0f), out + 128);
  simdgroup_store(matrix, out + 192, 8, 0, true);
}
