"""People as tests of erasures know them: their examples, and what became of a request to forget them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sqlalchemy import func, select

from core.ledger.tables import Example
from core.models import catalog
from tests.worker.house import House, Numbers, fitted, problem

PERSON = 20
"""Examples of the person, the first of a model."""
ENDED = ("completed", "failed", "refused")


def known(house: House, n: int = 300, **spec: Any) -> tuple[str, str, Numbers, Numbers]:
    """A trained model whose first examples are about one person: its name, the person, and all examples."""
    name, (x, y) = house.new_model(**spec), problem(n)
    person = f"person of {name}"
    house.add_examples(name, x[:PERSON], y[:PERSON], split="train", subject=person)
    house.add_examples(name, x[PERSON:], y[PERSON:], first=PERSON, split="train")
    assert house.adapted(name)["state"] == "succeeded"
    return name, person, x, y


def ask(house: House, subject: str) -> str:
    """Ask for an erasure; its id."""
    return str(house.post("/v1/erasures", {"subject": subject})["id"])


def ended(house: House, id: str, seconds: float = 60) -> dict[str, Any]:
    """An erasure, once it has come to an end."""
    found: dict[str, Any] = {}

    def over() -> bool:
        found.update(house.get(f"/v1/erasures/{id}"))
        return found["state"] in ENDED

    house.wait_until(over, seconds)
    return found


def erased(house: House, subject: str) -> dict[str, Any]:
    """Have a person forgotten; the receipt."""
    erasure = ended(house, ask(house, subject))
    assert erasure["state"] == "completed", erasure
    receipt: dict[str, Any] = house.get(erasure["receipt"])
    for part in receipt["models"]:
        assert part["checked"], part
        assert not any(part["checked"].values()), part
    return receipt


def near(house: House, part: dict[str, Any], x: Numbers, y: Numbers) -> bool:
    """Whether a model is as near to scikit-learn's fit as its part of a receipt says."""
    distance = np.linalg.norm(house.weights(part["model"]) - fitted(x, y))
    # float32 inputs and the other solver's own tolerance
    return bool(distance <= part["certificate"]["bound"] + 1e-4)


def rows(house: House, name: str) -> list[int]:
    """The positions of all examples that the database still has of a model, in force or not."""
    with house.database.read() as session:
        model = catalog.find(session, name, None)
        return sorted(session.scalars(select(Example.position).where(Example.model_id == model.id)))


def filled_rows(house: House, name: str) -> list[int]:
    """The positions of those that still say something."""
    with house.database.read() as session:
        model = catalog.find(session, name, None)
        said = select(Example.position).where(Example.model_id == model.id, func.length(Example.x) > 0)
        return sorted(session.scalars(said))


def states(house: House, name: str) -> dict[int, str]:
    """Where each version of a model stands."""
    items = house.get(f"/v1/models/{name}/versions")["items"]
    return {item["version"]: item["state"] for item in items}
