"""A person who was erased and whose data returns: out of every training, and included in the next request."""

from __future__ import annotations

import numpy as np
import pytest

from tests.worker.deployment import Deployment, fitted
from tests.worker.erasure_helpers import PERSON, erase, train_with_person


@pytest.mark.both_databases
def test_returned_examples_are_never_learnt_and_erased_again(deployment: Deployment) -> None:
    name, person, x, y = train_with_person(deployment)
    first = erase(deployment, person)
    deployment.add_examples(name, x[:PERSON], 1 - y[:PERSON], first=10_000, split="train", subject=person)
    deployment.add_examples(name, x[:5], y[:5], first=20_000, split="train")
    assert deployment.get(f"/v1/models/{name}")["counts"]["quarantined"] == PERSON
    assert deployment.adapted(name)["state"] == "succeeded"
    left, labels = np.concatenate([x[PERSON:], x[:5]]), np.concatenate([y[PERSON:], y[:5]])
    np.testing.assert_allclose(deployment.weights(name), fitted(left, labels), rtol=0.02, atol=0.02)
    second = erase(deployment, person)
    assert [part["examples"] for part in second["models"]] == [PERSON]
    assert second["models"][0]["deleted"]["examples"] == PERSON
    assert second["recognised_until"] > first["recognised_until"]
    assert deployment.get(f"/v1/models/{name}")["counts"]["quarantined"] == 0
