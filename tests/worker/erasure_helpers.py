"""People as tests of erasures know them: their examples, and what became of a request to forget them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sqlalchemy import func, select

from core.models import catalog
from core.tables.ledger import Example
from tests.worker.deployment import Deployment, Numbers, fitted, problem

PERSON = 20
"""Examples of the person, the first of a model."""
ENDED = ("completed", "failed", "refused")


def train_with_person(deployment: Deployment, n: int = 300, **spec: Any) -> tuple[str, str, Numbers, Numbers]:
    """A trained model whose first examples are about one person: its name, the person, and all examples."""
    name, (x, y) = deployment.new_model(**spec), problem(n)
    person = f"person of {name}"
    deployment.add_examples(name, x[:PERSON], y[:PERSON], split="train", subject=person)
    deployment.add_examples(name, x[PERSON:], y[PERSON:], first=PERSON, split="train")
    assert deployment.adapted(name)["state"] == "succeeded"
    return name, person, x, y


def ask(deployment: Deployment, subject: str) -> str:
    """Ask for an erasure; its id."""
    return str(deployment.post("/v1/erasures", {"subject": subject})["id"])


def wait_for_end(deployment: Deployment, id: str, seconds: float = 60) -> dict[str, Any]:
    """An erasure, once it has come to an end."""
    found: dict[str, Any] = {}

    def over() -> bool:
        found.update(deployment.get(f"/v1/erasures/{id}"))
        return found["state"] in ENDED

    deployment.wait_until(over, seconds)
    return found


def erase(deployment: Deployment, subject: str) -> dict[str, Any]:
    """Have a person forgotten; the receipt."""
    erasure = wait_for_end(deployment, ask(deployment, subject))
    assert erasure["state"] == "completed", erasure
    receipt: dict[str, Any] = deployment.get(erasure["receipt"])
    for part in receipt["models"]:
        assert part["checked"], part
        assert not any(part["checked"].values()), part
    return receipt


def near(deployment: Deployment, part: dict[str, Any], x: Numbers, y: Numbers) -> bool:
    """Whether a model is as near to scikit-learn's fit as its part of a receipt says."""
    distance = np.linalg.norm(deployment.weights(part["model"]) - fitted(x, y))
    # float32 inputs and the other solver's own tolerance
    return bool(distance <= part["certificate"]["bound"] + 1e-4)


def rows(deployment: Deployment, name: str) -> list[int]:
    """The positions of all examples that the database still has of a model, in force or not."""
    with deployment.database.read() as session:
        model = catalog.find(session, name, None)
        return sorted(session.scalars(select(Example.position).where(Example.model_id == model.id)))


def filled_rows(deployment: Deployment, name: str) -> list[int]:
    """The positions of those that still say something."""
    with deployment.database.read() as session:
        model = catalog.find(session, name, None)
        said = select(Example.position).where(Example.model_id == model.id, func.length(Example.x) > 0)
        return sorted(session.scalars(said))


def states(deployment: Deployment, name: str) -> dict[int, str]:
    """Where each version of a model stands."""
    items = deployment.get(f"/v1/models/{name}/versions")["items"]
    return {item["version"]: item["state"] for item in items}
