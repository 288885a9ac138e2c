"""A person asks to be forgotten while a version is being made that does not know them any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core import ledger
from core.database import Database
from core.erasure import requests
from core.erasure.request_details import RequestDetails
from core.models import catalog
from core.settings import Settings
from core.tables.ledger import Example
from migrations import runner
from tests.core.ledger.reference_ledger import SECRET
from tests.core.tracking.tracked_model import TrackedModel, cloud
from worker.jobs import adapt

PERSON = b"somebody"


def test_a_version_that_was_begun_before_the_person_asked_does_not_stand_for_having_forgotten_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its position is right, for the examples were removed before; but nothing shows how near to a retrain it is."""
    settings = Settings(home=tmp_path)
    database = Database(settings)
    runner.upgrade(database)
    tracked = TrackedModel(database, settings).create(policy={"certify": "never"})
    tracked.add(*cloud(80))
    with database.write() as session:
        row = session.query(Example).where(~Example.holdout).first()
        assert row is not None
        row.subject = PERSON
    tracked.adapt()
    with database.write() as session:
        model = catalog.find(session, tracked.name, None, lock=True)
        ledger.remove(session, model, Example.subject, [""], [PERSON])
    make, asked = adapt.next_version, []

    def make_slowly(*given: Any) -> Any:
        made = make(*given)
        if not asked:
            with database.write() as session:
                asked.append(requests.receive(session, RequestDetails(PERSON), SECRET, "key").id)
        return made

    monkeypatch.setattr(adapt, "next_version", make_slowly)
    version = tracked.adapt()
    assert (version.position, asked != []) == (tracked.model.head, True)
    assert version.certificate is not None
    database.close()
