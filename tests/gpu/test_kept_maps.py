"""Launches find the tensor maps of earlier ones, and no other tensor's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.ops import programs

pytestmark = [
    pytest.mark.sm90,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="a launch takes a GPU"),
]

TARGET = {"kind": "cuda", "arch": "sm_90a"}
WIDTH = 256


@pytest.fixture(scope="module")
def multiply():
    program = programs.matmul(T.dynamic("M"), WIDTH, WIDTH, "bfloat16", target=TARGET)
    return tvmtile.compile(program, target=TARGET)


def matrix(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def check(multiply, a, b, c):
    multiply(a, b, c)
    expected = a.float() @ b.float()
    torch.testing.assert_close(c.float(), expected, atol=0.05 * WIDTH**0.5, rtol=0.02)


def test_tensors_of_one_address_and_other_shapes(multiply):
    memory = [matrix(512 * WIDTH) for _ in range(2)]
    b = matrix(WIDTH, WIDTH)
    for rows in (512, 64, 511, 64, 512, 1, 300):
        a, c = (flat[: rows * WIDTH].view(rows, WIDTH) for flat in memory)
        c.fill_(float("nan"))
        check(multiply, a, b, c)


def test_more_tensors_than_are_kept(multiply):
    a, c = matrix(128, WIDTH), matrix(128, WIDTH)
    weights = [matrix(WIDTH, WIDTH) for _ in range(200)]
    for _ in range(2):
        for b in weights:
            check(multiply, a, b, c)


def test_threads_share_a_kernel(multiply):
    def calls(seed):
        with torch.cuda.stream(torch.cuda.Stream()):
            for step in range(50):
                rows = 1 + (37 * seed + 61 * step) % 256
                check(multiply, matrix(rows, WIDTH), matrix(WIDTH, WIDTH), matrix(rows, WIDTH))
            torch.cuda.current_stream().synchronize()
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(calls, range(4)))


def test_a_graph_has_the_maps_of_its_capture(multiply):
    a, b, c = matrix(128, WIDTH), matrix(WIDTH, WIDTH), matrix(128, WIDTH)
    check(multiply, a, b, c)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        multiply(a, b, c)
    for _ in range(100):
        check(multiply, matrix(64, WIDTH), matrix(WIDTH, WIDTH), matrix(64, WIDTH))
    a.copy_(matrix(128, WIDTH))
    c.zero_()
    graph.replay()
    expected = a.float() @ b.float()
    torch.testing.assert_close(c.float(), expected, atol=0.05 * WIDTH**0.5, rtol=0.02)
