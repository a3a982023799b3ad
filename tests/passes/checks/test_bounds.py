"""Accesses that certainly lie outside are found, also where all but one node was looked at before."""

import pytest
import tvm
import tvm_ffi
from tvm import ir, tirx

import tvmtile
import tvmtile.language as L
from tvmtile._tvm import mutated, walk
from tvmtile.passes import Verifier
from tvmtile.passes.checks import bounds, verify
from tvmtile.passes.checks.bounds import OutsideAccesses
from tvmtile.passes.checks.verify import tensors_within_bounds, tiles_within_bounds


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch):
    monkeypatch.setattr(bounds, "_SOUND", bounds._Sound())


A = tirx.decl_buffer((8,), "int32", "A")
i, n = tirx.Var("i", "int32"), tirx.Var("n", "int32")
ACCESS = tirx.BufferStore(A, i, [i])
NOTHING = tirx.Evaluate(tirx.const(0, "int32"))


def loop(start, extent, body=ACCESS):
    return tirx.For(i, start, extent, tirx.ForKind.SERIAL, body)


def when(condition, then=ACCESS, otherwise=None):
    return tirx.IfThenElse(condition, then, otherwise)


def named(value):
    return tirx.SeqStmt([tirx.Bind(i, tirx.const(value, "int32")), ACCESS])


def chosen(*cases):
    return tirx.Evaluate(tirx.if_then_else(IS_SMALL, *cases))


def func(body):
    return tirx.PrimFunc([A, n], body)


READ, ZERO = tirx.BufferLoad(A, [i]), tirx.const(0, "int32")
IS_SMALL, IS_LARGE, IS_ASKED = i < 8, i >= 8, n > 0
BOTH = tirx.SeqStmt([NOTHING, ACCESS])
PAIRS = {
    "first iteration": (loop(0, 8), loop(8, 8)),
    "first iteration, of a branch": (loop(0, 8, when(IS_ASKED)), loop(8, 8, when(IS_ASKED))),
    "condition": (loop(0, 16, when(IS_SMALL)), loop(0, 16, when(IS_LARGE))),
    "case": (
        loop(0, 16, when(IS_SMALL, ACCESS, NOTHING)),
        loop(0, 16, when(IS_SMALL, NOTHING, ACCESS)),
    ),
    "condition of a loop": (loop(0, 16, when(IS_SMALL, BOTH)), loop(8, 16, BOTH)),
    "value of a name": (named(0), named(8)),
    "case of an expression": (loop(0, 16, chosen(READ, ZERO)), loop(0, 16, chosen(ZERO, READ))),
    "code that is reached": (
        loop(8, 8, when(IS_SMALL, when(IS_ASKED))),
        loop(8, 8, when(IS_LARGE, when(IS_ASKED))),
    ),
    "number of iterations": (loop(8, 0), loop(8, 1)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_another_surrounding_of_the_same_access(pair):
    sound, mistaken = map(func, PAIRS[pair])
    for _ in range(2):
        assert OutsideAccesses().check(sound) == []
        assert OutsideAccesses().check(mistaken) == ["A[i] int32 lies outside A[8] int32"]


def test_a_mistake_beside_what_is_not_reached():
    unreached = tirx.IfThenElse(i < 0, ACCESS, None)
    body = tirx.SeqStmt([unreached, ACCESS, unreached])
    assert OutsideAccesses().check(func(loop(8, 8, unreached))) == []
    assert OutsideAccesses().check(func(loop(8, 8, body))) == ["A[i] int32 lies outside A[8] int32"]


def test_what_is_ignored_is_part_of_what_is_known():
    program = func(loop(8, 8))
    for _ in range(2):
        assert list(tiles_within_bounds(program)) == []
        assert list(tensors_within_bounds(program)) == ["A[i] int32 lies outside A[8] int32"]


def test_no_more_is_kept_than_a_number(monkeypatch):
    monkeypatch.setattr(bounds, "_MOST_KEPT", 4)
    for start in range(20):
        found = OutsideAccesses().check(func(loop(start, 1)))
        assert found == (["A[i] int32 lies outside A[8] int32"] if start >= 8 else [])
        assert len(bounds._SOUND._surroundings) <= 4
        assert len(bounds._SOUND._statements) <= 4


def test_swizzled_indices_have_bounds(monkeypatch):
    """Bounds prove first: the rewriter takes longer."""
    tile = tirx.decl_buffer((16,), "int32", "tile")
    swizzled = tirx.bitwise_xor(i % 8, tirx.bitwise_and(i // 8, tirx.const(7, "int32")))
    monkeypatch.setattr(
        OutsideAccesses, "_is_proven", lambda *_: pytest.fail("the rewriter was asked")
    )
    for index in (swizzled, swizzled + 8, tirx.bitwise_xor(swizzled, tirx.const(8, "int32"))):
        assert OutsideAccesses().check(func(loop(0, 64, tirx.BufferStore(tile, i, [index])))) == []


# In a lowering ------------------------------------------------------------------------------------


@L.prim_func
def product(
    A: L.Tensor((64, 64), "float16"), B: L.Tensor((64, 64), "float16"), C: L.Tensor((60, 64))
):
    with L.Kernel(2, threads=64) as block:
        tile = L.alloc_shared((32, 32), "float16")
        other = L.alloc_shared((32, 64), "float16")
        sums = L.alloc_fragment((32, 64), "float32")
        L.clear(sums)
        for k in L.Pipelined(2, num_stages=2):
            L.copy(A[block * 32, k * 32], tile)
            L.copy(B[k * 32, 0], other)
            L.gemm(tile, other, sums)
        L.copy(sums, C[block * 32, 0])


def programs_after_passes(target):
    """Each program that the verifier checks, in a lowering in which all is right."""
    checked = []
    real = verify.Verifier._check_new

    def check(self, name, program, *established):
        before = checked[-1] if checked else None
        real(self, name, program, *established)
        if before is None or not tvm_ffi.structural_equal(before, program):
            checked.append(program)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify.Verifier, "_check_new", check)
        with tvm.transform.PassContext(instruments=[Verifier()]):
            tvmtile.compile(product, target=target)
    return checked


def one_index_moved(program, number):
    """The program with the first index of one of its stores behind the end; None where it has fewer."""
    count = 0

    def move(store, mutator):
        nonlocal count
        count += 1
        if count != number + 1:
            return mutator.default_mutate(store)
        first, *rest = store.indices
        index = (first.base if isinstance(first, tirx.Ramp) else first) * 0
        index += store.buffer.ty.shape[0]
        if isinstance(first, tirx.Ramp):
            index = tirx.Ramp(index, first.stride, first.lanes)
        return tirx.BufferStore(store.buffer, store.value, [index, *rest])

    mistaken = program.with_body(mutated(program.body, (tirx.BufferStore, move)))
    return mistaken if count > number else None


@pytest.mark.full
@pytest.mark.parametrize(
    "target", ["llvm", {"kind": "cuda", "arch": "sm_80"}, {"kind": "cuda", "arch": "sm_90a"}]
)
def test_a_mistake_in_any_store_after_any_pass(target):
    checked = programs_after_passes(target)
    assert len(checked) > 8
    mistakes = 0
    for program in checked:
        number = 0
        while (mistaken := one_index_moved(program, number)) is not None:
            number += 1
            found = list(tensors_within_bounds(mistaken))
            assert found or not afresh(mistaken)
            mistakes += bool(found)
    assert mistakes > 100


def afresh(program):
    """A result found without knowledge of other programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "_SOUND", bounds._Sound())
        return list(tensors_within_bounds(program))


def test_only_what_is_new_is_looked_at(monkeypatch):
    """Work is counted, not time: accesses in all programs, and those that were looked at."""
    looked_at = 0
    real = OutsideAccesses._note

    def note(*args):
        nonlocal looked_at
        looked_at += 1
        return real(*args)

    monkeypatch.setattr(OutsideAccesses, "_note", note)
    *_, last = checked = programs_after_passes({"kind": "cuda", "arch": "sm_90a"})
    in_lowering, looked_at = looked_at, 0
    for program in checked:
        afresh(program)
    assert in_lowering < 0.6 * looked_at
    looked_at = 0
    assert OutsideAccesses().check(last) == []
    assert looked_at == 0
    assert OutsideAccesses().check(one_index_moved(last, 3)) != []
    accesses = []
    walk(last.body, ((ir.TensorLoad, tirx.BufferStore), accesses.append))
    assert 0 < looked_at < len(accesses) / 10
