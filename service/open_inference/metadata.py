"""Names, data types and shapes of a model's input and output tensors in the Open Inference Protocol.

A table has one tensor per column; a vector or an image has one tensor.
"""

from core.kprior.model.spec import Column, Input, PredictorSpec, gives_scores, shape_of

NUMPY = {
    "BOOL": "?",
    **{f"{sign}INT{8 * size}": f"<{sign.lower() or 'i'}{size}" for sign in ("", "U") for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}
"""NumPy types of the tensor data types. BYTES (text) has none."""


def metadata_of_input(given: Input) -> list[tuple[str, str, list[int]]]:
    """Name, type and shape of the input tensors.

    >>> metadata_of_input({"kind": "vector", "dim": 3})
    [('x', 'FP32', [-1, 3])]
    """
    if given["kind"] == "table":
        return [(column["name"], datatype_of(column), [-1, 1]) for column in given["columns"]]
    if given["kind"] == "text":
        return [("text", "BYTES", [-1, 1])]
    kind = "UINT8" if given["kind"] == "image" and given.get("dtype") == "uint8" else "FP32"
    return [("x", kind, [-1, *shape_of(given)])]


def datatype_of(column: Column) -> str:
    if column["type"] == "category":
        return "INT64" if all(isinstance(value, int) for value in column["values"]) else "BYTES"
    return {"number": "FP64", "boolean": "BOOL", "date": "BYTES"}[column["type"]]


def metadata_of_output(spec: PredictorSpec) -> list[tuple[str, str, list[int]]]:
    """Name, type and shape of the output tensors.

    >>> metadata_of_output({"target": {"kind": "classes", "values": ["cat", "dog"]}})
    [('class', 'BYTES', [-1, 1]), ('probabilities', 'FP64', [-1, 2])]
    >>> metadata_of_output({"target": {"kind": "labels", "values": ["cat", "dog"]}})  # 1 for each predicted label
    [('labels', 'INT64', [-1, 2]), ('probabilities', 'FP64', [-1, 2])]
    """
    target = spec["target"]
    if target["kind"] == "classes":
        kind = "INT64" if all(isinstance(value, int) for value in target["values"]) else "BYTES"
        return [("class", kind, [-1, 1]), ("probabilities", "FP64", [-1, len(target["values"])])]
    if target["kind"] == "labels":
        shape = [-1, len(target["values"])]
        return [("labels", "INT64", shape), ("probabilities", "FP64", shape)]
    mean = ("score" if gives_scores(spec) else "mean", "FP64", [-1, 1])
    return [mean, ("class", "INT64", [-1, 1])] if target["kind"] == "binary" else [mean]


def metadata_of_uncertainty(spec: PredictorSpec) -> list[tuple[str, str, list[int]]]:
    """Name, type and shape of the output tensors for uncertainty.

    >>> metadata_of_uncertainty({"target": {"kind": "classes", "values": ["cat", "dog"]}})
    [('std', 'FP64', [-1, 2]), ('interval', 'FP64', [-1, 4])]
    """
    target = spec["target"]
    numbers = len(target["values"]) if target["kind"] == "classes" or target["kind"] == "labels" else 1
    return [("std", "FP64", [-1, numbers]), ("interval", "FP64", [-1, 2 * numbers])]
