"""L2 regularizers R(w) = 1/2 sum_j delta_j (w_j - m_j)^2 and the divergence between two of them.

One delta, a delta per parameter or per column, an unpenalised bias: all are a vector of deltas, some of them zero.
m, zero unless it is given, is the mean of a Gaussian prior: the weights of another model, as a rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .architectures import Linear
from .encoders import TableEncoder
from .predictor import Predictor
from .spec import Regularizer, column_names


@dataclass(frozen=True)
class L2:
    """R(w) = 1/2 sum_j delta_j (w_j - m_j)^2 + b'w."""

    delta: Tensor
    """(P,), none negative."""
    linear: Tensor | None = None
    """(P,) b: the perturbation that certified removal asks for; else none."""
    toward: Tensor | None = None
    """(P,) m; none: zero. Where delta is zero it means nothing."""

    def value(self, w: Tensor) -> Tensor:
        """R(w)."""
        step = w if self.toward is None else w - self.toward
        value = 0.5 * (self.delta * step * step).sum()
        return value if self.linear is None else value + (self.linear * w).sum()

    def gradient(self, w: Tensor) -> Tensor:
        """eta = grad R(w), the dual parameter."""
        pull = self.delta * (w if self.toward is None else w - self.toward)
        return pull if self.linear is None else pull + self.linear

    def slope(self) -> Tensor:
        """(P,) grad R(0) = b - delta m: all of R that an objective of 1/2 sum_j delta_j w_j^2 has not."""
        return self.gradient(torch.zeros_like(self.delta))

    def magnitude(self, w: Tensor) -> Tensor:
        """(P,) the sizes of what grad R(w) is added up from: rounding is a share of them."""
        size = w.abs() if self.toward is None else w.abs() + self.toward.abs()
        return self.delta * size if self.linear is None else self.delta * size + self.linear.abs()

    def conjugate(self, eta: Tensor) -> Tensor:
        """R*(eta) = sup_w <w, eta> - R(w): infinite where an unpenalised weight has a dual parameter."""
        eta = eta if self.linear is None else eta - self.linear
        free = self.delta == 0
        if bool((eta[free] != 0).any()):
            return torch.full((), torch.inf, dtype=eta.dtype, device=eta.device)
        value = 0.5 * (eta[~free] ** 2 / self.delta[~free]).sum()
        return value if self.toward is None else value + (self.toward * eta).sum()


def bregman(new: L2, old: L2, w: Tensor, w_star: Tensor) -> Tensor:
    """B_GR(w || w*) = G(w) + R*(eta*) - <w, eta*>, eta* = grad R(w*)   (paper, Eq. 20).

    For one delta each it is 1/2 (gamma |w|^2 + delta |w*|^2 - 2 delta <w, w*>), and for G = R the
    Bregman divergence delta/2 |w - w*|^2 of Eq. 8.
    """
    eta = old.gradient(w_star)
    return new.value(w) + old.conjugate(eta) - (w * eta).sum()


def regularizer_of(spec: Regularizer, predictor: Predictor) -> L2:
    """The regularizer of a spec, for a model.

    Parameters
    ----------
    spec
        {"kind": "l2", "delta": number or list, "penalize_bias": bool, "columns": {name: number}, "toward": list}. A
        list has a delta for each parameter, biases included; with one number biases are penalised only if the spec says
        so, and columns of a linear model may have another. `toward` has m, a number for each parameter.
    predictor
        Its encoder has its units: a table's `toward` is in those of the columns.

    Raises
    ------
    ValueError
        If the kind is another, or delta is negative, not finite, or not as many as the parameters; if `columns` names
        one that the input has not; or if `toward` is not finite, or not as many as the parameters.

    Examples
    --------
    >>> from core.kprior import Predictor
    >>> spec = {"input": {"kind": "vector", "dim": 2}, "target": {"kind": "binary"}}
    >>> predictor = Predictor({**spec, "architecture": {"kind": "linear", "degree": 2}})
    >>> regularizer = regularizer_of({"kind": "l2", "delta": 1.0, "columns": {"1": 10.0}}, predictor)
    >>> regularizer.delta.tolist()  # of a, b, a a, a b, b b and the bias
    [1.0, 10.0, 1.0, 10.0, 10.0, 0.0]
    """
    if spec.get("kind", "l2") != "l2":  # docs/mathematics.md says why there is no l1
        raise ValueError(f"unknown regularizer {spec.get('kind')!r}; known: l2")
    try:
        delta = torch.as_tensor(spec.get("delta", 1.0), dtype=predictor.dtype, device=predictor.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"delta must be a number or a list of numbers, not {spec.get('delta')!r}") from error
    if delta.ndim > 1 or (delta.ndim == 1 and delta.shape[0] != predictor.size):
        raise ValueError(f"delta must be one number or {predictor.size} of them, one per parameter")
    if not bool(torch.isfinite(delta).all()) or bool((delta < 0).any()):
        raise ValueError("delta must be finite and not negative")
    columns = spec.get("columns")
    if delta.ndim == 1:
        if columns:
            raise ValueError("columns can have a delta of their own beside one number, not beside a list")
        return L2(delta.clone(), toward=prior_mean(spec, predictor))  # the biases' are as they stand
    delta = column_deltas(columns, float(delta), predictor) if columns else delta.expand(predictor.size).clone()
    if not spec.get("penalize_bias", False):
        delta[predictor.bias()] = 0
    return L2(delta, toward=prior_mean(spec, predictor))


def prior_mean(spec: Regularizer, predictor: Predictor) -> Tensor | None:
    """(P,) m in the encoder's units; None if the spec has none.

    A table is measured in units that may be others after the next training, so there `toward` speaks of the columns as
    they are given.
    """
    if (given := spec.get("toward")) is None:
        return None
    mean = torch.as_tensor(given, dtype=predictor.dtype, device=predictor.device)
    if mean.shape != (predictor.size,) or not bool(mean.isfinite().all()):
        raise ValueError(f"toward must be {predictor.size} finite numbers, one per parameter")
    if not isinstance(predictor.encoder, TableEncoder) or not predictor.encoder.numbers:
        return mean
    if not isinstance(predictor.body, Linear) or predictor.body.degree > 1 or predictor.body.chosen is not None:
        raise ValueError("toward needs a linear model of degree 1 where a table has numbers: others depend on units")
    return predictor.encoder.encode_weights(mean.view(predictor.family.outputs, -1)).reshape(-1)


def column_deltas(columns: Mapping[str, float], others: float, predictor: Predictor) -> Tensor:
    """(P,) a delta for each weight of a linear model: its column's, or that of all others.

    A product of columns has the largest of theirs: where one of them is held back, so is all that it takes part in.
    """
    names, sources = column_names(predictor.spec["input"]), predictor.encoder.sources
    if not isinstance(predictor.body, Linear) or sources is None:
        raise ValueError("columns can have a delta of their own in linear models of vectors and tables only")
    if unknown := set(columns) - set(names):
        raise ValueError(f"the input has no column {min(unknown)!r}")
    if not all(math.isfinite(delta) and delta >= 0 for delta in columns.values()):
        raise ValueError("delta must be finite and not negative")
    own = [float(columns.get(names[column], others)) for column in sources]
    each = [max((own[i] for i in monomial), default=others) for monomial in predictor.body.monomials]
    row = torch.tensor(each, dtype=predictor.dtype, device=predictor.device)
    return row.repeat(predictor.family.outputs)
