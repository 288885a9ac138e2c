"""Which versions followed each other in service, and what is said of them."""

from __future__ import annotations

import numpy as np

from core.tracking import descriptions
from core.tracking.lineage import Lineage
from tests.core.tracking.tracked_model import NewTrackedModel, TrackedModel, cloud

STRICT = {"relative_bound": 1e-14, "disagreement": 0.0}
"""No adapted model is as near to a retrain as this."""
LOOSE = {"relative_bound": 1.0, "disagreement": 1.0}
"""Every one is: of the few points that are held out, and which those are is chance, some may lie on the border."""


def lineage_of(tracked: TrackedModel) -> Lineage:
    lineage = Lineage.of(tracked.database, tracked.model.id)
    assert lineage is not None
    return lineage


def numbers(lineage: Lineage) -> list[int]:
    return [version.number for version in lineage.line]


def test_a_retrain_within_tolerance_is_not_in_service(new_tracked: NewTrackedModel) -> None:
    tracked = new_tracked(policy={"tolerance": LOOSE})
    for seed in range(2):
        tracked.add(*cloud(60, seed))
        tracked.adapt()
    tracked.retrain()
    lineage = lineage_of(tracked)
    assert numbers(lineage) == [1, 2]
    assert (lineage.champion, lineage.reference) == (lineage.versions[1], lineage.versions[2])
    assert "(within tolerance)" in descriptions.summarize(lineage)


def test_a_retrain_that_took_over_is_in_service(new_tracked: NewTrackedModel) -> None:
    tracked = new_tracked(policy={"certify": "never", "tolerance": STRICT})
    for seed in range(2):
        tracked.add(*cloud(60, seed))
        tracked.adapt()
    tracked.retrain()
    lineage = lineage_of(tracked)
    assert numbers(lineage) == [1, 2, 3]
    assert lineage.champion is lineage.reference is lineage.versions[2]
    assert "(**not** within tolerance)" in descriptions.summarize(lineage)
    assert "1 adaptation and 1 full training took " in descriptions.summarize(lineage)
    # as it was before the retrain
    assert numbers(lineage.until(2)) == [1, 2]
    assert "No full retrain" in descriptions.summarize(lineage.until(2))


def test_a_training_in_place_of_an_adaptation_is_in_service(new_tracked: NewTrackedModel) -> None:
    tracked = new_tracked(policy={"tolerance": STRICT})
    for seed in range(2):
        tracked.add(*cloud(60, seed))
        tracked.adapt()
    lineage = lineage_of(tracked)
    assert [version.kind.value for version in lineage.line] == ["trained", "trained"]
    assert "yet. 1 full training took " in descriptions.summarize(lineage)


def test_a_comparison_of_numbers_reports_the_difference_of_predictions(new_tracked: NewTrackedModel) -> None:
    tracked = new_tracked(target={"kind": "number"})
    x = np.random.default_rng(0).normal(size=(120, 2))
    for part in (x[:60], x[60:]):
        tracked.add(part, part @ [1.0, -2.0] + 0.1 * part[:, 0] ** 2)
        tracked.adapt()
    tracked.retrain()
    said = descriptions.summarize(lineage_of(tracked))
    assert " of the targets' spread on the holdout: RMSE 0." in said
    assert "Version 2, the newest, is adapted; within " in said
