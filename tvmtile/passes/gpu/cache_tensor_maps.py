"""CacheTensorMaps: the host encodes a tensor map once for a tensor and a shape."""

from __future__ import annotations

from tvm import tirx

from tvmtile._tvm import mapped
from tvmtile.codegen.kept_maps import keep_name, kept_maps, recall_name
from tvmtile.codegen.names import in_c
from tvmtile.ir.kernels import importing_llvm, with_body
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import seq
from tvmtile.ir.tensor_maps import is_encoder


@prim_func_pass("CacheTensorMaps", requires=(Property.NO_TILE_OPERATORS,))
def CacheTensorMaps(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Look for a map that an earlier launch has encoded before it is encoded.

    What the map is made of is compared: the tensor's address and all numbers that differ between calls.
    A kernel gets its maps by value, so that a launch that waits in a stream or a graph has its own.
    """
    texts: list[str] = []
    name = in_c(str(func.attrs["global_symbol"]))

    def kept(stmt: tirx.Evaluate) -> tirx.Stmt:
        call = stmt.value
        if not is_encoder(call):
            return stmt
        _, memory, _, _, data, *numbers = call.args
        unknown = [number.astype("int64") for number in numbers if constant(number) is None]
        site = f"{name}_{len(texts)}"
        texts.append(kept_maps(site, len(unknown)))
        found = tirx.call_extern("int32", recall_name(site), memory, data, *unknown)
        keep = tirx.call_extern("int32", keep_name(site), memory, data, *unknown)
        return tirx.IfThenElse(found == 0, seq([stmt, tirx.Evaluate(keep)]), None)

    body = mapped(func.body, (tirx.Evaluate, kept))
    return with_body(func, importing_llvm(body, texts)) if texts else func
