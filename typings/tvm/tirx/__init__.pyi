from collections.abc import Sequence
from typing import Any

from tvm.ir import Call, Expr, Node, Range, TensorLoad, TensorRegion
from tvm.ir import Var as Var

_Value = Expr | int | float
"""What TVM makes an expression of."""

# Statements -----------------------------------------------------------------------------------------

class Stmt(Node): ...

class SeqStmt(Stmt):
    seq: Sequence[Stmt]
    def __init__(self, seq: Sequence[Stmt], span: Any = None) -> None: ...

class For(Stmt):
    loop_var: Var
    min: Expr
    extent: Expr
    kind: Any
    body: Stmt
    thread_binding: Any
    annotations: Any
    step: Any
    def __init__(
        self,
        loop_var: Var,
        min: _Value,  # noqa: A002
        extent: _Value,
        kind: Any,
        body: Stmt,
        thread_binding: Any = None,
        annotations: Any = None,
        step: Any = None,
        span: Any = None,
    ) -> None: ...

class While(Stmt):
    condition: Expr
    body: Stmt
    def __init__(self, condition: _Value, body: Stmt, span: Any = None) -> None: ...

class IfThenElse(Stmt):
    condition: Expr
    then_case: Stmt
    else_case: Stmt | None
    def __init__(
        self, condition: _Value, then_case: Stmt, else_case: Stmt | None, span: Any = None
    ) -> None: ...

class AttrStmt(Stmt):
    node: Any
    attr_key: str
    value: Expr
    body: Stmt
    def __init__(
        self, node: Any, attr_key: str, value: _Value, body: Stmt, span: Any = None
    ) -> None: ...

class Bind(Stmt):
    var: Var
    value: Expr
    def __init__(self, var: Var, value: _Value, span: Any = None) -> None: ...

class BufferStore(Stmt):
    value: Expr
    def __init__(
        self, buffer: Var, value: _Value, indices: Sequence[_Value], span: Any = None
    ) -> None: ...

class Evaluate(Stmt):
    value: Any  # a call, but for the empty statement
    def __init__(self, value: _Value, span: Any = None) -> None: ...

class AllocBuffer(Stmt):
    annotations: Any
    def __init__(self, buffer: Var, *args: Any, **kwargs: Any) -> None: ...

class DeclBuffer(Stmt):
    data: Any
    def __init__(self, buffer: Var, *args: Any, **kwargs: Any) -> None: ...

class AssertStmt(Stmt):
    condition: Expr
    error_kind: Any
    message_parts: Any
    def __init__(
        self, kind: Any, condition: _Value, message_parts: Any = None, span: Any = None
    ) -> None: ...

class PrimFunc(Node):
    params: Sequence[Var]
    body: Stmt
    ret_type: Any
    attrs: Any
    def __init__(
        self, params: Any, body: Stmt, ret_type: Any = None, attrs: Any = None, span: Any = None
    ) -> None: ...
    def with_body(self, new_body: Stmt, span: Any = None) -> PrimFunc: ...
    def with_attr(self, key: Any, value: Any = None) -> PrimFunc: ...
    def without_attr(self, key: str) -> PrimFunc: ...

# Expressions ----------------------------------------------------------------------------------------

class _Binary(Expr):
    a: Expr
    b: Expr
    def __init__(self, a: _Value, b: _Value, span: Any = None) -> None: ...

class Add(_Binary): ...
class Sub(_Binary): ...
class Mul(_Binary): ...
class Div(_Binary): ...
class Mod(_Binary): ...
class FloorDiv(_Binary): ...
class FloorMod(_Binary): ...
class Min(_Binary): ...
class Max(_Binary): ...
class EQ(_Binary): ...
class NE(_Binary): ...
class LT(_Binary): ...
class LE(_Binary): ...
class GT(_Binary): ...
class GE(_Binary): ...
class And(_Binary): ...
class Or(_Binary): ...

class Not(Expr):
    a: Expr
    def __init__(self, a: _Value, span: Any = None) -> None: ...

class IntImm(Expr):
    value: int
    def __init__(self, dtype: Any, value: int, span: Any = None) -> None: ...
    def __int__(self) -> int: ...

class FloatImm(Expr):
    value: float
    def __init__(self, dtype: Any, value: float, span: Any = None) -> None: ...

class Cast(Expr):
    value: Expr
    def __init__(self, dtype: Any, value: _Value, span: Any = None) -> None: ...

class Select(Expr):
    condition: Expr
    true_value: Expr
    false_value: Expr
    def __init__(
        self, condition: _Value, true_value: _Value, false_value: _Value, span: Any = None
    ) -> None: ...

class Let(Expr):
    var: Var
    value: Expr
    body: Expr
    def __init__(self, var: Var, value: _Value, body: _Value, span: Any = None) -> None: ...

class Ramp(Expr):
    base: Expr
    stride: Expr
    lanes: Any
    def __init__(self, base: _Value, stride: _Value, lanes: Any, span: Any = None) -> None: ...

class Broadcast(Expr):
    value: Expr
    lanes: Any
    def __init__(self, value: _Value, lanes: Any, span: Any = None) -> None: ...

class Shuffle(Expr):
    vectors: Sequence[Expr]
    indices: Sequence[Expr]
    def __init__(
        self, vectors: Sequence[_Value], indices: Sequence[_Value], span: Any = None
    ) -> None: ...

def BufferLoad(buffer: Var, indices: Sequence[_Value], span: Any = None) -> TensorLoad: ...
def BufferRegion(buffer: Var, region: Sequence[Range]) -> TensorRegion: ...
def decl_buffer(shape: Any, *args: Any, **kwargs: Any) -> Var: ...
def const(value: Any, dtype: Any = None, span: Any = None) -> Any: ...
def call_extern(dtype: Any, name: Any, *args: Any, span: Any = None) -> Call: ...
def __getattr__(name: str) -> Any: ...
