"""Programs that only some targets took or computed right: every one agrees with the CPU."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import DataRace

TARGETS = {
    "metal": {"target": "metal", "execution_backend": "emulator"},
    "sm_80": {"target": {"kind": "cuda", "arch": "sm_80"}, "execution_backend": "emulator"},
    "sm_90a": {"target": {"kind": "cuda", "arch": "sm_90a"}, "execution_backend": "emulator"},
}


def results(program, target, *arguments):
    """What a target leaves in the arguments, and what the CPU does."""
    own, expected = ([x.clone() for x in arguments] for _ in range(2))
    tvmtile.compile(program, target="llvm")(*expected)
    tvmtile.compile(program, **TARGETS[target])(*own)
    return own, expected


@pytest.mark.full
@pytest.mark.parametrize("stages", [0, 2, 3])
@pytest.mark.parametrize("target", TARGETS)
def test_steps_between_a_copy_that_runs_ahead_and_its_use(target, stages):
    """An elementwise step on another tile before it, and an atomic behind it; ragged columns."""

    @T.prim_func
    def program(
        A: T.Tensor((40, 23), "float32"),
        B: T.Tensor((8, 40), "float32"),
        C: T.Tensor((40, 98), "float32"),
        D: T.Tensor((40, 98), "float32"),
    ):
        with T.Kernel(T.ceildiv(98, 33), threads=32) as bx:
            T.use_swizzle(2, order="col")
            tile = T.alloc_shared((40, 8), "float32")
            turned = T.alloc_shared((8, 40), "float32")
            kept = T.alloc_fragment((40, 33), "float32")
            T.fill(kept, 2)
            T.fill(turned, 0)
            for k in T.Pipelined(T.ceildiv(23, 8), num_stages=stages):
                T.copy(A[0, k * 8], tile)
                for i, j in T.Parallel(40, 33):
                    kept[i, j] = T.max(T.min((kept[i, j] - 3) * kept[i, j], 4), -4)
                for i, j in T.Parallel(8, 40):
                    turned[i, j] += tile[j, i]
                for i, j in T.Parallel(40, 33):
                    T.atomic_min(C[i, bx * 33 + j], kept[i, j])
            T.copy(kept, D[0, bx * 33])
            if bx == 0:
                T.copy(turned, B)

    a = torch.randint(-8, 8, (40, 23)).float()
    own, expected = results(
        program, target, a, torch.zeros(8, 40), torch.ones(40, 98), torch.zeros(40, 98)
    )
    sums = torch.nn.functional.pad(a, (0, 1)).view(40, 3, 8).sum(1).T
    assert torch.equal(own[1], sums)
    for mine, theirs in zip(own, expected, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_choice_of_a_remainder_in_a_fragment(target, dtype):
    @T.prim_func
    def program(A: T.Tensor((32, 16), "float32"), C: T.Tensor((32, 16), dtype)):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((32, 16), "float32")
            f = T.alloc_fragment((32, 16), dtype)
            T.copy(A, s)
            for i, j in T.Parallel(32, 16):
                f[i, j] = T.if_then_else(s[i, j] > 0, T.cast((i * 5 + 1) % 7, "float32"), s[i, j])
            T.copy(f, C)

    a = torch.randint(-8, 8, (32, 16)).float()
    own, expected = results(program, target, a, torch.zeros(32, 16).to(getattr(torch, dtype)))
    i = torch.arange(32)[:, None].expand(32, 16)
    assert torch.equal(own[1].float(), torch.where(a > 0, ((i * 5 + 1) % 7).float(), a))
    assert torch.equal(own[1], expected[1])


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", TARGETS)
def test_barriers_whose_number_is_computed(target):
    @T.prim_func
    def program(A: T.Tensor((4, 64), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((64,), "int32")
            tile[tx] = tx
            for k in T.serial(4):
                T.sync_threads(k + 1, 64)
                A[k, tx] = tile[(tx + 17) % 64]
                T.sync_threads(k % 2 + 5, 64)
                tile[tx] = A[k, tx] * 3 % 101

    own, expected = results(program, target, torch.zeros(4, 64, dtype=torch.int32))
    tile, rows = torch.arange(64), []
    for _ in range(4):
        rows.append(tile.roll(-17))
        tile = rows[-1] * 3 % 101
    assert torch.equal(own[0].long(), torch.stack(rows))
    assert torch.equal(own[0], expected[0])


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("target", TARGETS)
def test_extrema_of_narrow_floats_in_vectors(target, dtype):
    @T.prim_func
    def program(
        A: T.Tensor((32, 4), dtype), B: T.Tensor((32, 4), dtype), C: T.Tensor((4, 32, 4), dtype)
    ):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            for v in T.vectorized(4):
                C[0, tx, v] = T.min(A[tx, v], B[tx, v])
            for v in T.vectorized(4):
                C[1, tx, v] = T.max(A[tx, v], B[tx, v])
            for v in T.vectorized(4):
                C[2, tx, v] = T.clamp(A[tx, v], T.cast(-1, dtype), T.cast(2, dtype))
            for i, j in T.Parallel(32, 4):
                C[3, i, j] = T.max(T.min(A[i, j], B[i, j]), T.cast(0, dtype))

    kind = getattr(torch, dtype)
    a, b = (torch.randint(-8, 8, (32, 4)).float().to(kind) for _ in "ab")
    own, expected = results(program, target, a, b, torch.zeros(4, 32, 4).to(kind))
    x, y = a.float(), b.float()
    least = torch.minimum(x, y)
    wanted = torch.stack([least, torch.maximum(x, y), x.clamp(-1, 2), least.clamp(min=0)])
    assert torch.equal(own[2].float(), wanted)
    assert torch.equal(expected[2].float(), wanted)


def test_a_shared_tile_of_an_extent_that_each_call_gives():
    n = T.dynamic("n")

    @T.prim_func
    def program(A: T.Tensor((n,), "float32"), C: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((n,), "float32")
            T.copy(A, tile)
            for i in T.Parallel(n):
                C[i] = tile[n - 1 - i] * 2

    kernel = tvmtile.compile(program, target="llvm")
    for length in (64, 4096, 1, 100_000, 7):
        a = torch.randn(length)
        c = torch.zeros(length)
        kernel(a, c)
        assert torch.equal(c, a.flip(0) * 2)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("where", ["shared", "fragment"])
@pytest.mark.parametrize("target", ["llvm", "metal", "sm_90a"])
def test_the_source_of_a_copy_grows_with_its_text(target, where):
    """Columns that only a call knows, against columns that need as many guards on a GPU."""

    def size(columns):
        @T.prim_func
        def program(A: T.Tensor((32, columns), "float32"), C: T.Tensor((32, columns), "float32")):
            with T.Kernel(1, 2, threads=64) as (_, by):
                T.use_swizzle(2)
                if where == "shared":
                    tile = T.alloc_shared((16, 32), "float32")
                else:
                    tile = T.alloc_fragment((16, 32), "float32")
                T.copy(A[by * 16, 0], tile)
                T.copy(tile, C[by * 16, 0])

        options = TARGETS.get(target, {"target": "llvm"})
        return len(tvmtile.compile(program, **options).get_kernel_source())

    assert size(T.dynamic("columns")) < 3 * size(40 if target == "llvm" else 23)


@pytest.mark.full
@pytest.mark.parametrize("threads", [1, 2, 48])
@pytest.mark.parametrize("target", TARGETS)
def test_a_few_threads(target, threads):
    @T.prim_func
    def program(A: T.Tensor((8, 24), "float32"), C: T.Tensor((24,), "float32")):
        with T.Kernel(1, threads=threads):
            tile = T.alloc_shared((8, 24), "float32")
            own = T.alloc_fragment((8, 24), "float32")
            sums = T.alloc_fragment((24,), "float32")
            T.copy(A, tile)
            T.copy(tile, own)
            for i, j in T.Parallel(8, 24):
                own[i, j] = own[i, j] * 2 + tile[7 - i, j]
            T.reduce_sum(own, sums, dim=0)
            T.copy(sums, C)

    a = torch.randint(-8, 8, (8, 24)).float()
    own, expected = results(program, target, a, torch.zeros(24))
    assert torch.equal(own[1], a.sum(0) * 3)
    assert torch.equal(own[1], expected[1])


def bitonic_sort(exchanges):
    """Threads whose numbers differ in one bit exchange elements; `exchanges` says which of them do."""

    @T.prim_func
    def program(X: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((64,), "float32")
            t = T.get_thread_binding(0)
            s[t] = X[t]
            T.sync_threads()
            for k in T.serial(6):
                for j in T.serial(k + 1):
                    other = t ^ (1 << (k - j))
                    if exchanges(t, other):
                        if (s[t] > s[other]) == ((t & (2 << k)) == 0):
                            kept = s[t]
                            s[t] = s[other]
                            s[other] = kept
                    T.sync_threads()
            X[t] = s[t]

    return program


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS)
def test_a_bitonic_sort_by_threads(target):
    """Who exchanges elements depends on two loops, one as long as the variable of the other says."""
    x = torch.randn(64)
    program = bitonic_sort(lambda t, other: other > t)
    for (sorted_,) in results(program, target, x):
        torch.testing.assert_close(sorted_, x.sort()[0])
    with pytest.raises(DataRace, match="that others write in the same statement"):
        tvmtile.compile(bitonic_sort(lambda t, other: other != t), **TARGETS[target])
