"""Receiving erasures, and what becomes of them: joined, refused, extended, failed, tried again, concluded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from core.database import Database
from core.erasure import decisions, receipts, requests, state_changes
from core.erasure.due_dates import months_after
from core.erasure.identifiers import token_of
from core.errors import Conflict, NotFound
from core.jobs import leases
from core.ledger.subject_hashes import subject_hash
from core.suppressions import Screen
from core.tables.erasures import ErasureState, Identifier, Receipt
from core.tables.jobs import Job, JobKind, JobState
from core.tables.ledger import Example
from core.tables.models import Model
from tests.core.erasure.erasure_helpers import (
    ask,
    change,
    erase_nobody,
    find_erasure,
    give,
    hashes,
    parts,
    reach,
    somebody,
)
from tests.core.ledger.reference_ledger import SECRET, new_model, remove_subjects, stored

COMPLETED, FAILED = ErasureState.COMPLETED, ErasureState.FAILED


def jobs(database: Database, model: Model) -> list[Job]:
    """The model's erase jobs that wait."""
    with database.read() as session:
        waiting = (Job.model_id == model.id, Job.kind == JobKind.ERASE, Job.state == JobState.QUEUED)
        return list(session.scalars(select(Job).where(*waiting)))


def receipt(database: Database, id: str) -> dict[str, Any]:
    with database.read() as session:
        return receipts.body_of(session.scalars(select(Receipt).where(Receipt.erasure_id == id)).one())


def fail(database: Database, model: Model) -> None:
    """The model's job fails for good."""
    with database.write() as session:
        found = session.get_one(Model, model.id)
        state_changes.fail(session, found.id, {"code": "solver_failed", "detail": "no luck"})


def test_the_token_of_a_person_depends_on_the_secret_and_is_not_the_stored_hash() -> None:
    subject = subject_hash("user-7", SECRET)
    token = token_of(subject, SECRET)
    assert token == token_of(subject, SECRET)
    assert len({token, token_of(subject, b"other"), token_of(subject_hash("user-8", SECRET), SECRET)}) == 3
    assert subject.hex() != token


def test_whatever_is_there_of_a_person_is_found_in_every_model(database: Database) -> None:
    one, two, other = (new_model(database) for _ in range(3))
    person = somebody()
    give(database, one, person, "a", "b")
    give(database, one, somebody(), "c")
    give(database, one, person, "d")
    give(database, two, person, "a")
    give(database, other, somebody(), "a")
    remove_subjects(database, two, [person])
    erasure = ask(database, person)
    found = parts(database, erasure.id)
    assert set(found) == {one.name, two.name}
    first = found[one.name]
    assert (first.positions, first.examples, first.first_position, first.removal_position) == ([1, 2, 4], 3, 1, 7)
    # what was removed earlier is still there, and must go as well
    second = found[two.name]
    assert (second.positions, second.examples, second.first_position, second.removal_position) == ([1], 1, 1, 2)
    assert (stored(database, one).removed_count, stored(database, two).removed_count) == (3, 1)
    assert [len(jobs(database, model)) for model in (one, two, other)] == [1, 1, 0]
    assert find_erasure(database, erasure.id).state is ErasureState.RECEIVED


def test_a_request_that_matches_nothing_waits_for_a_decision(database: Database) -> None:
    waiting = ask(database, somebody(), reason="asked by mail")
    assert (waiting.state, waiting.receipt) == (ErasureState.UNMATCHED, None)
    change(database, waiting.id, lambda session, erasure: decisions.approve(session, erasure, "key"))
    erasure = find_erasure(database, waiting.id)
    assert (erasure.state, hashes(database, waiting.id), erasure.reason) == (COMPLETED, [], None)
    told = receipt(database, waiting.id)
    assert (told["found"], told["models"]) == (0, [])
    assert "No example was found" in told["statement"]
    assert [entry["action"] for entry in told["trail"]] == ["filed", "approved"]


def test_examples_that_arrive_later_match_the_request(database: Database) -> None:
    model, person = new_model(database), somebody()
    id = ask(database, person).id
    give(database, model, person, "a")
    requests.restrict_waiting(database)  # as the tick does
    assert find_erasure(database, id).state is ErasureState.RECEIVED
    assert parts(database, id)[model.name].examples == 1
    assert len(jobs(database, model)) == 1


def test_examples_under_every_identifier_of_a_person_are_found(database: Database) -> None:
    one, two, person, alias = new_model(database), new_model(database), somebody(), somebody()
    give(database, one, person, "a")
    give(database, one, alias, "b", "c")
    give(database, two, alias, "d")
    id = ask(database, person, alias, alias).id
    assert {name: part.examples for name, part in parts(database, id).items()} == {one.name: 3, two.name: 1}
    assert sorted(hashes(database, id)) == sorted(subject_hash(one, SECRET) for one in (person, alias))
    assert ask(database, alias).id == id
    for model in (one, two):
        reach(database, id, model, COMPLETED)
    told = receipt(database, id)
    assert told["subject_token"] == token_of(subject_hash(person, SECRET), SECRET)
    assert told["alias_tokens"] == [token_of(subject_hash(alias, SECRET), SECRET)]
    assert hashes(database, id) == []
    with database.read() as session:
        named = select(Identifier.erasure_id).where(Identifier.token.in_(told["alias_tokens"]))
        assert session.scalars(named).all() == [id]
        settings = session.info["settings"]
        screened = Screen(settings).check_now(session, [subject_hash(one, SECRET) for one in (person, alias)])
        assert screened.returning == {0, 1}


def test_an_identifier_that_matches_can_be_added_to_an_open_request(database: Database) -> None:
    model, misspelt, person = new_model(database), somebody(), somebody()
    give(database, model, person, "a")
    waiting = ask(database, misspelt)
    assert waiting.state is ErasureState.UNMATCHED
    joined = ask(database, misspelt, person)
    assert (joined.id, joined.state) == (waiting.id, ErasureState.RECEIVED)
    assert parts(database, joined.id)[model.name].examples == 1


def test_identifiers_of_two_open_requests_are_a_conflict(database: Database) -> None:
    one, two = somebody(), somebody()
    ids = {ask(database, one).id, ask(database, two).id}
    with pytest.raises(Conflict) as conflict:
        ask(database, one, two)
    assert conflict.value.code == "erasure_ambiguous"
    assert all(id in str(conflict.value) for id in ids)


def test_a_second_request_joins_the_open_one_and_covers_examples_added_since(database: Database) -> None:
    one, two, person = new_model(database), new_model(database), somebody()
    give(database, one, person, "a")
    first = ask(database, person, reason="asked by mail")
    give(database, one, person, "b")
    give(database, two, person, "c")
    second = ask(database, person, reason="asked again")
    assert second.id == first.id
    assert {name: part.examples for name, part in parts(database, first.id).items()} == {one.name: 2, two.name: 1}
    assert len(jobs(database, one)) == len(jobs(database, two)) == 1
    assert stored(database, one).train_count == stored(database, two).train_count == 0


def test_a_request_after_the_end_is_another_one(database: Database) -> None:
    person, model = somebody(), new_model(database)
    first = find_erasure(database, erase_nobody(database, person))
    give(database, model, person, "a")
    second = ask(database, person)
    assert second.id != first.id
    assert second.token == first.token
    change(database, second.id, lambda session, erasure: decisions.refuse(session, erasure, "no", "key"))
    assert ask(database, person).id not in (first.id, second.id)


def test_an_earlier_request_is_due_earlier(database: Database) -> None:
    """A second request that the person made before the first one, but that was entered later."""
    person, model = somebody(), new_model(database)
    give(database, model, person, "a")
    ask(database, person)
    joined = ask(database, person, received_at=datetime(2026, 1, 31, tzinfo=UTC))
    assert (joined.received_at.date().isoformat(), joined.due_at.date().isoformat()) == ("2026-01-31", "2026-02-28")


def test_what_was_found_before_is_counted_when_more_is_taken_in(database: Database) -> None:
    """One model has deleted its examples already while another is at work: a second request finds a new one there."""
    one, two, person = new_model(database), new_model(database), somebody()
    give(database, one, person, "a", "b")
    give(database, two, person, "c")
    id = ask(database, person).id
    with database.write() as session:
        for row in session.scalars(select(Example).where(Example.model_id == one.id)):
            session.delete(row)
    reach(database, id, one, COMPLETED)
    give(database, one, person, "d")
    ask(database, person)
    assert parts(database, id)[one.name].examples == 3


def test_requests_at_the_same_time_are_one(database: Database) -> None:
    model, person = new_model(database), somebody()
    give(database, model, person, "a", "b")
    with ThreadPoolExecutor(6) as pool:
        ids = {erasure.id for erasure in pool.map(lambda _: ask(database, person), range(6))}
    assert len(ids) == 1
    assert stored(database, model).removed_count == 2
    assert len(jobs(database, model)) == 1


def test_the_state_is_that_of_the_model_furthest_behind(database: Database) -> None:
    one, two, person = new_model(database), new_model(database), somebody()
    give(database, one, person, "a")
    give(database, two, person, "b")
    id = ask(database, person).id
    for first, second, whole in (
        (ErasureState.ADAPTING, ErasureState.RECEIVED, "received"),
        (ErasureState.PURGING, ErasureState.VERIFYING, "verifying"),
        (COMPLETED, ErasureState.PURGING, "purging"),
        (COMPLETED, COMPLETED, "completed"),
    ):
        reach(database, id, one, first)
        reach(database, id, two, second)
        assert find_erasure(database, id).state.value == whole


def test_the_receipt_describes_the_erasure_without_naming_the_person(database: Database) -> None:
    one, two, person = new_model(database), new_model(database), somebody()
    give(database, one, person, "private-1", "private-2")
    give(database, two, person, "private-3")
    id = ask(database, person, reason="a private reason").id
    reach(database, id, one, COMPLETED, method="adapted", certificate={"kind": "bound", "bound": 0.1})
    reach(database, id, two, COMPLETED, method="retrained")
    told = receipt(database, id)
    assert told["statement"].startswith("3 examples under the identifier of this request were deleted from 2 models.")
    assert {m["model"]: (m["examples"], m["method"]) for m in told["models"]} == {
        one.name: (2, "adapted"),
        two.name: (1, "retrained"),
    }
    assert told["subject_token"] == token_of(subject_hash(person, SECRET), SECRET)
    for word in (person, "private", subject_hash(person, SECRET).hex()):
        assert word not in str(told)
    erasure = find_erasure(database, id)
    assert (hashes(database, id), erasure.reason, erasure.receipt) == ([], None, told["number"])


def test_a_failure_is_reported_and_retried(database: Database) -> None:
    one, two, person = new_model(database), new_model(database), somebody()
    give(database, one, person, "a")
    give(database, two, person, "b")
    id = ask(database, person).id
    fail(database, one)
    assert find_erasure(database, id).state is FAILED
    assert parts(database, id)[one.name].error == {"code": "solver_failed", "detail": "no luck"}
    give(database, one, person, "c")
    change(database, id, lambda session, erasure: decisions.retry(session, erasure, "key"))
    part = parts(database, id)[one.name]
    assert (part.state, part.error, part.examples) == (ErasureState.RECEIVED, None, 2)
    assert find_erasure(database, id).state is ErasureState.RECEIVED
    assert len(jobs(database, one)) == 1


def test_a_second_request_tries_what_failed_again(database: Database) -> None:
    model, person = new_model(database), somebody()
    give(database, model, person, "a")
    id = ask(database, person).id
    fail(database, model)
    assert ask(database, person).id == id
    assert find_erasure(database, id).state is ErasureState.RECEIVED


def test_what_failed_after_the_examples_were_deleted_is_tried_again(database: Database) -> None:
    model, person = new_model(database), somebody()
    give(database, model, person, "a")
    id = ask(database, person).id
    with database.write() as session:
        for row in session.scalars(select(Example).where(Example.model_id == model.id)):
            session.delete(row)
    fail(database, model)
    change(database, id, lambda session, erasure: decisions.retry(session, erasure, "key"))
    assert (find_erasure(database, id).state, parts(database, id)[model.name].positions) == (ErasureState.RECEIVED, [1])


def test_an_erasure_that_has_not_failed_cannot_be_tried_again(database: Database) -> None:
    model, person = new_model(database), somebody()
    give(database, model, person, "a")
    for id in (ask(database, person).id, erase_nobody(database)):
        with pytest.raises(Conflict, match="has not failed"):
            change(database, id, lambda session, erasure: decisions.retry(session, erasure, "key"))


def test_an_erasure_is_not_left_without_a_job(database: Database) -> None:
    """Its job cannot be cancelled, and a second request makes one due where there is none."""
    model, person = new_model(database), somebody()
    give(database, model, person, "a")
    id = ask(database, person).id
    [job] = jobs(database, model)
    with pytest.raises(Conflict), database.write() as session:
        leases.cancel(session.get_one(Job, job.id))
    with database.write() as session:  # whatever became of it
        session.get_one(Job, job.id).state = JobState.CANCELLED
    assert ask(database, person).id == id
    assert jobs(database, model)


def test_a_refused_erasure_is_over(database: Database) -> None:
    model, person = new_model(database), somebody()
    give(database, model, person, "a")
    id = ask(database, person, reason="asked by mail").id
    change(database, id, lambda session, erasure: decisions.refuse(session, erasure, "kept by law", "key"))
    erasure = find_erasure(database, id)
    assert (erasure.state, erasure.refusal) == (ErasureState.REFUSED, "kept by law")
    assert (hashes(database, id), erasure.reason, erasure.receipt) == ([], None, None)
    for act in (
        lambda session, erasure: decisions.refuse(session, erasure, "again", "key"),
        lambda session, erasure: decisions.extend(session, erasure, "later", "key"),
        lambda session, erasure: decisions.retry(session, erasure, "key"),
    ):
        with pytest.raises(Conflict):
            change(database, id, act)
    reach(database, id, model, COMPLETED)  # a job that was at work meanwhile
    assert find_erasure(database, id).state is ErasureState.REFUSED


def test_the_due_date_moves_once_to_three_months_after_the_request(database: Database) -> None:
    model, person = new_model(database), somebody()
    give(database, model, person, "a")
    erasure = ask(database, person)
    assert erasure.due_at == months_after(erasure.received_at, 1)
    change(database, erasure.id, lambda session, found: decisions.extend(session, found, "many requests", "key"))
    moved = find_erasure(database, erasure.id)
    assert (moved.due_at, moved.extension) == (months_after(erasure.received_at, 3), "many requests")
    with pytest.raises(Conflict, match="once"):
        change(database, erasure.id, lambda session, found: decisions.extend(session, found, "again", "key"))


@pytest.mark.parametrize("id", ["none", "\0", "", "x" * 36])
def test_an_unknown_id_is_not_found(database: Database, id: str) -> None:
    with pytest.raises(NotFound):
        find_erasure(database, id)


def test_the_database_allows_one_open_erasure_per_person(database: Database) -> None:
    """Whatever the code does."""
    model, person = new_model(database), somebody()
    give(database, model, person, "a")
    id = ask(database, person).id
    twin = ask(database, somebody()).id
    with pytest.raises(IntegrityError), database.write() as session:
        session.add(Identifier(erasure_id=twin, token="0" * 64, subject=subject_hash(person, SECRET)))
    assert hashes(database, id) == [subject_hash(person, SECRET)]
