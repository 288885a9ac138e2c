"""The promotion gate through REST, for new examples that arrive together with a change of the model."""

from __future__ import annotations

import pytest

from tests.worker.deployment import Deployment
from tests.worker.test_gate import DIM, World, model


@pytest.mark.both_databases
@pytest.mark.parametrize("change", ["columns", "loss"])
def test_examples_that_come_with_a_change_of_the_model_are_judged(deployment: Deployment, change: str) -> None:
    """Both versions predict the same old examples, each with its own columns and loss."""
    world = World()
    columns = [{"name": f"c{i}", "type": "number"} for i in range(DIM)]
    name = deployment.new_model(input={"kind": "table", "columns": columns})
    wanted, metric = ({"add_columns": [{"name": "new", "type": "number"}]}, "loss")
    if change == "loss":
        wanted, metric = ({"loss": "squared_hinge"}, "auc")

    def send(count: int, flip: float = 0.0, **more: None) -> None:
        x, y = world.rows(count, flip=flip)
        first = model(deployment, name)["head"]
        rows = [
            {
                "id": f"e{first + i}",
                "x": {**{f"c{j}": float(v) for j, v in enumerate(row)}, **more},
                "y": int(label),
                "split": "train" if i % 5 else "holdout",
            }
            for i, (row, label) in enumerate(zip(x, y, strict=True))
        ]
        deployment.post(f"/v1/models/{name}/examples", {"examples": rows})

    send(1000)
    deployment.adapted(name)
    with deployment.worker_held():
        send(1500, flip=1.0)
        job = deployment.post(f"/v1/models/{name}/changes", wanted)["job"]
    deployment.ended(job)
    gate = deployment.version(name, 2)["gate"]
    assert (gate["passed"], gate["metric"], gate["rows"]) == (False, metric, 200)
    found, champion = model(deployment, name), deployment.champion(name)
    assert (found["counts"]["train"], found["counts"]["quarantined"]) == (800, 1500)
    assert (champion["version"], champion["gate"]["passed"], champion["gate"]["rows"]) == (3, True, 200)
    assert "new" in str(champion["spec"]) if change == "columns" else "squared_hinge" in str(champion["spec"])
    # an ordinary batch that comes with the next change is promoted, and compared with the first version as well
    with deployment.worker_held():
        send(200, **({"new": None} if change == "columns" else {}))
        more = {"add_columns": [{"name": "more", "type": "number"}]}
        job = deployment.post(f"/v1/models/{name}/changes", more)["job"]
    deployment.ended(job)
    champion = deployment.champion(name)
    assert (champion["version"], champion["gate"]["passed"]) == (4, True)
    assert (champion["gate"]["confirmed"]["version"], champion["gate"]["confirmed"]["passed"]) == (1, True)
