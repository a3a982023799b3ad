"""BatchGlobalLoads: a thread that copies by elements loads several before it stores the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, indices_of, mutated
from tvmtile.ir.kernels import flattened, with_kernels
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import (
    contains,
    for_loop,
    has_effect,
    retyped,
    seq,
    substitute,
    with_fresh_variables,
)
from tvmtile.ir.scopes import is_global, is_private, is_shared

_MOST_ELEMENTS = 32
"""That are loaded at once: each is in a register of its own until its word is put together."""


@prim_func_pass("BatchGlobalLoads", requires=(Property.NO_PARALLEL, Property.NO_FRAGMENTS))
def BatchGlobalLoads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Split loops that load the elements of a word and store it, so that all loads come first.

    Rows that begin anywhere are loaded by elements, and stored to a tile by words. A store waits for
    its loads, and the compiler of the source moves few of the next ones before it, so that a thread
    would wait for memory once a word. At most 32 elements are loaded at once. What is loaded lies in
    global memory, what is stored in shared memory, so their order is free.
    """

    def visit(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        copy = _copy_by_words(loop)
        return mutator.default_mutate(loop) if copy is None else copy.split()

    return with_kernels(func, lambda kernel: mutated(kernel, (tirx.For, visit)))


@dataclass(frozen=True)
class _Copy:
    """An unrolled loop that loads a word in each iteration, and stores it."""

    loop: tirx.For
    at_once: int
    """Iterations whose loads come first, a batch of them."""
    batches: int
    word: ir.Var
    """The array of its elements."""
    load: tirx.Stmt
    store: list[tirx.Stmt]
    """Names of the memory among them."""

    def split(self) -> tirx.Stmt:
        words = retyped(self.word, shape=(self.at_once * self.word.ty.shape[0],))
        arrays = {self.word: words}
        for stmt in self.store:
            if isinstance(stmt, tirx.DeclBuffer) and _is_view(stmt, self.word):
                shape = (self.at_once * buffer_of(stmt).ty.shape[0],)
                arrays[buffer_of(stmt)] = retyped(buffer_of(stmt), shape=shape)
        variable = self.loop.loop_var
        number = ir.Var(variable.name, variable.ty)
        batch = ir.Var(f"{variable.name}_batch", variable.ty)
        place = batch * self.at_once + number if self.batches > 1 else number

        def of_all(stmts: list[tirx.Stmt]) -> tirx.Stmt:
            body = _with_arrays(seq(stmts), arrays, words, number)
            loop = for_loop(number, self.at_once, body, tirx.ForKind.UNROLLED)
            return with_fresh_variables(substitute(loop, {variable: place}))

        stmts = seq([tirx.AllocBuffer(words), of_all([self.load]), of_all(self.store)])
        return stmts if self.batches == 1 else for_loop(batch, self.batches, stmts, self.loop.kind)


def _with_arrays(
    stmt: tirx.Stmt, arrays: dict[ir.Var, ir.Var], words: ir.Var, number: ir.Var
) -> tirx.Stmt:
    """Statements of one word, for that of an iteration among all `words`."""

    def places(array: ir.Var, indices: Sequence[ir.Expr]) -> list[ir.Expr]:
        (index,) = indices
        first = number * array.ty.shape[0]
        if isinstance(index, tirx.Ramp):
            return [tirx.Ramp(first + index.base, index.stride, index.lanes)]
        return [first + index]

    def load(node: ir.TensorLoad, mutator: Mutator) -> ir.Expr:
        if buffer_of(node) not in arrays:
            return mutator.default_mutate(node)
        return tirx.BufferLoad(arrays[buffer_of(node)], places(buffer_of(node), indices_of(node)))

    def store(node: tirx.BufferStore, mutator: Mutator) -> tirx.Stmt:
        result = mutator.default_mutate(node)
        if buffer_of(node) not in arrays:
            return result
        place = places(buffer_of(node), indices_of(node))
        return tirx.BufferStore(arrays[buffer_of(node)], result.value, place, span=node.span)

    def declare(node: tirx.DeclBuffer, mutator: Mutator) -> tirx.Stmt:
        if buffer_of(node) not in arrays:
            return mutator.default_mutate(node)
        return tirx.DeclBuffer(arrays[buffer_of(node)], data=words.data, span=node.span)

    return mutated(
        stmt, (ir.TensorLoad, load), (tirx.BufferStore, store), (tirx.DeclBuffer, declare)
    )


def _copy_by_words(loop: tirx.For) -> _Copy | None:
    count = constant(loop.extent)
    if loop.kind != tirx.ForKind.UNROLLED or not count or constant(loop.min) != 0:
        return None
    parts = list(flattened(loop.body))
    if len(parts) < 3 or not isinstance(parts[0], tirx.AllocBuffer):
        return None
    word, load, *store = buffer_of(parts[0]), *parts[1:]
    size = constant(word.ty.shape[0]) if is_private(word) and len(word.ty.shape) == 1 else None
    if not size or not _loads(load, word) or not _stores(store, word):
        return None
    most = max(1, _MOST_ELEMENTS // size)
    at_once = max(number for number in range(1, most + 1) if count % number == 0)
    return _Copy(loop, at_once, count // at_once, word, load, store) if at_once > 1 else None


def _loads(stmt: tirx.Stmt, word: ir.Var) -> bool:
    """Tell whether a statement is a loop that only loads elements of tensors into the word."""
    if not isinstance(stmt, tirx.For) or not isinstance(stmt.body, tirx.BufferStore):
        return False
    value = stmt.body.value
    loads = contains(value, ir.TensorLoad)
    others = contains(value, ir.TensorLoad, lambda load: not is_global(buffer_of(load)))
    return buffer_of(stmt.body).same_as(word) and loads and not others and not has_effect(value)


def _stores(stmts: list[tirx.Stmt], word: ir.Var) -> bool:
    """Tell whether statements are names of memory and a store of the word to shared memory."""
    *names, last = stmts
    if not isinstance(last, tirx.BufferStore) or not is_shared(buffer_of(last)):
        return False
    declared = [name for name in names if isinstance(name, tirx.DeclBuffer)]
    views = {word, *(buffer_of(name) for name in declared if _is_view(name, word))}
    is_word = isinstance(last.value, ir.TensorLoad) and buffer_of(last.value) in views
    return is_word and len(declared) == len(names)


def _is_view(declaration: tirx.DeclBuffer, array: ir.Var) -> bool:
    return tvm_ffi.structural_equal(declaration.data, array.data)
