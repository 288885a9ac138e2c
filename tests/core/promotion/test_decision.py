"""Which versions become the champion, by who asks: the policy, an erasure or a person."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database
from core.models.policy import GatePolicy
from core.promotion.decision import Action, PromotionDecision, Requester, request_promotion
from core.promotion.failed_versions import failed_in_service
from core.promotion.gate import not_compared
from core.tables.erasures import Part
from core.tables.models import Model
from core.versions.queries import find_version
from tests.core.jobs.rows import add_training, enter_version, model_with
from tests.core.ledger.reference_ledger import locked

POLICY, ERASURE, PERSON, ACCEPTANCE = Requester


def model_with_versions(database: Database, champion: int, promote: str = "automatic") -> Model:
    """A model with versions 1 and 2 at positions 3 and 6."""
    model = model_with(database, promote=promote)
    for count in (1, 3):
        add_training(database, model, count)
        enter_version(database, model)

    def set_champion(_session: Session, row: Model) -> None:
        row.champion = champion

    locked(database, model, set_champion)
    return model


def ask(database: Database, model: Model, number: int, requester: Requester, *people: Part) -> PromotionDecision:
    def request(session: Session, row: Model) -> PromotionDecision:
        return request_promotion(session, row, find_version(session, row, number), requester, "key", people)

    decision: PromotionDecision = locked(database, model, request)
    return decision


def champion(database: Database, model: Model) -> int | None:
    with database.read() as session:
        return session.get_one(Model, model.id).champion


def hold(_session: Session, row: Model) -> None:
    row.held_at, row.held_reason, row.held_by = now(), "held by hand", "key"


@pytest.mark.parametrize(("held", "promote"), [(False, "automatic"), (False, "manual"), (True, "automatic")])
def test_the_policy_promotes_unless_it_is_manual_or_the_model_is_held(
    database: Database, held: bool, promote: str
) -> None:
    model = model_with_versions(database, champion=1, promote=promote)
    if held:
        locked(database, model, hold)
    decision = ask(database, model, 2, POLICY)
    expected = "not promoted: the model is held" if held else "promoted"
    expected = expected if promote == "automatic" else "not promoted: the policy requires a manual promotion"
    assert decision.reason == expected
    assert champion(database, model) == (2 if decision.promoted else 1)
    assert decision.promoted is (expected == "promoted")


def test_the_champion_is_not_promoted_again(database: Database) -> None:
    model = model_with_versions(database, champion=2)
    assert ask(database, model, 2, POLICY).reason == "already the champion"


@pytest.mark.parametrize(("first", "promoted"), [(2, True), (4, False)])
def test_an_erasure_promotes_only_if_the_champion_used_the_data(database: Database, first: int, promoted: bool) -> None:
    model = model_with_versions(database, champion=1, promote="manual")
    locked(database, model, hold)
    decision = ask(database, model, 2, ERASURE, Part(first_position=first, removal_position=6))
    assert (decision.promoted, champion(database, model)) == (promoted, 2 if promoted else 1)
    with database.read() as session:
        reason = session.get_one(Model, model.id).held_reason
    assert reason == "held by hand" + "; version 2 was promoted by an erasure" * promoted


@pytest.mark.parametrize(("before", "action"), [(1, Action.PROMOTE), (2, Action.PROMOTE_AND_HOLD)])
def test_a_person_may_promote_any_version_and_a_rollback_holds_the_model(
    database: Database, before: int, action: Action
) -> None:
    model = model_with_versions(database, champion=before, promote="manual")
    number = 3 - before
    assert ask(database, model, number, PERSON).action is action
    with database.read() as session:
        row = session.get_one(Model, model.id)
        assert (row.champion, row.held_at is not None) == (number, action is Action.PROMOTE_AND_HOLD)


def test_accepting_a_version_promotes_and_confirms_it_without_a_hold(database: Database) -> None:
    model = model_with_versions(database, champion=2, promote="manual")
    assert ask(database, model, 1, ACCEPTANCE).action is Action.PROMOTE
    with database.read() as session:
        row = session.get_one(Model, model.id)
        assert (row.champion, row.confirmed, row.held_at) == (1, 1, None)


def test_a_version_that_failed_the_gate_is_named_until_a_person_promotes_it(database: Database) -> None:
    model = model_with_versions(database, champion=1)

    def fail(session: Session, row: Model) -> None:
        find_version(session, row, 2).gate = {**not_compared("first_version", GatePolicy()), "passed": False}

    def named() -> int | None:
        with database.read() as session:
            assert failed_in_service(session).get(model.id) == failed_in_service(session, model.id).get(model.id)
            return failed_in_service(session).get(model.id)

    locked(database, model, fail)
    assert named() is None  # it is not in service
    locked(database, model, lambda session, row: request_promotion(session, row, find_version(session, row, 2), POLICY))
    assert named() == 2
    ask(database, model, 2, PERSON)
    assert named() is None
