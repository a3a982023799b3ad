"""Conflicts of shared memory's banks are counted as an NVIDIA GPU has them."""

import numpy as np
import pytest

from tvmtile.emulator.cuda import compile_cuda

# Each is written once without a conflict, by its own index, and read by an index: the moves of a warp
# for that, and how many of them come of conflicts.
READS = {
    "own_words": ("float", "t", 1, 0),
    "one_word": ("float", "0", 1, 0),
    "every_second_word": ("float", "2 * t % 256", 2, 1),
    "a_column_of_32": ("float", "32 * t % 1024", 32, 31),
    "a_padded_column": ("float", "33 * t % 1024", 1, 0),
    "halves_of_words": ("__half", "t", 1, 0),
    "own_vectors": ("float4", "t", 4, 0),
    "vectors_two_apart": ("float4", "2 * t % 64", 8, 4),
    "own_pairs": ("float2", "t", 2, 0),
}
KERNEL = """
extern "C" __global__ void {name}(const {dtype}* in, {dtype}* out) {{
  __shared__ {dtype} tile[{size}];
  int t = threadIdx.x;
  for (int i = t; i < {size}; i += 32) tile[i] = in[0];
  __syncthreads();
  for (int k = 0; k < 3; ++k) out[96 * blockIdx.x + 32 * k + t] = tile[{index}];
}}"""
BYTES = {"float": 4, "__half": 2, "float4": 16, "float2": 8}


def module():
    kernels = [
        KERNEL.format(name=name, dtype=dtype, index=index, size=1024 if dtype == "float" else 64)
        for name, (dtype, index, *_) in READS.items()
    ]
    return compile_cuda("#include <cuda_fp16.h>\n" + "\n".join(kernels))


@pytest.mark.parametrize("name", READS)
def test_lanes_that_need_one_bank_wait_for_each_other(name):
    dtype, _, moves, conflicts = READS[name]
    a, out = (np.zeros(count * BYTES[dtype], np.uint8) for count in (1, 192))
    counted = module().kernel(name)(a, out, grid=2, block=32, count_conflicts=True)
    writes = (1024 if dtype == "float" else 64) // 32 * max(1, BYTES[dtype] // 4)
    assert counted.bank_conflicts == 2 * 3 * conflicts  # blocks and turns
    assert counted.bank_moves == 2 * (writes + 3 * moves)


def test_they_are_counted_where_that_is_asked_for():
    a, out = np.zeros(1, np.float32), np.zeros(96, np.float32)
    counted = module().kernel("a_column_of_32")(a, out, grid=1, block=32)
    assert counted.bank_moves == counted.bank_conflicts == 0
    assert counted.shared_reads == 96


LDMATRIX = """
extern "C" __global__ void rows(unsigned* out, int pitch) {
  extern __shared__ __align__(128) char tile[];
  int t = threadIdx.x;
  for (int i = t; i < 32 * pitch / 4; i += 32) ((unsigned*)tile)[i] = i;
  __syncthreads();
  unsigned at = (unsigned)__cvta_generic_to_shared(tile + t * pitch), a, b, c, d;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at));
  out[t] = a + b + c + d;
}"""


@pytest.mark.parametrize(("pitch", "conflicts"), [(16, 0), (128, 28), (64, 12), (144, 0)])
def test_the_rows_of_a_matrix_should_lie_in_different_banks(pitch, conflicts):
    out = np.zeros(32, np.uint32)
    kernel = compile_cuda(LDMATRIX, arch="sm_80").kernel("rows")
    counted = kernel(
        out, np.int32(pitch), grid=1, block=32, shared_bytes=32 * pitch, count_conflicts=True
    )
    assert counted.bank_conflicts == conflicts
    assert counted.bank_moves == pitch // 4 + 4 + conflicts
