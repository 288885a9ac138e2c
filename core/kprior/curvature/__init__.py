"""The generalised Gauss-Newton matrix of past data, G = sum_i v_i J_i' L_i J_i with L = h'(f*).

A version carries G over all its data (paper, Eq. 12, with nothing in memory); what a memory leaves out,
Q = G - sum_M v_i J_i' L_i J_i, is derived when an objective is built. Both are sums, so they are updated, never
recomputed, when examples come and go. Four backends share one interface and one contract suite:

    full        the matrix itself: exact; GLMs and last layers
    lowrank     the leading `rank` directions of a running singular value decomposition; never more than G
    kronecker   one Kronecker product per layer (KFAC; Martens & Grosse 2015)
    diagonal    the diagonal

A weight is negative where examples are taken away; `clip` restores positive semi-definiteness after that.
"""

from __future__ import annotations

from core.kprior.curvature.base import Curvature, cholesky, ggn_rows, row_chunks
from core.kprior.curvature.diagonal import Diagonal
from core.kprior.curvature.full import Full, balance, glm_hessian
from core.kprior.curvature.kronecker import Kronecker
from core.kprior.curvature.lowrank import LowRank
from core.kprior.model.predictor import Predictor

__all__ = [
    "balance",
    "Curvature",
    "Diagonal",
    "Full",
    "Kronecker",
    "LowRank",
    "cholesky",
    "ggn_rows",
    "glm_hessian",
    "row_chunks",
]

FULL_LIMIT = 1_000
"""Parameters up to which the whole matrix is kept: beyond, gathering it takes longer than a fit without it."""
LOWRANK_LIMIT = 200_000

BACKENDS: dict[str, type[Curvature]] = {c.kind: c for c in (Full, LowRank, Kronecker, Diagonal)}


def curvature_for(predictor: Predictor, kind: str = "auto") -> Curvature:
    """An empty curvature: of the named backend, or of the one that suits the number of parameters."""
    if kind == "auto":
        if predictor.size <= FULL_LIMIT:
            kind = "full"
        elif predictor.size <= LOWRANK_LIMIT:
            kind = "lowrank"
        else:
            kind = "kronecker" if Kronecker.supports(predictor) else "diagonal"
    if kind not in BACKENDS:
        raise ValueError(f"unknown curvature {kind!r}; known: auto, {', '.join(BACKENDS)}")
    return BACKENDS[kind].zeros(predictor)
