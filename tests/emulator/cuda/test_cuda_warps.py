"""Work of lanes together, atomics, and counts of a block's threads."""

import functools
from functools import cache

import numpy as np
import pytest
import torch

from tvmtile.emulator.cuda import compile_cuda

LANE = np.arange(32, dtype=np.int32)
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
    sums = (
        f"""
extern "C" __global__ void add_{name}({dtype}* sums) {{
  atomicAdd(sums, ({dtype})(float)threadIdx.x);
}}"""
        for name, (_, dtype) in SUMS.items()
    )
    return compile_cuda("".join([SOURCE, *sums]))


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


def permuted(x, y, selectors, signs):
    """Bytes of two words by four selectors; by `prmt`, the sign of one whose selector has a top bit."""
    eight = np.stack([x, y], axis=1).view(np.uint8).reshape(-1, 8)
    select = selectors[:, None] >> np.arange(0, 16, 4, dtype=np.uint32)
    picked = np.take_along_axis(eight, select & 7, axis=1)
    if signs:
        picked = np.where(select & 8, np.where(picked >= 128, 255, 0), picked)
    return np.ascontiguousarray(picked.astype(np.uint8)).view(np.uint32)[:, 0]


def dotted(x, y, z, left, right):
    """Four products of bytes, and a word."""
    a, b = (
        v.view({"s32": np.int8, "u32": np.uint8}[t]).astype(int) for v, t in ((x, left), (y, right))
    )
    return (a * b).reshape(32, 4).sum(1) + z.view(np.int32)


def paired(function, dtype=torch.float16):
    """A function of two pairs of floats."""

    def of_words(x, y, _):
        a, b = (torch.from_numpy(v.view(np.int16)).view(dtype) for v in (x, y))
        return function(a, b).view(torch.int16).numpy().view(np.uint32)

    return of_words


def asm(instruction, operands="xyz"):
    listed = ", ".join(f"%{i + 1}" for i in range(len(operands)))
    given = ", ".join(f'"r"({name})' for name in operands)
    return f'asm volatile("{instruction} %0, {listed};" : "=r"(r) : {given});'


ELECT = """
asm volatile("{ .reg .pred %%px; elect.sync _|%%px, %1; @%%px mov.s32 %0, 1; }" : "+r"(r) : "r"(~0u));
"""
ELECT_OF_24 = """
unsigned leader = 0, chosen = 0;
if (threadIdx.x > 7) {
  asm volatile("{ .reg .b32 %%rx; .reg .pred %%px; elect.sync %%rx|%%px, %2; @%%px mov.s32 %1, 1;"
               " mov.s32 %0, %%rx; }" : "+r"(leader), "+r"(chosen) : "r"(~255u));
}
r = leader + 100 * chosen;
"""
SWAPPED = """
unsigned short low, high;
asm("mov.b32 {%0, %1}, %2;" : "=h"(low), "=h"(high) : "r"(x));
asm("mov.b32 %0, {%1, %2};" : "=r"(r) : "h"(high), "h"(low));
"""


# What sets `r` of words x, y and z of a lane, and what it means.
WORDS = {
    "xor_4": ("r = __shfl_xor_sync(~0, x, 4);", lambda x, *_: x[LANE ^ 4]),
    "up_3": ("r = __shfl_up_sync(~0, x, 3);", lambda x, *_: x[np.where(LANE < 3, LANE, LANE - 3)]),
    "down_3_of_8": (
        "r = __shfl_down_sync(~0, x, 3, 8);",
        lambda x, *_: x[np.where(LANE % 8 < 5, LANE + 3, LANE)],
    ),
    "from_5": ("r = __shfl_sync(~0, x, 5);", lambda x, *_: x[5]),
    "halves_of_a_warp": (
        "r = lane < 16 ? __shfl_xor_sync(0xffff, x, 1) : __shfl_xor_sync(~0xffff, x, 2);",
        lambda x, *_: x[np.where(LANE < 16, LANE ^ 1, LANE ^ 2)],
    ),
    "of_half": (
        "r = (int)(float)__shfl_xor_sync(~0, __half((float)lane), 16);",
        lambda *_: LANE ^ 16,
    ),
    "ballot": (
        "r = __ballot_sync(~0, lane % 3 == 0);",
        lambda *_: sum(1 << i for i in range(0, 32, 3)),
    ),
    "any": ("r = __any_sync(~0, lane == 31);", lambda *_: 1),
    "all": ("r = __all_sync(~0, lane < 31);", lambda *_: 0),
    "match": ("r = __match_any_sync(~0, lane % 4);", lambda *_: 0x11111111 << LANE % 4),
    "sum": ("r = __reduce_add_sync(~0, x);", lambda x, *_: x.sum(dtype=np.uint32)),
    "least": ("r = __reduce_min_sync(~0, (int)x);", lambda x, *_: x.view(np.int32).min()),
    "most": ("r = __reduce_max_sync(~0, (int)x);", lambda x, *_: x.view(np.int32).max()),
    "bits": ("r = __reduce_or_sync(~0, x & 0xff0);", lambda x, *_: np.bitwise_or.reduce(x) & 0xFF0),
    "prmt": (asm("prmt.b32"), lambda x, y, z: permuted(x, y, z, signs=True)),
    "byte_perm": ("r = __byte_perm(x, y, z);", lambda x, y, z: permuted(x, y, z, signs=False)),
    **{
        f"dp4a_{a}_{b}": (asm(f"dp4a.{a}.{b}"), functools.partial(dotted, left=a, right=b))
        for a in ("s32", "u32")
        for b in ("s32", "u32")
    },
    "dp4a": (
        "r = __dp4a((int)x, (int)y, (int)z);",
        functools.partial(dotted, left="s32", right="s32"),
    ),
    "popc": ("r = __popc(x);", lambda x, *_: np.bitwise_count(x)),
    "clz": (
        "r = __clz((int)(x >> z % 32));",
        lambda x, _, z: [32 - int(v).bit_length() for v in x >> z % 32],
    ),
    "brev": ("r = __brev(x);", lambda x, *_: [int(f"{v:032b}"[::-1], 2) for v in x]),
    "halves_swapped": (SWAPPED, lambda x, *_: x >> 16 | x << 16),
    "lop3": (
        'asm("lop3.b32 %0, %1, 0x000f000f, 0x64006400, 0xea;" : "=r"(r) : "r"(x));',
        lambda x, *_: x & 0x000F000F | 0x64006400,
    ),
    "redux_add": (asm("redux.sync.add.u32", ["x", "~0u"]), lambda x, *_: x.sum(dtype=np.uint32)),
    "redux_min": (asm("redux.sync.min.s32", ["x", "~0u"]), lambda x, *_: x.view(np.int32).min()),
    "redux_xor": (asm("redux.sync.xor.b32", ["x", "~0u"]), lambda x, *_: np.bitwise_xor.reduce(x)),
    "elect": (ELECT, lambda *_: LANE == 0),
    "elect_of_24": (ELECT_OF_24, lambda *_: 8 * (LANE > 7) + 100 * (LANE == 8)),
    "mul_f16x2": (asm("mul.rn.f16x2", "xy"), paired(lambda x, y: x * y)),
    "fma_f16x2": (
        asm("fma.rn.f16x2", "xyx"),
        paired(lambda x, y: (x.double() * y.double() + x.double()).half()),
    ),
    "sub_bf16x2": (asm("sub.bf16x2", "xy"), paired(lambda x, y: x - y, torch.bfloat16)),
    "max_f16x2": (asm("max.f16x2", "xy"), paired(torch.maximum)),
    "cvt_f16x2": (
        'asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(1 / 3.f), "f"((float)(x % 999)));',
        lambda x, *_: (
            np.stack([x % 999, np.full(32, 1 / 3)], 1).astype(np.float16).view(np.uint32)[:, 0]
        ),
    ),
}


@functools.cache
def of_words():
    return compile_cuda(
        "#include <cuda_fp16.h>"
        + "".join(
            f"""
extern "C" __global__ void {name}(const unsigned* a, unsigned* out) {{
  int lane = threadIdx.x;
  unsigned x = a[lane], y = a[32 + lane], z = a[64 + lane], r = 0;
  {statement}
  out[threadIdx.x] = r;
}}"""
            for name, (statement, _) in WORDS.items()
        )
    )


@pytest.mark.parametrize("name", WORDS)
def test_functions_of_words(name):
    generator, out = np.random.default_rng(0), np.zeros(32, np.uint32)
    words = generator.integers(0, 1 << 32, (3, 32), np.uint32)
    if "16x2" in name:
        words = generator.integers(-9, 9, (3, 64)).astype(np.float16).view(np.uint32)
    of_words().kernel(name)(words, out, grid=1, block=32)
    expected = np.broadcast_to(np.asarray(WORDS[name][1](*words)), 32).astype(np.int64)
    np.testing.assert_array_equal(out, expected.astype(np.uint32))
