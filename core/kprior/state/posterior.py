"""The Gaussian posterior of a model: Laplace's approximation, from the curvature in its state.

    p(w | data) ~ N(w, (G + delta)^-1),     G = sum_i v_i phi_i h'(f_i) phi_i' at the anchor

A penalty of delta/2 |w|^2 is a Gaussian prior of variance 1/delta, and losses are negative log-likelihoods. The loss
of numbers assumes a noise of variance one; the true variance s^2 is estimated from the residuals, and the posterior is
N(w, s^2 (G + delta)^-1), which is exact (as in BayesianRidge). As s^2 is estimated from a finite number of rows, less
the number of weights that they determine, predictions of numbers follow Student's t.
"""

import math

import torch
from scipy.special import stdtrit
from torch import Tensor

from core.kprior.curvature import Blocks, Full
from core.kprior.model.uncertainty import LEVEL, Z_SCORE, Posterior
from core.kprior.passes.last_layer import last_size
from core.kprior.state import State
from core.kprior.state.anchor import hessian_of

LIKELIHOOD_FAMILIES = ("bernoulli", "categorical", "gaussian", "poisson")
"""Families whose loss is the negative logarithm of a likelihood."""

MAX_WIDE_SIZE = 4_100
"""The largest wide model whose posterior is computed; the first computation takes some seconds."""

MIN_DEGREES_OF_FREEDOM = 1 - 1e-6
"""With fewer, the noise is not estimated: even the interval of Student's t would be meaningless."""
MAX_ROUNDING_FRACTION = 0.1
"""The largest fraction of a variance that may be due to rounding."""

MAX_BIAS = 0.7
"""The largest bias of an estimated variance; above it, too few rows were drawn."""
MAX_OUTPUT_CHANGE = 0.5
"""The largest change of outputs since a pass. At 0.2 a standard deviation was typically off by a tenth, at 0.6 by a
fifth, at 2 by half."""


class NoPosterior(ValueError):
    """Uncertainty is not available for a model; the message says why."""


def laplace(state: State) -> Posterior:
    """Laplace's posterior of a model. Raises NoPosterior, with the reason, if there is none.

    The state must be a GLM that carries its whole curvature, a GLM with one output that carries an estimate of it, or a
    network, of which only the last layer is treated as uncertain.

    >>> import torch
    >>> from core.kprior import Examples, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(6.0)[:, None]
    >>> state = train(spec, [Examples(torch.arange(6), x, 3 * x + torch.sin(5 * x))]).state
    >>> x = torch.tensor([[2.5], [99.0]])
    >>> f, phi = state.predictor.outputs(state.w, x), state.predictor.features(x)
    >>> near, far = laplace(state).assess("gaussian", f.numpy(), phi.numpy()).std
    >>> bool(near < far)  # from all examples
    True
    """
    check_posterior(state)
    if state.last_layer is None and output_change(state) > MAX_OUTPUT_CHANGE:
        raise NoPosterior(
            "its weights moved far since the last pass over all examples, so the curvature at them is unknown"
        )
    family, delta = state.predictor.family, state.regularizer.delta
    step = state.w - state.anchor.w
    value, lost = state.anchor.tangent_value(step), state.anchor.tangent_rounding(step)
    if state.last_layer is not None:
        G, value, lost = state.last_layer.curvature.double(), float(state.last_layer.value), 0.0
        delta = last_delta(state)
        H = G + torch.diag(delta)
        if family.outputs > 1 and not bool(delta.view(family.outputs, -1)[:, -1].any()):
            H += torch.kron(torch.ones(family.outputs, family.outputs), last_place(H, family.outputs))
    elif isinstance(state.curvature, Blocks):
        G = state.curvature.matrices[0].double()
        H = G + torch.diag(delta)
    else:
        assert isinstance(state.curvature, Full)
        G = state.curvature.matrix
        H = hessian_of(state.predictor, state.regularizer, state.anchor)
    factor, failed = torch.linalg.cholesky_ex(H)
    if int(failed):
        raise NoPosterior("neither its examples nor a penalty determine all of its weights")
    root = torch.linalg.solve_triangular(factor, torch.eye(len(H)).to(H), upper=False)
    decided = len(H) - float(root.square().sum(0) @ delta)  # weights that rows determine, not the penalty
    variance, noise, freedom, width = 1.0, 0.0, math.inf, Z_SCORE
    if isinstance(state.curvature, Blocks):
        variance = sampling_bias(state.curvature, decided, state.count)
    if family.name == "gaussian":
        freedom = float(G[-1, -1]) - decided
        noise = residual_variance(value, lost, freedom)
        variance, width = variance * noise, float(stdtrit(freedom, (1 + LEVEL) / 2))
    return Posterior.of(root * variance**0.5, family.outputs, noise, freedom, width)


class LatePosterior:
    """The posterior of a model, computed on first use. Without a posterior, only the reason is kept."""

    def __init__(self, state: State) -> None:
        self._state: State | None = state
        self._found: Posterior | None = None
        self.why = ""
        """Why there is no posterior, as far as is known without computing it."""
        try:
            check_posterior(state)
        except NoPosterior as error:
            self._state, self.why = None, str(error)

    def __call__(self) -> Posterior:
        """The posterior; raises NoPosterior if there is none. Safe to call from several threads."""
        state = self._state
        if self._found is None and state is not None:
            try:
                self._found = laplace(state)
            except NoPosterior as error:
                self.why = str(error)
            self._state = None
        if self._found is None:
            raise NoPosterior(self.why)
        return self._found


def check_posterior(state: State) -> None:
    """Raise NoPosterior if a model has none, without computing it."""
    family = state.predictor.family
    if family.name not in LIKELIHOOD_FAMILIES:
        raise NoPosterior("its loss is not a likelihood")
    if not state.predictor.linear:
        if state.last_layer is None:
            raise NoPosterior("it is a network whose last layer is unknown or has too many weights")
        return
    if isinstance(state.curvature, Full):
        return
    if not isinstance(state.curvature, Blocks) or family.outputs > 1 or state.predictor.size > MAX_WIDE_SIZE:
        raise NoPosterior("a model with so many weights does not carry the curvature that uncertainty requires")


def output_change(state: State) -> float:
    """The change of a GLM's outputs since the anchor, weighted by curvature.

    The root of their mean square, rows counting by their curvature. The last feature is one, so that G has its sum.
    """
    family, step = state.predictor.family, state.w - state.anchor.w
    if family.self_concordance == 0 or state.curvature is None or not bool(step.any()):
        return 0.0
    ones = torch.zeros_like(step).view(family.outputs, -1)
    total = 0.0
    for k in range(family.outputs):
        ones.zero_()[k, -1] = 1
        total += float(ones.view(-1) @ state.curvature.product(ones.view(-1)))
    return math.sqrt(max(0.0, float(step @ state.curvature.product(step))) / total) if total > 0 else 0.0


def sampling_bias(blocks: Blocks, decided: float, count: int) -> float:
    """The factor that corrects the inverse of a curvature that was estimated from m rows, which is too large.

    As of a Wishart matrix: 1 - d/m, d being the weights that rows decide. Where nearly all rows are drawn, nothing is
    left to chance. Rows that count for more than others are drawn often: m is as many equal ones as say as much.
    """
    there = blocks.drawn[0] >= 0
    drawn, place = blocks.drawn[0][there].unique(return_inverse=True)
    weight = torch.zeros(len(drawn), dtype=torch.float64)
    weight.index_add_(0, place, blocks.weight[0].cpu().double()[there])
    m = float(weight.sum() ** 2 / weight.square().sum()) if len(drawn) else 1.0
    bias = max(0.0, 1 - len(drawn) / max(1, count)) * decided / m
    if not bias <= MAX_BIAS:
        raise NoPosterior("its curvature was estimated from rows of which a few have most of the weight")
    return 1 - bias


def last_delta(state: State) -> Tensor:
    """The penalty of a network's last layer, with its bias after the weights of each output."""
    K, size = state.predictor.family.outputs, last_size(state.predictor)
    ours = state.regularizer.delta[-size:].double()
    return torch.cat([ours[:-K].view(K, -1), ours[-K:, None]], 1).reshape(-1)


def last_place(H: Tensor, outputs: int) -> Tensor:
    """(D, D) zero except for the last place: a constant added to the biases of all classes, which has no effect."""
    place = torch.zeros(len(H) // outputs, len(H) // outputs, dtype=H.dtype)
    place[-1, -1] = H.diagonal().mean()
    return place


def residual_variance(value: float, lost: float, freedom: float) -> float:
    """The variance of numbers around their predictions: squares of residuals, over rows less weights they decide.

    `value` is sum_i v_i r_i^2 / 2, `lost` what rounding can have done to it. Rows are sum_i v_i, the last number of G.
    """
    if freedom < MIN_DEGREES_OF_FREEDOM:
        raise NoPosterior("it has too few examples per weight to estimate the noise")
    if math.isnan(value):
        raise NoPosterior("its noise is unknown, because no examples were read since the model changed")
    if value < 0 or lost > MAX_ROUNDING_FRACTION * value:
        raise NoPosterior(
            "its noise was lost in rounding, because far larger numbers were added or removed; retrain it"
        )
    return 2 * value / freedom
