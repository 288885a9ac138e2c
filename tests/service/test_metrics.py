"""Prometheus metrics; the dashboard and the alerts use no others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import delete, event

from core.clock import now
from core.kprior import Certificate
from core.metadata import record_tick
from core.models import catalog
from core.tables.erasures import Erasure
from core.tables.jobs import Job, JobKind, JobState
from core.tables.tracking import TrackingEvent, TrackingEventKind
from core.tables.versions import Comparison
from core.tables.webhooks import Webhook
from core.versions.queries import champion_of
from service import prometheus_metrics
from service.context import Context
from tests import promtool
from tests.service.erasure_helpers import open_erasure
from tests.service.expect import add, rows
from tests.stack import Stack

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
MOST_QUERIES = 11


def shown(stack: Stack, **labels: str) -> dict[str, float]:
    """The samples with these labels, by name; asked of the database now, not a moment ago."""
    context = Context(stack.settings)
    try:
        text = prometheus_metrics.render_metrics(context).decode()
    finally:
        context.close()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {s.name: s.value for s in samples if all(s.labels.get(name) == value for name, value in labels.items())}


def test_metrics_count_requests_and_examples(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(4))
    answer = api.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'amend_requests_total{method="POST",route="/v1/models/{name}/examples",status="201"}' in answer.text
    assert shown(stack, model=name, split="train")["amend_ledger_examples"] == 4
    told = shown(stack, model=name)
    assert told["amend_pending_changes"] == 4
    assert "amend_champion_version" not in told  # there is none


def test_metrics_have_quality_age_and_bound_of_the_champion(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(4))
    stack.train(name)
    with stack.database.write() as session:
        model = catalog.find(session, name, None, lock=True)
        champion = champion_of(session, model)
        assert champion is not None
        champion.metrics = {"rows": 400, "accuracy": 0.9425, "accuracy_se": 0.0116, "loss": 0.1519, "loss_se": 0.0231}
        champion.certificate = Certificate("bound", relative=0.0042, bound=0.01)
        champion.created_at = now() - timedelta(hours=2)
        comparison = {"model_id": model.id, "position": 4, "adapted": 1, "retrained": 1, "result": {}}
        session.add(Comparison(**comparison, within_tolerance=True))
        session.flush()
        session.add(Comparison(**comparison, within_tolerance=False))
    told = shown(stack, model=name)
    assert told["amend_champion_version"] == 1
    assert told["amend_pending_changes"] == 0
    assert told["amend_champion_age_seconds"] == pytest.approx(7200, abs=60)
    assert told["amend_comparison_within_tolerance"] == 0  # the last one
    # rounded: what Prometheus saw cannot be erased
    assert shown(stack, model=name, metric="accuracy")["amend_champion_holdout"] == 0.94
    assert shown(stack, model=name, metric="loss")["amend_champion_holdout"] == 0.15
    assert told["amend_champion_relative_bound"] == 0.01
    assert told["amend_champion_within_tolerance"] == 1
    api.patch(f"/v1/models/{name}", json={"policy": {"tolerance": {"relative_bound": 0.004}}}).raise_for_status()
    assert shown(stack, model=name)["amend_champion_within_tolerance"] == 0


def test_metrics_have_the_duration_of_jobs(stack: Stack) -> None:
    def durations() -> dict[str, float]:
        labels: list[dict[str, str]] = [{"le": "0.5"}, {"le": "5.0"}, {"le": "300.0"}, {"le": "+Inf"}]
        found = [shown(stack, kind="retrain", **label)["amend_job_seconds_bucket"] for label in labels]
        return {**dict(zip("abcd", found, strict=True)), "sum": shown(stack, kind="retrain")["amend_job_seconds_sum"]}

    before = durations()
    name = stack.model()
    with stack.database.write() as session:
        model = catalog.find(session, name, None)
        for seconds, state in ((0.3, "succeeded"), (2.5, "succeeded"), (100.0, "succeeded"), (9.0, "failed")):
            job = {"id": str(uuid.uuid4()), "model_id": model.id, "kind": JobKind.RETRAIN, "state": JobState(state)}
            session.add(Job(**job, from_position=0, to_position=0, seconds=seconds))
        never = {"id": str(uuid.uuid4()), "model_id": model.id, "kind": JobKind.RETRAIN}
        session.add(Job(**never, from_position=0, to_position=0, state=JobState.CANCELLED))
    grown = {name: value - before[name] for name, value in durations().items()}
    assert grown == {"a": 1, "b": 2, "c": 3, "d": 3, "sum": pytest.approx(102.8, abs=0.01)}
    told = shown(stack, kind="retrain", state="failed")
    assert told["amend_jobs"] >= 1


@pytest.mark.both_databases
def test_metrics_show_which_queue_waits_and_which_jobs_lost_their_worker(stack: Stack) -> None:
    def measure() -> dict[str, float]:
        running = shown(stack, queue="long-gpu", state="running")["amend_queue_jobs"]
        queued = shown(stack, queue="long-gpu", state="queued")["amend_queue_jobs"]
        return {"running": running, "queued": queued, "abandoned": shown(stack)["amend_jobs_abandoned"]}

    before, moment = measure(), now()
    made = {
        JobKind.ADAPT: {"state": JobState.RUNNING, "lease_expires_at": moment - timedelta(seconds=1)},
        JobKind.RETRAIN: {"state": JobState.RUNNING, "lease_expires_at": moment + timedelta(hours=1)},
        JobKind.ERASE: {"created_at": moment - timedelta(days=1)},
    }
    name, ids = stack.model(), [str(uuid.uuid4()) for _ in made]
    with stack.database.write() as session:
        common = {"model_id": catalog.find(session, name, None).id, "from_position": 0, "to_position": 0}
        for id, (kind, fields) in zip(ids, made.items(), strict=True):
            session.add(Job(id=id, kind=kind, queue="long-gpu", **common, **fields))
    assert {key: value - before[key] for key, value in measure().items()} == {"running": 2, "queued": 1, "abandoned": 1}
    assert shown(stack, queue="long-gpu")["amend_queue_waiting_seconds"] >= 86_400
    with stack.database.write() as session:
        session.execute(delete(Job).where(Job.id.in_(ids)))


def test_a_scrape_costs_a_few_queries_and_the_next_one_none(stack: Stack) -> None:
    context, asked = Context(stack.settings), 0

    def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        nonlocal asked
        asked += statement.startswith("SELECT")

    event.listen(context.database.engine, "before_cursor_execute", count)
    try:
        prometheus_metrics.render_metrics(context)
        assert 0 < asked <= MOST_QUERIES
        prometheus_metrics.render_metrics(context)
        assert asked <= MOST_QUERIES
    finally:
        context.close()


@pytest.mark.both_databases
def test_requests_scheduler_backlog_and_webhooks_are_measured(stack: Stack, api: httpx.Client) -> None:
    before = shown(stack)
    received = now() - timedelta(days=25)
    erasure = open_erasure(stack, api, received_at=received.isoformat())
    webhook = api.post("/v1/webhooks", json={"url": "https://receiver.example/"}).raise_for_status().json()["id"]
    name = stack.model()
    with stack.database.write() as session:
        session.get_one(Erasure, erasure["id"]).created_at = now() - timedelta(days=2)
        session.get_one(Webhook, webhook).failing_since = now()
        model = catalog.find(session, name, None)
        hour_ago = now() - timedelta(hours=1)
        kind = TrackingEventKind.ALIASES
        session.add(TrackingEvent(kind=kind, model_id=model.id, model=name, created_at=hour_ago))
        record_tick(session)
    told = shown(stack)
    assert told["amend_erasure_oldest_seconds"] >= timedelta(days=25).total_seconds()
    for metric in ("erasures_due_soon", "erasures_stuck", "webhooks_failing", "mlflow_backlog"):
        assert told[f"amend_{metric}"] == before[f"amend_{metric}"] + 1, metric
    assert told["amend_mlflow_backlog_seconds"] >= 3600
    assert 0 <= told["amend_scheduler_heartbeat_seconds"] < 60
    assert 0 <= told["amend_register_head_seconds"] < 60  # signed when the request was filed
    with stack.database.write() as session:
        session.get_one(Webhook, webhook).disabled_at = now()
        session.execute(delete(TrackingEvent).where(TrackingEvent.model == name))
    told = shown(stack)
    assert told["amend_webhooks_failing"] == before["amend_webhooks_failing"]
    assert told["amend_webhooks_disabled"] == before["amend_webhooks_disabled"] + 1
    api.delete(f"/v1/webhooks/{webhook}").raise_for_status()
    api.post(f"/v1/erasures/{erasure['id']}/refuse", json={"reason": "a test"}).raise_for_status()


def test_metrics_of_several_processes_are_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def memory() -> float:
        found = {family.name: family.samples[0].value for family in prometheus_metrics.ProcessesCollector().collect()}
        assert found["process_start_time_seconds"] < now().timestamp()
        return found["process_resident_memory_bytes"]

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        alone = memory()
        for process in (os.getpid(), other.pid, ended.pid):
            (tmp_path / f"counter_{process}.db").touch()
            (tmp_path / f"histogram_{process}.db").touch()
        monkeypatch.setenv(prometheus_metrics.MULTIPROCESS_FOLDER, str(tmp_path))
        assert memory() > alone
        other.communicate(b"\n")


def expressions() -> dict[str, str]:
    """All that dashboard and alerts ask Prometheus for, by where that is."""
    board = json.loads((MONITORING / "dashboard.json").read_text())
    drawn = [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", [])]
    found = {f"{title} {i}": expression for i, (title, expression) in enumerate(drawn)}
    found["variable"] = next(v["query"]["query"] for v in board["templating"]["list"] if v["name"] == "model")
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
    return found | {rule["alert"]: rule["expr"] for rule in rules}


def test_dashboard_and_alerts_use_only_existing_metrics(stack: Stack, api: httpx.Client) -> None:
    api.get("/v1/models").raise_for_status()
    text = api.get("/metrics").text
    known = {family.name for family in text_string_to_metric_families(text)}
    for where, expression in expressions().items():
        names = re.findall(r"\b(?:amend|process)_\w+", expression)
        assert names or "up{" in expression
        for name in names:
            assert re.sub(r"_(total|bucket|sum|count)$", "", name) in known, f"{name} in {where}"


def test_promtool_accepts_metrics_dashboard_and_alerts_and_these_fire(stack: Stack, tmp_path: Path) -> None:
    with stack.client() as api:
        promtool.run("check", "metrics", given=api.get("/metrics").text)
    promtool.run("check", "rules", MONITORING / "alerts.yml")
    # Grafana fills in its variables
    plain = [
        expression.replace("$__rate_interval", "5m").replace("$model", ".*")
        for expression in expressions().values()
        if not expression.startswith("label_values")
    ]
    rules = [{"record": f"drawn:{i}", "expr": expression} for i, expression in enumerate(plain)]
    drawn = tmp_path / "drawn.yml"
    drawn.write_text(yaml.safe_dump({"groups": [{"name": "drawn", "rules": rules}]}))
    promtool.run("check", "rules", drawn)
    (tmp_path / "alerts.yml").write_text((MONITORING / "alerts.yml").read_text())
    story = tmp_path / "story.yml"
    story.write_text((Path(__file__).parent / "alerts_story.yml").read_text())
    promtool.run("test", "rules", story)


@pytest.mark.both_databases
def test_the_space_on_disks_and_the_size_of_the_database_are_measured(stack: Stack) -> None:
    told = shown(stack, folder="home")
    assert 0 < told["amend_disk_free_bytes"] < told["amend_disk_bytes"]
    assert shown(stack)["amend_database_bytes"] > 100_000
