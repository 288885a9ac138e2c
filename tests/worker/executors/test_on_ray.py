"""What a cluster does not answer is added up by the worker, shard by shard, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from core.kprior.passes.accumulator import add_shards
from core.ledger import passes
from core.ledger.digest import Digest
from core.models import catalog
from core.tables.jobs import JobKind
from tests.worker.deployment import Deployment, problem
from worker.attempt import JobAttempt
from worker.context import Context
from worker.executors.shard import Here, add_shard, read_request
from worker.reading import Reading


def ray_executor() -> ModuleType:
    """Not loaded before it is used: Ray takes a second, and reads as it is loaded whether tokens are asked for."""
    from worker.executors import on_ray

    return on_ray


class Answers:
    """Stands in for Ray: some shards it cannot do, some nodes are of another kind."""

    def __init__(self, broken: set[int], foreign: set[int]) -> None:
        self.broken, self.foreign, self.asked = broken, foreign, 0
        self.cancelled: list[int] = []

    def options(self, **_: Any) -> Answers:
        return self

    def remote(self, request: bytes, start: int, stop: int) -> tuple[int, bytes | None]:
        self.asked += 1
        return self.asked - 1, add_shard(request, start, stop)

    def get(self, answer: tuple[int, bytes | None]) -> bytes | None:
        if answer[0] in self.broken:
            raise ray_executor().RayError
        return None if answer[0] in self.foreign else answer[1]


@pytest.fixture
def reading(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    for name, value in deployment.environment.items():
        monkeypatch.setenv(name, value)
    Here.of_process.cache_clear()
    monkeypatch.setattr("core.ledger.layouts.CHUNK_BYTES", 1000)
    name = deployment.new_model()
    deployment.add_examples(name, *problem(60), split="train")
    with deployment.database.read() as session:
        model = catalog.find(session, name, None)
    context = Context(deployment.settings, None)
    data = passes.read_in_force(deployment.database, model.id, model.spec, model.head)
    attempt = JobAttempt(
        context=context,
        job_id="",
        owner="",
        kind=JobKind.ADAPT,
        number=1,
        model_id=model.id,
        model="",
        request_id=None,
        run=lambda context, job_id: None,
    )
    yield Reading(attempt, data, attempt.progress, "")
    Here.of_process.cache_clear()
    read_request.cache_clear()


@pytest.mark.parametrize(("broken", "foreign"), [(set(), set()), ({1}, set()), ({0, 2, 3}, {1}), (set(), {0, 4})])
def test_each_shard_counts_once_whoever_adds_it_up(
    reading: Reading, monkeypatch: pytest.MonkeyPatch, broken: set[int], foreign: set[int]
) -> None:
    answers, settings, on_ray = Answers(broken, foreign), reading.attempt.context.settings, ray_executor()
    ray = SimpleNamespace(put=lambda data: data, get=answers.get, is_initialized=lambda: True, cancel=answers.cancelled)
    ray.wait = lambda some, **_: (some, [])
    monkeypatch.setattr(on_ray, "ray", ray)
    monkeypatch.setattr(on_ray, "TASK", answers)
    monkeypatch.setattr(on_ray, "answers_at", lambda address: True)
    executor = on_ray.OnRay(settings, reading.attempt.context.database, torch.device("cpu"))
    total = Digest(settings.secret)
    found = executor.reduce_by_tasks(reading, total.empty())
    assert answers.asked == len(reading.shards()) > 4
    assert found.total == add_shards(reading.data.shards(), total).total
