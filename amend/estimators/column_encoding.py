"""How the service encodes the columns of an estimator, and the estimator's weights in the order of that encoding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amend.estimators.estimator_weights import Fitted, Layer
from amend.estimators.fitted_rows import Inputs
from amend.estimators.pipeline_columns import (
    FLAG,
    MISSING,
    OTHER,
    UNSEEN,
    Categories,
    Feature,
    NotColumnwiseError,
    require,
)

Spec = dict[str, Any]
PINNED_PER_ROW, PINNED_RANGE = 1e5, (1e8, 1e10)
"""The penalty of a weight that the estimator does not have, which keeps it at zero. Larger ones make bounds worse."""


@dataclass(frozen=True)
class Encoding:
    """How the service encodes the inputs that the estimator's features come from."""

    input: Spec
    size: int
    """Number of encoded values."""
    places: list[int]
    """Index of each feature among the encoded values."""
    units: dict[str, list[float]] | None
    """Mean and scale of a table's number columns, applied by the service; for arrays, `flatten` applies them."""
    names: list[str]
    """Names of the columns that are sent."""
    pinned: Sequence[int] = ()
    """Indices of encoded values that occur in the rows, but are no features of the estimator."""


def encode_vector(inputs: Inputs, features: list[Feature]) -> Encoding:
    """The encoding of an array, which the service does not change."""
    require(
        all(f.is_number for f in features), "A pipeline with categories requires a frame. Pass the rows as a frame."
    )
    shape = inputs.shape
    size = len(features)
    if sorted(f.column for f in features) != list(range(size)) or any(f.fill is not None for f in features):
        raise NotColumnwiseError("The pipeline does not use all columns of x as they are.")
    image = len(shape) == 3
    described = {"kind": "image", "shape": list(shape)} if image else {"kind": "vector", "dim": size}
    return Encoding(described, size, [f.column for f in features], None, [])


def encode_table(names: list[str], features: list[Feature], found: Categories) -> Encoding:
    """The encoding of a table: its numbers, a flag for each missing number, then for each category its values, a flag
    for unseen values and one for missing values."""
    numbers = {f.column: f for f in features if f.is_number}
    flags = {f.column for f in features if f.value is FLAG}
    require(not numbers.keys() & found.values.keys(), "A column cannot be both a number and a category.")
    if not flags <= numbers.keys():
        raise NotColumnwiseError("A flag of a missing number is used without the number.")
    used = [i for i in range(len(names)) if i in numbers or i in found.values]
    order = [i for i in used if i in numbers]
    columns: list[Spec] = []
    places: dict[tuple[int, Any], int] = {}
    for k, i in enumerate(order):
        places[i, numbers[i].value], places[i, FLAG] = k, len(order) + k
    size = 2 * len(order)
    for i in used:
        if i in numbers:
            columns.append({"name": names[i], "type": "number"})
            continue
        known, accepts = found.values[i], i in found.unseen and UNSEEN not in found.values[i]
        if not accepts and any((f.column, f.value) == (i, OTHER) for f in features):
            raise NotColumnwiseError("A OneHotEncoder groups values, one of which is named 'other'.")
        columns.append({"name": names[i], "type": "category", "values": known, "other": accepts})
        indicators = [*known, *([OTHER] if accepts else []), MISSING]
        places |= {(i, value): size + k for k, value in enumerate(indicators)}
        size += len(indicators)
    own = [places[f.column, f.value] for f in features]
    # values that can occur: missing numbers that the pipeline replaces, and categories without a weight
    occurring = [places[i, FLAG] for i in order if numbers[i].fill is not None]
    occurring += [
        place for (i, v), place in places.items() if i in found.values and (v is not MISSING or i in found.unseen)
    ]
    # A missing number is encoded as 0, which is the replacement if that is the mean of the units.
    means = [numbers[i].mean if (fill := numbers[i].fill) is None else fill for i in order]
    units = {"mean": means, "scale": [numbers[i].scale for i in order]}
    described = {"kind": "table", "columns": columns}
    pinned = sorted(set(occurring) - set(own))
    return Encoding(described, size, own, units, [names[i] for i in used], pinned)


def flatten(fitted: Fitted, encoding: Encoding, features: list[Feature], total: float = 0.0) -> tuple[list[float], Any]:
    """All weights in the service's order, and the delta of each. `total` is the weight of all rows."""
    import numpy as np

    first = fitted.layers[0]
    # Scaling that the encoder does not do is folded into the weights: w (x - m) / s = (w / s) x - w m / s. The encoder
    # of a table has the scale of a number, and its mean or the number that replaces missing ones.
    own = [f.is_number and encoding.units is not None for f in features]
    shifts = np.array(
        [f.mean if not o else 0.0 if f.fill is None else f.mean - f.fill for o, f in pairs(own, features)]
    )
    scales = np.array([1.0 if done else f.scale for done, f in pairs(own, features)])
    shifts = shifts / np.array([f.scale for f in features])
    if fitted.penalize_bias and shifts.any():
        raise NotColumnwiseError("The penalised intercept would change.")
    weight = np.zeros((len(first.bias), encoding.size))
    weight[:, encoding.places] = first.weight / scales
    # A feature that the estimator lacks never occurs, but its weight still needs a penalty to be determined.
    delta = np.full(weight.shape, first.delta or 1.0)
    delta[:, encoding.places] = first.delta * scales**2
    delta[:, list(encoding.pinned)] = np.clip(PINNED_PER_ROW * total, *PINNED_RANGE)
    bias = first.bias - first.weight @ shifts
    free = first.delta if fitted.penalize_bias else 0.0
    if fitted.linear:
        column = np.full((len(bias), 1), free)
        return np.column_stack([weight, bias]).ravel().tolist(), np.hstack([delta, column]).ravel()
    layers = [Layer(weight, bias, 0.0), *fitted.layers[1:]]
    deltas = [delta, *(np.full(layer.weight.shape, layer.delta) for layer in fitted.layers[1:])]
    flat = [part.ravel() for layer in layers for part in (layer.weight, layer.bias)]
    held = [part.ravel() for d, layer in zip(deltas, layers, strict=True) for part in (d, 0 * layer.bias)]
    return np.concatenate(flat).tolist(), np.concatenate(held)


def pairs(own: list[bool], features: list[Feature]) -> list[tuple[bool, Feature]]:
    return list(zip(own, features, strict=True))


def penalty_of(fitted: Fitted, deltas: Any) -> Spec:
    """The regularizer: one delta if all weights have the same, else one per weight."""
    held = set(deltas[deltas > 0].tolist())
    uniform = len(held) == 1 and all(layer.delta > 0 for layer in fitted.layers)
    if uniform or not held:
        return {"kind": "l2", "delta": min(held, default=0.0), "penalize_bias": fitted.penalize_bias}
    return {"kind": "l2", "delta": deltas.tolist()}
