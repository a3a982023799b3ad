"""DistributeParallel and PlaceFragments: which thread does what, and how it moves elements."""

import pytest
import torch

import tvmtile
import tvmtile.language as T


def emulated(program):
    return tvmtile.compile(program, target="metal", execution_backend="emulator")


def copying(shape, dtype, threads=128, through="shared"):
    """A tile is copied in and out."""
    allocate = T.alloc_shared if through == "shared" else T.alloc_fragment

    @T.prim_func
    def main(A: T.Tensor(shape, dtype), C: T.Tensor(shape, dtype)):
        with T.Kernel(1, threads=threads):
            tile = (
                T.alloc_shared(shape, dtype)
                if through == "shared"
                else T.alloc_fragment(shape, dtype)
            )
            T.copy(A, tile)
            T.copy(tile, C)

    return main


def elements(shape, dtype):
    return torch.randint(-100, 100, shape).to(getattr(torch, dtype))


@pytest.mark.parametrize("through", ["shared", "fragment"])
@pytest.mark.parametrize(
    ("shape", "dtype", "vector"),
    [
        ((32, 64), "float16", "uint4"),
        ((32, 64), "bfloat16", "uint4"),
        ((32, 64), "float32", "float4"),
        ((64, 64), "int8", "uint4"),
        ((16, 36), "float16", "uint2"),  # rows of 72 bytes: 8 at a time
        ((16, 33), "float32", None),  # rows of odd length: one by one
    ],
)
def test_a_tile_moves_in_the_widest_vectors_that_its_rows_allow(shape, dtype, vector, through):
    kernel = emulated(copying(shape, dtype, threads=64, through=through))
    source = kernel.get_kernel_source()
    if vector is None:
        assert "4*)" not in source
    else:
        assert f"*(device {vector}*)" in source
    A = elements(shape, dtype)
    C = torch.empty_like(A)
    kernel(A, C)
    assert torch.equal(A, C)


@pytest.mark.parametrize("extent", [1, 3, 31, 64, 100, 257])
def test_every_extent_is_covered_once(extent):
    kernel = emulated(copying((3, extent), "int32", threads=64, through="fragment"))
    A = elements((3, extent), "int32")
    C = torch.empty_like(A)
    kernel(A, C)
    assert torch.equal(A, C)


def test_an_extent_known_at_run_time_only_is_covered():
    @T.prim_func
    def main(A: T.Tensor((T.dynamic("n"),), "float32"), C: T.Tensor((T.dynamic("n"),), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(A.shape[0]):
                C[i] = A[i] + 1

    kernel = emulated(main)
    for n in (1, 63, 200):
        A = torch.randn(n)
        C = torch.empty(n)
        kernel(A, C)
        assert torch.equal(A + 1, C)


def test_what_all_threads_would_store_is_stored_once():
    @T.prim_func
    def main(A: T.Tensor((4,), "int32"), C: T.Tensor((4,), "int32")):
        with T.Kernel(4, threads=64) as bx:
            total = T.alloc_shared((1,), "int32")
            total[0] = A[bx] * 2
            C[bx] = total[0] + 1

    A = elements((4,), "int32")
    C = torch.empty_like(A)
    emulated(main)(A, C)  # two threads that write one element would be a race
    assert torch.equal(A * 2 + 1, C)


def test_iterations_that_several_threads_would_repeat_are_stored_once():
    @T.prim_func
    def main(A: T.Tensor((8, 32), "float32"), C: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=64):
            rows = T.alloc_fragment((8, 32), "float32")
            total = T.alloc_fragment((8,), "float32")
            T.copy(A, rows)
            T.reduce_sum(rows, total, dim=1)
            T.copy(total, C)

    A = torch.randn(8, 32)
    C = torch.empty(8)
    emulated(main)(A, C)
    torch.testing.assert_close(C, A.sum(1))


def where_positive(form):
    """Half of 128 threads have no element of 64."""

    @T.prim_func
    def tensor(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(64):
                if A[i] > 0:
                    A[i] = A[i] + 1

    @T.prim_func
    def atomic(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(64):
                if A[i] > 0:
                    T.atomic_add(A[i], 1.0)

    @T.prim_func
    def tile(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((64,), "float32")
            T.copy(A, s)
            for i in T.Parallel(64):
                if s[i] > 0:
                    s[i] = s[i] + 1
            T.copy(s, A)

    @T.prim_func
    def name(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((64,), "float32")
            T.copy(A, s)
            for i in T.Parallel(64):
                value = s[i]
                s[i] = T.if_then_else(value > 0, value + 1, value)
            T.copy(s, A)

    @T.prim_func
    def variable(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((64,), "float32")
            T.copy(A, s)
            for i in T.Parallel(64):
                value = T.alloc_var("float32")
                value = s[i]
                if value > 0:
                    s[i] = value + 1
            T.copy(s, A)

    @T.prim_func
    def fragment(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((64,), "float32")
            f = T.alloc_fragment((64,), "float32")
            T.copy(A, s)
            for i in T.Parallel(64):
                f[i] = s[i]
                if f[i] > 0:
                    s[i] = f[i] + 1
            T.copy(s, A)

    return locals()[form]


@pytest.mark.parametrize("form", ["tensor", "atomic", "tile", "name", "variable", "fragment"])
def test_threads_without_an_iteration_do_not_read_what_others_write(form):
    """Neither in conditions nor for names: the emulator reports the race."""
    A = torch.arange(-32.0, 32.0)
    expected = torch.where(A > 0, A + 1, A)
    emulated(where_positive(form))(A)
    assert torch.equal(A, expected)
    tvmtile.compile(where_positive(form), target={"kind": "cuda", "arch": "sm_80"})


@pytest.mark.parametrize(("rows", "columns", "threads"), [(3, 5, 128), (7, 3, 256), (6, 10, 64)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_small_tiles_are_changed_in_place(rows, columns, threads, dtype):
    @T.prim_func
    def main(A: T.Tensor((rows, columns), dtype), W: T.Tensor((rows, 16), dtype)):
        with T.Kernel(1, threads=threads):
            s = T.alloc_shared((rows, columns), dtype)
            wide = T.alloc_fragment((rows, 16), dtype)
            row = T.alloc_fragment((rows,), dtype)
            T.copy(A, s)
            T.copy(W, wide)
            T.reduce_max(wide, row, dim=1)
            for i, j in T.Parallel(rows, columns):
                difference = s[i, j] - row[i]
                s[i, j] = difference * difference
            T.copy(s, A)

    A, W = (
        torch.randint(-4, 5, shape).to(getattr(torch, dtype))
        for shape in ((rows, columns), (rows, 16))
    )
    expected = (A - W.amax(1, keepdim=True)) ** 2
    emulated(main)(A, W)
    assert torch.equal(A, expected)


@pytest.mark.parametrize("target", ["metal", {"kind": "cuda", "arch": "sm_80"}], ids=str)
@pytest.mark.parametrize("order", ["stored, then read", "read, then stored", "under a condition"])
@pytest.mark.parametrize(("rows", "columns", "threads"), [(8, 7, 128), (4, 4, 64), (40, 3, 256)])
def test_threads_that_repeat_an_iteration_see_what_one_of_them_stores(
    rows, columns, threads, order, target
):
    """A fragment has copies in several threads, the tile beside it has one."""
    shape = (rows, columns)

    @T.prim_func
    def main(A: T.Tensor(shape, "float32"), B: T.Tensor(shape, "float32"), keep: T.int32):
        with T.Kernel(1, threads=threads):
            s = T.alloc_shared(shape, "float32")
            f = T.alloc_fragment(shape, "float32")
            T.copy(A, s)
            T.copy(B, f)
            for _ in T.serial(3):
                for i, j in T.Parallel(*shape):
                    if order == "stored, then read":
                        s[i, j] = s[i, j] * 2
                        f[i, j] = f[i, j] + s[i, j]
                    elif order == "read, then stored":
                        f[i, j] = f[i, j] + s[i, j]
                        s[i, j] = s[i, j] * 2
                    elif i < keep:
                        s[i, j] = s[i, j] * 2
                        f[i, j] = f[i, j] + s[i, j]
                        s[i, j] = f[i, j]
            T.copy(f, B)
            T.copy(s, A)

    kernel = tvmtile.compile(main, target=target, execution_backend="emulator")
    A, B = (torch.randint(-4, 5, shape).float() for _ in range(2))
    s, f = A.clone(), B.clone()
    for _ in range(3):
        if order == "read, then stored":
            f += s
            s *= 2
        else:
            some = slice(None, 3 if order == "under a condition" else None)
            s[some] *= 2
            f[some] += s[some]
            if order == "under a condition":
                s[some] = f[some]
    kernel(A, B, 3)
    assert torch.equal(A, s)
    assert torch.equal(B, f)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_what_an_iteration_computes_by_itself_is_there_when_one_thread_stores_it(arch):
    """Three threads hold each sum; all read the tile before one of them stores to it."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 32), "float16"),
        B: T.Tensor((32, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=384):
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
            s = T.alloc_shared((64, 64), "float32")
            f = T.alloc_fragment((64, 64), "float32")
            own = T.alloc_local((1,), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.copy(C, s)
            T.gemm(a, b, f, clear_accum=True)
            for i, j in T.Parallel(64, 64):
                own[0] = 0
                for q in T.serial(2):
                    own[0] += s[i, j] * f[i, j]
                s[i, j] = own[0]
            T.copy(s, C)

    kernel = tvmtile.compile(
        main, target={"kind": "cuda", "arch": arch}, execution_backend="emulator"
    )
    A, B = torch.randint(-3, 4, (64, 32)).half(), torch.randint(-3, 4, (32, 64)).half()
    C = torch.randint(-3, 4, (64, 64)).float()
    expected = 2 * C * (A.float() @ B.float())
    kernel(A, B, C)
    assert torch.equal(C, expected)


def test_neighbours_that_are_computed_are_loaded_and_stored_at_once():
    @T.prim_func
    def main(
        A: T.Tensor((8, 64), "bfloat16"),
        B: T.Tensor((8, 64), "bfloat16"),
        C: T.Tensor((8, 64), "bfloat16"),
    ):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(8, 64):
                C[i, j] = A[i, j] * B[i, j]

    kernel = emulated(main)
    source = kernel.get_kernel_source()
    assert source.count("*(device uint4*)") == 6  # two rounds of two loads and a store
    A, B = torch.randn(8, 64).bfloat16(), torch.randn(8, 64).bfloat16()
    C = torch.empty_like(A)
    kernel(A, B, C)
    assert torch.equal(C, A * B)


def test_an_element_that_is_stored_and_then_loaded_is_the_stored_one():
    @T.prim_func
    def main(A: T.Tensor((256,), "float32"), C: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(256):
                C[i] = A[i]
                C[i] = C[i] * 2

    A = torch.randn(256)
    C = torch.zeros(256)
    emulated(main)(A, C)
    assert torch.equal(C, A * 2)


def test_a_guarded_load_is_not_done_outside_of_its_condition():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), C: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(128):
                C[i] = T.if_then_else(i < 64, A[i], T.float32(-1))

    A = torch.randn(64)
    C = torch.empty(128)
    emulated(main)(A, C)
    assert torch.equal(C, torch.cat([A, torch.full((64,), -1.0)]))


@pytest.mark.parametrize(
    ("dtype", "lanes", "vector"),
    [
        ("int8", 16, "uint4"),
        ("float16", 8, "uint4"),
        ("float32", 8, None),
        ("float32", 4, "float4"),
    ],
)
def test_vectors_of_the_user_have_any_dtype_and_any_number_of_lanes(dtype, lanes, vector):
    count = 64 * lanes

    @T.prim_func
    def main(A: T.Tensor((2, count), dtype), C: T.Tensor((2, count), dtype)):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((count,), dtype)
            own = T.alloc_local((lanes,), dtype)
            thread = T.get_thread_binding()
            for k in T.serial(2):
                for i in T.serial(2):
                    for v in T.vectorized(lanes):
                        own[v] = A[k, (i * 32 + thread) * lanes + v]
                    for v in T.vectorized(lanes):
                        tile[(i * 32 + thread) * lanes + v] = own[v]
                for i in T.Parallel(count):
                    C[k, i] = tile[count - 1 - i]

    kernel = emulated(main)
    if vector is not None:
        assert f"*(device {vector}*)" in kernel.get_kernel_source()
    A = elements((2, count), dtype)
    C = torch.empty_like(A)
    kernel(A, C)
    assert torch.equal(A.flip(1), C)


@pytest.mark.parametrize("per_byte", [2, 4])
def test_packed_values_are_loaded_as_words_and_stored_as_vectors(per_byte):
    """Values with names, and loads that several iterations share: how weights are unpacked."""
    bits = 8 // per_byte
    rows, columns = 16, 128

    @T.prim_func
    def main(
        W: T.Tensor((rows, columns // per_byte), "uint8"),
        scales: T.Tensor((rows, columns // 32), "float16"),
        C: T.Tensor((rows, columns), "float16"),
    ):
        with T.Kernel(1, threads=64):
            packed = T.alloc_shared((rows, columns // per_byte), "uint8")
            T.copy(W, packed)
            for i, j in T.Parallel(rows, columns):
                value = (packed[i, j // per_byte] >> (j % per_byte * bits)) & ((1 << bits) - 1)
                scale = scales[i, j // 32]
                C[i, j] = T.cast(value, "float16") * scale

    kernel = emulated(main)
    source = kernel.get_kernel_source()
    assert ("uchar packed_vector[4]" in source) == (per_byte == 2)  # the least is a word
    assert "(device uint4*)" in source
    W = torch.randint(256, (rows, columns // per_byte), dtype=torch.uint8)
    scales = torch.rand(rows, columns // 32).half()
    C = torch.empty(rows, columns, dtype=torch.float16)
    kernel(W, scales, C)
    shifts = torch.arange(per_byte) * bits
    values = ((W[..., None].int() >> shifts) & ((1 << bits) - 1)).flatten(1)
    assert torch.equal(C, (values.half() * scales.repeat_interleave(32, 1)))


def test_every_third_pair_is_loaded_by_itself():
    """Two iterations share a load, and the loads are no neighbours."""

    @T.prim_func
    def main(A: T.Tensor((16, 96), "float32"), C: T.Tensor((16, 64), "float32")):
        with T.Kernel(1, threads=64):
            for i, j in T.Parallel(16, 64):
                C[i, j] = A[i, j // 2 * 3]

    A, C = torch.randn(16, 96), torch.empty(16, 64)
    emulated(main)(A, C)
    assert torch.equal(C, A[:, ::3].repeat_interleave(2, 1))


def test_names_of_places_are_known_before_the_loads_that_use_them():
    @T.prim_func
    def main(A: T.Tensor((24, 96), "float32"), C: T.Tensor((24, 96), "float32")):
        with T.Kernel(2, threads=64) as bx:
            for i, j in T.Parallel(12, 96):
                row = bx * 12 + i
                value = A[row, j]
                C[row, j] = value / (1.0 + T.abs(value))

    kernel = emulated(main)
    assert "(device float4*)" in kernel.get_kernel_source()
    A, C = torch.randn(24, 96), torch.empty(24, 96)
    kernel(A, C)
    torch.testing.assert_close(C, A / (1 + A.abs()))


def test_a_place_that_is_loaded_is_known_before_what_lies_there():
    @T.prim_func
    def main(
        order: T.Tensor((128,), "int32"),
        A: T.Tensor((128,), "float32"),
        C: T.Tensor((128,), "float32"),
    ):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(128):
                place = order[i]
                C[i] = A[place]

    order, A, C = torch.randperm(128).int(), torch.randn(128), torch.empty(128)
    emulated(main)(order, A, C)
    assert torch.equal(C, A[order.long()])


def test_loads_move_as_vectors_beside_several_stores_to_registers():
    @T.prim_func
    def main(A: T.Tensor((32, 64), "float32"), C: T.Tensor((2, 32, 64), "float32")):
        with T.Kernel(1, threads=64):
            once = T.alloc_fragment((32, 64), "float32")
            squared = T.alloc_fragment((32, 64), "float32")
            for i, j in T.Parallel(32, 64):
                value = A[i, j]
                once[i, j] = value
                squared[i, j] = value * value
            T.copy(once, C[0, 0, 0])
            T.copy(squared, C[1, 0, 0])

    kernel = emulated(main)
    assert "= *(device float4*)(A_ptr" in kernel.get_kernel_source()
    A, C = torch.randn(32, 64), torch.empty(2, 32, 64)
    kernel(A, C)
    torch.testing.assert_close(C, torch.stack([A, A * A]))


def test_what_a_kernel_assumes_is_gone_on_a_gpu():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), n: T.int32):
        with T.Kernel(1, threads=64):
            T.assume(n > 0)
            for i in T.Parallel(64):
                A[i] = A[i] + n

    a = torch.zeros(64)
    emulated(main)(a, 3)
    assert a.tolist() == [3.0] * 64
    assert tvmtile.compile(main, target={"kind": "cuda", "arch": "sm_90a"}).cubin


def test_unrolled_loop_of_an_extent_that_only_a_call_knows():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), n: T.int32):
        with T.Kernel(1, threads=64):
            thread = T.get_thread_binding()
            for k in T.unroll(0, n, 2):
                A[thread] = A[thread] + k

    for kernel in (emulated(main), tvmtile.compile(main, target="llvm")):
        a = torch.zeros(64)
        kernel(a, 7)
        assert a.tolist() == [12.0] * 64


def test_a_guard_that_neighbours_share_stands_around_their_vector():
    @T.prim_func
    def main(A: T.Tensor((61, 96), "float16"), B: T.Tensor((61, 96), "float16")):
        with T.Kernel(2, threads=64) as by:
            tile = T.alloc_shared((32, 96), "float16")
            T.copy(A[by * 32, 0], tile)
            T.copy(tile, B[by * 32, 0])

    kernel = tvmtile.compile(main, target="metal", execution_backend="emulator")
    source = kernel.get_kernel_source()
    assert "B_ptr[" not in source
    a = torch.arange(61 * 96).half().reshape(61, 96)
    b = torch.zeros_like(a)
    kernel(a, b)
    assert torch.equal(a, b)


def test_columns_behind_the_end_of_a_row_are_left_out_a_vector_at_a_time():
    @T.prim_func
    def main(A: T.Tensor((40, 16), "float16"), B: T.Tensor((40, 16), "float16")):
        with T.Kernel(2, threads=64) as by:
            tile = T.alloc_shared((32, 64), "float16")
            T.copy(A[by * 32, 0], tile)
            for i, j in T.Parallel(32, 64):
                if by * 32 + i < 40 and j < 16:
                    B[by * 32 + i, j] = tile[i, j]

    kernel = emulated(main)
    source = kernel.get_kernel_source()
    assert "A_ptr[" not in source
    assert "B_ptr[" not in source
    a = torch.arange(40 * 16).half().reshape(40, 16)
    b = torch.zeros_like(a)
    kernel(a, b)
    assert torch.equal(a, b)


@pytest.mark.parametrize(("channels", "is_vector"), [(32, True), (8, True), (12, False)])
def test_a_patch_of_an_image_is_gathered_in_vectors_of_its_channels(channels, is_vector):
    """Where a row of a patch starts and ends follows from quotients that eight channels share."""
    height, width, size, rows = 5, 6, 3, 64
    columns = size * size * channels

    @T.prim_func
    def main(
        X: T.Tensor((height, width, channels), "float16"),
        Y: T.Tensor((rows, columns), "float16"),
    ):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((rows, 24), "float16")
            for step in T.serial(T.ceildiv(columns, 24)):
                for i, j in T.Parallel(rows, 24):
                    k = step * 24 + j
                    y = i // width + k // (size * channels) - 1
                    x = i % width + k % (size * channels) // channels - 1
                    inside = (y >= 0) and (y < height) and (x >= 0) and (x < width)
                    tile[i, j] = T.if_then_else(inside, X[y, x, k % channels], T.cast(0, "float16"))
                T.copy(tile, Y[0, step * 24])

    kernel = emulated(main)
    assert ("X_ptr[" not in kernel.get_kernel_source()) == is_vector
    X, Y = torch.randn(height, width, channels).half(), torch.empty(rows, columns).half()
    kernel(X, Y)
    padded = torch.zeros(16, width + 2, channels).half()
    padded[1 : height + 1, 1 : width + 1] = X
    patches = padded.unfold(0, size, 1).unfold(1, size, 1).permute(0, 1, 3, 4, 2)
    assert torch.equal(Y, patches.reshape(-1, columns)[:rows])


def test_conditions_on_the_outer_loops_are_looked_at_outside_of_the_inner_ones():
    """Of a fragment of 4 x 8 elements a thread, that end where rows and columns do."""
    m, n = T.dynamic("m, n")

    @T.prim_func
    def main(A: T.Tensor((m, n), "float32"), C: T.Tensor((m, n), "float32")):
        with T.Kernel(T.ceildiv(m, 64), threads=64) as bx:
            tile = T.alloc_fragment((64, 32), "float32")
            for k in T.serial(2):
                T.copy(A[bx * 64, k * 32], tile)
            T.copy(tile, C[bx * 64, 0])

    kernel = emulated(main)
    _, outer, inner = kernel.get_kernel_source().rsplit("for (", 2)
    assert outer.count("arg.m[0]") == inner.count("arg.n[0]) {") == inner.count("C_ptr[") == 1
    assert "arg.m[0]" not in inner
    a, c = torch.randn(70, 45), torch.zeros(70, 45)
    kernel(a, c)
    assert torch.equal(c[:, :13], a[:, 32:])


@pytest.mark.parametrize(
    ("target", "backend"), [("metal", "emulator"), ({"kind": "cuda", "arch": "sm_90a"}, "auto")]
)
def test_source_does_not_grow_with_the_share_of_a_thread(target, backend):
    def kilobytes(rows):
        @T.prim_func
        def main(A: T.Tensor((rows, 32), "float32"), C: T.Tensor((rows, 32), "float32")):
            with T.Kernel(1, threads=32):
                tile = T.alloc_shared((rows, 32), "float32")
                T.copy(A, tile)
                for i, j in T.Parallel(rows, 32):
                    tile[i, j] = T.exp(tile[i, j]) / (1.0 + T.abs(tile[i, j] * A[i, j]))
                T.copy(tile, C)

        kernel = tvmtile.compile(main, target=target, execution_backend=backend)
        return len(kernel.get_kernel_source()) / 1000

    assert kilobytes(256) < kilobytes(64)
