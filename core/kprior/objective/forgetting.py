"""Forgetting in a network: how much loss a removed row should have, and the push that takes it there and no further.

A *judge* is a fresh network that saw some retained rows and none of the removed ones. Its loss on a removed row, as a
percentile of its losses on rows that nobody saw, says how surprising the row is to one who never saw it. The old
network's own losses on unseen rows turn the percentile into a level of loss. Rows like any others end up anywhere among
unseen ones; of a class that is gone, or of rows with wrong labels, all are a surprise, and all must be.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from core.kprior.data.examples import Examples
from core.kprior.model.families import Family
from core.kprior.model.predictor import Predictor


def percentiles(losses: Tensor, unseen: Tensor) -> Tensor:
    """The share of the unseen rows' losses that are below each loss, ties counting half."""
    ranked = unseen.sort().values
    below = torch.searchsorted(ranked, losses, right=False) + torch.searchsorted(ranked, losses, right=True)
    return below.double() / (2 * max(1, len(ranked)))


def forgetting_levels(percentile: Tensor, unseen: Tensor) -> Tensor:
    """The loss that each removed row should have at least: (r,), from the losses (n,) of unseen rows."""
    biased = (2 * percentile.mean() - 1).clamp(0, 1)  # 0: rows like any others; 1: a surprise, all of them
    ranked = unseen.sort().values
    return ranked[(percentile ** (1 - biased) * (len(ranked) - 1)).round().long()]


def push_away(family: Family, y: Tensor, f: Tensor, level: Tensor) -> Tensor:
    """Falls as the outputs leave the labels, with a slope that does not vanish where a label is fitted: (n,).

    Only rows whose loss is below their level count. Where the mean is a number the slope is that of the loss at the
    level.
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
    """The mean loss of who knows the mean of the targets, and nothing else."""
    mean = y.double().mean(0, keepdim=True)
    f = mean if family.name == "gaussian" else mean.clamp(min=1e-6).log()
    if family.name == "bernoulli":
        f = f - (1 - mean).clamp(min=1e-6).log()
    return float(family.excess(y.double(), f.expand_as(y)).mean())


def class_counts(predictor: Predictor, rows: Examples | None) -> Tensor | None:
    """How much the rows of each class count, two for a yes or no; None where there are no classes."""
    family = predictor.family
    if family.name not in ("categorical", "bernoulli"):
        return None
    if rows is None or len(rows) == 0:
        return torch.zeros(max(2, family.outputs), dtype=torch.float64)
    y, weight = rows.y.double().cpu(), predictor.weigh(rows)
    v = torch.ones(len(y), 1, dtype=torch.float64) if weight is None else weight.double().cpu()[:, None]
    return (y * v).sum(0) if family.name == "categorical" else torch.stack([((1 - y) * v).sum(), (y * v).sum()])


def tilt_of(family: Family, kept: Tensor | None, removed: Tensor | None) -> Tensor | None:
    """What to add to the old network's outputs so that it speaks of the classes as they are now.

    Its probabilities are multiplied by the share of each class that is retained: one that is gone is not taught.
    `kept` and `removed` are what the rows of each class count.
    """
    if kept is None or removed is None:
        return None
    share = ((kept + 1e-9) / (kept + removed + 1e-9)).clamp(min=1e-6).log().float()
    return share if family.name == "categorical" else share[1:] - share[:1]
