"""Rows of tree ensembles as the slots of their leaves, and the conversion to features where a method needs them."""

import torch

from core.kprior.data.examples import EncodedExamples, Examples
from core.kprior.model.predictor import Predictor
from core.kprior.model.tree_leaves import LeafRows, Leaves


def leaf_rows(predictor: Predictor, chunk: Examples) -> LeafRows | None:
    """The slots of a chunk, raw or encoded; None if the model has no trees, or the chunk has features already."""
    if not isinstance(predictor.body, Leaves):
        return None
    if not isinstance(chunk, EncodedExamples):
        return LeafRows(predictor.encode(chunk.x).long(), predictor.body.width)
    if chunk.x.is_floating_point():
        return None
    return LeafRows(chunk.x.long(), predictor.body.width)


def with_features(predictor: Predictor, rows: Examples, max_rows: int | None = None) -> EncodedExamples:
    """Encoded rows with their features instead of slots; of many, every k-th row, so that at most `max_rows` stay."""
    if not isinstance(predictor.body, Leaves) or rows.x.is_floating_point():
        return EncodedExamples(rows.key, rows.x, rows.y, rows.weight)
    if max_rows is not None and len(rows) > max_rows:
        rows = rows.take(torch.linspace(0, len(rows) - 1, max_rows).long())
    features = predictor.body.features(rows.x.to(predictor.dtype)).float()
    return EncodedExamples(rows.key, features, rows.y, rows.weight)
