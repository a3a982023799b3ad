"""What the driver of an NVIDIA GPU says of it."""

from __future__ import annotations

from typing import Any

import tvm

from tvmtile.cuda_runtime import has_gpu
from tvmtile.errors import MissingDependency


def _device(device_id: int) -> Any:
    if not has_gpu():
        raise MissingDependency(
            "there is no NVIDIA GPU here to ask", help="carver.arch.CUDA(target) has tables of them"
        )
    return tvm.cuda(device_id)


def get_num_sms(device_id: int = 0) -> int:
    """How many multiprocessors a GPU has.

    Raises
    ------
    MissingDependency
        If there is no GPU.
    """
    return int(_device(device_id).multi_processor_count)


def get_device_name(device_id: int = 0) -> str:
    """The name of a GPU."""
    return str(_device(device_id).device_name)


def get_compute_capability(device_id: int = 0) -> int:
    """The number of a GPU's architecture: 90 for 9.0."""
    return int(str(_device(device_id).compute_version).replace(".", ""))


def get_shared_memory_per_block(device_id: int = 0) -> int:
    """Bytes of shared memory that a block has without asking for more."""
    return int(_device(device_id).max_shared_memory_per_block)


def get_max_dynamic_shared_size_bytes(device_id: int = 0) -> int:
    """Bytes of shared memory that a block may ask for."""
    from tvmtile.target import gpu, resolve

    _device(device_id)
    limits = gpu(resolve("cuda"))
    assert limits is not None
    return limits.shared_memory
