"""A tuning's result in a file that its user names.

The program is in it as plain data and is compiled where it is read. Unpickling may call the two
functions that make programs of data, and nothing else, and what the program brings along in another
language is not taken, which may begin to run when it is linked: to load a file from elsewhere runs no
code of its. To call the kernel does.
"""

from __future__ import annotations

import io
import pickle
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tvm

from tvmtile._version import __version__
from tvmtile.autotuner.result import AutotuneResult, Trial
from tvmtile.errors import InvalidValue
from tvmtile.ir.options import sources_in
from tvmtile.jit.backends import EMULATOR
from tvmtile.jit.compiler import Request
from tvmtile.jit.ir_data import to_data

_CODE = ("pragma_import_llvm", "pragma_import_c")
_MAKERS = {("tvmtile.jit.compiler", "_again"), ("tvmtile.jit.ir_data", "from_data")}


def save(result: AutotuneResult, path: Path) -> None:
    """Write a result to a file: all of it or nothing."""
    kernel = result.kernel
    facts = {
        "versions": _versions(),
        "config": result.config,
        "latency": result.latency,
        "ref_latency": result.ref_latency,
        "trials": [asdict(trial) for trial in result.trials],
        "request": Request.of(kernel.prim_func, **kernel.options),
    }
    data = pickle.dumps(facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    Path(file.name).replace(path)


def load(path: Path) -> AutotuneResult | None:
    """Read a result; None where there is no such file."""
    if not path.exists():
        return None
    facts = _unpickled(path)
    if not isinstance(facts, dict) or facts.get("versions") != _versions():
        raise InvalidValue(
            f"{path} was not saved by tvmtile {__version__} and TVM {tvm.__version__}",
            help="tune again and save the result",
        )
    request, config = facts["request"], facts["config"]
    _refuse_code(path, request)
    kernel = request.kernel(request.artifact())
    kernel.latency, kernel.ref_latency = facts["latency"], facts["ref_latency"]
    kernel.config = config
    return AutotuneResult(
        facts["latency"],
        config,
        facts["ref_latency"],
        kernel,
        request.func,
        tuple(Trial(**trial) for trial in facts["trials"]),
        is_from_cache=True,
    )


def _versions() -> tuple[str, str]:
    return __version__, tvm.__version__


def _refuse_code(path: Path, request: Request) -> None:
    """Refuse a program with code for the host, which may have constructors.

    In the emulator, CUDA's is the host's.
    """
    words = (part[0] for _, parts in to_data(request.func) for part in parts if type(part) is tuple)
    found = next((word for word in words if isinstance(word, str) and word in _CODE), None)
    if request.backend == EMULATOR and sources_in(request.func):
        found = "T.import_source"
    if found is not None:
        raise InvalidValue(
            f"{path}: the program holds code in another language ({found}), which could run as it is "
            "loaded",
            help="compile the kernel from its source with the configuration that was found",
        )


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _MAKERS:
            raise pickle.UnpicklingError(f"{module}.{name} is not for results")
        return super().find_class(module, name)


def _unpickled(path: Path) -> Any:
    try:
        return _Unpickler(io.BytesIO(path.read_bytes())).load()
    except (pickle.UnpicklingError, EOFError, ValueError, AttributeError, TypeError):
        return None
