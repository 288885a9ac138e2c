"""Combines an estimator and its rows into an import: model spec, weights in the service's order, units of columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amend.errors import EstimatorUnsupported
from amend.estimators.column_encoding import Encoding, encode_table, encode_vector, flatten, penalty_of
from amend.estimators.estimator_weights import Fitted, read_estimator, unwrap
from amend.estimators.fitted_rows import Inputs
from amend.estimators.frozen_bodies import compose_frozen, split_frozen
from amend.estimators.onnx_conversion import Converted, convert_steps
from amend.estimators.pipeline_columns import (
    UNSEEN,
    Categories,
    Feature,
    NotColumnwiseError,
    input_names,
    is_a,
    name_of,
    require,
    require_columns,
    split_pipeline,
    transform,
)
from amend.estimators.pipeline_steps import PipelineReader, Slot
from amend.estimators.torch_modules import describe_module, is_plain, require_fit, to_safetensors
from amend.estimators.tree_readers import is_ensemble
from amend.estimators.trees import compose_trees

Spec = dict[str, Any]


@dataclass(frozen=True)
class Import:
    """What the client sends: model spec, weights, units and examples."""

    input: Spec
    target: Mapping[str, Any]
    architecture: Spec
    regularizer: Spec
    weights: list[float] | None
    """None: the service trains the head of imported trees."""
    units: dict[str, list[float]] | None
    examples: Any
    class_weight: Mapping[str, float] | None = None
    loss: str | None = None
    splits: Spec | None = None
    """The splits of trees."""
    tensors: bytes | None = None
    """Weights and buffers as a safetensors file, in place of `weights`."""
    content: bytes | None = None
    """The ONNX file of the encoder, which the architecture names by its digest once it is uploaded."""

    def state_origin(self, trained_on: str) -> None:
        """Note in the spec what the steps were fitted on; the upload of an ONNX file states its origin itself."""
        if "transform" in self.input:
            self.input["transform"]["trained_on"] = trained_on
        elif self.content is None:
            raise EstimatorUnsupported("trained_on= needs steps or frozen layers that become an encoder. Leave it out.")

    def select(self, rows: Inputs | None) -> Any:
        """Other rows with the columns that the model reads; None if there are none."""
        if rows is None:
            return None
        if self.input["kind"] == "text":
            return name_text(rows)
        columns = self.input.get("columns")
        if (columns is None) != (rows.names is None):
            raise EstimatorUnsupported("Pass the rows of the holdout in the same form as the examples.")
        names = [] if columns is None else [column["name"] for column in columns]
        missing = [name for name in names if name not in (rows.names or [])]
        require(not missing, f"The holdout lacks {', '.join(map(repr, missing[:3]))}.")
        return rows.only(names)


def compose(estimator: Any, inputs: Inputs, outputs: Mapping[str, Any] | None, regularizer: Spec | None) -> Import:
    """The model that predicts what the estimator predicts, and that a retrain on the same rows would give."""
    if isinstance(estimator, type):
        raise EstimatorUnsupported(f"{estimator.__name__} is a class. Pass a fitted estimator.")
    if is_a(estimator, "Module"):
        require(
            is_a(estimator, "Sequential"),
            f"{name_of(estimator)} cannot be imported. Pass a torch Sequential, or write a plugin "
            "(docs/how-to/write-a-plugin.md). If its body is frozen, pass Sequential(body, head).",
        )
        require(
            outputs is not None,
            "A torch module does not say what it predicts. Pass outputs=, for example {'kind': 'binary'}, "
            "{'kind': 'classes', 'values': ['cat', 'dog']}, {'kind': 'number'} or {'kind': 'count'}.",
        )
        require(isinstance(outputs, Mapping) and "kind" in outputs, "outputs= must be a target: {'kind': 'binary'}.")
        assert outputs is not None
        require(
            outputs["kind"] not in ("classes", "labels") or "values" in outputs,
            "outputs= must list the values of the target: {'kind': 'classes', 'values': ['cat', 'dog']}.",
        )
        if frozen := split_frozen(estimator, outputs):
            return Import(**compose_frozen(*frozen, inputs, outputs, regularizer))
        if not is_plain(estimator):
            return compose_module(estimator, inputs, outputs, regularizer)
    estimator, log = unwrap(estimator)
    steps, last = split_pipeline(estimator)
    if is_ensemble(last):
        return Import(**compose_trees(last, steps, inputs, outputs, regularizer, log), units=None)
    fitted = read_estimator(last, outputs, inputs)
    if log:
        require(fitted.target == {"kind": "number"}, "Only a regressor of a number can have a transformed target.")
        fitted = fitted.of_target({"kind": "number", "transform": log})
    columns, names = order_columns(inputs, steps[0] if steps else last)
    try:
        try:
            encoding, weights, deltas = compose_columns(fitted, inputs, steps, columns, names)
        except NotColumnwiseError:
            encoding, weights, deltas = compose_steps(fitted, inputs, steps, columns, names)
    except EstimatorUnsupported as error:
        if not fitted.linear or not steps:
            raise
        converted = convert_steps(steps, inputs, names, str(error))
        return compose_converted(fitted, inputs, converted, regularizer)
    if regularizer is None:
        regularizer = penalty_of(fitted, deltas)
    hidden = [len(layer.bias) for layer in fitted.layers[:-1]]
    architecture = {"kind": "linear"} if fitted.linear else {"kind": "mlp", "hidden": hidden}
    examples = inputs.only(encoding.names)
    parts = (encoding.input, fitted.target, architecture, regularizer, weights, encoding.units, examples)
    return Import(*parts, fitted.class_weight, fitted.loss)


def compose_converted(fitted: Fitted, inputs: Inputs, found: Converted, regularizer: Spec | None) -> Import:
    """A linear head on the features of converted steps."""
    check_count(fitted, found.features)
    encoding = Encoding(found.input, found.features, list(range(found.features)), None, found.names)
    weights, deltas = flatten(fitted, encoding, [Feature(i) for i in range(found.features)])
    architecture = {"kind": "linear", "encoder": found.encoder}
    examples = name_text(inputs) if found.input == {"kind": "text"} else inputs.only(found.names)
    parts = (found.input, fitted.target, architecture, regularizer or penalty_of(fitted, deltas), weights)
    return Import(*parts, None, examples, fitted.class_weight, fitted.loss, content=found.content)


def name_text(rows: Inputs) -> Any:
    """The rows with their column of texts under the name that the service knows."""
    names = rows.names or []
    require(len(names) == 1, f"The frame must have one column of texts, but has {len(names)} columns.")
    return rows.table.rename_columns(["text" if name == names[0] else name for name in rows.table.column_names])


def compose_module(module: Any, inputs: Inputs, outputs: Mapping[str, Any], regularizer: Spec | None) -> Import:
    """The network of a torch Sequential; the columns of a frame are its inputs, in their order."""
    described = describe_module(module, outputs)
    given: Spec = {"kind": "vector", "dim": inputs.shape[0]}
    if len(inputs.shape) == 3:
        given = {"kind": "image", "shape": list(inputs.shape)}
    elif inputs.names is not None:
        columns = [{"name": name, "type": "number"} for name in inputs.names]
        unchanged = {"steps": [keep_all(len(columns))], "features": inputs.names, "trained_on": "other"}
        given = {"kind": "table", "columns": columns, "transform": unchanged}
    architecture = {"kind": "sequential", "layers": described.layers}
    require_fit(module, inputs)
    penalty = regularizer or {"kind": "l2", "delta": 1.0, "penalize_bias": False}
    tensors = to_safetensors(described.tensors)
    examples = inputs.only(inputs.names or [])
    return Import(given, outputs, architecture, penalty, [], None, examples, tensors=tensors)


def order_columns(inputs: Inputs, first: Any) -> tuple[list[int], Sequence[str] | None]:
    """The indices of the inputs in the order of the fit, and the names that they had in it."""
    count = 1
    for size in inputs.shape:
        count *= size
    names = input_names(first, inputs.names)
    if inputs.names is None or names is None:
        return list(range(count)), names
    require_columns(names, inputs.names)
    return [inputs.names.index(name) for name in names], names


def compose_columns(
    fitted: Fitted, inputs: Inputs, steps: list[Any], columns: list[int], names: Sequence[str] | None
) -> tuple[Encoding, list[float], Any]:
    """Encoding, weights and deltas of a model whose features are columns in units, and indicators of categories."""
    features, found = [Feature(i) for i in columns], Categories()
    for step in steps:
        features = transform(features, step, names, found)
    check_count(fitted, len(features))
    places = [(feature.column, feature.value) for feature in features]
    if len(set(places)) < len(places):
        raise NotColumnwiseError("The pipeline uses an input twice.")
    free = fitted.linear and fitted.layers[0].delta == 0 and not all(f.is_number for f in features)
    require(not free, "Without a penalty, weights of categories are not unique. Fit a Ridge, or use a finite C.")
    encoding = encode_vector(inputs, features) if inputs.names is None else encode_table(inputs.names, features, found)
    if encoding.pinned and not fitted.linear:
        raise NotColumnwiseError("A network has no penalty for each weight.")
    return encoding, *flatten(fitted, encoding, features, inputs.total)


def compose_steps(
    fitted: Fitted, inputs: Inputs, steps: list[Any], columns: list[int], names: Sequence[str] | None
) -> tuple[Encoding, list[float], Any]:
    """Encoding, weights and deltas of a model that computes the features of the pipeline."""
    require(len(inputs.shape) == 1, "A pipeline for images cannot be imported.")
    reader = PipelineReader(names, inputs.names is not None)
    made, slots = reader.chain(steps, [Slot(i) for i in columns])
    check_count(fitted, len(slots))
    for complete in reader.deferred:
        complete()
    reader.numbers |= {slot.column for slot in slots if slot.column is not None}
    both = sorted(reader.numbers & reader.categories.keys())
    require(not both, "A column cannot be both a number and a category. Add a copy of it to the frame.")
    free = fitted.linear and fitted.layers[0].delta == 0 and bool(reader.categories)
    require(not free, "Without a penalty, weights of categories are not unique. Fit a Ridge, or use a finite C.")
    described: Spec = {"kind": "vector", "dim": len(columns)}
    used: list[str] = []
    if inputs.names is not None:
        columns = drop_unused(made, columns, reader)
        used = [inputs.names[i] for i in columns]
        described = {"kind": "table", "columns": [describe_column(inputs.names[i], reader, i) for i in columns]}
    described["transform"] = {"steps": made or [keep_all(len(columns))], "features": feature_names(steps, len(slots))}
    encoding = Encoding(described, len(slots), list(range(len(slots))), None, used)
    return encoding, *flatten(fitted, encoding, [Feature(i) for i in range(len(slots))])


def drop_unused(steps: list[Spec], columns: list[int], reader: PipelineReader) -> list[int]:
    """The columns without those that the pipeline drops, whose values may be anything."""
    kept = [place for place, i in enumerate(columns) if i in reader.numbers or i in reader.categories]
    if len(kept) < len(columns):
        for part in steps[0]["parts"]:  # only a selection of columns drops any
            part["inputs"] = [kept.index(place) for place in part["inputs"]]
    return [columns[place] for place in kept]


def keep_all(count: int) -> Spec:
    return {"kind": "parts", "parts": [{"inputs": list(range(count)), "steps": []}]}


def describe_column(name: str, reader: PipelineReader, i: int) -> Spec:
    if i not in reader.categories:
        return {"name": name, "type": "number"}
    values = reader.categories[i]
    return {"name": name, "type": "category", "values": values, "other": UNSEEN not in values}


def feature_names(steps: list[Any], count: int) -> list[str]:
    """The names of a pipeline's features, if it knows them."""
    names: Any = None
    try:
        for step in steps:
            names = step.get_feature_names_out(names)
        found = [str(name)[:200] for name in names]
    except (AttributeError, TypeError, ValueError):
        found = []
    if len(found) == count and all(name.isprintable() and name for name in found):
        return found
    return [f"feature {i}" for i in range(count)]


def check_count(fitted: Fitted, count: int) -> None:
    expected = fitted.layers[0].weight.shape[1]
    require(count == expected, f"The estimator takes {expected} features, but the rows have {count}.")
