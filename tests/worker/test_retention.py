"""Examples that grow too old go by themselves, and the model forgets them."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
from sqlalchemy import update

from core.clock import now
from core.models import catalog
from core.tables.ledger import Change
from tests.worker.deployment import Deployment, fitted, problem
from tests.worker.erasure_helpers import filled_rows


def test_expired_examples_are_removed_forgotten_and_deleted(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(), problem(300)
    deployment.add_examples(name, x[:100], y[:100], split="train")
    deployment.add_examples(name, x[100:], y[100:], first=100, split="train")
    deployment.adapted(name)
    with deployment.database.write() as session:
        model = catalog.find(session, name, None)
        old = (Change.model_id == model.id, Change.last == 100)
        session.execute(update(Change).where(*old).values(created_at=now() - timedelta(days=400)))
    deployment.wait_for_ticks()
    assert deployment.get(f"/v1/models/{name}")["counts"]["train"] == 300
    with deployment.client() as client:
        changed = client.patch(f"/v1/models/{name}", json={"policy": {"expire": "365d"}}).raise_for_status().json()
    assert changed["policy"]["expire"] == "365d"
    deployment.wait_until(lambda: bool(deployment.champion(name)["position"] == 400))
    deployment.settled(name)
    assert deployment.get(f"/v1/models/{name}")["counts"] == {
        "train": 200,
        "holdout": 0,
        "removed": 100,
        "quarantined": 0,
        "unlabelled": 0,
    }
    version = deployment.champion(name)
    distance = np.linalg.norm(deployment.weights(name) - fitted(x[100:], y[100:]))
    assert (version["kind"], bool(distance <= version["certificate"]["bound"] + 1e-4)) == ("adapted", True)
    deployment.wait_until(lambda: filled_rows(deployment, name) == list(range(101, 301)))
