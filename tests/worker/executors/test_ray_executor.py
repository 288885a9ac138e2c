"""What a cluster does not answer is added up by the worker, shard by shard, and nothing else is."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Set
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
from worker.context import Context
from worker.example_reading import Reading
from worker.executors.pass_shard import ProcessContext, add_shard, read_request
from worker.job_attempt import JobAttempt


def ray_module() -> ModuleType:
    """Not loaded before it is used: Ray takes a second, and reads as it is loaded whether tokens are asked for."""
    from worker.executors import ray_executor

    return ray_executor


class Answers:
    """Stands in for Ray: some shards it cannot do, some nodes are of another kind, of some nothing is heard."""

    def __init__(self, broken: set[int], foreign: set[int], silent: Set[int] = frozenset()) -> None:
        self.broken, self.foreign, self.silent, self.asked = broken, foreign, silent, 0
        self.cancelled: list[int] = []

    def options(self, **_: Any) -> Answers:
        return self

    def remote(self, request: bytes, start: int, stop: int) -> tuple[int, bytes | None]:
        self.asked += 1
        return self.asked - 1, add_shard(request, start, stop)

    def cancel(self, answer: tuple[int, bytes | None], force: bool) -> None:
        assert force
        self.cancelled.append(answer[0])

    def get(self, answer: tuple[int, bytes | None]) -> bytes | None:
        if answer[0] in self.broken:
            raise ray_module().RayError
        return None if answer[0] in self.foreign else answer[1]


@pytest.fixture
def reading(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    for name, value in deployment.environment.items():
        monkeypatch.setenv(name, value)
    ProcessContext.of_this_process.cache_clear()
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
        traceparent=None,
        run=lambda context, job_id: None,
    )
    yield Reading(attempt, data, attempt.progress, "")
    ProcessContext.of_this_process.cache_clear()
    read_request.cache_clear()


def executor_on(answers: Answers, reading: Reading, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An executor whose cluster is there, and answers so."""
    ray_executor = ray_module()
    ray = SimpleNamespace(put=lambda data: data, get=answers.get, is_initialized=lambda: True, cancel=answers.cancel)
    ray.wait = lambda some, **_: ([each for each in some if each[0] not in answers.silent], [])
    monkeypatch.setattr(ray_executor, "ray", ray)
    monkeypatch.setattr(ray_executor, "TASK", answers)
    monkeypatch.setattr(ray_executor, "answers_at", lambda address: True)
    context = reading.attempt.context
    return ray_executor.OnRay(context.settings, context.database, torch.device("cpu"))


@pytest.mark.parametrize(("broken", "foreign"), [(set(), set()), ({1}, set()), ({0, 2, 3}, {1}), (set(), {0, 4})])
def test_each_shard_counts_once_whoever_adds_it_up(
    reading: Reading, monkeypatch: pytest.MonkeyPatch, broken: set[int], foreign: set[int]
) -> None:
    answers, total = Answers(broken, foreign), Digest(reading.attempt.context.settings.secret)
    found = executor_on(answers, reading, monkeypatch).reduce_by_tasks(reading, total.empty())
    assert answers.asked == len(reading.shards()) > 4
    assert found.total == add_shards(reading.data.shards(), total).total


def test_shards_of_which_nothing_is_heard_are_added_up_here(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, total = Answers(set(), set(), silent={1, 2}), Digest(reading.attempt.context.settings.secret)
    monkeypatch.setattr(ray_module(), "SILENCE_SECONDS", 0.0)
    found = executor_on(answers, reading, monkeypatch).reduce_by_tasks(reading, total.empty())
    assert found.total == add_shards(reading.data.shards(), total).total
    assert answers.cancelled == [1, 2]


def test_the_message_of_a_job_states_that_the_cluster_is_unavailable(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, said = executor_on(Answers(set(), set()), reading, monkeypatch), set()
    reading.phrase, reading.progress = "a pass", lambda fraction, phrase: said.add(phrase)
    total, alone = Digest(reading.attempt.context.settings.secret), "a pass, in one process because Ray is unavailable"
    executor.reduce_by_tasks(reading, total.empty())
    assert not any("away" in phrase for phrase in said)
    said.clear()
    executor.away = True
    for add_up in (executor.reduce_by_tasks, executor.reduce, executor.reduce):  # lost on the way, and before
        add_up(reading, total.empty())
    executor.say_alone(reading.progress)(0.5, "a pass")
    assert said == {alone}


@pytest.mark.parametrize(
    ("processors", "threads", "members"), [([3, 3, 0], 2, 2), ([2, 2, 2, 2], 4, 4), ([8], 2, 4), ([1, 0], 1, 0)]
)
def test_there_are_as_many_members_as_nodes_have_room_for(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, processors: list[int], threads: int, members: int
) -> None:
    ray_executor = ray_module()
    nodes = [{"Alive": True, "Resources": {"CPU": float(each)}} for each in processors]
    monkeypatch.setattr(ray_executor, "ray", SimpleNamespace(nodes=lambda: [*nodes, {"Alive": False, "Resources": {}}]))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    settings = deployment.settings.model_copy(update={"ray_processes": 8})
    executor = ray_executor.OnRay(settings, deployment.database, torch.device("cpu"))
    executor.processors = max(processors)
    assert executor.members() == members


@pytest.mark.parametrize(("said", "is_ray"), [(b"\0\0\x18\x04\0\0\0\0\0", True), (b"", False), (b"SSH-2.0-x", False)])
def test_only_a_server_that_speaks_as_ray_does_is_one(said: bytes, is_ray: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def speak() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(said)
                connection.recv(1)  # until the other one has gone

        speaker = threading.Thread(target=speak)
        speaker.start()
        assert ray_module().answers_at(address) == is_ray
        speaker.join()
    assert not ray_module().answers_at(address)


def test_a_job_continues_if_disconnecting_from_ray_hangs(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_executor, over = ray_module(), threading.Event()
    monkeypatch.setattr(
        ray_executor, "ray", SimpleNamespace(is_initialized=lambda: not over.is_set(), shutdown=over.wait)
    )
    monkeypatch.setattr(ray_executor, "LEAVE_SECONDS", 0.01)
    monkeypatch.setattr(ray_executor, "answers_at", lambda address: True)
    executor = ray_executor.OnRay(deployment.settings, deployment.database, torch.device("cpu"))
    assert executor.is_driver()
    executor.close()
    assert not executor.is_driver()
    assert executor.try_to_connect() == "the previous connection is still closing"
    over.set()
    executor.leaving.join()
