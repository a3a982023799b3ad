"""Reductions over threads as TVM writes them, and places of bits, against numpy."""

import numpy as np
import pytest

import tvmtile
import tvmtile.language as T

RNG = np.random.default_rng(0)


def all_reduced(reducer, identity, dtype, axes):
    """A kernel of (4, 8) threads that reduces a value of each over some axes."""

    @T.prim_func
    def program(A: T.Tensor((8, 4), dtype), C: T.Tensor((8, 4), dtype)):
        with T.Kernel(1, threads=(4, 8)):
            x, y = T.get_thread_binding(0), T.get_thread_binding(1)
            own = T.alloc_local((1,), dtype)
            result = T.alloc_local((1,), dtype)
            own[0] = A[y, x]
            with T.attr(
                T.comm_reducer(reducer, [T.cast(identity, dtype)]),
                "reduce_scope",
                T.reinterpret(T.uint64(0), dtype="handle"),
            ):
                T.evaluate(
                    T.tvm_thread_allreduce(
                        T.uint32(1), own[0], True, result[0], *([x, y][axis] for axis in axes)
                    )
                )
            C[y, x] = result[0]

    return program


@pytest.mark.parametrize(("axes", "numpy_axes"), [((0,), (1,)), ((1,), (0,)), ((0, 1), (0, 1))])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_reduction_over_threads(axes, numpy_axes, dtype):
    program = all_reduced(lambda a, b: a + b, 0, dtype, axes)
    a, c = RNG.integers(-3, 4, (8, 4)).astype(dtype), np.empty((8, 4), dtype)
    tvmtile.compile(program, target="llvm")(a, c)
    expected = np.broadcast_to(a.sum(numpy_axes, keepdims=True), a.shape)
    np.testing.assert_array_equal(c, expected.astype(dtype))


def test_reduction_of_two_values_together():
    """The place of the largest value: each of the two results depends on both operands."""

    @T.prim_func
    def program(A: T.Tensor((32,), "float32"), C: T.Tensor((2,), "float32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            best = T.alloc_local((1,), "float32")
            place = T.alloc_local((1,), "float32")
            with T.attr(
                T.comm_reducer(
                    lambda a, i, b, j: (
                        T.Select(a >= b, a, b),
                        T.Select(a >= b, i, j),
                    ),
                    [T.float32(-1), T.float32(-1)],
                ),
                "reduce_scope",
                T.reinterpret(T.uint64(0), dtype="handle"),
            ):
                T.evaluate(
                    T.tvm_thread_allreduce(
                        T.uint32(2),
                        A[tx],
                        T.cast(tx, "float32"),
                        tx != 9,
                        best[0],
                        place[0],
                        tx,
                    )
                )
            C[0] = best[0]
            C[1] = place[0]

    a, c = RNG.random(32, np.float32), np.empty(2, np.float32)
    a[9] = 5  # its thread takes no part
    tvmtile.compile(program, target="llvm")(a, c)
    a[9] = 0
    np.testing.assert_array_equal(c, [a.max(), a.argmax()])


TARGETS = (
    {"target": "llvm"},
    {"target": "metal", "execution_backend": "emulator"},
)


@pytest.mark.full
def test_places_of_bits():
    masks = [0, 1, 0x80000000, 0xFFFFFFFF, 0b10110000]
    questions = [(0, 1), (0, 3), (4, 1), (5, -1), (31, -2), (4, 0), (6, 0), (31, 2)]

    def place(mask, base, offset):
        if offset == 0:
            return base if mask >> base & 1 else 0xFFFFFFFF
        order = range(base, 32) if offset > 0 else range(base, -1, -1)
        found = [i for i in order if mask >> i & 1]
        return found[abs(offset) - 1] if len(found) >= abs(offset) else 0xFFFFFFFF

    @T.prim_func
    def places(
        M: T.Tensor((len(masks),), "uint32"),
        Q: T.Tensor((len(questions), 2), "int32"),
        A: T.Tensor((len(masks), 32), "uint32"),
        F: T.Tensor((len(masks), 2), "int32"),
    ):
        with T.Kernel(len(masks), threads=32) as m:
            tx = T.get_thread_binding()
            if tx < len(questions):
                A[m, tx] = T.__fns(M[m], Q[tx, 0], Q[tx, 1])
            if tx == 0:
                F[m, 0] = T.__ffs(M[m])
                F[m, 1] = T.__ffs(T.cast(M[m], "int64") << 20)

    m, q = np.array(masks, np.uint32), np.array(questions, np.int32)
    for options in TARGETS:
        a, f = np.zeros((len(masks), 32), np.uint32), np.zeros((len(masks), 2), np.int32)
        tvmtile.compile(places, **options)(m, q, a, f)
        lowest = [(x & -x).bit_length() for x in masks]
        assert f.tolist() == [[x, x and x + 20] for x in lowest]
        wanted = [[place(x, *question) for question in questions] for x in masks]
        assert a[:, : len(questions)].tolist() == wanted
    assert tvmtile.compile(places, target={"kind": "cuda", "arch": "sm_90a"}).cubin
