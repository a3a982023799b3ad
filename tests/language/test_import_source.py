"""T.import_source: functions of the user's in CUDA C++."""

import pytest

import tvmtile
import tvmtile.language as T

FUNCTIONS = """\
__device__ __forceinline__ float twice(float x) { return x + x; }
__device__ __forceinline__ void add_one(float* x) { *x = twice(0.5f) + *x; }
"""


def program(source=FUNCTIONS):
    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), C: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            T.import_source(source)
            for i in T.Parallel(128):
                C[i] = T.call_pure_extern("float32", "twice", A[i])
            for i in T.Parallel(128):
                T.call_extern("void", "add_one", T.address_of(C[i]))

    return main


def test_the_text_stands_before_the_kernel_once():
    kernel = tvmtile.compile(program(), target={"kind": "cuda", "arch": "sm_90a"})
    source = kernel.get_kernel_source()
    assert source.count("float twice(float x)") == 1
    assert source.index("float twice(float x)") < source.index("__global__")
    assert kernel.cubin  # it compiles


def test_a_function_may_be_called_at_several_places():
    @T.prim_func
    def main(A: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            T.import_source(FUNCTIONS)
            for i in T.Parallel(128):
                A[i] = T.call_pure_extern("float32", "twice", A[i])
            for i in T.Parallel(128):
                A[i] = T.call_pure_extern("float32", "twice", A[i]) + 1

    kernel = tvmtile.compile(main, target={"kind": "cuda", "arch": "sm_90a"})
    source = kernel.get_kernel_source()
    assert source.count("float twice(float x)") == 1
    assert source.count("twice(A") == 2
    assert kernel.cubin


@pytest.mark.parametrize("first", ["thrice", "quarter"])
def test_texts_that_use_each_other(first):
    """A text may name a function without defining it: it calls it, or only declares it."""
    texts = (
        "__device__ float half_of(float x);  // then quarter(x)",
        "__device__ float quarter(float x) { return half_of(half_of(x)); }",
        "__device__ float half_of(float x) { return x / 2; }",
        "__device__ float thrice(float x) { if (quarter(x) > 0) { return 3 * x; } return 0; }",
    )

    @T.prim_func
    def main(A: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            for text in texts:
                T.import_source(text)
            for i in T.Parallel(128):
                A[i] = T.call_pure_extern("float32", first, A[i])

    kernel = tvmtile.compile(main, target={"kind": "cuda", "arch": "sm_90a"})
    source = kernel.get_kernel_source()
    assert [source.count(text) for text in texts] == [1] * 4
    assert kernel.cubin


def test_no_source_brings_nothing():
    @T.prim_func
    def main(A: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            T.import_source(None)
            for i in T.Parallel(128):
                A[i] = 1.0

    assert "import_source" not in main.script()
