from collections.abc import Mapping, Sequence
from typing import Any

class PassContext:
    opt_level: int
    config: Mapping[str, Any]
    instruments: Sequence[Any]
    required_pass: Sequence[str]
    disabled_pass: Sequence[str]
    def __init__(
        self,
        opt_level: int = 2,
        required_pass: Sequence[str] | None = None,
        disabled_pass: Sequence[str] | None = None,
        instruments: Sequence[Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None: ...
    def __enter__(self) -> PassContext: ...
    def __exit__(self, ptype: Any, value: Any, trace: Any) -> None: ...
    @staticmethod
    def current() -> PassContext: ...

def __getattr__(name: str) -> Any: ...
