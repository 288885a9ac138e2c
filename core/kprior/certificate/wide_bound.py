"""The bound of a wide GLM, whose Hessian is too large to store, from one pass for the gradient.

**Every weight penalised.** F is delta-strongly convex: |w - w^| <= (|grad F(w)| + rounding) / delta.

**An unpenalised bias.** v = (V, beta) is the step from w = (W, b) to the optimum, G and gamma are the two parts of
grad F(w), and c is any fixed centre of the inputs, x~ = x - c. B = sum h'_i is the (K, K) Hessian of the biases and l
its smallest eigenvalue. C[V] = sum h'_i V x~_i is the coupling of weights and biases, and tau >= sum (V x~_i)' h'_i
(V x~_i) for |V| = 1: the largest sum of h'_kk |x~_i|^2, or twice that for a softmax, as diag(p) - pp' <= 2 diag(p (1 -
p)). For a softmax, everything is modulo the constant that changes no prediction.

1. Biases alone, b(W) = argmin_b F(W, .): K-dimensional self-concordance as in `bounds.py`. With n = |gamma| in B^-1 and
   r the largest |e_k - e_l| in B^-1, u = b(W) - b has |u|_B <= T = -log(1 - r n)/r, and spreads by at most s = r T.
2. Weights. min_b F(W, b) is delta-strongly convex in W, so |V| <= R = |grad_W F(W, b(W))| / delta. The gradient of the
   biases is zero at b(W), so this gradient is (G - gamma c') + sum (h(b(W)) - h(b)) x~', and the sum is at most
   T (min(sqrt(tau), |C B^-1/2|) + ((e^s - 1)/s - 1) sqrt(tau)).
3. Change of the biases with the weights. With g = delta R, m = |V| and z_i = V x_i + beta, delta m^2 + int sum z' h'(t)
   z dt <= g m. The curvature along v is at least e^-s/(1 + S) of that at w, S <= a (rho m + |beta + V c|), where rho =
   max |x~_i| and a is sqrt(2) for a softmax, 0 for a quadratic loss, otherwise 1. Completing the square over beta, with
   x = |beta + V c + B^-1 C[V]| and kappa = |B^-1 C|: x^2 <= e (1 + a ((rho + kappa) m + x)), e = e^s (g m - delta
   m^2)/l, which bounds x; and with C_0 = C + B c', |beta| <= |B^-1 C_0| m + x. The bound is the largest over m in 0..R,
   computed as an upper bound in each of `SLICES` slices.

**An unpenalised bias and a kinked loss.** Within a window, |V x~_i + b'| <= a for all rows with b' = beta + V c, the
curvature along v is at least delta |V|^2 + sum_s (V x~_i + b')^2 l''_i, summed over the rows s whose slack exceeds a.
With (p + q)^2 >= (1 - e) q^2 - (1/e - 1) p^2, and e such that V keeps half of its penalty, this is at least
|V|^2 delta/2 + b'^2 m, m = B_s (delta/2) / (tau + delta/2). The slope along v is <G - gamma c', V> + gamma b', so the
retrain has |V| <= n sqrt(2/delta) and |b'| <= n / sqrt(m), n^2 = |G - gamma c'|^2 (2/delta) + gamma^2 / m, if these are
within the window; otherwise the slope would be positive before the retrain.
"""

import math

import torch
from torch import Tensor

from core.kprior.model.families import Categorical
from core.kprior.model.regularizers import L2
from core.kprior.passes.gradient import UNIT_ROUNDOFF, Gradient

SLICES = 64
EIGENVALUE_ERROR = 1e-10
"""Largest rounding error of an eigenvalue of B, as a fraction of the largest eigenvalue."""


def has_free_bias(regularizer: L2, outputs: int) -> bool | None:
    """Whether only the biases have no penalty: False if every weight has one, None if other weights have none."""
    free = regularizer.delta.view(outputs, -1) == 0
    if not bool(free.any()):
        return False
    return True if bool(free[:, -1].all()) and not bool(free[:, :-1].any()) else None


def lacks_optimum(regularizer: L2, seen: Gradient) -> bool:
    """Whether an unpenalised bias has no finite optimum: that of a class without examples decreases forever.

    The loss of such rows decreases in this bias as long as its mean is above zero.
    """
    family = seen.predictor.family
    vanishing = family.name in ("bernoulli", "categorical", "poisson")
    return vanishing and bool(has_free_bias(regularizer, family.outputs)) and bool((seen.targets == 0).any())


def gradient_error(regularizer: L2, seen: Gradient, gradient: Tensor) -> float:
    """Upper bound of the rounding error of the computed gradient."""
    return seen.rounding + 4 * UNIT_ROUNDOFF * (float(regularizer.magnitude(seen.w).norm()) + float(gradient.norm()))


def distance_bound(regularizer: L2, seen: Gradient) -> float:
    """An upper bound of |w - w^|, from a careful pass at w; infinite if there is none."""
    family, K = seen.predictor.family, seen.predictor.family.outputs
    gradient = (seen.gradient.reshape(-1) + regularizer.gradient(seen.w)).view(K, -1)
    error, free = gradient_error(regularizer, seen, gradient), has_free_bias(regularizer, K)
    if not math.isfinite(seen.value) or not bool(gradient.isfinite().all()) or free is None:
        return math.inf
    delta = float(regularizer.delta[regularizer.delta > 0].min()) if bool((regularizer.delta > 0).any()) else 0.0
    if delta == 0:
        return math.inf
    if not math.isfinite(error):
        return math.inf
    if not free:
        return (float(gradient.norm()) + error) / delta
    assert seen.centre is not None
    if family.kinked:
        return kinked_distance(delta, seen, gradient, error)
    softmax, concordance = isinstance(family, Categorical), family.self_concordance
    gamma, B, centre = gradient[:, -1], seen.bias, seen.centre
    if softmax:
        gamma = gamma - gamma.mean()
        B = B - B.mean(0) - B.mean(1)[:, None] + B.mean()
        B = B + B.diagonal().mean() / K * torch.ones_like(B)  # along the constant, any positive number
    values, vectors = torch.linalg.eigh((B + B.T) / 2)
    trust = EIGENVALUE_ERROR * float(values[-1])
    smallest = float(values[0]) - trust
    if not smallest > trust:
        return math.inf
    inverse = (vectors / (values - trust)) @ vectors.T
    n = math.sqrt(max(0.0, float(gamma @ inverse @ gamma))) + error / math.sqrt(smallest)
    own = inverse.diagonal()
    spread = float((own[:, None] + own - 2 * inverse).max()) if softmax else float(own.max())
    r = concordance * math.sqrt(max(0.0, spread))
    if not r * n < 1:
        return math.inf
    T = (n if r * n < 1e-12 else -math.log1p(-r * n) / r) * (1 + 1e-9)
    s, first = r * T, T / math.sqrt(smallest)
    tau = float(seen.scatter.max()) * (2.0 if softmax else 1.0) * (1 + 1e-9)
    length = float(centre.norm())
    kappa, pull = math.sqrt(tau / smallest), math.sqrt(tau)
    answer = length + kappa
    if seen.coupling is not None:
        kappa, answer, pull = coupling_norms(seen, inverse, smallest, kappa, pull)
    reduced = float((gradient[:, :-1] - gamma[:, None] * centre).norm()) + error * (1 + length)
    curved = math.expm1(s) / s - 1 if s > 1e-6 else s
    reduced += T * (pull + curved * math.sqrt(tau))
    far, slant, reach = reduced / delta, concordance * (math.sqrt(2.0) if softmax else 1.0), math.sqrt(seen.reach)
    if not all(map(math.isfinite, (tau, T, reduced, answer, kappa, reach))):
        return math.inf
    worst = 0.0
    for j in range(SLICES):
        low, m = far * j / SLICES, far * (j + 1) / SLICES
        top = min(max(reduced / (2 * delta), low), m)
        energy = max(0.0, reduced * top - delta * top * top) / smallest * math.exp(s)
        half = energy * slant / 2
        away = answer * m + half + math.sqrt(half * half + energy * (1 + slant * (reach + kappa) * m))
        if not softmax:
            away = min(away, (length + reach) * m)  # the bias moves by an average of -V x_i
        worst = max(worst, math.hypot(m, first + away))
    return worst


def kinked_distance(delta: float, seen: Gradient, gradient: Tensor, error: float) -> float:
    """The bound for a piecewise quadratic loss: the least over all windows; infinite if none holds."""
    assert seen.centre is not None
    gamma, length = gradient[:, -1], float(seen.centre.norm())
    pull = abs(float(gamma)) + error
    weights = float((gradient[:, :-1] - gamma[:, None] * seen.centre).norm()) + error * (1 + length)
    tau, rho, half = float(seen.scatter.max()) * (1 + 1e-9), math.sqrt(seen.reach) * (1 + 1e-9), delta / 2
    best = math.inf
    for window, held in zip(seen.windows.tolist(), seen.held.tolist(), strict=True):
        stiff = held * (1 - 1e-9) * half / (tau + half)
        if not stiff > 0:
            continue
        n = math.sqrt(weights**2 / half + pull**2 / stiff)
        far, bias = n / math.sqrt(half), n / math.sqrt(stiff)
        if rho * far + bias <= window:
            best = min(best, math.hypot(far, bias + length * far) * (1 + 1e-9))
    return best


def coupling_norms(
    seen: Gradient, inverse: Tensor, smallest: float, kappa: float, pull: float
) -> tuple[float, float, float]:
    """|B^-1 C|, |B^-1 C_0| and |C B^-1/2| as operators on weights: an upper bound of each."""
    C, B, centre, blur = seen.coupling, seen.bias, seen.centre, seen.blur
    assert C is not None
    assert centre is not None
    if C.ndim == 2:  # independent outputs: one row each
        length, b = C.norm(dim=1), B.diagonal()
        moved = (C / b[:, None] + centre).norm(dim=1)
        return (
            min(kappa, float((length / b).max()) + blur / smallest),
            float(moved.max()) + blur / smallest,
            min(pull, float((length / b.sqrt()).max()) + blur / math.sqrt(smallest)),
        )
    K = len(inverse)
    flat, whole = C.reshape(K, -1), (C + B[:, :, None] * centre).reshape(K, -1)
    gram = flat @ flat.T
    values, vectors = torch.linalg.eigh(inverse)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    return (
        min(kappa, operator_norm(inverse @ gram @ inverse) + blur / smallest),
        operator_norm(inverse @ (whole @ whole.T) @ inverse) + blur / smallest,
        min(pull, operator_norm(root @ gram @ root) + blur / math.sqrt(smallest)),
    )


def operator_norm(square: Tensor) -> float:
    """|A| from A A'."""
    return math.sqrt(max(0.0, float(torch.linalg.eigvalsh(square)[-1]))) * (1 + 1e-9)
