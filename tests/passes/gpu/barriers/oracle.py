"""What tests of barriers share: an oracle that finds races, and random programs.

The oracle executes a program for all threads between barriers, and remembers for each element of memory
which threads have touched it since the last barrier. What is copied asynchronously is touched when it
is waited for, and by nobody before.
"""

from __future__ import annotations

import itertools
import operator
import random
from collections import defaultdict

import numpy as np
import pytest
from tvm import DataType, ir, tirx
from tvm.target import Target
from tvm_ffi import structural_walk

from tvmtile.ir.annotations import ARRIVE_COUNT, BARRIER_ID
from tvmtile.ir.barriers import is_barrier
from tvmtile.ir.kernels import Launch, is_kernel, statements_of, with_statements
from tvmtile.passes import InsertBarriers, LowerAsyncWork

SIMDGROUP = 32
ATOMIC = -1
DEVICE_BARRIERS = ("tvmtile_threadgroup_barrier", "tvmtile_simdgroup_barrier")


class RaceFound(Exception):
    """Two threads met at an element."""


class NotArrived(Exception):
    """An element was touched while it was copied."""


class Oracle:
    """Executes the kernel of a function: its stores, loops and branches, on indices alone.

    Barriers order threadgroup memory, and device memory too if they say so or the target is none that
    asks them to say so. The tensors of `ignored` are not looked at. What indices and bounds read of the
    function's parameters is in `arguments`, torch tensors in their order.
    """

    def __init__(self, func, ignored=(), arguments=()):
        func = LowerAsyncWork(ir.IRModule({"main": func}))["main"]
        kernels = []
        structural_walk(
            func.body, (tirx.For, lambda node: kernels.append(node) if is_kernel(node) else None)
        )
        self.launch = Launch(kernels[0])
        self.fenced = is_for_metal(func)
        self.ignored = set(ignored)
        self.known = {}
        for param, tensor in zip(func.params, arguments, strict=False):
            self.known[param] = tensor
            shapes = zip(getattr(param.ty, "shape", ()), getattr(tensor, "shape", ()), strict=False)
            self.known.update((extent, n) for extent, n in shapes if isinstance(extent, ir.Var))
        self.touched = {}
        self.groups = {}  # of copies that a thread has committed and not waited for, oldest first
        self.issued = {}  # by thread: the elements of copies that are not committed
        self.pending = set()  # the elements of all of these copies
        self.barriers = 0
        self.stores = 0

    def run(self):
        environments = [
            {**self.known, **{var: int(value.value) for var, value in indices.items()}}
            for indices in self.launch.all_threads()
        ]
        for environment in environments:
            environment.update({loop.loop_var: 0 for loop in self.launch.blocks})
            environment["thread"] = sum(
                environment[loop.loop_var] * scale
                for loop, scale in zip(
                    self.launch.threads_fastest_first, (1, 1 << 10, 1 << 20), strict=False
                )
            )
        self.statement(self.launch.body, environments)
        return self

    def statement(self, stmt, threads):
        if isinstance(stmt, tirx.SeqStmt):
            for child in stmt.seq:
                self.statement(child, threads)
        elif is_any_barrier(stmt):
            self.barrier(stmt, threads)
        elif isinstance(stmt, tirx.Bind):
            for thread in threads:
                thread[stmt.var] = value(stmt.value, thread)
        elif isinstance(stmt, tirx.For):
            self.loop(stmt, threads)
        elif isinstance(stmt, tirx.While):
            while value(stmt.condition, threads[0]):
                self.statement(stmt.body, threads)
        elif isinstance(stmt, tirx.AttrStmt):
            self.statement(stmt.body, threads)
        elif isinstance(stmt, tirx.Evaluate) and isinstance(stmt.value, ir.Call):
            self.call(stmt.value, threads)
        elif isinstance(stmt, tirx.IfThenElse):
            taken = [bool(value(stmt.condition, thread)) for thread in threads]
            self.both(stmt, threads, taken)
        elif isinstance(stmt, tirx.BufferStore) and is_variable(stmt.buffer):
            for thread in threads:
                thread[stmt.buffer] = {(0,): value(stmt.value, thread)}
        elif isinstance(stmt, tirx.BufferStore):
            self.stores += 1
            for thread in threads:
                self.reads(stmt.value, thread)
            for thread in threads:
                self.touch(stmt.buffer, stmt.indices, thread, writes=True)

    def both(self, stmt, threads, taken):
        for case, wanted in ((stmt.then_case, True), (stmt.else_case, False)):
            some = [thread for thread, took in zip(threads, taken, strict=True) if took is wanted]
            if case is not None and some:
                self.statement(case, some)

    def loop(self, loop, threads):
        first, count = value(loop.min, threads[0]), value(loop.extent, threads[0])
        for number in range(count):
            for thread in threads:
                thread[loop.loop_var] = first + number
            self.statement(loop.body, threads)

    def barrier(self, stmt, threads):
        self.barriers += 1
        who, orders_device = meaning(stmt)
        number, count = (stmt.value.attrs or {}).get(BARRIER_ID, 0), self.launch.num_threads
        groups = defaultdict(list)
        for thread in threads:
            is_simdgroup = who == "simdgroup"
            at = thread["thread"] // SIMDGROUP if is_simdgroup else value(number, thread)
            groups[at].append(thread["thread"])
        if who == "block":
            count = int((stmt.value.attrs or {}).get(ARRIVE_COUNT, count))
            sizes = {len(group) for group in groups.values()}
            assert sizes == {count}, "not all threads come to a barrier"
        waiting = [sum(1 << thread for thread in group) for group in groups.values()]
        for place, uses in list(self.touched.items()):
            if place[0] == "global" and self.fenced and not orders_device:
                continue
            if who == "block" and count == self.launch.num_threads:
                del self.touched[place]
            for use, seen in uses.items():
                # Who waits with one that has seen a use has seen it, too.
                uses[use] = seen | sum(group for group in waiting if group & seen)

    # Instructions with addresses, and groups of copies -----------------------------------------------

    def call(self, call, threads):
        name = call.op.name.removeprefix("tirx.ptx.")
        if name == "cp_async_wait_group":
            self.wait(int(call.args[0]), threads)
        elif name == "cp_async_commit_group":
            for thread in threads:
                me = thread["thread"]
                self.groups.setdefault(me, []).append(self.issued.pop(me, []))
        elif name == "tvmtile.atomic":
            for thread in threads:
                load = call.args[0]
                indices = [value(index, thread) for index in load.indices]
                self.touch_place(place_of(load.source, indices), thread["thread"], store=ATOMIC)
        elif name.startswith("cp_async"):
            self.stores += 1
            for thread in threads:
                self.issue(call, thread)
        elif name == "ldmatrix":
            for thread in threads:
                first = thread["thread"] // SIMDGROUP * SIMDGROUP
                for lane in (
                    first,
                    first + SIMDGROUP - 1,
                ):  # any thread of the warp may read the row
                    for place in self.row(address_in(call), thread, 16):
                        self.touch_place(place, lane)

    def issue(self, call, thread):
        me = thread["thread"]
        for place in self.row(call.args[0], thread, int(call.args[2])):
            self.touch_place(place, me, store=self.stores, arrives=False)
            self.issued.setdefault(me, []).append(place)
            self.pending.add(place)

    def wait(self, in_flight, threads):
        for thread in threads:
            me = thread["thread"]
            groups = self.groups.setdefault(me, [])
            arrived = groups[: len(groups) - in_flight] if in_flight else groups
            self.groups[me] = groups[len(arrived) :]
            self.stores += 1
            for place in itertools.chain(*arrived):
                self.pending.discard(place)
                self.touched.setdefault(place, {})[me, self.stores] = 1 << me

    def row(self, address, thread, size):
        """The elements at an address."""
        found = []
        structural_walk(address, (ir.TensorLoad, found.append))
        buffer, indices = found[0].source, [value(index, thread) for index in found[0].indices]
        count = size * 8 // int(DataType(str(buffer.ty.dtype)).bits)
        *outer, last = indices
        for number in range(last, last + count):
            rows, column = divmod(number, int(buffer.ty.shape[-1])) if outer else (0, number)
            yield place_of(buffer, [*outer[:-1], *(row + rows for row in outer[-1:]), column])

    # Elements ---------------------------------------------------------------------------------------

    def reads(self, expression, thread):
        loads = []
        structural_walk(expression, (ir.TensorLoad, loads.append))
        for load in loads:
            self.touch(load.source, load.indices, thread, writes=False)

    def touch(self, buffer, indices, thread, *, writes):
        if buffer.name in self.ignored or buffer.ty.storage_scope.startswith("local"):
            return
        *outer, last = indices
        row = [value(index, thread) for index in outer]
        count = int(last.lanes) if isinstance(last, tirx.Ramp) else 1
        first = value(last.base if isinstance(last, tirx.Ramp) else last, thread)
        for lane in range(count):
            place = place_of(buffer, [*row, first + lane])
            self.touch_place(place, thread["thread"], store=self.stores if writes else 0)

    def touch_place(self, place, me, *, store=0, arrives=True):
        """One element; the same store and atomic updates are no race among themselves."""
        if place in self.pending:
            raise NotArrived(f"{place} is touched by {me} before it has arrived")
        uses = self.touched.setdefault(place, {})
        for (other, earlier), seen in uses.items():
            if store != earlier and not seen >> me & 1:
                raise RaceFound(f"{place}: threads {other} and {me}")
        if arrives:
            uses[me, store] = 1 << me


def is_variable(buffer):
    """Whether every thread has one integer of its own there."""
    is_one = [int(extent) for extent in buffer.ty.shape] == [1]
    return is_one and buffer.ty.storage_scope.startswith("local") and buffer.ty.dtype == "int32"


def address_in(call):
    """The address that an instruction is given, among its registers."""
    return next(argument for argument in call.args if isinstance(argument, ir.Call))


def place_of(buffer, indices):
    """An element of memory."""
    return (buffer.ty.storage_scope, buffer.name, *indices)


def value(expression, environment):
    """The value of an expression of integers."""
    if isinstance(expression, int | tirx.IntImm | tirx.FloatImm):
        return int(getattr(expression, "value", expression))
    if isinstance(expression, ir.Var):
        return environment[expression]
    if isinstance(expression, tirx.Not):
        return not value(expression.a, environment)
    if isinstance(expression, tirx.Cast):
        return held(expression.ty.dtype, value(expression.value, environment))
    if isinstance(expression, ir.TensorLoad):
        place = tuple(value(index, environment) for index in expression.indices)
        return int(environment[expression.source][place])
    if isinstance(expression, ir.Call) and expression.op.name == "prim.if_then_else":
        condition, yes, no = expression.args
        return value(yes if value(condition, environment) else no, environment)
    operation = _OPERATIONS[type(expression)]
    result = operation(value(expression.a, environment), value(expression.b, environment))
    return held(expression.ty.dtype, result)


_OPERATIONS = {
    **{node: getattr(operator, name) for name, node in {
        "add": tirx.Add, "sub": tirx.Sub, "mul": tirx.Mul, "floordiv": tirx.FloorDiv,
        "mod": tirx.FloorMod, "lt": tirx.LT, "le": tirx.LE, "gt": tirx.GT, "ge": tirx.GE,
        "eq": tirx.EQ, "ne": tirx.NE, "and_": tirx.And, "or_": tirx.Or, "xor": ir.prim.BitwiseXor,
        "lshift": ir.prim.LShift, "rshift": ir.prim.RShift,
    }.items()},
    ir.prim.BitwiseAnd: operator.and_, tirx.Min: min, tirx.Max: max,
}  # fmt: skip


def held(dtype, number):
    """A number as a register of integers holds it."""
    return number if dtype == "bool" else int(np.array(number).astype(str(dtype)))


# Barriers -------------------------------------------------------------------------------------------


def with_pass(func):
    return InsertBarriers(ir.IRModule({"main": func}))["main"]


def for_metal(func):
    return func.with_attr("target", Target("metal"))


def is_for_metal(func):
    target = func.attrs.get("target") if func.attrs is not None else None
    return target is not None and target.kind.name == "metal"


def orders_device(stmt):
    """Tell whether a statement is one of Metal's barriers that order device memory."""
    return (
        isinstance(stmt, tirx.Evaluate)
        and isinstance(stmt.value, ir.Call)
        and isinstance(stmt.value.op, ir.Op)
        and stmt.value.op.name == "tirx.call_extern"
        and stmt.value.args[0].value in DEVICE_BARRIERS
    )


def is_any_barrier(stmt):
    return is_barrier(stmt) or orders_device(stmt)


def meaning(stmt):
    """Whose threads wait for each other at a barrier, and whether that orders device memory."""
    name = str(stmt.value.args[0].value)
    if orders_device(stmt):
        return ("simdgroup" if "simdgroup" in name else "block"), True
    return ("simdgroup" if name == "warp" else "block"), False


def barriers_in(func):
    found = []
    structural_walk(
        func.body,
        (tirx.Evaluate, lambda node: found.append(node) if is_any_barrier(node) else None),
    )
    return found


def meanings(func):
    return [meaning(barrier) for barrier in barriers_in(func)]


def without(stmt, number):
    """A statement without one of its barriers, and how many came before its end."""
    if is_any_barrier(stmt):
        return (tirx.Evaluate(tirx.const(0, "int32")) if number == 0 else stmt), number - 1
    children = []
    for child in statements_of(stmt):
        child, number = without(child, number)
        children.append(child)
    return (with_statements(stmt, children) if children else stmt), number


def executed(func, ignored=()):
    """How many barriers a block executes; no race is found."""
    return Oracle(func, ignored).run().barriers


def assert_each_is_needed(func, ignored=()):
    for number in range(len(barriers_in(func))):
        fewer = func.with_body(without(func.body, number)[0])
        with pytest.raises(RaceFound):
            Oracle(fewer, ignored).run()


# Random programs ------------------------------------------------------------------------------------


class Programs:
    """Random programs of a few threads: loops, branches, versions of two tiles.

    Parameters
    ----------
    seed : int
        Of the random choices.
    scopes : tuple of str
        Where the tiles are: `shared`, or `global`, where they are parameters.
    """

    def __init__(self, seed, scopes=("shared", "shared")):
        self.random = random.Random(seed)
        self.thread = tirx.Var("tx", "int32")
        self.block = tirx.Var("bx", "int32")
        self.tiles = [
            tirx.decl_buffer((2, 8), "float32", name=name, scope=scope)
            for name, scope in zip("ST", scopes, strict=True)
        ]
        self.out = tirx.decl_buffer((8,), "float32", name="C")
        self.threads = self.random.choice([2, 4, 64])

    def program(self):
        shared = [tile for tile in self.tiles if tile.ty.storage_scope == "shared"]
        tensors = [tile for tile in self.tiles if tile.ty.storage_scope == "global"]
        body = tirx.SeqStmt([*(tirx.AllocBuffer(tile) for tile in shared), *self.statements([], 0)])
        for var, extent, tag in (
            (self.thread, self.threads, "threadIdx.x"),
            (self.block, 1, "blockIdx.x"),
        ):
            axis = tirx.IterVar(
                ir.Range.from_min_extent(0, extent),
                tirx.Var(tag, "int32"),
                tirx.IterVar.ThreadIndex,
                tag,
            )
            notes = {"tvmtile.kernel": True} if tag == "blockIdx.x" else {}
            zero, count = tirx.const(0, "int32"), tirx.const(extent, "int32")
            body = tirx.For(var, zero, count, tirx.ForKind.THREAD_BINDING, body, axis, notes)
        return tirx.PrimFunc([*tensors, self.out], body)

    def statements(self, loops, depth):
        return [self.statement(loops, depth) for _ in range(self.random.randint(2, 4))]

    def statement(self, loops, depth):
        kind = self.random.random()
        if depth < 2 and kind < 0.25:
            return self.loop(loops, depth)
        if depth < 2 and kind < 0.4:
            return self.branch(loops, depth)
        if kind < 0.45:
            return tirx.Evaluate(tirx.call_intrin("void", "tirx.tvm_storage_sync", "shared"))
        if kind < 0.75:
            tile = self.random.choice(self.tiles)
            return tirx.BufferStore(tile, tirx.const(1.0, "float32"), self.place(loops))
        tile = self.random.choice(self.tiles)
        return tirx.BufferStore(
            self.out, tirx.BufferLoad(tile, self.place(loops)), [self.thread % 8]
        )

    def place(self, loops):
        tx = self.thread
        version = self.random.choice(
            [tirx.const(0, "int32"), tirx.const(1, "int32"), *loops, *loops]
        )
        shift = self.random.choice([0, 0, 1])
        wrapped = tirx.Cast("int32", tirx.Cast("uint8", tx * 36)) // 4
        hashed = tirx.Cast("uint32", tx) * tirx.const(2654435761, "uint32")
        columns = [tx % 8, tx % 8, 7 - tx % 8, (tx + 1) % 8, (tx % 4) * 2, tx % 8 ^ 1, *loops]
        columns += [wrapped, tirx.Cast("int32", hashed >> tirx.const(29, "uint32"))]
        column = self.random.choice(columns)
        return [(version + shift) % 2, column % 8]

    def loop(self, loops, depth):
        var = tirx.Var("ijk"[depth], "int32")
        extent = tirx.const(self.random.randint(1, 4), "int32")
        if loops and self.random.random() < 0.3:
            extent = loops[-1]
        body = tirx.SeqStmt(self.statements([*loops, var], depth + 1))
        return tirx.For(var, tirx.const(0, "int32"), extent, tirx.ForKind.SERIAL, body)

    def branch(self, loops, depth):
        then = tirx.SeqStmt(self.statements(loops, depth + 1))
        if loops and self.random.random() < 0.6:
            other = tirx.SeqStmt(self.statements(loops, depth + 1))
            some = self.random.choice([other, None])
            return tirx.IfThenElse(loops[-1] < self.random.randint(1, 3), then, some)
        store = tirx.BufferStore(self.tiles[0], tirx.const(1.0, "float32"), self.place(loops))
        return tirx.IfThenElse(self.thread < self.random.randint(1, self.threads), store, None)
