"""Stands in for the engine: a state is the list of the examples that it was trained on.

The token of an example is its first feature, a number that no other example has. A training example is bad if its
target is 1: each of them raises the logit that a version predicts for every row, so that its loss on the holdout is
worse, and the gate, which is the real one, rejects it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from core import clock
from core.analyses.requests import pending_pool
from core.database import Database
from core.kprior import Cost, Examples
from core.kprior.model.families import Bernoulli
from core.kprior.model.spec import Spec
from core.ledger import passes
from core.models.policy import policy_of
from core.quality.drift_report import measure_drift
from core.quality.drift_rows import DriftScope
from core.tables.documents import DriftDocument
from core.tables.models import Model
from core.tables.versions import Version, VersionKind
from core.versions.drafts import VersionDraft
from core.versions.store import StoredFile
from tests.simulation.world import World, namespace
from worker.example_reading import Reading
from worker.versions.snapshot import ModelSnapshot, Unadaptable

MAX_SECONDS = 8.0
"""The longest computation: with the time between the other steps, some jobs take longer than their leases."""
LOGIT = -3.0
"""What a version without bad examples predicts."""


class Keys(list[int]):
    def tolist(self) -> list[int]:
        return list(self)


class StubMemory:
    def __init__(self, positions: Iterable[int]) -> None:
        self.key = Keys(positions)

    def __len__(self) -> int:
        return len(self.key)


class StubPredictor:
    """Predicts the same logit for every row, and remembers the tokens of the rows."""

    family, size, dtype = Bernoulli(1), 1, torch.float64

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def outputs(self, w: Tensor, x: Tensor) -> Tensor:
        self.seen.update(int(token) for token in x[:, 0].tolist())
        return w.expand(len(x), 1)


class StubState:
    """The examples that a version was trained on, by position."""

    def __init__(self, spec: Spec, tokens: dict[int, int], bad: set[int]) -> None:
        self.spec, self.tokens, self.bad = spec, tokens, bad
        self.count = len(tokens)
        self.memory = StubMemory(position for position in tokens if position % 2)
        self.predictor = StubPredictor()
        self.w = torch.tensor([LOGIT + len(bad)], dtype=torch.float64)

    def to_bytes(self) -> bytes:
        return json.dumps({"tokens": self.tokens, "bad": sorted(self.bad), "spec": self.spec}).encode()

    @classmethod
    def from_bytes(cls, data: bytes, _device: object = None) -> StubState:
        body = json.loads(data)
        tokens = {int(position): token for position, token in body["tokens"].items()}
        return cls(body["spec"], tokens, set(body["bad"]))

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(sorted(self.tokens.values())).encode()).hexdigest()


def state_of(spec: Spec, chunks: Iterable[Examples]) -> StubState:
    tokens, bad = {}, set()
    for chunk in chunks:
        for position, x, y in zip(chunk.key.tolist(), chunk.x[:, 0].tolist(), chunk.y.flatten().tolist(), strict=True):
            tokens[position] = int(x)
            if y == 1:
                bad.add(int(x))
    return StubState(spec, tokens, bad)


class StubEngine:
    """The functions of the worker that compute."""

    def __init__(self, world: World) -> None:
        self.world = world

    def compute(self) -> None:
        clock.sleep(self.world.random.random() * MAX_SECONDS)

    def next_version(self, attempt: Any, snapshot: ModelSnapshot) -> VersionDraft:
        if snapshot.tip is None:
            return self.train_draft(attempt, snapshot, attempt.progress)
        try:
            return self.adapt_tip(attempt, snapshot)
        except Unadaptable:
            return self.train_draft(attempt, snapshot, attempt.progress)

    def adapt_tip(self, attempt: Any, snapshot: ModelSnapshot) -> VersionDraft:
        """Reads as `worker.versions.changes.changes_since` does, with the same checks."""
        tip = snapshot.tip
        assert tip is not None
        attempt.progress(0.1, "Reading the changes")
        parent = snapshot.load(tip)
        place = (snapshot.context.database, snapshot.model_id, snapshot.spec, tip.position, snapshot.at)
        added = state_of(snapshot.spec, passes.read_added(*place))
        read = passes.read_removed(*place, removals_position=tip.removals_position)
        removed = state_of(snapshot.spec, read)
        if parent.count + added.count - removed.count != snapshot.count:
            raise Unadaptable("examples of the previous version were purged")
        tokens = {at: token for at, token in parent.tokens.items() if at not in removed.tokens} | added.tokens
        state = StubState(snapshot.spec, tokens, (parent.bad | added.bad) & set(tokens.values()))
        if snapshot.erasing:
            self.read(attempt, snapshot)
        self.compute()
        attempt.progress(0.5, "Adapting")
        return self.draft(snapshot, state, VersionKind.ADAPTED)

    def read(self, attempt: Any, snapshot: ModelSnapshot) -> StubState:
        reading = Reading(attempt, snapshot.in_force(), attempt.progress, "Reading")
        reading.require_nobody_erased()
        return state_of(snapshot.spec, reading)

    def train_draft(self, attempt: Any, snapshot: ModelSnapshot, _progress: Any, **_options: Any) -> VersionDraft:
        state = self.read(attempt, snapshot)
        self.compute()
        attempt.progress(0.5, "Training")
        return self.draft(snapshot, state, VersionKind.TRAINED)

    def draft(self, snapshot: ModelSnapshot, state: StubState, kind: VersionKind) -> VersionDraft:
        parent = snapshot.tip if kind is VersionKind.ADAPTED else None
        return VersionDraft(
            state=state,
            kind=kind,
            method="kprior" if parent else "retrain",
            position=snapshot.at,
            removals_position=snapshot.removals_position,
            dataset_digest=state.digest,
            cost=Cost(),
            metrics={},
            parent=parent.number if parent else None,
            since=parent.position if parent else 0,
            erasing=snapshot.erasing,
        )

    def check_stored(self, snapshot: ModelSnapshot, state: StubState, stored: StoredFile) -> None:
        assert StubState.from_bytes(snapshot.context.store.get(stored.file, stored.sha256)).tokens == state.tokens

    def measure_drift(self, database: Database, scope: DriftScope, state: Any) -> DriftDocument:
        """The real report; takes note of the examples that it was computed from."""
        report = measure_drift(database, scope, state)
        self.world.note_drift_report(report, state.predictor.seen)
        return report

    def load_subject(self, _context: Any, model: Model, tip: Version, spec: Spec) -> Any:
        """The model that an analysis is about."""
        return namespace(model_id=model.id, spec=spec, at=model.head, policy=policy_of(model), tip=tip)

    def report_labelling(self, _subject: Any, _x: Any, ids: Any, top: int) -> tuple[dict[str, Any], int]:
        self.compute()
        return {"rows": [{"id": id_} for id_ in ids[:top]], "pool": len(ids)}, 0

    def analyse(self, _attempt: Any, snapshot: ModelSnapshot, *_arguments: Any) -> tuple[dict[str, Any], int]:
        """An analysis that a job computes: the choice of examples to label."""
        where = (snapshot.context.database, snapshot.model_id, snapshot.spec, snapshot.at)
        return self.report_labelling(None, *pending_pool(*where), 3)

    def compare_with(self, *_arguments: Any) -> dict[str, Any]:
        """Some adapted versions are outside tolerance, so that the retrained ones take over."""
        far = self.world.random.random() < 0.5
        return {"disagreement": float(far), "weight_distance": None, "retrain_is_worse": None, "speedup": 1.0}
