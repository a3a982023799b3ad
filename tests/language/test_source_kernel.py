"""Kernels that are written in CUDA C++."""

from __future__ import annotations

import tvmtile
import tvmtile.language as T

SOURCE = """
__device__ float doubled(float x) { return x + x; }

extern "C" __global__ void __launch_bounds__(128) external_copy(float* A, float* B, int n) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) B[i] = doubled(A[i]);
}
"""


def program(source=SOURCE, entry="external_copy", **options):
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        T.CUDASourceCodeKernel(
            T.ceildiv(n, 128), threads=128, source_code_or_path=source, entry_name=entry, **options
        )

    return main


def test_the_function_gets_the_tensors_and_their_extent(tmp_path):
    path = tmp_path / "copy.cu"
    path.write_text(SOURCE)
    for source in (SOURCE, path, str(path)):
        kernel = tvmtile.compile(program(source), target={"kind": "cuda", "arch": "sm_90a"})
        text = kernel.get_kernel_source()
        assert "external_copy(A_ptr, B_ptr, n)" in text
        assert text.count("__global__") == 2  # the declaration and the definition of the launch
        assert kernel.cubin


def test_text_before_the_source():
    source = SOURCE.replace("x + x", "x * FACTOR")
    main = program(source, prelude="#define FACTOR 3.0f")
    kernel = tvmtile.compile(main, target={"kind": "cuda", "arch": "sm_80"})
    assert kernel.cubin
