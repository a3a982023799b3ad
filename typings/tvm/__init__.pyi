"""The node types of TVM that tvmtile works on; what is not here is Any."""

from typing import Any

from . import ir as ir
from . import tirx as tirx

def __getattr__(name: str) -> Any: ...
