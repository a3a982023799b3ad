"""The meaning of a program of the fuzzer, found by interpreting its text with numpy.

It shares no code with the compiler but the index functions by which operators are declared, which
`tests/tileop/test_moves.py` compares with numpy. The text is parsed by Python's `ast`, tile operators
are numpy on whole arrays, a `T.Parallel` is evaluated for all its iterations at once. Blocks run one by
one.
A program that has no meaning (see `tests.fuzz.memory` and `tests.fuzz.values`) raises `Invalid`.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, get_type_hints

import numpy as np

import tvmtile.language as T
from tests.fuzz.expressions import Expressions
from tests.fuzz.memory import Buffer, Lanes, Owners, View
from tests.fuzz.operators import OPERATORS, Access, declared, neutral, reduce, scan, updated
from tests.fuzz.values import Invalid, Value, literal
from tests.fuzz.warps import EXCHANGES, exchanged
from tvmtile.ir.operators import all_operators
from tvmtile.tileop.elementwise_operator import ElementwiseOp, Ignored, In, Out, Scalar

__all__ = ["Interpreter"]

_OF_ROWS = ("gather_rows", "scatter_rows", "gather4", "scatter4")
_SERIAL = ("Pipelined", "serial", "unroll", "vectorized", "Serial", "Unroll", "Vectorized", "range")
_HINTS = (
    "use_swizzle",
    "annotate_layout",
    "annotate_safe_value",
    "annotate_min_blocks_per_sm",
    "annotate_persistent",
    "annotate_warp_specialize",
    "assume",
    "fence_proxy_async",
    "no_set_max_nreg",
    "mbarrier_arrive",
    "mbarrier_wait_parity",
    "ptx_commit_group",
    "ptx_wait_group",
    "sync_threads",
    "tma_store_wait",
    "barrier_arrive",
    "barrier_wait",
    "cp_async_barrier_noinc",
    "wait_wgmma",
    "warpgroup_arrive",
    "warpgroup_commit_batch",
    "warpgroup_fence_operand",
    "warpgroup_wait",
)
"""Functions that make a program fast, or wait for copies, which are done where they begin."""
_OF_THREADS = ("get_thread_binding", "thread_return", "ws", *EXCHANGES)
"""Functions that name threads."""
_IGNORED = (
    "annotations",
    "barrier",
    "coalesced_width",
    "disable_tma",
    "eviction_policy",
    "impl",
    "k_pack",
    "wg_wait",
)
"""Options of operators that change how fast they are."""
_SCOPES = {
    "alloc_shared": "shared",
    "alloc_fragment": "fragment",
    "alloc_local": "local",
    "alloc_reducer": "fragment",
    "alloc_barrier": "shared",
}


class Interpreter(Expressions):
    """One call of a program.

    Parameters
    ----------
    source : str
        The text of a module with `@T.prim_func def main`, and perhaps macros.
    sizes : mapping
        The values of its dynamic extents.
    arguments : mapping
        For each parameter, the elements of a tensor or a number.
    """

    def __init__(self, source: str, sizes: Mapping[str, int], arguments: Mapping[str, Any]) -> None:
        module = ast.parse(source)
        self._functions = {f.name: f for f in module.body if isinstance(f, ast.FunctionDef)}
        self.names = {name: literal(size, "int32") for name, size in sizes.items()}
        self.lanes = Lanes.all_of(1)
        self._globals = dict(self.names)
        self.block = 0
        self._reducers: dict[Buffer, str] = {}  # and how they combine
        self._comers: dict[Buffer, np.ndarray] = {}  # of fragments, the lanes that have one
        self._in_parallel = False
        self._threads: tuple[int, ...] = ()  # of a kernel that names them, in its own code
        self._ended = np.zeros(1, bool)  # lanes that have left the loop at hand
        self._returned = np.zeros(1, bool)  # threads that have ended
        self.tensors: dict[str, Buffer] = {}
        for arg in self._functions["main"].args.args:
            self._bind_argument(arg, arguments[arg.arg])

    def run(self) -> dict[str, Buffer]:
        """Run the program; the result has its tensors."""
        self._body(self._functions["main"].body)
        return self.tensors

    def _bind_argument(self, arg: ast.arg, given: Any) -> None:
        note = arg.annotation
        if isinstance(note, ast.Call):
            assert isinstance(note.args[0], ast.Tuple)
            shape = tuple(self.integer(extent) for extent in note.args[0].elts)
            buffer = Buffer(arg.arg, shape, ast.literal_eval(note.args[-1]), "global")
            buffer.fill(np.asarray(given))
            self.names[arg.arg] = self.tensors[arg.arg] = buffer
            return
        assert isinstance(note, ast.Attribute)
        self.names[arg.arg] = literal(given, note.attr)

    # Statements ----------------------------------------------------------------------------------

    def _body(self, statements: list[ast.stmt]) -> None:
        """Run statements; a lane that meets `continue` leaves `self.lanes`."""
        for statement in statements:
            if not self.lanes.runs.any():
                return
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.With(items=[ast.withitem(context_expr=ast.Call() as call)]) if _is_ws(call):
                groups = self.thread(0).data // 128
                named = np.isin(groups, [self.integer(arg) for arg in call.args])
                with self.within(Lanes(self.lanes.runs & named, self.lanes.maybe)):
                    self._scoped(node.body)
            case ast.With(
                items=[ast.withitem(context_expr=ast.Call() as call, optional_vars=names)]
            ):
                self._kernel(call, names, node.body)
            case ast.For(iter=ast.Call() as call):
                self._loop(node, call)
            case ast.If():
                self._branch(node)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                found = [self._made("", value) for value in values]
                for target, value in zip(targets, found, strict=True):
                    self._put(target, value)
            case ast.Assign(
                targets=[target],
                value=ast.Call(
                    func=ast.Attribute(attr="max" | "min" as kind), args=[earlier, value]
                ),
            ) if ast.unparse(earlier) == ast.unparse(target) and self._accumulated(
                target, kind, value
            ):
                pass
            case ast.Assign(targets=[target], value=value):
                self._put(target, self._made(ast.unparse(target), value))
            case ast.AugAssign(target=target, value=value) if self._is_reduced(target):
                self._atomic("add", target, value)
            case ast.AugAssign(target=target, op=op, value=value):
                if not (isinstance(op, ast.Add) and self._accumulated(target, "add", value)):
                    self._put(target, self.value(ast.BinOp(_as_load(target), op, value)))
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="thread_return"))):
                self._returned |= self.lanes.runs
                self.lanes = Lanes(np.zeros_like(self.lanes.runs), self.lanes.maybe)
            case ast.Expr(value=ast.Call() as call):
                self._perform(call)
            case ast.While():
                self._while(node)
            case ast.Break():
                if (self.lanes.runs & self.lanes.maybe).any():
                    raise Invalid("a loop that may or may not be left")
                self._ended |= self.lanes.runs
                self.lanes = Lanes(np.zeros_like(self.lanes.runs), self.lanes.maybe)
            case ast.Continue():
                stay = self.lanes.runs & self.lanes.maybe
                self.lanes = Lanes(stay, self.lanes.maybe)
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case _:
                raise Invalid(f"the interpreter does not know {ast.unparse(node)}")

    def _kernel(self, call: ast.Call, names: ast.expr | None, body: list[ast.stmt]) -> None:
        extents = [self.integer(extent) for extent in call.args]
        for tensor in self.tensors.values():
            tensor.block_owners = Owners(tensor.size)
        targets = names.elts if isinstance(names, ast.Tuple) else [names] if names else []
        outer = dict(self.names)
        for indices in itertools.product(*map(range, reversed(extents))):
            self.block += 1
            self.names = dict(outer)
            for target, index in zip(targets, reversed(indices), strict=bool(targets)):
                self._bind(target, literal(index, "int32"))
            with self._as_threads(call, body):
                self._body(body)
        self.names = outer

    # Threads -------------------------------------------------------------------------------------

    @contextmanager
    def _as_threads(self, call: ast.Call, body: list[ast.stmt]) -> Iterator[None]:
        """Code by thread index: a lane is a thread; all are done with a statement before the next."""
        if not any(f"T.{name}(" in ast.unparse(body) for name in _OF_THREADS):
            yield
            return
        given = next(ast.literal_eval(k.value) for k in call.keywords if k.arg == "threads")
        self._threads = given if isinstance(given, tuple) else (given,)
        self.lanes, self._in_parallel = Lanes.all_of(int(np.prod(self._threads))), True
        self._returned = ~self.lanes.runs
        yield
        self.lanes, self._in_parallel, self._threads = Lanes.all_of(1), False, ()

    def thread(self, axis: int) -> Value:
        """The index of each thread of a block."""
        strides = np.cumprod((1, *self._threads))
        data = np.arange(strides[-1]) // strides[axis] % self._threads[axis]
        return Value(data, np.zeros(data.shape), "int32")

    @contextmanager
    def _as_block(self) -> Iterator[None]:
        """Work that threads share: what they all know is known, what differs between them is not."""
        outer = self.names, self.lanes, self._in_parallel, self._threads
        known = {name: self._common(found) for name, found in self.names.items()}
        self.names = {name: found for name, found in known.items() if found is not None}
        self.lanes, self._in_parallel, self._threads = Lanes.all_of(1), False, ()
        yield
        self.names, self.lanes, self._in_parallel, self._threads = outer

    def _is_of_threads(self, call: ast.Call) -> bool:
        """Each thread does by itself what is done to an array or a variable that each has one of.

        So it does what depends on the thread; a fragment that this fills is one of each thread, too.
        """
        named = {n.id: n in call.args[1:2] for n in ast.walk(call) if isinstance(n, ast.Name)}
        found = {name: self.names[name] for name in named if name in self.names}
        is_of_each = any(
            self._common(f) is None
            or (isinstance(f, Buffer) and f.private and bool(f.shape or named[name]))
            for name, f in found.items()
        )
        for name, filled in found.items() if is_of_each else ():
            if named[name] and isinstance(filled, Buffer) and filled.scope == "fragment":
                filled.give_each(self.lanes.runs.size)
        return is_of_each

    @contextmanager
    def _as_thread(self, lane: int) -> Iterator[None]:
        """The state of one thread that works for itself."""
        outer = self.names, self.lanes, self._in_parallel, self._threads
        self.names = {name: _of_lane(found, lane) for name, found in self.names.items()}
        self.lanes, self._in_parallel, self._threads = Lanes.all_of(1), False, ()
        yield
        self.names, self.lanes, self._in_parallel, self._threads = outer

    def _common(self, found: Any) -> Any:
        if isinstance(found, Buffer) and found.private:
            if found.shape or not found.defined.all():
                return None
            found = Value(found.data, found.error, found.dtype)
        if not isinstance(found, Value) or not found.data.ndim:
            return found
        data, error = found.data[self.lanes.runs], found.error[self.lanes.runs]
        return Value(data[0], error[0], found.dtype) if np.all(data == data[0]) else None

    def _bind(self, target: ast.expr, value: Value) -> None:
        assert isinstance(target, ast.Name)
        self.names[target.id] = value

    def _branch(self, node: ast.If) -> None:
        condition = self.condition(node.test)
        if not self._in_parallel:
            if not condition.exact:
                raise Invalid("a branch of a block is uncertain")
            self._scoped(node.body if condition.data.all() else node.orelse)
            return
        outer = self.lanes
        rest = Lanes(np.zeros_like(outer.runs), np.zeros_like(outer.maybe))
        for body, wanted in ((node.body, True), (node.orelse, False)):
            entered = outer.where(condition, wanted)
            self.lanes = entered
            self._scoped(body)
            left = entered.runs & ~self.lanes.runs
            # A lane that may have left goes on, and may not.
            skipped = self._doubtful(body) & entered.maybe
            runs = self.lanes.runs | (left & entered.maybe)
            rest = rest.joined(Lanes(runs, outer.maybe | skipped))
        self.lanes = Lanes(rest.runs & outer.runs, rest.maybe & outer.runs)

    @staticmethod
    def _doubtful(body: list[ast.stmt]) -> bool:
        return any(isinstance(n, ast.Continue) for s in body for n in ast.walk(s))

    def _scoped(self, body: list[ast.stmt]) -> None:
        """Run a body whose names are unknown after it."""
        outer = dict(self.names)
        self._body(body)
        self.names = outer

    # Loops ---------------------------------------------------------------------------------------

    def _loop(self, node: ast.For, call: ast.Call) -> None:
        name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr  # type: ignore[attr-defined]
        if name == "Parallel" and self._threads:
            with self._as_block():
                self._parallel(node)
        elif name == "Parallel":
            self._parallel(node)
        elif name == "Persistent":
            self._persistent(node, call)
        elif name == "grid":
            spans = [range(self.integer(extent)) for extent in call.args]
            for indices in itertools.product(*spans):
                self._iteration(node, [literal(i, "int32") for i in indices])
        elif name in _SERIAL:
            with self._left_alone():
                for index, lanes in self._range(call.args):
                    self._repeated(node, lanes, [index])
        else:
            raise Invalid(f"the interpreter does not know loops over T.{name}")

    def _while(self, node: ast.While) -> None:
        with self._left_alone():
            while True:
                condition = self.condition(node.test)
                if (condition.error > 0).any():
                    raise Invalid("a loop that may or may not go on")
                lanes = self.lanes.runs & condition.data
                if not self._repeated(node, lanes, []):
                    return
                self._ended |= ~lanes

    @contextmanager
    def _left_alone(self) -> Iterator[None]:
        """A loop that `break` leaves in some lanes."""
        outer, self._ended = self._ended, np.zeros(self.lanes.runs.shape, bool)
        yield
        self._ended = outer
        if self._threads:
            self.lanes = Lanes(self.lanes.runs & ~self._returned, self.lanes.maybe)

    def _repeated(self, node: ast.For | ast.While, lanes: np.ndarray, indices: list[Value]) -> bool:
        """One more iteration in those lanes that have not left the loop, if there are any."""
        runs = self.lanes.runs & lanes & ~self._ended
        runs = runs & ~self._returned if self._threads else runs
        if runs.any():
            self._iteration(node, indices, Lanes(runs, self.lanes.maybe))
        return bool(runs.any())

    def _iteration(
        self, node: ast.For | ast.While, indices: list[Value], lanes: Lanes | None = None
    ) -> None:
        outer_lanes, outer_names = self.lanes, dict(self.names)
        target = node.target if isinstance(node, ast.For) else ast.Tuple([])
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        for target, index in zip(targets, indices, strict=True):
            self._bind(target, index)
        self.lanes = lanes or self.lanes
        self._body(node.body)
        self.lanes, self.names = outer_lanes, outer_names

    def _range(self, args: list[ast.expr]) -> Iterator[tuple[Value, np.ndarray]]:
        """The iterations of a loop, each with the lanes that do it."""
        bounds = [self.value(arg) for arg in args]
        start, stop = (literal(0), bounds[0]) if len(bounds) == 1 else bounds[:2]
        step = int(bounds[2].data) if len(bounds) == 3 else 1
        if not start.exact or not stop.exact:
            raise Invalid("the bounds of a loop are not exact")
        runs = self.lanes.runs
        first, last = (np.broadcast_to(b.data, runs.shape) for b in (start, stop))
        if np.all(first == first.flat[0]):
            first = first.flat[0]
        counts = np.broadcast_to((last - first + step - np.sign(step)) // step, runs.shape)
        for number in range(counts[runs].max(initial=0)):
            index = np.asarray(first + number * step)
            yield Value(index, np.zeros(index.shape), "int32"), number < counts

    def _parallel(self, node: ast.For) -> None:
        if self._in_parallel:
            raise Invalid("a T.Parallel in another one")
        call, targets, body = _nest(node)
        extents = [self.integer(extent) for extent in call.args]
        grid = np.meshgrid(*map(np.arange, extents), indexing="ij")
        indices = [Value(axis.reshape(-1), np.zeros(()), "int32") for axis in grid]
        count = int(np.prod(extents))
        touched = [b for b in self.names.values() if isinstance(b, Buffer) and b.scope != "local"]
        for buffer in touched:
            buffer.lane_owners = Owners(buffer.size)
        self._in_parallel = True
        node = ast.For(ast.Tuple(targets), call, body, [])
        self._iteration(node, indices, Lanes.all_of(count))
        self._in_parallel = False
        for buffer in touched:
            buffer.lane_owners = None

    def _persistent(self, node: ast.For, call: ast.Call) -> None:
        """Tiles are visited in an order, and by blocks, that are the compiler's.

        So what one of them leaves in a block's memory is nothing that another one may read.
        """
        domain, wave, index = call.args
        assert isinstance(domain, ast.List)
        extents = [self.integer(extent) for extent in domain.elts]
        size, mine = self.integer(wave), self.integer(index)
        own = [b for b in self.names.values() if isinstance(b, Buffer) and b.scope != "global"]
        before = [(b.data.copy(), b.defined.copy()) for b in own]
        for number, tile in enumerate(itertools.product(*map(range, extents))):
            if number % size == mine:
                self.block += 1
                self._iteration(node, [literal(i, "int32") for i in tile])
                for buffer, (data, defined) in zip(own, before, strict=True):
                    buffer.defined = defined & (buffer.data == data)

    # Assignments and calls -----------------------------------------------------------------------

    def _made(self, name: str, node: ast.expr) -> Value | Buffer:
        """The right side of an assignment: a tile that is allocated there, or a number."""
        if isinstance(node, ast.Call) and (made := self.allocated(name, node)) is not None:
            return made
        known = self.names.get(node.id) if isinstance(node, ast.Name) else None
        return known if isinstance(known, Buffer) and known.shape else self.value(node)

    def _put(self, target: ast.expr, made: Value | Buffer) -> None:
        if isinstance(target, ast.Subscript):
            assert isinstance(made, Value)
            self._store(target, made)
            return
        assert isinstance(target, ast.Name)
        known = self.names.get(target.id)
        if isinstance(known, Buffer) and isinstance(made, Value):
            self._write(known, np.zeros((), np.int64), self.lanes.runs, made)
        else:
            self.names[target.id] = made

    def allocated(self, name: str, call: ast.Call) -> Buffer | None:
        function = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        count = self.lanes.runs.size
        if function == "alloc_var":
            variable = Buffer(name, (), ast.literal_eval(call.args[0]), "local", count > 1)
            variable.allocate(count)
            start = [k.value for k in call.keywords if k.arg == "init"] or call.args[1:]
            first = self.value(start[0]) if start else literal(0)
            self._write(variable, np.zeros((), np.int64), np.ones(count, bool), first)
            return variable
        if function in ("reshape", "view"):
            return self._viewed(name, *call.args)
        if function == "Tensor":
            shape, dtype, data = call.args
            assert isinstance(data, ast.Attribute)
            return self._viewed(name, data.value, shape, dtype)
        if function not in _SCOPES:
            return None
        is_list = isinstance(call.args[0], ast.Tuple | ast.List)
        extents = call.args[0].elts if is_list else call.args[:1]  # type: ignore[attr-defined]
        shape = tuple(self.integer(extent) for extent in extents)
        dtype = "uint64" if function == "alloc_barrier" else ast.literal_eval(call.args[1])
        scope = _SCOPES[function]
        count = 1 if self._threads and scope != "local" else count
        buffer = Buffer(name, shape, dtype, scope, count > 1)
        if function == "alloc_reducer":
            kinds = [ast.literal_eval(k.value) for k in call.keywords if k.arg == "op"]
            self._reducers[buffer] = kinds[0] if kinds else "sum"
        elif scope == "fragment":
            self._comers[buffer] = self.lanes.runs
        return buffer.allocate(count)

    def _viewed(self, name: str, source: ast.expr, extents: ast.expr, *dtype: ast.expr) -> View:
        assert isinstance(source, ast.Name)
        assert isinstance(extents, ast.Tuple | ast.List)
        base = self.names[source.id]
        shape = tuple(self.integer(extent) for extent in extents.elts)
        return View(name, shape, ast.literal_eval(dtype[0]) if dtype else base.dtype, base)

    def _store(self, target: ast.Subscript, value: Value) -> None:
        buffer, offset, inside = self.offsets(target)
        self._write(buffer, offset, inside, value)

    def _write(self, buffer: Buffer, offset: np.ndarray, inside: np.ndarray, value: Value) -> None:
        flat = self.placed(buffer, offset)[inside]
        stored = _of_lanes(value, inside)
        self.own(buffer, "written", flat, inside, stored.data)
        if self._threads and not self._are_equal(buffer, flat, stored):
            if buffer.scope != "fragment":
                raise Invalid(f"threads store different values in an element of {buffer.name}")
            buffer.give_each(self.lanes.runs.size)
            flat = self.placed(buffer, offset)[inside]
        buffer.store(flat, stored, self.lanes.maybe[inside])

    def _are_equal(self, buffer: Buffer, places: np.ndarray, value: Value) -> bool:
        """Threads may store to one place what is the same; to a fragment, if all of its threads do."""
        _, first, inverse = np.unique(places, return_index=True, return_inverse=True)
        comers = self._comers.get(buffer.base if isinstance(buffer, View) else buffer)
        all_come = comers is None or buffer.private or np.array_equal(comers, self.lanes.runs)
        return all_come and bool(np.all(value.data == value.data[first][inverse]))

    def own(
        self, buffer: Buffer, how: str, offsets: np.ndarray, lanes: np.ndarray, *data: np.ndarray
    ) -> None:
        if buffer.scope == "local" and not buffer.private and self.lanes.runs.size > 1:
            if how != "read":
                raise Invalid(f"{buffer.name} of a thread is written in T.Parallel")
        if buffer.lane_owners is not None:
            getattr(buffer.lane_owners, how)(offsets, np.flatnonzero(lanes), *data)
        if buffer.block_owners is not None:
            getattr(buffer.block_owners, how)(offsets, np.full(offsets.shape, self.block), *data)

    def _perform(self, call: ast.Call) -> None:
        if isinstance(call.func, ast.Name):
            self._expand(call)
            return
        assert isinstance(call.func, ast.Attribute)
        name = call.func.attr
        if name in _HINTS:
            return
        if name == "ptx_cp_async":
            self._copy_elements(call)
            return
        options = {
            str(k.arg): self._option(k.value) for k in call.keywords if k.arg not in _IGNORED
        }
        if self._threads and self._is_of_threads(call):
            for lane in np.flatnonzero(self.lanes.runs):
                with self._as_thread(lane):
                    self._perform(call)
            return
        if name == "reducer_update":
            self._atomic(self._reducers[self._owner(call.args[0])], *call.args)
            return
        if name.startswith("atomic_") and not (self._threads and self._is_tile(call.args[0])):
            self._atomic(name.removeprefix("atomic_"), call.args[0], call.args[1])
            return
        if name in ("reducer_init", "finalize_reducer"):
            self._reduced(name, *call.args)
            return
        if self._threads:
            with self._as_block():
                self._perform(call)
            return
        if self._in_parallel and name == "copy":
            source, target = call.args
            assert isinstance(target, ast.Subscript)
            self._store(target, self.value(source))
            return
        if self._in_parallel:
            raise Invalid(f"T.{name} in T.Parallel")
        access, function = Access(self.block), getattr(T, name)
        operator = all_operators().get(function.__name__)
        if operator is not None and issubclass(operator, ElementwiseOp):
            declared(access, operator, self._given(function, call))
            return
        if name == "clear":
            zero = {"buffer": self.region(call.args[0]), "value": literal(0)}
            declared(access, all_operators()["fill"], zero)
            return
        if name not in OPERATORS:
            raise Invalid(f"the interpreter does not know T.{name}")
        meaning = OPERATORS[name]
        if name in _OF_ROWS:
            src, dst, *rest = call.args
            rows, column = rest if name.endswith("rows") else rest[::-1]
            tiles = map(self.region, (src, dst))
            meaning(access, *tiles, self._numbers(access, rows), self.integer(column))  # type: ignore[operator]
            return
        if name == "fp8_scaled_matmul":
            a, a_scale, b, b_scale, c = call.args
            scales = [
                access.read(self.region(s)) if self._is_tile(s) else self.value(s)
                for s in (a_scale, b_scale)
            ]
            a, b, c = map(self.region, (a, b, c))
            meaning(access, a, scales[0], b, scales[1], c, **options)  # type: ignore[operator]
            return
        regions = [self.region(arg) for arg in call.args if not _is_option(arg)]
        if callable(meaning):
            given = [_constant(arg) for arg in call.args if _is_option(arg)]
            meaning(access, *regions, *given, **options)
        elif name.startswith("reduce_"):
            reduce(access, regions[0], regions[1], meaning, **options)
        else:
            scan(access, regions[0], regions[1] if regions[1:] else None, meaning, **options)

    def _given(self, function: Any, call: ast.Call) -> dict[str, Any]:
        """The arguments of a declared operator: tiles, values, and numbers that are known."""
        signature, kinds = (
            inspect.signature(function),
            get_type_hints(function, include_extras=True),
        )
        bound = signature.bind(*call.args, **{str(k.arg): k.value for k in call.keywords})
        read = {In: self.region, Out: self.region, Scalar: self.value}
        return {
            name: read.get(kinds[name], self.integer)(node)
            for name, node in bound.arguments.items()
            if kinds[name] is not Ignored
        }

    def _option(self, node: ast.expr) -> Any:
        """An option; of `clear_accum=k == 0`, what it is now."""
        is_asked = isinstance(node, ast.Compare)
        return bool(self.condition(node).data.all()) if is_asked else _constant(node)

    def _copy_elements(self, call: ast.Call) -> None:
        """Elements from one address on to those from another, zeros where a predicate is false."""
        target, source = (node.args[0] for node in call.args[:2])  # type: ignore[attr-defined]
        for number in range(self.integer(call.args[2])):
            value: ast.expr = _further(source, number)
            for keyword in call.keywords:  # the predicate
                value = ast.IfExp(keyword.value, value, ast.Constant(0))
            self._store(_further(target, number), self.value(value))

    def _expand(self, call: ast.Call) -> None:
        """A macro is traced in place where it is called."""
        assert isinstance(call.func, ast.Name)
        macro = self._functions[call.func.id]
        given = [self.names[a.id] if isinstance(a, ast.Name) else self.value(a) for a in call.args]
        outer = self.names
        self.names = {
            **self._globals,
            **dict(zip((a.arg for a in macro.args.args), given, strict=True)),
        }
        self._body(macro.body)
        self.names = outer

    def _accumulated(self, target: ast.expr, kind: str, value: ast.expr) -> bool:
        """Iterations of T.Parallel change one element of a fragment, one after the other."""
        if not self._in_parallel or self._threads or not isinstance(target, ast.Subscript):
            return False
        buffer, offset, inside = self.offsets(target)
        flat = self.placed(buffer, offset)[inside]
        if buffer.scope != "fragment" or np.unique(flat).size == flat.size:
            return False
        self._atomic(kind, target, value)
        return True

    def _atomic(self, kind: str, target: ast.expr, value: ast.expr) -> None:
        if self._in_parallel:
            if isinstance(target, ast.Name):  # a tensor of one element
                zeros = ["0"] * len(self.names[target.id].shape)
                target = ast.parse(f"{target.id}[{', '.join(zeros)}]", mode="eval").body
            assert isinstance(target, ast.Subscript)
            number = self.value(value)
            buffer, offset, inside = self.offsets(target)
            flat = self.placed(buffer, offset)[inside]
            self.own(buffer, "updated", flat, inside)
            updated(buffer, flat, _of_lanes(number, inside), kind, self.lanes.maybe[inside])
            return
        access, place = Access(self.block), self.region(target)
        if not self._is_tile(value):
            number = self.value(value)
            whole = Value(number.data.reshape(()), number.error.reshape(()), number.dtype)
            access.update(place.like(place), whole, kind)
            return
        source = self.region(value)
        access.update(place.like(source), access.read(source), kind)

    def _call(self, function: str, args: list[ast.expr]) -> Value:
        if self._threads and function in EXCHANGES:
            return exchanged(function, [self.value(arg) for arg in args], self.lanes.runs)
        if function.startswith("atomic_"):
            return self._before(function.removeprefix("atomic_"), *args)
        return super()._call(function, args)

    def _before(self, kind: str, target: ast.expr, value: ast.expr) -> Value:
        """The value of an element before an update. Blocks come one by one, as they may."""
        assert isinstance(target, ast.Subscript)
        buffer, offset, _ = self.offsets(target)
        if offset.size > 1:
            raise Invalid("updates by several iterations, in an order that matters")
        found = buffer.load(offset)
        self._atomic(kind, target, value)
        return found

    def _is_tile(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Subscript):
            return any(isinstance(index, ast.Slice) for index in self._indices(node))
        return isinstance(node, ast.Name) and isinstance(self.names[node.id], Buffer)

    # Reducers ------------------------------------------------------------------------------------

    def _is_reduced(self, target: ast.expr) -> bool:
        return isinstance(target, ast.Subscript) and self._owner(target) in self._reducers

    def _owner(self, element: ast.expr) -> Buffer:
        assert isinstance(element, ast.Subscript)
        assert isinstance(element.value, ast.Name)
        return self.names[element.value.id]

    def _reduced(self, name: str, reducer: ast.expr, *given: ast.expr) -> None:
        """Begin with what changes nothing, and perhaps a first contribution; end with a copy."""
        access, totals = Access(self.block), self.region(reducer)
        if name == "finalize_reducer":
            for target in given:
                access.write(self.region(target), access.read(totals))
            return
        kind = self._reducers[totals.buffer]
        access.write(totals, neutral(kind, totals.buffer.dtype))
        for value in given:
            if ast.unparse(value) != "None":
                access.update(totals, self.value(value), kind)

    def _numbers(self, access: Access, rows: ast.expr) -> Value:
        """Integers that a list or a region has."""
        if not isinstance(rows, ast.List):
            return access.read(self.region(rows))
        return literal(np.array([self.integer(row) for row in rows.elts]), "int32")


def _further(element: ast.Subscript, number: int) -> ast.Subscript:
    """The element so many further along the last axis."""
    *indices, last = Expressions._indices(element)
    moved = ast.BinOp(last, ast.Add(), ast.Constant(number))
    return ast.Subscript(element.value, ast.Tuple([*indices, moved]))


def _is_ws(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "ws"


def _nest(node: ast.For) -> tuple[ast.Call, list[ast.expr], list[ast.stmt]]:
    """A T.Parallel with those that it consists of: their extents, indices and body."""
    assert isinstance(node.iter, ast.Call)
    targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
    match node.body:
        case [ast.For(iter=ast.Call(func=ast.Attribute(attr="Parallel"))) as inner]:
            call, more, body = _nest(inner)
            return (
                ast.Call(node.iter.func, [*node.iter.args, *call.args], []),
                [*targets, *more],
                body,
            )
    return node.iter, targets, node.body


def _is_option(arg: ast.expr) -> bool:
    """An operator's option, by position: a constant or the name of a policy."""
    return isinstance(arg, ast.Constant | ast.Attribute)


def _of_lane(found: Any, lane: int) -> Any:
    """A name's value in one lane."""
    if isinstance(found, View) and found.private:
        return View(found.name, found.shape, found.dtype, _of_lane(found.base, lane))
    if isinstance(found, Buffer) and found.private:
        own = Buffer(found.name, found.shape, found.dtype, found.scope)
        span = slice(lane * found.size, (lane + 1) * found.size)
        own.data, own.error, own.defined = (
            part[span] for part in (found.data, found.error, found.defined)
        )
        return own
    if isinstance(found, Value) and found.data.ndim:
        return Value(found.data[lane], found.error[lane], found.dtype)
    return found


def _of_lanes(value: Value, lanes: np.ndarray) -> Value:
    data = np.broadcast_to(value.data, lanes.shape)[lanes]
    return Value(data, np.broadcast_to(value.error, lanes.shape)[lanes], value.dtype)


def _as_load(target: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(target), mode="eval").body


def _constant(node: ast.expr) -> Any:
    """An option; of a call its positional arguments."""
    if isinstance(node, ast.Call):
        return [ast.literal_eval(arg) for arg in node.args]
    return None if isinstance(node, ast.Attribute) else ast.literal_eval(node)
