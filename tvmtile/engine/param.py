"""A kernel's parameters and what it is compiled to, under the name of TileLang's module."""

from tvmtile.jit.lowering import CompiledArtifact
from tvmtile.jit.parameters import KernelParam

__all__ = ["CompiledArtifact", "KernelParam"]
