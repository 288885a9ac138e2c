"""Many writers at once, with the repetitions and reorderings of real networks: nothing twice, nothing lost."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import httpx
import pytest

from tests.endurance.batches import SPEC, Batch, listed, post
from tests.stack import Stack

pytestmark = pytest.mark.timing

WRITERS, SIZE, EXAMPLES = 8, 100, 5_000
BATCHES = [Batch(first, SIZE) for first in range(0, EXAMPLES, SIZE)]
# halves of two neighbours: partly new, partly known
ACROSS = [Batch(first.first + SIZE // 2, SIZE) for first, _ in pairwise(BATCHES)]

Sending = tuple[Batch, str | None, bool]
"""A batch, its Idempotency-Key, and whether its examples come in the opposite order."""


def plan(chance: random.Random) -> list[Sending]:
    """Every batch, in disorder; half of them again under the same key, without one, or reordered."""
    sendings: list[Sending] = [(batch, key_of(batch) if chance.random() < 0.5 else None, False) for batch in BATCHES]
    sendings += [(batch, key_of(batch), False) for batch in chance.sample(BATCHES, len(BATCHES) // 4)]
    sendings += [(batch, None, True) for batch in chance.sample(BATCHES, len(BATCHES) // 8)]
    sendings += [(batch, None, False) for batch in chance.sample(ACROSS, len(BATCHES) // 8)]
    chance.shuffle(sendings)
    return sendings


def key_of(batch: Batch) -> str:
    return f"load-{batch.first}"


def test_what_eight_writers_send_is_there_once(stack: Stack) -> None:
    check_eight_writers(stack)


def check_eight_writers(stack: Stack) -> None:
    model = stack.model(**SPEC)
    chance = random.Random(0)
    sendings = plan(chance)
    # the same request twice, next to each other: two writers send them at the same time
    for twin in chance.sample(range(len(sendings)), 20):
        sendings.insert(twin, sendings[twin])
    with stack.client(limits=httpx.Limits(max_connections=WRITERS)) as api, ThreadPoolExecutor(WRITERS) as threads:
        answers = list(threads.map(lambda s: post(api, model, s[0].body(backwards=s[2]), s[1]), sendings))
        shown = api.get(f"/v1/models/{model}").json()
        items = listed(api, model)

    assert {answer.status_code for answer in answers} == {201}
    first_answers = [a.json() for a in answers if "Idempotent-Replayed" not in a.headers]
    assert all(answer["accepted"] + answer["duplicates"] == SIZE for answer in first_answers)
    assert sum(answer["accepted"] for answer in first_answers) == EXAMPLES
    assert len(first_answers) < len(answers)
    for sending, answer in zip(sendings, answers, strict=True):
        if "Idempotent-Replayed" in answer.headers:
            assert answer.json() in [a.json() for s, a in zip(sendings, answers, strict=True) if s[1] == sending[1]]

    spans = sorted((a["first_position"], a["last_position"]) for a in first_answers if a["accepted"])
    assert [first for first, _ in spans] == [1, *(last + 1 for _, last in spans[:-1])]
    assert shown["head"] == spans[-1][1] == EXAMPLES
    assert shown["counts"]["train"] + shown["counts"]["holdout"] == EXAMPLES
    assert [item["position"] for item in items] == list(range(1, EXAMPLES + 1))
    assert {item["id"]: item["x"][0] for item in items} == {f"e{i}": i for i in range(EXAMPLES)}


def test_jobs_that_are_cancelled_at_once_do_not_block_others(stack: Stack) -> None:
    model = stack.model(**SPEC)

    def work(writer: int) -> set[int]:
        seen = set()
        with stack.client() as api:
            for i in range(15):
                seen.add(post(api, model, Batch(1000 * writer + i, 1).body()).status_code)
                job = api.post(f"/v1/models/{model}/adaptations")
                seen.add(job.status_code)
                if job.is_success:
                    seen.add(api.post(f"/v1/jobs/{job.json()['id']}/cancel").status_code)
        return seen

    with ThreadPoolExecutor(6) as threads:
        seen = set().union(*threads.map(work, range(6)))
    assert seen <= {200, 201, 202, 409}  # 409: another was first to cancel it
