"""What of Metal TVM's own runtime lacks: it compiles kernels as Metal 2.3, with fast mathematics."""

from __future__ import annotations

import re

_LATER = (
    (r"\w*bfloat\w*", "bfloat16, of Metal 3.1"),
    (r"atomic_float", "atomic addition to float32, of Metal 3"),
    (r"atomic_thread_fence", "memory orders other than relaxed, of Metal 3.2"),
    (r"os_log_default", "messages from kernels, of Metal 3.2"),
    (r"nextafter", "nextafter, of Metal 3.1"),
    (r"MetalPerformancePrimitives", "matmul2d, of Metal 4"),
    (r"INFINITY", "infinities, which fast mathematics takes for impossible"),
)
"""A name in a kernel's source, and what it stands for."""


def lacking_in_tvm(source: str) -> list[str]:
    """What the source of a kernel needs and TVM's runtime has not, in words."""
    return [words for name, words in _LATER if re.search(rf"\b{name}\b", source)]
