"""Explanations of predictions of linear models: what each input column contributes to an output.

An output is a sum over features, w_j phi_j. The contribution of a column is the sum over its features; a product of
several columns is shared equally among them. Numbers of a table are measured from about their mean, so that a column at
its mean contributes nothing. Together with the intercept, contributions add up to the output (the logit or log rate).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..kprior.model.architectures import Linear
from ..kprior.model.input_encoders import TableEncoder, VectorEncoder
from ..kprior.model.predictor import Predictor
from ..kprior.model.spec import column_names

INTERCEPT = "(intercept)"


class Unexplainable(ValueError):
    """The model is not a sum over its input columns."""


def shares_of(predictor: Predictor) -> tuple[list[str], NDArray[np.float64]]:
    """Names of the columns, and the share (D, columns) of each column in each feature; the intercept is last."""
    body, encoder = predictor.body, predictor.encoder
    if not isinstance(body, Linear):
        raise Unexplainable("contributions of features are available for linear models only")
    names = column_names(predictor.spec["input"])
    if not names:
        raise Unexplainable("contributions of features are not available for images")
    if not isinstance(encoder, TableEncoder | VectorEncoder):
        raise Unexplainable("contributions of features are not available for models with an encoder")
    sources = encoder.sources or list(range(len(names)))
    shares = np.zeros((len(body.monomials), len(names) + 1))
    for j, monomial in enumerate(body.monomials):
        columns = sorted({sources[i] for i in monomial})
        shares[j, columns or [-1]] = 1 / max(1, len(columns))
    return [*names, INTERCEPT], shares


def contributions(predictor: Predictor, x: NDArray[Any]) -> list[dict[str, float]]:
    """For each raw input (n, ...), what each column contributes to the output.

    Of several classes, the output is that of the predicted class, less the mean of all classes.

    Raises Unexplainable if the model is not linear in functions of its columns.
    """
    if predictor.spec["target"]["kind"] == "labels":
        raise Unexplainable("contributions of features are not available for a target of several labels")
    names, shares = shares_of(predictor)
    body = predictor.body
    assert isinstance(body, Linear)
    with torch.inference_mode():
        phi = body.features(predictor.encode(torch.from_numpy(x).reshape(len(x), *predictor.encoder.raw_shape)))
        weight = body.weight.double()
        if len(weight) > 1:
            best = (phi @ body.weight.T).argmax(1)
            terms = phi.double() * (weight - weight.mean(0))[best]
        else:
            terms = phi.double() * weight[0]
    made = terms.numpy() @ shares
    return [dict(zip(names, row, strict=True)) for row in made.tolist()]
