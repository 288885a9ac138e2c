"""The membership-inference audit against scikit-learn's area under the curve."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import roc_auc_score

from core.kprior import Examples, membership_auc
from core.kprior.model.predictor import Predictor
from tests.core.kprior.problems import FAMILIES, examples_of, rows, spec_of


def auc(kind: str, suspects: Examples, strangers: Examples, ties: bool) -> tuple[float, float]:
    """Ours, and scikit-learn's of the same losses."""
    predictor = Predictor(spec_of(kind, 3))
    w = torch.linspace(-1, 1, predictor.size).double() * (0 if ties else 1)
    ours = membership_auc(predictor, w, suspects.chunks(7), strangers.chunks(11))
    both = torch.cat([suspects.x, strangers.x])
    y = torch.cat([suspects.y, strangers.y])
    losses = predictor.family.loss(y, predictor.outputs(w, both))
    if kind == "count":  # half the deviance: a large count is no surprise by itself
        losses = losses - (y - torch.xlogy(y, y))[:, 0]
    inside = torch.arange(len(both)) < len(suspects)
    return ours, float(roc_auc_score(inside, -losses))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("kind", FAMILIES)
def test_figure_is_that_of_scikit_learn(kind: str, ties: bool) -> None:
    data = examples_of(kind, 90, 3)
    ours, theirs = auc(kind, rows(data, 0, 30), rows(data, 30, 90), ties)
    assert ours == pytest.approx(theirs, abs=1e-12)


def test_sure_ends_and_the_middle() -> None:
    data = examples_of("number", 40, 3)
    near = Examples(data.key, data.x, torch.zeros_like(data.y))
    far = Examples(data.key, data.x, torch.full_like(data.y, 100.0))
    predictor = Predictor(spec_of("number", 3))
    w = torch.zeros(4, dtype=torch.float64)
    assert membership_auc(predictor, w, [near], [far]) == 1.0
    assert membership_auc(predictor, w, [far], [near]) == 0.0
    assert membership_auc(predictor, w, [near], [near]) == 0.5


def test_both_sides_are_needed() -> None:
    data = examples_of("number", 10, 3)
    predictor = Predictor(spec_of("number", 3))
    w = torch.zeros(4, dtype=torch.float64)
    for suspects, strangers in (([], [data]), ([data], []), ([rows(data, 0, 0)], [data])):
        with pytest.raises(ValueError, match="both suspects and strangers"):
            membership_auc(predictor, w, suspects, strangers)
