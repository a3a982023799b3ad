"""Instructions of PTX, as TVM knows them."""

from __future__ import annotations

from functools import cache
from typing import Any

from tvm.tirx.script import builder as T


@cache
def ptx(name: str) -> Any:
    """The maker of an instruction's calls; TVM looks up the parts of its name one by one."""
    return T.ptx[name]
