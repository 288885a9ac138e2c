"""Removals by id and by subject take effect at once, and the model is made to forget."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from core.tables.jobs import Job, JobState, Outbox
from core.tables.ledger import Example
from tests.service.conftest import SMALL_BATCH
from tests.service.expect import JSON, add, listed, refused, rows
from tests.stack import Stack


def remove(api: httpx.Client, name: str, **what: object) -> dict[str, Any]:
    answer = api.post(f"/v1/models/{name}/removals", json=what)
    assert answer.status_code == 202, answer.text
    removed: dict[str, Any] = answer.json()
    return removed


def filled(stack: Stack, api: httpx.Client) -> str:
    """A model of six examples, three of them of user-7, two of user-8."""
    name = stack.model()
    subjects = ["user-7", "user-8", "user-7", None, "user-8", "user-7"]
    add(api, name, [{**row, "subject": s} for row, s in zip(rows(6), subjects, strict=True)])
    return name


def test_examples_removed_by_id_are_not_listed(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    answer = remove(api, name, ids=["e1", "zz", "e4", "e1"])
    assert answer == {"id": answer["id"], "removed": 2, "unknown": ["zz"], "position": 8, "job": None}
    assert [row["id"] for row in listed(api, name)] == ["e0", "e2", "e3", "e5"]
    refused(api.get(f"/v1/models/{name}/examples/e1"), 404, "example_not_found")
    model = api.get(f"/v1/models/{name}").json()
    assert (model["counts"], model["head"]) == (
        {"train": 4, "holdout": 0, "removed": 2, "quarantined": 0, "unlabelled": 0},
        8,
    )


def test_a_removal_by_subject_removes_all_their_examples(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    answer = remove(api, name, subjects=["user-7", "user-9"])
    assert (answer["removed"], answer["unknown"], answer["position"]) == (3, ["user-9"], 9)
    assert [row["id"] for row in listed(api, name)] == ["e1", "e3", "e4"]


def load(api: httpx.Client, name: str, source: str, numbers: range) -> dict[str, Any]:
    """Add examples of a source, every fourth to the holdout."""
    found = rows(numbers.stop)[numbers.start :]
    split = [{**row, "split": "holdout" if i % 4 == 0 else "train"} for i, row in enumerate(found)]
    answer = api.post(f"/v1/models/{name}/examples", json={"examples": split}, params={"source": source})
    assert answer.status_code == 201, answer.text
    added: dict[str, Any] = answer.json()
    return added


@pytest.mark.both_databases
def test_a_load_is_removed_by_its_source(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    load(api, name, "monday", range(10))
    load(api, name, "tuesday", range(10, 20))
    load(api, name, "monday", range(20, 25))
    answer = remove(api, name, source="monday")
    assert answer == {"id": answer["id"], "removed": 15, "unknown": [], "position": 40, "job": None}
    assert [row["id"] for row in listed(api, name)] == [f"e{i}" for i in range(10, 20)]
    counts = {"train": 7, "holdout": 3, "removed": 15, "quarantined": 0, "unlabelled": 0}
    assert api.get(f"/v1/models/{name}").json()["counts"] == counts
    with stack.database.read() as session:  # each of them has a position of its own, in the order of their arrival
        gone = session.query(Example).where(Example.source == "monday", Example.removed.is_not(None))
        here = [row for row in gone.order_by(Example.position) if row.removed is not None and row.removed > 25]
        assert [row.removed for row in here][-15:] == list(range(26, 41))
    again = remove(api, name, source="monday")
    assert (again["removed"], again["unknown"], again["position"]) == (0, ["monday"], 40)
    assert load(api, name, "monday", range(10))["accepted"] == 10


@pytest.mark.both_databases
def test_a_load_is_removed_by_its_positions(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    load(api, name, "monday", range(10))
    added = load(api, name, "tuesday", range(10, 20))
    remove(api, name, ids=["e11"])
    answer = remove(api, name, positions=[added["first_position"], added["last_position"]])
    assert (answer["removed"], answer["unknown"], answer["position"]) == (9, [], 30)
    assert [row["id"] for row in listed(api, name)] == [f"e{i}" for i in range(10)]
    assert remove(api, name, positions=[11, 2**63 - 1])["removed"] == 0


def test_a_source_of_another_model_stays(stack: Stack, api: httpx.Client) -> None:
    one, other = stack.model(), stack.model()
    load(api, one, "monday", range(3))
    load(api, other, "monday", range(3))
    assert remove(api, one, source="monday")["removed"] == 3
    assert len(listed(api, other)) == 3


def test_a_trained_model_forgets_a_load(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    stack.train(name)
    added = load(api, name, "monday", range(6, 10))
    assert remove(api, name, positions=[added["first_position"], added["last_position"]])["job"] is not None


def test_the_holdout_is_counted_apart(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, [{**row, "split": "holdout"} for row in rows(3)])
    remove(api, name, ids=["e0"])
    assert api.get(f"/v1/models/{name}").json()["counts"] == {
        "train": 0,
        "holdout": 2,
        "removed": 1,
        "quarantined": 0,
        "unlabelled": 0,
    }


def test_nothing_to_remove_takes_no_position(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    stack.train(name)
    answer = remove(api, name, ids=["zz"])
    assert (answer["removed"], answer["position"], answer["job"]) == (0, 6, None)


def test_a_removal_does_not_reach_into_other_models(stack: Stack, api: httpx.Client) -> None:
    one, other = filled(stack, api), filled(stack, api)
    remove(api, one, subjects=["user-7"])
    assert len(listed(api, other)) == 6


def test_removed_examples_are_unknown(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    remove(api, name, ids=["e1"])
    assert remove(api, name, ids=["e1"])["unknown"] == ["e1"]


def test_an_id_can_come_back_with_the_same_or_other_content(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    for y in (1, 0):
        remove(api, name, ids=["e1"])
        added = add(api, name, [{"id": "e1", "x": [9, 9], "y": y, "split": "train"}])
        assert (added["accepted"], added["duplicates"]) == (1, 0)
    shown = api.get(f"/v1/models/{name}/examples/e1").json()
    assert (shown["y"], shown["position"]) == (0, 10)


def test_a_removal_can_be_retrieved_without_the_ids(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    made = remove(api, name, subjects=["user-7", "user-unknown"])
    shown = api.get(f"/v1/models/{name}/removals/{made['id']}")
    assert shown.json().pop("created_at")
    expected = {"id": made["id"], "model": name, "removed": 3, "unknown_count": 1, "position": 9, "job": None}
    assert expected.items() <= shown.json().items()
    assert "user-" not in shown.text


def test_an_unknown_removal_is_not_found(stack: Stack, api: httpx.Client) -> None:
    name, other = filled(stack, api), stack.model()
    made = remove(api, name, ids=["e1"])["id"]
    for path in (f"{name}/removals/none", f"{name}/removals/%00", f"{other}/removals/{made}"):
        refused(api.get(f"/v1/models/{path}"), 404, "removal_not_found")


def test_thousands_are_removed_each_with_a_position_of_its_own(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(policy={"holdout": 0})
    add(api, name, rows(6000))
    answer = remove(api, name, ids=[f"e{i}" for i in range(5500)])
    assert (answer["removed"], answer["position"]) == (5500, 11_500)
    assert [row["id"] for row in listed(api, name)] == [f"e{i}" for i in range(5500, 6000)]


def test_a_trained_model_gets_a_job_and_its_message_with_the_removal(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    stack.train(name)
    made = remove(api, name, ids=["e0"])
    job = api.get(f"/v1/jobs/{made['job']}").json()
    assert (job["model"], job["kind"], job["state"]) == (name, "adapt", "queued")
    assert (job["from_position"], job["to_position"]) == (6, 7)
    assert api.get(f"/v1/models/{name}/removals/{made['id']}").json()["job"] == job["id"]
    assert messages(stack, job["id"]) == 1


def test_further_removals_reuse_the_queued_job(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    stack.train(name)
    jobs = {remove(api, name, ids=[f"e{i}"])["job"] for i in range(3)}
    assert len(jobs) == 1
    job = jobs.pop()
    assert api.get(f"/v1/jobs/{job}").json()["to_position"] == 9
    assert messages(stack, job) == 1
    assert api.get(f"/v1/models/{name}").json()["pending"] == 3


def messages(stack: Stack, job: str) -> int:
    with stack.database.read() as session:
        return session.query(Outbox).where(Outbox.job_id == job).count()


BAD = {
    "neither": "{}",
    "both": '{"ids": ["a"], "subjects": ["b"]}',
    "none": '{"ids": []}',
    "empty": '{"ids": [""]}',
    "long": '{"ids": ["' + "x" * 201 + '"]}',
    "NUL": '{"ids": ["a\\u0000"]}',
    "control character": '{"subjects": ["a", "\\u0085"]}',
    "half a character": '{"ids": ["\\ud800"]}',
    "number": '{"ids": [1]}',
    "text": '{"ids": "a"}',
    "all four": '{"ids": ["a"], "subjects": ["b"], "source": "c", "positions": [1, 2]}',
    "empty source": '{"source": ""}',
    "control character in a source": '{"source": "a\\u0085"}',
    "one position": '{"positions": [1]}',
    "three positions": '{"positions": [1, 2, 3]}',
    "position 0": '{"positions": [0, 2]}',
    "positions in reverse": '{"positions": [2, 1]}',
    "fraction of a position": '{"positions": [1, 2.5]}',
    "position as text": '{"positions": ["1", 2]}',
    "huge position": '{"positions": [1, 9223372036854775808]}',
    "unknown field": '{"ids": ["a"], "why": "b"}',
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_a_bad_removal_is_refused(stack: Stack, api: httpx.Client, body: str) -> None:
    answer = api.post(f"/v1/models/{stack.model()}/removals", content=body, headers=JSON)
    refused(answer, 422, "request_invalid")


def test_too_many_names_are_refused(small: Stack) -> None:
    with small.client() as api:
        answer = api.post(f"/v1/models/{small.model()}/removals", json={"ids": ["a"] * (SMALL_BATCH + 1)})
        refused(answer, 413, "batch_too_large")


def test_a_removal_during_the_first_training_makes_another_job_due(stack: Stack, api: httpx.Client) -> None:
    """The training may have read the examples already."""
    name = stack.model()
    add(api, name, rows(4))
    assert api.post(f"/v1/models/{name}/removals", json={"ids": ["e0"]}).json()["job"] is None
    first = api.post(f"/v1/models/{name}/adaptations").json()["id"]
    assert api.post(f"/v1/models/{name}/removals", json={"ids": ["e1"]}).json()["job"] == first
    with stack.database.write() as session:
        session.get_one(Job, first).state = JobState.RUNNING
    second = api.post(f"/v1/models/{name}/removals", json={"ids": ["e2"]}).json()["job"]
    assert second not in (None, first)
