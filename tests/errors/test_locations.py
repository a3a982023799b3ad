"""Where errors point: to the line of the kernel that is wrong, on each target that finds it."""

from __future__ import annotations

import pytest

import tvmtile
import tvmtile.language as T
from tvmtile import errors

CPU, METAL, CUDA = "llvm", "metal", {"kind": "cuda", "arch": "sm_90a"}
EVERYWHERE = (CPU, METAL, CUDA)
GPUS = (METAL, CUDA)


def program(body):
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), I: T.Tensor((64,), "int32"), n: T.int32):
        with T.Kernel(1, threads=128) as _:  # kernel
            body(A, I, n)

    return main


CASES = []


def mistake(error, targets, line="# here"):
    """Add the mistake that a macro holds, with the targets that find it and the line they show."""

    def add(function):
        CASES.append((T.macro(function), function.__name__, error, targets, line))

    return add


@mistake(errors.ShapeMismatch, EVERYWHERE)
def tiles_of_different_shapes(A, I, n):
    s = T.alloc_shared((32, 32), "float32")
    T.copy(A, s)  # here


@mistake(errors.UnsupportedDtype, EVERYWHERE)
def floats_times_integers(A, I, n):
    a = T.alloc_shared((16, 16), "float16")
    b = T.alloc_shared((16, 16), "int8")
    c = T.alloc_fragment((16, 16), "float32")
    T.gemm(a, b, c)  # here


@mistake(errors.UnsupportedDtype, (METAL,))
def a_dtype_that_the_target_lacks(A, I, n):
    s = T.alloc_fragment((64,), "float64")
    for i in T.Parallel(64):
        s[i] = 1  # here


@mistake(errors.InvalidOperand, EVERYWHERE)
def an_axis_that_is_not_there(A, I, n):
    c = T.alloc_fragment((64, 64), "float32")
    r = T.alloc_fragment((64,), "float32")
    T.reduce_sum(c, r, dim=3)  # here


@mistake(errors.InvalidOperand, EVERYWHERE)
def an_array_of_a_thread_in_a_parallel_loop(A, I, n):
    c = T.alloc_local((4,), "float32")
    for i in T.Parallel(64):
        c[i % 4] = i  # here


@mistake(errors.InvalidOperand, EVERYWHERE)
def a_reducer_that_is_read(A, I, n):
    total = T.alloc_reducer((64,), "float32", op="sum")
    T.reducer_init(total)
    for i in T.Parallel(64):
        A[0, i] = total[i]  # here
    T.finalize_reducer(total)


@mistake(errors.OutOfBounds, EVERYWHERE)
def a_loop_over_the_end_of_a_tile(A, I, n):
    s = T.alloc_shared((32,), "float32")
    for i in T.Parallel(64):
        s[i] = 0  # here


@mistake(errors.InvalidValue, EVERYWHERE)
def a_number_that_a_dtype_does_not_hold(A, I, n):
    I[0] = T.uint8(256)  # here


@mistake(errors.NestingError, EVERYWHERE)
def a_parallel_loop_that_is_left(A, I, n):
    for i in T.Parallel(64):
        if I[i] > 0:
            break  # here


@mistake(errors.NestingError, EVERYWHERE)
def a_tile_operator_in_a_parallel_loop(A, I, n):
    for _ in T.Parallel(64):
        T.clear(A)  # here


@mistake(errors.NestingError, (CPU,))
def a_barrier_that_some_threads_come_to(A, I, n):
    tx = T.get_thread_binding()
    if tx < n:
        T.sync_threads()  # here


@mistake(errors.DataRace, EVERYWHERE)
def iterations_that_exchange_elements(A, I, n):
    s = T.alloc_shared((64,), "float32")
    T.copy(A[0, 0:64], s)
    for i in T.Parallel(64):
        s[i] = s[63 - i]  # here


@mistake(errors.DataRace, GPUS)
def a_race_where_no_barrier_can_stand(A, I, n):
    tx = T.get_thread_binding()
    s = T.alloc_shared((128,), "float32")
    s[tx] = 1
    if tx < n:
        s[tx] = s[(tx + 1) % 128] + 1  # here


@mistake(errors.NestingError, (CPU,))
def a_shuffle_in_a_loop_that_threads_leave_one_by_one(A, I, n):
    tx = T.get_thread_binding()
    k = T.alloc_var("int32", init=0)
    while k < tx:
        A[0, 0] = T.shfl_xor(k, 1)  # here
        k += 1


@mistake(errors.NestingError, (CPU,))
def active_lanes_of_a_loop_that_threads_leave_one_by_one(A, I, n):
    tx = T.get_thread_binding()
    k = T.alloc_var("int32", init=0)
    while k < tx:
        A[0, 0] = T.activemask()  # here
        k += 1


@mistake(errors.UndefinedName, EVERYWHERE)
def a_name_that_is_not_defined(A, I, n):
    A[0, 0] = nope  # here


@mistake(errors.SyntaxNotSupported, EVERYWHERE)
def a_condition_that_python_asks_for(A, I, n):
    A[0, 0] = 1 if bool(n > 0) else 2  # here


@mistake(errors.NoLowering, (METAL,))
def an_assertion(A, I, n):
    T.device_assert(n > 0)  # here


@mistake(errors.NoLowering, (METAL,))
def an_assertion_of_python(A, I, n):
    assert n > 0, "positive"  # here


@mistake(errors.NoLowering, (METAL,))
def a_barrier_for_the_grid(A, I, n):
    T.sync_grid()  # here


@mistake(errors.NoLowering, (CPU, METAL))
def source_for_another_target(A, I, n):
    T.import_source("__device__ float f(float x) { return x; }")  # here


@mistake(errors.NoLowering, (CPU,))
def a_function_that_is_not_there(A, I, n):
    A[0, 0] = T.call_extern("float32", "no_such_function", n)  # here


@mistake(errors.CudaCompileError, (CUDA,), line="# kernel")
def source_that_nvrtc_refuses(A, I, n):
    A[0, 0] = T.call_extern("float32", "no_such_function", n)


@mistake(errors.LayoutConflict, GPUS)
def a_fragment_that_two_groups_of_threads_use(A, I, n):
    x = T.alloc_fragment((64, 64), "float32")
    if T.get_thread_binding() < 64:
        T.clear(x)
    else:
        T.copy(x, A)  # here


@mistake(errors.OutOfSharedMemory, GPUS, line="# kernel")
def tiles_that_do_not_fit(A, I, n):
    s = T.alloc_shared((64, 8192), "float32")
    T.clear(s)
    T.copy(s[0:64, 0:64], A)


@mistake(errors.InvalidOperand, GPUS)
def a_tile_of_an_extent_that_a_call_gives(A, I, n):
    s = T.alloc_shared((n,), "float32")  # here
    T.clear(s)


@pytest.mark.parametrize(
    ("body", "error", "target", "line"),
    [
        pytest.param(
            body, error, target, line, id=f"{name}-{target if target in (CPU, METAL) else 'cuda'}"
        )
        for body, name, error, targets, line in CASES
        for target in targets
    ],
)
def test_an_error_points_at_the_kernel(body, error, target, line):
    options = {"execution_backend": "emulator"} if target == METAL else {}

    def build():
        kernel = tvmtile.compile(program(body), target=target, **options)
        return kernel.cubin if target == CUDA else kernel

    with pytest.raises(error) as caught:
        build()
    assert caught.value.location.file == __file__
    assert caught.value.location.text.endswith(line)
    assert caught.value.help


def test_every_class_of_errors_of_a_kernel_is_in_the_table():
    elsewhere = {
        "ArgumentError",  # of a call
        "InvalidOptions",
        "MetalCompileError",  # the emulator's, of Metal source by hand
        "EmulationError",  # of a call, and its subclass for Metal
        "MissingDependency",  # of the machine
        "ScopeError",  # tests/language/frontend
        "TuningFailed",  # of a tuning: tests/autotuner
        "UnknownTarget",  # of tvmtile.compile
        "VerifyError",  # a defect of ours
    }
    classes = {each.__name__ for each in errors.TileError.__subclasses__()}
    assert classes - elsewhere == {error.__name__ for _, _, error, _, _ in CASES}
