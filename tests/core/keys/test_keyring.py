"""Issuing, checking and revoking keys."""

from __future__ import annotations

import pytest

from core.clock import now
from core.database import Database
from core.errors import Invalid, NotFound
from core.keys import api_keys, queries
from core.tables.keys import Key, Scope


def issued(database: Database, *scopes: Scope, models: list[str] | None = None) -> str:
    with database.write() as session:
        return api_keys.issue(session, "test", scopes or [Scope.READ], models)[1]


def checked(database: Database, text: str) -> Key | None:
    with database.read() as session:
        return api_keys.check(session, text)


def test_an_issued_key_is_accepted_with_its_scopes_and_models(database: Database) -> None:
    key = checked(database, issued(database, Scope.READ, Scope.INGEST, models=["churn"]))
    assert key is not None
    assert (key.name, key.scopes, key.models) == ("test", ["read", "ingest"], ["churn"])


def test_only_a_hash_of_the_secret_is_stored(database: Database) -> None:
    text = issued(database)
    secret = text.split("_", 2)[2]
    key = checked(database, text)
    assert key is not None
    row = "".join(str(getattr(key, column.name)) for column in Key.__table__.columns)
    assert secret not in row
    assert len(key.digest) == 32


def test_wrong_unknown_and_malformed_keys_are_rejected(database: Database) -> None:
    text = issued(database)
    swapped = text[:-1] + ("A" if text[-1] != "A" else "B")
    unknown = f"amend_{'0' * 12}_{text.split('_', 2)[2]}"
    for wrong in (swapped, unknown, text + " ", text.upper(), "", "amend__", "ä" * 40, f"{text}\n", "amend_a\x00b_c"):
        assert checked(database, wrong) is None


def test_a_revoked_key_is_rejected_at_once_and_cannot_be_revoked_again(database: Database) -> None:
    text = issued(database)
    key_id = text.split("_")[1]
    with database.write() as session:
        api_keys.revoke(session, key_id)
    assert checked(database, text) is None
    for gone in (key_id, "neverwas"):
        with pytest.raises(NotFound), database.write() as session:
            api_keys.revoke(session, gone)


def test_two_keys_are_never_the_same(database: Database) -> None:
    assert len({issued(database) for _ in range(20)}) == 20


@pytest.mark.parametrize("text", ["", "password", "amend_short_x", "amend_UPPERCASE12_" + "a" * 30])
def test_a_given_key_must_have_the_right_form(database: Database, text: str) -> None:
    with pytest.raises(Invalid), database.write() as session:
        api_keys.add(session, text, "mine", [Scope.ADMIN], None)


def test_an_admin_exists_only_while_an_unlimited_valid_admin_key_does(empty_database: Database) -> None:
    def has_admin() -> bool:
        with empty_database.read() as session:
            return queries.has_admin(session)

    issued(empty_database, Scope.READ, Scope.INGEST, Scope.ERASE)
    issued(empty_database, Scope.ADMIN, models=["churn"])
    assert not has_admin()
    admin = issued(empty_database, Scope.ADMIN)
    assert has_admin()
    with empty_database.write() as session:
        api_keys.revoke(session, admin.split("_")[1])
    assert not has_admin()


def test_the_last_use_is_not_written_for_every_request() -> None:
    assert api_keys.is_stale(Key(last_used_at=None))
    assert not api_keys.is_stale(Key(last_used_at=now()))
    assert api_keys.is_stale(Key(last_used_at=now() - 2 * api_keys.LAST_USED_PRECISION))
