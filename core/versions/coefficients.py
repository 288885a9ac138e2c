"""The coefficients of linear models by feature name, of one version or of two versions side by side."""

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from core.errors import Conflict
from core.kprior import State
from core.kprior.data.schema_conversion import same_schema
from core.kprior.model.architectures import Linear
from core.kprior.model.categories import indicators_of
from core.kprior.model.input_encoders import TableEncoder
from core.kprior.model.spec import Input, dtype_of, frozen_encoder

MAX_COMPARED = 50
"""Maximum number of coefficients in a comparison: those that differ most."""
MAX_NAMED = 100_000
"""Maximum number of coefficients listed by name. For larger models, download the weights."""
INTERCEPT = "(intercept)"
Monomial = tuple[int, ...]


ClassName = Annotated[int | str | None, Field(serialization_alias="class")]


@dataclass(frozen=True)
class Coefficient:
    """Coefficient of a feature in each of two versions; null if the architecture lacks the feature."""

    feature: str
    target: ClassName
    """Class whose output it contributes to; null if there is only one output."""
    a: float | None
    b: float | None


@dataclass(frozen=True)
class NamedCoefficient:
    """Coefficient of a feature of a linear model."""

    feature: str
    """Name of the feature: a column (`age`), a value of a category (`plan = paid`), a product (`age * age`), a place in
    a vector (`x[3]`), or `(intercept)`."""
    target: ClassName
    """Class whose output it contributes to; null if there is only one output."""
    coefficient: float
    """Change of the output for each unit of the input, in the units of the examples."""
    standardised: float
    """Change of the output for each standardised unit: numbers in tables are divided by about their standard
    deviation."""


def named_coefficients(state: State) -> list[NamedCoefficient]:
    """All coefficients of a linear model, class by class, the intercept last.

    In raw units, a missing number counts as 0, and the coefficient of its flag is added.

    Raises
    ------
    Conflict
        If the model is not linear or has too many coefficients.
    """
    body = state.predictor.body
    if not isinstance(body, Linear):
        raise Conflict("model_not_linear", "Only linear models have named coefficients. Download the weights instead.")
    if (size := state.predictor.size) > MAX_NAMED:
        message = f"The model has {size} coefficients; at most {MAX_NAMED} are listed. Download the weights instead."
        raise Conflict("coefficients_too_many", message)
    described, target = state.spec["input"], state.spec["target"]
    encoder = frozen_encoder(state.spec)
    names = [f"feature[{i}]" for i in range(encoder["features"])] if encoder else None
    names = names or feature_names(described) or pixel_names(described)
    standardised = dict(zip(body.monomials, matrix(state).double().unbind(1), strict=True))
    raw = in_raw_units(state, standardised)
    zero = torch.zeros(state.predictor.family.outputs, dtype=torch.float64)
    places = sorted({**standardised, **raw}, key=lambda monomial: (not monomial, len(monomial), monomial))
    values = target["values"] if target["kind"] == "classes" or target["kind"] == "labels" else [None]
    return [
        NamedCoefficient(
            " * ".join(names[i] for i in monomial) or INTERCEPT,
            value,
            float(raw.get(monomial, zero)[k]),
            float(standardised.get(monomial, zero)[k]),
        )
        for k, value in enumerate(values)
        for monomial in places
    ]


def in_raw_units(state: State, standardised: dict[Monomial, Tensor]) -> dict[Monomial, Tensor]:
    """The same polynomial in the units of the raw inputs.

    A number x of a table is encoded as z = (x - m (1 - missing)) / s, with x = 0 where it is missing, and a byte of an
    image as x / 255. Products of such z are expanded.
    """
    encoder, described = state.predictor.encoder, state.spec["input"]
    factors: dict[int, dict[Monomial, float]] = {}
    if isinstance(encoder, TableEncoder):
        units = zip(encoder.mean.tolist(), encoder.scale.tolist(), strict=True)
        n = len(encoder.mean)
        factors = {i: {(i,): 1 / s, (): -m / s, (n + i,): m / s} for i, (m, s) in enumerate(units)}
    elif dtype_of(described) == "uint8" and not frozen_encoder(state.spec):
        factors = {i: {(i,): 1 / 255} for i in range(math.prod(encoder.shape))}
    if not factors:
        return standardised
    raw: defaultdict[Monomial, Tensor] = defaultdict(lambda: torch.zeros(state.predictor.family.outputs).double())
    for monomial, weight in standardised.items():
        sums = [factors.get(i, {(i,): 1.0}).items() for i in monomial]
        for terms in itertools.product(*sums):
            place = tuple(sorted(i for part, _ in terms for i in part))
            raw[place] = raw[place] + weight * math.prod(share for _, share in terms)
    return raw


def coefficients(one: State, other: State, limit: int = MAX_COMPARED) -> tuple[int, list[Coefficient]] | None:
    """The number of coefficients, and those that differ most; None for networks, images, or different inputs.

    Both are in the units of the first version: a training from scratch measures the columns of a table again.
    """
    left, right = one.predictor.body, other.predictor.body
    encoder = frozen_encoder(one.spec)
    names = [f"feature[{i}]" for i in range(encoder["features"])] if encoder else feature_names(one.spec["input"])
    same = same_schema(one.spec, other.spec)
    if not isinstance(left, Linear) or not isinstance(right, Linear) or names is None or not same:
        return None
    a, b = matrix(one), convert_units(one, other)
    if b is None:
        return None
    # monomials are ordered by degree, so a model of higher degree starts with those of the lower; the intercept is last
    more = max(a.shape[1], b.shape[1])
    monomials = max(left.monomials, right.monomials, key=len)
    wide_a, wide_b = widen(a, more), widen(b, more)
    order = (wide_a - wide_b).abs().flatten().topk(min(limit, wide_a.numel())).indices.tolist()
    target = one.spec["target"]
    values = target["values"] if target["kind"] == "classes" or target["kind"] == "labels" else None
    found = []
    for k, d in (divmod(place, more) for place in order):
        last = d == more - 1
        found.append(
            Coefficient(
                " * ".join(names[i] for i in monomials[d]) or INTERCEPT,
                values[k] if values else None,
                float(wide_a[k, d]) if last or d < a.shape[1] - 1 else None,
                float(wide_b[k, d]) if last or d < b.shape[1] - 1 else None,
            )
        )
    return wide_a.numel(), found


def matrix(state: State) -> Tensor:
    """The weights: one row per output, one column per feature, the intercept last."""
    return state.predictor.unflatten(state.w)["weight"].detach().cpu()


def widen(w: Tensor, columns: int) -> Tensor:
    """Add zeros for features that the architecture does not have."""
    zeros = torch.zeros(len(w), columns - w.shape[1], dtype=w.dtype)
    return torch.cat([w[:, :-1], zeros, w[:, -1:]], 1)


def convert_units(one: State, other: State) -> Tensor | None:
    """The weights of `other` in the units of `one`; None if they cannot be converted.

    A number x is encoded as (x - m) / s. With m', s' instead, its weight w becomes w s' / s, and w (m' - m) / s is
    added to the intercept, except where x is missing, which is encoded as 0 in any units.
    """
    ours, theirs = one.predictor.encoder, other.predictor.encoder
    w = matrix(other)
    if not isinstance(ours, TableEncoder) or not isinstance(theirs, TableEncoder):
        return w
    if torch.equal(ours.mean, theirs.mean) and torch.equal(ours.scale, theirs.scale):
        return w
    architecture = other.spec["architecture"]
    if architecture["kind"] != "linear" or architecture.get("degree", 1) != 1:
        return None
    n, converted = len(ours.mean), w.clone()
    moved = w[:, :n] * ((ours.mean - theirs.mean) / theirs.scale).to(w)
    converted[:, :n] = w[:, :n] * (ours.scale / theirs.scale).to(w)
    converted[:, n : 2 * n] -= moved
    converted[:, -1] += moved.sum(1)
    return converted


def feature_names(described: Input) -> list[str] | None:
    """Names of the encoded features, in the order of the encoder; None for images.

    >>> feature_names({"kind": "vector", "dim": 2})
    ['x[0]', 'x[1]']
    >>> feature_names({"kind": "table", "columns": [
    ...     {"name": "plan", "type": "category", "values": ["free", "paid"]}, {"name": "age", "type": "number"}]})
    ['age', 'age is missing', 'plan = free', 'plan = paid', 'plan is missing']
    """
    if described["kind"] in ("vector", "table") and "transform" in described:
        return described["transform"]["features"]
    if described["kind"] == "vector":
        return [f"x[{i}]" for i in range(described["dim"])]
    if described["kind"] != "table":
        return None
    numbers = [c["name"] for c in described["columns"] if c["type"] != "category"]
    names = [*numbers, *(f"{name} is missing" for name in numbers)]
    for column in described["columns"]:
        if column["type"] == "category":
            names += indicators_of(column)
    return names


def pixel_names(described: Input) -> list[str]:
    """Names of an image's pixels: channel, row and column.

    >>> pixel_names({"kind": "image", "shape": [1, 1, 2]})
    ['x[0, 0, 0]', 'x[0, 0, 1]']
    """
    assert described["kind"] == "image"
    return [f"x[{c}, {i}, {j}]" for c, i, j in itertools.product(*map(range, described["shape"]))]
