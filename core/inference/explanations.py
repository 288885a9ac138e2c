"""Explanations of predictions: what each input column contributes to an output.

An output of a linear model is a sum over features, w_j phi_j. The contribution of a column is the sum over its
features; a product of several columns is shared equally among them. Numbers of a table are measured from about their
mean, so that a column at its mean contributes nothing. The other modules of this folder follow features back to what
they were computed from: the leaves of trees, the steps of an imported pipeline, and hashed words. Together with the
intercept, contributions add up to the output (the logit or log rate).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..kprior.model.architectures import Linear
from ..kprior.model.input_encoders import FeatureEncoder, StepsEncoder, TableEncoder, VectorEncoder
from ..kprior.model.predictor import Predictor
from ..kprior.model.spec import column_names, frozen_encoder
from ..kprior.model.text_storage import to_texts
from ..kprior.model.tree_leaves import Leaves
from ..kprior.model.tree_splits import LeafEncoder
from .leaf_contributions import LeafContributions
from .step_contributions import pull_back
from .text_hashing import hash_words

if TYPE_CHECKING:  # predictions do not need the modules for adaptation
    from core.kprior import State

Numbers = NDArray[Any]
INTERCEPT = "(intercept)"
NUMBERS_PER_STEP = 2**22
"""Features of rows that are computed at a time."""


class Unexplainable(ValueError):
    """The model is not a sum over its input columns."""


class Explainer:
    """The contributions to the outputs of one model."""

    def __init__(self, predictor: Predictor, leaf_mass: Tensor | None = None) -> None:
        """`leaf_mass` is the result of `leaf_mass_of`. Raises Unexplainable if the model is not a sum over columns."""
        spec, body, encoder = predictor.spec, predictor.body, predictor.encoder
        if spec["target"]["kind"] == "labels":
            raise Unexplainable("contributions of features are not available for a target of several labels")
        if not isinstance(body, Linear | Leaves):
            raise Unexplainable("contributions of features are available for linear models and boosted trees only")
        frozen = frozen_encoder(spec)
        self.words = frozen["features"] if frozen is not None and frozen["kind"] == "hashing" else None
        """Number of features that words are hashed to; None if the inputs are not hashed texts."""
        self.names = column_names(spec["input"])
        if isinstance(encoder, FeatureEncoder):
            self.names = [str(i) for i in range(encoder.shape[0])]
        if not self.names:
            raise Unexplainable("contributions of features are not available for images")
        self.predictor, self.body = predictor, body
        weight = body.weight.double()
        self.weight = weight - weight.mean(0) if len(weight) > 1 else weight
        """(K, D) weights of an output; of several classes, less the mean of all."""
        self.leaves: LeafContributions | None = None
        if isinstance(encoder, LeafEncoder):
            self.leaves = LeafContributions(encoder, self.weight.numpy(), leaf_mass)

    def explain(self, x: Numbers, texts: Numbers | None = None) -> list[dict[str, float]]:
        """For each input (n, ...), what each column contributes to the output, or each word of hashed `texts`.

        Of several classes, the output is that of the predicted class, less the mean of all classes.
        """
        step = max(1, NUMBERS_PER_STEP // self.body.weight.shape[1])
        parts = [slice(start, start + step) for start in range(0, len(x), step)]
        if texts is not None and self.words is not None:
            return [made for part in parts for made in self._of_words(x[part], to_texts(texts[part]))]
        names = [*self.names, INTERCEPT]
        return [dict(zip(names, row, strict=True)) for part in parts for row in self._of_columns(x[part]).tolist()]

    def _of_columns(self, x: Numbers) -> Numbers:
        """(n, columns + 1) contributions, the intercept last."""
        given = torch.from_numpy(x)
        with torch.inference_mode():
            z = self.predictor.encode(given)
            best = self._best(z)
            if self.leaves is not None:
                return self.leaves(x, best)
            assert isinstance(self.body, Linear)
            encoder, weight = self.predictor.encoder, self.weight[best]
            if not isinstance(encoder, StepsEncoder):
                terms: Numbers = (self.body.features(z).double() * weight).numpy()
                return terms @ shares_of(self.body, self._sources(), len(self.names))
            return pull_back(encoder, self.body, given.double(), weight).numpy()

    def _sources(self) -> list[int]:
        """The column of each encoded number."""
        encoder = self.predictor.encoder
        assert isinstance(encoder, TableEncoder | VectorEncoder)
        return list(range(len(self.names))) if encoder.sources is None else encoder.sources

    def _of_words(self, x: Numbers, texts: list[str]) -> list[dict[str, float]]:
        """`x` are the features of the texts."""
        assert self.words is not None
        best, weight, made = self._best(torch.from_numpy(x)), self.weight.numpy(), []
        for k, (words, places, values) in zip(best, hash_words(texts, self.words), strict=True):
            terms = (weight[k][places] * values).tolist()
            made.append({**dict(zip(words, terms, strict=True)), INTERCEPT: float(weight[k][-1])})
        return made

    def _best(self, z: Tensor) -> NDArray[np.intp]:
        """(n,) the index of the explained output: that of the predicted class."""
        if len(self.weight) == 1:
            return np.zeros(len(z), np.intp)
        best: NDArray[np.intp] = self.body(z.to(self.body.weight)).argmax(1).numpy()
        return best


def shares_of(body: Linear, sources: list[int], columns: int) -> Numbers:
    """(D, columns + 1) the share of each column in each feature; the intercept is last."""
    shares = np.zeros((len(body.monomials), columns + 1))
    for j, monomial in enumerate(body.monomials):
        own = sorted({sources[i] for i in monomial})
        shares[j, own or [-1]] = 1 / max(1, len(own))
    return shares


def leaf_mass_of(state: State) -> Tensor | None:
    """(D - 1,) the curvature of the examples in each leaf of a tree ensemble; None if the model does not carry it.

    Each example has one leaf of each tree, so that the column of the constant feature has the sums of all leaves.
    """
    body, curvature = state.predictor.body, state.curvature
    if not isinstance(body, Leaves) or curvature is None:
        return None
    mass = torch.zeros(body.width - 1, dtype=torch.float64)
    for k in range(len(body.weight)):
        constant = torch.zeros_like(body.weight)
        constant[k, -1] = 1
        mass += curvature.product(constant.view(-1)).view_as(constant)[k, :-1].double()
    return mass.clamp(min=0)
