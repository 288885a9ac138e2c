"""After an erasure from a model with a frozen part, no file contains the raw rows, their encodings or predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from core.models import catalog
from core.tables.bookkeeping import Metadata
from core.tables.ledger import Encoding, Example, PendingExample
from core.vacuum import VACUUM_DUE
from tests.worker.deployment import Deployment, problem
from tests.worker.erasure_helpers import erase
from tests.worker.texts import reviews

# What is searched for is in files: on PostgreSQL, they belong to its server.
pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)

PERSON = 5
"""Examples of the person, the first of a model."""
LAYERS = [{"kind": "linear", "outputs": 6}, {"kind": "batch_norm"}, {"kind": "relu"}, {"kind": "linear", "outputs": 1}]
MODELS: dict[str, tuple[dict[str, Any], dict[str, str] | None]] = {
    "text": (
        {"input": {"kind": "text"}, "architecture": {"kind": "linear", "encoder": {"kind": "hashing"}}},
        {"kind": "hashing", "trained_on": "other"},
    ),
    "trees": (
        {"architecture": {"kind": "trees", "trees": 5, "leaves": 4}},
        {"kind": "trees", "trained_on": "examples"},
    ),
    "torch": (
        {"architecture": {"kind": "sequential", "layers": LAYERS}},
        None,
    ),
}


def inputs_of(kind: str) -> tuple[list[Any], list[int]]:
    """Inputs and labels. The person's inputs are unlike all others, also unlike those of other tests."""
    x, y = problem(150, seed=7_700_000 + sum(map(ord, kind)))
    if kind != "text":
        return x.astype(np.float32).tolist(), [int(label) for label in y]
    texts, labels = reviews(150)
    return [f"{text} flat 27b{i}" if i <= PERSON else text for i, text in enumerate(texts)], labels


def stored_bytes(deployment: Deployment, name: str, ids: list[str]) -> dict[str, list[bytes]]:
    """What the database stores about some examples, one of which has no label yet."""
    with deployment.database.read() as session:
        model = catalog.find(session, name, None).id
        query = select(Example.position, Example.x).where(Example.model_id == model, Example.id.in_(ids))
        rows = session.execute(query).all()
        mine = (Encoding.model_id == model, Encoding.position.in_([position for position, _ in rows]))
        pending = session.scalars(select(PendingExample).where(PendingExample.model_id == model)).one()
        assert pending.mean is not None
        return {
            "rows": [*(x for _, x in rows), pending.x],
            "encodings": list(session.scalars(select(Encoding.data).where(*mine))),
            "predictions": [pending.mean],
        }


def files_with(deployment: Deployment, parts: list[bytes]) -> set[str]:
    """The names of the files that contain one of the byte strings."""
    files = [file for file in deployment.folder.rglob("*") if file.is_file()]
    return {file.name for file in files if any(part in file.read_bytes() for part in parts)}


def is_vacuumed(deployment: Deployment) -> bool:
    with deployment.database.read() as session:
        return session.get(Metadata, VACUUM_DUE) is None


@pytest.mark.parametrize("kind", MODELS)
def test_an_erasure_leaves_no_trace_in_any_file(deployment: Deployment, kind: str) -> None:
    spec, encoder = MODELS[kind]
    name = deployment.new_model(**spec)
    (x, y), person = inputs_of(kind), f"person of {name}"
    about = [{"subject": person} if i < PERSON else {} for i in range(len(x))]
    rows = [{"id": f"e{i}", "x": x[i], "y": y[i], "split": "train", **about[i]} for i in range(len(x)) if i != PERSON]
    deployment.post(f"/v1/models/{name}/examples", {"examples": rows})
    assert deployment.adapted(name)["state"] == "succeeded"
    recorded = {"inputs": [x[PERSON]], "ids": [f"e{PERSON}"], "subjects": [person], "record": True}
    [output] = deployment.post(f"/v1/models/{name}/predictions", recorded)["outputs"]
    assert 0 < output["mean"] < 1
    found = stored_bytes(deployment, name, [f"e{i}" for i in range(PERSON + 1)])
    assert [len(parts) for parts in found.values()] == [PERSON + 1, PERSON if kind == "text" else 0, 1]
    for parts in filter(None, found.values()):
        assert files_with(deployment, parts), "what is searched for below must be there before"
    [part] = erase(deployment, person)["models"]
    deployment.wait_until(lambda: is_vacuumed(deployment))  # a reader may have kept SQLite's file from being rewritten
    for what, parts in found.items():
        assert not files_with(deployment, parts), what
    assert part.get("encoder") == encoder
    assert part["deleted"]["examples"] == PERSON + 1
