"""The generalised Gauss-Newton matrix of past data, G = sum_i v_i J_i' L_i J_i with L = h'(f*).

A version stores G over all its data (paper, Eq. 12, with an empty memory). The part that a memory does not cover,
Q = G - sum_M v_i J_i' L_i J_i, is computed when an objective is built. Both are sums, so adding and removing examples
updates them; they are never recomputed. Four backends share one interface and one contract test suite:

    full        the matrix itself: exact; GLMs and last layers
    blocks      one block for each output of a GLM; for wide GLMs
    kronecker   one Kronecker product per layer (KFAC; Martens & Grosse 2015)
    diagonal    the diagonal

Examples are removed with negative weights; `clip` then restores positive semi-definiteness.
"""

from core.kprior.curvature.base import Curvature, cholesky, ggn_rows, row_chunks, solve_factored
from core.kprior.curvature.blocks import Blocks
from core.kprior.curvature.diagonal import Diagonal
from core.kprior.curvature.full import Full, balance, glm_hessian
from core.kprior.curvature.kronecker import Kronecker
from core.kprior.model.predictor import Predictor
from core.kprior.model.tree_leaves import Leaves

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
    "solve_factored",
]

MAX_FULL_SIZE = 1_000
"""Largest number of parameters for the full matrix: beyond, computing it takes longer than a fit without it."""
MAX_LEAF_SIZE = 4_096
"""The same for trees, whose matrix is summed over pairs of leaves."""
MAX_BLOCK_NUMBERS = 2**27
"""Largest size of all blocks of a wide GLM (half a gigabyte); beyond, a Kronecker product replaces them."""
MAX_KRONECKER_INPUTS = 8_192
"""Largest number of inputs of a layer for a Kronecker factor; beyond, the diagonal is used."""

BACKENDS: dict[str, type[Curvature]] = {c.kind: c for c in (Full, Blocks, Kronecker, Diagonal)}


def curvature_for(predictor: Predictor, kind: str = "auto") -> Curvature:
    """An empty curvature of the named backend, or of the one that fits the model.

    Raises
    ------
    ValueError
        If the backend is unknown, or does not support the model's layers.
    """
    if kind == "auto":
        kind = kind_for(predictor)
    if kind not in BACKENDS:
        raise ValueError(f"Unknown curvature {kind!r}. Choose one of: auto, {', '.join(BACKENDS)}.")
    return BACKENDS[kind].zeros(predictor)


def is_wide(predictor: Predictor) -> bool:
    """Whether a GLM has too many weights for its full Hessian, so that its solver uses gradients only."""
    return predictor.linear and predictor.size > max_full_size(predictor)


def max_full_size(predictor: Predictor) -> int:
    """Largest number of parameters for which the full matrix of a model is computed."""
    return MAX_LEAF_SIZE if isinstance(predictor.body, Leaves) else MAX_FULL_SIZE


def kind_for(predictor: Predictor) -> str:
    """The default backend of a model."""
    if predictor.size <= max_full_size(predictor):
        return "full"
    if not predictor.linear:
        return "kronecker" if Kronecker.supports(predictor) else "diagonal"
    D = predictor.size // predictor.family.outputs
    if predictor.size * D <= MAX_BLOCK_NUMBERS:
        return "blocks"
    return "kronecker" if max(D, predictor.family.outputs) <= MAX_KRONECKER_INPUTS else "diagonal"


def backend_for(predictor: Predictor, curvature: str | None) -> str | None:
    """The backend of the curvature that a model stores; networks store one only if it is named."""
    if curvature is None or (curvature == "auto" and not predictor.linear):
        return None
    return curvature
