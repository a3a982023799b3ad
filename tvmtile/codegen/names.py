"""Names of a kernel's variables in the languages that TVM's generators for GPUs print."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import buffer_var, is_buffer_var

__all__ = ["without_keywords"]

# Keywords of C++14, and names of types and address spaces of Metal, that TVM does not reserve.
# fmt: off
_KEYWORDS = frozenset((
    "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "catch",
    "char16_t", "char32_t", "class", "compl", "const", "const_cast", "constexpr", "decltype", "delete",
    "dynamic_cast", "explicit", "export", "extern", "false", "final", "friend", "inline", "mutable",
    "namespace", "new", "noexcept", "not", "not_eq", "nullptr", "operator", "or", "or_eq", "override",
    "private", "protected", "public", "reinterpret_cast", "signed", "sizeof", "static",
    "static_assert", "static_cast", "template", "this", "thread_local", "throw", "true", "try",
    "typeid", "typename", "using", "virtual", "volatile", "wchar_t", "xor", "xor_eq",
    "bfloat", "constant", "device", "fragment", "half", "kernel", "metal", "sampler", "texture",
    "thread", "threadgroup", "uchar", "uint", "ulong", "ushort", "vec", "vertex",
))
# fmt: on


def without_keywords(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Rename what a kernel calls `new`, `half` or the like: an underscore follows.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        A function of the host or of the GPU, after these were split: nobody calls their parameters by
        name any more.
    """
    renamed: dict[ir.Var, Any] = {}

    def rename(var: ir.Var) -> Any:
        if var.name not in _KEYWORDS:
            return var
        if var not in renamed:
            name = f"{var.name}_"
            renamed[var] = buffer_var(name, var.ty) if is_buffer_var(var) else ir.Var(name, var.ty)
        return renamed[var]

    return tvm_ffi.structural_map(func, (ir.Var, rename))
