"""Converts the steps of a pipeline that Amend does not know with skl2onnx; they become the model's frozen encoder."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amend.errors import EstimatorUnsupported
from amend.estimators.fitted_rows import Inputs
from amend.estimators.pipeline_columns import UNSEEN, is_a, require

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
    takes_texts = hasattr(steps[0], "build_analyzer") or hasattr(steps[0], "build_tokenizer")
    columns = list(inputs.names if names is None else names)
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
    if not takes_texts:
        described = [describe_column(name, inputs) for name in columns]
        given = {"kind": "table", "columns": described}
        kinds = {"number": FloatTensorType, "category": StringTensorType}
        types = [(column["name"], kinds[column["type"]]([None, 1])) for column in described]
        if not is_a(steps[0], "ColumnTransformer"):  # it takes one array
            require(all(column["type"] == "number" for column in described), reason)
            types = [("x", FloatTensorType([None, len(columns)]))]
    content = to_onnx(steps, types, reason)
    features = compare(steps, content, inputs, columns, takes_texts, reason)
    return Converted(given, columns, {"kind": "onnx"}, content, features)


def is_plain_hashing(step: Any) -> bool:
    """Whether a step computes what the encoder `hashing` computes."""
    if not is_a(step, "HashingVectorizer"):
        return False
    plain = type(step)(n_features=step.n_features).get_params()
    return all(step.get_params()[name] == value for name, value in plain.items() if name != "dtype")


def describe_column(name: str, inputs: Inputs) -> Spec:
    import pyarrow as pa

    column = inputs.table.column(name)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return {"name": name, "type": "number"}
    values = sorted({value for value in column.to_pylist() if value})
    strange = [value for value in values if not value.isprintable()]
    require(not strange, f"The category {strange[:1]} of {name!r} has control characters. Replace it, and fit again.")
    return {"name": name, "type": "category", "values": values or [UNSEEN], "other": UNSEEN not in values}


def to_onnx(steps: list[Any], types: list[Any], reason: str) -> bytes:
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
    content: bytes = made.SerializeToString()
    return content


def rename_input(graph: Any, given: Any, name: str) -> None:
    for node in graph.node:
        for i, read in enumerate(node.input):
            if read == given.name:
                node.input[i] = name
    given.name = name


def compare(
    steps: list[Any], content: bytes, inputs: Inputs, columns: list[str], takes_texts: bool, reason: str
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
    for name in columns:
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
