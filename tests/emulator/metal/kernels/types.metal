// Scalars, vectors and packed vectors, by the definitions of chapters 2 and 3 of the Metal Shading
// Language Specification.
#include <metal_stdlib>
using namespace metal;

template <typename T, int bytes, int alignment = bytes>
constexpr bool has = sizeof(T) == bytes && alignof(T) == alignment;

static_assert(has<half, 2> && has<bfloat, 2> && has<long, 8> && has<bool, 1> && has<bool4, 4>);
static_assert(has<float2, 8> && has<float3, 16> && has<float4, 16> && has<half3, 8> && has<half4, 8>);
static_assert(has<uchar4, 4> && has<bfloat4, 8> && has<short2, 4> && has<long2, 16>);
static_assert(has<packed_float3, 12, 4> && has<packed_half3, 6, 2> && has<packed_uchar3, 3, 1>);
static_assert(has<packed_short4, 8, 2>);

kernel void components(device const float4* in [[buffer(0)]],
                       device float4* out [[buffer(1)]],
                       uint i [[thread_position_in_grid]]) {
  float4 v = in[i];
  float4 r = float4(v.wz, v.y, v.x);
  r.xy += v.zw;
  r[2] = v.r * v[3];
  r.w = -v.w;
  float3 three = v.xyz * 2.0f;
  out[3 * i] = r;
  out[3 * i + 1] = float4(three, 1);
  out[3 * i + 2] = (float4)(int4(v)) + 0.5f;
}

kernel void packed(device const packed_float3* in [[buffer(0)]],
                   device packed_half3* out [[buffer(1)]],
                   uint i [[thread_position_in_grid]]) {
  float3 v = in[i];
  packed_float3 twice = in[i] + v;
  out[i] = packed_half3(half(twice.x), half(twice.y), half(twice[2]));
}

kernel void integers(device const int4* a [[buffer(0)]],
                     device const int4* b [[buffer(1)]],
                     device int4* out [[buffer(2)]],
                     uint i [[thread_position_in_grid]]) {
  int4 x = a[i], y = b[i];
  out[6 * i] = (x + y) * 3 - x / (abs(y) + 1);
  out[6 * i + 1] = (x & y) | (x ^ 7);
  out[6 * i + 2] = (x << 2) >> 1;
  out[6 * i + 3] = select(x, y, x < y);
  out[6 * i + 4] = int4(short4(x)) + int4(uchar4(y));
  out[6 * i + 5] = int4(any(x == y), all(x != y), popcount(x.x), clz(y.y));
}

kernel void halves(device const half* a [[buffer(0)]],
                   device const half* b [[buffer(1)]],
                   device half* out [[buffer(2)]],
                   uint i [[thread_position_in_grid]]) {
  half x = a[i], y = b[i];
  out[4 * i] = x * y - 0.5h;
  out[4 * i + 1] = half(float(x) / float(y));
  out[4 * i + 2] = half4(x, y, 1, 2).y + (half)1.5f;
  out[4 * i + 3] = max(x, y) + (half2(x, y) * 2.0h).x;
}

kernel void bfloats(device const bfloat* a [[buffer(0)]],
                    device const bfloat* b [[buffer(1)]],
                    device bfloat* out [[buffer(2)]],
                    device float* wide [[buffer(3)]],
                    uint i [[thread_position_in_grid]]) {
  bfloat x = a[i], y = b[i];
  out[3 * i] = x * y;
  out[3 * i + 1] = bfloat(float(x) + 1.0f);
  out[3 * i + 2] = x < y ? x : y;
  wide[i] = x + 0.25f;
}

kernel void bits(device const float* in [[buffer(0)]],
                 device uint* out [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) {
  out[3 * i] = as_type<uint>(in[i]);
  out[3 * i + 1] = as_type<uint>(half2(half(in[i]), half(1)));
  out[3 * i + 2] = as_type<ushort>(bfloat(in[i]));
}

// Program scope constants, a function with a pointer parameter, a template.
constant float weights[4] = {0.1f, 0.2, 0.3f, 0.4};
constant constexpr int count = 4;

float weighted(device const float* p, int step) {
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += weights[i] * p[i * step];
  return sum;
}

template <typename T>
T doubled(thread const T& value) {
  return value + value;
}

kernel void functions(const device float* in [[buffer(0)]], device float* out [[buffer(1)]],
                      constant const uint& step [[buffer(2)]],
                      ushort i [[thread_index_in_threadgroup]]) {
  out[i] = doubled(weighted(in + i, step));
}

struct Shape {
  int rows;
  float scale;
  uint2 tile;
};

[[kernel]] void attributes(device uint* out [[buffer(0)]],
                           constant Shape& shape [[buffer(1)]],
                           uint3 position [[thread_position_in_grid]],
                           ushort3 local [[thread_position_in_threadgroup]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint index [[thread_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]],
                           uint simdgroup [[simdgroup_index_in_threadgroup]],
                           uint3 threads [[threads_per_threadgroup]],
                           uint3 grid [[threadgroups_per_grid]],
                           uint width [[threads_per_simdgroup]],
                           uint simdgroups [[simdgroups_per_threadgroup]],
                           uint3 all [[threads_per_grid]]) {
  uint linear = (position.z * all.y + position.y) * all.x + position.x;
  device uint* row = out + linear * 16;
  row[0] = local.x;
  row[1] = local.y;
  row[2] = group.x;
  row[3] = group.y;
  row[4] = group.z;
  row[5] = index;
  row[6] = lane;
  row[7] = simdgroup;
  row[8] = threads.x * 10000 + threads.y * 100 + threads.z;
  row[9] = grid.x * 100 + grid.y;
  row[10] = width;
  row[11] = simdgroups;
  row[12] = shape.rows;
  row[13] = uint(shape.scale * 4);
  row[14] = shape.tile.y;
  row[15] = all.z;
}
