"""Computations whose cuts into blocks a model can rank."""

from tvmtile.carver.template.attention import FlashAttentionTemplate
from tvmtile.carver.template.base import BaseTemplate
from tvmtile.carver.template.matmul import GEMVTemplate, MatmulTemplate
from tvmtile.carver.template.reduction import ElementwiseTemplate, GeneralReductionTemplate

__all__ = [
    "BaseTemplate",
    "ElementwiseTemplate",
    "FlashAttentionTemplate",
    "GEMVTemplate",
    "GeneralReductionTemplate",
    "MatmulTemplate",
]
