"""SumBeforeScaling: which loops add up before they scale, and which are left alone."""

import pytest
from tvm import ir, tirx
from tvm.target import Target

import tvmtile.language as T
from tvmtile.passes import SumBeforeScaling

HOPPER = {"kind": "cuda", "arch": "sm_90a"}
BLOCKS = T.BlockScaledLayout("float32", 128, b_rows=128)
N = T.dynamic("N")


def program(body, steps=4):
    """A loop over K whose iterations do what `body` says."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 512), "float8_e4m3fn"),
        S: T.Tensor((64, 4), "float32"),
        X: T.Tensor((N,), "float32"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 128), "float8_e4m3fn")
            s = T.alloc_shared((64,), "float32")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            T.fill(s, 2)
            for k in T.Pipelined(N if steps is None else steps, num_stages=2):
                T.copy(A[0, k * 128], a)
                body(a, s, c, S, k)
            T.copy(c, C)

    return main


def scaled(a, s, c, S, k):
    T.fp8_scaled_matmul(a, s, a, 0.5, c, transpose_B=True)


def is_summed(func, target=HOPPER):
    mod = tirx.transform.BindTarget(Target(target))(ir.IRModule({"main": func}))
    script = SumBeforeScaling(mod)["main"].script()
    return "partial = " in script and 'T.Call("tvmtile.gemm"' in script


def test_scales_that_the_loop_does_not_change_wait_for_its_end():
    assert is_summed(program(scaled))


def test_a_loop_around_keeps_its_own_statements():
    @T.macro
    def twice(a, s, c, S, k):
        for _ in T.serial(2):
            scaled(a, s, c, S, k)

    assert is_summed(program(twice))


def of_the_iteration(a, s, c, S, k):
    T.fp8_scaled_matmul(a, S[0:64, k], a, 0.5, c, transpose_B=True)


def of_blocks(a, s, c, S, k):
    T.fp8_scaled_matmul(
        a, S[0:64, k : k + 1], a, S[0:1, k : k + 1], c, transpose_B=True, block_scale_layout=BLOCKS
    )


def written(a, s, c, S, k):
    T.copy(S[0:64, k], s)
    scaled(a, s, c, S, k)


@T.macro
def touched(a, s, c, S, k):
    scaled(a, s, c, S, k)
    for i, j in T.Parallel(64, 64):
        c[i, j] *= 2


def cleared(a, s, c, S, k):
    T.fp8_scaled_matmul(a, s, a, 0.5, c, transpose_B=True, clear_accum=True)


def added_twice(a, s, c, S, k):
    scaled(a, s, c, S, k)
    scaled(a, s, c, S, k)


@T.macro
def conditional(a, s, c, S, k):
    if k > 1:
        scaled(a, s, c, S, k)


@pytest.mark.parametrize(
    "body", [of_the_iteration, of_blocks, written, touched, cleared, added_twice, conditional]
)
def test_other_loops_are_left_alone(body):
    assert not is_summed(program(body))


def test_a_loop_that_may_not_run_is_left_alone():
    assert not is_summed(program(scaled, steps=None))


def test_a_cpu_scales_in_every_iteration():
    assert not is_summed(program(scaled), "llvm")
