"""Mistakes that people make in kernels, each with the message that it gives as its docstring.

The line that a message points at is marked `# <--`. In the docstrings a line that is indented by four
columns goes on with the one before, and `...` stands for anything.

As a script, `python mistakes.py` makes every mistake and shows each as the interpreter shows an
uncaught exception; `python mistakes.py NAME` makes one and ends with it.
"""

from __future__ import annotations

import math
import sys
import types

import numpy as np

import tvmtile
import tvmtile.language as T
from tvmtile.pipeline import check


def gemm_k_mismatch():
    """
    ShapeMismatch: gemm: A and B disagree on K
      A: A_shared[64, 32] float16 has K = 32
      B: B_shared[64, 64] float16 has K = 64
      help: A is [M, K] and B is [K, N]; pass transpose_A or transpose_B for an operand that is
          stored the other way
    """

    @T.prim_func
    def kernel(C: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((64, 32), T.float16)
            B_shared = T.alloc_shared((64, 64), T.float16)
            C_local = T.alloc_fragment((64, 64), T.float32)
            T.gemm(A_shared, B_shared, C_local)  # <--


def gemm_accumulator_shape():
    """
    ShapeMismatch: gemm: the accumulator C_local[64, 32] float32 should be [64, 64]
      A: A_shared[64, 32] float16
      B: B_shared[64, 32] float16 (transposed)
      help: allocate it as T.alloc_fragment((64, 64), accum_dtype)
    """

    @T.prim_func
    def kernel(C: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((64, 32), T.float16)
            B_shared = T.alloc_shared((64, 32), T.float16)
            C_local = T.alloc_fragment((64, 32), T.float32)
            T.gemm(A_shared, B_shared, C_local, transpose_B=True)  # <--


def gemm_dtypes():
    """
    UnsupportedDtype: gemm: there is no rule for float16 x int8 into float32
      A: A_shared[64, 32] float16
      B: B_shared[32, 64] int8
      C: C_local[64, 64] float32
      help: convert an operand with T.copy into a tile of the other's dtype
    """

    @T.prim_func
    def kernel(C: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((64, 32), T.float16)
            B_shared = T.alloc_shared((32, 64), T.int8)
            C_local = T.alloc_fragment((64, 64), T.float32)
            T.gemm(A_shared, B_shared, C_local)  # <--


def gemm_accumulator_dtype():
    """
    UnsupportedDtype: gemm: there is no rule for int8 x int8 into float16
      A: A_shared[64, 32] int8
      B: B_shared[32, 64] int8
      C: C_local[64, 64] float16
      help: accumulate in int32, int64, float32, float64
    """

    @T.prim_func
    def kernel(C: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((64, 32), T.int8)
            B_shared = T.alloc_shared((32, 64), T.int8)
            C_local = T.alloc_fragment((64, 64), T.float16)
            T.gemm(A_shared, B_shared, C_local)  # <--


def gemm_of_an_element():
    """
    InvalidOperand: gemm: A is the element A[0, 0] float16, which has no extents
      help: give a whole buffer or a region, `A[i0:i1, j0:j1]`
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            B_shared = T.alloc_shared((32, 64), T.float16)
            C_local = T.alloc_fragment((64, 64), T.float32)
            T.gemm(A[0, 0], B_shared, C_local)  # <--


def reduce_output_shape():
    """
    ShapeMismatch: reduce_sum: the result of A_local[64, 32] float32 along axis 1 has shape [64] or
        [64, 1], and sums[32] float32 has another
      help: allocate out with shape [64]
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 32), T.float32)):
        with T.Kernel(1, threads=128):
            A_local = T.alloc_fragment((64, 32), T.float32)
            sums = T.alloc_fragment((32,), T.float32)
            T.copy(A, A_local)
            T.reduce_sum(A_local, sums, dim=1)  # <--


def reduce_axis():
    """
    InvalidOperand: reduce_sum: A_local[64, 32] float32 has no axis 2
      help: dim is an integer from -2 to 1
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 32), T.float32)):
        with T.Kernel(1, threads=128):
            A_local = T.alloc_fragment((64, 32), T.float32)
            sums = T.alloc_fragment((64,), T.float32)
            T.reduce_sum(A_local, sums, dim=2)  # <--


def copy_of_different_tiles():
    """
    ShapeMismatch: copy: A[0:64, 0:64] float16 and A_shared[64, 32] float16 are tiles of different
        shapes
      help: give both sides the same extents (axes of extent 1 don't count), or name one by its
          first element, `A[i, j]`, to take the extents of the other
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((64, 32), T.float16)
            T.copy(A[0:64, 0:64], A_shared)  # <--


def copy_of_a_number():
    """
    InvalidOperand: copy: src is an int, not a tile
      help: a tile is a buffer, a region `A[i0:i1, j0:j1]`, or an element `A[i, j]` at its origin
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            T.copy(0, A)  # <--


def region_out_of_bounds():
    """
    OutOfBounds: copy: A[0:64, 48:80] float16 reaches outside A[64, 64] float16 along axis 1
      help: the axis has 64 elements, the region is 48:80; named by its first element, `A[0, 48]`, with
        the extents of the other side, it reads zero and writes nothing there
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((64, 32), T.float16)
            T.copy(A[0:64, 48:80], A_shared)  # <--


def element_out_of_bounds():
    """
    OutOfBounds: A[64, 64] float16 has 64 elements along axis 1; index 64 is outside
      help: indices run from 0; a constant negative one counts from the end
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(64):
                A[i, 64] = 0  # <--


def load_out_of_bounds():
    """
    OutOfBounds: A[64, 64] float16 has 64 elements along axis 1; index 64 is outside
      help: indices run from 0; a constant negative one counts from the end
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(64):
                A[i, 0] = A[i, 64]  # <--


def operator_in_parallel():
    """
    NestingError: T.copy stands inside T.Parallel
      help: T.Parallel is for elements; a tile operator already works on the whole tile, so move it
          out of the loop, or make the loop T.serial
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((64, 64), T.float16)
            for i in T.Parallel(64):
                T.copy(A, A_shared)  # <--


def nested_parallel():
    """
    NestingError: T.Parallel stands inside another T.Parallel and is not all that it does
      help: write one T.Parallel with all extents, `for i, j in T.Parallel(M, N)`, or make the inner
          loop T.serial
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(64):
                A[i, 0] = 1
                for j in T.Parallel(64):  # <--
                    A[i, j] = 0


def operator_outside_kernel():
    """
    NestingError: T.copy stands outside T.Kernel
      help: tile operators are the work of a block: use them inside `with T.Kernel(...)`
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16), B: T.Tensor((64, 64), T.float16)):
        T.copy(A, B)  # <--


def nested_kernel():
    """
    NestingError: T.Kernel stands inside another T.Kernel
      help: write the kernels one after the other in the function
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            with T.Kernel(1):  # <--
                T.clear(A)


def parallel_outside_kernel():
    """
    NestingError: T.Parallel stands outside T.Kernel
      help: elementwise work is done by the blocks of `with T.Kernel(...)`
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float16)):
        for i in T.Parallel(64):  # <--
            A[i] = 0


def alloc_outside_kernel():
    """
    NestingError: T.alloc_shared stands outside T.Kernel
      help: tiles belong to a block: allocate them inside `with T.Kernel(...)`
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float16)):
        A_shared = T.alloc_shared((64,), T.float16)  # <--


def serial_fragment():
    """
    NestingError: the serial loop over 'i' visits elements of the fragment C_local[64, 64] float32,
        which are spread over the threads of the block
      help: visit them in T.Parallel, or T.copy the fragment to a shared tile and index that
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16), C: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128):
            C_local = T.alloc_fragment((64, 64), T.float32)
            T.clear(C_local)
            T.gemm(A, A, C_local)
            for i in T.serial(64):
                C_local[i, i] = 0  # <--
            T.copy(C_local, C)

    tvmtile.compile(kernel)


def unknown_dtype():
    """
    UnsupportedDtype: there is no dtype 'flaot16'
      help: did you mean 'float16'?
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((64, 32), "flaot16")  # <--


def unknown_dtype_of_a_parameter():
    """
    UnsupportedDtype: there is no dtype 'float17'
      help: did you mean 'float16'?
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), "float17")):  # <--
        with T.Kernel(1, threads=128):
            T.clear(A)


def dtype_that_the_language_lacks():
    """
    UndefinedName: 'float17' is not a name of tvmtile.language
      help: did you mean 'float16'?
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((64, 32), T.float17)  # <--


def math_function():
    """
    SyntaxNotSupported: math.sqrt is called on a value that only the running kernel has
      help: use the language's function: T.sqrt
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(64):
                A[i] = math.sqrt(A[i])  # <--


def undefined_name():
    """
    UndefinedName: 'A_shard' is not defined
      help: did you mean 'A_shared'?
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((64, 64), T.float16)
            T.copy(A, A_shard)  # <--


def name_of_an_instruction():
    """
    UndefinedName: 'tma_store' is not a name of tvmtile.language
      help: use T.tma_copy(A[y, x], tile, barrier=bar), which describes the tensor by itself
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((64, 64), T.float16)
            T.tma_store(A_shared, A)  # <--


def tensor_memory():
    """
    UndefinedName: 'alloc_tmem' is not a name of tvmtile.language
      help: tensor memory is not part of the language yet; T.gemm runs there by mma.sync
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            A_tmem = T.alloc_tmem((64, 64), T.float32)  # <--


def undefined_operator():
    """
    UndefinedName: 'copi' is not a name of tvmtile.language
      help: did you mean 'copy'?
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((64, 64), T.float16)
            T.copi(A, A_shared)  # <--


def undefined_name_in_an_annotation():
    """
    UndefinedName: 'rows', in the annotation of 'A', is not defined
      help: define it before the kernel
    """

    @T.prim_func
    def kernel(A: T.Tensor((rows, 64), T.float16)):  # <--
        with T.Kernel(1, threads=128):
            T.clear(A)


def unknown_target():
    """
    UnknownTarget: there is no target 'cdua': Target kind "cdua" is not defined.
      help: did you mean 'cuda'? The targets of tile programs are llvm, metal, cuda
    """
    tvmtile.compile(_double(), target="cdua")  # <--


def target_without_lowering():
    """
    UnknownTarget: tile programs can't be lowered for 'vulkan'
      help: the targets of tile programs are llvm, metal, cuda
    """
    tvmtile.compile(_double(), target="vulkan")  # <--


def too_many_grid_axes():
    """
    InvalidOperand: T.Kernel takes up to three grid extents, not 4
      help: fold further axes into one of the three and split its index in the kernel
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float16)):
        with T.Kernel(1, 2, 3, 4, threads=128) as (bx, by, bz, bw):  # <--
            T.clear(A)


def too_few_grid_names():
    """
    InvalidOperand: 3 names for 2 values
      help: the number of names is the number of loop extents or grid axes
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float16)):
        with T.Kernel(1, 2, threads=128) as (bx, by, bz):  # <--
            T.clear(A)


def float_grid():
    """
    InvalidOperand: T.Kernel: a grid extent is an integer, not a float
      help: use T.ceildiv(M, block_M); in Python, `/` makes a float
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float16)):
        with T.Kernel(64 / 32, threads=128) as bx:  # <--
            T.clear(A)


def bad_threads():
    """
    InvalidValue: T.Kernel: threads=0 is no number of threads
      help: threads is a positive integer, or up to three of them
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float16)):
        with T.Kernel(1, threads=0) as bx:  # <--
            T.clear(A)


def float_loop():
    """
    InvalidOperand: T.serial: a loop bound is an integer, not 4.0
      help: use // or T.ceildiv; in Python, `/` makes a float
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float16)):
        with T.Kernel(1, threads=128) as bx:
            for k in T.serial(64 / 16):  # <--
                T.clear(A)


def float_range():
    """
    InvalidOperand: T.serial: a loop bound is an integer, not 4.0
      help: use // or T.ceildiv; in Python, `/` makes a float
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float16)):
        with T.Kernel(1, threads=128) as bx:
            for k in range(64 / 16):  # <--
                T.clear(A)


def float_parallel():
    """
    InvalidOperand: T.Parallel: a loop bound is an integer, not 32.0
      help: use // or T.ceildiv; in Python, `/` makes a float
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float16)):
        with T.Kernel(1, threads=128) as bx:
            for i in T.Parallel(64 / 2):  # <--
                A[i] = 0


def float_index():
    """
    InvalidOperand: `/` has no meaning between integers of the kernel
      help: use `//` to round down, T.ceildiv(a, b) to round up, or T.cast(a, 'float32') / b
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            for i in T.Parallel(32):
                A[i] = A[i / 2]  # <--


def float_index_of_a_store():
    """
    InvalidOperand: `/` has no meaning between integers of the kernel
      help: use `//` to round down, T.ceildiv(a, b) to round up, or T.cast(a, 'float32') / b
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            for i in T.Parallel(32):
                A[i / 2] = 0  # <--


def constant_float_index():
    """
    InvalidOperand: A[64] float32 is indexed with the float 32.0
      help: use //, since in Python `/` makes a float; T.cast(x, 'int32') cuts a value off
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            for i in T.Parallel(32):
                A[i] = A[64 / 2]  # <--


def too_few_indices():
    """
    InvalidOperand: A[64, 64] float32 has 2 dimensions and is indexed with 1
      help: give one index for each dimension
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            for i in T.Parallel(64):
                A[i] = 0  # <--


def too_few_indices_of_a_load():
    """
    InvalidOperand: `+` works on elements, not on whole tiles: A[i] of A[64, 64] float32
      help: index the tile, `tile[i, j]`, in a loop over T.Parallel
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            for i in T.Parallel(64):
                A[i, 0] = A[i] + 1  # <--


def too_many_indices_of_a_load():
    """
    InvalidOperand: A[64, 64] float32 has 2 dimensions and is indexed with 3
      help: give one index for each dimension
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            for i in T.Parallel(64):
                A[i, 0] = A[i, 0, 0]  # <--


def store_into_a_region():
    """
    InvalidOperand: a region of A[64, 64] float32 can't be assigned to
      help: use T.fill(region, value) or T.copy(source, region), or store its elements in a loop
          over T.Parallel
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            A[0:32, 0:32] = 0  # <--


def store_of_a_tile():
    """
    InvalidOperand: the buffer B[64, 64] float32 is not a value that can be stored
      help: store a number, an element of a buffer or an expression of them
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float32), B: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            A[0, 0] = B  # <--


def store_of_a_region():
    """
    InvalidOperand: the expression `B[0:32, i]` is not a value that can be stored
      help: store a number, an element of a buffer or an expression of them
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float32), B: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            for i in T.Parallel(64):
                A[i, 0] = B[0:32, i]  # <--


def arithmetic_on_a_tile():
    """
    InvalidOperand: `+` works on elements, not on whole tiles: C_local[64, 64] float32
      help: index the tile, `tile[i, j]`, in a loop over T.Parallel
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            C_local = T.alloc_fragment((64, 64), T.float32)
            D_local = C_local + 1  # <--


def arithmetic_on_a_region():
    """
    InvalidOperand: `*` works on elements, not on whole tiles: C_local[0:32, :] of C_local[64, 64]
        float32
      help: index the tile, `tile[i, j]`, in a loop over T.Parallel
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            C_local = T.alloc_fragment((64, 64), T.float32)
            D_local = 2 * C_local[0:32, :]  # <--


def arithmetic_over_several_lines():
    """
    InvalidOperand: `+` works on elements, not on whole tiles: A[64, 64] float32, B[64, 64] float32
      help: index the tile, `tile[i, j]`, in a loop over T.Parallel
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float32), B: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128):
            D_local = (  # the sum begins below
                A  # <--
                + B
            )


def augmented_tile():
    """
    InvalidOperand: `+=` works on elements, not on whole tiles: C_local[64, 64] float32
      help: write `C_local[i, j] += ...` in a loop over T.Parallel
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            C_local = T.alloc_fragment((64, 64), T.float32)
            C_local += 1  # <--


def function_of_a_tile():
    """
    InvalidOperand: T.exp works on elements, not on whole tiles: C_local[64, 64] float32
      help: index the tile, `tile[i, j]`, in a loop over T.Parallel
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            C_local = T.alloc_fragment((64, 64), T.float32)
            D_local = T.exp(C_local)  # <--


def maximum_of_a_tile():
    """
    InvalidOperand: a function of elements got C_local[64, 64] float32
      help: index a tile, `tile[i, j]`, in a loop over T.Parallel
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            C_local = T.alloc_fragment((64, 64), T.float32)
            D_local = T.max(C_local, 0)  # <--


def condition_on_a_tile():
    """
    InvalidOperand: the buffer A[64, 64] float32 is a tile, not a condition
      help: compare one element, or reduce the tile with T.any_of or T.all_of
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            if A:  # <--
                T.clear(A)


def comparison_of_a_tile():
    """
    InvalidOperand: `>` works on elements, not on whole tiles: A[64, 64] float32
      help: index the tile, `tile[i, j]`, in a loop over T.Parallel
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            if A > 0:  # <--
                T.clear(A)


def missing_annotation():
    """
    SyntaxNotSupported: the parameter 'A' of kernel has no annotation
      help: write `A: T.Tensor((M, N), T.float16)` in the signature or as a statement, or a dtype
          for a scalar
    """

    @T.prim_func
    def kernel(A, B: T.Tensor((64,), T.float32)):  # <--
        with T.Kernel(1, threads=128) as bx:
            T.copy(A, B)


def wrong_annotation():
    """
    SyntaxNotSupported: the annotation of the parameter 'A' is not a type of the language:
        'a_tensor(64)'
      help: use T.Tensor(shape, dtype), a dtype such as T.int32, or T.handle
    """

    @T.prim_func
    def kernel(A: "a_tensor(64)"):  # <--
        with T.Kernel(1, threads=128) as bx:
            T.clear(A)


def annotation_of_another_type():
    """
    SyntaxNotSupported: the annotation of the parameter 'n' is not a type of the language: <class
        'str'>
      help: use T.Tensor(shape, dtype), a dtype such as T.int32, or T.handle
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32), n: str):  # <--
        with T.Kernel(1, threads=128) as bx:
            T.clear(A)


def stepped_slice():
    """
    InvalidOperand: a slice of A[64] float32 has the step 2
      help: a region has no gaps: copy the elements in a loop over T.Parallel
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32), B: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            T.copy(A[0:64:2], B[0:32])  # <--


def negative_slice():
    """
    OutOfBounds: a slice of A[64] float32 begins or ends at -32 along axis 0
      help: bounds of a slice count from 0: write 64 - 32
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32), B: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128) as bx:
            T.copy(A[-32:], B[0:32])  # <--


def integer_division():
    """
    InvalidOperand: `/` has no meaning between integers of the kernel
      help: use `//` to round down, T.ceildiv(a, b) to round up, or T.cast(a, 'float32') / b
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(4, threads=128) as bx:
            half = bx / 2  # <--
            T.clear(A)


def shift_of_a_float():
    """
    InvalidOperand: TVM does not take this: Expected integer argument as LHS of << operator (left
        shift), but received A[i] of type T.float16
      help: set TVM_BACKTRACE=1 to see where in TVM
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float16)):
        with T.Kernel(4, threads=128) as bx:
            for i in T.Parallel(64):
                A[i] = A[i] << 1  # <--


def string_in_arithmetic():
    """
    InvalidOperand: `+` between a value of the kernel and a str
      help: a value of the kernel goes with numbers and with other values of the kernel
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float16)):
        with T.Kernel(4, threads=128) as bx:
            for i in T.Parallel(64):
                A[i] = A[i] + "1"  # <--


def out_idx_out_of_range():
    """
    InvalidOperand: out_idx=2 is outside the 2 parameters of the kernel
      help: count the parameters from 0, or from the end with negative numbers
    """
    tvmtile.compile(_double(), out_idx=[2])  # <--


def compile_of_a_factory():
    """
    InvalidOperand: tvmtile.compile takes a T.prim_func, not a function
      help: decorate the kernel with @T.prim_func; call a factory that returns one
    """
    tvmtile.compile(_double)  # <--


def unknown_backend():
    """
    InvalidOperand: there is no execution backend 'cutedsl'
      help: the backends are auto, tvm_ffi, tvm, cython, nvrtc, torch, emulator
    """
    tvmtile.compile(_double(), execution_backend="cutedsl")  # <--


def factory_that_returns_nothing():
    """
    SyntaxNotSupported: factory returned a NoneType, not a kernel
      help: return a function decorated with @T.prim_func, or write the kernel in the eager style,
          with T.Kernel in the function itself
    """

    @tvmtile.jit
    def factory(n):
        @T.prim_func
        def kernel(A: T.Tensor((n,), T.float16)):
            with T.Kernel(1):
                T.clear(A)

    factory(64)  # <--


def factory_without_its_arguments():
    """
    ArgumentError: factory: missing a required argument: 'dtype'
      help: its parameters are (n, dtype)
    """

    @tvmtile.jit
    def factory(n, dtype):
        @T.prim_func
        def kernel(A: T.Tensor((n,), dtype)):
            with T.Kernel(1):
                T.clear(A)

        return kernel

    factory(64)  # <--


def eager_constant_that_does_not_exist():
    """
    ArgumentError: double has neither a parameter nor a constant 'blok'
      help: its parameters are (A, block=32), its constants N
    """

    @tvmtile.jit
    def double(A, block=32):
        N = T.const("N")
        A: T.Tensor((N,), T.float16)
        with T.Kernel(1, threads=128):
            T.clear(A)

    double.compile(N=64, blok=16)  # <--


def mistake_in_a_macro():
    """
    ShapeMismatch: copy: A[64, 64] float16 and A_shared[64, 32] float16 are tiles of different
        shapes
      help: give both sides the same extents (axes of extent 1 don't count), or name one by its
          first element, `A[i, j]`, to take the extents of the other
    """

    @T.macro
    def load(src, dst):
        T.copy(src, dst)  # <--

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((64, 32), T.float16)
            load(A, A_shared)


def mistake_in_a_helper():
    """
    UndefinedName: 'dts' is not defined
      help: did you mean 'dst'?
    """

    def load(src, dst):
        T.copy(src[0:64, 0:32], dts)  # <--

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((64, 32), T.float16)
            load(A, A_shared)


def mistake_in_an_eager_kernel():
    """
    ShapeMismatch: copy: A[64] float16 and tile[65] float16 are tiles of different shapes
      help: give both sides the same extents (axes of extent 1 don't count), or name one by its
          first element, `A[i, j]`, to take the extents of the other
    """

    @tvmtile.jit
    def double(A):
        N = T.const("N")
        A: T.Tensor((N,), T.float16)
        B = T.empty((N,), T.float16)
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((N + 1,), T.float16)
            T.copy(A, tile)  # <--
            T.copy(tile, B)
        return B

    double.compile(N=64)


def macro_outside_a_kernel():
    """
    NestingError: the macro load is called outside a kernel
      help: call it in a function under @T.prim_func or @tvmtile.jit
    """

    @T.macro
    def load(src, dst):
        T.copy(src, dst)

    load(1, 2)  # <--


def macro_arguments():
    """
    ArgumentError: the macro load: missing a required argument: 'dst'
      help: its parameters are (src, dst)
    """

    @T.macro
    def load(src, dst):
        T.copy(src, dst)

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            load(A)  # <--


def operator_arguments():
    """
    InvalidOperand: T.copy missing 1 required positional argument: 'dst'
      help: its parameters are src, dst, ...
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            T.copy(A)  # <--


def operator_keyword():
    """
    InvalidOperand: T.fill got an unexpected keyword argument 'valeu'
      help: did you mean 'value'?
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            T.fill(A, valeu=0)  # <--


def threads_for_cuda():
    """
    InvalidOperand: T.Kernel: threads=2048, but a block of CUDA sm_80 has at most 1024
      help: use fewer threads: each can handle several elements
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=2048):  # <--
            T.clear(A)

    check(kernel, {"kind": "cuda", "arch": "sm_80"})


def threads_for_metal():
    """
    InvalidOperand: T.Kernel: threads=2048, but a block of Metal has at most 1024
      help: use fewer threads: each can handle several elements
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=(64, 32)):  # <--
            T.clear(A)

    check(kernel, "metal")


def shared_memory_of_cuda():
    """
    OutOfSharedMemory: T.Kernel: the shared tiles need 192 KB at once; a block of CUDA sm_80 has 163
        KB
      A_shared[256, 256] float16: 128 KB
      B_shared[256, 128] float16: 64 KB
      help: make the tiles smaller, or keep one of them in a fragment
    """

    @T.prim_func
    def kernel(A: T.Tensor((256, 256), T.float16), B: T.Tensor((256, 128), T.float16)):
        with T.Kernel(1, threads=128):  # <--
            A_shared = T.alloc_shared((256, 256), T.float16)
            B_shared = T.alloc_shared((256, 128), T.float16)
            C_local = T.alloc_fragment((256, 128), T.float32)
            T.clear(C_local)
            T.copy(A, A_shared)
            T.copy(B, B_shared)
            T.gemm(A_shared, B_shared, C_local)

    check(kernel, {"kind": "cuda", "arch": "sm_90a"})  # 192 KB of 227 KB
    check(kernel, {"kind": "cuda", "arch": "sm_80"})


def shared_memory_of_metal():
    """
    OutOfSharedMemory: T.Kernel: the shared tiles need 64 KB at once; a block of Metal has 32 KB
      A_shared[128, 128] float32: 64 KB
      help: make the tiles smaller, or keep one of them in a fragment
    """

    @T.prim_func
    def kernel(A: T.Tensor((128, 128), T.float32)):
        with T.Kernel(1, threads=128):  # <--
            A_shared = T.alloc_shared((128, 128), T.float32)
            T.copy(A, A_shared)

    check(kernel, "metal")


def float64_on_metal():
    """
    UnsupportedDtype: x[64] float64: Metal has no float64
      help: use float32 for this tile
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((64,), T.float64)
            T.copy(A, x)  # <--

    check(kernel, "metal")


def float64_within_an_expression():
    """
    UnsupportedDtype: a value is converted to float64, which Metal lacks
      help: compute in float32
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                A[i] = T.cast(T.cast(A[i], T.float64) * 2, T.float32)  # <--

    check(kernel, "metal")


def tile_that_simdgroups_can_not_share():
    """
    TileWarning: gemm: C_local[0:24, 0:24] float32 is computed element by element, which is slow: the
        target is not Metal 4; 4 simdgroups (128 threads) can't share an accumulator of [24, 24], which
        is 3 x 3 matrices of 8x8 (32 or 96 or 288 threads can); M = 24 is more than 8 rows
    """

    @T.prim_func
    def kernel(A: T.Tensor((24, 32), T.float16), C: T.Tensor((24, 24), T.float32)):
        with T.Kernel(1, threads=128):
            C_local = T.alloc_fragment((24, 24), T.float32)
            T.clear(C_local)
            T.gemm(A, A, C_local, transpose_B=True)  # <--
            T.copy(C_local, C)

    tvmtile.compile(kernel, target="metal", execution_backend="emulator")


def tile_of_no_whole_simdgroup_matrices():
    """
    TileWarning: gemm: C_local[0:20, 0:20] float32 is computed element by element, which is slow: the
        target is not Metal 4; an accumulator of [20, 20] does not consist of 8x8 matrices (one of
        [24, 24] does); M = 20 is more than 8 rows
    """

    @T.prim_func
    def kernel(A: T.Tensor((20, 32), T.float16), C: T.Tensor((20, 20), T.float32)):
        with T.Kernel(1, threads=128):
            C_local = T.alloc_fragment((20, 20), T.float32)
            T.clear(C_local)
            T.gemm(A, A, C_local, transpose_B=True)  # <--
            T.copy(C_local, C)

    tvmtile.compile(kernel, target="metal", execution_backend="emulator")


def architecture_of_cuda():
    """
    UnknownTarget: the limits of the CUDA architecture 'sm_52' are not known
      help: the architectures are sm_70, sm_72, sm_75, sm_80, sm_86, sm_87, sm_89, sm_90, sm_100,
          sm_103, sm_120
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16)):
        with T.Kernel(1, threads=128):
            T.clear(A)

    check(kernel, {"kind": "cuda", "arch": "sm_52"})  # <--


def accumulator_never_cleared():
    """
    TileWarning: gemm updates C_local[64, 64] float32, which holds no value yet: write
        T.clear(C_local) before it, or clear_accum=True
    """

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), T.float16), C: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128):
            C_local = T.alloc_fragment((64, 64), T.float32)
            for _ in T.serial(4):
                T.gemm(A, A, C_local)  # <--
            T.copy(C_local, C)

    tvmtile.compile(kernel)


def extent_that_no_parameter_gives():
    """
    InvalidOperand: no parameter of the kernel gives n
      help: a T.dynamic extent is the extent of a tensor parameter; pass other values as parameters,
          e.g. `n: T.int32`
    """
    n = T.dynamic("n")

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(64):
                A[i] = T.cast(n, T.float32)  # <--


def grid_that_no_parameter_gives():
    """
    InvalidOperand: no parameter of the kernel gives n
      help: a T.dynamic extent is the extent of a tensor parameter; pass other values as parameters,
          e.g. `n: T.int32`
    """
    n = T.dynamic("n")

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(n, threads=128):  # <--
            T.clear(A)


def vector_that_tvm_refuses():
    """
    NoLowering: kernel: TVM can't compile this kernel for llvm: unknown intrinsic ...
      help: set TVM_BACKTRACE=1 to see where in TVM
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128):  # <--
            A[T.ramp(0, 1, 4)] = T.erf(A[T.ramp(0, 1, 4)])

    tvmtile.compile(kernel)


def unknown_pass_option():
    """
    InvalidValue: there is no pass option 'tirx.noalais'
      help: did you mean 'tirx.noalias'?
    """
    tvmtile.compile(_double(), pass_configs={"tirx.noalais": True})  # <--


def python_list():
    """
    SyntaxNotSupported: a Python list is indexed with a value that only the running kernel has
      help: loop over the Python list itself, `for x in table:`, or pass the table as a tensor
    """
    table = [1.0, 2.0]

    @T.prim_func
    def kernel(A: T.Tensor((2,), T.float32)):
        with T.Kernel(1, threads=128):
            for i in T.serial(2):
                A[i] = table[i]  # <--


def python_maximum():
    """
    SyntaxNotSupported: Python code (max) needs to know now a condition that only the running kernel
        knows
      help: use T.max, T.min or T.if_then_else, or an `if` statement in the kernel itself
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(64):
                A[i] = max(A[i], 0)  # <--


def python_float():
    """
    SyntaxNotSupported: float is called on a value that only the running kernel has
      help: use the language's function: T.cast(x, 'float32')
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(64):
                A[i] = float(A[i])  # <--


def name_used_after_its_loop():
    """
    ScopeError: 'last' is bound inside a loop (line ...) and used after it
      help: there is no value where the loop is not entered: give last a first value before the loop,
          such as `last = 0.0`
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128):
            for i in T.serial(64):
                last = A[i]
            A[0] = last  # <--


def misspelled_option():
    """
    InvalidOperand: T.Kernel got an unexpected keyword argument 'thread'
      help: did you mean 'threads'?
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, thread=64):  # <--
            T.clear(A)


def arguments_by_keyword():
    """
    ArgumentError: double: missing a required argument: 'B'
      help: its parameters are A, B
    """
    kernel = tvmtile.compile(_double())
    kernel(A=np.zeros((64,), "float32"), C=np.zeros((64,), "float32"))  # <--


def tile_used_after_its_loop():
    """
    ScopeError: 'tile' is bound inside a loop (line ...) and used after it
      help: the tile belongs to the loop: allocate tile before it
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128):
            for i in T.serial(64):
                tile = T.alloc_shared((64,), T.float32)
                T.fill(tile, i)
            T.copy(tile, A)  # <--


def loop_variable_used_after_its_loop():
    """
    ScopeError: 'i' counts the iterations of a loop and is used after it
      help: write the value that is meant, such as the loop's extent
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128):
            for i in T.serial(63):
                A[i] = 0
            A[i + 1] = 1  # <--


def number_that_becomes_a_float():
    """
    InvalidOperand: 'total' begins as int32 before the loop or branch that changes it (line ...), and
        is assigned a float32
      help: begin with a value of the later dtype: `total = T.float32(0)`
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128):
            total = 0
            for i in T.serial(64):
                total = total + A[i]  # <--
            A[0] = total


def number_that_becomes_a_tile():
    """
    ScopeError: 'last' begins as float32 before the loop or branch that changes it (line ...), and
        can't become the buffer tile[64] float32
      help: give the other object a name of its own
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128):
            last = 0.0
            tile = T.alloc_shared((64,), T.float32)
            for i in T.serial(64):
                last = tile  # <--
            A[0] = last


def tile_carried_by_a_loop():
    """
    ScopeError: 'a' is carried from one iteration of this loop to the next
      help: only a number can change at run time: loop over Python values, `for i in [0, 1]:`, or
          choose by index in one tile
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64,), T.float32)
            b = T.alloc_shared((64,), T.float32)
            for i in T.serial(4):
                T.copy(A, a)
                a, b = b, a  # <--


def name_carried_by_a_parallel_loop():
    """
    ScopeError: 'total' is carried from one iteration of T.Parallel to the next; they have no order
      help: reduce a tile with T.reduce_sum and the like, add with T.atomic_add, or make it a loop over
          T.serial
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128):
            total = 0.0
            for i in T.Parallel(64):
                total = total + A[i]  # <--
            A[0] = total


def name_of_the_language_without_its_module():
    """
    UndefinedName: 'alloc_shared' is not defined
      help: did you mean T.alloc_shared?
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=64):
            tile = alloc_shared((64,), T.float32)  # <--
            T.copy(A, tile)


def name_of_triton():
    """
    UndefinedName: 'program_id' is not a name of tvmtile.language
      help: the index of a block is the variable of `with T.Kernel(blocks) as bx:`
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=64):
            A[T.program_id(0)] = 0  # <--


def method_of_a_tensor_of_torch():
    """
    InvalidOperand: A[64] float32 has no attribute 'size'
      help: its extents are A.shape[0], A.shape[1], ...
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(A.size(0)):  # <--
                A[i] = 0


def method_of_a_value_of_torch():
    """
    InvalidOperand: A[i], a value of the running kernel, has no attribute 'to'
      help: T.cast(x, dtype) converts a value
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32), B: T.Tensor((64,), T.int32)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = A[i].to("int32")  # <--


def length_of_a_tensor():
    """
    InvalidOperand: len() of A[64] float32
      help: its extents are A.shape[0], A.shape[1], ...
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(len(A)):  # <--
                A[i] = 0


def one_name_for_two_axes():
    """
    InvalidOperand: arithmetic on the indices of 2 axes, which have one name
      help: name each, `with T.Kernel(m, n) as (bx, by):` and `for i, j in T.Parallel(m, n):`, or take
          one of them, `block[0]`
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(2, 2, threads=32) as bx:
            for i in T.Parallel(32):
                A[bx * 32 + i] = 0  # <--


def shape_behind_the_dtype():
    """
    InvalidOperand: T.alloc_shared: the shape is 'float32'
      help: the order is T.alloc_shared(shape, dtype)
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared("float32", (64,))  # <--
            T.copy(A, tile)


def statement_of_the_host():
    """
    NestingError: A[64] float32 is written outside T.Kernel, by the host, which does not reach the
        memory of CUDA sm_80
      help: move the statement into `with T.Kernel(...)`; a number that the grid depends on is a
          parameter, `n: T.int32`
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        for i in T.serial(64):
            A[i] = 0  # <--

    tvmtile.compile(kernel, target={"kind": "cuda", "arch": "sm_80"})


def grid_that_a_tensor_gives():
    """
    NestingError: N[1] int32 is read outside T.Kernel, by the host, which does not reach the memory of
        Metal
      help: move the statement into `with T.Kernel(...)`; a number that the grid depends on is a
          parameter, `n: T.int32`
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32), N: T.Tensor((1,), T.int32)):
        with T.Kernel(N[0], threads=32) as bx:  # <--
            A[bx] = 0

    check(kernel, "metal")


def integers_of_four_bits_on_metal():
    """
    UnsupportedDtype: A[64] int4: Metal has no int4
      help: hold two of them in a uint8 and decode them in the kernel: `byte & 0xF`, `byte >> 4`
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), "int4"), B: T.Tensor((64,), T.float16)):
        with T.Kernel(1, threads=64):
            T.copy(A, B)  # <--

    check(kernel, "metal")


def step_of_a_pipelined_loop():
    """
    InvalidOperand: T.Pipelined: order=2 is no list of numbers
      help: the arguments are start, stop and num_stages; a pipelined loop has no step
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=32):
            for k in T.Pipelined(0, 8, 2, 2):  # <--
                A[k] = 0


def argument_of_a_kernel():
    """
    ArgumentError: double: A is a tensor [64] of float32; it got float64
      help: convert it, e.g. `x.astype("float32")`
    """
    tvmtile.compile(_double())(np.zeros((64,), "float64"), np.zeros((64,), "float32"))  # <--


def condition_on_a_tile_in_one_line():
    """
    InvalidOperand: `>` works on elements, not on whole tiles: tile[64] float32
      help: index the tile, `tile[i, j]`, in a loop over T.Parallel
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1):
            tile = T.alloc_fragment((64,), T.float32)
            T.copy(A, tile)
            if tile > 0: T.copy(tile, A)  # fmt: skip  # noqa: E701  # <--


def misspelled_keyword_of_the_second_statement_of_a_line():
    """
    InvalidOperand: T.fill got an unexpected keyword argument 'valeu'
      help: did you mean 'value'?
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1):
            tile = T.alloc_fragment((64,), T.float32)
            T.fill(tile, valeu=0); T.copy(tile, A)  # fmt: skip  # noqa: E702  # <--


def argument_that_is_given_twice():
    """
    InvalidOperand: T.Pipelined got multiple values for argument 'num_stages'
      help: its parameters are ...
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1):
            for i in T.Pipelined(0, 64, 2, num_stages=2):  # <--
                A[i] = 1


def recursion_that_the_running_kernel_should_end():
    """
    SyntaxNotSupported: factorial calls itself without end: functions run while the kernel is traced,
        both branches of a condition that only the running kernel knows, too
      help: write a loop; a recursion ends at a condition on Python values
    """

    @T.macro
    def factorial(n):
        if n > 1:
            return n * factorial(n - 1)  # <--
        return 1

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.int32)):
        with T.Kernel(1):
            A[0] = factorial(A[1])


def kernel_without_with():
    """
    NestingError: T.Kernel stands on a line of its own, and nothing is in it
      help: write `with T.Kernel(...):` over the statements of the kernel
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        T.Kernel(1, threads=32)  # <--
        A[0] = 1


def print_of_a_value():
    """
    TileWarning: print shows an expression while the kernel is traced; T.print(x) shows its value
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1):
            x = A[0]
            print("x is", x)  # <--
            A[1] = x


def dtype_of_another_language():
    """
    UnsupportedDtype: there is no dtype 'bf16'
      help: did you mean 'bfloat16'?
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), "bf16")):  # <--
        pass


def shape_in_two_arguments():
    """
    UnsupportedDtype: there is no dtype '64'
      help: an extent belongs into the shape, one argument: `(64, 64)`
    """

    @T.prim_func
    def kernel(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1):
            T.alloc_shared(64, 64, T.float32)  # <--


def architecture_without_underscore():
    """
    UnknownTarget: there is no target {'kind': 'cuda', 'arch': 'sm90'}: CUDA target gets an invalid CUDA
        arch: -arch=sm90.
      help: did you mean 'sm_90'? The targets of tile programs are llvm, metal, cuda
    """
    tvmtile.compile(_double(), target={"kind": "cuda", "arch": "sm90"})  # <--


def _double():
    @T.prim_func
    def double(A: T.Tensor((64,), T.float32), B: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(64):
                B[i] = A[i] * 2

    return double


MISTAKES = {
    name: value
    for name, value in list(globals().items())
    if isinstance(value, types.FunctionType)
    and value.__module__ == __name__
    and not name.startswith("_")
}


def _make_all():
    for name, make in MISTAKES.items():
        print(f"=== {name}", file=sys.stderr)
        try:
            make()
        except Exception:  # noqa: BLE001
            sys.excepthook(*sys.exc_info())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        MISTAKES[sys.argv[1]]()
    else:
        _make_all()
