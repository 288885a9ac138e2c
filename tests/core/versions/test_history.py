"""Recording and promoting versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select

from core.database import Database
from core.errors import Conflict, NotFound
from core.inference.loaded_model import LoadedModel
from core.kprior import MemoryPolicy, State, train
from core.ledger import passes
from core.ledger.digest import EMPTY, update_digest
from core.promotion import decision
from core.tables.models import Model
from core.tables.versions import Promotion, Version, VersionKind, VersionState
from core.versions import drafts
from core.versions.queries import find_version
from core.versions.store import Store, folder_of
from tests.core.ledger.reference_ledger import SECRET, Row, add, locked, new_model, stored


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


@pytest.fixture
def model(database: Database) -> Model:
    model = new_model(database)
    add(database, model, [Row(f"e{i}", x=(i, i % 3), y=i > 4, split=False) for i in range(10)])
    return model


def record(database: Database, store: Store, model: Model, kind: VersionKind = VersionKind.TRAINED) -> Version:
    data = passes.read_in_force(database, model.id, model.spec, 10)
    result = train(model.spec, data, policy=MemoryPolicy(fraction=0.5))
    file, dataset = (
        store.put(folder_of(model.id), result.state.to_bytes()),
        update_digest(SECRET, EMPTY, data),
    )
    method = "retrain" if kind is VersionKind.TRAINED else "kprior"
    draft = drafts.VersionDraft(result.state, kind, method, 10, dataset, result.cost, {"loss": 0.5})
    version: Version = locked(
        database,
        model,
        lambda s, m: drafts.record(s, m, draft, file),
    )
    return version


def promote(database: Database, model: Model, number: int) -> None:
    locked(database, model, lambda s, m: decision.promote(s, m, find_version(s, m, number), by="policy"))


def test_versions_are_numbered_from_one_and_start_as_candidates(database: Database, store: Store, model: Model) -> None:
    first, second = record(database, store, model), record(database, store, model, VersionKind.ADAPTED)
    with database.read() as session:
        rows = [session.merge(v, load=False) for v in (first, second)]
        session.expire_all()
        assert [(v.number, v.state.value, v.method) for v in rows] == [
            (1, "candidate", "retrain"),
            (2, "candidate", "kprior"),
        ]
        assert rows[0].memory == {"size": 5, "fraction": 0.5}
    assert stored(database, model).champion is None


def test_a_stored_version_predicts_as_it_did_when_recorded(database: Database, store: Store, model: Model) -> None:
    record(database, store, model)
    with database.read() as session:
        version = find_version(session, model, 1)
        served = LoadedModel.from_state(State.from_bytes(store.get(version.file)), version.number)
    chunk = next(iter(passes.read_in_force(database, model.id, model.spec, 10)))
    assert ((served.predict_means(chunk.x.numpy()) > 0.5) == chunk.y.numpy()).mean() > 0.7


def test_there_is_one_champion_and_rollback_is_a_promotion(database: Database, store: Store, model: Model) -> None:
    for _ in range(2):
        record(database, store, model)
    for number in (1, 2, 1, 1):
        promote(database, model, number)
    with database.read() as session:
        states = [find_version(session, model, n).state for n in (1, 2)]
        rows = session.scalars(select(Promotion).where(Promotion.model_id == model.id).order_by(Promotion.id))
        assert [(row.version, row.previous, row.by) for row in rows] == [
            (1, None, "policy"),
            (2, 1, "policy"),
            (1, 2, "policy"),
            (1, 1, "policy"),
        ]
    assert states == [VersionState.CHAMPION, VersionState.SUPERSEDED]
    assert stored(database, model).champion == 1


def test_a_purged_version_is_not_promoted(database: Database, store: Store, model: Model) -> None:
    record(database, store, model)

    def purge(session: object, row: Model) -> None:
        find_version(session, row, 1).state = VersionState.PURGED  # type: ignore[arg-type]

    locked(database, model, purge)
    with pytest.raises(Conflict):
        promote(database, model, 1)
    with pytest.raises(NotFound):
        promote(database, model, 2)
