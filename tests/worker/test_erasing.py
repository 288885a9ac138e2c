"""Erasures from end to end: a person asked to be forgotten, and is."""

from __future__ import annotations

import numpy as np

from tests.worker.house import House, fitted, problem


def test_a_person_is_forgotten_and_a_receipt_says_so(house: House) -> None:
    name, (x, y) = house.new_model(), problem(300)
    house.add_examples(name, x[:20], y[:20], split="train", subject=f"person of {name}")
    house.add_examples(name, x[20:], y[20:], first=20, split="train")
    house.adapted(name)
    erasure = house.post("/v1/erasures", {"subject": f"person of {name}"})
    house.wait_until(lambda: house.get(f"/v1/erasures/{erasure['id']}")["state"] in ("completed", "failed"))
    erasure = house.get(f"/v1/erasures/{erasure['id']}")
    assert erasure["state"] == "completed", erasure
    [part] = erasure["models"]
    assert (part["model"], part["examples"], part["method"]) == (name, 20, "adapted")
    distance = np.linalg.norm(house.weights(name) - fitted(x[20:], y[20:]))
    assert distance <= part["bound"] + 1e-4
    receipt = house.get(erasure["receipt"])
    assert receipt["models"][0]["checked"] == dict.fromkeys(receipt["models"][0]["checked"], 0)
    assert house.get(f"/v1/models/{name}/versions/1")["state"] == "purged"
    assert house.get("/v1/receipts/verify")["valid"]


def test_a_person_whom_nobody_knows_has_a_receipt_at_once(house: House) -> None:
    erasure = house.post("/v1/erasures", {"subject": "nobody at all"})
    assert (erasure["state"], erasure["models"]) == ("completed", [])
    assert house.get(erasure["receipt"])["found"] == 0
