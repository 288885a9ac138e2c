"""The Gaussian posterior of a model: Laplace's, from the curvature that its state carries anyway.

    p(w | data) ~ N(w, (G + delta)^-1),     G = sum_i v_i phi_i h'(f_i) phi_i' at the anchor

A penalty of delta/2 |w|^2 is a Gaussian prior of variance 1/delta, and losses are negative log-likelihoods. Those of
numbers are so with a noise of variance one; what it truly is, s^2, is found from the residuals, and both noise and
prior are in its units: N(w, s^2 (G + delta)^-1), which is the exact posterior then (as BayesianRidge has it).
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.kprior.adaptation.dense import hessian_of
from core.kprior.curvature import Blocks, Full
from core.kprior.model.posterior import Posterior
from core.kprior.state import State

LIKELIHOODS = ("bernoulli", "categorical", "gaussian", "poisson")
"""Families whose loss is one's negative logarithm."""


class NoPosterior(ValueError):
    """A model of which nobody can say how sure it is, and why."""


def laplace(state: State) -> Posterior:
    """Laplace's posterior of a model.

    Parameters
    ----------
    state
        A GLM that carries its whole curvature, or one of one output that carries an estimate of it.

    Raises
    ------
    NoPosterior
        If there is none: with a sentence that says why.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(6.0)[:, None]
    >>> state = train(spec, [Examples(torch.arange(6), x, 3 * x + torch.sin(5 * x))]).state
    >>> found = laplace(state).assess(state.predictor.family, torch.zeros(2, 1), torch.tensor([[2.5, 1.0], [99.0, 1.0]]))
    >>> bool(found.std[0] < found.std[1])  # far from all examples
    True
    """
    check_posterior(state)
    family, delta = state.predictor.family, state.regularizer.delta
    if isinstance(state.curvature, Blocks):
        G, shrink = state.curvature.matrices[0].double(), sampling_bias(state.curvature, delta, state.count)
        H = G + torch.diag(delta)
    else:
        assert isinstance(state.curvature, Full)
        G, shrink = state.curvature.matrix, 1.0
        H = hessian_of(state.predictor, state.regularizer, state.anchor)
    factor, failed = torch.linalg.cholesky_ex(H)
    if int(failed):
        raise NoPosterior("its examples do not determine all of its weights, and no penalty does")
    noise = residual_variance(state, G, factor) if family.name == "gaussian" else None
    found = Posterior.of(factor, family.outputs, noise)
    return found if shrink == 1 else Posterior(found.root * shrink**0.5, found.outputs, found.noise)


class LatePosterior:
    """A model's posterior, found when somebody asks for it. Of a model that has none, nothing is kept but why."""

    def __init__(self, state: State) -> None:
        self._state: State | None = state
        self._found: Posterior | None = None
        self._why = ""
        try:
            check_posterior(state)
        except NoPosterior as error:
            self._state, self._why = None, str(error)

    def __call__(self) -> Posterior:
        """NoPosterior, if there is none. Several threads may ask at once."""
        state = self._state
        if self._found is None and state is not None:
            try:
                self._found = laplace(state)
            except NoPosterior as error:
                self._why = str(error)
            self._state = None
        if self._found is None:
            raise NoPosterior(self._why)
        return self._found


def check_posterior(state: State) -> None:
    """NoPosterior, if a model has none; without any computing."""
    family = state.predictor.family
    if family.name not in LIKELIHOODS:
        raise NoPosterior("its loss is no likelihood, so nothing says how probable its weights are")
    if not state.predictor.linear:
        raise NoPosterior("it is a network, which carries no curvature")
    if isinstance(state.curvature, Full):
        return
    if not isinstance(state.curvature, Blocks) or family.outputs > 1:
        raise NoPosterior("a model of so many weights does not carry the curvature that would say")


def sampling_bias(blocks: Blocks, delta: Tensor, count: int) -> float:
    """What the inverse of an estimate from m drawn rows is too large by, as a factor to take it back.

    As of a Wishart matrix: 1 - d/m, d being the weights that the rows and not the penalty decide. Where nearly all rows
    are drawn, nothing is left to chance.
    """
    drawn = blocks.drawn[0][blocks.drawn[0] >= 0]
    G = blocks.matrices[0].double()
    values = torch.linalg.eigvalsh(G).clamp(min=0)
    decided = float((values / (values + delta[delta > 0].min().clamp(min=1e-12))).sum()) if bool(delta.any()) else len(G)
    chance = max(0.0, 1 - len(drawn.unique()) / max(1, count))
    return max(0.05, 1 - chance * decided / max(1, len(drawn)))


def residual_variance(state: State, G: Tensor, factor: Tensor) -> float:
    """The variance of numbers around their predictions: squares of residuals, over rows less weights they decide.

    sum_i v_i r_i^2 / 2 is a quadratic, known at the anchor; G's last number is sum_i v_i.
    """
    value = state.anchor.tangent_value(state.w - state.anchor.w)
    free = float(torch.cholesky_inverse(factor).diagonal() @ state.regularizer.delta)
    rows = float(G[-1, -1])
    left = rows - (len(G) - free)
    if not value >= 0 or not left > 0:
        raise NoPosterior("what noise its numbers have is not known: it has too few examples, or was not measured since it changed")
    return 2 * value / left
