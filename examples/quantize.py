"""Quantisers: bfloat16 to float8 or float4, by the formats that quantised GEMMs take.

Each equals its torch reference bit for bit. `tensor` and `row` have one float32 scale, `block` one for
each 128 elements of a row; `mxfp8` has powers of two for 32 elements (OCP MX 1.0: the largest element's
exponent, less that of the largest e4m3); `nvfp4` has e4m3 scales for 16, times one of the tensor.
"""

from dataclasses import dataclass
from functools import partial

import torch
from common import check_or_measure, parse

import tvmtile
import tvmtile.language as T

TINY = 1e-12  # the least magnitude that a scale is made for, so that zeros have one
E4M3, E2M1 = 448.0, 6.0  # the largest values


@dataclass(frozen=True)
class Format:
    """A kind of quantisation: the dtypes, and how many elements of a row share a scale."""

    dtype: str
    scale_dtype: str
    block: int | None = None  # None: all of a row


FORMATS = {
    "tensor": Format("float8_e4m3fn", "float32"),
    "row": Format("float8_e4m3fn", "float32"),
    "block": Format("float8_e4m3fn", "float32", 128),
    "mxfp8": Format("float8_e4m3fn", "float8_e8m0fnu", 32),
    "nvfp4": Format("float4_e2m1fn", "float8_e4m3fn", 16),
}


def quantize(M, N, name, rows=32):
    """A program `(x, scale of the tensor, elements, scales)`, of all formats but `tensor`."""
    kind = FORMATS[name]
    block = kind.block or N
    assert N % block == 0, f"blocks of {block} do not divide N = {N}"

    @T.prim_func
    def main(
        X: T.Tensor((M, N), T.bfloat16),
        whole: T.Tensor((1,), T.float32),
        Q: T.Tensor((M, N), kind.dtype),
        S: T.Tensor((M, N // block), kind.scale_dtype),
    ):
        with T.Kernel(N // block, T.ceildiv(M, rows), threads=128) as (bx, by):
            x = T.alloc_fragment((rows, block), T.float32)
            largest = T.alloc_fragment((rows,), T.float32)
            factor = T.alloc_fragment((rows,), T.float32)
            T.copy(X[by * rows, bx * block], x)
            T.reduce_absmax(x, largest, dim=1)
            for i in T.Parallel(rows):
                if name == "mxfp8":
                    # The exponent field of a float32 is that of e8m0.
                    field = T.cast(T.reinterpret(largest[i], T.uint32) >> 23, T.int32)
                    code = T.max(field - 8, 0)
                    S[by * rows + i, bx] = T.reinterpret(T.cast(code, T.uint8), kind.scale_dtype)
                    factor[i] = T.reinterpret(T.cast(254 - code, T.uint32) << 23, T.float32)
                elif name == "nvfp4":
                    share = T.ieee_fdiv(largest[i] * (1 / E2M1), whole[0])
                    scale = T.cast(share, kind.scale_dtype)
                    S[by * rows + i, bx] = scale
                    wide = T.cast(scale, T.float32) * whole[0]
                    factor[i] = T.if_then_else(wide > 0, T.ieee_frcp(wide), 0.0)
                else:
                    scale = T.max(largest[i], TINY) * (1 / E4M3)
                    S[by * rows + i, bx] = scale
                    factor[i] = T.ieee_frcp(scale)
            for i, j in T.Parallel(rows, block):
                Q[by * rows + i, bx * block + j] = T.cast(x[i, j] * factor[i], kind.dtype)

    return main


def quantize_tensor(M, N, rows=16, columns=128):
    """The same of one scale for the tensor: three launches, since all blocks wait for the largest."""
    grid = T.ceildiv(N, columns), T.ceildiv(M, rows)

    @T.prim_func
    def main(
        X: T.Tensor((M, N), T.bfloat16),
        whole: T.Tensor((1,), T.float32),
        Q: T.Tensor((M, N), T.float8_e4m3fn),
        S: T.Tensor((1,), T.float32),
    ):
        with T.Kernel(1, threads=32):
            S[0] = TINY * (1 / E4M3)
        with T.Kernel(*grid, threads=128) as (bx, by):
            x = T.alloc_fragment((rows * columns,), T.float32)
            largest = T.alloc_fragment((1,), T.float32)
            for i, j in T.Parallel(rows, columns):
                x[i * columns + j] = X[by * rows + i, bx * columns + j]
            T.reduce_absmax(x, largest, dim=0)
            T.atomic_max(S[0], largest[0] * (1 / E4M3))
        with T.Kernel(*grid, threads=128) as (bx, by):
            for i, j in T.Parallel(rows, columns):
                value = T.cast(X[by * rows + i, bx * columns + j], T.float32)
                Q[by * rows + i, bx * columns + j] = T.cast(
                    value * T.ieee_frcp(S[0]), T.float8_e4m3fn
                )

    return main


def reference(x, whole, name):
    """The elements and scales in torch, those of float4 as bytes of two."""
    kind, x = FORMATS[name], x.float()
    blocks = x.unflatten(1, (-1, kind.block or x.shape[1]))
    largest = blocks.abs().amax(dim=(0, 1, 2) if name == "tensor" else 2)
    if name == "mxfp8":
        codes = ((largest.view(torch.int32) >> 23) - 8).clamp_min(0)
        scales = codes.to(torch.uint8).view(torch.float8_e8m0fnu)
        factor = ((254 - codes) << 23).view(torch.float32)
    elif name == "nvfp4":
        scales = (largest * (1 / E2M1) / whole).to(torch.float8_e4m3fn)
        wide = scales.float() * whole
        factor = torch.where(wide > 0, 1 / wide, 0)
    else:
        scales = largest.clamp_min(TINY) * (1 / E4M3)
        factor = 1 / scales
    scaled = (blocks * (factor if name == "tensor" else factor[..., None])).flatten(1)
    if name == "nvfp4":
        return to_float4(scaled), scales
    elements = scaled.clamp(-E4M3, E4M3).to(torch.float8_e4m3fn)
    return elements, scales.reshape(1) if name == "tensor" else scales


def to_float4(x):
    """The nearest e2m1 of each element, ties to even, two in a byte."""
    middles = x.new_tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    above, from_here = x.abs()[..., None] > middles, x.abs()[..., None] >= middles
    # A code that is odd gives way to both of its neighbours, which are even.
    is_odd = torch.arange(7, device=x.device) % 2 == 1
    codes = torch.where(is_odd, from_here, above).sum(-1).to(torch.uint8)
    codes |= x.signbit().to(torch.uint8) << 3
    return (codes[:, 0::2] | codes[:, 1::2] << 4).view(torch.float4_e2m1fn_x2)


def main(argv=None):
    args = parse(__doc__, argv, format=tuple(FORMATS), m=1024, n=1024)
    make = quantize_tensor if args.format == "tensor" else partial(quantize, name=args.format)
    kernel = tvmtile.compile(make(args.m, args.n), out_idx=[2, 3], target=args.target)
    x = (torch.randn(args.m, args.n) * 3).bfloat16()
    x[0, :128] = 0
    whole = x.float().abs().amax().clamp_min(TINY).reshape(1) * (1 / (E4M3 * E2M1))
    check_or_measure(
        args, kernel, (x, whole), lambda x, whole: reference(x, whole, args.format), exact=True
    )


if __name__ == "__main__":
    main()
