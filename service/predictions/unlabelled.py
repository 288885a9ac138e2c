"""Predictions for examples without a label, which are stored with them and evaluated once the label arrives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from core.errors import AmendError, Conflict
from core.kprior.model.spec import PredictorSpec
from core.ledger.batch import Batch, Predicted
from service.context import CachedModel
from service.http.auth import Caller
from service.predictions.version_cache import CachedVersion, VersionCache


def predict_unlabelled(batch: Batch, name: str, model: CachedModel, caller: Caller, versions: VersionCache) -> Batch:
    """The batch with the champion's predictions for its examples without a label.

    Without predictions if there is no champion, or if its columns or classes differ from the present ones.
    """
    try:
        champion = find(name, None, caller, versions)
    except Conflict:
        return batch
    if not has_schema(champion, model.spec):
        return batch
    which = batch.unlabelled

    def fill(version: CachedVersion) -> NDArray[np.float64]:
        mean = np.full((len(batch), version.model.outputs), np.nan)
        mean[which] = version.model.predict_means(batch.x[which])
        return mean

    predicted = Predicted(champion.model.number or 0, fill(champion))
    challenger = find_challenger(name, model.challenger, champion, caller, versions)
    if challenger is not None:
        predicted = replace(predicted, challenger=challenger.model.number, challenger_mean=fill(challenger))
    return replace(batch, predicted=predicted)


def find_challenger(
    name: str, challenger: int | None, used: CachedVersion, caller: Caller, versions: VersionCache
) -> CachedVersion | None:
    """The policy's challenger, if it exists, is another version, and takes the same inputs."""
    if challenger is None or challenger == used.model.number:
        return None
    try:
        found = find(name, challenger, caller, versions)
    except AmendError:  # purged, for example: a missing challenger must not fail the request
        return None
    return found if has_schema(found, used.model.spec) else None


def find(name: str, version: int | None, caller: Caller, versions: VersionCache) -> CachedVersion:
    return versions.get_cached(name, version, caller) or versions.find(name, version, caller)


def has_schema(version: CachedVersion, spec: PredictorSpec) -> bool:
    """Whether a version was trained with the same columns and classes."""
    return version.model.spec["input"] == spec["input"] and version.model.spec["target"] == spec["target"]
