// Kernels with one mistake each: what a GPU may let pass.
#include <metal_stdlib>
using namespace metal;

kernel void read_without_barrier(device float* out [[buffer(0)]],
                                 uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[i] = i;
  out[i] = tile[63 - i];  // race: read
}

kernel void write_without_barrier(device float* out [[buffer(0)]],
                                  uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float next = tile[(i + 1) % 64];
  tile[i] = next;  // race: write after read
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = tile[i];
}

kernel void two_writes(device float* out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup half sums[4];
  if (i == 3 || i == 40) sums[2] = half(i);  // race: two writes
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i == 0) out[0] = sums[2];
}

kernel void wrong_barrier_flag(device float* out [[buffer(0)]],
                               uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[i] = i;
  threadgroup_barrier(mem_flags::mem_device);
  out[i] = tile[63 - i];  // race: the barrier orders device memory only
}

kernel void simdgroup_barrier_is_not_enough(device float* out [[buffer(0)]],
                                            uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[i] = i;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = tile[(i + 32) % 64];  // race: across simdgroups
}

kernel void neighbours_in_a_word(device uchar* out [[buffer(0)]],
                                 uint i [[thread_index_in_threadgroup]]) {
  threadgroup uchar bytes[64];
  bytes[i] = i;  // no race: bytes of their own
  out[i] = bytes[i];
}

kernel void matrix_before_barrier(device float* out [[buffer(0)]],
                                  uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[i] = i;
  simdgroup_float8x8 m;
  simdgroup_load(m, tile);  // race: matrix load
  threadgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_store(m, out);
}

kernel void device_race(device int* data [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  data[i] = i;
  data[64 + i] = data[i ^ 1];  // race: device memory
}

kernel void threadgroups_race(device int* data [[buffer(0)]],
                              uint2 group [[threadgroup_position_in_grid]],
                              uint i [[thread_index_in_threadgroup]]) {
  if (i == 5) data[7] = group.y;  // race: two threadgroups
}

kernel void atomic_and_plain(device atomic_int* counter [[buffer(0)]], device int* out [[buffer(1)]],
                             uint i [[thread_index_in_threadgroup]]) {
  threadgroup atomic_int count;
  if (i == 0) atomic_store_explicit(&count, 0, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i != 9) {
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
  } else {
    out[0] = *(threadgroup int*)&count;  // race: a plain read among atomics
  }
}

kernel void past_device_end(device const half* in [[buffer(0)]], device half* out [[buffer(1)]],
                            uint i [[thread_position_in_grid]]) {
  out[i] = in[i + 1];  // bounds: read
}

kernel void before_device_start(device int* out [[buffer(0)]],
                                uint i [[thread_position_in_grid]]) {
  out[int(i) - 2] = 1;  // bounds: write
}

kernel void half_a_vector_outside(device float4* out [[buffer(0)]],
                                  uint i [[thread_position_in_grid]]) {
  out[i] = float4(i);  // bounds: a vector that ends outside
}

kernel void past_threadgroup_end(device float* out [[buffer(0)]],
                                 uint i [[thread_index_in_threadgroup]]) {
  threadgroup float first[32];
  threadgroup float second[32];
  second[i] = 0;
  threadgroup float* p = first + i;
  p[1] = i;  // bounds: the first of two arrays
  out[i] = second[i];
}

kernel void index_of_an_array(device float* out [[buffer(0)]], constant int& at [[buffer(1)]]) {
  threadgroup float table[4][8];
  table[1][at] = 1;  // bounds: an index within the array, outside of its row
  out[0] = table[2][0];
}

kernel void index_of_registers(device float* out [[buffer(0)]], constant int& at [[buffer(1)]]) {
  float registers[8] = {};
  registers[at] = 1;  // bounds: thread memory
  out[0] = registers[0];
}

kernel void matrix_past_the_end(device const half* in [[buffer(0)]], device half* out [[buffer(1)]],
                                constant uint& stride [[buffer(2)]]) {
  simdgroup_half8x8 m;
  simdgroup_load(m, in, stride);  // bounds: matrix load
  simdgroup_store(m, out);
}

kernel void null_buffer(device float* out [[buffer(0)]], constant ulong& address [[buffer(1)]]) {
  device float* p = (device float*)address;
  out[0] = *p;  // bounds: no buffer at all
}

kernel void never_written(device float* out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  if (i < 63) tile[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = tile[(i + 1) % 64];  // never written: tile[63]
}

kernel void kept_from_another_threadgroup(device float* out [[buffer(0)]],
                                          uint group [[threadgroup_position_in_grid]],
                                          uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[32];
  if (group == 0) tile[i] = i;
  out[group * 32 + i] = tile[i];  // never written: by this threadgroup
}

kernel void accumulator_never_filled(device const float* in [[buffer(0)]],
                                     device float* out [[buffer(1)]]) {
  simdgroup_float8x8 a, sum;
  simdgroup_load(a, in);
  simdgroup_multiply_accumulate(sum, a, a, sum);  // never written: the accumulator
  simdgroup_store(sum, out);
}

kernel void half_filled_matrix(device half* out [[buffer(0)]]) {
  simdgroup_half8x8 m;
  m.thread_elements()[0] = 1.0h;
  simdgroup_store(m, out);  // never written: each lane's second element
}

kernel void barrier_in_a_branch(device float* out [[buffer(0)]],
                                uint i [[thread_index_in_threadgroup]]) {
  if (i < 40) {
    threadgroup_barrier(mem_flags::mem_threadgroup);  // divergence: in a branch
  }
  out[i] = i;
}

kernel void two_barriers(device float* out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  if (i < 32) {
    threadgroup_barrier(mem_flags::mem_threadgroup);  // divergence: one barrier
  } else {
    threadgroup_barrier(mem_flags::mem_threadgroup);  // divergence: another barrier
  }
  out[i] = i;
}

kernel void early_return(device float* out [[buffer(0)]], constant uint& n [[buffer(1)]],
                         uint i [[thread_index_in_threadgroup]]) {
  if (i >= n) return;
  out[i] = simd_sum(float(i));  // divergence: simd_sum
}

kernel void matrix_in_a_branch(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                               uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_float8x8 m = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  if (lane != 13) simdgroup_load(m, in);  // divergence: matrix load
  simdgroup_store(m, out);
}

kernel void different_trip_counts(device float* out [[buffer(0)]],
                                  uint i [[thread_index_in_threadgroup]]) {
  float sum = 0;
  for (uint k = 0; k < 2 + i / 32; ++k) {
    sum += k;
    threadgroup_barrier(mem_flags::mem_none);  // divergence: trip counts
  }
  out[i] = sum;
}

kernel void misaligned_vector(device const float* in [[buffer(0)]], device float4* out [[buffer(1)]],
                              constant int& offset [[buffer(2)]],
                              uint i [[thread_position_in_grid]]) {
  out[i] = *(device const float4*)(in + i * 4 + offset);  // misaligned: device
}

kernel void misaligned_tile(device half4* out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  alignas(16) threadgroup half tile[32 * 6];
  for (int k = 0; k < 6; ++k) tile[i * 6 + k] = k;
  out[i] = *(threadgroup half4*)(tile + i * 6);  // misaligned: rows of 12 bytes
}

kernel void pointer_per_lane(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                             uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_float8x8 m;
  simdgroup_load(m, in + lane);  // not uniform: pointer
  simdgroup_store(m, out);
}

kernel void lane_out_of_range(device float* out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  out[i] = simd_shuffle(float(i), i + 1);  // invalid lane: 32
}

kernel void matrix_without_all_lanes(device float* out [[buffer(0)]]) {
  simdgroup_store(make_filled_simdgroup_matrix<float, 8, 8>(1.0f), out);  // invalid lane: too few
}

kernel void too_much_memory(device float* out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float first[6000];
  threadgroup float second[3000];  // threadgroup memory: too much
  first[i] = second[i] = 1;
  out[i] = first[i];
}

kernel void writes_a_constant(constant float* table [[buffer(0)]], device float* out [[buffer(1)]]) {
  float old = table[1];
  ((device float*)(ulong)table)[1] = 2;  // read-only
  out[0] = old;
}
