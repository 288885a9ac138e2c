"""L2 regularizers R(w) = 1/2 sum_j delta_j (w_j - m_j)^2 and the divergence between two of them.

A single delta, a delta per parameter or column, and an unpenalised bias are all vectors of deltas, some of them zero.
m, zero by default, is the mean of a Gaussian prior, usually the weights of another model.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .architectures import Linear
from .input_encoders import TableEncoder
from .predictor import Predictor
from .spec import DEFAULT_LEAF_DELTA, Regularizer, column_names
from .tree_splits import LeafEncoder


@dataclass(frozen=True)
class L2:
    """R(w) = 1/2 sum_j delta_j (w_j - m_j)^2 + b'w."""

    delta: Tensor
    """(P,), not negative."""
    linear: Tensor | None = None
    """(P,) b: the perturbation for certified removal; None without it."""
    toward: Tensor | None = None
    """(P,) m; None for zero. It has no effect where delta is zero."""

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
        """(P,) grad R(0) = b - delta m: the linear part of R, besides 1/2 sum_j delta_j w_j^2."""
        return self.gradient(torch.zeros_like(self.delta))

    def magnitude(self, w: Tensor) -> Tensor:
        """(P,) size of the terms of grad R(w), which bounds its rounding error."""
        size = w.abs() if self.toward is None else w.abs() + self.toward.abs()
        return self.delta * size if self.linear is None else self.delta * size + self.linear.abs()


def regularizer_of(spec: Regularizer, predictor: Predictor) -> L2:
    """The regularizer of a spec, for a model whose encoder has its units.

    A list of deltas has one for each parameter, biases included. With a single number, biases are penalised only if
    `penalize_bias` is true, and `columns` sets the deltas of columns of a linear model. `toward` is m, one number per
    parameter, for a table in the units of the columns. Raises ValueError if the kind or a column is unknown, or if
    numbers have the wrong length, are not finite, or are negative deltas.

    >>> from core.kprior import Predictor
    >>> spec = {"input": {"kind": "vector", "dim": 2}, "target": {"kind": "binary"}}
    >>> predictor = Predictor({**spec, "architecture": {"kind": "linear", "degree": 2}})
    >>> regularizer = regularizer_of({"kind": "l2", "delta": 1.0, "columns": {"1": 10.0}}, predictor)
    >>> regularizer.delta.tolist()  # of a, b, a a, a b, b b and the bias
    [1.0, 10.0, 1.0, 10.0, 10.0, 0.0]
    """
    if spec.get("kind", "l2") != "l2":  # docs/explanation/mathematics.md says why there is no l1
        raise ValueError(f"Unknown regularizer {spec.get('kind')!r}. Only l2 is supported.")
    given = spec.get("delta", 1.0)
    if given == "auto":
        given = chosen_delta(predictor)
    try:
        delta = torch.as_tensor(given, dtype=predictor.dtype, device=predictor.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"delta must be a number or a list of numbers, not {spec.get('delta')!r}.") from error
    if delta.ndim > 1 or (delta.ndim == 1 and delta.shape[0] != predictor.size):
        raise ValueError(f"delta must be one number or {predictor.size} numbers, one per parameter.")
    if not bool(torch.isfinite(delta).all()) or bool((delta < 0).any()):
        raise ValueError("delta must be finite and not negative.")
    columns = spec.get("columns")
    if delta.ndim == 1:
        if columns:
            raise ValueError("columns cannot be combined with a list of deltas; give delta as one number.")
        return L2(delta.clone(), toward=prior_mean(spec, predictor))  # a list contains the deltas of the biases
    delta = column_deltas(columns, float(delta), predictor) if columns else delta.expand(predictor.size).clone()
    if not spec.get("penalize_bias", False):
        delta[predictor.bias()] = 0
    return L2(delta, toward=prior_mean(spec, predictor))


def chosen_delta(predictor: Predictor) -> float:
    """The delta that was chosen in the training of trees, or a typical one."""
    if not isinstance(predictor.encoder, LeafEncoder):
        raise ValueError("Only trees choose delta in training; give it as a number.")
    return float(predictor.encoder.delta) if bool(predictor.encoder.delta.isfinite()) else DEFAULT_LEAF_DELTA


def prior_mean(spec: Regularizer, predictor: Predictor) -> Tensor | None:
    """(P,) m in the encoder's units; None if the spec has none.

    The units of a table may change with the next training, so its `toward` refers to the raw columns.
    """
    if (given := spec.get("toward")) is None:
        return None
    mean = torch.as_tensor(given, dtype=predictor.dtype, device=predictor.device)
    if mean.shape != (predictor.size,) or not bool(mean.isfinite().all()):
        raise ValueError(f"toward must be {predictor.size} finite numbers, one per parameter.")
    if not isinstance(predictor.encoder, TableEncoder) or not predictor.encoder.numbers:
        return mean
    if not isinstance(predictor.body, Linear) or predictor.body.degree > 1 or predictor.body.chosen is not None:
        raise ValueError(
            "toward needs a linear model of degree 1 if a table has numbers, because other features depend on units."
        )
    return predictor.encoder.encode_weights(mean.view(predictor.family.outputs, -1)).reshape(-1)


def column_deltas(columns: Mapping[str, float], others: float, predictor: Predictor) -> Tensor:
    """(P,) the delta of each weight of a linear model: that of its column, or the general one.

    A product of columns gets the largest delta of its columns.
    """
    names, sources = column_names(predictor.spec["input"]), predictor.encoder.sources
    if not isinstance(predictor.body, Linear) or sources is None:
        raise ValueError("columns can be used only with linear models of vectors and tables.")
    if unknown := set(columns) - set(names):
        raise ValueError(f"The input has no column {min(unknown)!r}.")
    if not all(math.isfinite(delta) and delta >= 0 for delta in columns.values()):
        raise ValueError("delta must be finite and not negative.")
    own = [float(columns.get(names[column], others)) for column in sources]
    each = [max((own[i] for i in monomial), default=others) for monomial in predictor.body.monomials]
    row = torch.tensor(each, dtype=predictor.dtype, device=predictor.device)
    return row.repeat(predictor.family.outputs)
