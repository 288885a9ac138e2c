"""A service that is killed in the middle of writes: what was answered is there, and nothing is there by half."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue

import httpx
import pytest

from tests.conftest import BACKENDS
from tests.endurance.batches import SPEC, Batch, listed, post
from tests.endurance.conftest import Start, Sturdy

pytestmark = pytest.mark.timing

WRITERS, SIZE, ROUNDS = 4, 500, 1

Acknowledged = dict[Batch, tuple[int, int]]
"""Batches with the positions that were answered."""


def send(stack: Sturdy, model: str, waiting: SimpleQueue[Batch]) -> Acknowledged:
    """Send batches until none is left or the service is gone."""
    acknowledged: Acknowledged = {}
    with suppress(Empty, httpx.TransportError), stack.client() as api:
        while True:
            batch = waiting.get_nowait()
            answer = post(api, model, batch.body(), key=f"kills-{batch.first}").raise_for_status().json()
            if answer["accepted"]:
                acknowledged[batch] = (answer["first_position"], answer["last_position"])
    return acknowledged


def queued(batches: Iterable[Batch]) -> SimpleQueue[Batch]:
    waiting: SimpleQueue[Batch] = SimpleQueue()
    for batch in batches:
        waiting.put(batch)
    return waiting


def whole(stack: Sturdy, model: str) -> dict[str, int]:
    """Positions by id, in a ledger without gaps."""
    with stack.client() as api:
        items = listed(api, model)
        shown = api.get(f"/v1/models/{model}").json()
    assert [item["position"] for item in items] == list(range(1, shown["head"] + 1))
    assert shown["counts"]["train"] + shown["counts"]["holdout"] == len(items)
    return {item["id"]: item["position"] for item in items}


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_acknowledged_batch_survives_and_none_is_there_by_half(start: Start, backend: str) -> None:
    check_kills(start(backend, 1))


def check_kills(sturdy: Sturdy) -> None:
    model, chance = sturdy.model(**SPEC), random.Random(0)
    batches = [Batch(first, SIZE) for first in range(0, 80 * SIZE, SIZE)]
    acknowledged: Acknowledged = {}
    for _ in range(ROUNDS):
        waiting = queued(batch for batch in batches if batch not in acknowledged)
        with ThreadPoolExecutor(WRITERS) as threads:
            sending = [threads.submit(send, sturdy, model, waiting) for _ in range(WRITERS)]
            before = waiting.qsize()
            while waiting.qsize() > before - 3 * WRITERS:
                assert not all(sent.done() for sent in sending)
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.1))
            sturdy.kill()
            assert not waiting.empty(), "the service was killed too late"
            for sent in sending:
                acknowledged |= sent.result()
        sturdy.start()

        there = whole(sturdy, model)
        for batch in batches:
            found = [there[id_] for id_ in batch.ids if id_ in there]
            assert len(found) in (0, SIZE)
            if batch in acknowledged:
                first, last = acknowledged[batch]
                assert found == list(range(first, last + 1))
    assert acknowledged

    # and whoever repeats what was not answered has everything, once
    unanswered = [batch for batch in batches if batch not in acknowledged][: 2 * WRITERS]
    send(sturdy, model, queued(unanswered))
    assert whole(sturdy, model).keys() == there.keys() | {id_ for batch in unanswered for id_ in batch.ids}
