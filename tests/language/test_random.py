"""Random numbers of a kernel against Philox in Python's integers."""

from __future__ import annotations

import numpy as np
import pytest

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidValue, NestingError

TARGETS = {
    "llvm": {"target": "llvm"},
    "metal": {"target": "metal", "execution_backend": "emulator"},
}
THREADS, COUNT = 32, 11


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        upper = [second >> 32 ^ c[1] ^ k[0], first >> 32 ^ c[3] ^ k[1]]
        c = [upper[0], second & 0xFFFFFFFF, upper[1], first & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def number(seed, sequence, position):
    halves = [x for y in (position // 4, sequence) for x in (y & 0xFFFFFFFF, y >> 32)]
    return philox(halves, [seed & 0xFFFFFFFF, seed >> 32])[position % 4]


def test_the_reference_gives_the_published_numbers():
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert philox([ones] * 4, [ones] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def program(seed, offset):
    @T.prim_func
    def main(A: T.Tensor((2, THREADS, COUNT), "uint32")):
        with T.Kernel(2, threads=THREADS) as bx:
            tx = T.get_thread_binding()
            T.rng_init(seed, off=offset)
            for i in T.serial(COUNT):
                A[bx, tx, i] = T.rng_rand()

    return main


@pytest.mark.parametrize("target", TARGETS)
def test_each_thread_has_a_sequence(target):
    seed, offset = 0x123456789, 6
    a = np.empty((2, THREADS, COUNT), np.uint32)
    tvmtile.compile(program(seed, offset), **TARGETS[target])(a)
    for sequence, numbers in enumerate(a.reshape(-1, COUNT)):
        assert numbers.tolist() == [number(seed, sequence, offset + i) for i in range(COUNT)]


def test_cuda_compiles_it_to_a_source_that_grows_with_the_text():
    @T.prim_func
    def parallel(A: T.Tensor((512,), "uint32")):
        with T.Kernel(4, threads=32) as bx:
            T.rng_init(3)
            for i in T.Parallel(128):
                A[bx * 128 + i] = T.rng_rand()

    for main in (program(1, 0), parallel):
        kernel = tvmtile.compile(main, target={"kind": "cuda", "arch": "sm_90a"})
        assert kernel.cubin
        assert len(kernel.get_kernel_source()) < 12_000


def test_iterations_of_a_parallel_loop_take_different_numbers():
    @T.prim_func
    def main(A: T.Tensor((256,), "uint32"), B: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=64):
            T.rng_init(3)
            for i in T.Parallel(256):
                A[i] = T.rng_rand()
            for i in T.Parallel(256):
                B[i] = T.rng_rand_float()

    a, b = np.zeros(256, np.uint32), np.zeros(256, np.float32)
    tvmtile.compile(main, **TARGETS["metal"])(a, b)
    with pytest.raises(NestingError, match="depends on which thread runs an iteration"):
        tvmtile.compile(main)
    assert len(set(a.tolist())) == 256
    assert 0 < b.min() < 0.1 < 0.9 < b.max() <= 1


@pytest.mark.parametrize("target", TARGETS)
def test_the_only_thread_of_a_block_takes_all_numbers(target):
    @T.prim_func
    def main(A: T.Tensor((2, 32), "uint32")):
        with T.Kernel(2, threads=1) as bx:
            tx = T.get_thread_binding()
            T.rng_init(7, 0, bx * 32 + tx * 16)
            for i in T.Parallel(32):
                A[bx, i] = T.rng_rand()

    a = np.zeros((2, 32), np.uint32)
    tvmtile.compile(main, **TARGETS[target])(a)
    assert a.reshape(-1).tolist() == [number(7, 0, i) for i in range(64)]


@pytest.mark.parametrize("bit", [32, 64])
@pytest.mark.parametrize("dist", ["uniform", "normal"])
def test_distributions(bit, dist):
    count = 1 << 14

    @T.prim_func
    def main(A: T.Tensor((count,), f"float{bit}")):
        with T.Kernel(count // 64, threads=1) as bx:
            T.rng_init(7, bx)
            for i in T.serial(64):
                A[bx * 64 + i] = T.rng_rand_float(bit, dist)

    a = np.empty(count, f"float{bit}")
    tvmtile.compile(main)(a)
    mean, deviation = (0.5, 12**-0.5) if dist == "uniform" else (0, 1)
    assert abs(a.mean() - mean) < 0.03
    assert abs(a.std() - deviation) < 0.03
    if dist == "uniform":
        assert 0 < a.min() < 0.01
        assert 0.99 < a.max() <= 1


def test_what_the_generator_needs():
    def kernel(body):
        @T.prim_func
        def main(A: T.Tensor((1,), "uint32")):
            with T.Kernel(1):
                A[0] = body()

        return main

    with pytest.raises(NestingError, match="T.rng_rand: the kernel has no T.rng_init"):
        kernel(T.rng_rand)
    with pytest.raises(InvalidValue, match="the generator 'curandStateXORWOW_t' is not there"):
        kernel(lambda: T.rng_init(1, generator="curandStateXORWOW_t"))
    with pytest.raises(InvalidValue, match="bit=16"):
        kernel(lambda: T.rng_rand_float(16))
