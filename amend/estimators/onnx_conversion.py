"""Converts the steps of a pipeline that Amend does not know with skl2onnx; they become the model's frozen encoder."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amend.errors import EstimatorUnsupported
from amend.estimators.fitted_rows import Inputs
from amend.estimators.pipeline_columns import UNSEEN, is_a, name_of, require, split_pipeline

Spec = dict[str, Any]
OPSET = 17
CHECKED_ROWS = 2_000
"""Rows on which the features of the ONNX model are compared with those of the pipeline."""
TOLERANCE = 1e-4
LOCALE = "C.UTF-8"
"""For lower case. skl2onnx names en_US.UTF-8, which servers often lack."""


@dataclass(frozen=True)
class Converted:
    """The steps as an encoder, and the input that it takes."""

    input: Spec
    names: list[str]
    """Names of the columns that are sent."""
    encoder: Spec
    """Kind `hashing`, or `onnx` without its digest."""
    content: bytes | None
    """The ONNX file."""
    features: int


def convert_steps(steps: list[Any], inputs: Inputs, names: Sequence[str] | None, reason: str) -> Converted:
    """The steps as an encoder; raises EstimatorUnsupported, with the reason why no other way exists, if it cannot."""
    require(inputs.names is not None, reason)
    assert inputs.names is not None
    columns = list(inputs.names if names is None else names)
    steps = without_selection(steps, columns)
    takes_texts = reads_texts(steps[0])
    if takes_texts:
        require(len(columns) == 1, f"A {type(steps[0]).__name__} takes one column of texts, but the frame has several.")
        if len(steps) == 1 and is_plain_hashing(steps[0]):
            hashing = {"kind": "hashing", "features": steps[0].n_features}
            return Converted({"kind": "text"}, columns, hashing, None, steps[0].n_features)
    missing = [module for module in ("skl2onnx", "onnxruntime") if importlib.util.find_spec(module) is None]
    if missing:
        raise EstimatorUnsupported(
            f"{reason} Or install {' and '.join(missing)}: the client then converts the steps to an ONNX encoder."
        )
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    given: Spec = {"kind": "text"}
    types: list[Any] = [(columns[0], StringTensorType([None]))]
    numbers = [name for name in columns if not has_texts(name, inputs)]
    if not takes_texts:
        types = [
            (name, FloatTensorType([None, 1]) if name in numbers else StringTensorType([None, 1])) for name in columns
        ]
        if not is_a(steps[0], "ColumnTransformer"):  # it takes one array
            require(numbers == columns, reason)
            types = [("x", FloatTensorType([None, len(columns)]))]
    content, used = to_onnx(steps, types, reason, columns)
    if not takes_texts:
        given = {"kind": "table", "columns": [describe_column(name, inputs) for name in used]}
    features = compare(steps, content, inputs, columns, used, takes_texts, reason)
    return Converted(given, used, {"kind": "onnx"}, content, features)


def reads_texts(step: Any) -> bool:
    """Whether a step splits texts into words."""
    if is_a(step, "Pipeline", "FeatureUnion"):
        parts = step.steps if is_a(step, "Pipeline") else step.transformer_list
        return bool(parts) and reads_texts(parts[0][1])
    return hasattr(step, "build_analyzer") or hasattr(step, "build_tokenizer")


def without_selection(steps: list[Any], columns: Sequence[str]) -> list[Any]:
    """The steps without a ColumnTransformer that applies others to the only column, which has texts.

    Raises EstimatorUnsupported if texts are one of several columns: a table has only known values, and the words of all
    others would be lost.
    """
    if not is_a(steps[0], "ColumnTransformer"):
        return steps
    parts = [part for _, part, chosen in steps[0].transformers_ if part != "drop" and not is_empty(chosen)]
    texts = [part for part in parts if reads_texts(part)]
    if not texts:
        return steps
    require(
        len(parts) == len(columns) == 1,
        f"{name_of(texts[0])} next to other columns cannot be imported, because the columns of a table have no free"
        " texts. Fit it on a frame with the column of texts alone, or import an estimator of the other columns.",
    )
    inner, last = split_pipeline(texts[0])
    return [*inner, last, *steps[1:]]


def is_empty(columns: Any) -> bool:
    return hasattr(columns, "__len__") and len(columns) == 0


def is_plain_hashing(step: Any) -> bool:
    """Whether a step computes what the encoder `hashing` computes."""
    if not is_a(step, "HashingVectorizer"):
        return False
    plain = type(step)(n_features=step.n_features).get_params()
    return all(step.get_params()[name] == value for name, value in plain.items() if name != "dtype")


def has_texts(name: str, inputs: Inputs) -> bool:
    import pyarrow as pa

    kind = inputs.table.column(name).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def describe_column(name: str, inputs: Inputs) -> Spec:
    if not has_texts(name, inputs):
        return {"name": name, "type": "number"}
    values = sorted({value for value in inputs.table.column(name).to_pylist() if value})
    strange = [value for value in values if not value.isprintable()]
    require(not strange, f"The category {strange[:1]} of {name!r} has control characters. Replace it, and fit again.")
    return {"name": name, "type": "category", "values": values or [UNSEEN], "other": UNSEEN not in values}


def to_onnx(steps: list[Any], types: list[Any], reason: str, columns: list[str]) -> tuple[bytes, list[str]]:
    """The file, and the columns that it reads."""
    from onnx.helper import make_attribute
    from skl2onnx import to_onnx as convert
    from sklearn.pipeline import Pipeline

    pipeline = Pipeline([(f"step{i}", step) for i, step in enumerate(steps)])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = convert(pipeline, initial_types=types, target_opset={"": OPSET, "ai.onnx.ml": 3})
    except Exception as error:  # the converters of single steps raise errors of all kinds
        raise EstimatorUnsupported(f"{reason} skl2onnx cannot convert it either.") from error
    for (name, _), given in zip(types, made.graph.input, strict=True):
        rename_input(made.graph, given, name)  # skl2onnx replaces spaces
    for node in made.graph.node:
        if node.op_type == "StringNormalizer" and not any(a.name == "locale" for a in node.attribute):
            node.attribute.append(make_attribute("locale", LOCALE))
    read = {name for node in made.graph.node for name in node.input}
    unused = [given for given in made.graph.input if given.name not in read]
    for given in unused:
        made.graph.input.remove(given)
    content: bytes = made.SerializeToString()
    return content, [name for name in columns if name not in {given.name for given in unused}]


def rename_input(graph: Any, given: Any, name: str) -> None:
    for node in graph.node:
        for i, read in enumerate(node.input):
            if read == given.name:
                node.input[i] = name
    given.name = name


def compare(
    steps: list[Any],
    content: bytes,
    inputs: Inputs,
    columns: list[str],
    used: list[str],
    takes_texts: bool,
    reason: str,
) -> int:
    """The number of features; raises EstimatorUnsupported if the ONNX model gives others than the pipeline."""
    import numpy as np
    import onnxruntime

    some = inputs.table.select(columns).slice(0, CHECKED_ROWS)
    frame = some.to_pandas()
    truth = frame[columns[0]] if takes_texts else frame
    for step in steps:
        truth = step.transform(truth)
    truth = np.asarray(truth.toarray() if hasattr(truth, "toarray") else truth, float)
    fed = {}
    for name in used:
        column = frame[name]
        if takes_texts or column.dtype.kind not in "fiub":
            values = np.array([value if isinstance(value, str) else "" for value in column], dtype=object)
        else:
            values = column.to_numpy(np.float32)
        fed[name] = values if takes_texts else values[:, None]
    try:
        session = onnxruntime.InferenceSession(content, quiet(), providers=["CPUExecutionProvider"])
        if [each.name for each in session.get_inputs()] == ["x"] and not takes_texts:
            fed = {"x": np.hstack(list(fed.values()))}
        found = session.run(None, fed)[0]
    except Exception as error:  # onnxruntime has errors of its own
        raise EstimatorUnsupported(f"{reason} Its conversion by skl2onnx cannot be run.") from error
    near = found.shape == truth.shape and np.allclose(found, truth, rtol=TOLERANCE, atol=TOLERANCE)
    require(near, f"{reason} Its conversion by skl2onnx gives other features.{ADVICE if takes_texts else ''}")
    return int(truth.shape[1])


def quiet() -> Any:
    """Options without messages on the terminal: what matters is raised."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


ADVICE = " Use token_pattern='[a-zA-Z0-9_]+', which skl2onnx converts exactly, or a HashingVectorizer."
