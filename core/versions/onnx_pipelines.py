"""The steps of an imported pipeline (`input.transform`) as nodes of an ONNX graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from core.kprior.model.spec_types import Piecewise, Step

if TYPE_CHECKING:
    from core.versions.onnx_export import Graph

LOGARITHMS = {"log": 1.0, "log2": math.log(2.0), "log10": math.log(10.0)}


def add_steps(graph: Graph, steps: Sequence[Step], x: str, width: int) -> str:
    """Features of raw columns x (rows, width) in double precision; undefined features are 0."""
    x, _ = add_chain(graph, steps, x, width)
    undefined = graph.add("Or", graph.add("IsNaN", x), graph.add("IsInf", x))
    return graph.cast(graph.add("Where", undefined, number(graph, 0.0), x), graph.dtype)


def number(graph: Graph, value: Any) -> str:
    return graph.constant(np.asarray(value, np.float64), np.float64)


def take(graph: Graph, x: str, indices: Sequence[int]) -> str:
    return graph.add("Gather", x, graph.constant(np.asarray(indices, np.int64)), axis=1)


def add_chain(graph: Graph, steps: Sequence[Step], x: str, width: int) -> tuple[str, int]:
    for step in steps:
        x, width = add_step(graph, step, x, width)
    return x, width


def add_step(graph: Graph, step: Step, x: str, width: int) -> tuple[str, int]:
    """One step, and the number of its outputs."""
    if step["kind"] == "fill":
        missing = graph.add("IsNaN", x)
        values = [math.nan if value is None else value for value in step["values"]]
        parts = [graph.add("Where", missing, number(graph, values), x)]
        flags = step.get("flags", [])
        if flags:
            parts.append(take(graph, graph.cast(missing, np.float64), flags))
        return graph.concat(parts), width + len(flags)
    if step["kind"] == "scale":
        return graph.add("Div", graph.add("Sub", x, number(graph, step["mean"])), number(graph, step["scale"])), width
    if step["kind"] == "clip":
        return graph.add("Clip", x, number(graph, step["low"]), number(graph, step["high"])), width
    if step["kind"] == "one_hot":
        parts, outputs = [], 0
        for i, one in enumerate(step["inputs"]):
            places = [*one["places"], one.get("unseen", -1), one.get("missing", -1)]
            place = graph.add("Gather", graph.constant(np.array(places)), entry(graph, x, i, len(places) - 2))
            hot = graph.add("Equal", place, graph.constant(np.arange(one["width"])[None]))
            parts.append(graph.cast(hot, np.float64))
            outputs += one["width"]
        return graph.concat(parts), outputs
    if step["kind"] == "lookup":
        parts = []
        for i, table in enumerate(step["inputs"]):
            gap = table.get("missing")
            numbers = [*table["values"], table["unseen"], math.nan if gap is None else gap]
            parts.append(graph.add("Gather", number(graph, numbers), entry(graph, x, i, len(table["values"]))))
        return graph.concat(parts), width
    if step["kind"] == "function":
        return add_function(graph, step["name"], x), width
    if step["kind"] == "products":
        return add_products(graph, step["of"], x, width), len(step["of"])
    if step["kind"] == "piecewise":
        parts = [add_piecewise(graph, one, take(graph, x, [i])) for i, one in enumerate(step["inputs"])]
        return graph.concat(parts), sum(len(one["coefficients"]) for one in step["inputs"])
    if step["kind"] == "project":
        product = graph.add("MatMul", x, number(graph, np.array(step["matrix"]).T))
        return graph.add("Add", product, number(graph, step["offset"])), len(step["matrix"])
    if step["kind"] == "normalize":
        operator = {"l1": "ReduceL1", "l2": "ReduceL2", "max": "ReduceMax"}[step.get("norm", "l2")]
        norm = graph.add(operator, graph.add("Abs", x), axes=[1], keepdims=1)
        nothing = graph.add("Equal", norm, number(graph, 0.0))
        return graph.add("Div", x, graph.add("Where", nothing, number(graph, 1.0), norm)), width
    made = [
        add_chain(graph, part.get("steps", []), take(graph, x, part["inputs"]), len(part["inputs"]))
        for part in step["parts"]
        if part["inputs"]
    ]
    return graph.concat([tensor for tensor, _ in made]), sum(outputs for _, outputs in made)


def entry(graph: Graph, x: str, i: int, size: int) -> str:
    """(rows, 1) index in a table of `size` values, then unseen and missing ones."""
    code = take(graph, x, [i])
    known = graph.add(
        "And",
        graph.add("GreaterOrEqual", code, number(graph, 0.0)),
        graph.add("Less", code, number(graph, float(size))),
    )
    other = graph.add("Where", graph.add("IsNaN", code), number(graph, size + 1.0), number(graph, float(size)))
    return graph.cast(graph.add("Where", known, code, other), np.int64)


def add_function(graph: Graph, name: str, x: str) -> str:
    if name in LOGARITHMS:
        return graph.add("Div", graph.add("Log", x), number(graph, LOGARITHMS[name]))
    if name == "log1p":
        return graph.add("Log", graph.add("Add", x, number(graph, 1.0)))
    if name == "expm1":
        return graph.add("Sub", graph.add("Exp", x), number(graph, 1.0))
    if name == "square":
        return graph.add("Mul", x, x)
    return graph.add({"sqrt": "Sqrt", "exp": "Exp", "abs": "Abs"}[name], x)


def add_products(graph: Graph, of: Sequence[Sequence[int]], x: str, width: int) -> str:
    one = graph.add("Sub", take(graph, x, [0]), take(graph, x, [0]))
    one = graph.add("Where", graph.add("IsNaN", one), number(graph, 1.0), graph.add("Add", one, number(graph, 1.0)))
    padded = graph.concat([x, one])
    degree = max(map(len, of), default=0)
    made = take(graph, padded, [width] * len(of))
    for k in range(degree):
        made = graph.add("Mul", made, take(graph, padded, [f[k] if k < len(f) else width for f in of]))
    return made


def add_piecewise(graph: Graph, one: Piecewise, x: str) -> str:
    """Piecewise polynomials of x (rows, 1): (rows, outputs)."""
    missing = graph.add("IsNaN", x)
    if "low" in one and "high" in one:
        x = graph.add("Clip", x, number(graph, one["low"]), number(graph, one["high"]))
    if one["breaks"]:
        above = graph.cast(graph.add("GreaterOrEqual", x, number(graph, [one["breaks"]])), np.int64)
        interval = graph.add("ReduceSum", above, graph.constant(np.array([1])), keepdims=0)
    else:
        interval = graph.cast(graph.add("Squeeze", missing, graph.constant(np.array([1]))), np.int64)
        interval = graph.add("Mul", interval, graph.constant(np.array(0)))
    origin = graph.add(
        "Unsqueeze", graph.add("Gather", number(graph, one["origins"]), interval), graph.constant(np.array([1]))
    )
    t = graph.add("Sub", x, origin)
    coefficients = np.array(one["coefficients"]).swapaxes(0, 1)  # (intervals, outputs, degree + 1)
    made = ""
    for k in reversed(range(coefficients.shape[2])):
        chosen = graph.add("Gather", number(graph, coefficients[:, :, k]), interval, axis=0)
        made = chosen if not made else graph.add("Add", graph.add("Mul", made, t), chosen)
    return graph.add("Where", missing, number(graph, 0.0), made)
