"""The tile programs behind `tvmtile.ops`, for given extents, dtypes and target.

Each is a `PrimFunc` in the language that users write, cut into blocks as `tvmtile.ops.configurations`
says; `tvmtile.compile` makes a kernel of it, and a module of TVM may hold it. The programs of
`examples/` are the same computations at their shortest, for one who learns the language; these take
transposed and batched operands, epilogues, shared heads and extents that only a call knows.
"""

from tvmtile.ops.programs.flash import attention, attention_backward
from tvmtile.ops.programs.gemm import ACTIVATIONS, matmul
from tvmtile.ops.programs.online_softmax import OnlineSoftmax, normalized_weight
from tvmtile.ops.programs.rows import layer_norm, rms_norm, softmax

__all__ = [
    "ACTIVATIONS",
    "OnlineSoftmax",
    "attention",
    "attention_backward",
    "layer_norm",
    "matmul",
    "normalized_weight",
    "rms_norm",
    "softmax",
]
