"""The splits of tree ensembles as an encoder: raw inputs become the leaf of each tree.

A tree has inner nodes, the root first, and leaves. A node compares one column with a threshold, or looks a category up
in a set. Missing values follow a direction of their own. All trees have room for the same number of leaves, so that a
spec determines the number of weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .input_encoders import Encoder
from .spec import Input, shape_of
from .tree_traversal import WORD_BITS, TreeNodes

PAIRS = 2**18
"""Pairs of a row and a tree that are followed at a time: their nodes fit into a processor's cache."""
NODE_TENSORS = {
    "feature": torch.int32,
    "threshold": torch.float64,
    "left": torch.int32,
    "right": torch.int32,
    "missing_left": torch.uint8,
    "zero_missing": torch.uint8,
    "category_start": torch.int32,
    "category_words": torch.int32,
}
"""Tensors (trees, nodes) that describe the nodes of all trees.

`feature` is a column of the raw input. Values up to `threshold` go `left`, others `right`: the number of another node
of the tree, or -1 - l for leaf l. Where `missing_left` is 1, missing values go left, otherwise right; where
`zero_missing` is 1, zeros do the same. If `category_words` is above 0, the node is a set of categories that go left:
so many words of `words`, from `category_start` on.
"""


class LeafEncoder(Encoder):
    """Raw inputs (n, columns) -> slots (n, trees): leaf l of tree t has the slot t * leaves + l."""

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    missing_left: Tensor
    zero_missing: Tensor
    category_start: Tensor
    category_words: Tensor
    words: Tensor
    """(w,) sets of categories, 32 to a word."""
    delta: Tensor
    """() the strength of the penalty that was chosen on rows withheld from boosting; NaN if none was."""

    def __init__(self, given: Input, trees: int, leaves: int) -> None:
        super().__init__()
        if given["kind"] not in ("table", "vector"):
            raise ValueError("Trees need a table or a vector as input.")
        if "transform" in given:
            raise ValueError("Trees split the columns themselves. Leave out the `transform` of the input.")
        self.raw_shape, self.shape, self.leaves = shape_of(given), (trees,), leaves
        columns = given["columns"] if given["kind"] == "table" else []
        self.categories = [i for i, column in enumerate(columns) if column["type"] == "category"]
        for name, dtype in NODE_TENSORS.items():
            start = -1 if name in ("left", "right") else 0
            self.register_buffer(name, torch.full((trees, max(1, leaves - 1)), start, dtype=dtype))
        self.register_buffer("words", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("delta", torch.full((), torch.nan, dtype=torch.float64))
        self._nodes: TreeNodes | None = None

    def set_splits(self, splits: Mapping[str, Tensor]) -> None:
        """Replace all splits: the tensors of `NODE_TENSORS` and `words`. Raises ValueError if they do not fit."""
        check_splits(splits, self.shape[0], self.leaves, self.raw_shape[0], self.categories)
        for name, dtype in NODE_TENSORS.items():
            getattr(self, name).copy_(splits[name].to(dtype))
        self.words = splits["words"].to(self.words)
        self._nodes = None

    def splits(self) -> list[Tensor]:
        """All tensors that describe the splits."""
        return [*(getattr(self, name) for name in NODE_TENSORS), self.words]

    @property
    def nodes(self) -> TreeNodes:
        """The nodes of all trees, for following rows."""
        if self._nodes is None:
            self._nodes = TreeNodes(self)
        return self._nodes

    def forward(self, x: Tensor) -> Tensor:
        nodes, rows = self.nodes, x.detach().cpu().numpy()
        slots = np.empty((len(rows), self.shape[0]), np.float64)
        step = max(1, PAIRS // self.shape[0])
        for start in range(0, len(rows), step):
            slots[start : start + step] = nodes.follow(rows[start : start + step])
        return torch.from_numpy(slots).to(x.device)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}words" in state_dict:  # the only tensor whose size the spec does not determine
            self.words = torch.zeros_like(state_dict[f"{prefix}words"], device=self.words.device)
        self._nodes = None
        super()._load_from_state_dict(state_dict, prefix, *args)


def check_splits(splits: Mapping[str, Tensor], trees: int, leaves: int, columns: int, categories: list[int]) -> None:
    """Raise ValueError if splits do not describe trees of this size on so many columns."""
    size = max(1, leaves - 1)
    for name in NODE_TENSORS:
        if name not in splits or tuple(splits[name].shape) != (trees, size):
            raise ValueError(f"The splits need {name!r} with {trees} x {size} numbers, one for each node.")
    if "words" not in splits or splits["words"].ndim != 1:
        raise ValueError("The splits need a list 'words', which may be empty.")
    feature, words = splits["feature"], splits["words"]
    if bool((feature < 0).any()) or bool((feature >= columns).any()):
        raise ValueError(f"A split uses a column outside 0..{columns - 1}.")
    own = torch.arange(size).expand(trees, size)
    for side in ("left", "right"):
        child = splits[side]
        # children come after their parents, so that no path is endless
        if bool(((child >= 0) & ((child <= own) | (child >= size))).any()) or bool((child < -leaves).any()):
            raise ValueError(f"A {side} child is neither a later node of its tree nor one of its {leaves} leaves.")
    if bool(splits["threshold"].isnan().any()):
        raise ValueError("A threshold is not a number.")
    count, start = splits["category_words"].long(), splits["category_start"].long()
    used = count > 0
    if bool((count < 0).any()) or bool((used & ((start < 0) | (start + count > len(words)))).any()):
        raise ValueError("A set of categories is outside 'words'.")
    if bool((words < 0).any()) or bool((words >= 2**WORD_BITS).any()):
        raise ValueError(f"Each of 'words' must be from 0 to 2^{WORD_BITS} - 1.")
    if bool((used & ~torch.isin(feature.long(), torch.tensor(categories, dtype=torch.long))).any()):
        raise ValueError("A set of categories belongs to a column that is not a category.")
    in_use = check_shared(splits["left"].long(), splits["right"].long(), leaves)
    if bool((in_use & ~used & torch.isin(feature.long(), torch.tensor(categories, dtype=torch.long))).any()):
        raise ValueError("A node compares a category with a threshold. Use a set of categories.")


def check_shared(left: Tensor, right: Tensor, leaves: int) -> Tensor:
    """Raise ValueError if a node or a leaf can be reached in two ways; returns which nodes are in use.

    Nodes that are not in use have -1 on both sides and no parent, like the root of a tree with a single leaf.
    """
    trees, size = left.shape
    ends, tree = torch.stack([left, right]), torch.arange(trees)[:, None].expand(2, trees, size)
    inner = ends >= 0
    parents = torch.bincount(tree[inner] * size + ends[inner], minlength=trees * size).view(trees, size)
    if bool((parents > 1).any()):
        raise ValueError("A node has two parents. Each node except the root needs a parent of its own.")
    in_use = (left != -1) | (right != -1) | (parents > 0)
    outer = ~inner & in_use
    if bool((torch.bincount(tree[outer] * leaves - 1 - ends[outer], minlength=1) > 1).any()):
        raise ValueError("A leaf has two parents. Each leaf needs a parent of its own.")
    return in_use
