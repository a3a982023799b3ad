"""Programs on an NVIDIA GPU, against float64."""

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.metal.programs import assert_close

pytestmark = pytest.mark.gpu


def on_gpu(program):
    major, minor = torch.cuda.get_device_capability()
    suffix = "a" if major >= 9 else ""
    return tvmtile.compile(program, target={"kind": "cuda", "arch": f"sm_{major}{minor}{suffix}"})


def random(*shape, dtype):
    if dtype.startswith("int"):
        return torch.randint(-8, 8, shape, device="cuda").to(getattr(torch, dtype))
    return torch.randn(shape, device="cuda").to(getattr(torch, dtype))


def product(m, n, k, block, dtype, accum, out, transposes=(False, False), threads=128, **options):
    block_m, block_n, block_k = block
    left, right = (k, m) if transposes[0] else (m, k), (n, k) if transposes[1] else (k, n)
    a_tile = (block_k, block_m) if transposes[0] else (block_m, block_k)
    b_tile = (block_n, block_k) if transposes[1] else (block_k, block_n)
    stages = options.pop("stages", 0)

    @T.prim_func
    def main(A: T.Tensor(left, dtype), B: T.Tensor(right, dtype), C: T.Tensor((m, n), out)):
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=threads) as (bx, by):
            a = T.alloc_shared(a_tile, dtype)
            b = T.alloc_shared(b_tile, dtype)
            c = T.alloc_fragment((block_m, block_n), accum)
            T.clear(c)
            for step in T.Pipelined(T.ceildiv(k, block_k), num_stages=stages):
                if transposes[0]:
                    T.copy(A[step * block_k, by * block_m], a)
                else:
                    T.copy(A[by * block_m, step * block_k], a)
                if transposes[1]:
                    T.copy(B[bx * block_n, step * block_k], b)
                else:
                    T.copy(B[step * block_k, bx * block_n], b)
                T.gemm(a, b, c, transpose_A=transposes[0], transpose_B=transposes[1], **options)
            T.copy(c, C[by * block_m, bx * block_n])

    return main


@pytest.mark.parametrize("transposes", [(a, b) for a in (False, True) for b in (False, True)])
@pytest.mark.parametrize(
    ("dtype", "accum", "out", "precision"),
    [
        ("float16", "float32", "float32", "float32"),
        ("float16", "float16", "float16", "float16"),
        ("bfloat16", "float32", "bfloat16", "bfloat16"),
        ("float32", "float32", "float32", "float16"),  # tf32 has the mantissa of float16
        ("int8", "int32", "int32", ""),
        ("float64", "float64", "float64", "float32"),
    ],
)
@pytest.mark.parametrize("extents", [(128, 128, 128), (100, 72, 88)])
@pytest.mark.parametrize("stages", [0, 3])
def test_product(dtype, accum, out, precision, transposes, extents, stages):
    m, n, k = extents
    block = (32, 32, 32) if dtype == "float64" else (64, 64, 64)
    kernel = on_gpu(product(m, n, k, block, dtype, accum, out, transposes, stages=stages))
    A = random(*((k, m) if transposes[0] else (m, k)), dtype=dtype)
    B = random(*((n, k) if transposes[1] else (k, n)), dtype=dtype)
    C = torch.empty(m, n, device="cuda", dtype=getattr(torch, out))
    kernel(A, B, C)
    left, right = (A.T if transposes[0] else A), (B.T if transposes[1] else B)
    assert_close(C.cpu(), (left.double() @ right.double()).cpu(), precision or "float32")


@pytest.mark.parametrize("policy", list(T.GemmWarpPolicy))
@pytest.mark.parametrize("threads", [32, 64, 128, 256])
def test_policies(policy, threads):
    program = product(
        128, 128, 64, (64, 128, 32), "float16", "float32", "float32", threads=threads, policy=policy
    )
    A, B = random(128, 64, dtype="float16"), random(64, 128, dtype="float16")
    C = torch.empty(128, 128, device="cuda")
    on_gpu(program)(A, B, C)
    assert_close(C.cpu(), (A.double() @ B.double()).cpu(), "float32")


@pytest.mark.parametrize(("rows", "columns", "block"), [(64, 1024, 4), (33, 100, 8), (5, 4096, 1)])
def test_softmax(rows, columns, block):
    @T.prim_func
    def main(X: T.Tensor((rows, columns), "float16"), Y: T.Tensor((rows, columns), "float16")):
        with T.Kernel(T.ceildiv(rows, block), threads=128) as bx:
            x = T.alloc_fragment((block, columns), "float32")
            largest = T.alloc_fragment((block,), "float32")
            total = T.alloc_fragment((block,), "float32")
            T.copy(X[bx * block, 0], x)
            T.reduce_max(x, largest, dim=1)
            for i, j in T.Parallel(block, columns):
                x[i, j] = T.exp(x[i, j] - largest[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(block, columns):
                x[i, j] = x[i, j] / total[i]
            T.copy(x, Y[bx * block, 0])

    X = random(rows, columns, dtype="float16")
    Y = torch.empty_like(X)
    on_gpu(main)(X, Y)
    assert_close(Y.cpu(), torch.softmax(X.double(), 1).cpu(), "float16")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head", [64, 128])
@pytest.mark.parametrize("stages", [1, 2])
def test_attention(causal, head, stages):
    batch, length, heads, rows, columns = 2, 256, 2, 64, 64
    shape = (batch, length, heads, head)
    scale = 1.44269504 / head**0.5
    policy = T.GemmWarpPolicy.FullRow

    @T.prim_func
    def main(
        Q: T.Tensor(shape, "float16"),
        K: T.Tensor(shape, "float16"),
        V: T.Tensor(shape, "float16"),
        O: T.Tensor(shape, "float16"),
    ):
        with T.Kernel(T.ceildiv(length, rows), heads, batch, threads=128) as (bx, by, bz):
            q = T.alloc_shared((rows, head), "float16")
            k = T.alloc_shared((columns, head), "float16")
            v = T.alloc_shared((columns, head), "float16")
            scores = T.alloc_fragment((rows, columns), "float32")
            weights = T.alloc_fragment((rows, columns), "float16")
            out = T.alloc_fragment((rows, head), "float32")
            largest = T.alloc_fragment((rows,), "float32")
            before = T.alloc_fragment((rows,), "float32")
            shrink = T.alloc_fragment((rows,), "float32")
            part = T.alloc_fragment((rows,), "float32")
            total = T.alloc_fragment((rows,), "float32")
            T.copy(Q[bz, bx * rows : (bx + 1) * rows, by, :], q)
            T.clear(out)
            T.clear(total)
            T.fill(largest, -T.infinity("float32"))
            steps = T.ceildiv((bx + 1) * rows, columns) if causal else T.ceildiv(length, columns)
            for step in T.Pipelined(steps, num_stages=stages):
                T.copy(K[bz, step * columns : (step + 1) * columns, by, :], k)
                T.copy(V[bz, step * columns : (step + 1) * columns, by, :], v)
                for i, j in T.Parallel(rows, columns):
                    visible = bx * rows + i >= step * columns + j if causal else True
                    scores[i, j] = T.if_then_else(visible, 0, -T.infinity("float32"))
                T.gemm(q, k, scores, transpose_B=True, policy=policy)
                T.copy(largest, before)
                T.reduce_max(scores, largest, dim=1, clear=False)
                for i in T.Parallel(rows):
                    shrink[i] = T.exp2((before[i] - largest[i]) * scale)
                for i, j in T.Parallel(rows, head):
                    out[i, j] *= shrink[i]
                for i, j in T.Parallel(rows, columns):
                    scores[i, j] = T.exp2((scores[i, j] - largest[i]) * scale)
                T.copy(scores, weights)
                T.gemm(weights, v, out, policy=policy)
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(rows):
                    total[i] = total[i] * shrink[i] + part[i]
            for i, j in T.Parallel(rows, head):
                out[i, j] /= total[i]
            T.copy(out, O[bz, bx * rows : (bx + 1) * rows, by, :])

    q, k, v = (random(*shape, dtype="float16") for _ in range(3))
    out = torch.empty_like(q)
    on_gpu(main)(q, k, v, out)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.double().transpose(1, 2) for x in (q, k, v)), is_causal=causal
    )
    assert_close(out.cpu(), expected.transpose(1, 2).cpu(), "float16")
