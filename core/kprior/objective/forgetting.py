"""Forgetting in a network: the loss that a removed row should have, and the term that pushes it there and no further.

A *judge* is a new network that was trained on some retained rows and on none of the removed ones. Its loss on a removed
row, as a percentile of its losses on unseen rows, says how surprising the row is to a network that never saw it. The
old network's losses on unseen rows turn the percentile into a level of loss. Typical rows end up anywhere among unseen
ones; rows of a removed class, or rows with wrong labels, are all surprising, and must all be.
"""

import torch
from torch import Tensor
from torch.nn import functional

from core.kprior.data.examples import Examples
from core.kprior.model.families import Family
from core.kprior.model.predictor import Predictor


def percentiles(losses: Tensor, unseen: Tensor) -> Tensor:
    """The fraction of the unseen rows' losses that are below each loss; ties count half."""
    ranked = unseen.sort().values
    below = torch.searchsorted(ranked, losses, right=False) + torch.searchsorted(ranked, losses, right=True)
    return below.double() / (2 * max(1, len(ranked)))


def forgetting_levels(percentile: Tensor, unseen: Tensor) -> Tensor:
    """The smallest loss that each removed row should have: (r,), from the losses (n,) of unseen rows."""
    biased = (2 * percentile.mean() - 1).clamp(0, 1)  # 0: typical rows; 1: all are surprising
    ranked = unseen.sort().values
    return ranked[(percentile ** (1 - biased) * (len(ranked) - 1)).round().long()]


def push_away(family: Family, y: Tensor, f: Tensor, level: Tensor) -> Tensor:
    """A term (n,) that falls as outputs move away from the labels, with a slope that does not vanish at a fitted label.

    Only rows whose loss is below their level count. For numbers and counts, the slope is that of the loss at the level.
    """
    short = family.excess(y, f).detach() < level
    if family.name == "categorical":  # -log(1 - p_y)
        away = f.logsumexp(1) - f.masked_fill(y > 0.5, -1e9).logsumexp(1)
    elif family.name == "bernoulli":
        away = functional.softplus((2 * y - 1) * f).sum(1)
    elif family.name == "poisson":
        away = -((2 * level[:, None] * (y + 0.5)).sqrt() * (f - (y + 0.5).log()).abs()).sum(1)
    else:
        away = -((2 * level[:, None]).sqrt() * (f - y).abs()).sum(1)
    return torch.where(short, away, torch.zeros_like(away))


def uninformed_loss(family: Family, y: Tensor) -> float:
    """The mean loss of a constant prediction, the mean of the targets."""
    mean = y.double().mean(0, keepdim=True)
    f = mean if family.name == "gaussian" else mean.clamp(min=1e-6).log()
    if family.name == "bernoulli":
        f = f - (1 - mean).clamp(min=1e-6).log()
    return float(family.excess(y.double(), f.expand_as(y)).mean())


def class_counts(predictor: Predictor, rows: Examples | None) -> Tensor | None:
    """The total weight of the rows of each class (two classes for a binary target); None if there are no classes."""
    family = predictor.family
    if family.name not in ("categorical", "bernoulli"):
        return None
    if rows is None or len(rows) == 0:
        return torch.zeros(max(2, family.outputs), dtype=torch.float64)
    y, weight = rows.y.double().cpu(), predictor.weigh(rows)
    v = torch.ones(len(y), 1, dtype=torch.float64) if weight is None else weight.double().cpu()[:, None]
    return (y * v).sum(0) if family.name == "categorical" else torch.stack([((1 - y) * v).sum(), (y * v).sum()])


def tilt_of(family: Family, kept: Tensor | None, removed: Tensor | None) -> Tensor | None:
    """The correction of the old network's outputs for the changed class frequencies.

    It multiplies the probabilities by the fraction of each class that is retained, so that a removed class is not
    taught. `kept` and `removed` are the total weights of the rows of each class.
    """
    if kept is None or removed is None:
        return None
    share = ((kept + 1e-9) / (kept + removed + 1e-9)).clamp(min=1e-12).log().float()
    return share if family.name == "categorical" else share[1:] - share[:1]
