"""Curvature estimated from a sample of rows: a preconditioner for wide GLMs, which does not affect the solution."""

from collections.abc import Callable

import torch
from torch import Tensor

from core.kprior.curvature import Blocks, Curvature, Diagonal, Kronecker, kind_for
from core.kprior.curvature.row_space import has_few_rows, row_space_inverse
from core.kprior.data.examples import EncodedExamples, concatenate
from core.kprior.data.leaf_rows import with_features
from core.kprior.model.predictor import Predictor

SAMPLE_ROWS, SAMPLE_NUMBERS = 20_000, 2**25
"""Largest sample, in rows and in feature values."""
MIN_BLOCK_ROWS, MAX_BLOCK_ROWS = 1_000, 2_500
"""Rows that a block of moderate size is estimated from."""


def sample_fraction(predictor: Predictor, count: int) -> float:
    """Fraction of the rows that curvature is estimated from."""
    D = predictor.size // predictor.family.outputs
    return max(16, min(SAMPLE_ROWS, SAMPLE_NUMBERS // D)) / max(1, count)


def block_rows(size: int) -> int:
    """Number of rows that a block of the given size is estimated from.

    Fewer than six times its size make an estimate whose noise costs more passes than the rows do: with independent
    columns, it is worse than a multiple of the identity. A large block takes longer to sum than these passes.
    """
    return max(MIN_BLOCK_ROWS, min(6 * size, MAX_BLOCK_ROWS), 2 * size)


def estimate_curvature(
    predictor: Predictor, w: Tensor, sample: list[EncodedExamples], count: int, seed: int
) -> Curvature:
    """Estimate a preconditioner for `count` rows from a sample."""
    kind = kind_for(predictor)
    D = predictor.size // predictor.family.outputs
    rows = concatenate(sample)
    if kind in ("full", "blocks"):
        generator = torch.Generator().manual_seed(seed)
        return Blocks.estimate(predictor, w, rows, count, block_rows(D), generator)
    rows = with_features(predictor, rows, max(16, min(SAMPLE_ROWS, SAMPLE_NUMBERS // D)))
    curvature = Kronecker.zeros(predictor) if kind == "kronecker" else Diagonal.zeros(predictor)
    taken = rows.take(torch.arange(min(len(rows), max(2_000, 2 * D) if kind == "kronecker" else 2_000)))
    scale = count / max(1, len(taken))
    weight = scale if taken.weight is None else taken.weight.to(predictor.dtype) * scale
    curvature.add_features(predictor, w, taken.x.to(predictor.dtype), weight)
    return curvature


def estimate_inverse(
    predictor: Predictor,
    w: Tensor,
    sample: list[EncodedExamples],
    count: int,
    seed: int,
    delta: Tensor,
    curvature: Curvature | None = None,
) -> Callable[[Tensor], Tensor]:
    """Approximate the inverse Hessian at w: in the space of the rows if there are few, else from the curvature, which
    is estimated unless it is given."""
    rows = concatenate(sample)
    if len(rows) == count and has_few_rows(predictor, count, delta):
        return row_space_inverse(predictor, w, with_features(predictor, rows), delta)
    return (curvature or estimate_curvature(predictor, w, sample, count, seed)).inverse(delta)
