"""Directions in which the weights of a softmax GLM can move without changing its predictions."""

import torch
from torch import Tensor

from .families import Categorical
from .predictor import Predictor


def shift_directions(predictor: Predictor, delta: Tensor) -> Tensor | None:
    """(P, s) orthonormal directions along which a softmax GLM's objective is flat: a constant added to the logits.

    There is one for each feature that is unpenalised in all classes, usually the bias.
    """
    if not isinstance(predictor.family, Categorical) or not predictor.linear:
        return None
    K = predictor.family.outputs
    free = torch.nonzero((delta.view(K, -1) == 0).all(0))[:, 0]
    if len(free) == 0:
        return None
    directions = torch.zeros(K, delta.shape[0] // K, len(free), dtype=delta.dtype, device=delta.device)
    directions[:, free, torch.arange(len(free), device=delta.device)] = K**-0.5
    return directions.reshape(-1, len(free))


def without_shift(w: Tensor, directions: Tensor | None) -> Tensor:
    """The representative of w among the weights with the same predictions: logits of free features sum to zero."""
    return w if directions is None else w - directions @ (directions.T @ w)


def fill_gauge(H: Tensor, shifts: Tensor | None) -> Tensor:
    """H with the flat directions of a softmax filled in, so that it can be inverted where it matters."""
    return H if shifts is None else H + H.diagonal().mean() * shifts @ shifts.T
