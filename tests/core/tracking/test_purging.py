"""Weights that MLflow must forget: afterwards no file of the server holds them, whatever happened on the way."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.http_artifact_repo import HttpArtifactRepository
from sqlalchemy import update

from core import mutex
from core.clock import now
from core.errors import Conflict, Unavailable
from core.inference.published_model import PublishedModel
from core.kprior import State
from core.tables.tracking import TrackingEvent, TrackingEventKind
from core.tables.versions import Version, VersionState
from core.tracking import artifacts as tracking_weights
from core.tracking import publisher, purging, registered_model, runs
from core.tracking.event_handlers import EventHandler
from core.tracking.purging import purge
from core.versions.privacy_rounding import coarse
from tests.core.tracking.shown import Shown
from tests.core.tracking.test_interruptions import Wire
from tests.core.tracking.tracked_model import NewTrackedModel, TrackedModel, trained
from tests.mlflow_server import MlflowServer
from tests.servers import free_port
from tests.service.expect import soon

NOTHING = {"versions": 0, "models": 0, "files": 0}


@pytest.fixture
def server(mlflow: MlflowServer) -> MlflowServer:
    """The whole server: its folder is looked into."""
    return mlflow


def mark(tracked: TrackedModel, *numbers: int) -> None:
    """Purge versions here: what comes before purging them there."""
    with tracked.database.write() as session:
        for number in numbers:
            session.get_one(Version, (tracked.model.id, number)).state = VersionState.PURGED


def purged(tracked: TrackedModel, url: str, *numbers: int) -> dict[str, int]:
    mark(tracked, *numbers)
    return purge(tracked.database, url, "tests", tracked.model.id, numbers)


def weights(tracked: TrackedModel, number: int) -> bytes:
    state = State.from_bytes(tracked.store.get(tracked.versions[number - 1].file))
    made: bytes = state.w.numpy().tobytes()
    return made


def holding(server: MlflowServer, data: bytes) -> list[Path]:
    """The files of the server, its database among them, that hold these bytes."""
    return [path for path in server.folder.rglob("*") if path.is_file() and data in path.read_bytes()]


def test_of_purged_versions_the_server_holds_no_weights(
    new_tracked: NewTrackedModel, server: MlflowServer, client: MlflowClient
) -> None:
    tracked = trained(new_tracked, 3)
    shown = Shown(client, tracked.name)
    tracked.promote(1)
    tracked.publish(server.url)
    told, made = [version.mlflow or {} for version in tracked.versions], shown.runs()
    assert shown.aliases()["champion"] == shown.aliases()["reference"] == told[0]["version"]
    tracked.promote(3)  # MLflow is not told before the others are purged
    assert [len(holding(server, weights(tracked, number))) for number in (1, 2, 3)] == [1, 1, 1]
    gone = purged(tracked, server.url, 1, 2)
    assert (gone["versions"], gone["models"]) == (2, 2)
    assert gone["files"] > 20
    assert [len(holding(server, weights(tracked, number))) for number in (1, 2, 3)] == [0, 0, 1]
    # nor what was uploaded with them
    assert len(list(server.folder.rglob(f"models/{model(made, 3)}/**/*.safetensors"))) == 1
    for number in (1, 2):
        assert not [path for path in server.folder.rglob(f"models/{model(made, number)}/**/*") if path.is_file()]
        with pytest.raises(MlflowException):
            client.get_logged_model(model(made, number))
        with pytest.raises(MlflowException):
            client.get_model_version(tracked.name, told[number - 1]["version"])
    # what is in service is still there, and so is what was measured
    assert shown.versions().keys() == {"3"}
    assert shown.aliases() == {"champion": told[2]["version"]}
    (kept,) = holding(server, weights(tracked, 3))
    assert len(PublishedModel(str(kept)).predict([[0.0, 0.0]])) == 1
    for name, run in shown.runs().items():
        assert run.data.metrics == made[name].data.metrics
        # pictures count single rows of the holdout
        assert bool(shown.figures(run)) == (run.data.tags["amend.version"] == "3")
    assert [(v.mlflow or {})["version"] for v in tracked.versions] == [None, None, told[2]["version"]]
    # again, there is nothing to do; and what is told again is not uploaded again
    assert purged(tracked, server.url, 1, 2) == NOTHING
    for job in tracked.jobs:
        tracked.tell(TrackingEventKind.JOB, job.id)
    tracked.tell(TrackingEventKind.ALIASES)
    tracked.publish(server.url)
    assert tracked.entries == []
    assert [len(holding(server, weights(tracked, number))) for number in (1, 2, 3)] == [0, 0, 1]
    assert shown.versions().keys() == {"3"}


def model(made: dict[str, Any], number: int) -> str:
    """The id of the MLflow model with a version's weights."""
    (run,) = (run for run in made.values() if run.data.tags["amend.version"] == str(number))
    (output,) = run.outputs.model_outputs
    return str(output.model_id)


def test_an_unrecorded_upload_is_found(
    new_tracked: NewTrackedModel, server: MlflowServer, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: Any) -> None:
        raise Killed

    tracked = trained(new_tracked)
    with monkeypatch.context() as patch:
        patch.setattr(runs, "fill_model", kill)
        with pytest.raises(Killed):
            tracked.publish(server.url, alone=True)
    assert tracked.versions[0].mlflow is None
    assert len(holding(server, weights(tracked, 1))) == 1
    # nor does it get lost if MLflow does not delete it
    with monkeypatch.context() as patch:
        patch.setattr(HttpArtifactRepository, "delete_artifacts", lambda *_: None)
        with pytest.raises(Conflict) as refused:
            purged(tracked, server.url, 1)
    assert refused.value.code == "mlflow_not_purged"
    assert refused.value.detail.endswith(f" files of version 1 of {tracked.name}.")
    gone = purged(tracked, server.url, 1)
    assert (gone["versions"], gone["models"]) == (0, 1)
    assert holding(server, weights(tracked, 1)) == []
    tracked.publish(server.url, alone=True)
    assert_told_without_weights(tracked, server, client)


def test_a_version_purged_before_its_publication_is_not_uploaded(
    new_tracked: NewTrackedModel, server: MlflowServer, client: MlflowClient
) -> None:
    tracked = trained(new_tracked)
    assert purged(tracked, server.url, 1) == NOTHING
    assert tracked.versions[0].mlflow == {}, "looked for, and nothing found"
    tracked.publish(server.url)
    assert_told_without_weights(tracked, server, client)


def assert_told_without_weights(tracked: TrackedModel, server: MlflowServer, client: MlflowClient) -> None:
    shown = Shown(client, tracked.name)
    assert tracked.entries == []
    (run,) = shown.runs().values()
    assert run.info.status == "FINISHED"
    assert run.data.metrics["holdout/accuracy"] == coarse(tracked.versions[0].metrics)["accuracy"]
    assert list(shown.logged_models()) == list(shown.versions()) == []
    assert holding(server, weights(tracked, 1)) == []


def test_a_version_purged_while_it_is_uploaded_is_forgotten_after_that(
    new_tracked: NewTrackedModel, server: MlflowServer, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked, upload, counts = trained(new_tracked), registered_model.ensure_logged_model, []
    monkeypatch.setattr(purging, "POLL_SECONDS", 0.05)
    purger = threading.Thread(target=lambda: counts.append(purged(tracked, server.url, 1)))

    def purge_meanwhile(*arguments: Any) -> str:
        mark(tracked, 1)
        purger.start()
        purger.join(0.5)
        assert counts == [], "it waits"
        return upload(*arguments)

    monkeypatch.setattr(registered_model, "ensure_logged_model", purge_meanwhile)
    tracked.publish(server.url)
    purger.join(30)
    assert (counts[0]["versions"], counts[0]["models"]) == (1, 1)
    assert_told_without_weights(tracked, server, client)


def test_interrupted_anywhere_it_is_finished_by_another(
    new_tracked: NewTrackedModel, server: MlflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CutOff(BaseException):
        pass

    tracked, hold, calls = trained(new_tracked), publisher.MutexKeeper.__call__, [0, 0]
    tracked.publish(server.url)

    def cut(self: publisher.MutexKeeper, at_once: bool = False) -> None:
        calls[0] += 1
        if calls[0] > calls[1]:
            raise CutOff
        hold(self, at_once)

    monkeypatch.setattr(publisher.MutexKeeper, "__call__", cut)
    cuts = 0
    while (tracked.versions[0].mlflow or {})["version"] is not None:
        calls[:] = [0, calls[1] + 1]
        try:
            purged(tracked, server.url, 1)
        except CutOff:
            cuts += 1
    assert cuts > 10
    assert holding(server, weights(tracked, 1)) == []


def test_what_others_did_in_mlflow_hides_no_weights(
    new_tracked: NewTrackedModel, server: MlflowServer, client: MlflowClient, tmp_path: Path
) -> None:
    tracked = trained(new_tracked)
    tracked.publish(server.url)
    (run,) = Shown(client, tracked.name).runs().values()
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(weights(tracked, 1))
    client.log_artifact(run.info.run_id, str(copy), "mine")
    client.delete_logged_model(run.outputs.model_outputs[0].model_id)
    client.delete_run(run.info.run_id)
    client.delete_experiment(run.info.experiment_id)
    assert len(holding(server, weights(tracked, 1))) == 2
    gone = purged(tracked, server.url, 1)
    assert (gone["versions"], gone["models"]) == (1, 0)
    assert holding(server, weights(tracked, 1)) == []


def test_a_database_that_mlflow_lost_hides_no_files(
    new_tracked: NewTrackedModel, server: MlflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow says that there is nothing, and the files lie in its folder."""
    tracked = trained(new_tracked)
    tracked.publish(server.url)
    monkeypatch.setattr(tracking_weights, "runs", lambda *_: iter(()))
    monkeypatch.setattr(registered_model, "set_aliases", lambda *_: None)
    [version] = tracked.versions
    assert version.mlflow_folder
    with monkeypatch.context() as patch:
        patch.setattr(HttpArtifactRepository, "delete_artifacts", lambda *_: None)
        with pytest.raises(Conflict) as refused:
            purged(tracked, server.url, 1)
        assert refused.value.code == "mlflow_not_purged"

        def broken(*_: Any) -> None:
            raise ValueError

        patch.setattr(HttpArtifactRepository, "list_artifacts", broken)
        with pytest.raises(Conflict) as refused:
            purged(tracked, server.url, 1)
        assert refused.value.code == "mlflow_not_purged"
    run_folder = list(server.folder.rglob(f"{(version.mlflow or {})['run_id']}/artifacts/figures/*"))
    assert run_folder
    assert purged(tracked, server.url, 1)["files"] > 10
    assert holding(server, weights(tracked, 1)) == []
    assert not any(path.exists() for path in run_folder)
    assert tracked.versions[0].mlflow_folder is None


def test_without_an_answer_from_mlflow_it_is_unavailable(new_tracked: NewTrackedModel, server: MlflowServer) -> None:
    tracked = trained(new_tracked)
    assert purged(tracked, "", 1) == NOTHING, "there is no MLflow, and never was"
    tracked = trained(new_tracked)
    tracked.publish(server.url)
    wire = Wire(server.url, requests=12)
    for url in ("", f"http://127.0.0.1:{free_port()}", wire.url):
        with pytest.raises(Unavailable) as refused:
            purged(tracked, url, 1)
        assert refused.value.code == "mlflow_unavailable"
    wire.cut()
    assert wire.left < 0
    purged(tracked, server.url, 1)
    assert holding(server, weights(tracked, 1)) == []
    assert purged(tracked, "", 1) == NOTHING


def test_it_waits_for_a_publisher_but_not_for_ever(
    new_tracked: NewTrackedModel, server: MlflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked = trained(new_tracked)
    monkeypatch.setattr(purging, "MUTEX_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(purging, "POLL_SECONDS", 0.05)
    assert mutex.acquire(tracked.database, publisher.MUTEX, "tests", 60)
    with pytest.raises(Unavailable) as refused:
        purged(tracked, server.url, 1)
    assert refused.value.code == "mlflow_busy"
    assert not mutex.acquire(tracked.database, publisher.MUTEX, "somebody else", 60), "the publisher keeps its lease"
    mutex.release(tracked.database, publisher.MUTEX, "tests")
    assert purged(tracked, server.url, 1) == NOTHING


def test_a_version_that_would_be_uploaded_again_is_refused(new_tracked: NewTrackedModel, server: MlflowServer) -> None:
    tracked = trained(new_tracked)
    with pytest.raises(ValueError, match="would be uploaded again"):
        purge(tracked.database, server.url, "tests", tracked.model.id, [1])


def test_versions_that_retention_purged_lose_their_weights_and_keep_their_metrics(
    new_tracked: NewTrackedModel, server: MlflowServer, client: MlflowClient
) -> None:
    tracked = trained(new_tracked, 3)
    tracked.publish(server.url)
    measured = {name: run.data.metrics for name, run in Shown(client, tracked.name).runs().items()}
    mark(tracked, 2)
    tracked.tell(TrackingEventKind.PURGED)
    tracked.publish(server.url)
    assert [len(holding(server, weights(tracked, number))) for number in (1, 2, 3)] == [1, 0, 1]
    assert {name: run.data.metrics for name, run in Shown(client, tracked.name).runs().items()} == measured
    noted = tracked.versions[1]
    assert noted.mlflow is not None
    assert (noted.mlflow["version"], noted.mlflow_folder) == (None, None)
    assert tracked.entries == []


def test_a_purge_does_not_wait_for_a_backlog(
    new_tracked: NewTrackedModel, server: MlflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher in the middle of its backlog stops after the event at hand, and publishes the rest afterwards."""
    tracked = trained(new_tracked)
    tracked.publish(server.url)
    for _ in range(3):
        tracked.tell(TrackingEventKind.ALIASES)
    mark(tracked, 1)
    gone: dict[str, int] = {}

    def purge_now() -> None:
        gone.update(purge(tracked.database, server.url, "erasure", tracked.model.id, [1]))

    waiting, handled = threading.Thread(target=purge_now), 0
    publish_event = publisher.publish_event

    def purge_waits() -> bool:
        with tracked.database.read() as session:
            return mutex.is_taken(session, publisher.PURGE_MUTEX)

    def publish_slowly(*given: Any) -> bool:
        nonlocal handled
        handled += 1
        if handled == 1:
            waiting.start()
            assert soon(purge_waits, 60)
        return publish_event(*given)

    monkeypatch.setattr(publisher, "publish_event", publish_slowly)
    assert tracked.publish(server.url) == 1
    waiting.join(60)
    assert gone["files"] > 0
    assert len(tracked.entries) == 2
    assert tracked.publish(server.url) == 2


def test_deletions_of_models_are_published_first_and_never_dropped(
    new_tracked: NewTrackedModel, server: MlflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, tracked = trained(new_tracked), trained(new_tracked)
    tracked.delete()
    kinds: list[TrackingEventKind] = []

    def refuse(_handler: Any, event: Any) -> None:
        kinds.append(event.kind)
        raise MlflowException("no")

    monkeypatch.setattr(EventHandler, "handle", refuse)
    for _ in range(publisher.MAX_ATTEMPTS + 1):
        other.publish(server.url)
        with other.database.write() as session:
            session.execute(update(TrackingEvent).values(attempted_at=now() - timedelta(days=7)))
    assert kinds[0] is TrackingEventKind.DELETED
    assert [(event.kind, event.model) for event in other.entries] == [(TrackingEventKind.DELETED, tracked.name)]


def test_a_version_that_a_job_made_again_after_a_restore_is_not_taken_for_the_first(
    new_tracked: NewTrackedModel, server: MlflowServer, client: MlflowClient
) -> None:
    tracked = trained(new_tracked, 2)
    tracked.publish(server.url)
    shown, first = Shown(client, tracked.name), weights(tracked, 2)
    assert holding(server, first)
    with tracked.database.write() as session:  # as if the database had been restored, and the job had run again
        again = session.get_one(Version, (tracked.model.id, 2))
        again.created_at, again.mlflow, again.mlflow_folder = now(), None, None
        other = State.from_bytes(tracked.store.get(again.file))
        other.w.add_(1.0)
        stored = tracked.store.put(f"models/{tracked.model.id}", other.to_bytes())
        again.file, again.sha256 = stored.file, stored.sha256
    tracked.tell(TrackingEventKind.JOB, tracked.versions[1].job_id)
    tracked.publish(server.url)
    assert len(client.search_runs([shown.experiment().experiment_id])) == 3
    assert holding(server, weights(tracked, 2))
    mark(tracked, 1)
    purge(tracked.database, server.url, "tests", tracked.model.id, [1], lost=True)
    assert not holding(server, first)
    assert holding(server, weights(tracked, 2))
