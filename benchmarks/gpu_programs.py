"""The tile programs that `gpu.py` measures, the same for tvmtile and TileLang.

The two can't be installed side by side; whichever the interpreter has makes the programs.
"""

import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import tilelang.language as T
    from tilelang.layout import make_swizzled_layout
except ImportError:
    import tvmtile.language as T
    from tvmtile.layout import make_swizzled_layout

GROUP = 64  # weights that share a scale
# In a half of a word, of each of its four weights: mantissa, exponent from its low bit on, sign.
MXFP4_BITS = ((6, 7, 8, 15), (3, 4, 5, 12), (0, 1, 2, 9), (14, 10, 11, 13))


def gemm(
    M: int, N: int, K: int, dtype: str, layout: str,
    block_M: int, block_N: int, block_K: int, stages: int, threads: int, panel: int,
    through_shared: bool = False,
) -> Any:  # fmt: skip
    """C = A @ B in the dtype of A and B, summed in float32; blocks walk in panels of `panel` rows.

    `layout` says of A and of B whether they are stored as they are, n, or transposed, t. Results go
    to C from registers, or `through_shared`, as in TileLang's own benchmark.
    """
    transpose_A, transpose_B = (letter == "t" for letter in layout)

    @T.prim_func
    def main(
        A: T.Tensor((K, M) if transpose_A else (M, K), dtype),
        B: T.Tensor((N, K) if transpose_B else (K, N), dtype),
        C: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared(
                (block_K, block_M) if transpose_A else (block_M, block_K), dtype
            )
            B_shared = T.alloc_shared(
                (block_N, block_K) if transpose_B else (block_K, block_N), dtype
            )
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            if through_shared:
                C_shared = T.alloc_shared((block_M, block_N), dtype)
            T.use_swizzle(panel)
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                if transpose_A:
                    T.copy(A[k * block_K, by * block_M], A_shared)
                else:
                    T.copy(A[by * block_M, k * block_K], A_shared)
                if transpose_B:
                    T.copy(B[bx * block_N, k * block_K], B_shared)
                else:
                    T.copy(B[k * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_A, transpose_B)
            if through_shared:
                T.copy(C_local, C_shared)
                T.copy(C_shared, C[by * block_M, bx * block_N])
            else:
                T.copy(C_local, C[by * block_M, bx * block_N])

    return main


def attention(
    batch: int, heads: int, length: int, dim: int, causal: bool,
    block_M: int, block_N: int, stages: int, threads: int, dtype: str = "float16",
) -> Any:  # fmt: skip
    """Flash attention, forward; keys after a block's last query are not visited.

    The last keys come first, since only they need a mask. block_N divides the length.
    """
    shape = (batch, heads, length, dim)
    scale = math.log2(math.e) / math.sqrt(dim)
    rows = T.GemmWarpPolicy.FullRow
    masked = -(-block_M // block_N) if causal else 0

    @T.prim_func
    def main(
        Q: T.Tensor(shape, dtype),
        K: T.Tensor(shape, dtype),
        V: T.Tensor(shape, dtype),
        O: T.Tensor(shape, dtype),
    ):
        blocks = T.ceildiv(length, block_M)
        with T.Kernel(blocks, heads, batch, threads=threads) as (started, by, bz):
            # Those that visit most keys begin first, so that no block is left over at the end.
            bx = blocks - 1 - started if causal else started
            Q_shared = T.alloc_shared((block_M, dim), dtype)
            K_shared = T.alloc_shared((block_N, dim), dtype)
            V_shared = T.alloc_shared((block_N, dim), dtype)
            scores = T.alloc_fragment((block_M, block_N), "float32")
            weights = T.alloc_fragment((block_M, block_N), dtype)
            output = T.alloc_fragment((block_M, dim), "float32")
            largest = T.alloc_fragment((block_M,), "float32")
            before = T.alloc_fragment((block_M,), "float32")
            rescale = T.alloc_fragment((block_M,), "float32")
            step_sum = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            T.copy(Q[bz, by, bx * block_M : (bx + 1) * block_M, :], Q_shared)
            T.fill(output, 0)
            T.fill(total, 0)
            # Not infinite: a query may have no key in the first tile.
            T.fill(largest, -1e30)
            tiles = T.ceildiv((bx + 1) * block_M, block_N) if causal else T.ceildiv(length, block_N)
            for step in T.Pipelined(tiles, num_stages=stages):
                k = tiles - 1 - step
                T.copy(K[bz, by, k * block_N : (k + 1) * block_N, :], K_shared)
                T.gemm(Q_shared, K_shared, scores, transpose_B=True, policy=rows, clear_accum=True)
                T.copy(V[bz, by, k * block_N : (k + 1) * block_N, :], V_shared)
                if step < masked:
                    for i, j in T.Parallel(block_M, block_N):
                        scores[i, j] = T.if_then_else(
                            bx * block_M + i >= k * block_N + j,
                            scores[i, j],
                            -T.infinity("float32"),
                        )
                T.copy(largest, before)
                T.reduce_max(scores, largest, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    rescale[i] = T.exp2((before[i] - largest[i]) * scale)
                for i, j in T.Parallel(block_M, block_N):
                    scores[i, j] = T.exp2(scores[i, j] * scale - largest[i] * scale)
                T.copy(scores, weights)
                T.reduce_sum(scores, step_sum, dim=1)
                for i in T.Parallel(block_M):
                    total[i] = total[i] * rescale[i] + step_sum[i]
                for i, j in T.Parallel(block_M, dim):
                    output[i, j] *= rescale[i]
                T.gemm(weights, V_shared, output, policy=rows)
            for i, j in T.Parallel(block_M, dim):
                output[i, j] /= total[i]
            T.copy(output, O[bz, by, bx * block_M : (bx + 1) * block_M, :])

    return main


def attention_backward(
    batch: int, heads: int, length: int, dim: int, causal: bool, **blocks: int
) -> Any:
    """The gradients of attention, by the program of tvmtile's operator."""
    programs = importlib.import_module("tvmtile.ops.programs")
    shape = batch, heads, length, dim
    options = {"target": "sm_90a", "causal": causal, "configuration": blocks}
    return programs.attention_backward(*shape, "bfloat16", **options)


def softmax(M: int, N: int, block_M: int, threads: int) -> Any:
    """Softmax of whole rows, held in registers."""
    log2e = math.log2(math.e)

    @T.prim_func
    def main(X: T.Tensor((M, N), "float16"), Y: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            x = T.alloc_fragment((block_M, N), "float32")
            largest = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            T.copy(X[bx * block_M, 0], x)
            T.reduce_max(x, largest, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = T.exp2((x[i, j] - largest[i]) * log2e)
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] /= total[i]
            T.copy(x, Y[bx * block_M, 0])

    return main


def rms_norm(M: int, N: int, block_M: int, threads: int) -> Any:
    """Rows divided by the root of their mean square, times a weight for each column."""

    @T.prim_func
    def main(
        X: T.Tensor((M, N), "float16"),
        W: T.Tensor((N,), "float16"),
        Y: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            x = T.alloc_fragment((block_M, N), "float32")
            squares = T.alloc_fragment((block_M, N), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            T.copy(X[bx * block_M, 0], x)
            for i, j in T.Parallel(block_M, N):
                squares[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(squares, total, dim=1)
            for i in T.Parallel(block_M):
                total[i] = T.rsqrt(total[i] / N + 1e-6)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = x[i, j] * total[i] * W[j]
            T.copy(x, Y[bx * block_M, 0])

    return main


# Both halves of a word as elements of 16 bits, which ptxas puts together again at no cost.
_HALF_OF = """\
__device__ __forceinline__ unsigned short half_of(unsigned int pair, unsigned int which) {
  unsigned short low, high;
  asm("mov.b32 {%0, %1}, %2;" : "=h"(low), "=h"(high) : "r"(pair));
  return which ? high : low;
}
"""
# Two nibbles become the last bits of two float16 from 1024 on, in one instruction. The asm keeps the
# compiler from doing each half by itself. Here which pair of a word it is depends on the thread.
_DECODED_INT4_OF_LANE = """\
__device__ __forceinline__ unsigned int decoded(
    unsigned int word, unsigned int place, half scale) {
  unsigned int pair, result;
  asm("lop3.b32 %0, %1, 0x000f000f, 0x64006400, 0xea;" : "=r"(pair) : "r"(word >> (place * 4)));
  half2 weights = __hsub2(*(half2*)&pair, __half2half2(__ushort_as_half(0x6408)));
  half2 both = __half2half2(scale);
  asm("mul.rn.f16x2 %0, %1, %2;"
      : "=r"(result) : "r"(*(unsigned int*)&weights), "r"(*(unsigned int*)&both));
  return result;
}
"""
# Here it is known: every other pair stays where it is, and is 16 times as large.
_DECODED_INT4 = """\
__device__ __forceinline__ unsigned int decoded(
    unsigned int word, unsigned int place, half scale, unsigned int) {
  unsigned int moved = place < 2 ? word : word >> 8;
  unsigned int pair, weights, result;
  half2 both = __half2half2(scale);
  if (place % 2) {
    asm("lop3.b32 %0, %1, 0x00f000f0, 0x64006400, 0xea;" : "=r"(pair) : "r"(moved));
    asm("fma.rn.f16x2 %0, %1, %2, %3;"
        : "=r"(weights) : "r"(pair), "r"(0x2c002c00), "r"(0xd480d480));
  } else {
    asm("lop3.b32 %0, %1, 0x000f000f, 0x64006400, 0xea;" : "=r"(pair) : "r"(moved));
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(weights) : "r"(pair), "r"(0x64086408));
  }
  asm("mul.rn.f16x2 %0, %1, %2;"
      : "=r"(result) : "r"(weights), "r"(*(unsigned int*)&both));
  return result;
}
"""
# Sign and magnitude of a pair come to their places in two bfloat16, which are by 2^126 too small. Three
# pairs lie as they are to lie, but for a shift; the last has the bits that they leave, which a product
# brings there. A factor is 2^(code - 33), two in a word; 2^32 more is a factor of all weights.
# (`mul.rn.bf16x2` is of sm_90; the sum with -0 is the same machine code there, and compiles for sm_80.)
_DECODED_MXFP4 = """\
__device__ __forceinline__ unsigned int decoded(
    unsigned int word, unsigned int place, unsigned int codes, unsigned int which) {
  unsigned int moved = place < 3 ? word << place * 3 : (word >> 8 & 0x006c006cu) * 0x421u;
  unsigned int weights = moved & 0x81c081c0u;
  unsigned int factors = ((which % 2 ? codes >> 8 : codes) & 0x00ff00ffu) * 0x80u + 0x2f002f00u;
  unsigned short factor = half_of(factors, which / 2);
  unsigned int both, result;
  asm("mov.b32 %0, {%1, %1};" : "=r"(both) : "h"(factor));
  asm("fma.rn.bf16x2 %0, %1, %2, %3;"
      : "=r"(result) : "r"(weights), "r"(both), "r"(0x80008000u));
  return result;
}
"""


def _four_bit_gemm(
    M: int, N: int, K: int,
    block_N: int, block_K: int, stages: int, groups: int, threads: int,
    *, dtype: str, scale_dtype: str, scaled: int, decoded: str, times: float = 1.0,
) -> Any:  # fmt: skip
    """C = A @ W.T for weights of 4 bits, which become as wide as A in registers.

    A word of W holds what a thread has of two instructions `wgmma`: four pairs of weights, one of each
    in either half. Of 256 weights along K a thread's words lie side by side. An element of W_scale is
    of `scaled` weights; `decoded` is given a word, which pair of it, such an element, and which 32 of
    its weights. Each group of threads has a part of K; their sums are added in the end, `times` a
    factor of all weights.
    """
    block_M, part = 16, K // groups
    numbers = list(range(groups))

    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        W: T.Tensor((N, K // 8), "uint32"),
        W_scale: T.Tensor((N, K // scaled), scale_dtype),
        C: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(N // block_N, T.ceildiv(M, block_M), threads=groups * threads) as (bx, by):
            T.import_source(_HALF_OF + decoded)
            tx = T.get_thread_binding()
            sums = T.alloc_shared((groups, block_M, block_N), "float32")
            for g in numbers:
                if tx >= g * threads and tx < (g + 1) * threads:
                    A_shared = T.alloc_shared((block_M, block_K), dtype)
                    W_shared = T.alloc_shared((block_N, block_K // 8), "uint32")
                    scales = T.alloc_shared((block_N, block_K // scaled), scale_dtype)
                    W_local = T.alloc_fragment((block_N, block_K), dtype)
                    C_local = T.alloc_fragment((block_N, block_M), "float32")
                    T.annotate_layout({W_shared: make_swizzled_layout(W_shared)})
                    T.clear(C_local)
                    for step in T.Pipelined(part // block_K, num_stages=stages):
                        k = g * part + step * block_K
                        T.copy(A[by * block_M, k], A_shared)
                        T.copy(W[bx * block_N, k // 8], W_shared)
                        T.copy(W_scale[bx * block_N, k // scaled], scales)
                        for i, j in T.Parallel(block_N, block_K):
                            number = j // 256 * 32 + j % 8 // 2 * 8 + j % 256 // 32
                            word, scale = W_shared[i, number], scales[i, j // scaled]
                            place = T.cast(j % 32 // 8, "uint32")
                            of_scale = T.cast(j % scaled // 32, "uint32")
                            pair = T.call_pure_extern(
                                "uint32", "decoded", word, place, scale, of_scale
                            )
                            which = T.cast(j % 2, "uint32")
                            half = T.call_pure_extern("uint16", "half_of", pair, which)
                            W_local[i, j] = T.reinterpret(half, dtype)
                        # The transposed product: an instruction has more rows than columns, as W has.
                        T.gemm(
                            W_local, A_shared, C_local, transpose_B=True,
                            policy=T.GemmWarpPolicy.FullRow,
                        )  # fmt: skip
                    for i, j in T.Parallel(block_N, block_M):
                        sums[g, j, i] = C_local[i, j]
            for i, j in T.Parallel(block_M, block_N):
                total = sums[0, i, j]
                for g in numbers[1:]:
                    total = total + sums[g, i, j]
                C[by * block_M + i, bx * block_N + j] = total * times

    return main


def int4_gemm(M: int, N: int, K: int, **configuration: int) -> Any:
    """Float16 A; a weight is its half byte less 8, times the scale of 64.

    Pair i of a word is in the bits from 4 i and from 16 + 4 i on.
    """
    kind = {"dtype": "float16", "scale_dtype": "float16", "scaled": GROUP}
    return _four_bit_gemm(M, N, K, **configuration, **kind, decoded=_DECODED_INT4)


def int4_gemm_many_rows(
    M: int, N: int, K: int,
    block_M: int, block_N: int, stages: int, threads: int, panel: int,
) -> Any:  # fmt: skip
    """The same of many rows of A, with the scales of a group of neighbours along K side by side."""
    dtype, block_K = "float16", GROUP

    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        W: T.Tensor((N, K // 8), "uint32"),
        W_scale: T.Tensor((K // GROUP, N), dtype),
        C: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(N // block_N, T.ceildiv(M, block_M), threads=threads) as (bx, by):
            T.import_source(_HALF_OF + _DECODED_INT4_OF_LANE)
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            W_shared = T.alloc_shared((block_N, block_K // 8), "uint32")
            scales = T.alloc_shared((block_N,), dtype)
            W_local = T.alloc_fragment((block_N, block_K), dtype)
            C_local = T.alloc_fragment((block_N, block_M), "float32")
            C_shared = T.alloc_shared((block_M, block_N), dtype)
            T.use_swizzle(panel)
            T.clear(C_local)
            for k in T.Pipelined(K // block_K, num_stages=stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(W[bx * block_N, k * block_K // 8], W_shared)
                T.copy(W_scale[k, bx * block_N], scales)
                for i, j in T.Parallel(block_N, block_K):
                    word, scale = W_shared[i, j // 8], scales[i]
                    place = T.cast(j % 8 // 2, "uint32")
                    pair = T.call_pure_extern("uint32", "decoded", word, place, scale)
                    half = T.call_pure_extern("uint16", "half_of", pair, T.cast(j % 2, "uint32"))
                    W_local[i, j] = T.reinterpret(half, dtype)
                T.gemm(
                    W_local, A_shared, C_local, transpose_B=True, policy=T.GemmWarpPolicy.FullRow
                )
            for i, j in T.Parallel(block_N, block_M):
                C_shared[j, i] = C_local[i, j]
            T.copy(C_shared, C[by * block_M, bx * block_N])

    return main


def mxfp4_gemm(M: int, N: int, K: int, **configuration: int) -> Any:
    """Bfloat16 A; in W_scale the codes of four powers of two in a word, each of 32 weights.

    Codes are those of 2^-100 to 2^33, so that a weight takes one multiplication. `MXFP4_BITS` says
    where a word has its pairs.
    """
    kind = {"dtype": "bfloat16", "scale_dtype": "uint32", "scaled": 128, "times": 2.0**32}
    return _four_bit_gemm(M, N, K, **configuration, **kind, decoded=_DECODED_MXFP4)


def copy(size: int, block: int, threads: int) -> Any:
    """Y = X, through registers."""

    @T.prim_func
    def main(X: T.Tensor((size,), "float16"), Y: T.Tensor((size,), "float16")):
        with T.Kernel(size // block, threads=threads) as bx:
            x = T.alloc_fragment((block,), "float16")
            T.copy(X[bx * block], x)
            T.copy(x, Y[bx * block])

    return main


def compact(rows: int, kept: int, width: int, block: int, threads: int) -> Any:
    """The rows of X that `places` names, one after the other."""

    @T.prim_func
    def main(
        X: T.Tensor((rows, width), "bfloat16"),
        places: T.Tensor((kept,), "int32"),
        Y: T.Tensor((kept, width), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(kept, block), threads=threads) as bx:
            tile = T.alloc_fragment((block, width), "bfloat16")
            T.gather_rows(X, tile, places[bx * block : (bx + 1) * block])
            T.copy(tile, Y[bx * block, 0])

    return main


def example(module: str, name: str) -> Callable[..., Any]:
    """A program of the examples, which are tvmtile's."""

    def make(*arguments: Any, **named: Any) -> Any:
        folder = str(Path(__file__).resolve().parents[1] / "examples")
        if folder not in sys.path:
            sys.path.append(folder)
        return getattr(importlib.import_module(module), name)(*arguments, **named)

    return make


PROGRAMS = {
    "gemm": gemm,
    "attention": attention,
    "softmax": softmax,
    "rms_norm": rms_norm,
    "int4_gemm": int4_gemm,
    "int4_gemm_many_rows": int4_gemm_many_rows,
    "gemm_epilogue": example("gemm_epilogue", "gemm_epilogue"),
    "gemm_few_rows": example("gemm_few_rows", "gemm_few_rows"),
    "block_sparse_gemm": example("block_sparse_gemm", "block_sparse_gemm"),
    "fp8_gemm": example("gemm_fp8", "gemm_fp8"),
    "fp8_gemm_blocks": example("gemm_fp8", "gemm_fp8_blocks"),
    "grouped_gemm_fp8": example("grouped_gemm_fp8", "grouped_gemm_fp8"),
    "attention_backward": attention_backward,
    "decode_attention": example("decode_attention", "decode_attention"),
    "mxfp4_gemm": mxfp4_gemm,
    "moe_gemm": example("moe_gemm", "moe_gemm"),
    "compact": compact,
    "copy": copy,
}
