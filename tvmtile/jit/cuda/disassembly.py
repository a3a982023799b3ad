"""Machine code of NVIDIA's GPUs as text, by the disassembler of CUDA's toolkit."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tvmtile.errors import MissingDependency, import_optional

_TOOL = "nvdisasm"


def disassembled(cubin: bytes) -> str:
    """What the disassembler prints of an ELF file.

    Raises
    ------
    MissingDependency
        If it is neither installed as a package nor in a toolkit nor on the path.
    """
    tool = _found()
    if tool is None:
        raise MissingDependency(
            f"disassembling a CUDA kernel needs {_TOOL}, which is not installed",
            help="pip install nvidia-cuda-nvdisasm, or install CUDA's toolkit; kernel.show_ptx() needs "
            "neither",
        )
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([tool, str(file)], capture_output=True, text=True, check=True)
    return done.stdout


def _found() -> str | None:
    pathfinder = import_optional("cuda.pathfinder", "cuda", "disassembling CUDA kernels")
    path: str | None = pathfinder.find_nvidia_binary_utility(_TOOL)
    return path
