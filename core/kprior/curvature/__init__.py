"""The generalised Gauss-Newton matrix of past data, G = sum_i v_i J_i' L_i J_i with L = h'(f*).

A version carries G over all its data (paper, Eq. 12, with nothing in memory); what a memory leaves out,
Q = G - sum_M v_i J_i' L_i J_i, is derived when an objective is built. Both are sums, so they are updated, never
recomputed, when examples come and go. Four backends share one interface and one contract suite:

    full        the matrix itself: exact; GLMs and last layers
    blocks      one block for each output of a GLM: wide ones
    kronecker   one Kronecker product per layer (KFAC; Martens & Grosse 2015)
    diagonal    the diagonal

A weight is negative where examples are taken away; `clip` restores positive semi-definiteness after that.
"""

from __future__ import annotations

from core.kprior.curvature.base import Curvature, cholesky, ggn_rows, row_chunks
from core.kprior.curvature.blocks import Blocks
from core.kprior.curvature.diagonal import Diagonal
from core.kprior.curvature.full import Full, balance, glm_hessian
from core.kprior.curvature.kronecker import Kronecker
from core.kprior.model.predictor import Predictor

__all__ = [
    "Blocks",
    "Curvature",
    "Diagonal",
    "Full",
    "Kronecker",
    "balance",
    "cholesky",
    "ggn_rows",
    "glm_hessian",
    "is_wide",
    "row_chunks",
]

MAX_FULL_SIZE = 1_000
"""Parameters up to which the whole matrix is kept: beyond, gathering it takes longer than a fit without it."""
MAX_BLOCK_NUMBERS = 2**27
"""In all blocks of a wide GLM together (half a gigabyte); beyond, a Kronecker product stands for them."""
MAX_KRONECKER_INPUTS = 8_192
"""Inputs of a layer up to which a Kronecker factor is kept; beyond, the diagonal."""

BACKENDS: dict[str, type[Curvature]] = {c.kind: c for c in (Full, Blocks, Kronecker, Diagonal)}


def curvature_for(predictor: Predictor, kind: str = "auto") -> Curvature:
    """An empty curvature: of the named backend, or of the one that suits the number of parameters.

    Raises
    ------
    ValueError
        If no backend has that name, or the named one does not know the model's layers.
    """
    if kind == "auto":
        kind = kind_for(predictor)
    if kind not in BACKENDS:
        raise ValueError(f"unknown curvature {kind!r}; known: auto, {', '.join(BACKENDS)}")
    return BACKENDS[kind].zeros(predictor)


def is_wide(predictor: Predictor) -> bool:
    """Whether a GLM has too many weights for its whole Hessian: its gradient alone is descended along."""
    return predictor.linear and predictor.size > MAX_FULL_SIZE


def kind_for(predictor: Predictor) -> str:
    """The backend that suits a model."""
    if predictor.size <= MAX_FULL_SIZE:
        return "full"
    if not predictor.linear:
        return "kronecker" if Kronecker.supports(predictor) else "diagonal"
    D = predictor.size // predictor.family.outputs
    if predictor.size * D <= MAX_BLOCK_NUMBERS:
        return "blocks"
    return "kronecker" if max(D, predictor.family.outputs) <= MAX_KRONECKER_INPUTS else "diagonal"


def backend_for(predictor: Predictor, curvature: str | None) -> str | None:
    """Which curvature a model carries: networks only what they are told to."""
    if curvature is None or (curvature == "auto" and not predictor.linear):
        return None
    return curvature
