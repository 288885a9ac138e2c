"""Boosting of tree ensembles by LightGBM, of which only the splits are kept, and the choice of the head's penalty.

The same rows and seed give the same splits: one thread, a fixed order of sums, and no sampling.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.kprior.data.examples import Data, Examples, concatenate
from core.kprior.data.keyed_random import uniform
from core.kprior.model.kinked_losses import Huber
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2, regularizer_of
from core.kprior.model.spec import DEFAULT_LEAF_DELTA, Spec
from core.kprior.model.tree_splits import NODE_TENSORS, LeafEncoder
from core.kprior.model.tree_traversal import WORD_BITS
from core.kprior.passes.cost import Cost
from core.kprior.passes.encoded import EncodedData
from core.kprior.passes.loss import Loss
from core.kprior.solvers import Training
from core.kprior.training.wide import train_wide

DELTAS = (3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0)
"""Penalties to choose from."""
WITHHELD, MIN_WITHHELD_ROWS, MAX_ROWS = 0.2, 50, 200_000
"""Fraction of the rows that are withheld to choose the penalty; the smallest useful number of them; and the largest
number of rows, withheld ones included, that the penalty is chosen on."""
HEAD_TOLERANCE = 0.05
"""Relative bound of the heads whose losses are compared: far less than the losses differ."""
CATEGORICAL, DEFAULT_LEFT, MISSING_SHIFT, MISSING_ZERO = 1, 2, 2, 1
"""Bits of LightGBM's decision types, and the type of missing value that includes zeros."""
OBJECTIVES = {"bernoulli": "binary", "categorical": "multiclass", "gaussian": "regression", "poisson": "poisson"}


def fit_splits(predictor: Predictor, spec: Spec, data: Data, training: Training, cost: Cost) -> None:
    """Learn the splits of a predictor from the data and, unless the spec gives it, choose the head's penalty."""
    encoder = predictor.encoder
    assert isinstance(encoder, LeafEncoder)
    rows = concatenate([chunk for chunk in checked(predictor, data) if len(chunk)] or [no_rows(predictor)])
    cost.data_passes += 1
    if len(rows) == 0:
        raise ValueError("There are no examples to train on.")
    delta = math.nan
    if spec["regularizer"].get("delta", "auto") == "auto":
        delta = choose_delta(predictor, spec, rows, training)
    encoder.set_splits(boost(predictor, rows, training.seed))
    encoder.delta.fill_(delta)


def checked(predictor: Predictor, data: Data) -> Iterable[Examples]:
    for chunk in data:
        predictor.check(chunk)
        yield chunk


def no_rows(predictor: Predictor) -> Examples:
    nothing = torch.zeros(0, *predictor.encoder.raw_shape)
    return Examples(torch.zeros(0, dtype=torch.long), nothing, torch.zeros(0, predictor.family.outputs))


def choose_delta(predictor: Predictor, spec: Spec, rows: Examples, training: Training) -> float:
    """The penalty whose head has the smallest loss on rows that neither boosting nor the head has seen.

    On the rows of the booster itself, far too small penalties look best.
    """
    drawn = uniform(rows.key, training.seed + 1)
    used = drawn <= min(1.0, MAX_ROWS / len(rows))
    limit = float(drawn[used].quantile(WITHHELD)) if int(used.sum()) < 2**24 else WITHHELD
    withheld = used & (drawn <= limit)
    if int(withheld.sum()) < MIN_WITHHELD_ROWS:
        return DEFAULT_LEAF_DELTA
    boosted, unseen = rows.take(used & ~withheld), rows.take(withheld)
    trial = Predictor(predictor.spec, training.seed, predictor.device)
    encoder = trial.encoder
    assert isinstance(encoder, LeafEncoder)
    encoder.set_splits(boost(trial, boosted, training.seed))
    seen, judged = EncodedData(trial, [boosted]), EncodedData(trial, [unseen])
    best, least = DEFAULT_LEAF_DELTA, math.inf
    for delta in sorted(DELTAS, reverse=True):
        regularizer = regularizer_of({**spec["regularizer"], "delta": delta}, trial)
        loss = head_loss(trial, regularizer, seen, judged, training)
        if loss < least:
            best, least = delta, loss
        elif loss > least * 1.02 or (least == loss == 0):
            break  # the loss rises from here on
    return best


def head_loss(
    predictor: Predictor, regularizer: L2, seen: EncodedData, judged: EncodedData, training: Training
) -> float:
    """The loss on `judged` of the head that is trained on `seen`; infinite if there is none."""
    try:
        found, _ = train_wide(predictor, regularizer, seen, training, Cost(), HEAD_TOLERANCE)
    except ArithmeticError:
        return math.inf
    value = judged.accumulate(Loss(predictor, found.w)).value
    return value if math.isfinite(value) else math.inf


def boost(predictor: Predictor, rows: Examples, seed: int) -> dict[str, Tensor]:
    """Train LightGBM on rows; the splits of its trees."""
    import lightgbm  # takes a second to import, and only training needs it

    encoder, architecture = predictor.encoder, predictor.spec["architecture"]
    assert isinstance(encoder, LeafEncoder)
    assert architecture["kind"] == "trees"
    x = rows.x.double().cpu().numpy().copy()
    for column in encoder.categories:
        x[:, column] = np.where(x[:, column] < 0, np.nan, x[:, column])  # as the encoder does
    y, weight = rows.y.double().cpu().numpy(), predictor.weigh(rows)
    family, trees = predictor.family, encoder.shape[0]
    target, rounds = y[:, 0], trees
    options: dict[str, Any] = {"objective": OBJECTIVES.get(family.name, "binary")}
    if family.outputs > 1:
        target, rounds = y.argmax(1), max(1, trees // family.outputs)
        options["num_class"] = family.outputs
    elif family.name == "bernoulli" and not bool(((rows.y == 0) | (rows.y == 1)).all()):
        options["objective"] = "cross_entropy"  # the same loss, for probabilities
    elif isinstance(family, Huber):
        options |= {"objective": "huber", "alpha": family.threshold}
    options |= {
        "num_leaves": encoder.leaves,
        "learning_rate": architecture.get("learning_rate", 0.1),
        "min_data_in_leaf": architecture.get("min_examples", 20),
        **{"seed": seed, "deterministic": True, "force_row_wise": True, "num_threads": 1, "verbosity": -1},
        "feature_pre_filter": False,
    }
    dataset = lightgbm.Dataset(
        x,
        target,
        weight=None if weight is None else weight.cpu().numpy(),
        categorical_feature=encoder.categories,
        params=options,
        free_raw_data=True,
    )
    booster = lightgbm.train(options, dataset, rounds)
    return splits_of(read_trees(booster.model_to_string()), trees, encoder.leaves)


def read_trees(text: str) -> list[dict[str, list[float]]]:
    """The numbers of each tree in LightGBM's text format, by name."""
    trees: list[dict[str, list[float]]] = []
    for block in text.split("\nTree=")[1:]:
        lines = block.split("\n\n", 1)[0].split("end of trees")[0].splitlines()[1:]
        pairs = (line.split("=", 1) for line in lines if "=" in line)
        trees.append({name: [float(value) for value in values.split()] for name, values in pairs})
    return trees


def splits_of(found: list[dict[str, list[float]]], trees: int, leaves: int) -> dict[str, Tensor]:
    """The tensors of `LeafEncoder` from LightGBM's trees; trees that were not grown have a single leaf."""
    size = max(1, leaves - 1)
    splits = {name: torch.zeros(trees, size, dtype=dtype) for name, dtype in NODE_TENSORS.items()}
    splits["left"].fill_(-1)
    splits["right"].fill_(-1)
    words: list[int] = []
    for t, tree in enumerate(found[:trees]):
        for i, kind in enumerate(int(value) for value in tree.get("decision_type", [])):
            missing, is_set = (kind >> MISSING_SHIFT) & 3, bool(kind & CATEGORICAL)
            splits["feature"][t, i] = int(tree["split_feature"][i])
            splits["left"][t, i], splits["right"][t, i] = int(tree["left_child"][i]), int(tree["right_child"][i])
            if is_set:
                number = int(tree["threshold"][i])
                first, end = (int(value) for value in tree["cat_boundaries"][number : number + 2])
                splits["category_start"][t, i], splits["category_words"][t, i] = len(words), end - first
                words += [int(value) for value in tree["cat_threshold"][first:end]]
                continue
            threshold = tree["threshold"][i]
            splits["threshold"][t, i] = threshold
            # without a direction of their own, missing values are zeros
            splits["missing_left"][t, i] = bool(kind & DEFAULT_LEFT) if missing else threshold >= 0
            splits["zero_missing"][t, i] = missing == MISSING_ZERO
    assert all(0 <= word < 2**WORD_BITS for word in words)
    return {**splits, "words": torch.tensor(words, dtype=torch.int64)}
