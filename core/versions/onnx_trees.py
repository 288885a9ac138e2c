"""The splits and the head of a tree ensemble as nodes of an ONNX graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, numpy_helper

from core.kprior import Predictor
from core.kprior.model.categories import spellings_of
from core.kprior.model.spec import Column
from core.kprior.model.tree_leaves import Leaves
from core.kprior.model.tree_splits import LeafEncoder
from core.kprior.model.tree_traversal import WORD_BITS, ZERO

if TYPE_CHECKING:
    from core.versions.onnx_export import Graph

Node = dict[str, Any]


def add_trees(graph: Graph, predictor: Predictor) -> str:
    """f of raw inputs: `LeafEncoder` and `Leaves`. Each tree adds the weights of its leaf to the outputs."""
    encoder, body, described = predictor.encoder, predictor.body, predictor.spec["input"]
    assert isinstance(encoder, LeafEncoder)
    assert isinstance(body, Leaves)
    sets = [(t, i) for t, i in np.argwhere(encoder.category_words.numpy() > 0).tolist()]
    if described["kind"] == "table":
        x, places = add_columns(graph, encoder, described["columns"], sets)
    else:
        x, places = graph.cast(graph.input("x", TensorProto.FLOAT, encoder.raw_shape), np.float64), {}
    width = encoder.raw_shape[0] + len(places)
    if bool(encoder.zero_missing.any()):  # for the nodes that treat zeros as missing: all columns again, without zeros
        zero = graph.add("LessOrEqual", graph.add("Abs", x), graph.constant(np.array(ZERO), np.float64))
        x = graph.concat([x, graph.add("Where", zero, graph.constant(np.array(np.nan), np.float64), x)])
    f = add_ensemble(
        graph, x, list_nodes(encoder, places, width), body.weight.detach().double().numpy(), encoder.leaves
    )
    return graph.cast(f, graph.dtype)


def add_columns(
    graph: Graph, encoder: LeafEncoder, columns: list[Column], sets: list[tuple[int, int]]
) -> tuple[str, dict[tuple[int, int], int]]:
    """The columns of a table in double precision, and a flag for each set: 1 if a row's category belongs to it.

    Returns them as one tensor, with the index of the flag of each node that has a set.
    """
    parts: list[str] = []
    flags: list[str] = []
    places: dict[tuple[int, int], int] = {}
    for c, column in enumerate(columns):
        if column["type"] != "category":
            parts.append(graph.cast(graph.input(column["name"], TensorProto.FLOAT, [1]), np.float64))
            continue
        text, count = graph.input(column["name"], TensorProto.STRING, [1]), len(column["values"])
        codes = {spelling: int(code) for spelling, code in spellings_of(column["values"]).items()} | {"": count}
        labels: dict[str, Any] = {"keys_strings": list(codes), "values_int64s": list(codes.values())}
        code = graph.add("LabelEncoder", text, domain="ai.onnx.ml", default_int64=count, **labels)
        parts.append(graph.cast(code, np.float64))  # no node compares it, but all columns keep their places
        own = [node for node in sets if int(encoder.feature[node]) == c]
        if own:
            indicator = graph.cast(graph.add("Equal", code, graph.constant(np.arange(count + 1)[None])), np.float64)
            belongs = np.stack([members(encoder, node, count) for node in own], 1)
            flags.append(graph.add("MatMul", indicator, graph.constant(belongs, np.float64)))
            first = len(columns) + len(places)
            places |= {node: first + k for k, node in enumerate(own)}
    return graph.concat(parts + flags), places


def members(encoder: LeafEncoder, node: tuple[int, int], count: int) -> Any:
    """(count + 1,) whether each category of a column goes left at a node; the last is a missing or unseen one."""
    start, words = int(encoder.category_start[node]), int(encoder.category_words[node])
    bits = [int(word) for word in encoder.words[start : start + words]]
    flags = [c // WORD_BITS < words and (bits[c // WORD_BITS] >> (c % WORD_BITS)) & 1 for c in range(count)]
    return np.array([*flags, int(encoder.missing_left[node])], np.float64)


def list_nodes(encoder: LeafEncoder, places: dict[tuple[int, int], int], width: int) -> list[Node]:
    """The nodes of all trees that a row can reach, in the terms of ONNX; leaves have numbers after those of nodes.

    The column c without zeros is at `width` + c.
    """
    feature, threshold = (encoder.feature + width * encoder.zero_missing).tolist(), encoder.threshold.tolist()
    left, right, missing = encoder.left.tolist(), encoder.right.tolist(), encoder.missing_left.tolist()
    size, nodes = encoder.feature.shape[1], []

    def number(child: int) -> int:
        return child if child >= 0 else size - 1 - child

    for t in range(encoder.shape[0]):
        if left[t][0] == right[t][0] == -1:  # a tree with a single leaf
            nodes.append({"tree": t, "id": size, "leaf": 0})
            continue
        waiting = [0]
        while waiting:
            i = waiting.pop(0)
            if i < 0:
                nodes.append({"tree": t, "id": number(i), "leaf": -1 - i})
                continue
            node = {"tree": t, "id": i, "feature": feature[t][i], "value": threshold[t][i]}
            node |= {"true": number(left[t][i]), "false": number(right[t][i]), "missing": missing[t][i]}
            if (t, i) in places:  # the flag of a set is 1 on the way to the left
                node |= {"feature": places[t, i], "value": 0.5, "missing": 0}
                node["true"], node["false"] = node["false"], node["true"]
            nodes.append(node)
            waiting += [left[t][i], right[t][i]]
    return nodes


def add_ensemble(graph: Graph, x: str, nodes: list[Node], weight: Any, leaves: int) -> str:
    """The operator TreeEnsembleRegressor, with thresholds and weights in double precision."""
    outputs = len(weight)
    ends = [(node, k) for node in nodes if "leaf" in node for k in range(outputs)]
    weights = [weight[k, node["tree"] * leaves + node["leaf"]] for node, k in ends]
    return graph.add(
        "TreeEnsembleRegressor",
        x,
        domain="ai.onnx.ml",
        n_targets=outputs,
        aggregate_function="SUM",
        post_transform="NONE",
        nodes_treeids=[node["tree"] for node in nodes],
        nodes_nodeids=[node["id"] for node in nodes],
        nodes_featureids=[node.get("feature", 0) for node in nodes],
        nodes_modes=["LEAF" if "leaf" in node else "BRANCH_LEQ" for node in nodes],
        nodes_values_as_tensor=doubles([node.get("value", 0.0) for node in nodes]),
        nodes_truenodeids=[node.get("true", 0) for node in nodes],
        nodes_falsenodeids=[node.get("false", 0) for node in nodes],
        nodes_missing_value_tracks_true=[node.get("missing", 0) for node in nodes],
        target_treeids=[node["tree"] for node, _ in ends],
        target_nodeids=[node["id"] for node, _ in ends],
        target_ids=[k for _, k in ends],
        target_weights_as_tensor=doubles(weights),
        base_values_as_tensor=doubles(weight[:, -1].tolist()),
    )


def doubles(values: list[float]) -> Any:
    return numpy_helper.from_array(np.array(values, np.float64))
