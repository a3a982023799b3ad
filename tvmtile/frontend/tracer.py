"""The meaning of a kernel's statements while it is traced.

The rewritten kernel (see `rewrite`) calls one `Tracer`, which emits statements through TVM's
IRBuilder. Values known while tracing (Python numbers, lists, buffers) stay Python values; values of
the running kernel are TIR expressions. The tracer keeps the difference honest: a Python name that
would need to change at run time is an error that names `T.alloc_var`, never a stale value.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from tvm import ir, tirx
from tvm.script.ir_builder.base import IRBuilderFrame
from tvm.sym import Analyzer
from tvm.tirx.script import builder as T

from tvmtile._tvm import IRBuilder, as_expression, buffer_of, indices_of, is_buffer_var, traced
from tvmtile.errors import (
    InvalidOperand,
    NestingError,
    ScopeError,
    SyntaxNotSupported,
    user_location,
    warn,
)
from tvmtile.frontend.constructs import (
    Region,
    TracedBranch,
    TracedLoop,
    Variable,
    While,
    serial,
    tried,
)
from tvmtile.frontend.dtypes import DType
from tvmtile.frontend.expressions import expressions_of_kernels, is_variable
from tvmtile.frontend.large import Sizes
from tvmtile.frontend.operations import Expressions
from tvmtile.frontend.parameters import OutputTensor, TensorSpec
from tvmtile.frontend.proxy import (
    Unusable,
    counted,
    escaped,
    is_scalar_variable,
    raise_unusable,
)
from tvmtile.frontend.syntax import OPERATORS
from tvmtile.frontend.values import (
    KINDS,
    as_condition,
    converted,
    described,
    dtype_of_variable,
    is_number,
    kind_of,
    reads_memory,
    store_element,
)
from tvmtile.ir.name_costs import NameCosts
from tvmtile.ir.operands import describe
from tvmtile.ir.spans import current_span

_ACTIVE = threading.local()


def current_tracer() -> Tracer | None:
    """The tracer of the kernel that this thread is tracing, or None."""
    return getattr(_ACTIVE, "tracer", None)


class ParameterDeclarations(Protocol):
    """The parameters that annotations, as statements of the body, declare."""

    def __contains__(self, name: str) -> bool: ...

    def declare(self, name: str, annotation: object) -> Any: ...


class Tracer(Expressions):
    """Records one function."""

    def __init__(
        self,
        parameters: ParameterDeclarations | None = None,
        on_kernel: Callable[[], None] | None = None,
        constants: Mapping[str, int] | None = None,
    ) -> None:
        self.on_kernel = on_kernel
        self.constants = constants  # in the eager style, the values that `T.const` gives names
        self.variables: dict[str, ir.Var] = {}  # by names that `constants` does not have
        self.kernel_spans: list[ir.Span | None] = []  # of each `T.Kernel`, in program order
        self.kernel_options: list[Mapping[str, Any]] = []
        self.assertion_spans: list[ir.Span | None] = []
        self.name_spans: dict[ir.Var, ir.Span | None] = {}
        # Of kernels without `T.Kernel`, by the variable of the loop around the body: the index and the
        # extent along each axis.
        self.launches: dict[ir.Var, dict[str, tuple[ir.Var, Any]]] = {}
        self.analyzer = Analyzer()  # knows the values of names
        self._costs = NameCosts()
        self.sizes = Sizes()  # of the expressions that Python's operators have made
        self.loops: list[TracedLoop] = []
        self.outputs: list[Any] = []  # tensors made by `T.empty`, in the order of declaration
        self.returned: tuple[Any, ...] = ()  # those of the outputs that the kernel returned
        self.attributes: dict[str, object] = {}  # of the function that is written
        self.in_kernel = False
        self._regions: list[Region] = []
        self._variables: dict[ir.Var, Variable] = {}
        self._parameters = parameters
        self._call_depth: list[int] = []

    @contextmanager
    def activate(self) -> Iterator[Tracer]:
        """Make this the thread's tracer; kernels may be traced while another one is."""
        outer = current_tracer()
        _ACTIVE.tracer = self
        try:
            with expressions_of_kernels(self.sizes):
                yield self
        finally:
            _ACTIVE.tracer = outer

    @contextmanager
    def inside(self, region: Region) -> Iterator[None]:
        """Trace the body of a run-time loop or branch."""
        self._regions.append(region)
        try:
            yield
        finally:
            self._regions.pop()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Trace the body of a macro: its `return` must not sit in a run-time branch of its own."""
        self._call_depth.append(len(self._regions))
        try:
            yield
        finally:
            self._call_depth.pop()

    def enter_kernel(self, options: Mapping[str, Any]) -> None:
        """Note that `T.Kernel` begins; the eager style's first look at a function ends here.

        Its options are added as its statements are written.
        """
        if self.on_kernel is not None:
            self.on_kernel()
        self.in_kernel = True
        self.kernel_spans.append(current_span())
        self.kernel_options.append(options)

    # Control flow ----------------------------------------------------------------------------

    def branch(self, condition: object) -> TracedBranch:
        return TracedBranch(self, as_condition(condition))

    def end(self, branch: TracedBranch) -> None:
        if branch.frame is not None:
            branch.frame.__exit__(None, None, None)

    def loop(self, iterable: object, carried: tuple[str, ...] = ()) -> TracedLoop:
        return TracedLoop(self, iterable, carried)

    def while_loop(
        self, condition: Callable[[], object], carried: tuple[str, ...] = ()
    ) -> TracedLoop:
        test, _ = tried(condition)
        is_known = not isinstance(test, ir.Expr)
        return TracedLoop(self, () if is_known and not test else While(condition), carried)

    def carry(
        self, construct: TracedBranch | TracedLoop, name: str, local_names: Mapping[str, object]
    ) -> Any:
        """A variable for a name that `construct` changes for what comes after, if it can be one."""
        first = local_names[name]
        region = construct.region
        dtype = dtype_of_variable(first)
        if dtype is None or is_variable(first) or region.parallel or not self.in_kernel:
            return first
        variable = self.bind_variable(name, dtype, first)
        made = Variable(variable, first, user_location(), self._parallel_depth())
        region.made[name] = self._variables[buffer_of(variable)] = made
        return variable

    def _parallel_depth(self) -> int:
        return sum(region.parallel for region in self._regions)

    def bind_variable(self, name: str, dtype: str, value: object) -> Any:
        """A variable of the kernel that holds a value."""
        variable = self._bind(name, T.local_scalar(dtype))
        T.buffer_store(buffer_of(variable), converted(value, dtype), [0])
        return variable

    def escape(
        self, construct: TracedBranch | TracedLoop, name: str, local_names: Mapping[str, object]
    ) -> Any:
        """The value of `name` after `construct`, in whose body it was assigned."""
        rebound, made = construct.region.rebound, construct.region.made.get(name)
        if made is not None and local_names.get(name) is made.value:
            return made.value if made.stored else made.first
        if name in local_names and name not in rebound:
            return local_names[name]
        value = local_names.get(name)
        return escaped(name, construct.region.construct, rebound.get(name), value)

    def leave(self, name: str) -> Any:
        """The value of a loop's variable after the loop."""
        return counted(name)

    def range(self, *bounds: object) -> Any:
        return serial(*bounds)

    def break_loop(self) -> bool:
        return self._leave_iteration("break", tirx.break_loop(current_span()))

    def continue_loop(self) -> bool:
        return self._leave_iteration("continue", tirx.continue_loop(current_span()))

    def _leave_iteration(self, keyword: str, exit_call: ir.Call) -> bool:
        loop = self.loops[-1]
        if loop.dynamic:
            T.evaluate(exit_call)
            return False
        if any(region.construct == "branch" for region in self._regions):
            raise NestingError(
                f"`{keyword}` of a loop over Python values stands under a run-time condition",
                help="make it a run-time loop (T.serial), or decide the condition while tracing",
            )
        return True

    def context(self, manager: Any) -> AbstractContextManager[Any]:
        if isinstance(manager, Unusable):
            raise_unusable(manager)
        if not hasattr(manager, "__enter__"):
            raise SyntaxNotSupported(f"`with` needs a context manager, not {described(manager)}")
        return manager

    def returns(self, value: object) -> Any:
        depth = self._call_depth[-1]
        if len(self._regions) > depth:
            raise NestingError(
                "`return` stands inside a run-time loop or branch",
                help="assign to a T.alloc_var variable there and return it after the construct, or "
                "guard the rest of the kernel with `if`",
            )
        if len(self._call_depth) > 1:
            return value
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        for item in values:
            if not any(item is output for output in self.outputs):
                raise InvalidOperand(
                    f"a kernel returns tensors made by T.empty, not {described(item)}",
                    help="declare the result with `C = T.empty(shape, dtype)` and return it",
                )
        self.returned = values
        return None

    def check(self, condition: object, message: Callable[[], object]) -> bool:
        """Tell whether an assertion holds; one of a run-time condition is the running kernel's."""
        test = as_condition(condition)
        if not isinstance(test, ir.Expr):
            return bool(test)
        text = message()
        write_assertion(test, "assertion failed" if text is None else text)
        return True

    # Names -----------------------------------------------------------------------------------

    def assign(self, name: str, value: object, local_names: Mapping[str, object]) -> Any:
        """`name = value`: store into a variable, bind a run-time value, or keep a Python value."""
        previous = local_names.get(name)
        if is_scalar_variable(previous) and buffer_of(previous) in self._variables:
            self._check_assignment(name, self._variables[buffer_of(previous)], value)
        if is_variable(previous) and is_number(value):
            store_element(buffer_of(previous), tuple(indices_of(previous)), value)
            return previous
        # A tile does not become a number: from here to the end of the loop the name is another one.
        hides = is_buffer_var(previous) and is_number(value)
        self._note_rebinding(name, name in local_names and not hides)
        return self._bind(name, value)

    def _check_assignment(self, name: str, variable: Variable, value: object) -> None:
        """Refuse what a variable made of a name can't hold, and an assignment in no order."""
        if self._parallel_depth() > variable.depth:
            raise _carried_in_parallel(name)
        variable.stored = True
        dtype = variable.value.ty.dtype
        given = dtype_of_variable(value) if is_number(value) else None
        line = "" if variable.location is None else f" (line {variable.location.line})"
        if given is None:
            raise ScopeError(
                f"{name!r} begins as {dtype} before the loop or branch that changes it{line}, and "
                f"can't become {described(value)}",
                help="give the other object a name of its own",
            )
        if KINDS.index(kind_of(given)) > KINDS.index(kind_of(str(dtype))):
            first = variable.first if isinstance(variable.first, int | float) else "..."
            raise InvalidOperand(
                f"{name!r} begins as {dtype} before the loop or branch that changes it{line}, and is "
                f"assigned a {given}",
                help=f"begin with a value of the later dtype: `{name} = T.{given}({first})`",
            )

    def _note_rebinding(self, name: str, existed: bool) -> None:
        for region in self._regions[self._call_depth[-1] :]:
            if existed and name in region.carried and name not in region.rebound:
                if region.parallel:
                    raise _carried_in_parallel(name)
                raise ScopeError(
                    f"{name!r} is carried from one iteration of this loop to the next",
                    help="only a number can change at run time: loop over Python values, "
                    "`for i in [0, 1]:`, or choose by index in one tile",
                )
            region.rebound.setdefault(name, user_location())

    def _bind(self, name: str, value: Any) -> Any:
        if isinstance(value, T.scalar_wrapper):
            IRBuilder.name(name, buffer_of(value.scalar))
            return traced(value.scalar)
        if isinstance(value, T.meta_var):
            return value.value
        if isinstance(value, OutputTensor):
            return self._declare_output(name, value)
        if isinstance(value, IRBuilderFrame) or getattr(value, "takes_rest", False):
            return self.bind_target(name, self._open(value))
        value = as_expression(value)
        if isinstance(value, tirx.IntImm) and value.ty.dtype == "int32":
            return int(value)
        if isinstance(value, ir.Var):
            if not value.name:  # else it is a second name of the same
                IRBuilder.name(name, value)
            return traced(value)
        if not ir.is_prim_expr(value):
            _name_buffers(name, value)
            return value
        if isinstance(value, tirx.Ramp):
            return traced(value)  # what it is made of must be seen where it is an index
        if not self.in_kernel and not reads_memory(value):
            return traced(value)  # the host's arithmetic on dimensions needs no variable
        variable = T.Bind(value)
        self.name_spans[variable] = current_span()
        IRBuilder.name(name, variable)
        is_known = "int" in str(value.ty.dtype) and not reads_memory(value)
        if is_known and not self._costs.note(variable, value):
            self.analyzer.bind(variable, value)
        return traced(variable)

    def _open(self, frame: Any) -> Any:
        """Enter a frame whose body are the statements up to the end of the block."""
        IRBuilder.current().frames[-1].add_callback(lambda: frame.__exit__(None, None, None))
        return frame.__enter__()

    def _declare_output(self, name: str, value: OutputTensor) -> Any:
        buffer = traced(T.arg(name, T.buffer(value.shape, value.dtype)))
        self.outputs.append(buffer)
        return buffer

    def declare(
        self,
        name: str,
        annotation: object,
        value: Callable[[], Any] | None,
        local_names: Mapping[str, object],
        reassigned: bool = False,
    ) -> Any:
        """`name: annotation = value`, which declares a parameter, a variable or a value's dtype."""
        is_outermost = len(self._call_depth) == 1
        if value is None and is_outermost and self._parameters and name in self._parameters:
            return self._parameters.declare(name, annotation)
        if isinstance(annotation, TensorSpec) and value is None:
            raise SyntaxNotSupported(
                f"{name!r} is declared as a tensor but is not a parameter of the kernel",
                help="use T.alloc_shared, T.alloc_fragment or T.empty for a tensor of its own",
            )
        dtype = annotation if isinstance(annotation, DType) else None
        if isinstance(annotation, type(T.let)) and annotation.type_spec is not None:
            dtype = annotation.type_spec
        if value is None:
            if dtype is None:
                raise SyntaxNotSupported(
                    f"{name!r} has neither a value nor a dtype",
                    help=f"write `{name}: T.int32 = ...`",
                )
            return self.assign(name, T.local_scalar(str(dtype)), {})
        result = value()
        if dtype is not None and is_number(result):
            result = converted(result, str(dtype))
            if reassigned:
                self._note_rebinding(name, False)
                return self.bind_variable(name, str(dtype), result)
        return self.assign(name, result, local_names)

    def bind_item(self, names: Any, item: Any) -> Any:
        """The value of a loop's target: a new variable, or an item that Python's loop yields."""
        if self.loops[-1].dynamic:
            return self.bind_target(names, item)
        if isinstance(names, str):
            return self._bind(names, item) if isinstance(item, ir.Expr) else item
        items = tuple(item)  # where they are too many or few, Python says so
        return tuple(map(self.bind_item, names, items)) if len(items) == len(names) else items

    def bind_target(self, names: Any, values: object) -> Any:
        """Name the variables that a loop or a `with` yields; returns what the target gets."""
        if isinstance(names, str):
            if isinstance(values, list | tuple) and len(values) == 1:
                values = values[0]
            if isinstance(values, list | tuple):
                return type(values)(
                    self.bind_target(f"{names}_{i}", v) for i, v in enumerate(values)
                )
            if isinstance(values, ir.Var | IRBuilderFrame):
                if isinstance(values, ir.Var):
                    IRBuilder.name(names, values)
                return traced(values)
            return self._bind(names, values) if ir.is_prim_expr(values) else values
        items = list(values) if isinstance(values, list | tuple | ir.Array) else [values]
        if len(items) != len(names):
            raise InvalidOperand(
                f"{len(names)} names for {len(items)} value{'s' if len(items) != 1 else ''}",
                help="the number of names is the number of loop extents or grid axes",
            )
        return tuple(self.bind_target(n, v) for n, v in zip(names, items, strict=True))

    def snapshot(self, value: object) -> Any:
        """The right side of an assignment to several targets, its loads done before any store."""
        if isinstance(value, IRBuilderFrame):
            return self._bind("value", value)
        if isinstance(value, tuple | list) and len(value) > 1:
            return type(value)(map(_loaded, value))
        return _loaded(value)

    def augment(
        self, name: str, op: str, target: object, value: object, local_names: Mapping[str, object]
    ) -> Any:
        if is_buffer_var(target):
            raise InvalidOperand(
                f"`{_SYMBOLS[op]}` works on elements, not on whole tiles: {describe(target)}",
                help=f"write `{name}[i, j] {_SYMBOLS[op]} ...` in a loop over T.Parallel",
            )
        return self.assign(name, self.binary(op, target, value), local_names)

    def evaluate(self, value: object) -> None:
        """An expression on a line of its own."""
        if value is None or isinstance(value, str | Unusable) or is_buffer_var(value):
            return
        if isinstance(value, ir.Call) or ir.is_prim_expr(value):
            T.evaluate(value)
        elif isinstance(value, tirx.BufferStore):
            T.buffer_store(buffer_of(value), value.value, indices_of(value))
        elif isinstance(value, tirx.Stmt):
            T.add_to_parent(value)
        elif isinstance(value, IRBuilderFrame) or getattr(value, "takes_rest", False):
            self._open(value)
        elif hasattr(value, "__enter__") and type(value).__module__.startswith("tvmtile."):
            raise NestingError(
                f"T.{type(value).__name__} stands on a line of its own, and nothing is in it",
                help=f"write `with T.{type(value).__name__}(...):` over the statements of the kernel",
            )
        elif isinstance(value, ir.Expr):
            warn(f"the value of this expression, {described(value)}, is not used")


_SYMBOLS = {name: f"{symbol}=" for name, symbol in OPERATORS.values()}


def _name_buffers(name: str, holder: Any) -> None:
    """Name the buffers of a sequence or an object by it: `tiles_0`, `softmax_largest`."""
    is_sequence = isinstance(holder, list | tuple)
    parts = enumerate(holder) if is_sequence else getattr(holder, "__dict__", {}).items()
    for part, value in parts:
        if is_buffer_var(value) and not value.name:
            IRBuilder.name(f"{name}_{str(part).lstrip('_')}", value)


def write_assertion(test: ir.Expr, text: object) -> None:
    """Write an assertion for the running kernel down, at the user's line."""
    tracer = current_tracer()
    if tracer is not None:
        tracer.assertion_spans.append(current_span())
    frame = T.Assert(test, text)
    frame.add_callback(lambda: frame.__exit__(None, None, None))
    frame.__enter__()


def _loaded(value: Any) -> Any:
    """A value that later stores don't change."""
    return traced(T.Bind(value)) if ir.is_prim_expr(value) and reads_memory(value) else value


def _carried_in_parallel(name: str) -> ScopeError:
    return ScopeError(
        f"{name!r} is carried from one iteration of T.Parallel to the next; they have no order",
        help="reduce a tile with T.reduce_sum and the like, add with T.atomic_add, or make it a loop "
        "over T.serial",
    )
