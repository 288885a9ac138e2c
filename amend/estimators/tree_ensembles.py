"""Fitted tree ensembles, in a form that all libraries share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from amend.estimators.pipeline_columns import plain_value, require

CATEGORICAL, DEFAULT_LEFT, MISSING_SHIFT, MISSING_ZERO, WORD_BITS = 1, 2, 2, 1, 32
"""LightGBM's encoding of decisions and sets, which histogram boosting shares in part."""


@dataclass
class Tree:
    """Inner nodes, the root first, and leaves. A child is the number of a node, or -1 - l for leaf l."""

    feature: list[int]
    threshold: list[float]
    """Values up to it go left."""
    left: list[int]
    right: list[int]
    missing_left: list[bool]
    values: Any
    """(leaves, K) what each leaf adds to the outputs."""
    zero_missing: list[bool] = field(default_factory=list)
    sets: dict[int, set[int]] = field(default_factory=dict)
    """Codes of the categories that go left, by node."""


@dataclass
class Ensemble:
    """A fitted tree ensemble."""

    trees: list[Tree]
    bias: Any
    """(K,)."""
    target: Mapping[str, Any]
    additive: bool = True
    """Whether predictions are sums over trees, up to the link. The probabilities of several classes of a forest are
    not."""
    double: bool = False
    """Whether the library compares in double precision. A threshold may then be the value of an example, which the
    service stores in single precision, so that the threshold must be rounded like it."""
    categories: dict[int, list[Any]] = field(default_factory=dict)
    """Values of each categorical feature, in the order of their codes."""
    loss: str | None = None
    """The loss of the head, if it is not the usual one."""


def tree_of(left: Any, right: Any, leaf: Any, feature: Any, threshold: Any, missing_left: Any, values: Any) -> Tree:
    """A tree from arrays in which inner nodes and leaves share their numbers."""
    import numpy as np

    place = np.where(leaf, -np.cumsum(leaf), np.cumsum(~leaf) - 1)  # -1 - l for leaf l
    inner = np.flatnonzero(~leaf)
    return Tree(
        np.asarray(feature)[inner].astype(int).tolist(),
        np.asarray(threshold)[inner].astype(float).tolist(),
        place[np.asarray(left).astype(int)[inner]].tolist(),
        place[np.asarray(right).astype(int)[inner]].tolist(),
        np.asarray(missing_left)[inner].astype(bool).tolist(),
        values[leaf],
    )


def target_of(kind: str, outputs: int, classes: Any, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The target of an ensemble; `given` names the classes of a booster that does not know them."""
    if given is not None:
        return given
    if kind not in ("binary", "classes"):
        return {"kind": kind}
    names = (
        list(range(max(2, outputs))) if classes is None else [v.item() if hasattr(v, "item") else v for v in classes]
    )
    if kind == "binary" and names == [0, 1]:  # also True and False
        return {"kind": "binary"}
    return {"kind": "classes", "values": [plain_value(name) for name in names]}


def with_outputs(ensemble: Ensemble) -> Ensemble:
    """The ensemble with one output per class: a logit f equals a softmax of -f/2 and f/2."""
    import numpy as np

    outputs = len(ensemble.target["values"]) if ensemble.target["kind"] == "classes" else 1
    found = len(ensemble.bias)
    if found == 1 and outputs == 2:
        ensemble.bias = np.concatenate([-ensemble.bias, ensemble.bias]) / 2
        for tree in ensemble.trees:
            tree.values = np.hstack([-tree.values, tree.values]) / 2
        return ensemble
    require(found == outputs, f"The model has {found} outputs, but the target needs {outputs}.")
    return ensemble


def codes_of(words: Any) -> set[int]:
    """The numbers in a bit set of 32-bit words.

    >>> sorted(codes_of([5, 1]))
    [0, 2, 32]
    """
    return {WORD_BITS * i + bit for i, word in enumerate(words) for bit in range(WORD_BITS) if int(word) >> bit & 1}
