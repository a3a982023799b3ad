"""CallImportedFunctions: calls of imported functions bring their source with them."""

from __future__ import annotations

import re

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import Mutator, mutated
from tvmtile.ir.calls import is_extern_call
from tvmtile.ir.kernels import with_body
from tvmtile.ir.options import sources_in
from tvmtile.ir.passes import prim_func_pass


@prim_func_pass("CallImportedFunctions")
def CallImportedFunctions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make calls of functions from `T.import_source` put its text into the CUDA source.

    The first call brings all texts, in their order, because one may call functions that another
    defines; the others bring an empty one.
    """
    sources = sources_in(func)
    if not sources:
        return func
    # One function brings all of it, at each of its calls: TVM keeps one text a name.
    texts: dict[str, str] = {}

    def call(node: ir.Call, mutator: Mutator) -> ir.Expr:
        result = mutator.default_mutate(node)
        if not is_extern_call(result):
            return result
        name, *args = result.args
        if not any(re.search(rf"\b{re.escape(name.value)}\b", source) for source in sources):
            return result
        dtype = str(result.ty.dtype) if hasattr(result.ty, "dtype") else "void"
        text = texts.setdefault(name.value, "" if texts else "\n".join(sources))
        return T.cuda.func_call(name.value, *args, source_code=text, return_type=dtype)

    return with_body(func, mutated(func.body, (ir.Call, call)))
