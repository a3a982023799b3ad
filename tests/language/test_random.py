"""Random numbers of a kernel against cuRAND's."""

from __future__ import annotations

import random

import numpy as np
import pytest

import tvmtile
import tvmtile.language as T
from tvmtile.language.generators.mrg32k3a import times_factor
from tvmtile.language.generators.xorwow import Xorwow

TARGETS = {
    "llvm": {"target": "llvm"},
    "metal": {"target": "metal", "execution_backend": "emulator"},
}
THREADS, COUNT = 32, 11


def program(seed, offset, generator):
    @T.prim_func
    def main(A: T.Tensor((2, THREADS, COUNT), "uint32")):
        with T.Kernel(2, threads=THREADS) as bx:
            tx = T.get_thread_binding()
            T.rng_init(seed, off=offset, generator=generator)
            for i in T.serial(COUNT):
                A[bx, tx, i] = T.rng_rand()

    return main


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS)
def test_each_thread_has_a_sequence(target):
    seed, offset = 0x123456789, 6
    a = np.empty((2, THREADS, COUNT), np.uint32)
    tvmtile.compile(program(seed, offset, PHILOX), **TARGETS[target])(a)
    starts = [(seed, sequence, offset) for sequence in range(2 * THREADS)]
    assert a.reshape(-1, COUNT).tolist() == drawn(PHILOX, starts, COUNT, target="llvm")


@pytest.mark.full
def test_cuda_compiles_it_to_a_source_that_grows_with_the_text():
    @T.prim_func
    def parallel(A: T.Tensor((512,), "uint32")):
        with T.Kernel(4, threads=32) as bx:
            T.rng_init(3)
            for i in T.Parallel(128):
                A[bx * 128 + i] = T.rng_rand()

    others = [program(1, 0, generator) for generator in CURAND]
    for main in (parallel, *others):
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
    assert [a.reshape(-1).tolist()] == drawn(PHILOX, [(7, 0, 0)], 64, target="llvm")


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


PHILOX = "curandStatePhilox4_32_10_t"
CURAND = {
    PHILOX: (
        ((0x0, 0x0, 0x0), [1713891541, 3781805453, 3159862348, 2600524760]),
        ((0x0, 0x0, 0x1), [3781805453, 3159862348, 2600524760, 4175744164]),
        ((0x1, 0x1, 0x3), [1839381922, 995334991, 4031402112, 3514262466]),
        ((0x123456789, 0x5, 0x6), [4124167572, 2650429120, 1205116399, 3582276611]),
        (
            (0xFFFFFFFFFFFFFFFF, 0x100000007, 0x200000005),
            [2219318479, 3761085777, 1821513970, 3299784274],
        ),
    ),
    "curandStateXORWOW_t": (
        ((0x0, 0x0, 0x0), [3179217846, 1883133293, 2220552389, 674260989]),
        ((0x0, 0x0, 0x1), [1883133293, 2220552389, 674260989, 306521119]),
        ((0x0, 0x3E8, 0xF4243), [3812263417, 2082937807, 2157894457, 3270511696]),
        ((0x1, 0x1, 0x3), [3038819597, 2022823837, 112950610, 200453434]),
        ((0x1, 0x5, 0x1), [2059360123, 2248663535, 2081427151, 3325079157]),
        ((0x2A, 0x3E8, 0x3), [3120451954, 1163074284, 2254550262, 4250632100]),
        ((0xFFFFFFFF, 0x100000007, 0x200000005), [2087056303, 427521962, 2205808677, 1639658455]),
        ((0x123456789ABCDEF, 0x3E8, 0x3), [30095727, 2194767593, 3058682927, 547046353]),
        ((0x123456789ABCDEF, 0x100000007, 0x3), [1166548507, 545726919, 3441952570, 3188496688]),
        ((0xFFFFFFFFFFFFFFFF, 0x0, 0xF4243), [3981929, 258329051, 2588085758, 8214870]),
        ((0xFFFFFFFFFFFFFFFF, 0x100000007, 0x3), [4248683356, 1189121840, 1782989722, 1672875461]),
        (
            (0xFFFFFFFFFFFFFFFF, 0x100000007, 0x200000005),
            [862702892, 4280092150, 1648676299, 3470455381],
        ),
    ),
    "curandStateMRG32k3a_t": (
        ((0x0, 0x0, 0x0), [545508615, 1368065476, 1327943825, 3546985268]),
        ((0x0, 0x0, 0x1), [1368065476, 1327943825, 3546985268, 951893240]),
        ((0x0, 0x0, 0x3), [3546985268, 951893240, 2290915747, 2064909480]),
        ((0x0, 0x1, 0x200000005), [1806120468, 602217108, 2325958444, 2899218660]),
        ((0x1, 0x0, 0x1), [403207181, 975854239, 891564283, 2719027692]),
        ((0x2A, 0x1, 0x0), [473693671, 2915688571, 3765870715, 929260147]),
        ((0x2A, 0x100000007, 0x0), [1343156258, 192834267, 2167373344, 2749317462]),
        ((0x123456789ABCDEF, 0x0, 0x1), [2186294773, 3113353688, 1105608834, 766445636]),
        ((0x123456789ABCDEF, 0x5, 0x3), [2242051367, 2512536061, 1484315193, 1040652961]),
        ((0x123456789ABCDEF, 0x3E8, 0x1), [2000107124, 1081799354, 3128395430, 3691186473]),
        ((0xFFFFFFFFFFFFFFFF, 0x0, 0x1), [3415367579, 28366596, 3763809352, 4095121750]),
        (
            (0xFFFFFFFFFFFFFFFF, 0x100000007, 0x200000005),
            [1723298948, 3986919119, 2239176256, 10840535],
        ),
    ),
}
"""Seed, sequence and numbers left out; the next four by cuRAND 10.4.5's `curand_init` and `curand`.

The first of Philox are published, as those of a counter and a key of zeros.
"""


def drawn(generator, starts, count, **target):
    """So many numbers of each start, by a thread for each."""
    starts = np.array(starts, np.uint64)

    @T.prim_func
    def main(S: T.Tensor((len(starts), 3), "uint64"), A: T.Tensor((len(starts), count), "uint32")):
        with T.Kernel(1, threads=len(starts)):
            tx = T.get_thread_binding()
            T.rng_init(S[tx, 0], S[tx, 1], S[tx, 2], generator=generator)
            for i in T.serial(count):
                A[tx, i] = T.rng_rand()

    a = np.empty((len(starts), count), np.uint32)
    tvmtile.compile(main, **target)(starts, a)
    return a.tolist()


EVERYWHERE = {
    **TARGETS,
    "cuda": {"target": {"kind": "cuda", "arch": "sm_90a"}, "execution_backend": "emulator"},
}


@pytest.mark.full
@pytest.mark.parametrize("target", EVERYWHERE)
@pytest.mark.parametrize("generator", CURAND)
def test_numbers_are_curand_s(generator, target):
    starts, expected = zip(*CURAND[generator], strict=True)
    assert drawn(generator, starts, 4, **EVERYWHERE[target]) == list(expected)


@pytest.mark.parametrize("generator", CURAND)
def test_numbers_that_are_left_out_are_those_that_others_take(generator):
    first, later = drawn(generator, [(7, 3, 0), (7, 3, 200)], 300, target="llvm")
    assert first[200:] == later[:100]


def test_the_characteristic_polynomial_of_xorwow():
    """It takes any state to zero, and x to the power of the period to one, not of a large divisor."""
    state, total = [random.getrandbits(32) for _ in range(5)], [0] * 5
    for degree in range(161):
        if Xorwow.CHARACTERISTIC >> degree & 1:
            total = [a ^ b for a, b in zip(total, state, strict=True)]
        mixed = state[0] ^ state[0] >> 2
        last = state[4] ^ state[4] << 4 ^ mixed ^ mixed << 1
        state = [*state[1:], last & 0xFFFFFFFF]
    assert total == [0] * 5

    def power(exponent):
        result, base = 1, 2
        while exponent:
            result = Xorwow.product(result, base) if exponent & 1 else result
            base, exponent = Xorwow.product(base, base), exponent >> 1
        return result

    period = 2**160 - 1
    assert power(period) == 1
    assert all(power(period // prime) != 1 for prime in (3, 5, 11, 17, 31, 41, 257, 61681, 65537))


def test_words_of_mrg32k3a_are_rounded_as_floats_are():
    """The product with a factor, in integers, against float64, also where it is just below a whole."""
    factor = 1.000000048662
    excess = int((factor - 1) * 2**52)
    rounded_up = 2157741150
    assert int(rounded_up * factor) == rounded_up + (rounded_up * excess >> 52) + 1
    numbers = [1, 2, 3, 4294967087, 2**31 - 1, 2**31, rounded_up, *range(5, 2**32, 99999989)]
    size = len(numbers)

    @T.prim_func
    def main(N: T.Tensor((size,), "uint64"), A: T.Tensor((size,), "uint32")):
        with T.Kernel(size, threads=1) as i:
            scratch = T.alloc_local((3,), "uint64")
            A[i] = times_factor(N[i], factor, scratch)

    a = np.empty(size, np.uint32)
    tvmtile.compile(main, target="llvm")(np.array(numbers, np.uint64), a)
    assert a.tolist() == [min(int(n * factor), 2**32 - 1) for n in numbers]
