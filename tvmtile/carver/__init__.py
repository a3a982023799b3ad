"""Proposals from a model: how to cut a computation into blocks for a device, without measuring.

```
hints = carver.MatmulTemplate(M=4096, N=4096, K=4096).with_arch(carver.CUDA()).recommend_hints(20)
```

`@tvmtile.autotune(configs="auto")` asks for them itself.
"""

from importlib import import_module

from tvmtile.carver.proposals import proposals, tunable
from tvmtile.carver.templates import (
    BaseTemplate,
    ElementwiseTemplate,
    FlashAttentionTemplate,
    GEMVTemplate,
    GeneralReductionTemplate,
    Hint,
    MatmulTemplate,
)
from tvmtile.target.devices import (
    CDNA,
    CPU,
    CUDA,
    METAL,
    TileDevice,
    auto_infer_current_arch,
    get_arch,
)

arch, roller, template = (
    import_module(f"{__name__}.{path}") for path in ("arch", "roller", "template")
)

__all__ = [
    "CDNA",
    "CPU",
    "CUDA",
    "METAL",
    "BaseTemplate",
    "ElementwiseTemplate",
    "FlashAttentionTemplate",
    "GEMVTemplate",
    "GeneralReductionTemplate",
    "Hint",
    "MatmulTemplate",
    "TileDevice",
    "arch",
    "auto_infer_current_arch",
    "get_arch",
    "proposals",
    "roller",
    "template",
    "tunable",
]
