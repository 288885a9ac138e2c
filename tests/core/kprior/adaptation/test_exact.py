"""With everything in memory an adaptation is the retrain: every family, every task, every combination."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from core.kprior import Cost, adapt
from core.kprior.objective.kprior_objective import build_objective
from tests.core.kprior import oracles
from tests.core.kprior.adaptation.cases import AdaptationCase, all_cases
from tests.core.kprior.problems import EVERYTHING, LOSSES, relative_distance

pytestmark = pytest.mark.grid(4)

CASES = [
    pytest.param(
        case,
        id="-".join((case.kind, case.model, case.penalty, case.data + " weighted" * case.weighted)).replace(" ", "_"),
    )
    for kind in LOSSES
    for case in all_cases(kind)
]


@pytest.mark.parametrize("early", [False, True], ids=["converged", "stopped_early"])
@pytest.mark.parametrize("case", CASES)
def test_full_memory_gives_the_retrain(case: AdaptationCase, early: bool) -> None:
    state, memory = case.start(early)
    adapted = adapt(state, memory, case.tasks(), policy=EVERYTHING)
    assert adapted.converged
    assert adapted.state.count == len(case.retained)
    assert adapted.state.spec == case.spec
    assert relative_distance(adapted.state, case.retrained) <= (1e-5 if "kernel" in case.model else 1e-6)


@pytest.mark.parametrize("case", CASES)
def test_full_memory_gradient_is_that_of_the_retained_objective(case: AdaptationCase) -> None:
    state, memory = case.start(early=True)
    problem = build_objective(state, memory, case.tasks(), 0, Cost())
    generator = torch.Generator().manual_seed(1)
    for size in (0.1, 1.0):
        w = size * torch.randn(problem.predictor.size, generator=generator, dtype=torch.float64)
        _, gradient, _ = problem.objective.evaluate(w, Cost())
        truth = autograd_of_retained(case, w)
        close = 1e-6 if "kernel" in case.model else 1e-9  # a kernel's features are singles
        assert float((gradient - truth).norm()) <= close * float(truth.norm())


def autograd_of_retained(case: AdaptationCase, w: Tensor) -> Tensor:
    """grad of sum_i l(y_i, f_i(w)) + 1/2 sum_j delta_j (w_j - m_j)^2 over the retained rows, in torch's own words."""
    w = w.clone().requires_grad_()
    data = case.retained
    phi = torch.from_numpy(oracles.design_matrix(data.x, case.spec["architecture"]))
    K = data.y.shape[1]
    f = phi @ w.view(K, -1).T
    if case.kind == "binary":
        each = functional.binary_cross_entropy_with_logits(f, data.y, reduction="none")[:, 0]
    elif case.kind == "classes":
        each = functional.cross_entropy(f, data.y, reduction="none")
    elif case.kind == "number":
        each = functional.mse_loss(f, data.y, reduction="none")[:, 0] / 2
    elif case.kind == "squared_hinge":
        each = (1 - (2 * data.y - 1) * f).clamp(min=0)[:, 0] ** 2
    elif case.kind == "huber":
        each = functional.huber_loss(f, data.y, delta=1.35, reduction="none")[:, 0]
    else:
        each = functional.poisson_nll_loss(f, data.y, log_input=True, full=False, reduction="none")[:, 0]
    weight = oracles.row_weights(case.spec, data)
    loss = each.sum() if weight is None else (torch.from_numpy(weight) * each).sum()
    delta = torch.from_numpy(oracles.deltas_of(case.spec, K, phi.shape[1]))
    mean = torch.from_numpy(oracles.mean_of(case.spec, len(w)))
    (gradient,) = torch.autograd.grad(loss + (delta * (w - mean) ** 2).sum() / 2, w)
    return gradient
