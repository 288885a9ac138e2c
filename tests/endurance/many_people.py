"""A crowd of people with examples that tell them apart, in the models of a fleet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from core.tables.bookkeeping import Metadata
from core.vacuum import VACUUM_DUE
from tests.endurance.fleet import Fleet
from tests.endurance.traces import dump, files, found, traces_of
from tests.worker.deployment import DIM, Numbers, fitted

PEOPLE, EACH, HELD = 400, 10, 9
"""People, examples of each, and which of these is held out."""


SPLIT = ("train", "holdout")


def crowd(seed: int = 0) -> tuple[list[str], Numbers, Numbers]:
    """People with names that are nowhere else, and their examples, of which no number is nowhere else either."""
    rng = np.random.default_rng(seed)
    names = [f"Zaphod-{rng.integers(1 << 60):x}-Beeblebrox" for _ in range(PEOPLE)]
    x = rng.normal(size=(PEOPLE, EACH, DIM)).astype(np.float32)
    return names, x, (x[..., 0] + rng.normal(size=(PEOPLE, EACH)) > 0).astype(int)


def ids_of(person: int) -> list[str]:
    return [f"case-{person:03d}-{i:03d}-of-the-crowd" for i in range(EACH)]


def bodies(names: list[str], x: Numbers, y: Numbers, people: Any) -> list[dict[str, Any]]:
    return [
        {"id": id, "subject": names[p], "x": x[p, i].tolist(), "y": int(y[p, i]), "split": SPLIT[i == HELD]}
        for p in people
        for i, id in enumerate(ids_of(p))
    ]


def tidied(fleet: Fleet) -> bool:
    """Whether the database has been tidied since the last erasure."""
    with fleet.database.read() as session:
        return session.get(Metadata, VACUUM_DUE) is None


def places(fleet: Fleet) -> Iterator[tuple[str, bytes]]:
    """Everything that we keep: files, logs, and the database if it is not one of the files."""
    fleet.wait_until(lambda: tidied(fleet))
    yield from files(fleet.folder)
    if fleet.postgres is not None:
        yield from dump(fleet.settings.database)


def started(fleet: Fleet) -> Fleet:
    """All parts of a fleet."""
    fleet.start()
    fleet.workers_up(1)
    fleet.add("worker.scheduler")
    fleet.wait_until(fleet.ready)
    return fleet


def left_of(fleet: Fleet, people: Iterable[int]) -> list[Any]:
    """What is still there of some people, and where."""
    names, x, _ = crowd()
    content = list(places(fleet))
    secret = fleet.settings.secret
    return [trace for p in people for trace in found(traces_of(names[p], ids_of(p), x[p], secret), content)]


def near_without(fleet: Fleet, name: str, first: int, last: int = PEOPLE) -> bool:
    """Whether a model is within its bound of a fit to the people from `first` on."""
    _, x, y = crowd()
    truth = fitted(x[first:last, :HELD].reshape(-1, DIM), y[first:last, :HELD].reshape(-1))
    bound = (fleet.champion(name)["certificate"] or {}).get("bound") or 0.0
    return bool(np.linalg.norm(fleet.weights(name) - truth) <= bound + 1e-4)
