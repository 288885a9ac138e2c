"""Combines an estimator and its rows into an import: model spec, weights in the service's order, units of columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from amend.estimators.features import MISSING, Feature, input_names, require, split_pipeline, transform
from amend.estimators.inputs import Inputs
from amend.estimators.layers import Fitted, Layer, read_estimator

Spec = dict[str, Any]


@dataclass(frozen=True)
class Import:
    """What the client sends: model spec, weights, units and examples."""

    input: Spec
    target: Mapping[str, Any]
    architecture: Spec
    regularizer: Spec
    weights: list[float]
    units: dict[str, list[float]] | None
    examples: Any
    class_weight: Mapping[str, float] | None = None
    loss: str | None = None


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


def compose(estimator: Any, inputs: Inputs, outputs: Mapping[str, Any] | None, regularizer: Spec | None) -> Import:
    """The model that predicts what the estimator predicts, and that a retrain on the same rows would give."""
    steps, last = split_pipeline(estimator)
    fitted = read_estimator(last, outputs, inputs.rows, inputs.total)
    count = 1
    for size in inputs.shape:
        count *= size
    features = [Feature(i) for i in range(count)]
    names = input_names(steps[0] if steps else last, inputs.names)
    if inputs.names is not None and names is not None:
        missing = [name for name in names if name not in inputs.names]
        require(
            not missing, f"The frame lacks {', '.join(map(repr, missing[:3]))}, which the estimator was fitted with."
        )
        features = [Feature(inputs.names.index(name)) for name in names]  # in the order of the fit
    for step in steps:
        features = transform(features, step, names)
    first = fitted.layers[0]
    expected = first.weight.shape[1]
    require(len(features) == expected, f"The estimator takes {expected} features, but the rows have {len(features)}.")
    free = fitted.linear and first.delta == 0 and not all(f.is_number for f in features)
    require(not free, "Without a penalty, weights of categories are not unique. Fit a Ridge, or use a finite C.")
    places = [(feature.column, feature.value) for feature in features]
    require(len(set(places)) == len(places), "A pipeline that uses an input twice cannot be imported.")
    encoding = encode_vector(inputs, features) if inputs.names is None else encode_table(inputs.names, features)
    weights, deltas = flatten(fitted, encoding, features)
    if regularizer is None:
        regularizer = penalty_of(fitted, deltas)
    hidden = [len(layer.bias) for layer in fitted.layers[:-1]]
    architecture = {"kind": "linear"} if fitted.linear else {"kind": "mlp", "hidden": hidden}
    examples = inputs.only(encoding.names)
    parts = (encoding.input, fitted.target, architecture, regularizer, weights, encoding.units, examples)
    return Import(*parts, fitted.class_weight, fitted.loss)


def encode_vector(inputs: Inputs, features: list[Feature]) -> Encoding:
    """The encoding of an array, which the service does not change."""
    require(
        all(f.is_number for f in features), "A pipeline with categories requires a frame. Pass the rows as a frame."
    )
    require(
        len(features) == len({f.column for f in features}), "A pipeline that uses an input twice cannot be imported."
    )
    shape = inputs.shape
    size = len(features)
    require(
        sorted(f.column for f in features) == list(range(size)),
        "The pipeline does not use all columns of x. Remove the unused columns.",
    )
    image = len(shape) == 3
    described = {"kind": "image", "shape": list(shape)} if image else {"kind": "vector", "dim": size}
    return Encoding(described, size, [f.column for f in features], None, [])


def encode_table(names: list[str], features: list[Feature]) -> Encoding:
    """The encoding of a table: its numbers, a flag for each missing number, then for each category its values and a
    flag for none of them."""
    numbers = {f.column: f for f in features if f.is_number}
    values: dict[int, list[Any]] = {}
    for feature in features:
        if not feature.is_number:
            values.setdefault(feature.column, []).append(feature.value)
    require(not numbers.keys() & values.keys(), "A column cannot be both a number and a category.")
    used = [i for i in range(len(names)) if i in numbers or i in values]
    columns: list[Spec] = []
    first, size = {}, 2 * len(numbers)
    for i in used:
        if i in numbers:
            columns.append({"name": names[i], "type": "number"})
            continue
        known = [value for value in values[i] if value is not MISSING]
        # The estimator has no weight for unseen values.
        columns.append({"name": names[i], "type": "category", "values": known, "other": False})
        first[i], size = size, size + len(known) + 1
    order = [i for i in used if i in numbers]
    units = {"mean": [numbers[i].mean for i in order], "scale": [numbers[i].scale for i in order]}

    def place(feature: Feature) -> int:
        if feature.is_number:
            return order.index(feature.column)
        known = [value for value in values[feature.column] if value is not MISSING]
        return first[feature.column] + (len(known) if feature.value is MISSING else known.index(feature.value))

    described = {"kind": "table", "columns": columns}
    return Encoding(described, size, [place(f) for f in features], units, [names[i] for i in used])


def flatten(fitted: Fitted, encoding: Encoding, features: list[Feature]) -> tuple[list[float], Any]:
    """All weights in the service's order, and the delta of each."""
    import numpy as np

    first = fitted.layers[0]
    # Scaling that the encoder does not do is folded into the weights: w (x - m) / s = (w / s) x - w m / s.
    own = [f.is_number and encoding.units is not None for f in features]
    means = np.array([0.0 if done else f.mean for done, f in zip(own, features, strict=True)])
    scales = np.array([1.0 if done else f.scale for done, f in zip(own, features, strict=True)])
    require(
        not (fitted.penalize_bias and means.any()),
        "A fit with a penalised intercept on a centred array cannot be imported. Fit the same pipeline on a frame, "
        "whose columns have units, or use StandardScaler(with_mean=False).",
    )
    weight = np.zeros((len(first.bias), encoding.size))
    weight[:, encoding.places] = first.weight / scales
    # A feature that the estimator lacks never occurs, but its weight still needs a penalty to be determined.
    delta = np.full(weight.shape, first.delta or 1.0)
    delta[:, encoding.places] = first.delta * scales**2
    bias = first.bias - first.weight @ (means / scales)
    free = first.delta if fitted.penalize_bias else 0.0
    if fitted.linear:
        column = np.full((len(bias), 1), free)
        return np.column_stack([weight, bias]).ravel().tolist(), np.hstack([delta, column]).ravel()
    layers = [Layer(weight, bias, 0.0), *fitted.layers[1:]]
    deltas = [delta, *(np.full(layer.weight.shape, layer.delta) for layer in fitted.layers[1:])]
    flat = [part.ravel() for layer in layers for part in (layer.weight, layer.bias)]
    held = [part.ravel() for d, layer in zip(deltas, layers, strict=True) for part in (d, 0 * layer.bias)]
    return np.concatenate(flat).tolist(), np.concatenate(held)


def penalty_of(fitted: Fitted, deltas: Any) -> Spec:
    """The regularizer: one delta if all weights have the same, else one per weight."""
    held = set(deltas[deltas > 0].tolist())
    uniform = len(held) == 1 and all(layer.delta > 0 for layer in fitted.layers)
    if uniform or not held:
        return {"kind": "l2", "delta": min(held, default=0.0), "penalize_bias": fitted.penalize_bias}
    return {"kind": "l2", "delta": deltas.tolist()}
