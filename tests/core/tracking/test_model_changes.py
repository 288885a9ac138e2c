"""What MLflow shows when a model is promoted, held, retrained, deleted or made anew."""

from __future__ import annotations

from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from core.jobs import resumption
from core.models import catalog
from core.promotion.decision import Requester, request_promotion
from core.quality.version_comparison import PairedEvaluation
from core.tables.tracking import TrackingEventKind, enqueue_event
from core.versions.queries import find_version
from tests.core.tracking.shown import Shown
from tests.core.tracking.tracked_model import NewTrackedModel, cloud, trained

# but for those of `tracked`, which is made before


def test_aliases_follow_promotions(new_tracked: NewTrackedModel, server: str, client: MlflowClient) -> None:
    tracked = new_tracked(policy={"promote": "manual"})
    for seed in range(2):
        tracked.add(*cloud(60, seed))
        tracked.adapt()
    tracked.publish(server)
    shown = Shown(client, tracked.name)
    numbers = {number: str(version.version) for number, version in shown.versions().items()}
    assert shown.aliases() == {"challenger": numbers["2"], "reference": numbers["1"]}
    tracked.promote(1)
    tracked.publish(server)
    assert shown.aliases() == {"champion": numbers["1"], "challenger": numbers["2"], "reference": numbers["1"]}
    tracked.promote(2)
    tracked.publish(server)
    assert shown.aliases() == {"champion": numbers["2"], "reference": numbers["1"]}


def test_a_held_model_says_so_until_it_is_resumed(
    new_tracked: NewTrackedModel, server: str, client: MlflowClient
) -> None:
    tracked = trained(new_tracked, 2)
    tracked.publish(server)
    shown = Shown(client, tracked.name)

    def told(act: Any) -> tuple[str | None, str, str]:
        with tracked.database.write() as session:
            act(session, catalog.find(session, tracked.name, None, lock=True))
        tracked.publish(server)
        model = client.get_registered_model(tracked.name)
        return model.tags.get("amend.held"), model.description, shown.experiment().tags["mlflow.note.content"]

    tag, *notes = told(
        lambda session, model: request_promotion(
            session, model, find_version(session, model, 1), Requester.PERSON, "key-7"
        )
    )
    assert tag is not None
    assert tag.startswith("held since 2")
    assert tag.endswith(": version 1 was promoted by hand")
    for note in notes:
        assert note.startswith(f"**The model is {tag}.** It is not adapted or retrained automatically. ")
    assert shown.aliases()["champion"] == str(shown.versions()["1"].version)
    tag, *notes = told(lambda session, model: resumption.resume(session, model, None))
    assert tag is None
    assert not any("held" in note.partition(".")[0] for note in notes)


def test_a_worse_retrain_is_reported_and_is_not_on_the_timeline(
    new_tracked: NewTrackedModel, server: str, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = {"certify": "never", "tolerance": {"relative_bound": 1e-15, "disagreement": 0}}
    tracked = new_tracked(policy=strict)
    for seed in range(2):
        tracked.add(*cloud(100, seed))
        tracked.adapt()
    monkeypatch.setattr(PairedEvaluation, "worse", "loss")
    retrained = tracked.retrain()
    assert (retrained.number, retrained.state, tracked.model.champion) == (3, "candidate", 2)
    tracked.publish(server)
    shown = Shown(client, tracked.name)
    said = "(**not** within tolerance). The retrained version is worse on the holdout and stays a candidate."
    for name in ("version 2, adapted", "version 3, trained"):
        note = shown.runs()[name].data.tags["mlflow.note.content"]
        assert (said in note) == (name == "version 3, trained")
    assert said in client.get_registered_model(tracked.name).description
    # it serves nothing: the adapted model is what the timeline goes on with
    assert list(shown.points("adapted", "cost/seconds_total")) == [1, 2]
    assert shown.aliases() == {
        "champion": str(shown.versions()["2"].version),
        "reference": str(shown.versions()["3"].version),
    }


def test_examples_of_a_rejected_version_count_for_the_champion_and_the_frozen_version(
    new_tracked: NewTrackedModel, server: str, client: MlflowClient
) -> None:
    tracked = new_tracked()
    tracked.add(*cloud(400))
    tracked.adapt()
    x, y = cloud(200, seed=1)
    tracked.add(x, ~y)
    assert tracked.adapt().state == "rejected"
    tracked.publish(server)
    shown = Shown(client, tracked.name)
    champion, frozen = (shown.points(line, "Test-then-train/accuracy") for line in ("adapted", "frozen"))
    assert champion == frozen  # so far, the champion is the first version
    assert champion[2] < 0.2
    assert list(shown.points("adapted", "accuracy/holdout")) == [1]


def test_a_model_of_the_same_name_starts_afresh(
    new_tracked: NewTrackedModel, server: str, client: MlflowClient
) -> None:
    tracked = trained(new_tracked)
    tracked.publish(server)
    shown = Shown(client, tracked.name)
    before = shown.experiment().experiment_id
    old = tracked.model
    tracked.delete()
    tracked.create()
    tracked.add(*cloud(40))
    tracked.adapt()
    tracked.publish(server)
    assert shown.experiment().experiment_id != before
    assert client.get_experiment(before).lifecycle_stage == "deleted"
    assert len(shown.runs()) == len(shown.versions()) == 1
    assert shown.lines()["adapted"].info.lifecycle_stage == "active"
    # the deletion of the old one, told again, is not about the new one
    fresh = shown.everything()
    with tracked.database.write() as session:
        enqueue_event(session, old, TrackingEventKind.DELETED)
    tracked.publish(server)
    assert shown.everything() == fresh


def test_of_a_deleted_model_nothing_is_shown(new_tracked: NewTrackedModel, server: str, client: MlflowClient) -> None:
    told, untold = trained(new_tracked), trained(new_tracked)
    told.publish(server)
    for tracked in (told, untold):
        tracked.add(*cloud(20, 9))
        tracked.adapt()
        tracked.delete()
    told.publish(server)
    assert told.entries == []
    for tracked in (told, untold):
        assert client.get_experiment_by_name(tracked.name) is None
        assert client.get_experiment_by_name(f"{tracked.name} timeline") is None
        with pytest.raises(MlflowException):
            client.get_registered_model(tracked.name)
