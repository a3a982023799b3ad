"""What lanes do together, atomics, and what the threads of a block count."""

from functools import cache

import numpy as np
import pytest
import torch

from tvmtile.emulator.cuda import compile_cuda

LANE = np.arange(32, dtype=np.int32)
# What a lane has whose x is its number.
LANES = {
    "xor_4": ("__shfl_xor_sync(0xffffffff, x, 4)", LANE ^ 4),
    "up_3": ("__shfl_up_sync(0xffffffff, x, 3)", np.where(LANE < 3, LANE, LANE - 3)),
    "down_3_of_8": (
        "__shfl_down_sync(0xffffffff, x, 3, 8)",
        np.where(LANE % 8 < 5, LANE + 3, LANE),
    ),
    "from_5": ("__shfl_sync(0xffffffff, x, 5)", 5),
    "halves": (
        "lane < 16 ? __shfl_xor_sync(0xffff, x, 1) : __shfl_xor_sync(~0xffff, x, 2)",
        np.where(LANE < 16, LANE ^ 1, LANE ^ 2),
    ),
    "of_half": ("(int)(float)__shfl_xor_sync(0xffffffff, __half((float)x), 16)", LANE ^ 16),
    "ballot": ("(int)__ballot_sync(0xffffffff, x % 3 == 0)", sum(1 << i for i in range(0, 32, 3))),
    "any": ("__any_sync(0xffffffff, x == 31)", 1),
    "all": ("__all_sync(0xffffffff, x < 31)", 0),
    "match": (
        "(int)__match_any_sync(0xffffffff, x % 4)",
        (0x11111111 << LANE % 4).astype(np.int32),
    ),
    "sum": ("__reduce_add_sync(0xffffffff, x)", 31 * 16),
    "least": ("__reduce_min_sync(0xffffffff, -x)", -31),
    "most": ("__reduce_max_sync(0xffffffff, -x)", 0),
    "bits": ("(int)__reduce_or_sync(0xffffffff, (unsigned)x)", 31),
}
SUMS = {
    "int": (np.int32, "int"),
    "unsigned": (np.uint32, "unsigned"),
    "long": (np.uint64, "unsigned long long"),
    "float": (np.float32, "float"),
    "double": (np.float64, "double"),
    "half": (np.float16, "__half"),
}
SOURCE = """
#include <cuda_fp16.h>
extern "C" __global__ void counted(int* a, int* out) {
  int even = __syncthreads_count(a[threadIdx.x] % 2 == 0);
  int some = __syncthreads_or(a[threadIdx.x] == 63), every = __syncthreads_and(a[threadIdx.x] < 63);
  out[threadIdx.x] = even * 100 + some * 10 + every;
}

extern "C" __global__ void returned(int* a) {
  if (threadIdx.x >= 40) return;
  __shared__ int tile[40];
  tile[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  a[threadIdx.x] = tile[39 - threadIdx.x];
}

// Threads of two warps hand over to two others by a barrier with a number.
extern "C" __global__ void handed_over(int* a) {
  __shared__ int tile[64];
  if (threadIdx.x < 64) {
    tile[threadIdx.x] = a[threadIdx.x];
    asm volatile("bar.arrive 1, 128;" : : : "memory");
  } else {
    asm volatile("bar.sync 1, 128;" : : : "memory");
    a[threadIdx.x] = tile[127 - threadIdx.x];
  }
}

extern "C" __global__ void others(int* a, unsigned* b) {
  int i = threadIdx.x;
  atomicMin(a, -i); atomicMax(a + 1, i); atomicOr(a + 2, 1 << i); atomicXor(a + 3, 1 << i);
  atomicAnd(a + 4, ~(1 << i)); atomicSub(a + 5, i); atomicInc(b, 6); atomicCAS(b + 1, 0u, 9u);
  atomicExch(b + 2, 5u);
}
"""


@cache
def module():
    lanes = (
        f"""
extern "C" __global__ void {name}(int* out) {{
  const unsigned lane = threadIdx.x;
  int x = lane;
  out[lane] = {expression};
}}"""
        for name, (expression, _) in LANES.items()
    )
    sums = (
        f"""
extern "C" __global__ void add_{name}({dtype}* sums) {{
  atomicAdd(sums, ({dtype})(float)threadIdx.x);
}}"""
        for name, (_, dtype) in SUMS.items()
    )
    return compile_cuda("".join([SOURCE, *lanes, *sums]))


@pytest.mark.full(but=7)
@pytest.mark.parametrize("name", LANES)
def test_lanes(name):
    out = np.zeros(32, np.int32)
    module().kernel(name)(out, grid=1, block=32)
    np.testing.assert_array_equal(out, np.broadcast_to(LANES[name][1], 32))


def test_threads_of_a_block_count():
    out = np.zeros(64, np.int32)
    module().kernel("counted")(np.arange(64, dtype=np.int32), out, grid=1, block=64)
    np.testing.assert_array_equal(out, 32 * 100 + 10)


def test_a_barrier_does_not_wait_for_threads_that_returned():
    a = np.arange(64, dtype=np.int32)
    module().kernel("returned")(a, grid=1, block=64)
    np.testing.assert_array_equal(a, [*range(39, -1, -1), *range(40, 64)])


def test_a_barrier_with_a_number_orders_those_who_come():
    a = np.arange(128, dtype=np.int32)
    module().kernel("handed_over")(a, grid=1, block=128)
    np.testing.assert_array_equal(a, [*range(64), *range(63, -1, -1)])


@pytest.mark.parametrize("name", SUMS)
def test_atomic_sums_of_all_widths(name):
    sums = np.zeros(1, SUMS[name][0])
    module().kernel(f"add_{name}")(sums, grid=2, block=32)
    assert sums[0] == 2 * 31 * 16


def test_other_atomics():
    a, b = np.array([9, -9, 0, 0, -1, 0], np.int32), np.zeros(3, np.uint32)
    module().kernel("others")(a, b, grid=1, block=32)
    np.testing.assert_array_equal(a, [-31, 31, -1, -1, 0, -31 * 16])
    np.testing.assert_array_equal(b, [32 % 7, 9, 5])


PTX = """
extern "C" __global__ void warps(const unsigned* a, const unsigned* b, unsigned* out) {
  unsigned x = a[threadIdx.x], y = b[threadIdx.x], r = 0, chosen = 0, leader = 99;
  unsigned* row = out + threadIdx.x * 11;
  asm volatile("{\\n.reg .pred %%px;\\nelect.sync _|%%px, %1;\\n@%%px mov.s32 %0, 1;\\n}\\n"
               : "+r"(chosen) : "r"(0xFFFFFFFF));
  row[0] = chosen;
  chosen = 0;
  if (threadIdx.x >= 8) {
    asm volatile("{\\n.reg .b32 %%rx;\\n.reg .pred %%px;\\nelect.sync %%rx|%%px, %2;\\n"
                 "@%%px mov.s32 %1, 1;\\nmov.s32 %0, %%rx;\\n}\\n"
                 : "+r"(leader), "+r"(chosen) : "r"(0xFFFFFF00));
  }
  row[1] = chosen;
  row[2] = leader;
  asm volatile("redux.sync.add.u32 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(0xffffffff));
  row[3] = r;
  asm volatile("redux.sync.min.s32 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(0xffffffff));
  row[4] = r;
  asm volatile("redux.sync.xor.b32 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(0xffffffff));
  row[5] = r;
  asm volatile("mul.rn.f16x2 %0, %1, %2;" : "=r"(row[6]) : "r"(x), "r"(y));
  asm volatile("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(row[7]) : "r"(x), "r"(y), "r"(x));
  asm volatile("sub.bf16x2 %0, %1, %2;" : "=r"(row[8]) : "r"(x), "r"(y));
  asm volatile("max.f16x2 %0, %1, %2;" : "=r"(row[9]) : "r"(x), "r"(y));
  asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(row[10]) : "f"(1 / 3.f), "f"((float)threadIdx.x));
}
"""


def test_instructions_of_warps_and_of_pairs_of_halves():
    halves = np.random.default_rng(0).integers(-9, 9, (2, 32, 2)).astype(np.float16)
    x, y = halves
    out = np.zeros((32, 11), np.uint32)
    words = [np.ascontiguousarray(h).view(np.uint32)[:, 0] for h in (x, y)]
    compile_cuda(PTX).kernel("warps")(*words, out, grid=1, block=32)
    assert out[:, 0].tolist() == [1] + [0] * 31
    assert out[:, 1].tolist() == [0] * 8 + [1] + [0] * 23
    assert out[:, 2].tolist() == [99] * 8 + [8] * 24
    first = words[0]
    reduced = (first.sum(dtype=np.uint32), first.view(np.int32).min().view(np.uint32))
    for column, value in zip((3, 4, 5), (*reduced, np.bitwise_xor.reduce(first)), strict=True):
        assert (out[:, column] == value).all()
    converted = np.stack([np.arange(32), np.full(32, 1 / 3)], 1).astype(np.float16)
    pairs = [
        np.ascontiguousarray(out[:, column]).view(np.float16).reshape(32, 2)
        for column in (6, 7, 9, 10)
    ]
    for pair, value in zip(pairs, (x * y, x * y + x, np.maximum(x, y), converted), strict=True):
        np.testing.assert_array_equal(pair, value)
    a, b = (torch.from_numpy(h.view(np.int16)).view(torch.bfloat16) for h in (x, y))
    differences = torch.from_numpy(np.ascontiguousarray(out[:, 8])).view(torch.bfloat16).view(32, 2)
    assert torch.equal(differences, a - b)
