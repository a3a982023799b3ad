"""A kernel to tune, and how it is tuned quickly."""

from __future__ import annotations

import tvmtile.language as T
from tvmtile.autotuner import AutoTuner

QUICK = {"warmup": 1, "rep": 3}


def double(way="right", again=1):
    """Doubles a vector, in ways that a tuner may meet."""

    @T.prim_func
    def double(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            if way == "aborts":
                T.evaluate(T.call_extern("int32", "abort"))
            if way == "hangs":
                T.evaluate(T.call_extern("int32", "pause"))
            if way == "refused":
                T.copy(A[0:3], B[0:4])
            if way == "endless to compile":
                for _ in [None] * 200:
                    for j in T.unroll(4000):
                        B[j % 64] = A[(j * j) % 64] + T.exp(A[j % 64])
            for _ in T.serial(again):
                for i in T.Parallel(64):
                    B[i] = T.cos(A[i])
            for i in T.Parallel(64):
                B[i] = A[i] * (3 if way == "wrong" else 2)
            if way == "writes A":
                T.fill(A, again)

    return double


def tuner(configs, kernel=double, **profile):
    """Of a kernel whose result is its last parameter, on the CPU."""
    tuner = AutoTuner.from_kernel(kernel=kernel, configs=configs)
    return tuner.set_compile_args(out_idx=[-1], target="llvm").set_profile_args(**profile)
