"""StageOverlaps: operators whose operands are names of one memory."""

import pytest
import torch
from tvm import ir
from tvm_ffi import structural_equal

import tvmtile
import tvmtile.language as T
from tvmtile.passes import Legalize, StageOverlaps

OPTIONS = {
    "llvm": {"target": "llvm"},
    "metal": {"target": "metal", "execution_backend": "emulator"},
    "sm_80": {"target": {"kind": "cuda", "arch": "sm_80"}, "execution_backend": "emulator"},
}


@T.prim_func
def transposed(A: T.Tensor((32, 32), "float32")):
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((32, 32), "float32")
        again = T.reshape(s, (32, 32))
        T.copy(A, s)
        T.transpose(s, again)
        T.copy(s, A)


@T.prim_func
def summed(A: T.Tensor((32, 32), "float32")):
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((32, 32), "float32")
        again = T.reshape(s, (32, 32))
        T.copy(A, s)
        T.cumsum(s, again, dim=0)
        T.copy(s, A)


@T.prim_func
def multiplied(A: T.Tensor((32, 32), "float32")):
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((32, 32), "float32")
        b = T.alloc_shared((32, 32), "float32")
        again = T.view(a, (32, 32), "float32")
        T.copy(A, a)
        T.copy(A, b)
        T.gemm(a, b, again, clear_accum=True)
        T.copy(a, A)


MEANING = {
    "transposed": (transposed, lambda a: a.T),
    "summed": (summed, lambda a: a.cumsum(0)),
    "multiplied": (multiplied, lambda a: a @ a),
}


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", list(OPTIONS))
@pytest.mark.parametrize("name", list(MEANING))
def test_all_is_read_before_a_view_of_it_is_written(name, target):
    program, meaning = MEANING[name]
    A = torch.randint(-3, 4, (32, 32)).float()
    expected = meaning(A).contiguous()
    tvmtile.compile(program, **OPTIONS[target])(A)
    assert torch.equal(A, expected)


def test_an_operator_on_one_name_stays_as_it_is():
    @T.prim_func
    def main(A: T.Tensor((32, 32), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((32, 32), "float32")
            T.copy(A, s)
            T.cumsum(s, dim=0)
            T.copy(s, A)

    before = Legalize(ir.IRModule({"main": main.with_attr("global_symbol", "main")}))
    assert structural_equal(before, StageOverlaps(before))
