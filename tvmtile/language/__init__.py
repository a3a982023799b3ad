"""The tile language: `import tvmtile.language as T`.

Everything of TVMScript's `T` (TVM's `tvm.script.tirx`), and over it the tile language, with the names
and the meanings of TileLang's public language: `T.Kernel`, `T.alloc_shared`, `T.copy`, `T.gemm`,
`T.Pipelined`, `T.Parallel`, ...
"""

# ruff: noqa: F403 - TVM's names come first, ours replace those of the same name
from __future__ import annotations

from tvm.script.tirx import *

from tvmtile.language.allocate import *
from tvmtile.language.annotations import *
from tvmtile.language.debug import *
from tvmtile.language.dtypes import as_dtype, dtype_names
from tvmtile.language.frontend import macro, prim_func
from tvmtile.language.kernel import *
from tvmtile.language.loops import *
from tvmtile.language.math import *
from tvmtile.language.pointers import *
from tvmtile.language.tensor import *
from tvmtile.language.variables import Ref
from tvmtile.language.views import *
from tvmtile.language.warps import *
from tvmtile.layout import Fragment, Layout
from tvmtile.tileop.copy import copy
from tvmtile.tileop.fill import clear, fill
from tvmtile.tileop.gemm import GemmWarpPolicy, gemm
from tvmtile.tileop.reduce import (
    reduce,
    reduce_absmax,
    reduce_abssum,
    reduce_bitand,
    reduce_bitor,
    reduce_bitxor,
    reduce_max,
    reduce_min,
    reduce_sum,
)

globals().update({name: as_dtype(name) for name in dtype_names()})
