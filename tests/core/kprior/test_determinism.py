"""Same seed, same bytes: in one process, and in another."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from core.kprior import AddData, ChangeModel, ChangeRegularizer, Examples, RemoveData, Training, adapt, certify, train
from core.kprior.data.random_samples import draw_from
from tests.core.kprior.problems import LINEAR, QUADRATIC, TENTH, examples_of, l2, rows, spec_of

ROOT = Path(__file__).parents[3]
MLP = {"kind": "mlp", "hidden": [6]}
MODELS: dict[str, dict[str, Any]] = {"linear": LINEAR, "quadratic": QUADRATIC, "mlp": MLP}


def hashes(model: str, seed: int = 0) -> list[str]:
    """Hashes of the states after training, after two adaptations, and after a pass or (networks) a third adaptation."""
    data = examples_of("classes", 160, 3)
    training = Training(max_epochs=3, batch_size=32, seed=seed, budget=2_000)
    options: dict[str, Any] = {"policy": TENTH, "training": training}
    spec = spec_of("classes", 3, MODELS[model])
    states = [train(spec, rows(data, 0, 120).chunks(50), **options)]
    for tasks in (
        [AddData([rows(data, 120, 160)]), RemoveData([rows(data, 0, 10)])],
        [ChangeRegularizer(l2(3.0)), ChangeModel({"kind": "mlp", "hidden": [4]} if model == "mlp" else LINEAR)],
    ):
        draw = draw_from(rows(data, 10, 120 if len(states) == 1 else 160))
        states.append(adapt(states[-1].state, states[-1].memory, tasks, draw=draw, **options))
    last, every = states[-1], [s.state for s in states]
    left = rows(data, 10, 160)
    if model == "mlp":
        drawn = adapt(last.state, last.memory, [ChangeRegularizer(l2(1.0))], draw=draw_from(left), **options)
        every.append(drawn.state)
    else:
        every.append(certify(last.state, last.memory, left.chunks(50)).state)
    return [hashlib.sha256(state.to_bytes()).hexdigest() for state in every]


@pytest.mark.parametrize("model", MODELS)
def test_same_seed_gives_the_same_bytes(model: str) -> None:
    torch.manual_seed(123)
    first = hashes(model)
    torch.manual_seed(456)  # the global generator is not the engine's
    before = torch.get_rng_state()
    assert hashes(model) == first
    assert torch.equal(torch.get_rng_state(), before)


def test_other_seeds_give_other_networks() -> None:
    assert not set(hashes("mlp", 0)) & set(hashes("mlp", 1))


def test_dropout_draws_from_the_seed_of_training() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(16, 1, 16, 16, generator=generator)
    data = Examples(torch.arange(16), x, (x.mean((1, 2, 3)) > 0.5).float()[:, None])
    spec = {**spec_of("binary", 1, {"kind": "cifarnet"}), "input": {"kind": "image", "shape": [1, 16, 16]}}
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        states.append(train(spec, [data], training=Training(max_epochs=1, batch_size=8)).state.to_bytes())
    assert states[0] == states[1]


def test_another_process_gives_the_same_bytes() -> None:
    code = "from tests.core.kprior.test_determinism import MODELS, hashes\nfor model in MODELS: print(*hashes(model))\n"
    environment = {**os.environ, "PYTHONHASHSEED": "random", "OMP_NUM_THREADS": "1"}
    jobs = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [job.communicate(timeout=120)[0] for job in jobs]
    assert all(job.returncode == 0 for job in jobs)
    assert outputs[0] == outputs[1]
    assert len(outputs[0].split()) == 4 * len(MODELS)
