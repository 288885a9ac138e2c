"""Methods of continual learning that the paper compares K-priors with (Sec. 4.5): FROMP's B matrix, and GEM.

Both handle added examples only. Neither fits the objective of the engine: FROMP's is not convex, and GEM is a
constraint.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.paper.limit import rows_of
from bench.paper.objective.methods import Method
from bench.problems import Problem
from core.kprior import AddData, Examples, State
from core.kprior.curvature import Full, cholesky
from core.kprior.curvature.diagonal import Diagonal
from core.kprior.model.predictor import Predictor

L2_PRIOR = Method(memory=False, curvature=False, gradient=False)
"""delta/2 |w - w*|^2 alone."""
RANK = 1e-5
"""Singular values below this fraction of the largest are treated as zero."""
RIDGE = 1e-4
"""The fraction of delta that is added to G so that it can be inverted."""
HALVINGS = 8
"""Bisection steps for the smallest multiplier that satisfies GEM's constraint."""

EPOCHS, RATE = 1000, 0.005
"""Options of Adam with full batches, as the paper trains the networks of USPS."""

Value = Callable[[Tensor], Tensor]


class Additions:
    """The loss of the added rows."""

    def __init__(self, predictor: Predictor, problem: Problem) -> None:
        self.predictor = predictor
        self.rows = [(predictor.encode(rows.x), rows.y.to(predictor.dtype)) for rows in rows_of(problem, AddData)]
        if not self.rows:
            raise ValueError("FROMP and GEM handle added examples only.")

    def __call__(self, w: Tensor) -> Tensor:
        losses = [self.predictor.family.loss(y, self.predictor.outputs_of_encoded(w, z)).sum() for z, y in self.rows]
        return torch.stack(losses).sum()


def fromp(base: State, problem: Problem, memory: Examples, G: Full | Diagonal) -> tuple[Tensor, int]:
    """FROMP's B (Pan et al. 2020; paper, Eq. 14) in a K-prior: 1/2 d' K^-1 d with d = h(f) - h(f*) on the memory,

        K = L* J* G^-1 J*' L*,  L = diag h',

    so that its gradient is J' B d with B = L(w) K^-1, and delta/2 |w - w*|^2. The paper prints delta in G, and FROMP
    has no weight-space term: then nothing holds the weights where probabilities are near 0 or 1 and say no more.

    Returns
    -------
    tuple
        The weights, and rows differentiated.
    """
    predictor, family, delta = base.predictor, base.predictor.family, base.regularizer.delta
    if family.outputs > 1:
        raise ValueError("FROMP is implemented for models with one output only.")
    added, z = Additions(predictor, problem), predictor.encode(memory.x)
    f = predictor.outputs_of_encoded(base.w, z)
    A = family.variance(f) * predictor.jacobian(base.w, memory.x)[:, 0]
    U, s, _ = torch.linalg.svd(whiten_rows(A, G, RIDGE * delta).double(), full_matrices=False)  # K = U s^2 U'
    known = s > RANK * s[0]
    root = (U[:, known] / s[known]).T.to(A)
    old = family.mean(f)[:, 0]

    def value(w: Tensor) -> Tensor:
        d = family.mean(predictor.outputs_of_encoded(w, z))[:, 0] - old
        return added(w) + 0.5 * ((root @ d) ** 2).sum() + 0.5 * (delta * (w - base.w) ** 2).sum()

    w, steps = minimise(value, base.w, predictor.linear)
    return w, steps * (len(memory) + sum(len(y) for _, y in added.rows))


def whiten_rows(A: Tensor, G: Full | Diagonal, delta: Tensor) -> Tensor:
    """R with R R' = A (G + delta)^-1 A'."""
    if isinstance(G, Diagonal):
        return A / (G.diagonal + delta).sqrt()
    return torch.linalg.solve_triangular(cholesky(G.matrix + torch.diag(delta)), A.T, upper=False).T


def gem(base: State, problem: Problem, memory: Examples) -> tuple[Tensor, int]:
    """GEM (Lopez-Paz & Ranzato 2017), by its goal instead of its dual: fit the added rows without increasing the loss
    on the memory.

        min sum_added l + R(w)   with   sum_M l(y, f) <= sum_M l(y, f*)

    by the smallest multiplier that satisfies the constraint.

    Returns
    -------
    tuple
        The weights, and rows differentiated.
    """
    predictor, family = base.predictor, base.predictor.family
    added, z = Additions(predictor, problem), predictor.encode(memory.x)
    y = memory.y.to(predictor.dtype)

    def remembered(w: Tensor) -> Tensor:
        return family.loss(y, predictor.outputs_of_encoded(w, z)).sum()

    allowed, spent = float(remembered(base.w)), 0
    rows = len(memory) + sum(len(y) for _, y in added.rows)

    def with_multiplier(multiplier: float) -> Tensor:
        nonlocal spent

        def value(w: Tensor) -> Tensor:
            return added(w) + multiplier * remembered(w) + base.regularizer.value(w)

        w, steps = minimise(value, base.w, predictor.linear)
        spent += steps * rows
        return w

    def holds(w: Tensor) -> bool:
        return float(remembered(w)) <= allowed * (1 + 1e-6)

    low, high, w = 0.0, 1.0, with_multiplier(1.0)
    while not holds(w) and high < 1e4:
        low, high = high, 4 * high
        w = with_multiplier(high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        tried = with_multiplier(middle)
        if holds(tried):
            w, high = tried, middle
        else:
            low = middle
    return w, spent


def minimise(value: Value, start: Tensor, linear: bool) -> tuple[Tensor, int]:
    """Minimise from the old weights, by L-BFGS (linear) or the paper's Adam (networks): weights, evaluations."""
    w, count = start.detach().clone().requires_grad_(), 0
    options = {"max_iter": 1000, "tolerance_grad": 1e-8, "tolerance_change": 1e-12, "history_size": 30}
    lbfgs = torch.optim.LBFGS([w], line_search_fn="strong_wolfe", **options)  # type: ignore[arg-type]
    optimizer: torch.optim.Optimizer = lbfgs if linear else torch.optim.Adam([w], lr=RATE)

    def evaluate() -> float:
        nonlocal count
        count += 1
        optimizer.zero_grad()
        found = value(w)
        found.backward()
        return float(found.detach())

    for _ in range(1 if linear else EPOCHS):
        optimizer.step(evaluate)
    return w.detach().clone(), count
