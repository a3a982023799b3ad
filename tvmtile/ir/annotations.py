"""Names of annotations and attributes: what the language writes and passes read."""

from __future__ import annotations

__all__ = [
    "APART",
    "ARRIVES_ONLY",
    "ARRIVE_COUNT",
    "BARRIER_ID",
    "CLUSTER_ANNOTATION",
    "CLUSTER_STEP",
    "COOPERATIVE_LAUNCH",
    "FAST",
    "IN_FLIGHT_ANNOTATION",
    "KERNEL_ANNOTATION",
    "LAUNCH_TAGS_WITHOUT_VALUE",
    "MAY_ALIAS",
    "NO_UNROLLING",
    "ORDER_ANNOTATION",
    "OVERLAPPED_LAUNCH",
    "STAGES_ANNOTATION",
    "STAGE_ANNOTATION",
    "UNROLL_BY_TVM",
    "UNROLL_FACTOR",
]

KERNEL_ANNOTATION = "tvmtile.kernel"
"""Annotation of a kernel's outermost `blockIdx` loop: how tvmtile's passes know a tile program."""
CLUSTER_ANNOTATION = "tvmtile.cluster"
"""Annotation of the same loop: the blocks of a cluster along x, y and z."""
STAGES_ANNOTATION = "tvmtile.num_stages"
"""Annotation of a pipelined loop: how many buffer copies the tiles get that async copies fill."""
ORDER_ANNOTATION = "tvmtile.order"
"""Annotation of a pipelined loop: the user's order of its statements."""
STAGE_ANNOTATION = "tvmtile.stage"
"""Annotation of a pipelined loop: the user's stage of each of its statements."""
IN_FLIGHT_ANNOTATION = "tvmtile.in_flight"
"""Annotation of a pipelined loop: after how many iterations each of its statements is waited for."""
NO_UNROLLING = "disable_unroll"
"""TVM's annotation of a loop that the compiler of the generated source does not unroll."""
UNROLL_BY_TVM = "pragma_unroll_explicit"
"""TVM's annotation of an unrolled loop: false where the compiler of the generated source unrolls it."""
UNROLL_FACTOR = "pragma_unroll_factor"
"""Annotation of a loop: how many of its iterations to unroll."""
BARRIER_ID = "tvmtile.barrier_id"
"""Attribute of a barrier: which of a GPU's barriers it is."""
ARRIVE_COUNT = "tvmtile.arrive_count"
"""Attribute of a barrier: how many threads come to it, where not all do."""
APART = "tvmtile.apart"
"""Attribute of a barrier: each warpgroup that comes to it waits for itself alone."""
ARRIVES_ONLY = "tvmtile.arrives_only"
"""Attribute of a barrier: threads do not wait at it, others wait for them."""
CLUSTER_STEP = "tvmtile.cluster_step"
"""Attribute of a cluster's barrier of which it is a part: "arrive", "arrive_relaxed" or "wait"."""
MAY_ALIAS = "tvmtile.may_alias"
"""Attribute of a function: the names of tensors that may share memory."""
FAST = "tvmtile.fast"
"""Attribute of the call of a function that need not be exact."""
COOPERATIVE_LAUNCH = "tirx.use_cooperative_launch"
"""TVM's launch parameter of a kernel all of whose blocks run at once."""
OVERLAPPED_LAUNCH = "tirx.use_programtic_dependent_launch"
"""TVM's launch parameter of a kernel that may begin before the one launched before it has ended."""
LAUNCH_TAGS_WITHOUT_VALUE = (COOPERATIVE_LAUNCH, OVERLAPPED_LAUNCH)
"""Launch parameters without a value, which TVM's runtime knows; its lowering does not write them."""
